"""The statements that read chunks of one table: after a key, by keys, by blocks. Pure text.

In: a table with its published columns and row filter (F41), the columns of its key, values as PostgreSQL's text.
Out: COPY statements; the key's values of a line that COPY has sent.
Invariant: rows are ordered and compared as in the key's unique index: by its operators, which are named with their
schema, and its collations. An order of another operator class or collation may count two keys as equal, and a chunk
that ends between them would lose one. Without its schema an operator may be another one: with search_path pg_catalog
`>` of citext is that of text.
Must not: connect, or execute. Values enter a statement as literals only, quoted here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from cdcd.errors import ProtocolError
from cdcd.model import KeyValues
from cdcd.snapshot.copy_rows import line_values
from cdcd.snapshot.units import CopiedTable

# Of several such indexes any one is right. A null is behind no key, so that its row would be in no chunk. indclass,
# indcollation and indkey count from 0. The operators of a btree index have the strategies 1 (<), 3 (=), 4 (>=) and 5
# (>); text_pattern_ops has other names for them.
KEY_COLUMNS = """
    SELECT a.attname::text, tn.nspname::text, t.typname::text, cn.nspname::text, c.collname::text,
           ARRAY(SELECT ARRAY[opn.nspname::text, o.oprname::text]
                 FROM pg_amop ao JOIN pg_operator o ON o.oid = ao.amopopr
                 JOIN pg_namespace opn ON opn.oid = o.oprnamespace
                 WHERE ao.amopfamily = oc.opcfamily AND ao.amoplefttype = oc.opcintype
                   AND ao.amoprighttype = oc.opcintype AND ao.amopstrategy IN (1, 3, 4, 5)
                 ORDER BY ao.amopstrategy)
    FROM (SELECT i.* FROM pg_index i JOIN pg_class ic ON ic.oid = i.indexrelid JOIN pg_am am ON am.oid = ic.relam
          WHERE i.indrelid = %(relid)s AND i.indisunique AND i.indisvalid AND i.indimmediate AND am.amname = 'btree'
            AND i.indexprs IS NULL AND i.indpred IS NULL
            AND NOT EXISTS (SELECT FROM pg_attribute na
                            WHERE na.attrelid = i.indrelid AND NOT na.attnotnull
                              AND na.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1]))
            AND (SELECT array_agg(ka.attname::text ORDER BY ka.attname::text)
                 FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, place)
                 JOIN pg_attribute ka ON ka.attrelid = i.indrelid AND ka.attnum = k.attnum
                 WHERE k.place <= i.indnkeyatts)
                = (SELECT array_agg(name ORDER BY name) FROM unnest(%(columns)s::text[]) AS wanted(name))
          ORDER BY i.indexrelid LIMIT 1) i
    CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, place)
    JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
    JOIN pg_type t ON t.oid = a.atttypid JOIN pg_namespace tn ON tn.oid = t.typnamespace
    JOIN pg_opclass oc ON oc.oid = i.indclass[k.place - 1]
    LEFT JOIN pg_collation c ON c.oid = i.indcollation[k.place - 1]
    LEFT JOIN pg_namespace cn ON cn.oid = c.collnamespace
    WHERE k.place <= i.indnkeyatts
    ORDER BY k.place
"""
"""Parameters: relid, columns (names, in any order). Rows: those of `key_columns`, none without such an index."""

QualifiedName = tuple[str, str]
"""A schema, and a name in it."""


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """A column of the key's index. `collation` is the index's, None for a type that has none."""

    name: str
    type: QualifiedName
    collation: QualifiedName | None
    less: QualifiedName
    equal: QualifiedName
    at_least: QualifiedName
    greater: QualifiedName


def key_columns(rows: Iterable[Sequence[Any]]) -> tuple[KeyColumn, ...]:
    """Return the columns of `KEY_COLUMNS`' result, in the order of the index."""
    columns = []
    for name, type_schema, type_name, collation_schema, collation, operators in rows:
        names = [(schema, operator) for schema, operator in operators]
        collated = None if collation is None else (collation_schema, collation)
        columns.append(KeyColumn(name, (type_schema, type_name), collated, *names))
    return tuple(columns)


def rows_after(table: CopiedTable, key: Sequence[KeyColumn], after: KeyValues | None, limit: int) -> str:
    """Return the COPY of the next `limit` rows after a key, in the key's order; None: of the first rows.

    Fewer rows than `limit` are the last ones of the table.
    """
    condition = () if after is None else (_is_after(key, after),)
    order = ", ".join(f"{_collated(column)} USING {_operator(column.less)}" for column in key)
    return _copy(table, condition, f" ORDER BY {order} LIMIT {limit:d}")


def rows_of_keys(table: CopiedTable, key: Sequence[KeyColumn], keys: Iterable[KeyValues]) -> str:
    """Return the COPY of the rows of at least one key."""
    either = " OR ".join(f"({_is_equal(key, values)})" for values in keys)
    if not either:
        raise ValueError("a chunk by keys has at least one key")
    return _copy(table, (either,))


def rows_of_blocks(
    table: CopiedTable, first_block: int, end_block: int | None, leaf: QualifiedName | None = None
) -> str:
    """Return the COPY of the rows in these blocks of a file; `end_block` None: of all further blocks.

    `leaf`: the partition that has the file, None if the table itself has it. Reads only these blocks from PostgreSQL
    14 on, and the whole table before.
    """
    if table.is_partitioned and leaf is None:
        raise ValueError("a partitioned table has no blocks")
    condition = [f"ctid OPERATOR(pg_catalog.>=) '({first_block:d},0)'::pg_catalog.tid"]
    if end_block is not None:
        condition.append(f"ctid OPERATOR(pg_catalog.<) '({end_block:d},0)'::pg_catalog.tid")
    return _copy(table, condition, leaf=leaf)


def key_of_line(table: CopiedTable, key: Sequence[KeyColumn], line: bytes) -> KeyValues:
    """Return the key of a row as COPY has sent it, without its newline: the next `after`. Raises ProtocolError."""
    values = line_values(table.relid, line, len(table.selected))
    found: list[str] = []
    for column in key:
        value = values[table.selected.index(column.name)]
        if value is None:
            raise ProtocolError("a column of the key is null", relid=table.relid)
        try:
            found.append(value.decode())
        except UnicodeDecodeError:
            raise ProtocolError("a key is not in UTF-8", relid=table.relid) from None
    return tuple(found)


def _copy(
    table: CopiedTable, conditions: Iterable[str], rest: str = "", leaf: QualifiedName | None = None
) -> str:
    columns = ", ".join(map(_identifier, table.selected))
    source = _qualified(leaf or (table.schema, table.name))
    filters = [
        text for text in (table.row_filter, table.where) if text
    ]  # the first is the server's own expression
    everything = " AND ".join(f"({one})" for one in (*filters, *conditions))
    where = f" WHERE {everything}" if everything else ""
    only = "" if table.is_partitioned and leaf is None else "ONLY "
    return f"COPY (SELECT {columns} FROM {only}{source}{where}{rest}) TO STDOUT"  # noqa: S608 - quoted


def _is_after(key: Sequence[KeyColumn], after: KeyValues) -> str:
    """Return the condition that a row is behind a key."""
    literals = [_literal(column, value) for column, value in zip(key, after, strict=True)]
    if len({column.greater for column in key}) == 1:
        left, right = ", ".join(map(_collated, key)), ", ".join(literals)
        if len(key) == 1:
            return f"{left} {_operator(key[0].greater)} {right}"
        return f"ROW({left}) {_operator(key[0].greater)} ROW({right})"
    # A comparison of rows has one operator name for all columns, and these have operators in several schemas. The
    # server uses the index for the first condition, which follows from the second.
    condition = ""
    for column, literal in reversed(list(zip(key, literals, strict=True))):
        is_after = f"{_collated(column)} {_operator(column.greater)} {literal}"
        is_same = f"{_collated(column)} {_operator(column.equal)} {literal}"
        condition = f"{is_after} OR ({is_same} AND ({condition}))" if condition else is_after
    return f"{_collated(key[0])} {_operator(key[0].at_least)} {literals[0]} AND ({condition})"


def _is_equal(key: Sequence[KeyColumn], values: KeyValues) -> str:
    pairs = zip(key, values, strict=True)
    return " AND ".join(
        f"{_collated(column)} {_operator(column.equal)} {_literal(column, value)}" for column, value in pairs
    )


def _collated(column: KeyColumn) -> str:
    return _identifier(column.name) + _collation(column)


def _collation(column: KeyColumn) -> str:
    return "" if column.collation is None else f" COLLATE {_qualified(column.collation)}"


def _literal(column: KeyColumn, value: str) -> str:
    """Return a value of the column's type, without a length: a cast to char(n) would cut it."""
    return f"{_quoted(value)}::{_qualified(column.type)}{_collation(column)}"


def _quoted(value: str) -> str:
    """Return a literal that is the same with any standard_conforming_strings."""
    doubled = value.replace("'", "''")
    return "E'" + doubled.replace("\\", "\\\\") + "'" if "\\" in doubled else f"'{doubled}'"


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _qualified(name: QualifiedName) -> str:
    return f"{_identifier(name[0])}.{_identifier(name[1])}"


def _operator(name: QualifiedName) -> str:
    return f"OPERATOR({_identifier(name[0])}.{name[1]})"
