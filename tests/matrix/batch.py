"""One generated workload, read by several daemons with different options at once, some of them killed on the way.

In: a running server, broker and registry, cells, a seed.  Out: a `Counts` for each cell, or an AssertionError.
Invariant: judged only after every slot is confirmed to the end; the database, slots and topics are gone afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from urllib.parse import quote

from confluent_kafka.admin import AdminClient

from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.postgres import PostgresServer
from cdcd.demo.stack.registry import SchemaRegistry
from cdcd.lsn import parse_lsn
from tests.matrix import account, tables
from tests.matrix.cells import Cell
from tests.matrix.judge import Counts, judge
from tests.matrix.workload import Workload
from tests.support.daemon import Daemon
from tests.support.reader import Reader
from tests.support.stack import confirmed_position, run_script, wal_position
from tests.support.waiting import eventually

KILLS = {"prepare": 0.3, "decide": 0.2}
"""How likely a step makes a daemon be killed behind it; every other step: KILLS_ELSE."""
KILLS_ELSE = 0.01
LEGS = 6
"""At so many points of the workload one daemon has to have received all there is, with what is open then."""


@dataclass(frozen=True)
class Stack:
    """The servers."""

    postgres: PostgresServer
    kafka: KafkaBroker
    registry: SchemaRegistry
    folder: Path


@dataclass(frozen=True)
class Plan:
    """What a batch does. `large_rows`: one transaction of that many rows in its middle."""

    seed: int
    steps: int
    large_rows: int = 0


@dataclass(frozen=True)
class Outcome:
    """What became of one cell: an `error` when it was not equal."""

    cell: Cell
    counts: Counts | None
    error: str
    kills: int


def run(stack: Stack, cells: tuple[Cell, ...], plan: Plan) -> list[Outcome]:
    """Run the workload once and judge each cell."""
    name = f"matrix_{stack.postgres.major}_{plan.seed}"
    with ExitStack() as stack_of, _database(stack.postgres, name) as dsn:
        daemons = [
            stack_of.enter_context(_daemon(stack, cell, f"{name}_{number}", dsn, plan.seed))
            for number, cell in enumerate(cells)
        ]
        account.begin(dsn)
        for daemon in daemons:
            daemon.start()
        workload = Workload(dsn, name, plan.seed)
        kills = _work(stack.postgres, workload, daemons, plan)
        _await_confirmed(stack.postgres, daemons, plan)
        for daemon in daemons:
            assert daemon.stop() == 0, daemon.log()[-2000:]
        told = account.read(dsn)
        outcomes = []
        for cell, daemon, killed in zip(cells, daemons, kills, strict=True):
            try:
                reader = Reader(stack.kafka.bootstrap, stack.registry.url)
                events = reader.each(*reader.topics(daemon.name))
                counts = judge(cell, stack.postgres.major, told, workload.done, daemon.name, events)
                outcomes.append(Outcome(cell, counts, "", killed))
            except AssertionError as error:
                outcomes.append(Outcome(cell, None, str(error), killed))
        if any(outcome.error for outcome in outcomes):
            (stack.folder / f"{name}.sql").write_text("\n".join(workload.done.log))
        return outcomes


def _work(server: PostgresServer, workload: Workload, daemons: list[Daemon], plan: Plan) -> list[int]:
    """The workload's steps, and kills between them; how often each daemon was killed.

    A daemon is killed only when it streams, so that there is something to cut off.
    """
    random = Random(plan.seed)
    kills = [0] * len(daemons)

    def after_step(rule: str) -> None:
        number, chance = random.randrange(len(daemons)), random.random()
        if chance < KILLS.get(rule, KILLS_ELSE) and daemons[number].status().get("state") == "streaming":
            daemons[number].kill()
            daemons[number].start()
            kills[number] += 1

    for leg in range(LEGS):
        _await_received(server, random.choice(daemons))
        if plan.large_rows and leg == LEGS // 2:
            workload.large(plan.large_rows)
        workload.run(plan.steps // LEGS, after_step)
    workload.finish()
    return kills


def _await_received(server: PostgresServer, daemon: Daemon) -> None:
    # A commit of its own makes the server write out what open transactions have left in its buffers.
    position = server.execute("SELECT txid_current(), pg_current_wal_insert_lsn() - '0/0'::pg_lsn")
    end_lsn = int(position[0][1])

    def has_received() -> bool:
        page = daemon.status()
        assert page.get("state") != "halted", f"cdcd is halted:\n{daemon.log()[-3000:]}"
        is_there = page.get("state") == "streaming" and parse_lsn(page["received_lsn"]) >= end_lsn
        # A walsender of PostgreSQL 13 itself waits for a lock on a partitioned table that an open transaction has.
        return is_there or server.execute(
            "SELECT 1 FROM pg_stat_activity JOIN pg_replication_slots ON pid = active_pid"
            " WHERE slot_name = %s AND wait_event_type = 'Lock'",
            daemon.slot,
        )

    eventually(has_received, f"{daemon.name} has received everything", 120)


def _await_confirmed(server: PostgresServer, daemons: list[Daemon], plan: Plan) -> None:
    end_lsn = wal_position(server)
    for daemon in daemons:

        def is_confirmed(daemon: Daemon = daemon) -> bool:
            assert daemon.process is not None
            state = daemon.status().get("state")
            ended = daemon.process.poll() is not None or state == "halted"
            assert not ended, f"cdcd is {state}:\n{daemon.log()[-3000:]}"
            return (confirmed_position(server, daemon.slot) or 0) >= end_lsn

        eventually(is_confirmed, f"{daemon.name} has confirmed everything", 120 + plan.large_rows / 2000, 0.1)


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
    """A daemon with its slot, not yet started; its topics are deleted at the end."""
    settings = ["logical_decoding_work_mem=64kB"] if stack.postgres.major >= 13 else []
    if stack.postgres.major >= 16 and seed % 2:
        settings.append("debug_logical_replication_streaming=immediate")  # F32
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
    two_phase = ", false, true" if cell.two_phase else ""
    stack.postgres.execute(
        f"SELECT pg_create_logical_replication_slot(%s, 'pgoutput'{two_phase})",
        daemon.slot,
        dbname=dsn.rpartition("/")[2],
    )
    try:
        with daemon:
            yield daemon
    finally:
        admin = AdminClient({"bootstrap.servers": stack.kafka.bootstrap})
        topics = [topic for topic in admin.list_topics(timeout=10).topics if topic.startswith(f"{name}.")]
        for done in admin.delete_topics(topics).values() if topics else ():
            done.result()
