"""The statements by which PostgreSQL computes the digests of a table. Pure text.

In: the table as the snapshot has it, a part of its rows.  Out: SQL: sums by bucket, or the hashes of rows.
Invariant: the text of a value is the one that its type's output function returns, as in the stream, and the hash is
that of `cdcd.verify.hashes`. Only published columns and rows are read (F41).
Must not: connect, or execute; contain a value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cdcd.snapshot.key_sql import identifier
from cdcd.verify.fold import BUCKETS
from cdcd.verify.hashes import as_bigint
from cdcd.verify.records import ComparedTable

_CAST_IS_OUTPUT = frozenset(
    {"int2", "int4", "int8", "oid", "text", "varchar", "numeric", "float4", "float8", "date", "time", "timetz",
     "timestamp", "timestamptz", "interval", "uuid", "json", "jsonb", "bytea"}
)  # fmt: skip
"""Types for which a cast to text is the output function, and cheaper than `format`."""
_SHARE = 1 << 16


class Part(NamedTuple):
    """Rows that one statement reads. `relation`: quoted SQL, with ONLY; `condition`: of the blocks, None for all."""

    relation: str
    condition: str | None


def sums_of(table: ComparedTable, part: Part, row_filter: str | None) -> str:
    """Return the statement of the sums: bucket, number of rows, the sum of each column's hashes as text."""
    sums = ", ".join(f"coalesce(sum({_hash(table, n)}), 0)::text" for n in range(len(table.columns)))
    shift = 64 - (BUCKETS.bit_length() - 1)
    return (
        f"SELECT ((k >> {shift}) & {BUCKETS - 1})::int4, count(*){', ' if sums else ''}{sums}"  # noqa: S608 - quoted
        f" FROM ({_rows(table, part, row_filter)}) r{_share(table)} GROUP BY 1"
    )


def rows_of(
    table: ComparedTable, part: Part, row_filter: str | None, buckets: Sequence[int], *, with_key: bool
) -> str:
    """Return the statement of rows of some buckets: two hashes of the key, those of the columns, the key's text."""
    hashes = "".join(f", coalesce({_hash(table, n)}, 0)" for n in range(len(table.columns)))
    shift = 64 - (BUCKETS.bit_length() - 1)
    chosen = f"((k >> {shift}) & {BUCKETS - 1}) = ANY ('{{{','.join(map(str, buckets))}}}'::int8[])"
    condition = f"{_share(table)} AND {chosen}" if _share(table) else f" WHERE {chosen}"
    key = ", key" if with_key else ""
    return f"SELECT k, k2{hashes}{key} FROM ({_rows(table, part, row_filter)}) r{condition}"  # noqa: S608 - quoted


def _rows(table: ComparedTable, part: Part, row_filter: str | None) -> str:
    """Return the rows with their keys' hashes. OFFSET 0: the hashes are computed once a row."""
    columns = "".join(f", {identifier(one.name)} AS c{n}" for n, one in enumerate(table.columns))
    conditions = [f"({one})" for one in (row_filter, part.condition) if one]
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    inner = f"SELECT {_key(table)} AS key{columns} FROM {part.relation} AS {identifier(table.name)}{where}"  # noqa: S608
    hashed = ", ".join(f"hashtextextended(key, {seed}) AS {name}" for seed, name in ((0, "k"), (1, "k2")))
    passed = "".join(f", c{n}" for n in range(len(table.columns)))
    return f"SELECT key, {hashed}{passed} FROM ({inner} OFFSET 0) i OFFSET 0"  # noqa: S608 - quoted


def _share(table: ComparedTable) -> str:
    if table.share == _SHARE:
        return ""
    return f" WHERE (((k2 >> 48) - {table.first}) & {_SHARE - 1}) < {table.share}"


def _key(table: ComparedTable) -> str:
    texts = [_text(table, number, identifier(table.columns[number].name)) for number in table.key]
    if len(texts) == 1:
        return f'{texts[0]} COLLATE "C"'
    sized = (
        f"CASE WHEN num_nonnulls({identifier(table.columns[number].name)}) = 0 THEN '-:'"
        f" ELSE octet_length({text})::text || ':' || {text} END"
        for number, text in zip(table.key, texts, strict=True)
    )
    return f'({" || ".join(sized)}) COLLATE "C"'


def _text(table: ComparedTable, number: int, value: str) -> str:
    if table.columns[number].type_name in _CAST_IS_OUTPUT:
        return f"{value}::text"
    return f"format('%s', {value})"


def _hash(table: ComparedTable, number: int) -> str:
    """Return the hash of a column. A row of nulls IS NULL without being one, so nulls are counted."""
    text = _text(table, number, f"c{number}")
    hashed = f'hashtextextended(({text}) COLLATE "C", k # ({as_bigint(table.constants[number])}))'
    if table.columns[number].type_name in _CAST_IS_OUTPUT:
        return hashed  # of a null it is null
    return f"CASE WHEN num_nonnulls(c{number}) = 1 THEN {hashed} END"
