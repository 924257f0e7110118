"""The log of one Iceberg table, by PyIceberg: a commit is a snapshot, and a version of the table's metadata.

In: the storage of a target, the table's folder, files that are complete and durable.  Out: versions of the table.
Invariant: as `TableLog`. A version is one file of metadata, which has all columns and files of the table, so a commit
changes both at once; the number of the file is that of the version. Of the snapshots before, the metadata names the
last ones that are retained.
Must not: write rows; know Spark, a catalog, or which version is the mirror's.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyiceberg.io.pyarrow import pyarrow_to_schema
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadataUtil

from cdcd.errors import CdcdError, StorageError, TableLogUnreadable
from cdcd.spark.formats.iceberg_access import IcebergAccess
from cdcd.spark.formats.iceberg_manifests import (
    VERSION,
    Manifest,
    NewSnapshot,
    data_file,
    name_of,
    next_manifests,
    read_manifests,
)
from cdcd.spark.formats.iceberg_metadata import (
    FIRST,
    has_ended,
    metadata_after,
    next_metadata,
    schema_as,
    snapshot_of,
    totals_of,
)
from cdcd.spark.formats.table_log import (
    CHANGED_SINCE,
    LABEL,
    OTHER_FILES,
    OTHER_FILES_HINT,
    CommitLabel,
    Part,
)
from cdcd.spark.storage.uri import Storage
from cdcd.spark.target.versions import BucketFile

__all__ = ["IcebergLog"]

log = logging.getLogger("cdcd.spark.mirror")
_DAMAGED_HINT = (
    "copy the table again: `cdcd snapshot start --table ... --recopy`; a mirror with --on-error fail needs the file "
    "from a backup of the target"
)


@dataclass(frozen=True, slots=True)
class _State:
    """A version of the table: its metadata (None: not readable), and the manifests of its files."""

    number: int
    metadata: Any
    manifests: tuple[Manifest, ...] = ()

    @property
    def live(self) -> dict[str, Any]:
        """The files by their names."""
        return {name_of(one): one.file for manifest in self.manifests for one in manifest.live}

    @property
    def is_foreign(self) -> bool:
        """Whether another writer has changed more than the files."""
        return self.metadata.format_version != VERSION or any(one.is_foreign for one in self.manifests)

    @property
    def is_labelled(self) -> bool:
        """Whether the snapshot, if there is one, is a mirror's."""
        snapshot = self.metadata.current_snapshot()
        return snapshot is None or (snapshot.summary is not None and bool(snapshot.summary.get(LABEL)))


@dataclass(frozen=True, slots=True)
class _Change:
    """What a commit changes. `removed`: names of files; `all_again`: none of the manifests before remains."""

    schema: Schema
    parts: Sequence[Part]
    removed: Collection[str]
    label: CommitLabel
    changes_rows: bool = True
    all_again: bool = False


class _MetadataUnreadable(ValueError):
    """A file of the metadata does not exist, or is not metadata."""


class IcebergLog:
    """The `TableLog` of an Iceberg table."""

    def __init__(self, target: Storage, folder: str, retain_s: float) -> None:
        self._access = IcebergAccess(target, folder)
        self._target, self._folder, self._retain_s = target, folder, retain_s
        self._held: _State | None = None

    @property
    def version(self) -> int | None:
        """The version that this writer knows."""
        return None if self._held is None else self._held.number

    def restore(
        self,
        version: int,
        files: Collection[BucketFile],
        label: CommitLabel,
        check_owner: Callable[[], object] = lambda: None,
        *,
        is_parked: bool = False,
    ) -> None:
        """Do what `TableLog.restore` says; also if the target was moved, because the metadata has absolute paths."""
        with self._access.errors("restore"):
            recorded = self._recorded(version, is_parked=is_parked)
            newest_number = self._access.newest(version)
            assert newest_number is not None
            newest = recorded if newest_number == version else self._later(newest_number)
            if recorded.live.keys() != {one.path.rpartition("/")[2] for one in files}:
                raise (TableLogUnreadable if is_parked else StorageError)(
                    "the Iceberg table does not have the files that the mirror's commit log names",
                    hint=_DAMAGED_HINT if is_parked else OTHER_FILES_HINT,
                    target=self._target.uri,
                    table=self._folder,
                    version=version,
                )
            if newest is None or self._differs(newest, recorded):
                check_owner()
                as_newest = metadata_after(recorded.metadata, None if newest is None else newest.metadata)
                successor = replace(recorded, number=newest_number, metadata=as_newest)
                self._replace_all(successor, files, label)
            else:
                self._held = newest  # a commit after this one is a conflict
                self._access.write_hint(newest.number)

    def other_rows(self, version: int, files: Collection[BucketFile]) -> str:
        """Do what `TableLog.other_rows` says."""
        with self._access.errors("read"):
            if self._read(version).live.keys() != {one.path.rpartition("/")[2] for one in files}:
                return OTHER_FILES
            newest = self._access.newest(version)
            assert newest is not None
            found = self._read(newest)
            return CHANGED_SINCE if found.is_foreign or not found.is_labelled else ""

    def _recorded(self, version: int, *, is_parked: bool = False) -> _State:
        """Return a version that the mirror names. Raises TableLogUnreadable if it is missing, or no metadata."""
        try:
            return self._read(version)
        except _MetadataUnreadable as error:
            newest = self._access.newest()
            if newest is not None and newest < version and not is_parked:  # of another backup
                raise
            raise TableLogUnreadable(
                "the metadata of an Iceberg table of the target is damaged",
                hint=_DAMAGED_HINT,
                target=self._target.uri,
                table=self._folder,
                file=self._access.file_of(version),
            ) from error

    def _later(self, number: int) -> _State | None:
        """Return a version that the mirror does not name, None if it is not metadata: none of it is needed."""
        try:
            return self._read(number)
        except _MetadataUnreadable:
            log.warning(
                "%s: version %d of its metadata was not readable, and was replaced", self._folder, number
            )
            return None

    def _differs(self, newest: _State, recorded: _State) -> bool:
        return bool(
            newest.is_foreign
            or newest.metadata.location != self._access.location
            or newest.live.keys() != recorded.live.keys()
            or newest.metadata.schema() != recorded.metadata.schema()
        )

    def _replace_all(self, recorded: _State, files: Collection[BucketFile], label: CommitLabel) -> None:
        """Commit an earlier version again, after the newest one, of which no snapshot remains.

        `recorded`: the earlier version with the number of the newest one.
        """
        had = recorded.live
        parts: list[Part] = []
        if recorded.metadata.location != self._access.location:
            parts = [Part(one, had[one.path.rpartition("/")[2]].file_size_in_bytes) for one in files]
        self._held = recorded
        removed = had.keys() if parts else ()
        self._commit(_Change(recorded.metadata.schema(), parts, removed, label, all_again=True))

    def create(
        self,
        schema: pa.Schema,
        parts: Sequence[Part],
        label: CommitLabel,
        named: int = -1,
        check_owner: Callable[[], object] = lambda: None,
    ) -> None:
        """Do what `TableLog.create` says. Each version has all files, so no earlier one is needed."""
        with self._access.errors("create"):
            if self._held is None and (number := self._access.newest()) is not None:
                self._held = self._later(number) or _State(
                    number, None
                )  # of a start that has published nothing
            live = {} if self._held is None else self._held.live
            self._commit(_Change(pyarrow_to_schema(schema), parts, live.keys(), label, all_again=True))

    def commit(
        self,
        schema: pa.Schema,
        parts: Sequence[Part],
        removed: Sequence[BucketFile],
        label: CommitLabel,
        *,
        changes_rows: bool = True,
    ) -> None:
        """Do what `TableLog.commit` says, in one version."""
        names = {one.path.rpartition("/")[2] for one in removed}
        with self._access.errors("change"):
            self._commit(_Change(pyarrow_to_schema(schema), parts, names, label, changes_rows=changes_rows))

    def _commit(self, change: _Change) -> None:
        held = self._held
        before, number = (None, FIRST) if held is None else (held.metadata, held.number + 1)
        now_ms = max(int(time.time() * 1000), 0 if before is None else before.last_updated_ms)
        schema = schema_as(before, change.schema)
        snapshot, manifests = None, () if held is None else held.manifests
        had_snapshot = before is not None and before.current_snapshot_id is not None
        if change.parts or change.removed or (change.all_again and had_snapshot):
            snapshot, manifests = self._snapshot(number, schema, change, now_ms)
        retained_ms = now_ms - self._retain_s * 1000
        metadata = next_metadata(before, self._access.location, schema, snapshot, now_ms, retained_ms)
        self._put(_State(number, metadata, manifests))

    def _put(self, state: _State) -> None:
        self._access.put(state.number, state.metadata.model_dump_json().encode())
        self._held = state
        self._access.write_hint(state.number)

    def has_expired(self, until_s: float) -> bool:
        """Return what `TableLog.has_expired` says."""
        return self._held is not None and has_ended(self._held.metadata, until_s * 1000)

    def expire(self, until_s: float) -> None:
        """Do what `TableLog.expire` says."""
        held = self._held
        assert held is not None
        now_ms = max(int(time.time() * 1000), held.metadata.last_updated_ms)
        with self._access.errors("change"):
            schema, location = held.metadata.schema(), self._access.location
            metadata = next_metadata(held.metadata, location, schema, None, now_ms, until_s * 1000)
            self._put(_State(held.number + 1, metadata, held.manifests))

    def _snapshot(
        self, number: int, schema: Schema, change: _Change, now_ms: int
    ) -> tuple[Any, tuple[Manifest, ...]]:
        """Write the manifests of a snapshot; return both."""
        held = self._held
        new = NewSnapshot.after(None if held is None else held.metadata)
        live = {} if held is None else held.live
        added = [data_file(one, self._access.location_of(one.file.path)) for one in change.parts]

        def write(entries: Sequence[tuple[Any, Any]]) -> Manifest:
            file = self._access.new_file("manifest", number)
            manifest = new.manifest(schema, file, entries)
            self._access.write(file)
            return manifest

        before = () if held is None else held.manifests
        manifests = next_manifests(before, added, change.removed, write, all_again=change.all_again)
        listed = self._access.new_file("snap", number)
        new.list(listed, manifests)
        self._access.write(listed)
        texts = totals_of(live, added, [live[name] for name in change.removed]) | change.label.texts
        return (
            snapshot_of(new, listed.location, schema, texts, now_ms, changes_rows=change.changes_rows),
            tuple(manifests),
        )

    def remove_old_versions(self, first: Callable[[], int]) -> None:
        """Remove the metadata of the versions before the first one that a version of the mirror names.

        A manifest is needed if that version has it, or a later one has made it: no manifest comes back.
        """
        held = self._held
        assert held is not None
        with self._access.errors("change"):
            number = min(first(), held.number)
            if number <= FIRST:
                return
            oldest = held if number == held.number else self._read(number)
            needed = [str(one.file.manifest_path) for one in oldest.manifests]
            if (snapshot := oldest.metadata.current_snapshot()) is not None:
                needed.append(str(snapshot.manifest_list))
            self._access.remove_before(number, {one.rpartition("/")[2] for one in needed})

    def _read(self, number: int) -> _State:
        """Return a version. Raises _MetadataUnreadable for absent files and other bytes, StorageError."""
        try:
            return self._parsed(number)
        except (CdcdError, MemoryError):
            raise
        except Exception as error:  # PyIceberg ends with errors of many kinds where bytes are no Avro
            raise _MetadataUnreadable(type(error).__name__) from error

    def _parsed(self, number: int) -> _State:
        metadata = TableMetadataUtil.parse_raw(self._access.metadata(number).decode())
        current = metadata.current_snapshot()
        if current is None:
            return _State(number, metadata)
        return _State(number, metadata, tuple(read_manifests(self._access, current.manifest_list)))
