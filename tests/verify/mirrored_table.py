"""The source of a mirror in which differences are planted: a table with a column of each kind, and one beside it.

Out: statements that create and fill both; PostgreSQL's judgement whether values are those of a row.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import psycopg2
import psycopg2.extensions

from tests.verify.one_value import text_of, time_of

PLANTED, UNTOUCHED = "planted", "untouched"
TYPES = {
    "small": "int2", "whole": "int4", "n": "int8", "amount": "numeric(12,2)", "fine": "numeric(38,10)",
    "free": "numeric", "ratio": "float8", "part": "float4", "name": "text", "code": "varchar(40)",
    "fixed": "char(8)", "day": "date", "at": "timestamptz", "local": "timestamp", "daytime": "time",
    "span": "interval", "flag": "bool", "uid": "uuid", "doc": "jsonb", "js": "json", "tags": "text[]",
    "nums": "int4[]", "ratios": "float8[]", "raw": "bytea", "mood": "mood", "place": "place", "bits": "varbit",
    "addr": "inet", "big": "text",
}  # fmt: skip
"""The columns without the key, with their types."""
_VALUES = {
    "small": "n % 30000", "whole": "n * 7", "n": "n * 1000003", "amount": "n / 3.0", "fine": "n / 7.0",
    "free": "round(n / 9.0, (n % 5)::int)", "ratio": "CASE WHEN n % 4 = 0 THEN 0 ELSE n / 7.0 END",
    "part": "CASE WHEN n % 4 = 1 THEN 0 ELSE n / 7.0 END", "name": "'Name é ' || n", "code": "'Code ' || n",
    "fixed": "'C' || n", "day": "date '2020-01-01' + (n % 9000)::int",
    "at": "timestamptz '2020-01-01' + n * interval '1.000001 second'",
    "local": "timestamp '2020-01-01' + n * interval '1.000001 second'",
    "daytime": "time '00:00' + n * interval '1.000001 second'", "span": "make_interval(months => 1, days => n::int)",
    "flag": "n % 2 = 0", "uid": "md5(n::text)::uuid",
    "doc": "jsonb_build_object('a', n + 1, 'b', '[true, null]'::jsonb)",
    "js": "json_build_object('a', n + 1)", "tags": "ARRAY['a b', NULL, n::text]", "nums": "ARRAY[1, NULL, n]",
    "ratios": "ARRAY[0, NULL, n / 7.0]", "raw": "decode(md5(n::text), 'hex')",
    "mood": "(ARRAY['sad', 'Sad', 'ok'])[1 + n % 3]::mood",
    "place": "ROW(CASE WHEN n % 3 = 0 THEN 0 ELSE n / 7.0 END, 'P ' || n)::place", "bits": "n::bit(16)",
    "addr": "'10.1.1.1'::inet + n",
    "big": "(SELECT string_agg(md5((n + m)::text), '') FROM generate_series(1, 99) m)",
}  # fmt: skip
_SPECIAL = {
    "amount": "'NaN'",
    "day": "'infinity'",
    "at": "'infinity'",
    "local": "'-infinity'",
    "daytime": "'24:00'",
}
"""Values outside the Avro type, which some rows have."""


def created() -> list[str]:
    """Return the statements that create both tables."""
    columns = ", ".join(f"{name} {type_}" for name, type_ in TYPES.items())
    return [
        "CREATE TYPE mood AS ENUM ('sad', 'Sad', 'ok')",
        "CREATE TYPE place AS (x float8, name text)",
        f"CREATE TABLE {PLANTED} (id int8 PRIMARY KEY, {columns})",
        f"CREATE TABLE {UNTOUCHED} (id int8, word text, {columns}, PRIMARY KEY (id, word))",
        *(f"ALTER TABLE {one} ALTER big SET STORAGE EXTERNAL" for one in (PLANTED, UNTOUCHED)),
    ]


def filled(first: int, last: int) -> list[str]:
    """Return the statements that insert rows into both tables. A tenth of the values is NULL."""
    values = []
    for number, (name, value) in enumerate(_VALUES.items()):
        special = f"WHEN n % 40 = {number % 40} THEN {_SPECIAL[name]} " if name in _SPECIAL else ""
        cases = f"WHEN (n + {number}) % 10 = 3 THEN NULL {special}ELSE {value}"
        values.append(f"(CASE {cases} END)::{TYPES[name]}")
    listed = ", ".join(values)
    of = f"FROM generate_series({first}::int8, {last}) n"
    return [
        f"INSERT INTO {PLANTED} SELECT n, {listed} {of}",
        f"INSERT INTO {UNTOUCHED} SELECT n, 'w' || n % 3, {listed} {of} WHERE n % 4 = 0",
    ]


def changed(modulus: int) -> list[str]:
    """Return statements that change rows, some without sending a TOASTed value, and delete some."""
    return [
        statement.format(table=table, modulus=modulus)
        for table in (PLANTED, UNTOUCHED)
        for statement in (
            "UPDATE {table} SET n = coalesce(n, 0) + 1, name = name || ' later', ratio = -0.0"
            " WHERE id % {modulus} = 0",
            "UPDATE {table} SET big = NULL, tags = NULL WHERE id % {modulus} = 1",
            "DELETE FROM {table} WHERE id % {modulus} = 2 AND id % 5 = 0",
        )
    ]


class Judge:
    """What PostgreSQL says of values."""

    def __init__(self, connection: psycopg2.extensions.connection) -> None:
        self._cursor = connection.cursor()

    def ids(self) -> set[int]:
        """Return the keys of the source's rows."""
        self._cursor.execute(f"SELECT id FROM {PLANTED}")
        return {number for (number,) in self._cursor}

    def distinguishes(self, number: int, values: Mapping[str, Any]) -> bool:
        """Return whether PostgreSQL's text of one of these values is not that of the row's."""
        clauses = " OR ".join(f"%s::{TYPES[name]}::text IS DISTINCT FROM {name}::text" for name in values)
        given = [
            time_of(value) if TYPES[name] == "time" else text_of(value) for name, value in values.items()
        ]
        self._cursor.execute(f"SELECT {clauses} FROM {PLANTED} WHERE id = %s", [*given, number])
        ((found,),) = self._cursor.fetchall()
        return bool(found)


@contextlib.contextmanager
def judge(dsn: str) -> Iterator[Judge]:
    """Yield the judge of a source. A value that PostgreSQL refuses is an error of psycopg2."""
    with contextlib.closing(psycopg2.connect(dsn)) as connection:
        connection.autocommit = True
        connection.cursor().execute("SET extra_float_digits = 3")
        yield Judge(connection)
