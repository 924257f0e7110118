"""A primary with a standby from which cdcd copies the tables, changes of the tables, and the comparison afterwards.

In: two servers, a daemon.  Out: databases with tables; the events of the topics.
Invariant: only the last comparison scans a table of the primary, so that its counters show what cdcd reads.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import psycopg2

from cdcd.demo.stack.postgres import PostgresServer
from tests.support.daemon import Daemon, await_confirmed
from tests.support.gate import GATE
from tests.support.reader import Event, Reader, assert_each_once, fold
from tests.support.stack import new_database_name, run_script
from tests.support.standby import follow, make_standby

FIRST, BIG = 300, 6_000
TABLES = (
    "CREATE TABLE a_first (id int PRIMARY KEY, note text)",
    f"INSERT INTO a_first SELECT g, 'n' || g FROM generate_series(1, {FIRST}) g",
    "CREATE TABLE big (id int PRIMARY KEY, n int, body text)",
    "ALTER TABLE big ALTER COLUMN body SET STORAGE EXTERNAL",
    "INSERT INTO big SELECT g, 0, CASE g % 100 WHEN 0 THEN repeat(md5(g::text), 100) ELSE repeat('x', 300) END"
    f" FROM generate_series(1, {BIG}) g",
)
# Each finds its rows by an index: the counters of the primary's scans count only what cdcd reads.
CHANGES = (
    "UPDATE a_first SET note = 'changed' WHERE id BETWEEN 30 AND 60",
    "DELETE FROM a_first WHERE id < 20",
    "UPDATE a_first SET id = id + 1000 WHERE id BETWEEN 100 AND 120",
    "UPDATE big SET n = n + 1 WHERE id BETWEEN 90 AND 310",
    "DELETE FROM big WHERE id BETWEEN 2000 AND 2100",
    "UPDATE big SET id = id + 100000 WHERE id BETWEEN 4000 AND 4200",
    "UPDATE big SET body = repeat(md5(n::text), 90) WHERE id BETWEEN 5000 AND 5010",
    "ALTER TABLE big ADD COLUMN extra text DEFAULT 'seven'",
    "UPDATE big SET extra = 'other' WHERE id BETWEEN 700 AND 800",
    "INSERT INTO big SELECT g, 5, 'new', 'new' FROM generate_series(200000, 200100) g",
    "CREATE TABLE made (id int PRIMARY KEY)",
    "INSERT INTO made SELECT generate_series(1, 10)",
)
READ = "SELECT coalesce(sum(seq_tup_read), 0)::int FROM pg_stat_user_tables"
ROLE = "copier"


class Pair(NamedTuple):
    """A primary and its standby."""

    primary: PostgresServer
    standby: PostgresServer

    def start(self) -> None:
        """Start the primary, and make the standby from it."""
        self.primary.start()
        self.primary.create_role(ROLE)
        make_standby(*self, is_synchronised=False)

    def stop(self) -> None:
        """Stop both servers."""
        for server in self:
            server.stop("immediate")

    def set(self, **settings: str) -> None:
        """Change settings of the standby."""
        for name, value in settings.items():
            self.standby.execute(f"ALTER SYSTEM SET {name} = {value}")
        self.standby.execute("SELECT pg_reload_conf()")


@contextlib.contextmanager
def filled(pair: Pair) -> Iterator[str]:
    """Yield a database of the pair with the tables."""
    database = new_database_name()
    pair.primary.create_database(database)
    try:
        run_script(pair.primary.dsn(database), *TABLES)
        follow(*pair)
        yield database
    finally:
        pair.primary.drop_database(database)


def from_standby(pair: Pair, database: str, **snapshot: Any) -> dict[str, Any]:
    """Return options of a snapshot of the standby."""
    return {"from": pair.standby.dsn(database), "workers": 2, **snapshot}


def gated(pair: Pair, database: str) -> dict[str, Any]:
    """Return options of a snapshot whose copy of `big` waits at the gate."""
    return from_standby(pair, database, overrides=[{"table": r"public\.big", "where": GATE}])


@contextlib.contextmanager
def writing(dsn: str) -> Iterator[None]:
    """Write one small transaction after another, which find their rows by an index."""
    over = threading.Event()
    failures: list[BaseException] = []

    def write() -> None:
        try:
            with contextlib.closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
                connection.autocommit = True
                cursor.execute("SET enable_seqscan = off")
                number = 0
                while not over.is_set():
                    number += 1
                    key = number % 1500 + 2500
                    cursor.execute("UPDATE big SET n = n + 1 WHERE id = %s", (key,))
                    cursor.execute("UPDATE a_first SET note = %s WHERE id = %s", (f"w{number}", key % 300))
                    cursor.execute("DELETE FROM big WHERE id = %s", (1000 + number,))
                    cursor.execute(
                        "INSERT INTO big (id, n, body) VALUES (%s, 1, repeat('y', 4000))", (300_000 + number,)
                    )
                    cursor.execute("UPDATE big SET id = id + 1000000 WHERE id = %s", (300_000 + number // 2,))
        except BaseException as error:  # noqa: BLE001 - the test raises it
            failures.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        over.set()
        writer.join(60)
    assert failures == []


def changed(pair: Pair, database: str) -> None:
    """Make the changes; every one finds its rows by an index."""
    run_script(pair.primary.dsn(database), "SET enable_seqscan = off", *CHANGES)


def assert_equal(pair: Pair, database: str, daemon: Daemon, reader: Reader) -> dict[str, list[Event]]:
    """Assert that nothing was read of the primary's tables, and that the topics have their rows, each change once."""
    assert pair.primary.execute(READ, dbname=database) == [(0,)]
    found = {}
    tables = [
        name for (name,) in pair.primary.execute("SELECT relname FROM pg_stat_user_tables", dbname=database)
    ]
    for table in tables:
        found[table] = events = reader.read(f"{daemon.name}.public.{table}")
        assert_each_once(events)
        rows = pair.primary.execute(f"SELECT to_json(t) FROM {table} t", dbname=database)
        has_extra = table == "big" and any("extra" in row for (row,) in rows)
        # The default of a column that is added later is not in the stream.
        folded = {
            key: {"extra": "seven", **row} if has_extra else row
            for key, row in fold(events, lambda row: row["id"]).items()
        }
        assert folded == {row["id"]: row for (row,) in rows}
    return found


def finish(pair: Pair, database: str, daemon: Daemon, reader: Reader) -> dict[str, list[Event]]:
    """Wait for the stream, stop, and compare."""
    daemon.wait_state("streaming")
    await_confirmed(pair.primary, daemon)
    assert daemon.stop() == 0
    assert {line["read_from"] for line in daemon.events("snapshot_started")} == {"standby"}
    assert pair.standby.execute("SELECT slot_name FROM pg_replication_slots WHERE temporary") == []
    return assert_equal(pair, database, daemon, reader)


def copied(events: list[Event]) -> int:
    """Return the number of copied rows."""
    return sum(event.op == "r" for event in events)
