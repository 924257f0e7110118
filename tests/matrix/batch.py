"""One generated workload, read by several daemons with different options at once; some of them are killed in between.

In: a running server, broker and registry, cells, a seed.  Out: a `Counts` for each cell, or an AssertionError.
Invariant: judged only after every slot is confirmed to the end; the database, slots and topics are removed
afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from random import Random
from urllib.parse import quote

from confluent_kafka.admin import AdminClient

from cdcd.demo.stack.postgres import PostgresServer
from tests.matrix import account, tables
from tests.matrix.cells import Cell
from tests.matrix.judge import Counts, judge
from tests.matrix.workload import Done, Workload
from tests.support.daemon import Daemon
from tests.support.hints import apply, hint_of, sql_in
from tests.support.reader import Reader
from tests.support.stack import Stack, confirmed_position, run_script, wal_position, written_position
from tests.support.waiting import eventually

KILLS = {"prepare": 0.3, "decide": 0.2}
"""The chance that a daemon is killed after a step of this kind; KILLS_ELSE for every other step."""
KILLS_ELSE = 0.01
LEGS = 6
"""The number of points in the workload at which one daemon must have received everything, including open
transactions.
"""


WAITS_FOR_LOCK = (
    "SELECT 1 FROM pg_stat_activity JOIN pg_replication_slots ON pid = active_pid"
    " WHERE slot_name = %s AND wait_event_type = 'Lock'"
)
"""A walsender of PostgreSQL 13 itself waits for a lock that an open transaction holds on a partitioned table."""


@dataclass(frozen=True)
class Plan:
    """The parameters of a batch. `large_rows`: one transaction of that many rows in its middle."""

    seed: int
    steps: int
    large_rows: int = 0


@dataclass(frozen=True)
class Outcome:
    """The result of one cell: an `error` when it differed. `streamed`: transactions, by the server's count."""

    cell: Cell
    counts: Counts | None
    error: str
    kills: int
    streamed: int = 0


@dataclass
class _Reading:
    """One cell's daemon, and its result."""

    cell: Cell
    daemon: Daemon
    kills: int = 0
    failure: str = ""

    @property
    def state(self) -> str:
        """Return the daemon's state, and record a halt as the cell's failure."""
        process = self.daemon.process
        assert process is not None
        page = self.daemon.status()
        state, reason = str(page.get("state")), str(page.get("reason"))
        if state == "halted" and reason.startswith("CDCD-SOURCE-TWO-PHASE:"):
            self._switch_two_phase_off(hint_of(reason))
        elif state == "halted" or process.poll() is not None:
            self.failure = f"cdcd is {state}: {self.daemon.log()[-1000:]}"
        return state

    def _switch_two_phase_off(self, hint: str) -> None:
        """Switch two_phase off after a halt: PostgreSQL decodes at the commit what it could not decode at PREPARE."""
        self.daemon.stop()
        run_script(self.daemon.config["source"]["dsn"], *sql_in(hint))
        apply(self.daemon.config, hint, "source.protocol.two_phase")
        self.daemon.start()
        print(f"  two_phase was switched off, as the hint says: {self.cell}")


def run(stack: Stack, cells: tuple[Cell, ...], plan: Plan) -> list[Outcome]:
    """Run the workload once and judge each cell."""
    name = f"matrix_{stack.postgres.major}_{plan.seed}"
    with _database(stack.postgres, name) as dsn, ExitStack() as daemons:
        readings = [
            _Reading(cell, daemons.enter_context(_daemon(stack, cell, f"{name}_{number}", dsn, plan.seed)))
            for number, cell in enumerate(cells)
        ]
        for reading in readings:
            reading.daemon.start()
        for reading in readings:
            reading.daemon.wait_state("streaming")
        account.begin(dsn)
        workload = Workload(dsn, name, plan.seed)
        _work(stack.postgres, workload, readings, plan)
        for reading in readings:
            _await_confirmed(stack.postgres, reading, plan)
        reported = account.read(dsn)
        outcomes = [_judged(stack, reading, reported, workload.done) for reading in readings]
        if any(outcome.error for outcome in outcomes):
            (stack.folder / f"{name}.sql").write_text("\n".join(workload.done.log))
        return outcomes


def _judged(stack: Stack, reading: _Reading, reported: account.Account, done: Done) -> Outcome:
    cell, daemon = reading.cell, reading.daemon
    if reading.failure:
        return Outcome(cell, None, reading.failure, reading.kills)
    streamed = _streamed(stack.postgres, daemon.slot)
    try:
        assert daemon.stop() == 0, daemon.log()[-2000:]
        reader = Reader(stack.kafka.bootstrap, stack.registry.url)
        events = reader.each(*reader.topics(daemon.name))
        counts = judge(cell, stack.postgres.major, reported, done, daemon.name, events)
    except AssertionError as error:
        return Outcome(cell, None, str(error), reading.kills, streamed)
    return Outcome(cell, counts, "", reading.kills, streamed)


def _streamed(server: PostgresServer, slot: str) -> int:
    """Return the number of transactions that the server streamed; a session that repeats them without streaming adds
    none.
    """
    if server.major < 14:
        return 0
    stated = server.execute("SELECT stream_txns FROM pg_stat_replication_slots WHERE slot_name = %s", slot)
    return int(stated[0][0])


def _work(server: PostgresServer, workload: Workload, readings: list[_Reading], plan: Plan) -> None:
    """Run the workload's steps, and kills between them.

    A daemon is killed only while it streams, so that the kill interrupts a session.
    """
    random = Random(plan.seed)

    def after_step(rule: str) -> None:
        reading, chance = random.choice(readings), random.random()
        if chance < KILLS.get(rule, KILLS_ELSE) and reading.state == "streaming":
            reading.daemon.kill()
            reading.daemon.start()
            reading.kills += 1

    for leg in range(LEGS):
        _await_received(server, random.choice(readings))
        if plan.large_rows and leg == LEGS // 2:
            workload.large(plan.large_rows)
        workload.run(plan.steps // LEGS, after_step)
    workload.finish()


def _await_received(server: PostgresServer, reading: _Reading) -> None:
    end_lsn = written_position(server)

    def has_received() -> bool:
        state = reading.state
        if reading.failure:
            return True
        is_there = state == "streaming" and reading.daemon.received_lsn() >= end_lsn
        return is_there or bool(server.execute(WAITS_FOR_LOCK, reading.daemon.slot))

    eventually(has_received, f"{reading.daemon.name} has received everything", 120)


def _await_confirmed(server: PostgresServer, reading: _Reading, plan: Plan) -> None:
    end_lsn = wal_position(server)
    eventually(
        lambda: (
            (reading.state and reading.failure)
            or (confirmed_position(server, reading.daemon.slot) or 0) >= end_lsn
        ),
        f"{reading.daemon.name} has confirmed everything",
        120 + plan.large_rows / 2000,
        0.1,
    )


@contextmanager
def _database(server: PostgresServer, name: str) -> Iterator[str]:
    server.drop_database(name)
    server.create_database(name)
    try:
        dsn = server.dsn(name)
        run_script(dsn, *tables.schema(server.major), f"SELECT pg_replication_origin_create('{name}')")
        yield dsn
    finally:
        server.drop_database(name)
        server.execute(f"SELECT pg_replication_origin_drop('{name}')")


@contextmanager
def _daemon(stack: Stack, cell: Cell, name: str, dsn: str, seed: int) -> Iterator[Daemon]:
    """Yield a daemon, not yet started; delete its topics at the end."""
    settings = ["logical_decoding_work_mem=64kB"] if stack.postgres.major >= 13 else []
    if stack.postgres.major >= 16 and seed % 2:
        settings.append("debug_logical_replication_streaming=immediate")  # each change at once
    options = quote(" ".join(f"-c {one}" for one in settings), safe="")
    daemon = Daemon(
        stack.folder / name,
        name,
        dsn=f"{dsn}?options={options}" if options else dsn,
        bootstrap=stack.kafka.bootstrap,
        registry_url=stack.registry.url,
        source={"protocol": cell.protocol, "publication": {"names": tables.publications(cell)}},
        snapshot={"mode": "never"},
        registry={"compatibility": "NONE"},
        buffer={"memory": "1MiB"},
    )
    try:
        with daemon:
            yield daemon
    finally:
        admin = AdminClient({"bootstrap.servers": stack.kafka.bootstrap})
        topics = [topic for topic in admin.list_topics(timeout=10).topics if topic.startswith(f"{name}.")]
        for done in admin.delete_topics(topics).values() if topics else ():
            done.result()
