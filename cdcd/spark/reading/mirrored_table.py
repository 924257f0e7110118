"""A table of a mirror as the data source `format("cdcd")` with the option `target`.

In: Spark's options: `target`, `table`, `at`, `loading`, `parked`, and `target.NAME` of the storage; the columns that
Spark has, those of a table in a catalog among them.  Out: the columns, and a reader of batches.
Invariant: each query reads the version that is the newest when the query is planned (or that of `at`), all its tasks
the same one. A table that is still copied, or parked, is read only if the options ask for it.
Must not: read rows on the driver; send a secret to a task.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from cdcd.errors import ConfigError, SparkReadError
from cdcd.spark.clients.sent_to_tasks import SentToTasks
from cdcd.spark.reading.chosen_table import refuse_unfinished
from cdcd.spark.reading.mirror import read_mirror
from cdcd.spark.reading.table_frame import columns_of
from cdcd.spark.source.table_options import topics_of
from cdcd.spark.storage.uri import Storage, open_storage
from cdcd.spark.tables.key_ranges import parts_of
from cdcd.spark.tables.table_files import read_part
from cdcd.spark.target.versions import TableEntry

__all__ = ["TARGET", "MirrorReader", "MirroredTable", "is_of_a_mirror", "mirrored_table"]

TARGET = "target"
OF_STORAGE = "target."
_NAMES = (TARGET, "table", "at", "loading", "parked")
_SWITCHES = ("loading", "parked")
_ROWS = 10_000


@dataclass(frozen=True, slots=True)
class MirroredTable:
    """A table of a target, by its name. `at` None: the newest version."""

    target: Storage
    name: str
    at: str | None = None
    with_loading: bool = False
    with_parked: bool = False

    def entry(self) -> TableEntry:
        """Return the table in the version to read. Raises SparkReadError, TablesParked, StorageError."""
        opened = read_mirror(self.target, at=self.at)
        topic, *others = topics_of(
            [self.name], opened.version.prefix, opened.topics, target=opened.target.uri
        )
        if others:
            raise ConfigError("the option table of a mirror names one table", hint="name one of them")
        refuse_unfinished(opened, topic, loading=self.with_loading, parked=self.with_parked)
        return opened.version.tables[topic]


def is_of_a_mirror(options: Mapping[str, str]) -> bool:
    """Return whether the options name a mirror instead of topics."""
    return any(name.lower() == TARGET for name in options)


def mirrored_table(options: Mapping[str, str]) -> MirroredTable:
    """Return the table that the options name (names in any case). Raises ConfigError, StorageError."""
    given = {name.lower(): value for name, value in options.items()}
    unknown = sorted(name for name in given if name not in _NAMES and not name.startswith(OF_STORAGE))
    if unknown:
        near = difflib.get_close_matches(unknown[0], _NAMES, 1)
        raise ConfigError(
            "the table of a mirror has no such option",
            hint=f"did you mean {near[0]}?"
            if near
            else f"its options are {', '.join(_NAMES)}, {OF_STORAGE}NAME",
            options=", ".join(unknown),
        )
    if "table" not in given:
        raise ConfigError("a mirror is read by table", hint="set the option table, such as public.orders")
    for name in _SWITCHES:
        if given.get(name, "false").lower() not in ("true", "false"):
            raise ConfigError(f"option {name} has to be true or false", hint="write true, or omit the option")
    of_storage = {
        name.removeprefix(OF_STORAGE): value for name, value in given.items() if name.startswith(OF_STORAGE)
    }
    return MirroredTable(
        open_storage(given[TARGET], of_storage),
        given["table"],
        given.get("at"),
        *(given.get(name, "").lower() == "true" for name in _SWITCHES),
    )


class PartPartition(InputPartition):  # type: ignore[misc]
    """The input of one task: the shape and a part of a table."""

    def __init__(self, *part: Any) -> None:
        super().__init__(part)


class MirrorReader(SentToTasks, DataSourceReader):  # type: ignore[misc]
    """The batch reader of a mirrored table, with the columns that Spark has of it."""

    def __init__(self, table: MirroredTable, schema: StructType) -> None:
        self._table, self._schema = table, schema

    def partitions(self) -> list[PartPartition]:
        """Return a task for each part of the table. Raises SparkReadError if the columns have changed."""
        entry = self._table.entry()
        self._check(columns_of(entry)[1])
        shape = entry.shape()
        return [PartPartition(shape, part) for part in parts_of(entry)]

    def _check(self, has: StructType) -> None:
        types = {one.name: one.dataType for one in has}
        if changed := [one.name for one in self._schema if types.get(one.name) != one.dataType]:
            raise SparkReadError(
                "columns of the table have changed since Spark read its schema",
                hint="open the table again; register a table in a catalog again with `python -m cdcd.spark "
                "register --target TARGET --catalog NAMESPACE` (a mirror with --catalog does so automatically)",
                table=self._table.name,
                columns=", ".join(changed),
            )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one task's rows; no task has a part if the table is empty."""
        if partition is None or partition.value is None:
            return
        shape, part = partition.value
        rows = read_part(self._table.target, shape, part).select(self._schema.names)
        fields = columns_of(shape)[0]
        wanted = pa.schema([fields.field(name) for name in self._schema.names])
        yield from rows.cast(wanted).to_batches(max_chunksize=_ROWS)
