"""SQL views of a mirror's tables, for engines that read its files without cdcd: DuckDB, Spark.

In: a mirror as of one version, a dialect of SQL.  Out: for each table a statement, and notes for a reader.
Invariant: a view has the rows that `Mirror.table` returns: of each key the newest one, no deleted row, no incomplete
row. It names the files of one version, so it can be read while that version is retained.
Must not: execute a statement; read rows: of the files it reads the columns' names and types.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq

from cdcd.errors import ConfigError
from cdcd.escaped_names import unescape
from cdcd.lsn import format_lsn
from cdcd.spark.columns import arrow_type
from cdcd.spark.commit_log import newer_versions
from cdcd.spark.open_schemas import open_schema
from cdcd.spark.reading import EPOCH, Mirror
from cdcd.spark.shape import SPECIAL, SPECIAL_TYPE, Field
from cdcd.spark.sql_dialects import DIALECTS, Dialect, NoSuchView
from cdcd.spark.storage import Storage
from cdcd.spark.table_options import topics_of
from cdcd.spark.versions import BucketFile, TableEntry
from cdcd.spark.views import view_names

__all__ = ["PlainView", "plain_views", "script_of"]

THREADS = 8
"""The files of a bucket whose columns are read at the same time."""
UNITED = 16
"""The most queries of files, or of groups of them, in one UNION ALL."""


@dataclass(frozen=True, slots=True)
class PlainView:
    """The view of one table. `statement` None: the dialect has none for it, and a note says why.

    `notes`: in which way its rows are not those of the version's commit, and what its columns cannot be.
    """

    table: str
    name: str
    statement: str | None
    notes: tuple[str, ...] = ()


def plain_views(
    opened: Mirror, dialect: str = "duckdb", *, tables: Sequence[str] = ("*",), prefix: str = ""
) -> list[PlainView]:
    """Return the view `<prefix><schema>_<table>` of each table that `tables` names, all as of one commit.

    The columns are those of `Mirror.table`. Raises ConfigError for an unknown dialect, and for Spark's with a mirror
    of Delta or Iceberg tables; SparkReadError for a name that no table has; StorageError.
    """
    chosen = DIALECTS.get(dialect)
    if chosen is None:
        raise ConfigError(f"unknown dialect {dialect!r}; use {' or '.join(DIALECTS)}")
    table_format = opened.version.table_format
    if table_format not in chosen.formats:
        raise ConfigError(
            f"the tables of this mirror have the format {table_format}, of which there are no statements in Spark's "
            "dialect",
            hint="make the views by cdcd.spark.consistent_view, or use the dialect duckdb",
        )
    topics = topics_of(tables, opened.version.prefix, opened.topics)
    named = {topic: unescape(topic.removeprefix(f"{opened.version.prefix}.")) for topic in topics}
    names = view_names(named.values(), prefix)
    return [
        _view(opened, opened.version.tables[topic], chosen, table, names[table])
        for topic, table in named.items()
    ]


def script_of(opened: Mirror, views: Iterable[PlainView], now_s: float) -> Iterator[str]:
    """Yield the lines of a script that makes the views; it begins with their position, and until when they last.

    `now_s`: a time (Unix epoch) before the mirror was opened. Raises SparkReadError if it is not retained any more.
    """
    version = opened.version
    position = (
        f"all commits below the LSN {format_lsn(version.end_lsn)}" if version.end_lsn else "unknown position"
    )
    at = opened.commit_time
    last = "" if at is None else f", the last one at {at.isoformat()}"
    until = EPOCH + timedelta(seconds=int(_readable_until_s(opened, now_s)))
    yield _comment(f"{opened.target.uri}, version {version.number}: {position}{last}")
    yield _comment(
        f"The views can be read until {until.isoformat()}, or longer if the mirror does not change: make them again "
        "before. A mirror that is started with a shorter --retain ends this time earlier."
    )
    for one in views:
        yield ""
        yield from (_comment(f"{one.table}: {note}") for note in one.notes)
        if one.statement is not None:
            yield f"{one.statement};"


def _readable_until_s(opened: Mirror, now_s: float) -> float:
    later = list(newer_versions(opened.target, opened.version))
    newest = later[-1] if later else opened.version
    return (later[0].published_s if later else now_s) + newest.retain_s


def _comment(text: str) -> str:
    """Return a line that is a comment, whatever the text has."""
    return "-- " + "".join(one if one.isprintable() else " " for one in text)


def _view(opened: Mirror, entry: TableEntry, dialect: Dialect, table: str, name: str) -> PlainView:
    notes = [*_notes(opened, entry)]
    if not entry.fields:
        return PlainView(table, name, None, (*notes, "no view, because no row and no column is known yet"))
    lowered = [one.name.lower() for one in entry.fields]
    if len(set(lowered)) < len(lowered):
        notes.append("columns differ only in the case of their names, of which the engine may show others")
    if dialect.many_files is not None and len(entry.files) + len(entry.deltas) > dialect.many_files:
        notes.append(
            f"{len(entry.files) + len(entry.deltas)} files, each of which is a relation of its own for Spark: each "
            "reading of the view takes a while. cdcd.spark.consistent_view has one relation for all"
        )
    try:
        query = _Query(opened, entry, dialect).text()
    except NoSuchView as error:
        return PlainView(table, name, None, (*notes, f"no view: {error}"))
    return PlainView(table, name, f"{dialect.create} {dialect.identifier(name)} AS\n{query}", tuple(notes))


def _notes(opened: Mirror, entry: TableEntry) -> Iterator[str]:
    parked = entry.parked
    if entry.topic in opened.version.loading:
        yield "LOADING: cdcd still copies the table, so rows are missing"
    if parked is not None:
        of = f"is as of the LSN {format_lsn(parked.end_lsn)}" if parked.end_lsn else "is of no one commit"
        yield f"PARKED: the table {of}, and not updated any more: {parked.reason}"


@dataclass(frozen=True, slots=True)
class _File:
    """A file, its path for the engine, and its columns: the names that they had, with their types."""

    file: BucketFile
    path: str
    columns: pa.Schema


class _Query:
    """The query of one table's rows. Inside it, a column is called by its number: `c7`."""

    def __init__(self, opened: Mirror, entry: TableEntry, dialect: Dialect) -> None:
        self._opened, self._entry, self._dialect = opened, entry, dialect
        self._fields = entry.fields
        self._inner = ", ".join([*(f"c{one.number}" for one in entry.fields), "s"])

    def text(self) -> str:
        """Return the query. Raises NoSuchView."""
        entry = self._entry
        if entry.table_version is not None:
            return self._of_open_table(entry.table_version)
        if entry.is_empty:
            table_format = self._opened.version.table_format
            is_parquet = table_format == "parquet"
            types = self._dialect.types(
                _types(self._fields) if is_parquet else open_schema(table_format, self._fields)
            )
            return f"SELECT {', '.join(self._null(*one) for one in types.items())} WHERE false"
        parts = [*self._base(), *self._changed(), f"present AS (\n{self._present()}\n)"]
        shown = ", ".join(
            [
                *(f"c{one.number} AS {self._dialect.identifier(one.name)}" for one in self._fields),
                f"s AS {self._dialect.identifier(SPECIAL)}",
            ]
        )
        return f"WITH {', '.join(parts)}\nSELECT {shown} FROM present"

    def _of_open_table(self, version: int) -> str:
        folder = self._opened.version.folder_of(self._entry.topic)
        names = [*(one.name for one in self._fields), SPECIAL]
        shown = ", ".join(map(self._dialect.identifier, names))
        table_format, path = self._opened.version.table_format, _path(self._opened.target, folder)
        relation = self._dialect.open_table(table_format, path, version)
        return f"SELECT {shown} FROM {relation}"

    def _null(self, name: str, type_: str) -> str:
        return f"CAST(NULL AS {type_}) AS {self._dialect.identifier(name)}"

    def _base(self) -> Iterator[str]:
        groups: dict[tuple[tuple[int, ...], pa.Schema], list[_File]] = {}
        for one in self._opened_files(self._entry.files):
            groups.setdefault((one.file.columns, one.columns), []).append(one)
        selects = [
            self._select(files[0], relation, "k")
            for files in groups.values()
            for relation in self._dialect.files([one.path for one in files])
        ]
        if selects:
            yield _united("base", selects)

    def _changed(self) -> Iterator[str]:
        """Yield the rows of the deltas; `n` is higher in a later delta."""
        selects = [
            self._select(one, relation, f"k, d, {number} AS n")
            for number, one in enumerate(self._opened_files(self._entry.deltas))
            for relation in self._dialect.files([one.path])
        ]
        if selects:
            yield _united("changed", selects)
        if selects and self._entry.keyed:
            place = "row_number() OVER (PARTITION BY k ORDER BY n DESC)"
            yield f"newest AS (\n  SELECT {self._inner}, d, {place} AS place FROM changed\n)"

    def _present(self) -> str:
        has_base, has_changes = bool(self._entry.files), bool(self._entry.deltas)
        base = f"  SELECT {self._inner} FROM base"
        if not self._entry.keyed:  # no row of a file replaces another
            parts = [base, f"  SELECT {self._inner} FROM changed WHERE NOT d"]
        else:
            replaced = (
                " WHERE NOT EXISTS (SELECT 1 FROM changed WHERE changed.k = base.k)" if has_changes else ""
            )
            parts = [base + replaced, f"  SELECT {self._inner} FROM newest WHERE place = 1 AND NOT d"]
        return "\n  UNION ALL\n".join(
            part for part, is_there in zip(parts, (has_base, has_changes), strict=True) if is_there
        )

    def _select(self, one: _File, relation: str, more: str) -> str:
        """Return the rows of a file, or of several with its columns, under the numbers of the current columns."""
        numbers, dialect = one.file.columns, self._dialect
        held = dict(zip(numbers, one.columns, strict=False))
        names = [*(f"c{number}" for number in numbers), "s", "k", "d"][: len(one.columns)]
        columns = [self._column(field, held.get(field.number)) for field in self._fields]
        shown = {field.number: field.name for field in self._fields}
        former = {held[number].name: shown.get(number) for number in numbers}
        special = (
            "s" if all(old == new for old, new in former.items()) else dialect.renamed("s", former) + " AS s"
        )
        return f"  SELECT {', '.join([*columns, special, more])}\n  FROM {relation} AS t({', '.join(names)})"

    def _column(self, field: Field, held: pa.Field | None) -> str:
        name, wanted = f"c{field.number}", arrow_type(field.avro)
        if held is not None and held.type == wanted:
            return name
        type_ = self._dialect.type(wanted)
        if held is None:
            return f"CAST(NULL AS {type_}) AS {name}"
        return f"{self._dialect.cast(name, held.type, wanted)} AS {name}"

    def _opened_files(self, files: Sequence[BucketFile]) -> list[_File]:
        with ThreadPoolExecutor(THREADS, "cdcd-columns") as pool:
            return list(pool.map(partial(_opened_file, self._opened.target), files))


def _united(name: str, selects: Sequence[str]) -> str:
    """Return the rows of all. Parentheses limit the depth: each UNION ALL is inside the next one for an engine."""
    parts = list(selects)
    while len(parts) > UNITED:
        groups = (parts[start : start + UNITED] for start in range(0, len(parts), UNITED))
        parts = [f"  (\n{_union(group)}\n  )" for group in groups]
    return f"{name} AS (\n{_union(parts)}\n)"


def _union(selects: Iterable[str]) -> str:
    return "\n  UNION ALL\n".join(selects)


def _types(fields: Iterable[Field]) -> pa.Schema:
    columns = [pa.field(one.name, arrow_type(one.avro)) for one in fields]
    return pa.schema([*columns, pa.field(SPECIAL, SPECIAL_TYPE)])


def _opened_file(target: Storage, file: BucketFile) -> _File:
    with target.open(file.path) as source:
        return _File(file, _path(target, file.path), pq.read_schema(source).remove_metadata())


def _path(target: Storage, path: str) -> str:
    return f"{target.uri}/{path}" if target.folder is None else str(target.folder.absolute() / path)
