"""The server's own account of subtransactions, for an open, prepared or committed transaction."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import psycopg2
import pytest

from cdcd.demo.stack.accounts import server_account
from cdcd.demo.stack.packages import run
from cdcd.demo.stack.postgres import PostgresServer, programs_from_wheel
from cdcd.source.subtransactions import any_rolled_back
from tests.support.nightly import nightly
from tests.support.stack import PostgresServers, drop_database, new_database_name

XID = "SELECT xmin::text::bigint FROM t WHERE id = %s"


@pytest.mark.parametrize("major", [nightly(14), 18])
@pytest.mark.parametrize("end", ["COMMIT", "PREPARE TRANSACTION 'kept'", ""])
def test_what_was_rolled_back_is_known_before_its_transaction_ends(
    pg_server: PostgresServers, major: int, end: str
) -> None:
    server: PostgresServer = pg_server(major)
    name = new_database_name()
    server.create_database(name)
    try:
        server.execute("CREATE TABLE t (id int PRIMARY KEY)", dbname=name)
        with (
            closing(psycopg2.connect(server.dsn(name))) as observer,
            closing(psycopg2.connect(server.dsn(name))) as one,
        ):
            observer.autocommit = one.autocommit = True
            xids = {}
            with one.cursor() as cursor:
                cursor.execute("BEGIN")
                for number, after in enumerate(("ROLLBACK TO SAVEPOINT s", "RELEASE SAVEPOINT s")):
                    cursor.execute("SAVEPOINT s")
                    cursor.execute("INSERT INTO t VALUES (%s)", (number,))
                    cursor.execute(XID, (number,))
                    xids[number] = cursor.fetchone()[0]
                    cursor.execute(after)
                if end:
                    cursor.execute(end)
                assert not any_rolled_back(observer, {xids[1]})
                assert any_rolled_back(observer, {xids[0]})
                assert any_rolled_back(observer, set(xids.values()))
                cursor.execute("ROLLBACK PREPARED 'kept'" if "PREPARE" in end else "ROLLBACK")
    finally:
        drop_database(server, name)


@pytest.mark.parametrize("major", [nightly(16), 18])
def test_an_xid_that_is_newer_than_all_that_have_ended_is_of_this_epoch(
    major: int, stack_folder: Path
) -> None:
    """After 2^32 transactions: while no other transaction ends, the prepared ones are beyond the snapshot's xmax."""
    server = PostgresServer(major, programs_from_wheel(major), stack_folder / f"epoch-{major}")
    server.start()
    server.stop()
    command = [str(server.bin / "pg_resetwal"), "--epoch=1", "-D", str(server.data_folder)]
    run(command, "pg_resetwal failed", cwd=server.folder, account=server_account())
    with server, closing(psycopg2.connect(server.dsn())) as observer:
        observer.autocommit = True
        server.execute("CREATE TABLE t (id int PRIMARY KEY)")
        assert server.execute("SELECT pg_current_xact_id()::text::bigint >> 32") == [(1,)]
        with closing(psycopg2.connect(server.dsn())) as one, one.cursor() as cursor:
            one.autocommit = True
            cursor.execute("BEGIN")
            xids = []
            for number in range(3):
                cursor.execute(f"SAVEPOINT s{number}")
                cursor.execute("INSERT INTO t VALUES (%s)", (number,))
                cursor.execute(XID, (number,))
                xids.append(cursor.fetchone()[0])
            cursor.execute("PREPARE TRANSACTION 'one'")
            assert not any_rolled_back(observer, xids)
            cursor.execute("ROLLBACK PREPARED 'one'")
        assert any_rolled_back(observer, xids[-1:])
