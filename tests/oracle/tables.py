"""For each type a table with a column of the type and columns of all types derived from it.

In: a type, its literals, the server.  Out: a `Table`: DDL, columns with a literal for each row.
Columns: v the type, a its array of many shapes, d a domain, e its array, o a domain over the array, n its array, c a
composite, h its array, and if the type has an order: r a range, s its array, m a multirange, u its array.
Row 0 is null in every column.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg2

from tests.oracle.kinds import (
    Column,
    DeclaredType,
    Table,
    array,
    composite,
    composite_literal,
    domain,
    kind_of,
    quoted,
)
from tests.oracle.literals import ONLY_AS_TEXT, UNCASTABLE, Execute

SHAPES = (
    "{{{0}{d}{1}}}", "{{}}", "{{{0}{d}NULL{d}{1}}}", "{{NULL}}", "{{{{{0}{d}NULL}}{d}{{NULL{d}{1}}}}}",
    "[-3:-2][5:5]={{{{{0}}}{d}{{{1}}}}}", "[0:1]={{{0}{d}{1}}}", "{{{{{{{0}}}}}{d}{{{{{1}}}}}}}", "{{{0}}}",
    "{{{1}{d}{0}{d}{1}}}",
)  # fmt: skip
"""Arrays of two quoted values and a delimiter `d`."""


def table_of(
    number: int, type_name: str, literals: Sequence[str], major: int, execute: Execute, *, by_text: bool
) -> Table:
    """Return the table of one type; create the types of its columns at once."""
    v = kind_of(type_name)
    d, n = domain(f"dom{number}", v), domain(f"many{number}", array(v))
    c = composite(f"held{number}", v, array(v), DeclaredType("int4"))
    execute(f"create domain {d.sql} as {type_name}")
    execute(f"create domain {n.sql} as {type_name}[]")
    execute(f"create type {c.sql} as (a {type_name}, b {type_name}[], c int)")
    arrays = _arrays(literals, _delimiter(execute, type_name))
    held = [
        composite_literal((None if i % 7 == 3 else one, arrays[i - 1], None if i % 5 else str(i)))
        for i, one in enumerate(literals)
    ]
    columns = [
        Column("v", v, [*literals]),
        Column("a", array(v), [*arrays]),
        Column("d", d, [*literals]),
        Column("o", n, [*arrays]),
        Column("e", array(d), [*_arrays(literals, _delimiter(execute, d.sql))]),
        Column("n", array(n), [*_arrays(arrays, _delimiter(execute, n.sql))]),
        Column("c", c, [*held]),
        Column("h", array(c), [*_arrays(held, ",")]),
    ]
    if _has_ranges(execute, number, type_name, major):
        columns += _ranges(number, literals, _rising(execute, type_name, literals), major)
    rows = tuple(Column(one.name, one.kind, [None, *one.literals]) for one in columns)
    # The server itself sends no array or composite of a type without a send function.
    has_send = bool(execute("select typsend <> 0 from pg_type where oid = %s::regtype", type_name)[0][0])
    return Table(f"t{number}", type_name, rows, by_text or not has_send)


def _delimiter(execute: Execute, type_name: str) -> str:
    return str(execute("select typdelim::text from pg_type where oid = %s::regtype", type_name)[0][0])


def _arrays(literals: Sequence[str], delimiter: str) -> list[str]:
    made = []
    for number, one in enumerate(literals):
        shape = SHAPES[number % len(SHAPES)]
        made.append(shape.format(quoted(one), quoted(literals[number - 1]), d=delimiter))
    return made


def _has_ranges(execute: Execute, number: int, type_name: str, major: int) -> bool:
    """Create the range type, if the type has an order."""
    named = f", multirange_type_name = spans{number}" if major >= 14 else ""
    try:
        execute(f"create type span{number} as range (subtype = {type_name}{named})")
    except psycopg2.Error:
        return False
    return True


def _rising(execute: Execute, type_name: str, literals: Sequence[str]) -> list[bool]:
    """Return, for each value and its predecessor, whether they are in ascending order. The type's input function
    casts each.
    """
    execute("drop table if exists pairs")
    execute(f"create temporary table pairs (o int, low {type_name}, high {type_name})")
    pairs = [(number, literals[number - 1], one) for number, one in enumerate(literals)]
    rows = ", ".join([f"(%s, %s::{type_name}, %s::{type_name})"] * len(pairs))
    execute(f"insert into pairs values {rows}", *(part for pair in pairs for part in pair))
    # As records, because their comparison uses the type's order, not an operator named <= (hstore has another one).
    compared = "select row(low)::record <= row(high)::record from pairs order by o"
    return [one for (one,) in execute(compared)]


def _ranges(number: int, literals: Sequence[str], rising: Sequence[bool], major: int) -> list[Column]:
    ranges, multiranges = [], []
    for place, (one, is_rising) in enumerate(zip(literals, rising, strict=True)):
        low, high = (literals[place - 1], one) if is_rising else (one, literals[place - 1])
        forms = (f"[{quoted(low)},{quoted(high)}]", f"[{quoted(one)},{quoted(one)}]", f"({quoted(one)},)",
                 f"(,{quoted(one)}]", f"[{quoted(low)},{quoted(high)})", "empty" if place % 2 else "(,)")  # fmt: skip
        ranges.append(forms[place % len(forms)])
        parts = (f"[{quoted(low)},{quoted(low)}],({quoted(high)},)", forms[0], "", f"(,{quoted(low)})")
        multiranges.append(f"{{{parts[place % len(parts)]}}}")
    r, m = DeclaredType(f"span{number}"), DeclaredType(f"spans{number}")
    made = [Column("r", r, [*ranges]), Column("s", array(r), [*_arrays(ranges, ",")])]
    if major >= 14:
        made += [Column("m", m, [*multiranges]), Column("u", array(m), [*_arrays(multiranges, ",")])]
    return made


def uncastable(number: int) -> list[Table]:
    """Return the types to which no value can be cast: their text is compared."""
    return [
        Table(
            f"t{number + place}",
            name,
            (Column("v", DeclaredType("text")),),
            by_text=name in ONLY_AS_TEXT,
            filled_by=f"select {place}, v from ({query}) s(v)",
        )
        for place, (name, query) in enumerate(UNCASTABLE.items())
    ]


LONG = {
    "text": "repeat('x☕', n / 4)",
    "bytea": "decode(repeat('5c00', n / 2), 'hex')",
    "jsonb": "to_jsonb(repeat('\u00e9\"', n / 4))",
    "xml": "('<a>' || repeat('y', n - 7) || '</a>')::xml",
    "varbit": "repeat('1', n)::varbit",
    "int4[]": "array_fill(-1, array[n / 4])",
    "text[]": "array_fill('a \"b'::text, array[n / 8])",
    "numeric": "(repeat('9', least(n, 131072)) || '.' || repeat('7', least(n / 8, 16383)))::numeric",
    "numeric[]": "array[('-' || repeat('9', least(n, 131072)))::numeric, null]",
    "path": "(select path(polygon(1 + n / 40, circle '<(0,0),1>')))",
    "bit varying[]": "array[repeat('01', n / 2)::varbit]",
}
"""Values of about n bytes of text: the limits of numeric, and of what one record of Kafka takes by default."""
SIZES = (127, 128, 2047, 2048, 8191, 8192, 16383, 16384, 65535, 65536, 262144, 524288, 900000)


def long_values(number: int) -> Table:
    """Return a table whose rows have one long value each."""
    kinds = [array(DeclaredType(name[:-2])) if name.endswith("[]") else DeclaredType(name) for name in LONG]
    columns = tuple(Column(f"l{place}", kind) for place, kind in enumerate(kinds))
    filled = " union all ".join(
        f"select n, {', '.join(made if other == name else f'null::{other}' for other in LONG)}"
        f" from unnest(array{list(SIZES)}) n"
        for name, made in LONG.items()
    )
    return Table(f"t{number}", "long values", columns, filled_by=filled, chunk=2)


def fill(cursor: Any, table: Table) -> None:
    """Create `staged.<name>` and `<name>`, and insert all rows into the first."""
    if table.filled_by:
        names = ", ".join(column.name for column in table.columns)
        cursor.execute(
            f"create table staged.{table.name} as select (row_number() over ())::int as id, {names}"
            f" from ({table.filled_by}) s(n, {names})"
        )
        cursor.execute(f"create table {table.name} (like staged.{table.name}, primary key (id))")
        return
    described = ", ".join(f"{one.name} {one.kind.sql}" for one in table.columns)
    cursor.execute(f"create table staged.{table.name} (id int primary key, {described})")
    cursor.execute(f"create table {table.name} (id int primary key, {described})")
    row = f"(%s, {', '.join(f'%s::{one.kind.sql}' for one in table.columns)})"
    rows = list(enumerate(zip(*(one.literals for one in table.columns), strict=True)))
    for first in range(0, len(rows), 50):
        made = ", ".join(
            cursor.mogrify(row, (number, *parts)).decode() for number, parts in rows[first : first + 50]
        )
        cursor.execute(f"insert into staged.{table.name} values {made}")
