"""Compare a mirror with its source table, by the values that PostgreSQL itself returns.

In: a connection to the source, a table, and the mirror's rows as Arrow (None when there is no mirror).
Out: a `TableOutcome`: equal or not, the numbers of rows, and a readable difference.
Invariant: the mirror's rows are loaded back into PostgreSQL and compared there as `ROW(...)::text`, in both
directions, with EXCEPT ALL, so that duplicates count and PostgreSQL decides on equality. The difference shows only
values of keys.
Must not: change the source; the rows are loaded into a temporary table of a transaction that is rolled back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg2
import psycopg2.errors
import psycopg2.extensions
from psycopg2 import sql

from cdcd.demo.copy_text import CopyFile
from cdcd.demo.render import NotComparable, column_texts

SPECIAL = "__special"
"""The mirror's column of values outside their Arrow type's range: column name -> the server's exact text."""

EXAMPLES = 5


@dataclass(frozen=True, slots=True)
class TableOutcome:
    """The result of comparing one table. `differences` is empty exactly if mirror and source are equal."""

    table: str
    source_rows: int
    mirror_rows: int
    differences: tuple[str, ...] = ()

    @property
    def is_equal(self) -> bool:
        """Whether the mirror equals the source."""
        return not self.differences


@dataclass(frozen=True, slots=True)
class _Column:
    name: str
    pg_type: str  # for an array, of the element


class _Refused(Exception):
    """The mirror cannot be loaded; the message has the reason, without values."""


def compare_table(
    connection: psycopg2.extensions.connection, schema: str, table: str, mirror: Any | None
) -> TableOutcome:
    """Compare one table with its mirror, a `pyarrow.Table`. The connection must not be in a transaction."""
    name = f"{schema}.{table}"
    with connection.cursor() as cursor:
        try:
            cursor.execute("SET LOCAL timezone = 'UTC'; SET LOCAL extra_float_digits = 3;")
            cursor.execute("SET LOCAL datestyle = 'ISO, YMD'; SET LOCAL work_mem = '128MB'")
            source = sql.Identifier(schema, table)
            source_rows = _number(cursor, sql.SQL("SELECT count(*) FROM {}").format(source))
            mirror_rows = 0 if mirror is None else int(mirror.num_rows)
            if mirror is None:
                missing = (f"there is no mirror of its {source_rows} rows",) if source_rows else ()
                return TableOutcome(name, source_rows, 0, missing)
            try:
                _load_back(cursor, source, _columns(cursor, schema, table), mirror)
            except _Refused as refusal:
                return TableOutcome(name, source_rows, mirror_rows, (str(refusal),))
            differences = _differences(cursor, source, _key(cursor, schema, table))
            return TableOutcome(name, source_rows, mirror_rows, differences)
        finally:
            connection.rollback()


def report(outcomes: list[TableOutcome]) -> list[str]:
    """Return the readable differences of all tables as lines."""
    lines = []
    for outcome in outcomes:
        if outcome.is_equal:
            continue
        lines.append(
            f"{outcome.table}: {outcome.source_rows} rows in the source, {outcome.mirror_rows} in the mirror"
        )
        lines.extend(f"    {difference}" for difference in outcome.differences)
    return lines


# --- loading the mirror back


def _load_back(
    cursor: psycopg2.extensions.cursor, source: sql.Composable, columns: list[_Column], mirror: Any
) -> None:
    names = {column.name for column in columns}
    in_mirror = {name for name in mirror.column_names if not name.startswith("__")}
    if in_mirror != names:
        lacking, more = sorted(names - in_mirror), sorted(in_mirror - names)
        raise _Refused(
            f"other columns: the mirror lacks {lacking or 'none'} and has the additional columns {more or 'none'}"
        )
    # as a query: LIKE would copy NOT NULL, and a wrong null in the mirror has to be shown, not refused
    cursor.execute(sql.SQL("CREATE TEMP TABLE mirrored AS SELECT * FROM {} WITH NO DATA").format(source))
    into = sql.SQL("COPY mirrored ({}) FROM STDIN").format(
        sql.SQL(", ").join(sql.Identifier(column.name) for column in columns)
    )
    incomparable: list[NotComparable] = []  # psycopg2 replaces an exception of the file by its own error
    try:
        cursor.copy_expert(into.as_string(cursor), CopyFile(_mirror_rows(mirror, columns, incomparable)))
    except psycopg2.errors.QueryCanceled:
        if not incomparable:
            raise
        raise _Refused(str(incomparable[0])) from None
    except psycopg2.DataError as error:
        where = (error.diag.context or "").splitlines()[:1]
        place = where[0].split(': "')[0] if where else ""
        raise _Refused(f"PostgreSQL refuses a value of the mirror: {error.pgcode} at {place}") from None


def _mirror_rows(
    mirror: Any, columns: list[_Column], incomparable: list[NotComparable]
) -> Iterator[list[str | None]]:
    try:
        for batch in mirror.to_batches(max_chunksize=10_000):
            yield from _batch_rows(batch, columns)
    except NotComparable as error:
        incomparable.append(error)
        raise


def _batch_rows(batch: Any, columns: list[_Column]) -> Iterator[list[str | None]]:
    texts = [column_texts(batch.column(column.name), column.pg_type) for column in columns]
    specials = batch.column(SPECIAL).to_pylist() if SPECIAL in batch.schema.names else [None] * len(batch)
    for number, special in enumerate(specials):
        row = [values[number] for values in texts]
        if special:
            _put_special(row, columns, dict(special))
        yield row


def _put_special(row: list[str | None], columns: list[_Column], special: dict[str, str]) -> None:
    for place, column in enumerate(columns):
        if column.name in special:
            if row[place] is not None:
                raise NotComparable(f"column {column.name} has a value and an entry in {SPECIAL}")
            row[place] = special.pop(column.name)
    if special:
        raise NotComparable(f"{SPECIAL} has entries for columns that do not exist: {sorted(special)}")


# --- finding and telling the difference


def _differences(
    cursor: psycopg2.extensions.cursor, source: sql.Composable, key: tuple[str, ...]
) -> tuple[str, ...]:
    mirrored = sql.Identifier("mirrored")
    only_source = _only_in(cursor, "only_source", source, mirrored)
    only_mirror = _only_in(cursor, "only_mirror", mirrored, source)
    if not only_source and not only_mirror:
        return ()
    if not key:
        return (
            f"{only_source} rows are only in the source, {only_mirror} only in the mirror (no key to name them)",
        )
    keys = sql.SQL(", ").join(map(sql.Identifier, key))
    for name, relation in (("only_source", source), ("only_mirror", mirrored)):
        cursor.execute(
            sql.SQL(
                'CREATE TEMP TABLE {} AS SELECT DISTINCT {} FROM {} t WHERE (ROW(t.*)::text COLLATE "C") IN'
                " (SELECT line FROM {})"
            ).format(sql.Identifier(name + "_keys"), keys, relation, sql.Identifier(name))
        )
    return (
        *_keys_of(cursor, "rows are missing from the mirror", key, "only_source_keys", "only_mirror_keys"),
        *_keys_of(cursor, "rows are only in the mirror", key, "only_mirror_keys", "only_source_keys"),
        *_altered(cursor, source, key),
    )


def _only_in(
    cursor: psycopg2.extensions.cursor, name: str, here: sql.Composable, there: sql.Composable
) -> int:
    line = 'ROW(t.*)::text COLLATE "C" AS line'
    cursor.execute(
        sql.SQL("CREATE TEMP TABLE {} AS SELECT {line} FROM {} t EXCEPT ALL SELECT {line} FROM {} t").format(
            sql.Identifier(name), here, there, line=sql.SQL(line)
        )
    )
    return _number(cursor, sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(name)))


def _keys_of(
    cursor: psycopg2.extensions.cursor, what: str, key: tuple[str, ...], here: str, there: str
) -> Iterator[str]:
    keys = sql.SQL(", ").join(map(sql.Identifier, key))
    query = sql.SQL("SELECT {} FROM {} EXCEPT SELECT {} FROM {}").format(
        keys, sql.Identifier(here), keys, sql.Identifier(there)
    )
    count = _number(cursor, sql.SQL("SELECT count(*) FROM ({}) x").format(query))
    if count:
        cursor.execute(
            sql.SQL("SELECT ROW(x.*)::text FROM ({}) x ORDER BY 1 LIMIT %s").format(query), (EXAMPLES,)
        )
        yield f"{count} {what}: ({', '.join(key)}) = " + ", ".join(str(row[0]) for row in cursor.fetchall())


def _altered(
    cursor: psycopg2.extensions.cursor, source: sql.Composable, key: tuple[str, ...]
) -> Iterator[str]:
    keys = sql.SQL(", ").join(map(sql.Identifier, key))
    both = sql.SQL("SELECT {k} FROM only_source_keys INTERSECT SELECT {k} FROM only_mirror_keys").format(
        k=keys
    )
    count = _number(cursor, sql.SQL("SELECT count(*) FROM ({}) x").format(both))
    if not count:
        return
    yield f"{count} rows differ, in the columns:"
    cursor.execute(sql.SQL("SELECT * FROM {} LIMIT 0").format(source))
    columns = [description.name for description in cursor.description or ()]
    changed = sql.SQL(", ").join(
        sql.SQL("CASE WHEN s.{c}::text IS DISTINCT FROM m.{c}::text THEN {n} END").format(
            c=sql.Identifier(column), n=sql.Literal(column)
        )
        for column in columns
    )
    cursor.execute(
        sql.SQL(
            "SELECT ROW({})::text, array_to_string(ARRAY[{}], ', ') FROM ({} LIMIT %s) x"
            " JOIN {} s USING ({k}) JOIN mirrored m USING ({k}) ORDER BY 1"
        ).format(keys, changed, both, source, k=keys),
        (EXAMPLES,),
    )
    for key_text, names in cursor.fetchall():
        yield f"    ({', '.join(key)}) = {key_text}: {names}"


# --- the catalog


def _columns(cursor: psycopg2.extensions.cursor, schema: str, table: str) -> list[_Column]:
    cursor.execute(
        "SELECT a.attname, coalesce(e.typname, t.typname) FROM pg_attribute a"
        " JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace"
        " JOIN pg_type t ON t.oid = a.atttypid"
        " LEFT JOIN pg_type e ON e.oid = t.typelem AND t.typcategory = 'A'"
        " WHERE n.nspname = %s AND c.relname = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum",
        (schema, table),
    )
    return [_Column(name, pg_type) for name, pg_type in cursor.fetchall()]


def _key(cursor: psycopg2.extensions.cursor, schema: str, table: str) -> tuple[str, ...]:
    cursor.execute(
        "SELECT a.attname FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid"
        " JOIN pg_namespace n ON n.oid = c.relnamespace"
        " CROSS JOIN unnest(i.indkey::smallint[]) WITH ORDINALITY AS k(attnum, place)"
        " JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.attnum"
        " WHERE i.indisprimary AND n.nspname = %s AND c.relname = %s ORDER BY k.place",
        (schema, table),
    )
    return tuple(name for (name,) in cursor.fetchall())


def _number(cursor: psycopg2.extensions.cursor, query: sql.Composable) -> int:
    cursor.execute(query)
    row = cursor.fetchone()
    assert row is not None
    return int(row[0])
