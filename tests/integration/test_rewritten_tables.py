"""Rows that PostgreSQL changes without sending them: the table is found, and copied. The judge is its own SELECT."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from typing import Any

import psycopg2
import pytest

from cdcd.demo.stack.postgres import PostgresServer
from cdcd.failpoints import EXIT_STATUS, VARIABLE
from cdcd.source.table_forms import FoundForms, read_forms, rewritten
from tests.integration.conftest import NewDaemon
from tests.support.daemon import Daemon, await_confirmed, await_event
from tests.support.folded import folded
from tests.support.nightly import nightly
from tests.support.quick import QUICK
from tests.support.reader import Reader
from tests.support.snapshot_commands import await_copied, command, reports
from tests.support.source import source_database
from tests.support.stack import PostgresServers, run_script
from tests.support.waiting import eventually

PLAIN = (
    "CREATE TABLE t (id int PRIMARY KEY, n int, v varchar(20))",
    "INSERT INTO t SELECT g, g, 'v' || g FROM generate_series(1, 3) g",
)
PARTITIONED = (
    "CREATE TABLE t (id int PRIMARY KEY, n int, v varchar(20)) PARTITION BY RANGE (id)",
    "CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (2)",
    # Here the columns have other numbers.
    "CREATE TABLE high (gone int, v varchar(20), n int, id int NOT NULL)",
    "ALTER TABLE high DROP gone",
    "ALTER TABLE t ATTACH PARTITION high FOR VALUES FROM (2) TO (9)",
    "INSERT INTO t SELECT g, g, 'v' || g FROM generate_series(1, 3) g",
)
STATEMENTS = (
    "ALTER TABLE t ADD c1 int DEFAULT 5",
    "ALTER TABLE t ADD c2 text NOT NULL DEFAULT 'x', DROP COLUMN c1",
    "ALTER TABLE t ALTER c2 DROP DEFAULT",
    "ALTER TABLE t ADD c3 int",
    "ALTER TABLE t ALTER c3 SET DEFAULT 9",
    "ALTER TABLE t ADD c4 timestamptz DEFAULT clock_timestamp(); ALTER TABLE t ALTER c4 DROP DEFAULT",
    "ALTER TABLE t ADD c5 int GENERATED ALWAYS AS (n * 2) STORED",
    "CREATE DOMAIN filled AS int DEFAULT 3; ALTER TABLE t ADD c6 filled",
    "ALTER TABLE t ADD c7 int DEFAULT 1; ALTER TABLE t RENAME c7 TO c8",
    "ALTER TABLE t RENAME c8 TO c9",
    "ALTER TABLE t DROP c5",
    "ALTER TABLE t ALTER n TYPE bigint",
    "ALTER TABLE t ALTER n TYPE bigint USING n * 100",
    "ALTER TABLE t ALTER v TYPE varchar(40)",
    "ALTER TABLE t ALTER v TYPE varchar(2) USING left(v, 1)",
    "ALTER TABLE t ALTER n SET NOT NULL",
    "ALTER TABLE t ALTER v SET STATISTICS 10",
    "ALTER TABLE t ADD c10 int DEFAULT 4; VACUUM FULL t",
    "VACUUM FULL t",
    "TRUNCATE t",
)
UNNEEDED = {"ALTER TABLE t ALTER n TYPE bigint"}
"""The rows are written anew with the same values, but no catalog says so. Their type is another one, in any case."""


def rows_by_id(execute: Any) -> dict[int, dict[str, Any]]:
    """Return the columns' values that are not null, by attnum: what readers of the topic have of each row."""
    names = dict(
        execute(
            "SELECT attname, attnum FROM pg_attribute WHERE attrelid = 't'::regclass AND attnum > 0"
            " AND NOT attisdropped"
        )
    )
    return {
        row["id"]: {names[name]: str(value) for name, value in row.items() if value is not None}
        for (row,) in execute("SELECT to_jsonb(t) FROM t")
    }


def differs(before: dict[int, dict[str, Any]], now: dict[int, dict[str, Any]], dropped: set[str]) -> bool:
    """Return whether a row that is there has other values. Rows and columns that are gone are sent, or are known."""
    was = {
        key: {one: value for one, value in row.items() if one not in dropped} for key, row in before.items()
    }
    return any(row != was[key] for key, row in now.items())


@pytest.mark.parametrize("tables", [PLAIN, PARTITIONED], ids=["plain", "partitioned"])
@pytest.mark.parametrize("major", [nightly(12), nightly(15), 18])
def test_each_change_of_rows_that_is_not_sent_is_found(
    pg_server: PostgresServers, major: int, tables: tuple[str, ...]
) -> None:
    with (
        source_database(pg_server(major), *tables) as settings,
        closing(psycopg2.connect(settings.dsn)) as connection,
    ):
        connection.autocommit = True

        def execute(statement: str) -> list[Any]:
            with connection.cursor() as cursor:
                for one in statement.split("; "):
                    cursor.execute(one)
                return list(cursor.fetchall()) if cursor.description else []

        ((relid,),) = execute("SELECT 't'::regclass::oid::int8")
        forms, rows = read_forms(connection, [relid]), rows_by_id(execute)
        for statement in STATEMENTS:
            execute(statement)
            was, before = forms, rows
            forms, rows = read_forms(connection, [relid]), rows_by_id(execute)
            present = {one for row in rows.values() for one in row}
            is_changed = differs(before, rows, {one for row in before.values() for one in row} - present)
            is_found = bool(rewritten(was.forms, forms))
            assert is_found == (is_changed or statement in UNNEEDED), statement


def test_a_table_that_does_not_exist_has_no_form(postgres: PostgresServer, database: str) -> None:
    with closing(psycopg2.connect(postgres.dsn(database))) as connection:
        assert read_forms(connection, []) == FoundForms()
        assert read_forms(connection, [4_000_000_000]) == FoundForms()


# --- the daemon ---

TABLES = (
    "CREATE TABLE t (id int PRIMARY KEY, n int, v text)",
    "INSERT INTO t SELECT g, g, 'v' || g FROM generate_series(1, 300) g",
    "CREATE TABLE keyless (n int)",
    "INSERT INTO keyless VALUES (1)",
    "CREATE PUBLICATION chosen FOR ALL TABLES",
)
DEFAULT = "ALTER TABLE t ADD c int NOT NULL DEFAULT 7"
WHOLE = "ALTER TABLE t ALTER n TYPE bigint USING n * 10"


def new_chosen(new_daemon: NewDaemon, server: PostgresServer, database: str, **over: Any) -> Daemon:
    run_script(server.dsn(database), *TABLES)
    daemon = new_daemon(server, database, source={"publication": {"names": ["chosen"]}}, **over)
    daemon.entry = QUICK
    return daemon


def assert_readers_have_the_rows(
    daemon: Daemon, server: PostgresServer, database: str, reader: Reader
) -> None:
    await_copied(daemon)
    await_confirmed(server, daemon)
    rows = {(row["id"],): row for (row,) in server.execute("SELECT to_jsonb(t) FROM t", dbname=database)}
    assert folded(reader.read(f"{daemon.name}.public.t")) == rows


def operations(reader: Reader, daemon: Daemon) -> Counter[str]:
    return Counter(event.op for event in reader.read(f"{daemon.name}.public.t") if event.op)


@pytest.mark.parametrize("is_running", [True, nightly(False)], ids=["running", "stopped"])
def test_readers_get_the_rows_that_are_not_sent(
    is_running: bool, postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    with new_chosen(new_daemon, postgres, database, snapshot={}) as daemon:
        daemon.start().wait_state("streaming")
        for number, statement in enumerate((DEFAULT, WHOLE), 1):
            await_confirmed(postgres, daemon)
            if not is_running:
                assert daemon.stop() == 0
            run_script(postgres.dsn(database), statement)
            if not is_running:
                daemon.start().wait_state("streaming")
            eventually(lambda number=number: len(daemon.events("table_copied")) == number, "it is copied")
            assert_readers_have_the_rows(daemon, postgres, database, reader)
        assert operations(reader, daemon) == {"r": 900, "t": 2}
        for _ in range(2):
            assert daemon.stop() == 0
            daemon.start().wait_state("streaming")
            run_script(postgres.dsn(database), "UPDATE t SET n = 0 WHERE id = 1")
        assert_readers_have_the_rows(daemon, postgres, database, reader)
        assert len(daemon.events("table_copied")) == 2
        assert daemon.status()["incomplete_topics"] == []


def test_a_crash_loses_no_copy(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    with new_chosen(new_daemon, postgres, database, snapshot={}) as daemon:
        daemon.start().wait_state("streaming")
        await_confirmed(postgres, daemon)
        assert daemon.stop() == 0
        run_script(postgres.dsn(database), DEFAULT)
        daemon.environment[VARIABLE] = "new_table_found"
        daemon.start()
        run_script(postgres.dsn(database), "INSERT INTO keyless VALUES (2)")  # so that the change is recorded
        assert daemon.wait_exit() == EXIT_STATUS
        del daemon.environment[VARIABLE]
        daemon.start().wait_state("streaming")
        await_event(daemon, "table_copied", table="public.t")
        assert_readers_have_the_rows(daemon, postgres, database, reader)


def test_a_copy_at_work_begins_anew(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    """The rows that it has copied lack the default."""
    snapshot = {"mode": "never", "rewritten_tables": "snapshot", "incremental": {"max_rows_per_second": 100}}
    with new_chosen(new_daemon, postgres, database, snapshot=snapshot) as daemon:
        daemon.start().wait_state("streaming")
        assert command(daemon, "start", "public.t")[0] == 200
        eventually(lambda: any(one["rows"] for one in reports(daemon)), "it is being copied")
        assert command(daemon, "pause", "public.t")[0] == 200
        run_script(postgres.dsn(database), DEFAULT)
        await_event(daemon, "table_rewritten", table="public.t")
        eventually(lambda: len(daemon.events("table_copied")) == 1, "it is copied")
        assert_readers_have_the_rows(daemon, postgres, database, reader)


def test_what_is_not_copied_is_in_the_log(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    with new_chosen(new_daemon, postgres, database, snapshot={"rewritten_tables": "stream_only"}) as daemon:
        daemon.start().wait_state("streaming")
        run_script(postgres.dsn(database), DEFAULT)
        await_event(daemon, "table_rewritten", table="public.t")
        run_script(
            postgres.dsn(database), "INSERT INTO keyless VALUES (2)"
        )  # so that the comparison is recorded
        await_confirmed(postgres, daemon)
        assert daemon.stop() == 0
        daemon.config["snapshot"] = {}
        daemon.start().wait_state("streaming")
        run_script(postgres.dsn(database), "ALTER TABLE keyless ADD c int DEFAULT 3")
        await_event(daemon, "table_rewritten", table="public.keyless")
        await_event(daemon, "new_table_streamed_only", table="public.keyless")
        await_confirmed(postgres, daemon)
        assert daemon.events("table_copied") == []
        assert daemon.status()["incomplete_topics"] == []
        assert operations(reader, daemon) == {"r": 300}
