"""Tables that join the publications: their earlier rows are copied once, or are proven to be in the stream (F42)."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import Any

import psycopg2
import pytest

from cdcd.demo.stack.postgres import PostgresServer
from cdcd.errors import PublicationChanged
from cdcd.failpoints import EXIT_STATUS, VARIABLE
from cdcd.session.new_table_follower import MOST_AT_ONCE
from cdcd.source.connection import connect_sql
from cdcd.source.new_tables import with_every_row
from cdcd.source.publication_diff import published_oids, read_published
from tests.integration.conftest import NewDaemon
from tests.support.daemon import Daemon, await_confirmed, await_event
from tests.support.folded import folded
from tests.support.nightly import nightly
from tests.support.quick import QUICK
from tests.support.reader import BEGINNING, Reader, assert_each_once
from tests.support.resolutions import halts_with
from tests.support.snapshot_commands import await_copied, command, reports, start
from tests.support.source import source_database
from tests.support.stack import PostgresServers, run_script
from tests.support.waiting import eventually

BEFORE = (
    "CREATE SCHEMA away",
    "CREATE TABLE old (a int PRIMARY KEY)",
    "CREATE TABLE away.moved (a int PRIMARY KEY, b text)",
    "CREATE TABLE parent (a int PRIMARY KEY) PARTITION BY RANGE (a)",
)
ALL, IN_SCHEMA = "ALL TABLES", "TABLES IN SCHEMA public"
WAYS = [
    # The stream has each row of these.
    (ALL, True, "CREATE TABLE t (a int PRIMARY KEY, b text); INSERT INTO t VALUES (1, 'x')"),
    (IN_SCHEMA, True, "CREATE TABLE t (a int PRIMARY KEY, b text); CREATE INDEX ON t (b); ANALYZE t"),
    (ALL, True, "BEGIN; CREATE TABLE t AS SELECT 1 AS a; ALTER TABLE t ADD PRIMARY KEY (a); COMMIT"),
    (ALL, True, "CREATE TABLE t (a serial PRIMARY KEY); GRANT SELECT (ctid) ON old TO public"),
    # Not of these.
    (IN_SCHEMA, False, "ALTER TABLE away.moved SET SCHEMA public"),
    (
        IN_SCHEMA,
        False,
        "BEGIN; CREATE TABLE away.t (a int PRIMARY KEY); INSERT INTO away.t VALUES (1);"
        " ALTER TABLE away.t SET SCHEMA public; COMMIT",
    ),
    (
        ALL,
        False,
        "CREATE UNLOGGED TABLE t (a int PRIMARY KEY); INSERT INTO t VALUES (1); ALTER TABLE t SET LOGGED",
    ),
    (
        ALL,
        False,
        "BEGIN; CREATE UNLOGGED TABLE t (a int PRIMARY KEY); INSERT INTO t VALUES (1); ALTER TABLE t SET LOGGED;"
        " COMMIT",
    ),
    ("TABLE old", False, "CREATE TABLE t (a int PRIMARY KEY); ALTER PUBLICATION pub ADD TABLE t"),
    (
        "TABLE old",
        False,
        "BEGIN; CREATE TABLE t (a int PRIMARY KEY); ALTER PUBLICATION pub ADD TABLE t; COMMIT",
    ),
    (
        "TABLES IN SCHEMA away",
        False,
        "CREATE TABLE t (a int PRIMARY KEY); ALTER PUBLICATION pub ADD TABLES IN SCHEMA public",
    ),
    # Cannot be told apart from the ones above.
    (ALL, False, "CREATE TABLE t PARTITION OF parent FOR VALUES FROM (1) TO (9)"),
    (
        ALL,
        False,
        "CREATE TABLE t (a int PRIMARY KEY); ALTER PUBLICATION pub SET (publish = 'insert, update')",
    ),
]


@pytest.mark.parametrize("major", [nightly(12), nightly(15), 18])
def test_the_stream_is_trusted_only_for_tables_that_were_published_from_their_creation(
    pg_server: PostgresServers, major: int
) -> None:
    for publication, is_complete, statements in WAYS:
        if "SCHEMA" in publication and major < 15:
            continue
        with (
            source_database(
                pg_server(major), *BEFORE, f"CREATE PUBLICATION pub FOR {publication}"
            ) as settings,
            contextlib.closing(connect_sql(settings)) as connection,
        ):
            before = read_published(connection, ["pub"])
            run_script(settings.dsn, statements)
            now = read_published(connection, ["pub"])
            new = published_oids(now) - published_oids(before)
            assert new, (publication, statements)
            found = with_every_row(connection, before, now, new)
            assert bool(found) == is_complete, (publication, statements)


def test_a_publication_without_inserts_has_no_row_of_a_new_table(postgres: PostgresServer) -> None:
    publication = "CREATE PUBLICATION pub FOR ALL TABLES WITH (publish = 'update')"
    with (
        source_database(postgres, *BEFORE, publication) as settings,
        contextlib.closing(connect_sql(settings)) as connection,
    ):
        before = read_published(connection, ["pub"])
        run_script(settings.dsn, "CREATE TABLE t (a int PRIMARY KEY)")
        now = read_published(connection, ["pub"])
        assert with_every_row(connection, before, now, published_oids(now) - published_oids(before)) == set()


# --- the daemon ---

TABLES = (
    "CREATE SCHEMA away",
    "CREATE TABLE first (id int PRIMARY KEY)",
    "INSERT INTO first SELECT generate_series(1, 100)",
    "CREATE TABLE later (id int PRIMARY KEY)",
    "INSERT INTO later SELECT generate_series(1, 500)",
    "CREATE TABLE keyless (id int)",
    "INSERT INTO keyless SELECT generate_series(1, 10)",
    "CREATE PUBLICATION chosen FOR TABLE first",
)
ADD = "ALTER PUBLICATION chosen ADD TABLE later, keyless"


def new_chosen(new_daemon: NewDaemon, server: PostgresServer, database: str, **over: Any) -> Daemon:
    run_script(server.dsn(database), *TABLES)
    daemon = new_daemon(server, database, source={"publication": {"names": ["chosen"]}}, **over)
    daemon.entry = QUICK
    return daemon


def operations(reader: Reader, server: PostgresServer, daemon: Daemon, table: str) -> Counter[str]:
    """Return how many records of each kind the table's topic has."""
    await_confirmed(server, daemon)
    events = reader.read(f"{daemon.name}.public.{table}")
    assert_each_once(events)
    return Counter(event.op for event in events if event.op)


@pytest.mark.parametrize("is_running", [True, nightly(False)], ids=["running", "stopped"])
def test_a_table_that_joins_is_copied_once(
    is_running: bool, postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    with new_chosen(new_daemon, postgres, database) as daemon:
        daemon.start().wait_state("streaming")
        run_script(postgres.dsn(database), "INSERT INTO first VALUES (101)")
        await_confirmed(postgres, daemon)
        if not is_running:
            assert daemon.stop() == 0
        run_script(postgres.dsn(database), ADD, "INSERT INTO later VALUES (501)")
        if not is_running:
            daemon.start().wait_state("streaming")
        await_event(daemon, "table_copied", table="public.later")
        await_event(daemon, "new_table_streamed_only", table="public.keyless")
        assert operations(reader, postgres, daemon, "later") == {"r": 501, "c": 1}
        run_script(
            postgres.dsn(database), "INSERT INTO keyless VALUES (11)", "DELETE FROM later WHERE id = 1"
        )
        assert operations(reader, postgres, daemon, "keyless") == {"c": 1}
        for _ in range(2):
            assert daemon.stop() == 0
            daemon.start().wait_state("streaming")
            await_copied(daemon)
        run_script(postgres.dsn(database), "INSERT INTO later VALUES (502)")
        assert operations(reader, postgres, daemon, "later") == {"r": 501, "c": 2, "d": 1}
        assert operations(reader, postgres, daemon, "first") == {"r": 100, "c": 1}
        assert len(daemon.events("table_copied")) == 1
        (line,) = daemon.events("new_table_streamed_only")
        assert "cdcd snapshot start --table public.keyless --blocking --recopy" in line["hint"]
        start(daemon, "public.keyless", blocking=True, recopy=True)
        await_copied(daemon)
        ((rows,),) = postgres.execute("SELECT count(*) FROM keyless", dbname=database)
        assert operations(reader, postgres, daemon, "keyless") == {"c": 1, "t": 2, "r": rows}


@pytest.mark.nightly
def test_wrong_rules_for_one_new_table_hold_up_no_other(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    rule = {"table": r"public\.aaa", "where": "nope > 1"}
    with new_chosen(new_daemon, postgres, database, snapshot={"overrides": [rule]}) as daemon:
        daemon.start().wait_state("streaming")
        run_script(
            postgres.dsn(database),
            "CREATE TABLE aaa (a int PRIMARY KEY, b text)",
            "INSERT INTO aaa VALUES (1, 'x')",
            "ALTER PUBLICATION chosen ADD TABLE aaa, later",
        )
        await_event(daemon, "new_table_not_begun", table="public.aaa")
        await_event(daemon, "table_copied", table="public.later")
        assert daemon.stop() == 0
        rule.update(where="a = 1", columns=["a"])
        daemon.config["snapshot"]["overrides"] = [rule]
        daemon.start().wait_state("streaming")
        await_event(daemon, "table_copied", table="public.aaa")
        assert operations(reader, postgres, daemon, "aaa") == {"r": 1}
        (event,) = reader.read(f"{daemon.name}.public.aaa")
        assert event.source["unchanged"] == ["b"]


@pytest.mark.parametrize(
    "crash",
    ["new_table_found", nightly("new_table_begun"), nightly("chunk_emitted"), nightly("table_copied")],
)
def test_a_crash_loses_no_copy_of_a_new_table(
    crash: str, postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    with new_chosen(new_daemon, postgres, database) as daemon:
        daemon.start().wait_state("streaming")
        await_confirmed(postgres, daemon)
        assert daemon.stop() == 0
        run_script(postgres.dsn(database), "ALTER PUBLICATION chosen ADD TABLE later")
        daemon.environment[VARIABLE] = crash
        daemon.start()
        # A transaction of the stream records that the publication was changed.
        run_script(postgres.dsn(database), "INSERT INTO first VALUES (101)")
        assert daemon.wait_exit() == EXIT_STATUS
        del daemon.environment[VARIABLE]
        daemon.start().wait_state("streaming")
        await_event(daemon, "table_copied", table="public.later")
        await_copied(daemon)
        await_confirmed(postgres, daemon)
        events = reader.read(f"{daemon.name}.public.later")
        assert {event.key["id"] for event in events if event.op == "r"} == set(range(1, 501))


def test_a_table_that_is_created_while_all_are_published_is_not_copied(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    run_script(postgres.dsn(database), TABLES[0], TABLES[1], TABLES[2])
    run_script(postgres.dsn(database), "CREATE UNLOGGED TABLE late (id int PRIMARY KEY)")
    with new_daemon(postgres, database) as daemon:
        daemon.entry = QUICK
        daemon.start().wait_state("streaming")
        run_script(
            postgres.dsn(database),
            "CREATE TABLE later (id int PRIMARY KEY, body text)",
            "INSERT INTO later SELECT generate_series(1, 20)",
            "INSERT INTO late SELECT generate_series(1, 30)",
            "ALTER TABLE late SET LOGGED",
        )
        await_event(daemon, "table_copied", table="public.late")
        assert operations(reader, postgres, daemon, "late") == {"r": 30}
        assert operations(reader, postgres, daemon, "later") == {"c": 20}
        assert len(daemon.events("table_copied")) == 1


@pytest.mark.nightly
def test_a_partition_that_is_published_by_itself_is_copied_when_it_is_attached(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    run_script(
        postgres.dsn(database),
        "CREATE TABLE whole (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE part (id int PRIMARY KEY)",
        "INSERT INTO part SELECT generate_series(1, 50)",
        "CREATE PUBLICATION chosen FOR TABLE whole",
    )
    with new_daemon(postgres, database, source={"publication": {"names": ["chosen"]}}) as daemon:
        daemon.entry = QUICK
        daemon.start().wait_state("streaming")
        run_script(
            postgres.dsn(database), "ALTER TABLE whole ATTACH PARTITION part FOR VALUES FROM (1) TO (1000)"
        )
        await_event(daemon, "table_copied", table="public.part")
        assert operations(reader, postgres, daemon, "part") == {"r": 50}


def test_the_overrides_and_the_policy_decide(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    with new_chosen(new_daemon, postgres, database) as daemon:
        daemon.config["snapshot"] = {
            "overrides": [
                {"table": r"public\.later", "where": "id > 400"},
                {"table": r"public\.keyless", "include": False},
            ]
        }
        daemon.start().wait_state("streaming")
        await_confirmed(postgres, daemon)
        assert daemon.stop() == 0
        run_script(postgres.dsn(database), ADD)
        daemon.start()
        await_event(daemon, "table_copied", table="public.later")
        await_event(daemon, "new_table_streamed_only", table="public.keyless")
        assert operations(reader, postgres, daemon, "later") == {"r": 100}
        assert daemon.stop() == 0
        run_script(
            postgres.dsn(database),
            "CREATE TABLE third (id int PRIMARY KEY)",
            "INSERT INTO third VALUES (1)",
            "ALTER PUBLICATION chosen ADD TABLE third",
        )
        daemon.config["snapshot"] = {"new_tables": "halt"}
        reason = halts_with(daemon.start(), PublicationChanged.code)
        assert "table public.third was added" in reason
        daemon.reload()
        daemon.wait_state("streaming")
        run_script(postgres.dsn(database), "INSERT INTO third VALUES (2)")
        assert operations(reader, postgres, daemon, "third") == {"c": 1}


@pytest.mark.parametrize(
    "leave",
    [
        "ALTER PUBLICATION chosen DROP TABLE first",
        nightly("DROP TABLE first; CREATE TABLE first (id int PRIMARY KEY)"),
    ],
    ids=["removed", "dropped"],
)
def test_a_table_that_joins_again_leaves_readers_no_row_of_before(
    leave: str, postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    with new_chosen(new_daemon, postgres, database) as daemon:
        daemon.start().wait_state("streaming")
        await_confirmed(postgres, daemon)
        assert daemon.stop() == 0
        run_script(postgres.dsn(database), leave)
        daemon.start().wait_state("streaming")
        run_script(
            postgres.dsn(database),
            "INSERT INTO later VALUES (501)",
            "ALTER PUBLICATION chosen ADD TABLE later",
        )
        await_event(daemon, "table_copied", table="public.later")
        assert daemon.stop() == 0
        run_script(
            postgres.dsn(database),
            "DELETE FROM first WHERE id < 50; INSERT INTO first VALUES (1000)",
            "ALTER PUBLICATION chosen ADD TABLE first",
        )
        daemon.start().wait_state("streaming")
        await_event(daemon, "table_copied", table="public.first")
        await_confirmed(postgres, daemon)
        events = sorted(reader.read(f"{daemon.name}.public.first"), key=lambda one: one.sequence or BEGINNING)
        rows: set[int] = set()
        for event in events:
            if event.op == "t":
                rows.clear()
            else:
                rows.add(event.key["id"])
        assert rows == {row for (row,) in postgres.execute("SELECT id FROM first", dbname=database)}
        assert {event.op for event in reader.read(f"{daemon.name}.public.later")} == {"r"}


def rejoin(daemon: Daemon, server: PostgresServer, database: str) -> None:
    """Remove a table from the publication, change it so that the stream has none of it, and add it again."""
    run_script(server.dsn(database), "ALTER PUBLICATION chosen DROP TABLE later")
    await_event(daemon, "publication_changed", change="table_removed")
    run_script(
        server.dsn(database),
        "DELETE FROM later WHERE id <= 10",
        "UPDATE later SET id = -id WHERE id <= 20",
        "INSERT INTO later VALUES (0)",
        "ALTER PUBLICATION chosen ADD TABLE later",
    )

    def changes() -> list[str]:
        return [line["change"] for line in daemon.events("publication_changed")]

    eventually(lambda: changes()[-2:] == ["table_removed", "table_added"], "it has joined again")


def await_readers_have_the_rows(
    daemon: Daemon, server: PostgresServer, database: str, reader: Reader
) -> None:
    rows = set(server.execute("SELECT id FROM later", dbname=database))
    topic = f"{daemon.name}.public.later"
    eventually(lambda: folded(reader.read(topic)).keys() == rows, "readers have the rows of the table")


def test_a_table_that_joins_again_before_its_copy_is_complete_is_copied_from_its_first_row(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    slow = {"incremental": {"max_rows_per_second": 100}}
    with new_chosen(new_daemon, postgres, database, snapshot=slow) as daemon:
        daemon.start().wait_state("streaming")
        run_script(postgres.dsn(database), "ALTER PUBLICATION chosen ADD TABLE later")
        eventually(lambda: any(one["rows"] for one in reports(daemon)), "it is being copied")
        assert command(daemon, "pause", "public.later")[0] == 200
        await_confirmed(postgres, daemon)
        rejoin(daemon, postgres, database)

        def is_copied() -> bool:  # a paused copy would go on after the rows that it has
            command(daemon, "resume", "public.later")
            return len(daemon.events("table_copied")) == 1

        eventually(is_copied, "it is copied")
        await_readers_have_the_rows(daemon, postgres, database, reader)


def test_a_table_whose_copy_ended_because_it_was_removed_is_copied_when_it_comes_back(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    """The comparisons of the publications, 10 s apart, may not see that it was away."""
    snapshot = {"mode": "never", "new_tables": "snapshot", "incremental": {"max_rows_per_second": 100}}
    with new_chosen(new_daemon, postgres, database, snapshot=snapshot) as daemon:
        daemon.entry = ("-m", "cdcd")
        run_script(postgres.dsn(database), "ALTER PUBLICATION chosen ADD TABLE later")
        daemon.start().wait_state("streaming")
        start(daemon, "public.later")
        eventually(lambda: any(one["rows"] for one in reports(daemon)), "it is being copied")
        run_script(postgres.dsn(database), "ALTER PUBLICATION chosen DROP TABLE later")
        await_event(daemon, "table_not_copied", table="public.later")
        run_script(
            postgres.dsn(database),
            "DELETE FROM later WHERE id <= 10",
            "ALTER PUBLICATION chosen ADD TABLE later",
        )
        await_event(daemon, "table_copied", table="public.later")
        await_readers_have_the_rows(daemon, postgres, database, reader)


def test_a_table_that_joins_again_before_its_blocking_copy_leaves_readers_no_row_of_before(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    """No slot is created, so no copy begins, while an older transaction is open."""
    with new_chosen(new_daemon, postgres, database) as daemon:
        daemon.start().wait_state("streaming")
        run_script(postgres.dsn(database), "ALTER PUBLICATION chosen ADD TABLE later")
        await_event(daemon, "table_copied", table="public.later")
        await_confirmed(postgres, daemon)
        with contextlib.closing(psycopg2.connect(postgres.dsn(database))) as older:
            older.cursor().execute("SELECT pg_current_xact_id()")
            start(daemon, "public.later", blocking=True)
            rejoin(daemon, postgres, database)
        await_readers_have_the_rows(daemon, postgres, database, reader)


@pytest.mark.nightly
def test_many_new_tables_are_copied_a_few_at_a_time(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    """Every progress record has the state of each table that is being copied."""
    names = [f"many{number}" for number in range(30)]
    with new_chosen(new_daemon, postgres, database) as daemon:
        daemon.start().wait_state("streaming")
        await_confirmed(postgres, daemon)
        assert daemon.stop() == 0
        run_script(
            postgres.dsn(database),
            *(
                f"CREATE TABLE {name} (id int PRIMARY KEY); INSERT INTO {name} VALUES (1), (2)"
                for name in names
            ),
            f"ALTER PUBLICATION chosen ADD TABLE {', '.join(names)}",
        )
        daemon.start().wait_state("streaming")
        most = 0

        def are_all_copied() -> bool:
            nonlocal most
            most = max(most, len(reports(daemon)))
            return len(daemon.events("table_copied")) == len(names)

        eventually(are_all_copied, "every table is copied", pause_s=0.05)
        assert 0 < most <= MOST_AT_ONCE
        for name in names[::20]:
            assert operations(reader, postgres, daemon, name) == {"r": 2}
