"""The query of a table's rows in the files of a mirror, for an engine that reads them without cdcd.

In: a mirror as of one version, a table, a dialect of SQL.  Out: SQL.
Invariant: of each key the newest row, no deleted row, no incomplete row.
Must not: execute a statement; read rows: of the files it reads the columns' names and types.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from cdcd.spark.decoding.columns import arrow_type
from cdcd.spark.formats.open_schemas import open_schema
from cdcd.spark.reading.mirror import Mirror
from cdcd.spark.reading.sql_dialects import Dialect
from cdcd.spark.storage.uri import Storage
from cdcd.spark.tables.data_file import opened_in_parts
from cdcd.spark.target.shape import SPECIAL, SPECIAL_TYPE, Field
from cdcd.spark.target.versions import BucketFile, TableEntry

__all__ = ["OpenedFile", "TableQuery", "types_of", "united"]

THREADS = 8
"""The files of a bucket whose columns are read at the same time."""
UNITED = 16
"""The most queries of files, or of groups of them, in one UNION ALL."""


@dataclass(frozen=True, slots=True)
class OpenedFile:
    """A file, its path for the engine, and its columns: the names that they had, with their types."""

    file: BucketFile
    path: str
    columns: pa.Schema


class TableQuery:
    """The query of one table's rows. Inside it, a column is called by its number: `c7`."""

    def __init__(self, opened: Mirror, entry: TableEntry, dialect: Dialect) -> None:
        self._opened, self._entry, self._dialect = opened, entry, dialect
        self._fields = entry.fields
        self._inner = ", ".join([*(f"c{one.number}" for one in entry.fields), "s"])

    def text(self) -> str:
        """Return the query. Raises NoSuchView, MirrorInconsistent for a file that cannot be decoded."""
        entry = self._entry
        if entry.table_version is not None:
            return self._of_open_table(entry.table_version)
        if entry.is_empty:
            table_format = self._opened.version.table_format
            is_parquet = table_format == "parquet"
            types = self._dialect.types(
                types_of(self._fields) if is_parquet else open_schema(table_format, self._fields)
            )
            return f"SELECT {', '.join(self.null(*one) for one in types.items())} WHERE false"
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

    def null(self, name: str, type_: str) -> str:
        """Return a column without a value."""
        return f"CAST(NULL AS {type_}) AS {self._dialect.identifier(name)}"

    def _base(self) -> Iterator[str]:
        groups: dict[tuple[tuple[int, ...], pa.Schema], list[OpenedFile]] = {}
        for one in self.opened_files(self._entry.files):
            groups.setdefault((one.file.columns, one.columns), []).append(one)
        selects = [
            self.select(files[0], relation, "k")
            for files in groups.values()
            for relation in self._dialect.files([one.path for one in files])
        ]
        if selects:
            yield united("base", selects)

    def _changed(self) -> Iterator[str]:
        """Yield the rows of the deltas; `n` is higher in a later delta."""
        selects = [
            self.select(one, relation, f"k, d, {number} AS n")
            for number, one in enumerate(self.opened_files(self._entry.deltas))
            for relation in self._dialect.files([one.path])
        ]
        if selects:
            yield united("changed", selects)
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

    def select(self, one: OpenedFile, relation: str, more: str) -> str:
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

    def opened_files(self, files: Sequence[BucketFile]) -> list[OpenedFile]:
        """Return files with their columns."""
        with ThreadPoolExecutor(THREADS, "cdcd-columns") as pool:
            return list(pool.map(partial(_opened_file, self._opened.target), files))


def united(name: str, selects: Sequence[str]) -> str:
    """Return the rows of all. Parentheses limit the depth: each UNION ALL is inside the next one for an engine."""
    parts = list(selects)
    while len(parts) > UNITED:
        groups = (parts[start : start + UNITED] for start in range(0, len(parts), UNITED))
        parts = [f"  (\n{_union(group)}\n  )" for group in groups]
    return f"{name} AS (\n{_union(parts)}\n)"


def _union(selects: Iterable[str]) -> str:
    return "\n  UNION ALL\n".join(selects)


def types_of(fields: Iterable[Field]) -> pa.Schema:
    """Return the columns of a table, with `__special`."""
    columns = [pa.field(one.name, arrow_type(one.avro)) for one in fields]
    return pa.schema([*columns, pa.field(SPECIAL, SPECIAL_TYPE)])


def _opened_file(target: Storage, file: BucketFile) -> OpenedFile:
    with opened_in_parts(target, file.path) as source:
        return OpenedFile(file, _path(target, file.path), source.schema.remove_metadata())


def _path(target: Storage, path: str) -> str:
    return f"{target.uri}/{path}" if target.folder is None else str(target.folder.absolute() / path)
