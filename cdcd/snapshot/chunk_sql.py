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

from cdcd.errors import ProtocolError
from cdcd.model import KeyValues
from cdcd.snapshot.copy_rows import line_values
from cdcd.snapshot.key_sql import (
    BASE_TYPE,
    DESCRIBED,
    KeyColumn,
    QualifiedName,
    identifier,
    operator,
    qualified,
)
from cdcd.snapshot.units import CopiedTable

_NO_TEXT_HINT = (
    "a text in the table's key cannot be converted to UTF-8 (possible in a database in SQL_ASCII): correct the "
    "text in the table. cdcd then continues; if it has halted, run `cdcd resume`"
)

# Of several such indexes any one is right. A null is behind no key, so that its row would be in no chunk. indclass,
# indcollation and indkey count from 0.
KEY_COLUMNS = f"""
    SELECT {DESCRIBED}
    FROM (SELECT i.* FROM pg_index i JOIN pg_class ic ON ic.oid = i.indexrelid JOIN pg_am am ON am.oid = ic.relam
          WHERE i.indrelid = %(relid)s AND i.indisunique AND i.indisvalid AND i.indimmediate AND am.amname = 'btree'
            AND i.indexprs IS NULL AND i.indpred IS NULL
            AND NOT EXISTS (SELECT FROM pg_attribute na
                            WHERE na.attrelid = i.indrelid AND NOT na.attnotnull
                              AND na.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1]))
            AND NOT EXISTS (SELECT FROM pg_constraint nc
                            WHERE nc.conrelid = i.indrelid AND nc.contype = 'n' AND NOT nc.convalidated
                              AND nc.conkey[1] = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1]))
            AND (SELECT array_agg(ka.attname::text ORDER BY ka.attname::text)
                 FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, place)
                 JOIN pg_attribute ka ON ka.attrelid = i.indrelid AND ka.attnum = k.attnum
                 WHERE k.place <= i.indnkeyatts)
                = (SELECT array_agg(name ORDER BY name) FROM unnest(%(columns)s::text[]) AS wanted(name))
          ORDER BY i.indexrelid LIMIT 1) i
    CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, place)
    JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
    JOIN pg_type t ON t.oid = {BASE_TYPE} JOIN pg_namespace tn ON tn.oid = t.typnamespace
    JOIN pg_opclass oc ON oc.oid = i.indclass[k.place - 1]
    LEFT JOIN pg_collation cl ON cl.oid = i.indcollation[k.place - 1]
    LEFT JOIN pg_namespace cn ON cn.oid = cl.collnamespace
    WHERE k.place <= i.indnkeyatts
    ORDER BY k.place
"""  # noqa: S608 - a constant
"""Parameters: relid, columns (names, in any order). Rows: those of `key_columns`, none without such an index."""


def rows_after(table: CopiedTable, key: Sequence[KeyColumn], after: KeyValues | None, limit: int) -> str:
    """Return the COPY of the next `limit` rows after a key, in the key's order; None: of the first rows.

    `after` may have the first columns only: the rows with these values were read. Fewer rows than `limit` are the
    last ones of the table.
    """
    condition = () if after is None else (_is_after(key, after),)
    order = ", ".join(f"{column.collated} USING {operator(column.less)}" for column in key)
    return _copy(table, condition, f" ORDER BY {order} LIMIT {limit:d}")


def no_rows(table: CopiedTable, key: Sequence[KeyColumn]) -> str:
    """Return a query that needs every privilege of a chunk, and returns no row.

    USAGE on the schemas of the key's types and operators, too, which reading the table does not need.
    """
    columns = ", ".join(map(identifier, table.selected))
    condition = " AND ".join(column.comparison(column.greater, None) for column in key)
    order = ", ".join(f"{column.collated} USING {operator(column.less)}" for column in key)
    only = "" if table.is_partitioned else "ONLY "
    source = f"{only}{qualified((table.schema, table.name))}"
    return f"SELECT {columns} FROM {source} WHERE {condition} ORDER BY {order} LIMIT 0"  # noqa: S608 - quoted


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
            raise ProtocolError("a key is not in UTF-8", hint=_NO_TEXT_HINT, relid=table.relid) from None
    return tuple(found)


def _copy(
    table: CopiedTable, conditions: Iterable[str], rest: str = "", leaf: QualifiedName | None = None
) -> str:
    columns = ", ".join(map(identifier, table.selected))
    source = qualified(leaf or (table.schema, table.name))
    filters = [
        text for text in (table.row_filter, table.where) if text
    ]  # the first is the server's own expression
    everything = " AND ".join(f"({one})" for one in (*filters, *conditions))
    where = f" WHERE {everything}" if everything else ""
    only = "" if table.is_partitioned and leaf is None else "ONLY "
    # As in condition.py: a condition may name the columns of a partition by the table's name.
    source += f" AS {identifier(table.name)}" if table.is_partitioned else ""
    return f"COPY (SELECT {columns} FROM {only}{source}{where}{rest}) TO STDOUT"  # noqa: S608 - quoted


def _is_after(key: Sequence[KeyColumn], after: KeyValues) -> str:
    """Return the condition that a row is behind a key, or behind all rows with these values of its first columns."""
    pairs = list(zip(key, after, strict=False))
    first, least = pairs[0]
    if len(pairs) == 1:
        return first.comparison(first.greater, least)
    if len({column.greater for column, _ in pairs}) == 1:
        left = ", ".join(column.collated for column, _ in pairs)
        right = ", ".join(column.literal(value) for column, value in pairs)
        return f"ROW({left}) {operator(first.greater)} ROW({right})"
    # A comparison of rows has one operator name for all columns, and these have operators in several schemas. The
    # server uses the index for the first condition, which follows from the second.
    condition = ""
    for column, value in reversed(pairs):
        is_after, is_same = column.comparison(column.greater, value), column.comparison(column.equal, value)
        condition = f"{is_after} OR ({is_same} AND ({condition}))" if condition else is_after
    return f"{first.comparison(first.at_least, least)} AND ({condition})"


def _is_equal(key: Sequence[KeyColumn], values: KeyValues) -> str:
    pairs = zip(key, values, strict=True)
    return " AND ".join(column.comparison(column.equal, value) for column, value in pairs)
