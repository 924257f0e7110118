"""Fault 1: cdcd crashes at every failpoint, under three kinds of load, and restarts. An unreached failpoint fails.

Each load has one database: the daemon is started with one failpoint after another, each start continues after the
crash before, and the oracle judges the complete run at the end.
"""

from __future__ import annotations

import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.postgres import PostgresServer
from cdcd.demo.stack.registry import SchemaRegistry
from cdcd.failpoints import EXIT_STATUS, FAILPOINTS, VARIABLE
from tests.faults.truth import SAY, SAY_NOTHING
from tests.faults.world import World
from tests.support.daemon import Daemon
from tests.support.forked import Forks
from tests.support.nightly import nightly_except
from tests.support.snapshot_commands import command
from tests.support.stack import drop_database, new_database_name, run_script
from tests.support.waiting import eventually


@dataclass(frozen=True)
class Load:
    """Kinds of transactions, rows of a large transaction, a setting of cdcd's sessions, its `source` options, and the
    first failpoint.
    """

    kinds: dict[str, int]
    big_rows: int
    setting: str
    source: dict[str, Any] = field(default_factory=dict)
    first: str = next(iter(FAILPOINTS))


STREAMED = "debug_logical_replication_streaming%3Dimmediate"
LARGE_STREAMED = "logical_decoding_work_mem%3D64kB"
SMALL = {"small": 20, "savepoints": 4, "aborted": 2}
LOADS = {
    "small": Load(SMALL, 800, LARGE_STREAMED),
    "brief": Load(SMALL, 800, LARGE_STREAMED, first="received"),
    "streamed": Load({"big": 1, "small": 2, "copied": 1}, 1200, STREAMED),
    "mixed": Load(
        {"small": 8, "prepared": 4, "savepoints": 4, "altered": 2, "emptied": 1, "big": 2},
        800,
        STREAMED,
        {"protocol": {"two_phase": True}},
    ),
}
"""In "small" no transaction is streamed; the large transactions that `in_spill` needs are added there. "brief" is
"small" without the failpoints of snapshots."""
FEW_LOADS = ("brief", "mixed")
"""The loads in `.ci/run`. No transaction is streamed in the one; the other has streamed and prepared ones."""
ALL_LOADS = ("small", "streamed", "mixed")
DEADLINE_S = 120.0
LOOK_S = 0.5
PAUSE_S = 0.3
EARLY_PAUSE_S = 0.05
NOT_EARLY = {"big", "altered", "emptied", "savepoints"}
"""Kinds excluded during the snapshot, for which there are more and smaller transactions: these kinds would restart
the snapshot, or, decoded after a rollback of their subtransactions, make cdcd read the session without streaming."""


@contextmanager
def world_of(
    load: str,
    folder: Path,
    postgres: PostgresServer,
    kafka: KafkaBroker,
    registry: SchemaRegistry,
    forks: Forks,
) -> Iterator[World]:
    database = new_database_name()
    postgres.create_database(database)
    try:
        with World(
            folder,
            f"crash{database}",
            postgres,
            database,
            bootstrap=kafka.bootstrap,
            registry_url=registry.url,
            buffer={"memory": "64KiB", "spill_dir": str(folder / "spill")},
            source=LOADS[load].source,
        ) as world:
            world.daemon.config["source"]["dsn"] += f"?options=-c%20{LOADS[load].setting}"
            world.daemon.spawn = forks.spawn
            yield world
    finally:
        drop_database(postgres, database)


Crashing = Callable[[str], AbstractContextManager[World]]


@pytest.fixture
def crashing(
    tmp_path: Path, postgres: PostgresServer, kafka: KafkaBroker, registry: SchemaRegistry, forks: Forks
) -> Crashing:
    """`crashing(load)`: a separate database for this load."""
    postgres.start()
    return lambda load: world_of(load, tmp_path / new_database_name(), postgres, kafka, registry, forks)


@pytest.fixture(scope="module")
def hits() -> Iterator[Counter[tuple[str, str]]]:
    """How often cdcd has crashed at each failpoint in each load; printed as a table."""
    counted: Counter[tuple[str, str]] = Counter()
    yield counted
    loads = [load for load in LOADS if any(load == one for _, one in counted)]
    print("\n" + "failpoint".ljust(20), *(load.rjust(8) for load in loads))
    for failpoint, what in FAILPOINTS.items():
        print(failpoint.ljust(20), *(str(counted[failpoint, load]).rjust(8) for load in loads), f"  {what}")


@pytest.mark.timeout(900)  # 45 s, 250 s on a machine with four times the load
@pytest.mark.parametrize("load", nightly_except(LOADS, *FEW_LOADS))
def test_every_crash_point(load: str, crashing: Crashing, hits: Counter[tuple[str, str]]) -> None:
    begun_s = time.monotonic()
    with crashing(load) as world:
        for failpoint in crashes(world, load):
            hits[failpoint, load] += 1
        findings = continue_and_judge(world)
        assert world.daemon.stop() == 0
    took_s = time.monotonic() - begun_s
    print(f"{load}: {world.transactions} transactions, {world.changes} changes, {took_s:.0f} s")
    if findings:
        with crashing(load) as world:
            findings = [f"{guilty(world, load)}: findings appear first after this failpoint", *findings]
    assert not findings, "\n".join(findings)


OF_NEW_TABLES = {"chunk_begun", "chunk_emitted", "new_table_found", "new_table_begun", "table_copied"}
"""Failpoints that need a table with rows that joins the publication."""
OF_BLOCKING = {"blocking_recorded", "hold_reached"}
"""Failpoints of a blocking snapshot."""
ELSEWHERE = {"stale_rows_deleted", "topics_written"}
"""Failpoints that need a gap, or a topic that becomes known: tests/integration/test_snapshot_compare.py and
test_daemon_options.py reach them."""
ONCE = {"schema_level_set", "snapshot_begun", "slot_made", "snapshot_copied"} | OF_NEW_TABLES | OF_BLOCKING
"""Failpoints that one process may reach only once."""
JOINS = """
    CREATE TABLE {name} (id int{key});
    INSERT INTO {name} SELECT generate_series(1, 3000);
    ALTER PUBLICATION cdcd_{daemon} ADD TABLE {name}
"""
"""The oracle does not read topics with __ in their names: the history does not have these tables."""


def crashes(world: World, load: str) -> Iterator[str]:
    """Crash the daemon at each failpoint in turn, at the first or second hit; yield each failpoint.

    Sessions write from the start: the snapshot is taken of a busy database (F40, assertion j). They wait for a daemon
    that is behind: a chunk of a snapshot ends when the stream has reached it, and on a busy machine it never would.
    """
    kinds, room = LOADS[load].kinds, world.keeps_up
    options = {"big_rows": LOADS[load].big_rows, "pause_s": PAUSE_S, "has_room": room}
    world.fill(load)
    run_script(world.dsn, SAY_NOTHING)
    early = {kind: weight for kind, weight in kinds.items() if kind not in NOT_EARLY}
    world.write(f"{load} early", 2, kinds=early, pause_s=EARLY_PAUSE_S, has_room=room)
    world.wait_for_writes(10)
    for number, failpoint in enumerate(FAILPOINTS):
        if number < list(FAILPOINTS).index(LOADS[load].first) or failpoint in ELSEWHERE:
            continue
        if failpoint == "received":
            for writer in world.writers:
                writer.stop()
                assert sum(writer.done.values()) > 0
            world.write(load, 2, kinds=kinds, **options)
        if failpoint == "in_spill" and "big" not in kinds:
            world.write(f"{load} large", 1, kinds={"big": 1}, **options)
        if failpoint == "produced":
            run_script(world.dsn, SAY)
        joined = f"joined__{number}"
        if failpoint in OF_NEW_TABLES | OF_BLOCKING:
            key = " PRIMARY KEY" if failpoint in OF_NEW_TABLES else ""
            run_script(world.dsn, JOINS.format(name=joined, key=key, daemon=world.daemon.name))
        at = failpoint if number % 2 or failpoint in ONCE else f"{failpoint}:2"
        world.daemon.environment = {VARIABLE: at}
        status = crashed(world.daemon, failpoint, joined if failpoint in OF_BLOCKING else None)
        done = {writer.name: dict(writer.done) for writer in world.writers}
        page = state_of(world) if status is None else None
        assert status == EXIT_STATUS, (
            f"{at}: ended with {status}, {done}, {page}:\n{world.daemon.log()[-2000:]}"
        )
        yield failpoint


def crashed(daemon: Daemon, failpoint: str, blocking: str | None) -> int | None:
    """Start the daemon; return its exit status, None if it has not ended. `blocking`: the table of a blocking copy.

    A session that reads without streaming, after an error of the server's streaming, spills nothing: the daemon is
    started again.
    """
    end_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < end_s:
        before = len(daemon.events("streaming"))
        daemon.start()
        if blocking is not None:
            eventually(partial(has_begun, daemon, blocking), f"the blocking snapshot of {blocking}")
        while (status := exit_status(daemon, LOOK_S)) is None and time.monotonic() < end_s:
            sessions = daemon.events("streaming")[before:] if failpoint == "in_spill" else []
            if any(line["streaming"] == "off" for line in sessions):
                daemon.kill()
                break
        else:
            return status
    return None


def exit_status(daemon: Daemon, within_s: float) -> int | None:
    """Return the daemon's exit status, None if it runs on."""
    assert daemon.process is not None
    try:
        return daemon.process.wait(within_s)
    except subprocess.TimeoutExpired:
        return None


def has_begun(daemon: Daemon, table: str) -> bool:
    """Start a blocking snapshot; return False if the session ended meanwhile, to read without streaming.

    It is refused while that of the last failpoint continues. On a busy machine it takes effect after its answer.
    """
    daemon.wait_state("streaming")
    status, answer = command(daemon, "start", f"public.{table}", blocking=True, recopy=True)
    assert status in (0, 200, 409, 422, 504), answer
    return status != 409


def state_of(world: World) -> list[object]:
    """What the daemon and the server are doing, for the report of a crash that does not come."""
    return [
        world.daemon.status(),
        world.server.execute(
            "SELECT pid, application_name, state, wait_event, pg_blocking_pids(pid), left(query, 60)"
            " FROM pg_stat_activity WHERE datname = current_database()",
            dbname=world.dbname,
        ),
        world.server.execute("SELECT gid, prepared, database FROM pg_prepared_xacts"),
        # a chunk waits until the stream has received everything below the end of its snapshot
        world.server.execute(
            "SELECT pg_current_wal_insert_lsn()::text, pg_current_wal_flush_lsn()::text, s.sent_lsn::text,"
            " s.write_lsn::text, s.flush_lsn::text, s.reply_time FROM pg_stat_replication s"
        ),
    ]


def continue_and_judge(world: World) -> list[str]:
    """Return the oracle's findings after the daemon has continued without a crash."""
    world.daemon.environment = {}
    world.daemon.start()
    return [str(one) for one in world.judge()]


def guilty(world: World, load: str) -> str:
    """Repeat the run, judged after each failpoint; return the first failpoint with findings."""
    try:
        for failpoint in crashes(world, load):
            if continue_and_judge(world):
                return failpoint
            assert world.daemon.stop() == 0
            world.go_on()
    except AssertionError as error:
        return f"no single failpoint, up to: {error}"
    return "no single failpoint"
