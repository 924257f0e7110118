"""A first copy that was interrupted and is not complete: readers are told so, until a copy completes the table.

The start after the interruption leaves the rest of a table to an incremental snapshot, or gives its copy up.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.postgres import PostgresServer
from cdcd.errors import SnapshotIncomplete
from cdcd.failpoints import EXIT_STATUS, VARIABLE
from cdcd.sink.topic_identity import TopicIdentities, key_of_topics
from cdcd.spark.source.commits import Commits
from cdcd.spark.source.source_options import parse_options
from tests.integration.conftest import NewDaemon
from tests.integration.test_snapshot_ranges import with_small_units
from tests.integration.test_snapshot_rest import started_until
from tests.support.daemon import Daemon, await_confirmed
from tests.support.folded import folded
from tests.support.nightly import nightly
from tests.support.reader import Reader
from tests.support.snapshot_commands import await_copied, command, reports, start
from tests.support.stack import PostgresServers, filled_database, run
from tests.support.topics import committed_records
from tests.support.waiting import eventually

BIG = 12_000
TABLES = (
    "CREATE TABLE big (id int PRIMARY KEY, n int, body text)",
    f"INSERT INTO big SELECT g, 0, repeat('x', 300) FROM generate_series(1, {BIG}) g",
    "CREATE TABLE t (id int PRIMARY KEY)",
    "INSERT INTO t VALUES (1)",
)
EXCLUDED = [{"table": "public.big", "include": False}]
SLOW = {"max_rows_per_second": 50}


@pytest.fixture
def source(pg_server: PostgresServers) -> Iterator[tuple[PostgresServer, str]]:
    """Yield a server and a database with the tables."""
    with filled_database(pg_server, 18, TABLES) as found:
        yield found


def lacking(daemon: Daemon) -> set[str]:
    """Return the tables that a batch read of all topics refuses."""
    given = {"brokers": daemon.config["sink"]["bootstrap_servers"], "prefix": daemon.name}
    commits = Commits(parse_options(given).of_a_batch())
    try:
        commits.batch()
    except SnapshotIncomplete as refusal:
        return {topic.rpartition(".")[2] for topic in str(refusal.context["topics"]).split(", ")}
    finally:
        commits.close()
    return set()


def listed(daemon: Daemon) -> set[str]:
    return {one["topic"].rpartition(".")[2] for one in daemon.status()["incomplete_topics"]}


def interrupted(daemon: Daemon, how: str, source: tuple[PostgresServer, str]) -> None:
    """Interrupt the first copy of the table, and start again with a slow copy, or without one."""
    server, database = source
    tables = "FOR TABLE big, t"
    run(
        server,
        database,
        f"DROP PUBLICATION cdcd_{daemon.name}",
        f"CREATE PUBLICATION cdcd_{daemon.name} {tables}",
    )
    started_until(daemon, "committed:12")  # within big
    daemon.config["snapshot"]["incremental"] = SLOW
    if how == "excluded":
        daemon.config["snapshot"]["overrides"] = EXCLUDED
    elif how == "unpublished before":
        run(server, database, f"ALTER PUBLICATION cdcd_{daemon.name} DROP TABLE big")
    elif how == "dropped":
        run(server, database, "DROP TABLE big")
    daemon.start().wait_state("streaming")


def end_copy(daemon: Daemon, how: str, source: tuple[PostgresServer, str]) -> None:
    """End the copy that goes on while the stream runs."""
    server, database = source
    assert len(reports(daemon)) == 1
    if how == "stopped":
        assert command(daemon, "stop", "public.big")[0] == 200
    elif how == "unpublished":
        run(server, database, f"ALTER PUBLICATION cdcd_{daemon.name} DROP TABLE big")
        eventually(lambda: not reports(daemon), "the copy is ended")


def complete(daemon: Daemon, how: str, source: tuple[PostgresServer, str]) -> None:
    """Bring the rows that are missing, with another process."""
    server, database = source
    daemon.config["snapshot"] |= {"incremental": {}, "overrides": []}
    if how.startswith("unpublished"):
        run(server, database, f"ALTER PUBLICATION cdcd_{daemon.name} ADD TABLE big")
    daemon.start().wait_state("streaming")
    if how in ("stopped", "excluded"):
        start(daemon, "public.big", recopy=True)
    eventually(lambda: not listed(daemon), "the table is complete")
    await_copied(daemon)


@pytest.mark.parametrize(
    ("how", "delivery"),
    [
        ("stopped", "exactly_once"),
        ("stopped", "at_least_once"),
        ("unpublished", "exactly_once"),
        ("excluded", "exactly_once"),
        nightly("excluded", "at_least_once"),
        nightly("unpublished before", "exactly_once"),
        nightly("goes on", "exactly_once"),
    ],
)
def test_an_interrupted_first_copy_is_not_shown_as_complete_before_a_copy_is(
    how: str, delivery: str, source: tuple[PostgresServer, str], new_daemon: NewDaemon, reader: Reader
) -> None:
    server, database = source
    sink: dict[str, Any] = {"commit": {"max_rows": 500}, "delivery": delivery}
    with with_small_units(new_daemon(server, database, snapshot={"workers": 1}, sink=sink)) as daemon:
        interrupted(daemon, how, source)
        if how not in ("excluded", "unpublished before"):
            end_copy(daemon, how, source)
        run(server, database, "INSERT INTO t VALUES (2)")
        await_confirmed(server, daemon)
        for _ in range(2):
            assert listed(daemon) == lacking(daemon) == {"big"}
            daemon.kill()
            daemon.start().wait_state("streaming")
        daemon.kill()
        complete(daemon, how, source)
        await_confirmed(server, daemon)
        assert lacking(daemon) == set()
        rows = folded(reader.read(f"{daemon.name}.public.big")).values()
        assert {row["id"] for row in rows} == set(range(1, BIG + 1))


@pytest.mark.parametrize("is_interrupted", [False, True], ids=["at once", "after a crash"])
def test_a_command_accepts_the_rows_that_a_table_without_a_key_has(
    is_interrupted: bool, source: tuple[PostgresServer, str], new_daemon: NewDaemon, reader: Reader
) -> None:
    """No row is copied, so that none arrives twice; and no truncate event takes the rows that there are."""
    server, database = source
    run(server, database, "ALTER TABLE big DROP CONSTRAINT big_pkey", "ALTER TABLE big REPLICA IDENTITY FULL")
    sink: dict[str, Any] = {"commit": {"max_rows": 500}}
    with with_small_units(new_daemon(server, database, snapshot={"workers": 1}, sink=sink)) as daemon:
        interrupted(daemon, "excluded", source)
        await_confirmed(server, daemon)
        assert listed(daemon) == lacking(daemon) == {"big"}
        before = [event.op for event in reader.read(f"{daemon.name}.public.big")]
        assert command(daemon, "start", "public.big", blocking=True, where="n = 0")[0] == 422
        if is_interrupted:
            assert daemon.stop() == 0
            daemon.environment[VARIABLE] = "hold_reached"
            daemon.start().wait_state("streaming")
        start(daemon, "public.big", blocking=True, where=" FALSE")
        if is_interrupted:
            assert daemon.wait_exit() == EXIT_STATUS
            del daemon.environment[VARIABLE]
            daemon.start().wait_state("streaming")
        eventually(lambda: not listed(daemon), "the rows are accepted")
        await_copied(daemon)
        run(server, database, "INSERT INTO big VALUES (0, 0, '')")
        await_confirmed(server, daemon)
        assert listed(daemon) == lacking(daemon) == set()
        assert [event.op for event in reader.read(f"{daemon.name}.public.big")] == [*before, "c"]


def test_a_table_that_was_dropped_during_its_first_copy_lacks_nothing(
    source: tuple[PostgresServer, str], new_daemon: NewDaemon
) -> None:
    """No copy can follow: the mark would never end."""
    server, database = source
    sink = {"commit": {"max_rows": 500}}
    with with_small_units(new_daemon(server, database, snapshot={"workers": 1}, sink=sink)) as daemon:
        interrupted(daemon, "dropped", source)
        run(server, database, "INSERT INTO t VALUES (2)")
        await_confirmed(server, daemon)
        assert listed(daemon) == lacking(daemon) == set()


def test_the_mark_ends_when_the_snapshot_copies_the_table_after_all(
    source: tuple[PostgresServer, str], new_daemon: NewDaemon, kafka: KafkaBroker
) -> None:
    """The second attempt has given the copy up; for the third one the table is included again."""
    server, database = source
    run(
        server,
        database,
        "CREATE TABLE log (what text)",
        "INSERT INTO log SELECT repeat('l', 300) FROM generate_series(1, 3000)",
    )
    sink = {"commit": {"max_rows": 500}}
    with with_small_units(new_daemon(server, database, snapshot={"workers": 1}, sink=sink)) as daemon:
        started_until(daemon, "committed:10")  # within big
        assert marked(kafka, daemon) == set()
        daemon.config["snapshot"]["overrides"] = EXCLUDED
        started_until(daemon, "committed:3")  # within log
        assert marked(kafka, daemon) == {"big"}
        daemon.config["snapshot"]["overrides"] = []
        daemon.start().wait_state("streaming")
        await_copied(daemon)
        run(server, database, "INSERT INTO t VALUES (2)")
        await_confirmed(server, daemon)
        assert listed(daemon) == marked(kafka, daemon) == lacking(daemon) == set()


def test_a_table_that_was_emptied_in_the_source_lacks_nothing(
    source: tuple[PostgresServer, str], new_daemon: NewDaemon, reader: Reader
) -> None:
    """Its copy was stopped after --recopy; the stream has all of its rows from the TRUNCATE on."""
    server, database = source
    run(
        server,
        database,
        "CREATE TABLE u (id int PRIMARY KEY)",
        "INSERT INTO u SELECT generate_series(1, 3000)",
    )
    with new_daemon(server, database, snapshot={"incremental": SLOW}) as daemon:
        daemon.start().wait_state("streaming")
        for one in ("big", "u"):
            start(daemon, f"public.{one}", recopy=True)
            assert command(daemon, "stop", f"public.{one}")[0] == 200
        # The other table's TRUNCATE is rolled back.
        run(
            server,
            database,
            "BEGIN; SAVEPOINT a; TRUNCATE u; ROLLBACK TO a; TRUNCATE big; INSERT INTO big VALUES (7, 7); COMMIT",
        )
        await_confirmed(server, daemon)
        for _ in range(2):
            assert listed(daemon) == lacking(daemon) == {"u"}
            daemon.kill()
            daemon.start().wait_state("streaming")
        assert [row["id"] for row in folded(reader.read(f"{daemon.name}.public.big")).values()] == [7]


def marked(kafka: KafkaBroker, daemon: Daemon) -> set[str]:
    """Return the tables that the daemon's last record of its topics marks."""
    records = committed_records(kafka.bootstrap, f"{daemon.name}.__progress")
    values = [one.value() for one in records if one.key() == key_of_topics(daemon.slot)]
    names = TopicIdentities.load(values[-1], 0).incomplete.names() if values and values[-1] else ()
    return {name.rpartition(".")[2] for name in names}
