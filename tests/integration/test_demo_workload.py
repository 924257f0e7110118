"""The workload on a real PostgreSQL: its planned tables equal the real ones, and it is repeatable."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import psycopg2
import pytest

from cdcd.demo import rows
from cdcd.demo.load import create_shop, load
from cdcd.demo.plan import BULK_CHANGES, Writer
from cdcd.demo.stack import PostgresServer
from cdcd.demo.workload import Workload, perform


def content(connection: Any) -> dict[str, str]:
    """Return a digest of each table's rows, in any order."""
    digests = {}
    with connection, connection.cursor() as cursor:
        for table in rows.TABLES:
            cursor.execute(
                f"SELECT count(*), sum(hashtextextended(ROW(t.*)::text, 0)::numeric) FROM {table} t"
            )
            digests[table] = str(cursor.fetchone())
    return digests


def run_shop(dsn: str, seed: int) -> dict[str, str]:
    """Load the shop and run 150 transactions of each of three writers, one after another."""
    create_shop(dsn)
    loaded = load(dsn, 2_000, seed)
    with closing(psycopg2.connect(dsn)) as connection:
        writers = [Writer(seed, number, 3, loaded) for number in range(3)]
        for _ in range(150):
            for writer in writers:
                perform(connection, writer.next())  # raises if a statement affects other rows than planned
        assert_keys_are_true(connection, writers)
        return content(connection)


def assert_keys_are_true(connection: Any, writers: list[Writer]) -> None:
    with connection, connection.cursor() as cursor:
        for table in rows.TABLES:
            cursor.execute(
                f"SELECT count(*) FROM {table}"
                if table != "audit_log"
                else "SELECT count(DISTINCT actor) FROM audit_log"
            )
            assert cursor.fetchone()[0] == sum(len(getattr(writer, table)) for writer in writers), table


def test_the_same_seed_leaves_the_same_rows(postgres: PostgresServer, database: str) -> None:
    first = run_shop(postgres.dsn(database), 3)
    postgres.execute("DROP SCHEMA public CASCADE", dbname=database)
    postgres.execute("DROP PUBLICATION cdcd_shop", dbname=database)
    postgres.execute("CREATE SCHEMA public", dbname=database)
    assert run_shop(postgres.dsn(database), 3) == first


@pytest.mark.nightly  # the demo runs them
def test_writers_and_the_large_transaction_run_side_by_side(postgres: PostgresServer, database: str) -> None:
    dsn = postgres.dsn(database)
    create_shop(dsn, password="secret")
    workload = Workload(dsn, load(dsn, 2_000, 1), seed=1, seconds=3, rate_per_s=60, bulk_at_s=0.2)
    workload.start()
    workload.wait(60)
    counters = workload.counters
    assert counters.is_bulk_committed
    assert counters.bulk_changes == BULK_CHANGES
    assert counters.transactions > 30
    assert counters.messages > 0
    with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM events WHERE event_id >= 1000000000")
        assert cursor.fetchone() == (85_000,)
        cursor.execute("SELECT count(*) FROM products WHERE pg_column_size(description) > 8000")
        assert cursor.fetchone() > (0,)


def test_the_role_has_what_it_needs_and_no_more(postgres: PostgresServer, database: str) -> None:
    create_shop(postgres.dsn(database))
    (role,) = postgres.execute(
        "SELECT rolcanlogin, rolreplication, rolsuper, rolcreatedb, rolcreaterole, rolbypassrls"
        " FROM pg_roles WHERE rolname = 'cdcd'"
    )
    assert role == (True, True, False, False, False, False)
    granted = postgres.execute(
        "SELECT DISTINCT privilege_type FROM information_schema.role_table_grants WHERE grantee = 'cdcd'",
        dbname=database,
    )
    assert granted == [("SELECT",)]
    published = postgres.execute("SELECT tablename FROM pg_publication_tables ORDER BY 1", dbname=database)
    assert [name for (name,) in published] == sorted(rows.TABLES)
