"""One major: every type through a snapshot and a stream, as text and as binary, and PostgreSQL's judgement of each.

In: running servers, a number of values, optionally the only types to test.  Out: a `Verdict` for each type.
Invariant: half of the rows exist before the daemons start; all rows are inserted again while the daemons stream.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import psycopg2

from cdcd.demo.stack.postgres import PostgresServer
from tests.oracle import tables
from tests.oracle.judge import Counts, Judge
from tests.oracle.kinds import Column, Table
from tests.oracle.literals import DDL, SHADES, WITHOUT, every_type, shade, vector_types
from tests.oracle.topic import Row, Topics
from tests.support.daemon import Daemon, await_confirmed
from tests.support.stack import Stack, drop_database, new_database_name

STREAMED = 1_000_000
"""Rows inserted while the daemons stream have ids from here on."""

SPECIAL = {
    "date", "time", "timestamp", "timestamptz", "interval", "time(0)", "time(3)", "timestamp(3)", "timestamptz(0)",
    "interval(2)", "numeric(10,2)", "net_price", "numeric(38,0)", "numeric(38,38)", "numeric(20,10)", '"Per son"',
    "log", "price", "information_schema.time_stamp", "numeric(3,5)", "xid8",
}  # fmt: skip
"""Types with values that their Avro types cannot hold: infinities, NaN, 24:00:00, an xid8 beyond int64."""

UNCOVERED = """
    select t.typname::text, e.typname::text from pg_type t left join pg_type e on e.oid = t.typelem
    where t.typtype <> 'p'
      and not exists (select from pg_class c where c.relkind <> 'c' and c.oid in (t.typrelid, e.typrelid))
      and not exists (select from pg_attribute a join pg_class c on c.oid = a.attrelid
                      where a.atttypid = t.oid and c.relnamespace = 'staged'::regnamespace)
"""


@dataclass
class Verdict:
    """The result of one type: the number of distinct values, and the counts by tuple format and column."""

    type_name: str
    distinct: int
    by_text: bool
    counts: dict[str, dict[str, Counts]] = field(default_factory=dict)

    def sum(self, mode: str, what: str) -> int:
        """Return the number of `values`, `specials`, `needless` or `mismatches` of all columns."""
        found = [getattr(one, what) for one in self.counts.get(mode, {}).values()]
        return sum(one if isinstance(one, int) else len(one) for one in found)

    @property
    def mismatches(self) -> list[str]:
        """Return the mismatches of all columns, with the format."""
        return [
            f"{m}: {one}" for m, found in self.counts.items() for c in found.values() for one in c.mismatches
        ]


@dataclass(frozen=True)
class Outcome:
    """The result of one major. `uncovered`: types that a column can have, without a table here and without a known
    reason.
    """

    verdicts: list[Verdict]
    uncovered: list[str]


class Reading(Protocol):
    """How the topics are read: `read` returns what `rows` takes for each."""

    def read(self, topics: Iterable[str]) -> dict[str, Any]:
        """Return the content of each topic, or what identifies it."""

    def rows(self, content: Any) -> Iterator[Row]:
        """Yield the rows of a topic."""


def run(
    stack: Stack,
    count: int,
    only: Collection[str] = (),
    *,
    vectors: bool = False,
    topics: Reading | None = None,
) -> Outcome:
    """Send every type through the topics and judge it. `vectors`: only pgvector's types.

    `topics`: reads the topics instead of fastavro, then only those of the text format: the records of both are equal.
    """
    with database(stack.postgres) as dbname:
        made = created_tables(stack.postgres, dbname, count, only, vectors=vectors)
        verdicts = _judged(stack, dbname, made, topics)
        walked = stack.postgres.execute(UNCOVERED, dbname=dbname) if not only and not vectors else []
    uncovered = sorted(name for name, element in walked if name not in WITHOUT and element not in WITHOUT)
    return Outcome(verdicts, uncovered)


@contextlib.contextmanager
def database(server: PostgresServer) -> Iterator[str]:
    """Return a new database, which is dropped at the end."""
    name = new_database_name()
    server.create_database(name)
    try:
        yield name
    finally:
        drop_database(server, name)


def created_tables(
    server: PostgresServer, dbname: str, count: int, only: Collection[str], *, vectors: bool
) -> list[Table]:
    """Create the tables of every type, and fill their staged ones."""
    with contextlib.closing(psycopg2.connect(server.dsn(dbname))) as connection:
        connection.autocommit = True
        cursor = connection.cursor()

        def execute(statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
            cursor.execute(statement, parameters or None)
            return cursor.fetchall() if cursor.description else []

        made = _vectors(server.major, count, execute) if vectors else _all(server.major, count, only, execute)
        for table in made:
            tables.fill(cursor, table)
        return made


def _all(major: int, count: int, only: Collection[str], execute: Any) -> list[Table]:
    for statement in DDL:
        execute(statement)
    labels = ", ".join("'" + shade(number).replace("'", "''") + "'" for number in range(SHADES))
    execute(f"create type shade as enum ({labels})")
    made = [
        tables.table_of(number, name, literals, major, execute, by_text=by_text)
        for number, (name, literals, by_text) in enumerate(every_type(major, count, execute), 1)
        if not only or name in only
    ]
    others = [*tables.uncastable(900), tables.long_values(999)]
    return made + [one for one in others if not only or one.type_name in only]


def _vectors(major: int, count: int, execute: Any) -> list[Table]:
    execute("create extension vector")
    execute("create schema staged")
    return [
        tables.table_of(number, name, literals, major, execute, by_text=False)
        for number, (name, literals) in enumerate(vector_types(count), 1)
    ]


def _judged(stack: Stack, dbname: str, made: list[Table], topics: Reading | None) -> list[Verdict]:
    server = stack.postgres
    exact, others = [one for one in made if not one.by_text], [one for one in made if one.by_text]
    groups = [("text", False, made)]
    if topics is None:
        groups += [("binary", True, exact), ("binary", True, others)]
        topics = Topics(stack.kafka.bootstrap, stack.registry.url)
    with contextlib.ExitStack() as daemons:
        running = [
            (mode, group, daemons.enter_context(_daemon(stack, dbname, group, place, binary=binary)))
            for place, (mode, binary, group) in enumerate(groups)
            if group
        ]
        for table in made:
            insert(server, dbname, table, "id", "where id % 2 = 0")
        for _, _, daemon in running:
            daemon.start()
        for _, _, daemon in running:
            daemon.wait_state("streaming", deadline_s=900)
        for table in made:
            insert(server, dbname, table, f"id + {STREAMED}", "")
        for _, _, daemon in running:
            await_confirmed(server, daemon, within_s=900)
            assert daemon.stop() == 0, daemon.log()[-2000:]
        verdicts = {one.name: _verdict(server, dbname, one) for one in made}
        for mode, group, daemon in running:
            asked = mode == "binary" and not group[0].by_text
            left_out = daemon.events("option_disabled")
            assert {line["binary"] for line in daemon.events("streaming")} == {asked}, left_out
            for table, counts in _counted(stack, dbname, daemon, group, topics):
                verdicts[table.name].counts[mode] = counts
    return list(verdicts.values())


def _daemon(stack: Stack, dbname: str, group: list[Table], place: int, *, binary: bool) -> Daemon:
    name = f"{dbname}_{place}"
    listed = ", ".join(table.name for table in group)
    stack.postgres.execute(f"create publication cdcd_{name} for table {listed}", dbname=dbname)
    return Daemon(
        stack.folder / name,
        name,
        dsn=stack.postgres.dsn(dbname),
        bootstrap=stack.kafka.bootstrap,
        registry_url=stack.registry.url,
        source={"protocol": {"binary": binary}},
        sink={"topics": {"partitions": 1}},
    )


def insert(server: PostgresServer, dbname: str, table: Table, number: str, where: str) -> None:
    """Insert the staged rows of a table."""
    names = ", ".join(column.name for column in table.columns)
    server.execute(
        f"insert into {table.name} select {number}, {names} from staged.{table.name} {where} order by id",
        dbname=dbname,
    )


def _verdict(server: PostgresServer, dbname: str, table: Table) -> Verdict:
    counted = " + ".join(
        f"count(distinct format('%s', {one.name})) filter (where num_nonnulls({one.name}) = 1)"
        for one in _by_themselves(table)
    )
    distinct = server.execute(f"select {counted} from staged.{table.name}", dbname=dbname)
    return Verdict(table.type_name, int(distinct[0][0]), table.by_text)


def _by_themselves(table: Table) -> list[Column]:
    return [one for one in table.columns if one.name == "v"] or list(table.columns)


def _counted(
    stack: Stack, dbname: str, daemon: Daemon, group: list[Table], topics: Reading
) -> Iterator[tuple[Table, dict[str, Counts]]]:
    raws = topics.read(f"{daemon.name}.public.{table.name}" for table in group)
    with contextlib.closing(Judge(stack.postgres.dsn(dbname))) as judge:
        for table in group:
            rows = [(_id(row), row) for row in topics.rows(raws.pop(f"{daemon.name}.public.{table.name}"))]
            there = stack.postgres.execute(f"select id from {table.name} order by id", dbname=dbname)
            assert sorted(number for number, _ in rows) == [number for (number,) in there], table.type_name
            assert all(row.is_snapshot == (number < STREAMED) for number, row in rows)
            yield table, judge.judge(table, rows, may_be_special=table.type_name in SPECIAL)


def _id(row: Row) -> int:
    return int(row.values["id"])
