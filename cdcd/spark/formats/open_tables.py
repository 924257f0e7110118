"""The tables of a mirror in an open format, Delta or Iceberg: `<target>/<schema.table>`, for every reader of it.

In: the version after a batch, the folded rows.  Out: the version with the files and versions of its tables.
Invariant: the newest version of a table has the rows of the mirror's newest version, once that is published;
until then, and after a crash before it, it may have those of the batch, and a start restores the published ones. The
commit log names the files of each table, so a reader with the log needs no library of the format. A file is never
changed: one that has a changed row is replaced by another with all of its other rows.
Must not: publish a version of the mirror, delete a file that one has named.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from cdcd.errors import MirrorInconsistent, StorageError, TableFileMissing, TableLogUnreadable
from cdcd.lsn import format_lsn
from cdcd.spark.formats.delta_statistics import statistics_of
from cdcd.spark.formats.file_keys import FileKeys, HashedKeys, hashed
from cdcd.spark.formats.file_levels import (
    FULL,
    FileSize,
    size_of_changed,
    size_of_new,
    size_of_same,
    small_files,
)
from cdcd.spark.formats.log_by_format import log_of
from cdcd.spark.formats.open_schemas import check_names, has_same_types, is_extended, open_schema
from cdcd.spark.formats.open_table import OpenTable
from cdcd.spark.formats.table_log import CommitLabel, Part
from cdcd.spark.storage.uri import Storage
from cdcd.spark.tables.compaction import Merge, MergeResult, MergeUncertain
from cdcd.spark.tables.fold import without_keys
from cdcd.spark.tables.plan import TablePlan
from cdcd.spark.tables.table_files import (
    has_texts,
    possible_keys,
    read_bucket,
    read_deltas,
    without_deleted,
    write_part,
)
from cdcd.spark.tables.tasks import MOST_THREADS, FoldResult
from cdcd.spark.target.large_columns import is_among, taken
from cdcd.spark.target.shape import KEY, Field, TableShape, arrow_schema
from cdcd.spark.target.unneeded_files import remove_unneeded
from cdcd.spark.target.versions import BucketFile, TableEntry, TargetVersion

__all__ = ["OpenTables"]

log = logging.getLogger("cdcd.spark.mirror")
Damage = TableLogUnreadable | TableFileMissing | MirrorInconsistent
"""The errors of one table whose log, or a file of its rows, is missing or not readable."""


@dataclass(frozen=True, slots=True)
class _Change:
    """The complete rows that a batch has changed, and the keys of all rows that they replace."""

    rows: pa.Table
    keys: pa.Array


class OpenTables:
    """The Delta or Iceberg tables of one target, and their merges in the background."""

    def __init__(
        self,
        target: Storage,
        version: TargetVersion,
        check_owner: Callable[[], object] = lambda: None,
        *,
        parks: bool = False,
    ) -> None:
        """Open the tables of a version, and restore those that have other rows. Raises StorageError.

        `check_owner` raises StorageConflict if another mirror has taken over the target. `parks`: a damaged log is
        no error, but in `damaged`, and its table is not opened.
        """
        self._target, self._version, self._check_owner, self._parks = target, version, check_owner, parks
        self._tables: dict[str, OpenTable] = {}
        self._keys = FileKeys()
        self.damaged: dict[str, Damage] = {}  # by topic
        with ThreadPoolExecutor(MOST_THREADS, "cdcd-tables") as pool:
            entries = [one for one in version.tables.values() if one.table_version is not None]
            for entry, table in zip(entries, pool.map(self._restored, entries), strict=True):
                if isinstance(table, Damage):
                    self.damaged[entry.topic] = table
                else:
                    self._tables[entry.topic] = table
            left = [one for one in version.dropped.values() if one.table_version is not None]
            self._dropped = {one.topic: one for one in pool.map(self._emptied, left)}

    def _restored(self, entry: TableEntry) -> OpenTable | Damage:
        assert entry.table_version is not None
        table = self._table(entry.topic, entry.files, entry.fields)
        label = CommitLabel(entry.topic, self._version.number, format_lsn(self._version.commit_lsn))
        is_parked = entry.parked is not None and entry.parked.is_restorable
        with self._parking() as damage:
            table.log.restore(entry.table_version, entry.files, label, self._check_owner, is_parked=is_parked)
        return damage[0] if damage else table

    @contextmanager
    def _parking(self) -> Iterator[list[Damage]]:
        """Put the error of a damaged log or file into the list, if it has to end nothing."""
        found: list[Damage] = []
        try:
            yield found
        except (TableLogUnreadable, TableFileMissing, MirrorInconsistent) as error:
            if not self._parks:
                raise
            found.append(error)

    def _emptied(self, entry: TableEntry) -> TableEntry:
        """Remove the rows of a table that was dropped from the mirror; return what is left of its entry.

        A damaged log of such a table stops nothing: the next start tries again.
        """
        assert entry.table_version is not None
        self._check_owner()
        label = CommitLabel(entry.topic, self._version.number, format_lsn(self._version.commit_lsn))
        table_log = self._table(entry.topic).log
        try:
            table_log.create(self._schema(entry.fields), [], label, entry.table_version, self._check_owner)
        except TableLogUnreadable as error:
            log.warning("%s was dropped, but other readers may find its rows: %s", entry.topic, error)
            return entry
        if table_log.has_expired(math.inf):  # no later start opens the table
            table_log.expire(math.inf)
        return replace(entry, table_version=None)

    def at_start(self) -> TargetVersion:
        """Return the version with the tables as this start has left them, to be published next.

        A table that was restored has a newer version with the same files, which has the paths of the present target.
        """
        tables = {
            topic: replace(self._version.tables[topic], table_version=one.log.version)
            for topic, one in self._tables.items()
            if self._version.tables[topic].table_version != one.log.version
        }
        dropped = {**self._version.dropped, **self._dropped}
        return replace(self._version, tables={**self._version.tables, **tables}, dropped=dropped)

    def expire(self, version: TargetVersion, until_s: float) -> TargetVersion:
        """Have no table name versions that ended before a time (Unix epoch): their files are removed next.

        Return the version with the tables' versions, to be published next.
        """
        entries = [
            entry
            for topic, entry in version.tables.items()
            if topic in self._tables and self._tables[topic].log.has_expired(until_s)
        ]
        if not entries:
            return version
        self._check_owner()
        with ThreadPoolExecutor(MOST_THREADS, "cdcd-tables") as pool:
            expired = pool.map(lambda entry: self._expired(entry, until_s), entries)
            return replace(version, tables={**version.tables, **{one.topic: one for one in expired}})

    def _expired(self, entry: TableEntry, until_s: float) -> TableEntry:
        table = self._tables[entry.topic]
        with table.lock:
            is_merged = table.log.version != entry.table_version  # by a merge that a later version names
            table.log.expire(until_s)
            return entry if is_merged else replace(entry, table_version=table.log.version)

    def _table(
        self, topic: str, files: tuple[BucketFile, ...] = (), fields: tuple[Field, ...] = ()
    ) -> OpenTable:
        folder = self._version.folder_of(topic)
        log = log_of(self._version.table_format)(self._target, folder, self._version.retain_s)
        return OpenTable(log, files, fields)

    def refuse_columns(self, topic: str, fields: Iterable[Field]) -> None:
        """Raise MirrorInconsistent for columns that a table of the format cannot have."""
        check_names(self._version.table_format, topic, fields)

    def _schema(self, fields: Iterable[Field]) -> pa.Schema:
        return open_schema(self._version.table_format, fields)

    def _is_extended(self, old: Sequence[Field], new: Sequence[Field]) -> bool:
        return is_extended(self._version.table_format, old, new)

    # --- a batch -----------------------------------------------------------------------------------------------

    def store(
        self,
        version: TargetVersion,
        before: TargetVersion,
        plans: Mapping[str, TablePlan],
        folded: Iterable[FoldResult],
    ) -> tuple[TargetVersion, dict[str, Damage]]:
        """Commit the rows of the planned tables; return the version with their files, to be published next.

        Also return by topic the error of each table whose log or files are damaged: nothing of it is committed.
        """
        mine: dict[str, list[FoldResult]] = {topic: [] for topic in plans}
        for one in folded:
            if one.topic in mine and one.changed:
                mine[one.topic].append(one)
        self._add(before, mine)
        emptied = {
            topic
            for topic, plan in plans.items()
            # No file is planned of a table that was created again, also without a record of the former one.
            if not plan.files or plan.shape.emptied_at > before.tables.get(topic, TableEntry(topic)).applied
        }

        def run(results: tuple[str, Sequence[FoldResult]]) -> TableEntry | Damage:
            with self._parking() as damage:
                return self._stored(version, before.number + 1, emptied, results)
            return damage[0]

        with ThreadPoolExecutor(MOST_THREADS, "cdcd-tables") as pool:
            found = dict(zip(mine, pool.map(run, mine.items()), strict=True))
        damaged = {topic: one for topic, one in found.items() if isinstance(one, Damage)}
        for topic in damaged:
            self._close(topic)
        stored = {topic: one for topic, one in found.items() if isinstance(one, TableEntry)}
        return replace(version, tables={**version.tables, **stored}), damaged

    def create(
        self, version: TargetVersion, entries: Mapping[str, TableEntry]
    ) -> tuple[dict[str, TableEntry], dict[str, Damage]]:
        """Make the tables that have no rows; return the entries with their versions.

        Also return by topic the error of each table whose log is damaged.
        """
        created, damaged = {}, {}
        self._add(version, entries)
        for topic, entry in entries.items():
            bare = replace(version, tables={topic: entry})
            with self._parking() as damage:
                created[topic] = self._stored(bare, version.number + 1, (), (topic, ()))
            if damage:
                damaged[topic] = damage[0]
                self._close(topic)
        return created, damaged

    def _close(self, topic: str) -> None:
        self._keys.remove(one.path for one in self._tables.pop(topic).files)

    def _add(self, version: TargetVersion, topics: Iterable[str]) -> None:
        """Add the tables of these topics that are not opened."""
        for topic in topics:
            if topic not in self._tables:
                entry = version.tables.get(topic) or version.dropped.get(topic)
                known = None if entry is None else entry.table_version
                table = self._tables[topic] = self._table(topic)
                table.named = -1 if known is None else known

    def _stored(
        self,
        version: TargetVersion,
        number: int,
        emptied: Collection[str],
        results: tuple[str, Sequence[FoldResult]],
    ) -> TableEntry:
        topic, folds = results
        entry, table = version.tables[topic], self._tables[topic]
        shape, label = entry.shape(), CommitLabel(topic, number, format_lsn(version.commit_lsn))
        change = self._change(folds, shape)
        is_whole = topic in emptied or any(one.replaces_deltas for one in folds)
        with table.lock:
            entry = table.cleaned(entry, self._target)
            parts, removed = self._edit(table, shape, change, is_whole=is_whole)
            self._commit(table, shape, parts, removed, label)
            self._replace(table, removed, parts)
            table.fields = shape.fields
            return replace(entry, files=table.files, deltas=(), table_version=table.log.version)

    def _change(self, folds: Sequence[FoldResult], shape: TableShape) -> _Change:
        deltas = [rows for one in folds if one.is_delta and (rows := self._rows(one, shape)) is not None]
        whole = [rows for one in folds if not one.is_delta and (rows := self._rows(one, shape)) is not None]
        empty = arrow_schema(shape.fields).empty_table()
        keys = [rows[KEY].combine_chunks() for rows in deltas] if shape.keyed else []
        return _Change(
            pa.concat_tables([empty, *whole, *(without_deleted(rows) for rows in deltas)]),
            pa.concat_arrays([pa.array([], pa.binary()), *keys]),
        )

    def _rows(self, one: FoldResult, shape: TableShape) -> pa.Table | None:
        if one.complete is not None:
            return one.complete
        if one.path is None:
            return None
        file = BucketFile(one.bucket, one.path, one.rows, tuple(column.number for column in shape.fields))
        try:
            if one.is_delta:
                return read_deltas(self._target, shape, [file])
            return read_bucket(self._target, shape, file)
        except TableFileMissing as error:  # a task has just written it, so this is no trouble of the table
            raise StorageError(
                "a file that a task of Spark has written does not exist",
                hint="the target has to be the same storage for the driver and all executors",
                target=self._target.uri,
                file=one.path,
            ) from error

    def _edit(
        self, table: OpenTable, shape: TableShape, change: _Change, *, is_whole: bool
    ) -> tuple[list[Part], list[BucketFile]]:
        """Write the files that a change adds; return them, and those that it removes.

        A row that was changed remains in the file of its key, so the files' ranges of keys hardly overlap.
        """
        folder = self._version.folder_of(shape.topic)
        is_current = self._current(table, shape)
        parts: list[Part] = []
        removed: list[BucketFile] = []
        left, wanted = change.rows, hashed(change.keys)
        for file in table.files:
            if is_whole:
                removed.append(file)
                continue
            keys = self._held_keys(file, wanted)
            if not len(keys) and is_current(file):
                continue
            removed.append(file)
            others = without_keys(read_bucket(self._target, shape, file), keys)
            own = left.filter(pc.is_in(left[KEY], value_set=keys))
            left = without_keys(left, keys)
            rows = pa.concat_tables([others, own])
            parts += self._parts(
                folder, shape, rows, (size_of_changed if len(keys) else size_of_same)(rows), file.level
            )
        return [*parts, *self._parts(folder, shape, left, size_of_new(left))], removed

    def _held_keys(self, file: BucketFile, wanted: HashedKeys) -> pa.Array:
        """Return those of the keys that a file has. It is read only if it may have one, or for the first time."""
        if len(wanted.keys) and self._keys.lacks(file.path, file.rows):
            self._keys.add(file.path, possible_keys(self._target, file))
        asked = self._keys.asked(file.path, wanted)
        if not len(asked):
            return asked
        return asked.filter(is_among(asked, possible_keys(self._target, file, asked)))

    def _current(self, table: OpenTable, shape: TableShape) -> Callable[[BucketFile], bool]:
        """Return whether a file has the current columns for every reader.

        Iceberg identifies columns by numbers. Only `__special`, and the key of a row without one, go by their names.
        """
        old, new = table.fields, shape.fields
        if self._is_extended(old, new):
            return lambda _: True
        if self._version.table_format == "iceberg" and shape.keyed and has_same_types(old, new):
            return lambda file: not has_texts(self._target, file)
        return lambda _: False

    def _parts(
        self, folder: str, shape: TableShape, rows: pa.Table, size: FileSize, level: int = 0
    ) -> list[Part]:
        """Write rows into files; all but the last one have the most rows. `level`: the rows' one before."""
        if not rows.num_rows:
            return []
        in_order = taken(rows, pc.sort_indices(rows[KEY]))
        schema, most = self._schema(shape.fields), size.most_rows
        starts = range(0, rows.num_rows, most)
        has_statistics = self._version.table_format == "delta"
        parts = []
        for start, before in zip(starts, [*[FULL] * (len(starts) - 1), level], strict=True):
            slice_ = in_order.slice(start, most).cast(schema)
            of_file = size.level_of(slice_.num_rows, before)
            file, size_bytes = write_part(self._target, shape, schema, folder, slice_, of_file)
            parts.append(Part(file, size_bytes, statistics_of(slice_) if has_statistics else {}))
            if shape.keyed:
                self._keys.add(file.path, slice_[KEY])
        return parts

    def _commit(
        self,
        table: OpenTable,
        shape: TableShape,
        parts: Sequence[Part],
        removed: Sequence[BucketFile],
        label: CommitLabel,
    ) -> None:
        before, schema = self._schema(table.fields), self._schema(shape.fields)
        by_number = self._version.table_format == "iceberg"
        if table.log.version is None or not (by_number or self._is_extended(table.fields, shape.fields)):
            table.log.create(schema, parts, label, table.named, self._check_owner)
        elif parts or removed or not schema.equals(before, check_metadata=True):
            table.log.commit(schema, parts, removed, label)

    def _replace(self, table: OpenTable, removed: Sequence[BucketFile], parts: Sequence[Part]) -> None:
        table.replace(removed, parts)
        self._keys.remove(one.path for one in removed)

    # --- merges ------------------------------------------------------------------------------------------------

    def next(self, topic: str, entry: TableEntry) -> Merge | None:
        """Return a merge if the table has many small files of one size."""
        has_small = topic in self._tables and small_files(entry.files)
        return Merge(topic, entry.files, (), is_whole=True) if has_small else None

    def write(self, entry: TableEntry, merge: Merge, stopping: threading.Event) -> MergeResult | None:
        """Replace small files by larger ones, with the same rows.

        None if a batch has removed one of them meanwhile, or has changed the columns; one that has added rows only is
        no obstacle, because a merge may take longer than the next batch. None also if a batch has parked the table.
        """
        table, shape, small = self._tables.get(merge.topic), entry.shape(), small_files(merge.files)
        if table is None:
            return None
        rows = pa.concat_tables([read_bucket(self._target, shape, one) for one in small])
        folder = self._version.folder_of(merge.topic)
        parts = self._parts(folder, shape, rows, size_of_new(rows), small[0].level + 1)
        label = CommitLabel(merge.topic, self._version.number, format_lsn(entry.applied.commit_lsn))
        with table.lock:
            is_outdated = not set(small) <= set(table.files) or table.fields != entry.fields
            if is_outdated or stopping.is_set():
                paths = [one.file.path for one in parts]
                self._keys.remove(paths)
                remove_unneeded(self._target, paths)
                return None
            try:
                self._check_owner()
                table.log.commit(self._schema(shape.fields), parts, small, label, changes_rows=False)
            except Exception as error:
                raise MergeUncertain from error
            merge = replace(merge, files=table.files)  # those of the batch that the merge follows
            self._replace(table, small, parts)
            return MergeResult(merge, table.files, (), table_version=table.log.version)

    def discard(self, result: MergeResult) -> None:
        """Leave the files of a merge that no version of the mirror names: the table has them."""
