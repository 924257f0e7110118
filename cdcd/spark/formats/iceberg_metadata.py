"""The metadata of an Iceberg table: the columns, and the snapshots that can be read. Pure.

In: the metadata before, a snapshot, times.  Out: the next metadata.
Invariant: it has nothing of another writer but the table's id, the columns and the snapshots; a later time than the
metadata before; and no snapshot of which a file may be removed, or whose files are at another location.
Must not: do I/O, read the clock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadataV2
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, SnapshotLogEntry, Summary
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

from cdcd.spark.formats.iceberg_manifests import VERSION, NewSnapshot

__all__ = [
    "FIRST",
    "MOST_SNAPSHOTS",
    "has_ended",
    "metadata_after",
    "next_metadata",
    "schema_as",
    "snapshot_of",
    "totals_of",
]

FIRST = 1
"""The number of the first version."""
MOST_SNAPSHOTS = 100
"""The most snapshots in the metadata, which each commit writes."""
_LAST_PARTITION_ID = 999
_PROPERTIES = {"gc.enabled": "false"}
"""Other writers do not remove files: the mirror does."""


def schema_as(before: Any, schema: Schema) -> Schema:
    """Return a schema with the id that it has in the metadata, or with a new one."""
    known = () if before is None else before.schemas
    for one in known:
        if one == schema:
            return one
    return schema.model_copy(update={"schema_id": max((one.schema_id for one in known), default=-1) + 1})


def totals_of(live: Mapping[str, Any], added: Collection[Any], removed: Collection[Any]) -> dict[str, str]:
    """Return the numbers of a snapshot's summary. `live`: the files before."""
    found: dict[str, int] = {}
    for files, name, done in ((added, "added", "added"), (removed, "removed", "deleted")):
        if files:
            found[f"{done}-data-files"] = len(files)
            found[f"{done}-records"] = _rows(files)
            found[f"{name}-files-size"] = _bytes(files)
    before = live.values()
    found["total-data-files"] = len(live) + len(added) - len(removed)
    found["total-records"] = _rows(before) + _rows(added) - _rows(removed)
    found["total-files-size"] = _bytes(before) + _bytes(added) - _bytes(removed)
    return {name: str(number) for name, number in found.items()}


def _rows(files: Iterable[Any]) -> int:
    return sum(one.record_count for one in files)


def _bytes(files: Iterable[Any]) -> int:
    return sum(one.file_size_in_bytes for one in files)


def snapshot_of(
    new: NewSnapshot,
    listed: str,
    schema: Schema,
    texts: Mapping[str, str],
    now_ms: int,
    *,
    changes_rows: bool,
) -> Snapshot:
    """Return the snapshot of a list of manifests. `texts`: its summary."""
    return Snapshot(
        snapshot_id=new.id,
        parent_snapshot_id=new.parent_id,
        sequence_number=new.sequence,
        timestamp_ms=now_ms,
        manifest_list=listed,
        summary=Summary(_operation(texts, changes_rows=changes_rows), **texts),
        schema_id=schema.schema_id,
    )


def _operation(texts: Mapping[str, str], *, changes_rows: bool) -> Operation:
    if not changes_rows:
        return Operation.REPLACE
    if "deleted-data-files" not in texts:
        return Operation.APPEND
    return Operation.OVERWRITE if "added-data-files" in texts else Operation.DELETE


def next_metadata(
    before: Any, location: str, schema: Schema, snapshot: Snapshot | None, now_ms: int, retained_ms: float
) -> TableMetadataV2:
    """Return the metadata after `before`, None: of a new table.

    `snapshot` None: the files are those before. `retained_ms`: snapshots that ended before this time are gone.
    """
    snapshots: list[Snapshot] = list(before.snapshots) if _is_ours(before, location) else []
    if snapshot is not None:
        snapshots.append(snapshot)
    snapshots = _retained(snapshots, retained_ms)
    current = snapshot or (None if before is None else before.current_snapshot())
    used = {one.schema_id for one in snapshots} | {schema.schema_id}
    known = {one.schema_id: one for one in (() if before is None else before.schemas)}
    schemas = known | {schema.schema_id: schema}
    highest = max(schema.highest_field_id, 0 if before is None else before.last_column_id)
    return TableMetadataV2(
        location=location,
        **({} if before is None else {"table_uuid": before.table_uuid}),
        last_updated_ms=now_ms,
        last_column_id=highest,
        last_sequence_number=_sequence(before, snapshot),
        schemas=[one for number, one in schemas.items() if number in used],
        current_schema_id=schema.schema_id,
        partition_specs=[UNPARTITIONED_PARTITION_SPEC],
        last_partition_id=_LAST_PARTITION_ID,
        sort_orders=[UNSORTED_SORT_ORDER],
        properties=_PROPERTIES,
        snapshots=snapshots,
        snapshot_log=[
            SnapshotLogEntry(snapshot_id=one.snapshot_id, timestamp_ms=one.timestamp_ms) for one in snapshots
        ],
        **({} if current is None else _main(current)),
    )


def metadata_after(earlier: Any, newest: Any) -> Any:
    """Return earlier metadata, which is committed again, with the time and the numbers that it has to succeed.

    `newest` None: it is not readable.
    """
    names = ("last_updated_ms", "last_sequence_number", "last_column_id")
    return earlier.model_copy(
        update={name: max(getattr(earlier, name), getattr(newest, name, 0)) for name in names}
    )


def has_ended(metadata: Any, retained_ms: float) -> bool:
    """Return whether the metadata has snapshots that ended before a time."""
    return len(_retained(metadata.snapshots, retained_ms)) < len(metadata.snapshots)


def _is_ours(metadata: Any, location: str) -> bool:
    """Return whether the snapshots may remain: of a target that was moved, none is readable."""
    return metadata is not None and metadata.format_version == VERSION and metadata.location == location


def _main(current: Snapshot) -> dict[str, Any]:
    ref = SnapshotRef(snapshot_id=current.snapshot_id, snapshot_ref_type=SnapshotRefType.BRANCH)
    return {"current_snapshot_id": current.snapshot_id, "refs": {MAIN_BRANCH: ref}}


def _sequence(before: Any, snapshot: Snapshot | None) -> int:
    if snapshot is not None and snapshot.sequence_number is not None:
        return int(snapshot.sequence_number)
    return 0 if before is None else int(before.last_sequence_number)


def _retained(snapshots: Sequence[Snapshot], retained_ms: float) -> list[Snapshot]:
    """Return the last snapshot, and those whose successors are not older than the time."""
    found = [one for one, later in pairwise(snapshots) if later.timestamp_ms >= retained_ms]
    return [*found, *snapshots[-1:]][-MOST_SNAPSHOTS:]
