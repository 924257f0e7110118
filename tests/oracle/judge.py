"""PostgreSQL's comparison: a value read, cast back by PostgreSQL's own input functions, is not distinct from the
row's.

In: a table, rows as they were read.  Out: counts by column, and the differences.
Invariant: text equality is always required, `IS NOT DISTINCT FROM` if the type has an equality; a null that was read
is a null, unless `source.special` has a text for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import psycopg2
import psycopg2.errors

from tests.oracle.kinds import Column, DeclaredType, Table, quoted
from tests.oracle.topic import Row

DAY_US = 86_400_000_000
AS_LITERALS = ("int2vector", "oidvector")
"""ARRAY[...] of these is an array of more dimensions of their elements, not of them."""

_DIFFERS, _EQUAL, _AS_ITS_TEXT = range(3)
_MAY_ALSO_BE_SET = set("aenoch") | set("su")
"""Columns with arrays of any shape: an array of several dimensions, or a value that contains one, is in
`source.special`.
"""

SESSION = (
    "set timezone = 'UTC'", "set datestyle = 'ISO, DMY'", "set extra_float_digits = 3", "set search_path = public",
)  # fmt: skip


@dataclass
class Counts:
    """The counts of one column: compared values, those of them in `source.special`, and the mismatches.

    `as_their_text`: the text is the same, and PostgreSQL reads that text itself as another value: a tsquery's text
    lacks some parentheses, a box with NaN is not equal to itself.
    """

    values: int = 0
    specials: int = 0
    as_their_text: int = 0
    needless: int = 0
    mismatches: list[str] = field(default_factory=list)


def back(avro: Any, value: Any, kind: DeclaredType) -> tuple[str, list[Any]]:
    """Return an SQL expression that rebuilds the value from the one read, and its parameters."""
    if isinstance(avro, list):
        avro = avro[1]
    if value is None:
        return f"null::{kind.sql}", []
    if isinstance(avro, dict) and avro["type"] == "array":
        return _array_back(avro, value, kind)
    if isinstance(avro, dict) and avro["type"] == "record":
        assert kind.parts is not None
        assert len(kind.parts) == len(avro["fields"])
        parts = [
            back(f["type"], value[f["name"]], of) for f, of in zip(avro["fields"], kind.parts, strict=True)
        ]
        return f"row({', '.join(one for one, _ in parts)})::{kind.sql}", [
            v for _, found in parts for v in found
        ]
    if isinstance(avro, dict) and avro["type"] == "map":
        return f"hstore(%s::text[], %s::text[])::{kind.sql}", [list(value), list(value.values())]
    expression, values = _scalar_back(avro, value)
    return f"({expression})::{kind.sql}", values


def _array_back(avro: Any, value: list[Any], kind: DeclaredType) -> tuple[str, list[Any]]:
    if kind.element is None:  # not an array in PostgreSQL: a type of pgvector
        return f"(%s::float8[])::{kind.sql}", [f"{{{','.join(map(repr, value))}}}"]
    if not value:
        return f"'{{}}'::{kind.sql}", []
    if kind.element.sql in AS_LITERALS:
        return f"(%s)::{kind.sql}", [f"{{{','.join(map(quoted, value))}}}"]
    items = [back(avro["items"], item, kind.element) for item in value]
    return f"array[{', '.join(one for one, _ in items)}]::{kind.sql}", [
        v for _, found in items for v in found
    ]


def _scalar_back(avro: Any, value: Any) -> tuple[str, list[Any]]:
    match avro.get("logicalType") if isinstance(avro, dict) else None:
        case "date":
            return "date '1970-01-01' + %s::int", [value]
        case "time-micros":
            return "time '00:00' + %s * interval '1 microsecond'", [value]
        case "local-timestamp-micros":
            return "timestamp '1970-01-01' + %s * interval '1 day' + %s * interval '1 microsecond'", [
                *divmod(value, DAY_US)
            ]
        case "timestamp-micros":
            return "timestamptz '1970-01-01' + %s * interval '1 day' + %s * interval '1 microsecond'", [
                *divmod(value, DAY_US)
            ]
        case "decimal":
            return "%s::numeric", [f"{int.from_bytes(value, 'big', signed=True)}e-{avro['scale']}"]
    if isinstance(value, bytes):
        return "%s", ["\\x" + value.hex()]
    if isinstance(value, bool):
        return "%s", [str(int(value))]  # both bool and bit(1) are read as 0 and 1
    return "%s", [value if isinstance(value, str) else repr(value)]


class Judge:
    """One connection to the database that has the rows."""

    def __init__(self, dsn: str) -> None:
        self._connection = psycopg2.connect(dsn)
        self._connection.autocommit = True
        self._cursor = self._connection.cursor()
        self._refusals: dict[tuple[str, int, str], str] = {}
        for statement in SESSION:
            self._cursor.execute(statement)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def judge(
        self, table: Table, rows: Iterable[tuple[int, Row]], *, may_be_special: bool
    ) -> dict[str, Counts]:
        """Compare each row with the one of its id. `may_be_special`: values of the type itself may be in
        `source.special`.
        """
        counts = {column.name: Counts() for column in table.columns}
        has_equality = {c.name: self._has_equality(table.name, c.name) for c in table.columns}
        remaining = iter(rows)
        while chunk := list(islice(remaining, table.chunk)):
            self._chunk(table, chunk, has_equality, counts)
            if not may_be_special:
                self._needless(table, chunk, counts)
        return counts

    def _has_equality(self, table: str, column: str) -> bool:
        try:
            self._cursor.execute(f"select count({column} is not distinct from {column}) from {table}")
        except (psycopg2.errors.UndefinedFunction, psycopg2.errors.AmbiguousFunction):
            return False  # the type has no operator = of its own
        except psycopg2.errors.NumericValueOutOfRange:
            return False  # their = compares areas, which overflow
        return True

    def _chunk(
        self,
        table: Table,
        chunk: Sequence[tuple[int, Row]],
        has_equality: dict[str, bool],
        counts: dict[str, Counts],
    ) -> None:
        try:
            verdicts = self._compare(table, chunk, has_equality)
        except psycopg2.Error:
            if len(chunk) > 1:
                for one in chunk:
                    self._chunk(table, [one], has_equality, counts)
                return
            alone = [self._alone(table, chunk[0], has_equality, column) for column in table.columns]
            verdicts = [(chunk[0][0], alone)]
        assert len(verdicts) == len(chunk), f"{table.name}: rows that are not in the table"
        read = dict(chunk)
        for number, of_columns in verdicts:
            row = read[number]
            for column, verdict in zip(table.columns, of_columns, strict=True):
                found = counts[column.name]
                found.values += 1
                found.specials += column.name in row.special
                found.as_their_text += verdict == _AS_ITS_TEXT
                if verdict == _DIFFERS:
                    found.mismatches.append(self._shown(table, number, row, column))

    def _shown(self, table: Table, number: int, row: Row, column: Column) -> str:
        value = row.special.get(column.name, row.values[column.name])
        refused = self._refusals.get((table.name, number, column.name), "not equal")
        return f"{table.type_name} {column.name} id {number}: {refused}: {value!r:.300}"

    def _alone(
        self, table: Table, one: tuple[int, Row], has_equality: dict[str, bool], column: Column
    ) -> int:
        """Compare one column of one row, after the cast of the complete row failed."""
        try:
            ((_, (verdict,)),) = self._compare(replace(table, columns=(column,)), [one], has_equality)
        except psycopg2.Error as error:
            self._refusals[table.name, one[0], column.name] = str(error).partition("\n")[0]
            return _DIFFERS
        return int(verdict)

    def _compare(
        self, table: Table, chunk: Sequence[tuple[int, Row]], has_equality: dict[str, bool]
    ) -> list[Any]:
        lines, parameters = [], []
        for number, row in chunk:
            parts = [str(number)]
            for column in table.columns:
                if column.name in row.special:
                    assert row.values[column.name] is None
                    expression, parameter = f"(%s)::{column.kind.sql}", [row.special[column.name]]
                else:
                    expression, parameter = back(row.avro[column.name], row.values[column.name], column.kind)
                parts.append(expression)
                parameters += parameter
            lines.append(f"({', '.join(parts)})")
        names = ", ".join(column.name for column in table.columns)
        found = ", ".join(_verdict(column, has_equality[column.name]) for column in table.columns)
        self._cursor.execute(
            f"with read (id, {names}) as (values {', '.join(lines)})"
            f" select o.id, array[{found}] from {table.name} o join read using (id)",
            parameters,
        )
        return self._cursor.fetchall()

    def _needless(self, table: Table, chunk: Sequence[tuple[int, Row]], counts: dict[str, Counts]) -> None:
        """Count values in `source.special` that their Avro type could hold: scalars, and arrays of one dimension."""
        for name in counts.keys() - _MAY_ALSO_BE_SET:
            counts[name].needless += sum(name in row.special for _, row in chunk)
        special_ids = [number for number, row in chunk if "a" in row.special]
        if special_ids:
            self._cursor.execute(
                f"select count(*) from {table.name} where id = any(%s)"
                " and array_ndims(a) = 1 and array_lower(a, 1) = 1",
                (special_ids,),
            )
            counts["a"].needless += self._cursor.fetchall()[0][0]


def _verdict(column: Column, has_equality: bool) -> str:
    """Return the SQL for one of `_DIFFERS`, `_EQUAL`, `_AS_ITS_TEXT`."""
    there, read, sql = f"o.{column.name}", f"read.{column.name}", column.kind.sql
    # format() calls the output function; ::text of a char(n) would strip blanks. IS NULL is true of a row of nulls.
    same = f"num_nonnulls({there}) = num_nonnulls({read}) and format('%%s', {there}) = format('%%s', {read})"
    if not has_equality:
        return f"case when {same} then {_EQUAL} else {_DIFFERS} end"
    return (
        f"case when not ({same}) then {_DIFFERS} when {there} is not distinct from {read} then {_EQUAL}"
        f" when num_nonnulls({there}) = 1 and {there} is distinct from format('%%s', {there})::{sql}"
        f" then {_AS_ITS_TEXT} else {_DIFFERS} end"
    )
