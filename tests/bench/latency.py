"""The latency of a row: from the return of the writer's COMMIT to a read_committed consumer that has the row.

In: a rate, a runner, seconds.  Out: `Latency`.
pgbench keeps the rate (transactions of one row, arrivals of a Poisson process) and logs when each COMMIT returned; a
separate process reads the topic and notes when it had each row; both use the clock of this machine.
Invariant: every committed row is read exactly once; otherwise the run is an error and has no result.
"""

from __future__ import annotations

import array
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from cdcd.errors import StackError
from tests.bench.backlog import Backlog, table_name
from tests.bench.cases import TEN, Case
from tests.bench.copied_table import changing, make_table
from tests.bench.measure import Meter, Sample, await_stream, others_share, query_connection
from tests.bench.runners import Runner
from tests.bench.servers import Servers
from tests.faults.watched import MIB, PART_S, PARTS, Held, Watch, median

CLIENTS = 4
CLIENT_ROWS = 1_000_000_000
"""A client's row ids start at its number times this constant; ids of the warm-up are below zero."""
WARM_UP_S = 10
COLD_WARM_UP_S = 75
"""For a broker that has run few transactions yet: its JVM compiles the code after some thousand of them."""
WARM_UP, COUNTED = "warm-up", "counted"
READ_WITHIN_S = 120.0


@dataclass(frozen=True, slots=True)
class Rate:
    """One case: a number of one-row transactions per second."""

    name: str
    about: str
    per_second: int
    is_of_settings: bool = False
    """Whether cdcd's settings are varied instead of the runners."""
    is_long: bool = False
    changed_rows: int = 0
    """The rows of the large table of which each transaction also changes one; 0: without this table."""


RATES = {
    rate.name: rate
    for rate in (
        *(Rate(f"latency-{n}", f"latency at {n:,} transactions/s", n) for n in (100, 1_000, 5_000)),
        Rate(
            "latency-copied",
            "latency at 1,000 transactions/s that change a table of 5 M rows; the runner `copying` copies it",
            1_000,
            is_long=True,
            changed_rows=5_000_000,
        ),
        Rate("latency-settings", "latency at 1,000 transactions/s, by setting", 1_000, is_of_settings=True),
    )
}


@dataclass(frozen=True, slots=True)
class Latency:
    """The result of one run; milliseconds from COMMIT's return."""

    case: str
    runner: str
    per_second: float
    rows: int
    p50_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float
    cpu_us_per_row: dict[str, float]
    daemon_cores: float
    peak_memory_bytes: int
    others_share: float
    memory_mib: list[float]
    """The daemon's resident memory in each sixth of a long run: medians, which must not grow."""
    settings: dict[str, str] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """Return the result for JSON."""
        return asdict(self)


def empty_case(rate: Rate) -> Case:
    """Return a case with the table for the rows, empty at the start."""
    return Case(rate.name, rate.about, TEN, 0, 1)


def measure_latency(
    servers: Servers, backlog: Backlog, rate: Rate, runner: Runner, seconds: int, warm_up_s: int = WARM_UP_S
) -> Latency:
    """Write at the rate and read for `seconds`, after `warm_up_s` without measurement."""
    if rate.changed_rows:
        make_table(backlog, rate.changed_rows)
    with backlog.emptied() as slot, runner.run(servers, backlog, slot) as running:
        meter = Meter(servers, running.pid)
        with query_connection(backlog) as connection:
            meter.watch("walsender", await_stream(connection, slot, running.look, runner.name))
        writer = Writer(servers, backlog, servers.folder / f"latency-{slot}", rate.changed_rows)
        with writer.writing(rate.per_second, warm_up_s, is_warm_up=True):
            pass
        (topic,) = running.topics
        with _reading(servers, topic, writer) as reader:
            meter.watch("reader", reader.pid)
            begin = meter.sample()
            with Watch(running.pid, writer.folder) as watch, writer.writing(rate.per_second, seconds):
                pass
            end = meter.sample()
            committed = committed_at(writer.log(), CLIENT_ROWS)
            seen = reader.rows(len(committed))
        return _result(rate, runner, committed, seen, meter, (begin, end), memory_mib(watch.samples))


def _result(
    rate: Rate,
    runner: Runner,
    committed: Mapping[int, int],
    seen: Sequence[tuple[int, int]],
    meter: Meter,
    between: tuple[Sample, Sample],
    memory_mib: list[float],
) -> Latency:
    begin, end = between
    late_ms = sorted(latencies_ms(committed, seen))
    rows, elapsed_s = len(committed), end.at_s - begin.at_s
    spent = {name: (cpu - begin.cpu[name]).total_s for name, cpu in end.cpu.items() if name in begin.cpu}
    return Latency(
        case=rate.name,
        runner=runner.name,
        per_second=round(rows / elapsed_s, 1),
        rows=rows,
        p50_ms=quantile(late_ms, 0.5),
        p95_ms=quantile(late_ms, 0.95),
        p99_ms=quantile(late_ms, 0.99),
        max_ms=late_ms[-1],
        cpu_us_per_row={name: round(seconds / rows * 1e6, 2) for name, seconds in spent.items()},
        daemon_cores=round(spent["receiver"] / elapsed_s, 3),
        peak_memory_bytes=meter.peak_memory_bytes,
        others_share=round(others_share(begin, end, os.cpu_count() or 1), 3),
        memory_mib=memory_mib,
        settings=dict(runner.settings),
    )


def committed_at(lines: Iterable[str], client_rows: int) -> dict[int, int]:
    """Return when COMMIT returned, in microseconds of the epoch, by the row's id, from pgbench's log. Pure.

    A line is: client, number of its transaction from 1 on, duration, script, end in seconds and microseconds.
    """
    found = {}
    for line in lines:
        client, number, _took, _script, seconds, micros, *_ = line.split()
        found[int(client) * client_rows + int(number)] = int(seconds) * 1_000_000 + int(micros)
    return found


def latencies_ms(committed: Mapping[int, int], seen: Sequence[tuple[int, int]]) -> list[float]:
    """Return the latency of each row. Raises StackError when a row is missing or was read twice. Pure."""
    ids = {row for row, _ in seen}
    if len(ids) != len(seen) or ids != committed.keys():
        raise StackError(
            "the rows read are not the rows committed",
            committed=len(committed),
            read=len(seen),
            missing=len(committed.keys() - ids),
            repeated=len(seen) - len(ids),
        )
    return [(at_us - committed[row]) / 1000 for row, at_us in seen]


def memory_mib(samples: Sequence[Held]) -> list[float]:
    """Return the median of each sixth of the time, or nothing if the time is too short to be meaningful. Pure."""
    if len(samples) < 2 or samples[-1].at_s - samples[0].at_s < PARTS * PART_S:
        return []
    edges = pairwise(part / PARTS for part in range(PARTS + 1))
    return [round(median(samples, lambda one: one.memory_bytes / MIB, *edge), 1) for edge in edges]


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the value below which this share of the ordered values lies. Pure."""
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def id_of_key(key: bytes) -> int:
    """Return the row's id: the only field of an Avro key, after the registry's five-byte header. Pure."""
    value = shift = 0
    for byte in key[5:]:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1)
    raise ValueError("a key that is not a long")


# --- the writer ----------------------------------------------------------------------------------------------


class Writer:
    """Runs pgbench in a folder of its own."""

    def __init__(self, servers: Servers, backlog: Backlog, folder: Path, changed_rows: int = 0) -> None:
        """`changed_rows`: of how many rows of the large table each transaction changes one."""
        folder.mkdir()
        self.folder = folder
        self._changed_rows = changed_rows
        postgres = servers.postgres
        self._command = [
            str(servers.program("pgbench")), "--no-vacuum", "--define", "n=0", "--protocol", "prepared",
            "--client", str(CLIENTS), "--jobs", "1", "--host", postgres.host, "--port", str(postgres.port),
            "--username", postgres.superuser, backlog.database,
        ]  # fmt: skip

    @contextlib.contextmanager
    def writing(
        self, per_second: int, seconds: int, *, is_warm_up: bool = False, ends_with_block: bool = False
    ) -> Iterator[None]:
        """Write at this rate for a time, or until the end of the block. Raises StackError."""
        name = WARM_UP if is_warm_up else COUNTED
        script = self.folder / f"{name}.sql"
        script.write_text(insert_script(is_warm_up=is_warm_up, changed_rows=self._changed_rows))
        options = ["--rate", str(per_second), "--time", str(seconds), "--file", str(script)]
        options += ["--log", "--log-prefix", str(self.folder / name)]
        with (self.folder / "pgbench.out").open("w+") as output:
            process = subprocess.Popen(
                [*self._command[:-1], *options, self._command[-1]], stdout=output, stderr=output
            )
            try:
                yield
                if ends_with_block and process.poll() is None:
                    return
                if status := process.wait(seconds + READ_WITHIN_S):
                    output.seek(0)
                    raise StackError(f"pgbench ended with {status}:\n{output.read()[-2000:]}")
            finally:
                process.kill()

    def log(self, name: str = COUNTED) -> list[str]:
        """Return pgbench's log of each row."""
        return [line for path in self.folder.glob(f"{name}.[0-9]*") for line in path.read_text().splitlines()]


def insert_script(*, is_warm_up: bool, changed_rows: int = 0) -> str:
    """Return pgbench's script for each transaction; ids of the warm-up are negative. Pure.

    `changed_rows`: see `Rate`.
    """
    first = (
        f"-{CLIENT_ROWS}::bigint * (:client_id + 1)" if is_warm_up else f"{CLIENT_ROWS}::bigint * :client_id"
    )
    values = ", ".join(expression for _, _, expression in TEN)
    row = f"SELECT {first} + :n AS g"
    insert = f"INSERT INTO {table_name(0)} SELECT {values} FROM ({row}) AS row"
    return "\\set n :n + 1\n" + (changing(changed_rows, insert) if changed_rows else f"{insert};\n")


# --- the reader ----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _reading(servers: Servers, topic: str, writer: Writer) -> Iterator[_Reader]:
    """Start a reader and wait until it has all rows of the warm-up, so that the daemon has no backlog."""
    output = writer.folder / "seen"
    before = str(len(writer.log(WARM_UP)))
    command = [
        sys.executable,
        "-m",
        "tests.bench.reader",
        servers.kafka.bootstrap,
        topic,
        before,
        str(output),
    ]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        if process.stdout.readline().strip() != "reading":
            raise StackError("the reader did not start", topic=topic)
        yield _Reader(process, output)
    finally:
        process.kill()
        process.wait()


class _Reader:
    def __init__(self, process: subprocess.Popen[str], output: Path) -> None:
        self._process = process
        self._output = output

    @property
    def pid(self) -> int:
        return self._process.pid

    def rows(self, count: int) -> list[tuple[int, int]]:
        """Return id and time in microseconds of each row, when the reader has this many; after the timeout, those
        that it has.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(f"{count} {time.time() + READ_WITHIN_S}\n")
        self._process.stdin.close()
        if status := self._process.wait(READ_WITHIN_S * 2):
            raise StackError(f"the reader ended with {status}")
        numbers = array.array("q", self._output.read_bytes())
        return list(zip(numbers[::2], numbers[1::2], strict=True))
