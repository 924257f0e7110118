"""The streamed transactions whose origin the server reports: the meaning of `source.origin` null.

The server takes the origin from the first change that it has when it streams the transaction for the first time. Only
rows carry an origin, not catalog changes, in this transaction or in others meanwhile, and not messages.
"""

from __future__ import annotations

from collections.abc import Iterator

import psycopg2
import pytest

from tests.support.nightly import nightly_except
from tests.support.stack import (
    SUPPORTED_POSTGRES_MAJORS,
    PostgresServers,
    drop_database,
    in_one_transaction,
    new_database_name,
    run_script,
)

STREAM_START, STREAM_COMMIT, ORIGIN = b"S", b"c", b"O"
MUCH = "INSERT INTO t SELECT g, repeat('x', 100) FROM generate_series(1, 2000) g"
ROW = "INSERT INTO t VALUES (0, 'first')"
DDL = "CREATE TABLE other (id int)"
BEGINNINGS = {
    # reported
    "a row": ([ROW], True),
    "a row of an unpublished table": (["INSERT INTO unpublished VALUES (1)"], True),
    "a row, then DDL": ([ROW, DDL], True),
    "a released savepoint": (["SAVEPOINT s", ROW, "RELEASE s"], True),
    "a locked row": (["SELECT * FROM before FOR UPDATE"], True),
    "a sequence": (["SELECT nextval('numbers')"], True),
    "DDL that is rolled back": (["SAVEPOINT s", DDL, "ROLLBACK TO s"], True),
    "a row that is rolled back": (["SAVEPOINT s", ROW, "ROLLBACK TO s"], True),
    # not reported
    "DDL": ([DDL], False),
    "TRUNCATE, which changes the catalog first": (["TRUNCATE t"], False),
    "DDL of a temporary table": (["CREATE TEMPORARY TABLE passing (id int)"], False),
    "a message": (["SELECT pg_logical_emit_message(true, 'p', 'm')"], False),
    "a row that is rolled back, then DDL": (["SAVEPOINT s", ROW, "ROLLBACK TO s", DDL], False),
    "DDL of others after a row that is rolled back": (["SAVEPOINT s", ROW, "others", "ROLLBACK TO s"], False),
}


@pytest.fixture(params=nightly_except(SUPPORTED_POSTGRES_MAJORS, 18))
def dsn(pg_server: PostgresServers, request: pytest.FixtureRequest) -> Iterator[str]:
    """Yield a new database whose large transactions are streamed, and an origin of its name."""
    server, name = pg_server(request.param), new_database_name()
    server.create_database(name)
    server.execute(f"ALTER DATABASE {name} SET logical_decoding_work_mem = '64kB'")
    run_script(
        server.dsn(name),
        "CREATE TABLE t (id int, v text)",
        "CREATE TABLE unpublished (id int)",
        "CREATE TABLE before (id int)",
        "INSERT INTO before VALUES (1)",
        "CREATE SEQUENCE numbers",
        "CREATE PUBLICATION p FOR TABLE t",
        f"SELECT pg_replication_origin_create('{name}')",
    )
    server.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", name, dbname=name)
    yield server.dsn(name)
    server.execute("SELECT pg_replication_origin_drop(%s)", name, dbname=name)
    drop_database(server, name)


def test_the_origin_of_a_streamed_transaction_is_that_of_its_first_change(dsn: str) -> None:
    """F52."""
    name = psycopg2.extensions.parse_dsn(dsn)["dbname"]
    found = {}
    for beginning, (statements, _) in BEGINNINGS.items():
        run_script(dsn, "DROP TABLE IF EXISTS other")
        with psycopg2.connect(dsn) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT pg_replication_origin_session_setup(%s)", (name,))
            connection.commit()
            for statement in [*statements, MUCH]:
                if statement == "others":
                    in_one_transaction(dsn, "CREATE TABLE of_others (id int)", "DROP TABLE of_others")
                else:
                    cursor.execute(statement)
            connection.commit()
            # Until a closed connection's process has ended, it would still own the origin.
            cursor.execute("SELECT pg_replication_origin_session_reset()")
        connection.close()
        found[beginning] = _is_origin_announced(dsn, name)
    assert found == {beginning: is_announced for beginning, (_, is_announced) in BEGINNINGS.items()}


def _is_origin_announced(dsn: str, slot: str) -> bool:
    """Read all changes; return whether an Origin follows the first Stream Start."""
    query = (
        "SELECT data FROM pg_logical_slot_get_binary_changes(%s, NULL, NULL,"
        " 'proto_version', '2', 'publication_names', 'p', 'streaming', 'on')"
    )
    with psycopg2.connect(dsn) as connection, connection.cursor() as cursor:
        cursor.execute(query, (slot,))
        read = [bytes(data) for (data,) in cursor]
    connection.close()
    # PostgreSQL 14 and 15 may first send the earlier segments again, and end them with a Stream Abort.
    (xid,) = (payload[1:5] for payload in read if payload[:1] == STREAM_COMMIT)
    starts = [at for at, payload in enumerate(read) if payload[:5] == STREAM_START + xid]
    first, *later = (read[at + 1][:1] for at in starts)
    assert later, "there is only one segment"
    assert ORIGIN not in later
    return first == ORIGIN
