"""Incremental snapshots of tables with keys of many types, under changes, with each way of streaming and writing.

The judge is the table: after the copy the topics' records, folded in their order, are its rows.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from random import Random
from typing import Any

import psycopg2
import pytest

from cdcd.demo.stack.postgres import PostgresServer
from cdcd.failpoints import EXIT_STATUS, VARIABLE
from tests.integration.conftest import STREAMED, NewDaemon
from tests.support.daemon import Daemon, await_confirmed
from tests.support.folded import folded
from tests.support.nightly import nightly_except
from tests.support.reader import Reader, assert_each_once
from tests.support.snapshot_commands import await_copied, command, ensure_started, reports, start
from tests.support.stack import run_script
from tests.support.waiting import eventually

ROWS = 3000
PACE_S = 0.01
"""Between two transactions of the load, so that a busy machine has time for the copy."""
LONG = ("streamed", "prepared", "at least once")
KEYS = {
    "integers": ("bigint", "{g}"),
    "texts": ('text COLLATE "C"', "md5({g}::text)"),
    "uuids": ("uuid", "md5({g}::text)::uuid"),
    "strange": (
        "text COLLATE ci",
        "CASE {g} % 3 WHEN 0 THEN 'Aé' WHEN 1 THEN '\\ ''' ELSE E'\\t\\n' END || {g}",
    ),
    "numerics": ("numeric", "({g} * 7 % 1000 + {g} / 1000)::numeric / 8 + {g}"),
    "times": ("timestamptz", "'2020-01-01 UTC'::timestamptz - {g} * interval '1.000001 min'"),
    "bytes": ("bytea", "decode(md5({g}::text), 'hex')"),
    "chars": ("char(12)", "'c' || {g}"),
    "domains": ("public.code", "'d' || {g}"),
    "citexts": ("public.citext", "CASE {g} % 2 WHEN 0 THEN 'x' ELSE 'Y' END || {g}"),
    "colours": ("public.colour", "(enum_range(NULL::public.colour))[{g} % 3 + 1]"),
    "flags": ("bool", "{g} % 2 = 0"),
    "days": ("date", "'2020-01-01'::date - {g}"),
    "floats": ("float8", "{g} / 7.0"),
}
IN_BINARY = ("integers", "texts", "uuids", "flags")
FEW = ("integers", "strange", "domains", "colours")
"""Of fixed and of variable size, of equal values with different bytes, of a derived type, of two columns."""
TYPES = (
    "CREATE COLLATION ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false)",
    "CREATE DOMAIN code AS text CHECK (length(value) > 1)",
    "CREATE EXTENSION citext SCHEMA public",
    "CREATE TYPE colour AS ENUM ('red', 'Green', 'a blue')",
)


def create(server: PostgresServer, database: str, tables: tuple[str, ...]) -> None:
    """Create the tables: the key is the column k, with v where k has few values."""
    run_script(server.dsn(database), *TYPES)
    for table in tables:
        kind, expression = KEYS[table]
        key = "(v, k)" if table in ("colours", "flags") else "(k)"
        run_script(
            server.dsn(database),
            f"CREATE TABLE {table} (v int NOT NULL, n int NOT NULL, k {kind} NOT NULL, big text, PRIMARY KEY {key})",
            f"ALTER TABLE {table} ALTER big SET STORAGE EXTERNAL",
            f"INSERT INTO {table} SELECT g, 0, {expression.format(g='g')},"
            " CASE g % 30 WHEN 0 THEN repeat(md5(g::text), 90) END"
            f" FROM generate_series(1, {ROWS}) g",
            f"ANALYZE {table}",
        )


class Load:
    """Changes of all tables in one session, until the end of the block."""

    def __init__(self, server: PostgresServer, database: str, tables: tuple[str, ...], seed: int) -> None:
        self._dsn = server.dsn(database)
        self._tables = tables
        self._random = Random(seed)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._last = ROWS
        self._prepared: list[str] = []
        self.with_prepared = False
        self.transactions = 0
        self.failure: BaseException | None = None

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            self._thread.join()
            run_script(self._dsn, *(f"COMMIT PREPARED '{gid}'" for gid in self._prepared))
        assert self.transactions > 0
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        try:
            while not self._is_over.is_set():
                try:
                    self._session()
                except (psycopg2.OperationalError, psycopg2.InterfaceError):
                    self._is_over.wait(0.2)  # the server is restarted
        except BaseException as error:  # noqa: BLE001 - raised by the main thread
            self.failure = error

    def _session(self) -> None:
        with (
            contextlib.closing(psycopg2.connect(self._dsn)) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute("SET lock_timeout = '20ms'")  # rows of prepared transactions are locked
            connection.commit()
            while not self._is_over.is_set():
                for _ in range(self._random.choice((1, 1, 3, 40))):
                    cursor.execute("SAVEPOINT s")
                    is_undone = self._random.random() < 0.2
                    try:
                        cursor.execute(self._statement())
                    except psycopg2.errors.LockNotAvailable:
                        is_undone = True
                    cursor.execute("ROLLBACK TO SAVEPOINT s" if is_undone else "RELEASE SAVEPOINT s")
                self._end(connection, cursor)
                self.transactions += 1
                self._is_over.wait(PACE_S)

    def _end(self, connection: Any, cursor: Any) -> None:
        """Commit; or prepare the transaction, and decide it some transactions later."""
        is_prepared = self.with_prepared and self._random.random() < 0.2
        if is_prepared:
            self._prepared.append(f"{self.transactions}")
            cursor.execute("PREPARE TRANSACTION %s", (self._prepared[-1],))
        connection.commit()
        while self._prepared and (len(self._prepared) > 2 or self._random.random() < 0.3):
            decision = self._random.choice(("COMMIT", "COMMIT", "ROLLBACK"))
            connection.autocommit = True
            cursor.execute(f"{decision} PREPARED %s", (self._prepared.pop(0),))
            connection.autocommit = False

    def _statement(self) -> str:
        random = self._random
        table, low, draw = random.choice(self._tables), random.randint(1, ROWS), random.random()
        if draw < 0.4:
            return (
                f"UPDATE {table} SET n = n + 1 WHERE v BETWEEN {low} AND {low + random.choice((2, 2, 300))}"
            )
        if draw < 0.6:
            self._last += 1
            other = KEYS[table][1].format(g=self._last)
            if table in ("colours", "flags"):
                return f"UPDATE {table} SET v = {self._last} WHERE v = {low - low % 30}"
            return f"UPDATE {table} SET k = {other} WHERE v = {low - low % 30}"
        if draw < 0.7:
            return f"DELETE FROM {table} WHERE v = {low}"
        if draw < 0.85:
            return f"UPDATE {table} SET big = repeat('{low}', 1000) WHERE v = {low}"
        return f"UPDATE {table} SET n = -1, big = NULL WHERE v = {low}"


def assert_rows(
    server: PostgresServer, database: str, daemon: Daemon, reader: Reader, tables: tuple[str, ...]
) -> None:
    """Assert that each topic has the table's rows, and that each record is there once, where that is promised."""
    await_confirmed(server, daemon)
    for table in tables:
        events = reader.read(f"{daemon.name}.public.{table}")
        if "delivery" not in daemon.config["sink"]:
            assert_each_once(events)
        rows = server.execute(f"SELECT v, n, big FROM {table}", dbname=database)
        found = [(row["v"], row["n"], row["big"]) for row in folded(events).values()]
        assert sorted(found) == sorted(rows), table
        assert any(event.op == "r" for event in events), table  # how many depends on the pace of the changes


WAYS: dict[str, dict[str, Any]] = {
    "as text": {"source": {"protocol": {"streaming": "off", "binary": False}}},
    "in binary": {"source": {"protocol": {"binary": True}}},
    "streamed": {"source": {"protocol": {"streaming": "on"}}},
    "in parts": {"sink": {"large_transactions": {"policy": "parts", "max_rows": 50}}},
    "at least once": {"sink": {"delivery": "at_least_once"}},
    "prepared": {"source": {"protocol": {"two_phase": True}}},
    "recopied": {},
}
CRASHES = {
    "in parts": ("committed:4", "in_transaction:200", "chunk_emitted:7"),
    "at least once": ("committed:4", "chunk_emitted:7"),
    "streamed": ("confirmed:3", "chunk_emitted:9"),
    "prepared": ("committed:4", "chunk_emitted:7"),
    "recopied": ("committed:4", "chunk_emitted:7"),
}


@pytest.mark.timeout(900)  # alone, the largest nightly case takes two minutes on 2 processors
@pytest.mark.parametrize(
    ("way", "tables"),
    nightly_except(
        [
            pytest.param("as text", FEW, id="as text, few types"),
            *(
                pytest.param(
                    way,
                    {**dict.fromkeys(CRASHES, tuple(KEYS)[:6]), "in binary": IN_BINARY}.get(way, tuple(KEYS)),
                    id=way,
                    marks=[pytest.mark.long] * (way in LONG),
                )
                for way in WAYS
            ),
        ],
        "as text, few types",
    ),
)
def test_keys_of_each_type(
    way: str,
    tables: tuple[str, ...],
    postgres: PostgresServer,
    database: str,
    new_daemon: NewDaemon,
    reader: Reader,
) -> None:
    server = postgres
    create(server, database, tables)
    with new_daemon(server, database, snapshot={"mode": "never", "workers": 3}, **WAYS[way]) as daemon:
        if way == "streamed":
            daemon.config["source"]["dsn"] += f"?{STREAMED}"
        daemon.start().wait_state("streaming")
        load = Load(server, database, tables, seed=3)
        load.with_prepared = way == "prepared"
        with load.running():
            assert daemon.stop() == 0
            for crash in CRASHES.get(way, ()):
                daemon.environment[VARIABLE] = crash
                daemon.start()
                ensure_started(daemon, *(f"public.{table}" for table in tables))
                assert daemon.wait_exit() == EXIT_STATUS
            daemon.environment.pop(VARIABLE, None)
            daemon.start().wait_state("streaming")
            ensure_started(daemon, *(f"public.{table}" for table in tables))
            if way == "recopied":
                server.restart()
                eventually(lambda: command(daemon, "start", "public.texts", recopy=True)[0] == 200, "a start")
                start(daemon, "public.texts", "public.uuids", recopy=True)
            await_copied(daemon)
        assert_rows(server, database, daemon, reader, tables)


def test_a_key_that_cannot_be_read_in_binary_is_refused(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon
) -> None:
    create(postgres, database, ("numerics", "domains"))
    with new_daemon(postgres, database, snapshot={"mode": "never"}, **WAYS["in binary"]) as daemon:
        daemon.start().wait_state("streaming")
        for table in ("numerics", "domains"):
            status, body = command(daemon, "start", f"public.{table}")
            assert status == 422
            assert "binary" in body["message"]
        assert reports(daemon) == []
