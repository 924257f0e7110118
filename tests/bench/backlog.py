"""A backlog: rows written after a slot was created; each run drains them through a slot of its own.

In: a case, a server.  Out: `Backlog`, with its start and end positions.
Invariant: every slot from `new_slot` starts at the position of the first one, so that all drain the same WAL; only
the case's rows are published in between.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import psycopg2

from cdcd.demo.stack.postgres import PostgresServer
from tests.bench.cases import Case

PUBLICATION = "bench"
FIRST_SLOT = "bench_begin"
SPREAD = "spread"
"""The partitioned table through which rows are spread; its partitions are published, each as a table."""
TABLES_A_STATEMENT = 500
END_TOLERANCE_BYTES = 64
"""The maximum distance of the WAL's end from the last commit's end (a page's header); less than any transaction."""

NEVER = 1 << 63
"""The end of a backlog without rows: rows written later have no known end."""

_runs = itertools.count(1)

_FILL = """
CREATE PROCEDURE fill(first bigint, last bigint, per bigint) LANGUAGE plpgsql AS $$
DECLARE
    at bigint := first;
BEGIN
    WHILE at <= last LOOP
        {statement};
        COMMIT;
        at := at + per;
    END LOOP;
END
$$
"""


class Backlog:
    """One case's database with its rows, its publication and a slot at their start."""

    def __init__(self, server: PostgresServer, case: Case) -> None:
        self.case = case
        self.database = f"bench_{case.name.replace('-', '_')}"
        self.start_lsn = 0
        self.end_lsn = 0
        self._server = server

    def __enter__(self) -> Backlog:
        self._server.drop_database(self.database)
        self._server.create_database(self.database)
        try:
            self._build()
        except BaseException:
            self._server.drop_database(self.database)
            raise
        return self

    def __exit__(self, *_exc: object) -> None:
        self._server.drop_database(self.database)

    @property
    def dsn(self) -> str:
        """The connection string of the database, over TCP."""
        return self._server.dsn(self.database)

    @property
    def wal_bytes(self) -> int:
        """The WAL between the slot and the last row, in bytes."""
        return self.end_lsn - self.start_lsn

    @property
    def records(self) -> int:
        """The number of Kafka records that the backlog produces."""
        return self.case.rows * self.case.records_per_row

    @property
    def warm_lsn(self) -> int:
        """The position up to which all rows must be durable before the rate starts."""
        return self.start_lsn + int(self.wal_bytes * self.case.warm_share)

    def topic_suffixes(self) -> list[str]:
        """Return, for each table that gets rows, its topic's suffix after the prefix: schema and table."""
        count = 1 if self.case.of_one_table else self.case.tables
        return [f"public.{table_name(number)}" for number in range(count)]

    @contextlib.contextmanager
    def new_slot(self) -> Iterator[str]:
        """Create a slot at the start of the backlog, and drop it afterwards."""
        name = f"bench_{next(_runs)}"
        self.execute("SELECT pg_copy_logical_replication_slot(%s, %s)", FIRST_SLOT, name)
        with self.dropped_afterwards(name):
            yield name

    @contextlib.contextmanager
    def emptied(self) -> Iterator[str]:
        """Empty the tables and create a slot at the current position, and drop the slot afterwards."""
        name = f"bench_{next(_runs)}"
        self.execute(f"TRUNCATE {', '.join(map(table_name, range(self.case.tables)))}")
        self.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", name)
        with self.dropped_afterwards(name):
            yield name

    @contextlib.contextmanager
    def dropped_afterwards(self, name: str) -> Iterator[None]:
        """Drop this slot at the end of the block, if it exists then."""
        try:
            yield
        finally:
            # The walsender of a killed client may hold the slot for a moment.
            self.execute(
                "SELECT pg_terminate_backend(active_pid, 10000) FROM pg_replication_slots"
                " WHERE slot_name = %s AND active",
                name,
            )
            self.execute(
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s",
                name,
            )

    def is_active(self, slot: str) -> bool:
        """Return whether a walsender reads this slot."""
        return bool(self.execute("SELECT 1 FROM pg_replication_slots WHERE slot_name = %s AND active", slot))

    def current_lsn(self) -> int:
        """Return the end of the server's WAL."""
        return int(self.execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")[0][0])

    def execute(self, statement: str, *params: object) -> list[tuple[Any, ...]]:
        """Run a statement in the backlog's database."""
        return self._server.execute(statement, *params, dbname=self.database)

    def _build(self) -> None:
        case = self.case
        self._create_tables()
        insert = statement_of(case, "insert")
        self.execute(_FILL.format(statement=insert))
        if case.operation != "insert":
            self._fill(1_000)
            self.execute("DROP PROCEDURE fill")
            self.execute(_FILL.format(statement=statement_of(case, case.operation)))
        self.execute("CHECKPOINT")
        (row,) = self.execute(
            "SELECT lsn - '0/0'::pg_lsn FROM pg_create_logical_replication_slot(%s, 'pgoutput')", FIRST_SLOT
        )
        self.start_lsn = int(row[0])
        self._fill(case.rows_per_transaction)
        self.end_lsn = self.current_lsn() if case.rows else NEVER
        self.execute("CHECKPOINT")  # write the pages that the inserts made dirty now, not during a run

    def _create_tables(self) -> None:
        case = self.case
        columns = ", ".join(f"{name} {kind}" for name, kind, _ in case.columns)
        names = [table_name(number) for number in range(case.tables)]
        if not case.of_one_table:
            self.execute(f"CREATE TABLE {SPREAD} ({columns}, PRIMARY KEY (id)) PARTITION BY HASH (id)")
        for first in range(0, case.tables, TABLES_A_STATEMENT):
            made = [
                self._create_table(n, columns)
                for n in range(first, min(first + TABLES_A_STATEMENT, case.tables))
            ]
            self.execute(";".join(made))
        self.execute(f"CREATE PUBLICATION {PUBLICATION} FOR TABLE {', '.join(names)}")

    def _create_table(self, number: int, columns: str) -> str:
        name, case = table_name(number), self.case
        identity = f"ALTER TABLE {name} REPLICA IDENTITY {case.identity}"
        if case.of_one_table:
            return f"CREATE TABLE {name} ({columns}, PRIMARY KEY (id)); {identity}"
        bounds = f"WITH (MODULUS {case.tables}, REMAINDER {number})"
        return f"CREATE TABLE {name} PARTITION OF {SPREAD} FOR VALUES {bounds}; {identity}"

    def _fill(self, per: int) -> None:
        with contextlib.closing(psycopg2.connect(self.dsn)) as connection:
            connection.autocommit = True
            with connection.cursor() as cursor:
                cursor.execute("SET synchronous_commit = off")
                cursor.execute("CALL fill(1, %s, %s)", (self.case.rows, per))


def table_name(number: int) -> str:
    """Return the name of one of the case's tables."""
    return f"t{number}"


def statement_of(case: Case, operation: str) -> str:
    """Return the statement that writes rows `at` to `at + per - 1` in one transaction. Pure."""
    last = "least(at + per, last + 1) - 1"
    table = table_name(0) if case.of_one_table else SPREAD
    if operation == "update":
        return f"UPDATE {table} SET {case.change} WHERE id BETWEEN at AND {last}"
    if operation == "delete":
        return f"DELETE FROM {table} WHERE id BETWEEN at AND {last}"
    values = ", ".join(expression for _, _, expression in case.columns)
    return f"INSERT INTO {table} SELECT {values} FROM generate_series(at, {last}) g"
