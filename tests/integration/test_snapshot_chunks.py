"""A table read chunk by chunk: each row exactly once, whatever its key. The judge is a SELECT of the whole table."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Any

import psycopg2
import pytest

from cdcd.model import KeyValues
from cdcd.snapshot.chunk_sql import (
    KEY_COLUMNS,
    key_of_line,
    rows_after,
    rows_of_blocks,
    rows_of_keys,
)
from cdcd.snapshot.key_sql import KeyColumn, key_columns
from cdcd.snapshot.table import CopiedTable
from cdcd.source.connection import connect_sql
from cdcd.source.key_index import table_keys
from cdcd.source.publication_catalog import published_tables
from cdcd.source.settings import SourceSettings
from tests.support.nightly import nightly_except
from tests.support.source import plain, source_database
from tests.support.stack import PostgresServers

MAJORS = (12, 14, 18)
LIMITS = (1, 2, 3, 7, 1000)

SETUP = (
    "CREATE SCHEMA ext; CREATE EXTENSION citext SCHEMA ext",
    "CREATE TYPE public.mood AS ENUM ('ok', 'great', 'bad')",
    """CREATE COLLATION public."no Case" (provider = icu, locale = 'und-u-ks-level2', deterministic = false)""",
    'CREATE DOMAIN public.word AS text COLLATE "de-x-icu"',
)
WORDS = (
    "", "a", "A", "ä", "b", "B", "aa", "a b", "é", "z", "Z", "ß", "ss", "10", "9", "_", "'", "\\", "a\\b", "\t",
    "\n", "'; --", "\\N", "%s", "🐘", "a'\\'b", "-",
)  # fmt: skip

DISTINCT = "(SELECT DISTINCT ON (lower(w)) w FROM words)"
KEYS: dict[str, tuple[dict[str, str], str]] = {
    "int4": ({"k": "int"}, "SELECT * FROM generate_series(-20, 20) k"),
    "int8": ({"k": "bigint"}, "VALUES (-9223372036854775808), (9223372036854775807), (0), (1), (-1)"),
    "text": ({"k": "text"}, "SELECT * FROM words"),
    "text, a collation": ({"k": 'text COLLATE "de-x-icu"'}, "SELECT * FROM words"),
    "text, C": ({"k": 'text COLLATE "C"'}, "SELECT * FROM words"),
    "text, not deterministic": ({"k": 'text COLLATE public."no Case"'}, f"SELECT * FROM {DISTINCT} d"),
    "varchar": ({"k": "varchar(20)"}, "SELECT * FROM words"),
    "char": (
        {"k": 'char(3) COLLATE "en-x-icu"'},
        "SELECT DISTINCT w::char(3) FROM words WHERE length(w) < 4",
    ),
    "name": ({"k": "name"}, "SELECT * FROM words"),
    "citext": ({"k": "ext.citext"}, f"SELECT * FROM {DISTINCT} d"),
    "domain": ({"k": "public.word"}, "SELECT * FROM words"),
    "domain, another collation": ({"k": 'public.word COLLATE "C"'}, "SELECT * FROM words"),
    "uuid": ({"k": "uuid"}, "SELECT md5(n::text)::uuid FROM generate_series(1, 40) n"),
    "timestamptz": (
        {"k": "timestamptz"},
        "VALUES ('-infinity'::timestamptz), ('infinity'), ('4713-01-01 BC'), ('2024-02-29 12:00:00.000001+03'),"
        " ('2024-02-29 12:00+03'), ('294276-12-31 23:59:59.999999+00'), ('1883-11-18 12:03:58-05')",
    ),
    "timestamp(0)": (
        {"k": "timestamp(0)"},
        "VALUES ('2024-01-01 01:02:03'::timestamp), ('2024-01-01 01:02:04'), ('infinity')",
    ),
    "interval": (
        {"k": "interval"},
        "VALUES ('1 mon'::interval), ('29 days'), ('-1 year'), ('31 days 00:00:00.5'), ('0')",
    ),
    "numeric": (
        {"k": "numeric"},
        "VALUES ('NaN'::numeric), (0), (-1), (1.00), (1.0000000000000000000001), (1e100), (-1e-50), (1e-50)",
    ),
    "numeric(10,2)": ({"k": "numeric(10,2)"}, "SELECT n / 3.0 FROM generate_series(-9, 9) n"),
    "float8": (
        {"k": "float8"},
        "VALUES ('NaN'::float8), ('-0'), ('Infinity'), ('-Infinity'), (0.1), (0.30000000000000004), (0.3),"
        " (5e-324), (1e308)",
    ),
    "float4": ({"k": "float4"}, "VALUES ('NaN'::float4), (0), (0.1), (0.10000001), ('-Infinity'), (1e-45)"),
    "bytea": (
        {"k": "bytea"},
        r"SELECT decode(md5(n::text), 'hex') FROM generate_series(1, 20) n"
        r" UNION VALUES (''::bytea), ('\x00'), ('\x5c27')",
    ),
    "bool": ({"k": "bool"}, "VALUES (true), (false)"),
    "enum": ({"k": "public.mood"}, "VALUES ('bad'::public.mood), ('ok'), ('great')"),
    "bit": ({"k": "bit(3)"}, "VALUES (B'000'), (B'101'), (B'111')"),
    "inet": ({"k": "inet"}, "VALUES ('10.0.0.1/8'::inet), ('10.0.0.1/32'), ('::1'), ('10.0.0.2')"),
    "array": (
        {"k": "text[]"},
        "SELECT ARRAY[w, NULL] FROM words UNION VALUES ('{}'::text[]), (ARRAY['a', 'b'])",
    ),
    "range": (
        {"k": "int4range"},
        "VALUES ('empty'::int4range), ('[1,3)'), ('[1,2)'), ('(,2)'), ('[2,)')",
    ),
    "jsonb": ({"k": "jsonb"}, """VALUES ('1'::jsonb), ('"a"'), ('{"a": "\\\\"}'), ('[]'), ('null')"""),
    "money": ({"k": "money"}, "VALUES (1::money), (-2), (1000000)"),
    "mixed": (
        {"k": "int", 'the "" K': 'text COLLATE "de-x-icu"', "u": "uuid", "t": "timestamptz"},
        "SELECT n, w, md5(w)::uuid, '2024-01-01'::timestamptz + n * interval '1 us'"
        " FROM words, generate_series(1, 3) n",
    ),
    "mixed, two schemas": (
        {"k": "int", "c": "ext.citext", "f": "float8", "h": "char(4)"},
        f"SELECT n % 2, w, f, 'x' || n FROM {DISTINCT} d, generate_series(1, 3) n,"
        " (VALUES ('NaN'::float8), (-0.5)) v(f)",
    ),
    "mixed, citext first": (
        {"c": "ext.citext", "e": "public.mood", "n": "numeric"},
        f"SELECT w, e::public.mood, n FROM {DISTINCT} d,"
        " (VALUES ('bad'), ('ok')) e(e), (VALUES (1.50), (1.5001)) n(n)",
    ),
}


@dataclass(frozen=True)
class Reading:
    """A table and its key, on a connection as the daemon opens it."""

    connection: Any
    table: CopiedTable
    key: tuple[KeyColumn, ...]

    def lines(self, statement: str) -> list[bytes]:
        with self.connection.cursor() as cursor, io.BytesIO() as sent:
            cursor.copy_expert(statement, sent)
            return sent.getvalue().splitlines()

    def all_lines(self, where: str = "") -> list[bytes]:
        """Return the whole table as the server sends it, by a statement of this test."""
        columns = ", ".join('"' + one.replace('"', '""') + '"' for one in self.table.columns)
        name = f'"{self.table.schema}"."{self.table.name}"'
        return self.lines(f"COPY (SELECT {columns} FROM {name} {where}) TO STDOUT")

    def chunks(self, draw: Callable[[], int]) -> Iterator[list[bytes]]:
        after: KeyValues | None = None
        while True:
            limit = draw()
            lines = self.lines(rows_after(self.table, self.key, after, limit))
            yield lines
            if len(lines) < limit:
                return
            after = key_of_line(self.table, self.key, lines[-1])


@contextlib.contextmanager
def reading(settings: SourceSettings, *key: str, name: str = "t") -> Iterator[Reading]:
    with contextlib.closing(connect_sql(settings)) as connection, connection.cursor() as cursor:
        (found,) = (one for one in published_tables(connection, ("pub",)) if one.name == name)
        table = CopiedTable(
            found.relid, found.schema, found.name, found.columns, found.row_filter, found.is_partitioned
        )
        cursor.execute(KEY_COLUMNS, {"relid": found.relid, "columns": list(key)})
        yield Reading(connection, table, key_columns(cursor.fetchall()))


def script(columns: dict[str, str], rows: str) -> str:
    words = ", ".join("(E'" + one.replace("\\", "\\\\").replace("'", "''") + "')" for one in WORDS)
    quoted = {'"' + name.replace('"', '""') + '"': kind for name, kind in columns.items()}
    described, names = ", ".join(f"{name} {kind}" for name, kind in quoted.items()), ", ".join(quoted)
    return (
        f"CREATE TEMP TABLE words AS SELECT * FROM (VALUES {words}) v(w);"
        f"CREATE TABLE public.t (note text, {described}, PRIMARY KEY ({names}));"
        f"INSERT INTO public.t ({names}) {rows};"
        "UPDATE public.t SET note = E'\\\\ \\t ' || ctid"
    )


def execute(settings: SourceSettings, statements: str) -> None:
    with contextlib.closing(psycopg2.connect(plain(settings))) as connection, connection.cursor() as cursor:
        cursor.execute(statements)
        connection.commit()


def once(chunks: Iterable[list[bytes]]) -> list[bytes]:
    """Return all lines of chunks, sorted; a line that is there twice is an error."""
    lines = sorted(line for chunk in chunks for line in chunk)
    assert len(set(lines)) == len(lines)
    return lines


@pytest.mark.parametrize("major", nightly_except(MAJORS, 18))
def test_each_row_is_in_exactly_one_chunk(pg_server: PostgresServers, major: int) -> None:
    """The order and the equality of a key are those of its index, for each type and collation."""
    random = Random(major)
    publication = "CREATE PUBLICATION pub FOR ALL TABLES"
    with source_database(pg_server(major), *SETUP, publication) as settings:
        for name, (columns, rows) in KEYS.items():
            execute(settings, script(columns, rows))
            shuffled = random.sample(list(columns), len(columns))
            with reading(settings, *shuffled) as table:
                assert [column.name for column in table.key] == list(columns)
                expected = once([table.all_lines()])
                assert len(expected) >= 2, name
                for limit in LIMITS:
                    assert once(table.chunks(lambda limit=limit: limit)) == expected, (name, limit)
                assert once(table.chunks(lambda: random.randrange(1, 6))) == expected, name
                check_keys(table, expected, random)
            execute(settings, "DROP TABLE public.t")


def check_keys(table: Reading, lines: list[bytes], random: Random) -> None:
    """Rows read by their keys are these rows; keys without a row give none."""
    wanted = random.sample(lines, min(len(lines), 5))
    keys = [key_of_line(table.table, table.key, line) for line in wanted]
    assert once([table.lines(rows_of_keys(table.table, table.key, keys))]) == sorted(wanted)
    with table.connection.cursor() as cursor:
        cursor.execute("DELETE FROM public.t")
    assert table.lines(rows_of_keys(table.table, table.key, keys)) == []
    assert table.lines(rows_after(table.table, table.key, None, 10)) == []


INDEXES = {
    "pattern": ('"de-x-icu"', "(k text_pattern_ops, n)"),
    "collation": ('public."no Case"', '(n, k COLLATE "C") INCLUDE (note)'),
    "descending": ('"de-x-icu"', "(k DESC, n)"),
}


@pytest.mark.parametrize("major", nightly_except(MAJORS, 18))
@pytest.mark.parametrize(("collation", "index"), INDEXES.values(), ids=INDEXES)
def test_the_order_is_that_of_the_index_and_not_of_the_column(
    pg_server: PostgresServers, major: int, collation: str, index: str
) -> None:
    """Two keys may differ in the index, and be equal by the column's own collation."""
    with (
        source_database(
            pg_server(major),
            *SETUP,
            f"CREATE TABLE public.t (note text, k text COLLATE {collation} NOT NULL, n int NOT NULL)",
            "CREATE UNIQUE INDEX partial ON public.t (k, n) WHERE n > 100",
            "CREATE UNIQUE INDEX expression ON public.t (k, n, (md5(note)))",
            f"CREATE UNIQUE INDEX one ON public.t {index}",
            "CREATE UNIQUE INDEX another ON public.t (k, n, note)",
            "INSERT INTO public.t SELECT md5(k), k, n"
            " FROM unnest('{a,A,b,B,ab,Ab,aB}'::text[]) k, generate_series(1, 3) n",
            "CREATE PUBLICATION pub FOR ALL TABLES",
        ) as settings,
        reading(settings, "k", "n") as table,
    ):
        assert len(table.key) == 2
        expected = once([table.all_lines()])
        assert len(expected) == 21
        for limit in LIMITS:
            assert once(table.chunks(lambda limit=limit: limit)) == expected


def test_a_key_without_a_unique_index_has_no_order(pg_server: PostgresServers) -> None:
    with source_database(
        pg_server(18),
        "CREATE TABLE public.t (k int PRIMARY KEY DEFERRABLE, n int NOT NULL, h int)",
        "CREATE UNIQUE INDEX ON public.t ((n + 1))",
        "CREATE INDEX ON public.t (n)",
        "CREATE PUBLICATION pub FOR ALL TABLES",
    ) as settings:
        for key in ("k", "n", "h"):
            with reading(settings, key) as table:
                assert table.key == ()


def test_a_not_null_constraint_counts_only_when_it_is_valid(pg_server: PostgresServers) -> None:
    """PostgreSQL 18 accepts one that is not as the column of a replica identity; a null is behind no key."""
    with source_database(
        pg_server(18),
        "CREATE TABLE public.t (k int, n int)",
        "INSERT INTO public.t VALUES (NULL, 1), (NULL, 2), (3, 3)",
        "ALTER TABLE public.t ADD CONSTRAINT k_set NOT NULL k NOT VALID",
        "CREATE UNIQUE INDEX t_k ON public.t (k)",
        "ALTER TABLE public.t REPLICA IDENTITY USING INDEX t_k",
        "CREATE PUBLICATION pub FOR ALL TABLES",
    ) as settings:
        for is_valid in (False, True):
            with reading(settings, "k") as table:
                assert [column.name for column in table.key] == ["k"] * is_valid
                relid = table.table.relid
            with contextlib.closing(connect_sql(settings)) as connection:
                keys = table_keys(connection, (relid,))[relid]
                assert keys.is_unique(("k",)) is is_valid
                assert keys.is_order(("k",)) is is_valid
            execute(
                settings, "DELETE FROM public.t WHERE n < 3; ALTER TABLE public.t VALIDATE CONSTRAINT k_set"
            )


@pytest.mark.parametrize("major", nightly_except(MAJORS, 18))
def test_chunks_use_the_index(pg_server: PostgresServers, major: int) -> None:
    """A chunk does not read and sort the whole table, with operators of one schema and of several."""
    with source_database(
        pg_server(major),
        *SETUP,
        'CREATE TABLE public.one (a int, b text COLLATE "de-x-icu", PRIMARY KEY (a, b))',
        "CREATE TABLE public.two (a int, b ext.citext, PRIMARY KEY (a, b))",
        "INSERT INTO public.one SELECT n, n FROM generate_series(1, 20000) n",
        "INSERT INTO public.two SELECT n, n FROM generate_series(1, 20000) n",
        "ANALYZE",
        "CREATE PUBLICATION pub FOR ALL TABLES",
    ) as settings:
        for name in ("one", "two"):
            with reading(settings, "b", "a", name=name) as table, table.connection.cursor() as cursor:
                after = rows_after(table.table, table.key, ("15000", "15000"), 50)
                by_key = rows_of_keys(table.table, table.key, [("7", "7"), ("900", "900")])
                for statement, rows in ((after, 50), (by_key, 2)):
                    assert len(table.lines(statement)) == rows
                    query = statement.removeprefix("COPY (").removesuffix(") TO STDOUT")
                    cursor.execute(f"EXPLAIN {query}")
                    plan = "\n".join(line for (line,) in cursor.fetchall())
                    assert "Index Cond" in plan, plan
                    assert "Sort" not in plan, plan
                    assert "Seq Scan" not in plan, plan


@pytest.mark.parametrize("major", nightly_except(MAJORS, 18))
def test_each_row_is_in_exactly_one_range_of_blocks(pg_server: PostgresServers, major: int) -> None:
    """Inherited tables are not read: ONLY the table's own file is."""
    with (
        source_database(
            pg_server(major),
            "CREATE TABLE public.t (k int PRIMARY KEY, note text)",
            "CREATE TABLE public.child () INHERITS (public.t)",
            "INSERT INTO public.t SELECT n, repeat('x', n % 700) FROM generate_series(1, 1000) n",
            "INSERT INTO public.child SELECT n FROM generate_series(2000, 2010) n",
            "DELETE FROM public.t WHERE k BETWEEN 300 AND 400",
            "CREATE PUBLICATION pub FOR TABLE public.t",
        ) as settings,
        reading(settings, "k") as table,
    ):
        expected = once([table.all_lines("WHERE k < 2000")])
        edges = [0, 1, 2, 9, 20, 31]
        ranges = [*pairwise(edges), (31, None)]
        chunks = [table.lines(rows_of_blocks(table.table, *one)) for one in ranges]
        assert all(chunks[:2])
        assert once(chunks) == expected
        assert once(table.chunks(lambda: 100)) == expected


def test_row_filter_column_list_and_partitions_are_obeyed(pg_server: PostgresServers) -> None:
    """F41: the filter is a part of the condition, whatever operators it has."""
    with (
        source_database(
            pg_server(18),
            'CREATE TABLE public."T %s" (secret text, k int, n int, note text, PRIMARY KEY (k, n))'
            " PARTITION BY RANGE (k)",
            'CREATE TABLE public.p1 PARTITION OF public."T %s" FOR VALUES FROM (0) TO (10)',
            'CREATE TABLE public.p2 PARTITION OF public."T %s" DEFAULT',
            """INSERT INTO public."T %s" SELECT 's', k, n, '%' """
            "FROM generate_series(1, 20) k, generate_series(1, 5) n",
            'CREATE PUBLICATION pub FOR TABLE public."T %s" (note, n, k) WHERE (n = 1 OR k > 15)'
            " WITH (publish_via_partition_root)",
        ) as settings,
        reading(settings, "k", "n", name="T %s") as table,
    ):
        expected = once([table.all_lines("WHERE n = 1 OR k > 15")])
        assert len(expected) == 15 + 25
        for limit in LIMITS:
            assert once(table.chunks(lambda limit=limit: limit)) == expected
        keys = [("1", "1"), ("1", "2"), ("16", "2")]
        lines = table.lines(rows_of_keys(table.table, table.key, keys))
        assert [key_of_line(table.table, table.key, line) for line in sorted(lines)] == [
            ("1", "1"),
            ("16", "2"),
        ]


def test_literals_do_not_depend_on_a_setting_of_the_role(pg_server: PostgresServers) -> None:
    with (
        source_database(
            pg_server(18),
            "CREATE TABLE public.t (k text PRIMARY KEY)",
            "INSERT INTO public.t VALUES ('a'), (E'\\\\'), (E'\\\\''x'), ('b')",
            "CREATE PUBLICATION pub FOR ALL TABLES",
            standard_conforming_strings="off",
        ) as settings,
        reading(settings, "k") as table,
    ):
        assert once(table.chunks(lambda: 1)) == once([table.all_lines()])
