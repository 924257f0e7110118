"""The server's own account of subtransactions, whether their transaction is open, prepared or committed."""

from __future__ import annotations

from contextlib import closing

import psycopg2
import pytest

from cdcd.demo.stack.postgres import PostgresServer
from cdcd.source.subtransactions import any_rolled_back
from tests.support.stack import PostgresServers, drop_database, new_database_name

XID = "SELECT xmin::text::bigint FROM t WHERE id = %s"


@pytest.mark.parametrize("major", [14, 18])
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
            closing(psycopg2.connect(server.dsn(name))) as asking,
            closing(psycopg2.connect(server.dsn(name))) as one,
        ):
            asking.autocommit = one.autocommit = True
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
                assert not any_rolled_back(asking, {xids[1]})
                assert any_rolled_back(asking, {xids[0]})
                assert any_rolled_back(asking, set(xids.values()))
                cursor.execute("ROLLBACK PREPARED 'kept'" if "PREPARE" in end else "ROLLBACK")
    finally:
        drop_database(server, name)
