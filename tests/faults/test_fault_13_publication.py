"""F39, F42, F72, fault 13: cdcd reports every change of the publication."""

from __future__ import annotations

import contextlib
import copy
import signal
from typing import Any

import psycopg2
import pytest

from cdcd.demo.stack.postgres import PostgresServer
from cdcd.errors import CdcdError, PublicationChanged, PublicationMissing
from cdcd.monitoring.publication_monitor import PublicationMonitor
from cdcd.ops.metrics import Metrics
from cdcd.sink.topic_identity import TopicIdentities
from cdcd.source.connection import connect_sql, fetch
from tests.integration.conftest import NewDaemon
from tests.support.daemon import await_confirmed
from tests.support.nightly import nightly
from tests.support.reader import Reader
from tests.support.resolutions import halts_with
from tests.support.source import source_database
from tests.support.stack import PostgresServers, confirmed_position, run, run_script, wal_position
from tests.support.waiting import eventually

TABLES = (
    "CREATE TABLE t (a int PRIMARY KEY, b text)",
    "CREATE TABLE u (a int PRIMARY KEY)",
    "CREATE TABLE v (a int PRIMARY KEY)",
    "CREATE PUBLICATION pub FOR TABLE t, u",
)

LEFT_OUT = "ALTER PUBLICATION pub DROP TABLE t"
NARROWED = "ALTER PUBLICATION pub SET (publish = 'insert')"
WIDENED = "ALTER PUBLICATION pub SET (publish = 'insert, update, delete, truncate')"


class Watched:
    """A publication monitor on a real server, and the errors that it found."""

    def __init__(self, connection: Any, *, halts_at_removal: bool = False) -> None:
        self.connection = connection
        self.errors: list[CdcdError] = []
        self.metrics = Metrics("0", with_process=False)
        self.watch = PublicationMonitor(("pub",), self.metrics, halts_at_removal=halts_at_removal)
        self.identities = TopicIdentities()
        self.watch.begin(self.identities, is_anew=False)
        assert self.look() == []

    def again(self) -> Watched:
        """Return the monitor as the next process has it at its start, before the first comparison."""
        other = copy.copy(self)
        other.errors, other.identities = [], TopicIdentities.load(self.identities.dump(), 0)
        other.watch = PublicationMonitor(("pub",), self.metrics, halts_at_removal=True)
        other.watch.begin(other.identities, is_anew=False)
        return other

    def look(self) -> list[str]:
        """Compare once; return the kinds and tables of the changes found."""
        comparison = self.watch.compare(self.connection)
        error = self.watch.judge(comparison)
        self.errors += [] if error is None else [error]
        return [f"{change.kind} {change.table}".strip() for change in comparison.found]


@pytest.mark.parametrize("major", [nightly(14), nightly(15), 18])
def test_each_change_is_seen_once(pg_server: PostgresServers, major: int) -> None:
    with (
        source_database(pg_server(major), *TABLES) as settings,
        contextlib.closing(connect_sql(settings)) as connection,
    ):
        watched = Watched(connection)
        steps = [
            (["ALTER PUBLICATION pub ADD TABLE v"], ["table_added public.v"]),
            (["ALTER PUBLICATION pub DROP TABLE v"], ["table_removed public.v"]),
            ([LEFT_OUT, "ALTER PUBLICATION pub ADD TABLE t"], ["table_readded public.t"]),
            ([NARROWED, WIDENED], ["options"]),
            (["ALTER TABLE t ADD COLUMN c int"], []),
            (["ALTER TABLE u RENAME TO w"], ["table_renamed public.w"]),
            ([NARROWED], ["options"]),
            (["DROP TABLE w"], ["table_gone public.w"]),
            (["DROP TABLE t", "CREATE TABLE t (a int PRIMARY KEY, b text)"], ["table_replaced public.t"]),
        ]
        if major >= 15:
            steps += [
                (["ALTER PUBLICATION pub SET TABLE t (a)"], ["table_added public.t"]),
                (
                    ["ALTER PUBLICATION pub SET TABLE t (a, b)"],
                    ["columns public.t", "table_readded public.t"],
                ),
                (
                    ["ALTER PUBLICATION pub SET TABLE t (a, b) WHERE (a > 1)"],
                    ["rows public.t", "table_readded public.t"],
                ),
            ]
        for statements, expected in steps:
            run_script(settings.dsn, *statements)
            assert watched.look() == expected, statements
            assert watched.look() == [], "each change is reported once"
        assert watched.errors == []
        again = ["DROP PUBLICATION pub", "CREATE PUBLICATION pub FOR TABLE t WITH (publish = 'insert')"]
        run_script(settings.dsn, *again)
        assert "recreated" in watched.look()
        run_script(settings.dsn, "DROP PUBLICATION pub")
        assert watched.look() == ["dropped"]
        assert [type(error) for error in watched.errors] == [PublicationChanged, PublicationMissing]
        assert watched.metrics.snapshot()['cdcd_publication_changes_total{change="table_removed"}'] == 1


def test_a_removed_table_halts_where_that_is_wanted(pg_server: PostgresServers) -> None:
    with (
        source_database(pg_server(18), *TABLES) as settings,
        contextlib.closing(connect_sql(settings)) as connection,
    ):
        watched = Watched(connection, halts_at_removal=True)
        run_script(settings.dsn, "DROP TABLE u")
        assert watched.look() == ["table_gone public.u"]
        assert watched.errors == []
        run_script(settings.dsn, "ALTER PUBLICATION pub SET TABLE v")
        assert watched.look() == ["table_removed public.t", "table_added public.v"]
        assert [type(error) for error in watched.errors] == [PublicationChanged]


def test_what_was_changed_while_nobody_looked_is_judged_as_if_somebody_had(
    pg_server: PostgresServers,
) -> None:
    """Each change has the same result in a running monitor and in a new one that starts with the state from Kafka."""
    ways = (
        ("ALTER PUBLICATION pub ADD TABLE v", None),
        (NARROWED, None),
        ("ALTER PUBLICATION pub SET (publish_via_partition_root)", None),
        ("ALTER PUBLICATION pub SET TABLE u, v, t (a)", PublicationChanged),
        ("ALTER PUBLICATION pub SET TABLE u, v, t (a) WHERE (a > 1)", PublicationChanged),
        ("ALTER PUBLICATION pub DROP TABLE u", PublicationChanged),
        ("DROP PUBLICATION pub; CREATE PUBLICATION pub FOR TABLE t", PublicationChanged),
        ("DROP TABLE t", None),
        ("DROP PUBLICATION pub", PublicationMissing),
    )
    with (
        source_database(pg_server(18), *TABLES) as settings,
        contextlib.closing(connect_sql(settings)) as connection,
    ):
        for statement, expected in ways:
            running = Watched(connection, halts_at_removal=True)
            stopped = running.again()
            run_script(settings.dsn, statement)
            assert stopped.look() == running.look() != [], statement
            kinds = [type(error) for error in running.errors]
            assert [type(error) for error in stopped.errors] == kinds == [expected] * (expected is not None)


@pytest.mark.parametrize("major", [nightly(15), 18])
def test_a_schema_that_was_out_between_two_looks_is_seen(pg_server: PostgresServers, major: int) -> None:
    """F42: even if the schema was out between two checks; changes of its tables in between are in no stream."""
    left_out = "ALTER PUBLICATION pub DROP TABLES IN SCHEMA public"
    put_back = "ALTER PUBLICATION pub ADD TABLES IN SCHEMA public"
    tables = (*TABLES[:2], "CREATE PUBLICATION pub FOR TABLES IN SCHEMA public")
    with (
        source_database(pg_server(major), *tables) as settings,
        contextlib.closing(connect_sql(settings)) as connection,
    ):
        running = Watched(connection, halts_at_removal=True)
        stopped = running.again()
        assert stopped.look() == running.look() == []
        run_script(settings.dsn, left_out, put_back)
        for watched in (running, stopped):
            assert sorted(watched.look()) == ["table_readded public.t", "table_readded public.u"]
            assert [type(error) for error in watched.errors] == [PublicationChanged]
            watched.watch.resumed(watched.errors[-1])
            watched.look()
            assert watched.look() == []


@pytest.mark.parametrize("major", [nightly(14), 18])
def test_a_partition_whose_parent_was_out_between_two_looks_is_seen(
    pg_server: PostgresServers, major: int
) -> None:
    """F42: a partition is published through its parent, at any level."""
    tables = (
        "CREATE TABLE t (a int PRIMARY KEY) PARTITION BY RANGE (a)",
        "CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (10) PARTITION BY RANGE (a)",
        "CREATE TABLE lowest PARTITION OF low FOR VALUES FROM (0) TO (5)",
        "CREATE TABLE high PARTITION OF t FOR VALUES FROM (10) TO (20)",
        "CREATE PUBLICATION pub FOR TABLE t, low",
    )
    with (
        source_database(pg_server(major), *tables) as settings,
        contextlib.closing(connect_sql(settings)) as connection,
    ):
        watched = Watched(connection)
        run_script(settings.dsn, LEFT_OUT, "ALTER PUBLICATION pub ADD TABLE t")
        assert watched.look() == ["table_readded public.high"], (
            "the other partition's parent was published all the time"
        )
        run_script(
            settings.dsn, "ALTER PUBLICATION pub DROP TABLE low", "ALTER PUBLICATION pub ADD TABLE low"
        )
        assert watched.look() == ["table_readded public.lowest"]
        if major >= 15:
            in_schema = "ALTER PUBLICATION pub {} TABLES IN SCHEMA parents"
            run_script(settings.dsn, "CREATE SCHEMA parents", "ALTER TABLE t SET SCHEMA parents")
            run_script(settings.dsn, "ALTER PUBLICATION pub DROP TABLE parents.t", in_schema.format("ADD"))
            assert watched.look() == ["table_readded public.high"]
            run_script(settings.dsn, in_schema.format("DROP"), in_schema.format("ADD"))
            assert watched.look() == ["table_readded public.high"]


def test_a_resumption_after_a_halt_accepts_only_the_changes_that_the_halt_named(
    pg_server: PostgresServers,
) -> None:
    """Changes of a table that is added again during a halt are lost, so a second halt names the table (F42)."""
    with (
        source_database(pg_server(18), *TABLES) as settings,
        contextlib.closing(connect_sql(settings)) as connection,
    ):
        watched = Watched(connection, halts_at_removal=True)
        run_script(settings.dsn, LEFT_OUT)
        assert watched.look() == ["table_removed public.t"]
        run_script(settings.dsn, "ALTER PUBLICATION pub ADD TABLE t")
        watched.watch.resumed(watched.errors[-1])
        assert watched.look() == ["table_readded public.t"]
        assert watched.again().look() == ["table_readded public.t"], "a restart does not accept the change"
        watched.watch.resumed(watched.errors[-1])
        watched.look()
        assert watched.look() == watched.again().look() == []
        assert ["added again" in error.message for error in watched.errors] == [False, True]


def test_a_table_that_somebody_alters_holds_up_no_look(pg_server: PostgresServers) -> None:
    """The server locks a table to read its columns; the change is reported once the lock is released."""
    with (
        source_database(pg_server(18), *TABLES) as settings,
        contextlib.closing(connect_sql(settings)) as connection,
        contextlib.closing(psycopg2.connect(settings.dsn)) as altering,
    ):
        fetch(connection, "SELECT set_config('lock_timeout', '50', false)")
        watched = Watched(connection)
        with altering.cursor() as cursor:
            cursor.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        run_script(settings.dsn, "ALTER PUBLICATION pub ADD TABLE v")
        assert watched.look() == []
        altering.rollback()
        assert watched.look() == ["table_added public.v"]


@pytest.mark.parametrize("major", [nightly(17), 18])
def test_a_publication_that_was_away_between_two_looks_halts_and_nothing_is_confirmed_past_it(
    pg_server: PostgresServers, new_daemon: NewDaemon, reader: Reader, major: int
) -> None:
    """The server reports it: 17 with an error, 18 with a warning, while its stream lacks the row (F72)."""
    with source_database(pg_server(major), "CREATE TABLE t (a int PRIMARY KEY)") as settings:
        server, name = pg_server(major), settings.slot
        with new_daemon(server, name) as daemon:
            publication = f"cdcd_{daemon.name}"
            daemon.start().wait_state("streaming")
            run(server, name, "INSERT INTO t VALUES (1)")
            await_confirmed(server, daemon)
            run_script(
                settings.dsn,
                f"DROP PUBLICATION {publication}; INSERT INTO t VALUES (2);"
                f" CREATE PUBLICATION {publication} FOR ALL TABLES",
                f"DROP PUBLICATION {publication}",
                "INSERT INTO t VALUES (3)",
                f"CREATE PUBLICATION {publication} FOR ALL TABLES",
                "INSERT INTO t VALUES (4)",
            )
            lost_lsn = wal_position(server)
            page = daemon.wait_state("halted")
            assert "CDCD-PUBLICATION" in page["reason"]
            assert (confirmed_position(server, daemon.slot) or 0) < lost_lsn
            assert daemon.process is not None
            while (
                PublicationMissing.code not in daemon.status()["reason"] or len(daemon.events("halted")) < 2
            ):
                halts = len(daemon.events("halted"))
                assert halts < 3, daemon.log()
                daemon.process.send_signal(signal.SIGHUP)
                eventually(lambda: len(daemon.events("halted")) > halts, "the daemon checks again, and halts")  # noqa: B023
            assert daemon.stop() == 0
        events = reader.read(f"{daemon.name}.public.t")
        assert [event.value["after"]["a"] for event in events] == [1]


def test_a_table_taken_out_while_no_daemon_runs_halts_the_next_start(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    """F42: PostgreSQL silently leaves out the table's changes; cdcd has the published tables in Kafka."""
    run_script(postgres.dsn(database), *TABLES)
    publication = {"names": ["pub"], "table_removed": "halt"}
    daemon = new_daemon(postgres, database, source={"publication": publication})
    daemon.start().wait_state("streaming")
    run(postgres, database, "INSERT INTO t VALUES (1)")
    await_confirmed(postgres, daemon)
    assert daemon.stop() == 0
    run_script(postgres.dsn(database), LEFT_OUT, "INSERT INTO t VALUES (2)", "INSERT INTO u VALUES (2)")
    assert "table public.t was removed from" in halts_with(daemon.start(), PublicationChanged.code)
    run_script(postgres.dsn(database), "ALTER PUBLICATION pub ADD TABLE t", "INSERT INTO t VALUES (3)")
    daemon.reload()
    eventually(lambda: "added again" in daemon.status()["reason"], "the second halt names the added table")
    assert reader.read(f"{daemon.name}.public.u") == []
    daemon.reload()
    daemon.wait_state("streaming")
    await_confirmed(postgres, daemon)
    assert daemon.stop() == 0
    daemon.start().wait_state("streaming")
    assert daemon.stop() == 0
    rows = sorted(event.value["after"]["a"] for event in reader.read(f"{daemon.name}.public.t"))
    assert rows == [1, 3], "the row written in between is not in the stream, as both halts report"
