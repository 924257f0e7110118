"""One table of a publication while another session has a different one locked: the server's own list waits then."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import psycopg2
import pytest

from cdcd.demo.stack.postgres import PostgresServer
from cdcd.source.connection import fetch
from cdcd.source.publication_catalog import published_if_plain, published_tables
from tests.integration.conftest import NewDaemon
from tests.integration.test_incremental_waits import NEVER, assert_rows, create
from tests.support.nightly import nightly_except
from tests.support.reader import Reader
from tests.support.snapshot_commands import await_copied, start
from tests.support.stack import PostgresServers, filled_database

TABLES = (
    "CREATE SCHEMA other",
    "CREATE TABLE everything (id int PRIMARY KEY, gone int, v text, g int GENERATED ALWAYS AS (id + 1) STORED)",
    "ALTER TABLE everything DROP COLUMN gone",
    "CREATE TABLE partly (id int PRIMARY KEY, v text, w text)",
    "CREATE TABLE filtered (id int PRIMARY KEY, v text)",
    "CREATE TABLE other.keyless (id int, v text)",
    "ALTER TABLE other.keyless REPLICA IDENTITY FULL",
    "CREATE TABLE parent (id int PRIMARY KEY)",
    "CREATE TABLE child (PRIMARY KEY (id)) INHERITS (parent)",
    "CREATE UNLOGGED TABLE unlogged (id int PRIMARY KEY)",
    "CREATE TABLE split (id int PRIMARY KEY) PARTITION BY RANGE (id)",
    "CREATE TABLE split_1 PARTITION OF split FOR VALUES FROM (0) TO (10)",
    "CREATE TABLE unpublished (id int PRIMARY KEY)",
    "CREATE PUBLICATION lists FOR TABLE partly (id, v), filtered WHERE (id > 5), parent",
    "CREATE PUBLICATION lists_again FOR TABLE partly (v, id) WITH (publish = 'insert')",
    "CREATE PUBLICATION others FOR TABLE partly, everything",
    "CREATE PUBLICATION schemas FOR TABLES IN SCHEMA other",
    "CREATE PUBLICATION all_of_them FOR ALL TABLES WITH (publish_via_partition_root = true)",
)
STORED = "CREATE PUBLICATION stored FOR TABLE everything WITH (publish_generated_columns = stored)"
LISTED = "CREATE PUBLICATION listed FOR TABLE everything (id, g)"
NAMES = (
    ["lists"], ["lists", "lists_again"], ["lists", "others"], ["schemas", "others"], ["all_of_them"],
    ["lists", "all_of_them"], [], ["missing"],
)  # fmt: skip


@pytest.fixture(params=nightly_except([15, 16, 17, 18], 18))
def source(
    request: pytest.FixtureRequest, pg_server: PostgresServers
) -> Iterator[tuple[PostgresServer, str]]:
    """Yield a server and a database with the tables."""
    tables = (*TABLES, STORED, LISTED) if request.param >= 18 else TABLES
    with filled_database(pg_server, request.param, tables) as found:
        yield found


def test_a_plain_table_is_described_by_the_catalogs_as_the_server_lists_it(
    source: tuple[PostgresServer, str],
) -> None:
    """F41, F42, F48."""
    server, database = source
    known = set()
    with contextlib.closing(psycopg2.connect(server.dsn(database))) as connection:
        connection.autocommit = True
        user_tables = (
            "SELECT oid::int8, relname::text FROM pg_class WHERE oid >= 16384 AND relkind IN ('r', 'p')"
        )
        relids = fetch(connection, user_tables)
        for names in (
            *NAMES,
            *([["stored"], ["listed"], ["stored", "others"]] if server.major >= 18 else []),
        ):
            for relid, name in relids:
                expected = next(iter(published_tables(connection, names, only=relid)), None)
                found = published_if_plain(connection, names, relid)
                if found is not None:
                    known.add(name)
                    assert found == expected, (names, name)
                elif expected is not None:
                    assert name in ("split", "split_1", "filtered"), (names, name)
    assert known == {"everything", "partly", "filtered", "keyless", "parent", "child", "unpublished"}


def test_the_copy_of_a_table_begins_while_another_one_is_locked(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    create(postgres, database, "locked", "free")
    with new_daemon(postgres, database, snapshot={**NEVER, "workers": 1}) as daemon:
        daemon.start().wait_state("streaming")
        with contextlib.closing(psycopg2.connect(postgres.dsn(database))) as holder:
            holder.cursor().execute("LOCK TABLE locked")
            start(daemon, "public.free")
            await_copied(daemon)
        assert_rows(postgres, database, daemon, reader, "free")
