"""One run: a runner drains a backlog, and its time and cost are measured.

In: servers, a backlog, a runner.  Out: `Run`.
The rate: the measurement starts when the first row is durable (for pg_recvlogical: sent; for a runner that needs a
warm-up: when a share of all rows is). The rows that the walsender had not sent by then are divided by the time until
all rows are durable. So the start counts nowhere, and rows in flight at that moment count against the runner. In a
backlog of one transaction no row is durable before all are, and the time starts with the stream. CPU is that of the
same interval, over the same rows.
Invariant: a run with another number of records than the case produces is an error.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import psycopg2
from psycopg2.extensions import connection as Connection  # noqa: N812

from cdcd.errors import StackError
from tests.bench import usage
from tests.bench.backlog import Backlog
from tests.bench.runners import Runner, Running, RunProgress
from tests.bench.servers import Servers
from tests.bench.table import NOISE
from tests.bench.usage import Cpu, Machine

LOOK_S = 0.02
START_LOOK_S = 0.005
START_WITHIN_S = 180.0
STANDSTILL_S = 600.0
SLOWEST_ROWS_A_SECOND = 5_000
"""How long the server may send nothing before a run is abandoned: meanwhile one transaction may be decoded or
written, at this rate at least.
"""

_SENT = "SELECT sent_lsn - '0/0'::pg_lsn FROM pg_stat_replication WHERE pid = %s"
_ACTIVE = "SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s AND active_pid IS NOT NULL"


@dataclass(frozen=True, slots=True)
class Run:
    """The measurements of one run. CPU by process in seconds, of user and system, for `rows` rows."""

    case: str
    runner: str
    rows: float
    seconds: float
    total_rows: int
    total_seconds: float
    """From the process's start to all rows durable."""
    ready_seconds: float
    """From the process's start until the stream began."""
    first_seconds: float
    """From the process's start until the first row was durable."""
    cpu: dict[str, dict[str, float]]
    threads: dict[str, float]
    peak_memory_bytes: int
    others_share: float
    records: int | None
    round: int = 0
    repeats: int = 0
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Rows per second."""
        return self.rows / self.seconds

    @property
    def is_disturbed(self) -> bool:
        """Whether other processes used so much of the machine that the result is unreliable."""
        return self.others_share > NOISE

    def cpu_us_per_row(self, process: str) -> float:
        """Return the CPU time of one process, user and system, in microseconds per row."""
        spent = self.cpu.get(process, {})
        return sum(spent.values()) / self.rows * 1e6

    def document(self) -> dict[str, Any]:
        """Return the run for JSON."""
        return asdict(self) | {"rows_per_second": round(self.rate, 1), "is_disturbed": self.is_disturbed}


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement of the processes and the machine."""

    at_s: float
    cpu: dict[str, Cpu]
    machine: Machine
    threads: dict[tuple[int, str], Cpu] = field(default_factory=dict)


class Meter:
    """Measures the processes of one run. For an ended process, its last measured usage remains."""

    def __init__(self, servers: Servers, receiver: int) -> None:
        broker, registry, postmaster = servers.kafka.pid, servers.registry.pid, servers.postgres.pid
        if broker is None or registry is None or postmaster is None:
            raise StackError("a server of the benchmark has ended")
        self._postmaster = postmaster
        self._receiver = receiver
        self._pids = {"receiver": receiver, "broker": broker, "registry": registry}
        self._last: dict[str, Cpu] = {}
        self.peak_memory_bytes = 0

    def watch(self, name: str, pid: int) -> None:
        """Add a process to the run, for example the walsender."""
        self._pids[name] = pid

    def touch(self) -> None:
        """Measure the processes that may end by themselves."""
        for name in ("walsender", "receiver"):
            self._look(name)
        self.peak_memory_bytes = usage.peak_memory_of(self._receiver) or self.peak_memory_bytes

    def sample(self) -> Sample:
        """Measure all processes."""
        at_s = time.monotonic()
        self.touch()
        for name in self._pids:
            self._look(name)
        # The walsender is a child of the postmaster, whose figures include the usage of ended children.
        # Ended children of the benchmark, such as pgbench, worked for it.
        self._last["bench"] = usage.with_ended_children_of(os.getpid())
        family = usage.family_of(self._postmaster)
        self._last["postgres"] = family - self._last.get("walsender", Cpu())
        return Sample(at_s, dict(self._last), usage.machine(), usage.threads_of(self._receiver))

    def _look(self, name: str) -> None:
        cpu = usage.cpu_of(self._pids[name]) if name in self._pids else None
        if cpu is not None:
            self._last[name] = cpu


def others_share(before: Sample, after: Sample, cores: int) -> float:
    """Return the share of the machine that other processes used, or that was taken from the machine. Pure.

    The kernel's interrupts belong to no process: on an otherwise idle machine the run causes them.
    """
    elapsed_s = after.at_s - before.at_s
    if elapsed_s <= 0:
        return 0.0
    spent = after.machine - before.machine
    ours_s = sum((cpu - before.cpu.get(name, Cpu())).total_s for name, cpu in after.cpu.items())
    return max(0.0, spent.processes_s + spent.stolen_s - ours_s) / (elapsed_s * cores)


def rows_left(rows: int, start_lsn: int, end_lsn: int, sent_lsn: int) -> float:
    """Return the number of rows after `sent_lsn` in a backlog of equal rows. Pure."""
    at = min(max(sent_lsn, start_lsn), end_lsn)
    return rows * (end_lsn - at) / (end_lsn - start_lsn)


def measure(servers: Servers, backlog: Backlog, runner: Runner) -> Run:
    """Let the runner drain the backlog over a slot of its own. Raises StackError when the run fails."""
    with backlog.new_slot() as slot, query_connection(backlog) as connection:
        started_s = time.monotonic()
        with runner.run(servers, backlog, slot) as running:
            return _Watching(servers, backlog, runner, running, connection, slot, started_s).run()


class _Watching:
    """The course of one run: it waits for the stream, for the first row, for the last."""

    def __init__(
        self,
        servers: Servers,
        backlog: Backlog,
        runner: Runner,
        running: Running,
        connection: Connection,
        slot: str,
        started_s: float,
    ) -> None:
        self._backlog = backlog
        self._runner = runner
        self._running = running
        self._connection = connection
        self._slot = slot
        self._started_s = started_s
        self._meter = Meter(servers, running.pid)

    def run(self) -> Run:
        """Wait for the end and return the measurements."""
        backlog, case = self._backlog, self._backlog.case
        walsender = await_stream(self._connection, self._slot, self._running.look, self._runner.name)
        self._meter.watch("walsender", walsender)
        ready = begin = self._meter.sample()
        left = float(case.rows)
        seen = self._await(walsender, RunProgress.SOME)
        first_s = time.monotonic()
        if not case.is_one_transaction and seen is not RunProgress.ALL:
            seen = self._await(walsender, RunProgress.WARM)
            begin = self._meter.sample()
            left = rows_left(case.rows, backlog.start_lsn, backlog.end_lsn, self._sent(walsender))
        if left < case.rows / 10:  # the rest is too small for a meaningful rate
            begin, left = ready, float(case.rows)
        if seen is not RunProgress.ALL:
            self._await(walsender, RunProgress.ALL)
        end = self._meter.sample()
        return self._result(begin, end, left, ready.at_s, first_s)

    def _result(self, begin: Sample, end: Sample, rows: float, ready_s: float, first_s: float) -> Run:
        case = self._backlog.case
        records = self._running.records()
        wanted = self._backlog.records
        if records is not None and records != wanted:
            raise StackError(
                f"{self._runner.name} wrote {records} records for {case.name}, which makes {wanted}"
            )
        spent = {name: cpu - begin.cpu.get(name, Cpu()) for name, cpu in end.cpu.items()}
        return Run(
            case=case.name,
            runner=self._runner.name,
            rows=rows,
            seconds=end.at_s - begin.at_s,
            total_rows=case.rows,
            total_seconds=end.at_s - self._started_s,
            ready_seconds=ready_s - self._started_s,
            first_seconds=first_s - self._started_s,
            cpu={name: {"user_s": cpu.user_s, "system_s": cpu.system_s} for name, cpu in spent.items()},
            threads=usage.by_name(begin.threads, end.threads, spent["receiver"].total_s),
            peak_memory_bytes=self._meter.peak_memory_bytes,
            others_share=round(others_share(begin, end, os.cpu_count() or 1), 3),
            records=records,
            settings=dict(self._runner.settings),
        )

    def _await(self, walsender: int, wanted: RunProgress) -> RunProgress:
        """Wait until the run has reached this state."""
        sent, news_s = 0, time.monotonic()
        standstill_s = STANDSTILL_S + self._backlog.case.rows_per_transaction / SLOWEST_ROWS_A_SECOND
        while (seen := self._running.look(LOOK_S)).value < wanted.value or self._is_none_sent(
            seen, walsender
        ):
            self._meter.touch()
            if time.monotonic() - news_s > standstill_s:
                now = self._sent(walsender)
                if now == sent:
                    raise StackError(f"{self._runner.name} stands still", case=self._backlog.case.name)
                sent, news_s = now, time.monotonic()
        return seen

    def _is_none_sent(self, seen: RunProgress, walsender: int) -> bool:
        """Return whether the runner discards its rows and the server has sent it none yet."""
        return (
            seen in (RunProgress.SOME, RunProgress.WARM) and self._sent(walsender) <= self._backlog.start_lsn
        )

    def _sent(self, walsender: int) -> int:
        rows = _ask(self._connection, _SENT, walsender)
        return int(rows[0][0] or 0) if rows else self._backlog.end_lsn


def await_stream(connection: Connection, slot: str, look: Callable[[float], object], name: str) -> int:
    """Wait until a walsender reads the slot and return its process id. Raises StackError when none comes.

    `look` waits for its argument's time, and raises when the receiver has ended.
    """
    deadline_s = time.monotonic() + START_WITHIN_S
    while not (rows := _ask(connection, _ACTIVE, slot)):
        if look(START_LOOK_S) is RunProgress.ALL:
            raise StackError(f"{name} was done before it was found streaming", hint="choose a larger --scale")
        if time.monotonic() > deadline_s:
            raise StackError(f"{name} never began to stream")
    return int(rows[0][0])


def _ask(connection: Connection, statement: str, *params: object) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement, params)
        return cursor.fetchall()


@contextlib.contextmanager
def query_connection(backlog: Backlog) -> Iterator[Connection]:
    """Open a connection in which each query is a transaction."""
    connection = psycopg2.connect(backlog.dsn)
    connection.autocommit = True
    try:
        yield connection
    finally:
        connection.close()
