"""The manifests of an Iceberg table: which files a snapshot has.

In: the manifests of a snapshot, files that the next one adds and removes.  Out: the manifests of the next one.
Invariant: a commit writes the entries of the manifests in which it removes a file, and of small ones; it leaves large
ones, so a commit costs the same for a table of any size. No manifest that a snapshot has dropped comes back.
Must not: read or write metadata.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    read_manifest_list,
    write_manifest,
    write_manifest_list,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.typedef import Record

from cdcd.spark.formats.iceberg_access import MetadataFile
from cdcd.spark.formats.table_log import Part

__all__ = ["Live", "Manifest", "NewSnapshot", "data_file", "name_of", "next_manifests", "read_manifests"]

MOST_ENTRIES = 500
"""The most files of a manifest. One with less than half is written again with each commit."""
VERSION = 2
_CODEC = "deflate"
_UNASSIGNED = -1


@dataclass(frozen=True, slots=True)
class Live:
    """A file of a snapshot, with the snapshot and the sequence number that have added it."""

    file: Any
    snapshot_id: int
    sequence: int
    file_sequence: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """A manifest, and those of its files that the snapshot has."""

    file: Any
    live: tuple[Live, ...]

    @property
    def is_foreign(self) -> bool:
        """Whether another writer has made it: it has deleted rows, or partitions."""
        return bool(self.file.content != ManifestContent.DATA or self.file.partition_spec_id)


def data_file(part: Part, location: str) -> Any:
    """Return the description of a file that was written."""
    return DataFile.from_args(
        _table_format_version=VERSION,
        content=DataFileContent.DATA,
        file_path=location,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=part.file.rows,
        file_size_in_bytes=part.size_bytes,
        sort_order_id=None,
    )


def name_of(live: Live) -> str:
    """Return the name of a file, which is its own in the folder of its table."""
    return str(live.file.file_path).rpartition("/")[2]


def read_manifests(source: Any, location: str) -> list[Manifest]:
    """Return the manifests of a list. `source` opens a file of a location."""
    return [
        Manifest(file, tuple(_lives(file, source))) for file in read_manifest_list(source.new_input(location))
    ]


def _lives(file: Any, source: Any) -> Iterator[Live]:
    if file.content != ManifestContent.DATA:
        return
    for one in file.fetch_manifest_entry(source):
        yield Live(one.data_file, one.snapshot_id, one.sequence_number, one.file_sequence_number)


def next_manifests(
    held: Sequence[Manifest],
    added: Sequence[Any],
    removed: Collection[str],
    write: Callable[[Sequence[Any]], Manifest],
    *,
    all_again: bool = False,
) -> list[Manifest]:
    """Return the manifests of the next snapshot.

    `added`: data files; `removed`: names. `write` writes a manifest with pairs of a status and what has it: a data
    file that is added, otherwise a `Live`. `all_again`: none of the manifests remains.
    """
    unchanged: list[Manifest] = []
    entries: list[tuple[Any, Any]] = []
    for one in held:
        gone = [live for live in one.live if name_of(live) in removed]
        if not gone and not all_again and len(one.live) * 2 >= MOST_ENTRIES:
            unchanged.append(one)
            continue
        if not one.is_foreign:
            entries += [(ManifestEntryStatus.DELETED, live) for live in gone]
        entries += [(ManifestEntryStatus.EXISTING, live) for live in one.live if name_of(live) not in removed]
    entries += [(ManifestEntryStatus.ADDED, file) for file in added]
    starts = range(0, len(entries), MOST_ENTRIES)
    return [*unchanged, *(write(entries[start : start + MOST_ENTRIES]) for start in starts)]


@dataclass(frozen=True, slots=True)
class NewSnapshot:
    """The identity of the snapshot whose manifests are written."""

    id: int
    parent_id: int | None
    sequence: int

    @classmethod
    def after(cls, metadata: Any) -> NewSnapshot:
        """Return that of the snapshot after the current one of the metadata, None: of the first one."""
        if metadata is None:
            return cls(secrets.randbits(63), None, 1)
        return cls(
            metadata.new_snapshot_id(), metadata.current_snapshot_id, metadata.last_sequence_number + 1
        )

    def manifest(self, schema: Any, target: MetadataFile, entries: Sequence[tuple[Any, Any]]) -> Manifest:
        """Write a manifest of this snapshot into a file."""
        with write_manifest(VERSION, UNPARTITIONED_PARTITION_SPEC, schema, target, self.id, _CODEC) as writer:
            for status, one in entries:
                writer.add_entry(self._entry(status, one))
        file: ManifestFile = writer.to_manifest_file()
        file.sequence_number = self.sequence
        if file.min_sequence_number == _UNASSIGNED:
            file.min_sequence_number = self.sequence
        deleted = ManifestEntryStatus.DELETED
        return Manifest(file, tuple(self._live(one) for status, one in entries if status != deleted))

    def _live(self, one: Any) -> Live:
        return one if isinstance(one, Live) else Live(one, self.id, self.sequence, self.sequence)

    def _entry(self, status: Any, one: Any) -> Any:
        if status == ManifestEntryStatus.ADDED:  # its numbers are those of the manifest
            return ManifestEntry.from_args(status=status, snapshot_id=self.id, data_file=one)
        is_deleted = status == ManifestEntryStatus.DELETED
        return ManifestEntry.from_args(
            status=status,
            snapshot_id=self.id if is_deleted else one.snapshot_id,
            sequence_number=one.sequence,
            file_sequence_number=one.file_sequence,
            data_file=one.file,
        )

    def list(self, target: MetadataFile, manifests: Sequence[Manifest]) -> None:
        """Write the list of the snapshot's manifests into a file."""
        with write_manifest_list(VERSION, target, self.id, self.parent_id, self.sequence, _CODEC) as writer:
            writer.add_manifests([one.file for one in manifests])
