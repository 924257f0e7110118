"""The version of the target after a batch, and the check that it has no incomplete row that cannot become complete.

In: the version before, the batch's offsets and folded buckets.  Out: the next version, not published yet.
Invariant: a row whose values the mirror does not all have is never among a table's rows, and exists only while cdcd
copies the table incrementally.
Must not: write files.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import replace

from cdcd.errors import CdcdError, MirrorInconsistent, TableLogUnreadable
from cdcd.spark.decoding.events import BEGINNING
from cdcd.spark.source.cuts import Offsets, ids_of, loading_of, merge, of_topics, with_ids
from cdcd.spark.source.source_position import SourcePosition, lowest
from cdcd.spark.storage.uri import Target
from cdcd.spark.tables.data_file import FILE_ERRORS
from cdcd.spark.tables.plan import TablePlan
from cdcd.spark.tables.table_files import read_incomplete
from cdcd.spark.tables.tasks import FoldResult
from cdcd.spark.target.reached import left_after, positions_after
from cdcd.spark.target.shape import MISSING, TableShape
from cdcd.spark.target.versions import ALL_BUCKETS, BucketFile, Parked, TableEntry, TargetVersion

log = logging.getLogger("cdcd.spark.mirror")


def next_version(
    version: TargetVersion,
    offsets: Offsets,
    entries: dict[str, TableEntry],
    plans: dict[str, TablePlan],
    folded: list[FoldResult],
) -> TargetVersion:
    """Return the version after a batch; tables in an open format still have the files before.

    `offsets`: see `offsets_after`.
    """
    tables = dict(version.tables)
    for topic, entry in entries.items():
        mine = [one for one in folded if one.topic == topic]
        after = entry_after(entry, plans[topic].shape, mine)
        tables[topic] = replace(after, files=entry.files, deltas=()) if plans[topic].is_open else after
    # F58: the last commit, on a new timeline, may have a lower LSN than one of the old timeline.
    dropped = {topic: one for topic, one in version.dropped.items() if topic not in tables}
    loading = set(loading_of(offsets)) - dropped.keys()
    last = max((one.applied for one in (*tables.values(), *dropped.values())), default=BEGINNING)
    return replace(
        version,
        commit_lsn=max(last.commit_lsn, 0),
        offsets=offsets_after(version, offsets),
        tables={topic: _complete_if_copied(one, loading) for topic, one in tables.items()},
        dropped=dropped,
        loading=tuple(sorted(loading)),
    )


def _complete_if_copied(entry: TableEntry, loading: Collection[str]) -> TableEntry:
    """Return the entry; its copy is complete if it is not loading. A parked table has no rows of a copy."""
    is_complete = entry.copying and entry.parked is None and entry.topic not in loading
    return replace(entry, copying=False) if is_complete else entry


def with_position(version: TargetVersion, before: TargetVersion, position: SourcePosition) -> TargetVersion:
    """Return the version at a position in the source; one that is not known changes nothing.

    `before`: the version before, whose commits may be on another timeline.
    """
    if not position.end_lsn and not position.slots:
        return version
    slots = positions_after(version, position)
    return replace(
        version,
        end_lsn=lowest(slots) if slots else position.end_lsn,
        commit_us=max(position.commit_us, version.commit_us),
        positions=slots,
        left=left_after(before, slots, position.first),
    )


def park(
    version: TargetVersion, before: TargetVersion, failures: Mapping[str, tuple[str, str]], now_s: float
) -> TargetVersion:
    """Return a version in which the tables that failed remain as in the version before, parked.

    `failures`: by topic, the error's code and text.
    """
    tables = dict(version.tables)
    for topic, (code, reason) in failures.items():
        entry = before.tables.get(topic) or before.dropped.get(topic, TableEntry(topic))
        is_late = topic in version.loading and topic not in before.tables
        end_lsn = 0 if is_late or topic in before.loading else before.end_lsn
        offsets: Mapping[str, int] | None = before.offsets.get(topic, {})
        commit_us = before.commit_us if end_lsn else 0
        if entry.parked is not None:  # its rows are still those from before the first error
            end_lsn, offsets = entry.parked.end_lsn, entry.parked.offsets
            commit_us = entry.parked.commit_us
        tables[topic] = replace(entry, parked=Parked(code, reason, end_lsn, now_s, offsets, commit_us))
    dropped = {topic: one for topic, one in version.dropped.items() if topic not in tables}
    return replace(version, tables=tables, dropped=dropped)


def with_readable(version: TargetVersion, damaged: Collection[str]) -> TargetVersion:
    """Return a version without the tables' parking for damaged logs and missing files that are there now.

    `damaged`: the topics of the others. Only a table of which no record was read since has all of its changes. One
    that the mirror has never had is forgotten, so that it is found again.
    """
    tables = dict(version.tables)
    for topic, parked in version.parked.items():
        is_complete = parked.offsets == version.offsets.get(topic, {})
        if not parked.is_restorable or topic in damaged or not is_complete:
            continue
        if parked.code == TableLogUnreadable.code and tables[topic].table_version is None:
            del tables[topic]
            continue
        log.info("%s is updated again: its files are there, and no change was left out", topic)
        tables[topic] = replace(tables[topic], parked=None)
    return replace(version, tables=tables)


def offsets_after(version: TargetVersion, offsets: Offsets) -> Offsets:
    """Return the offsets after a batch; the ids are those of the batch in which the topics were read first."""
    merged = merge(of_topics(version.offsets), of_topics(offsets))
    return with_ids(merged, ids_of(offsets) | ids_of(version.offsets))


def entry_after(entry: TableEntry, shape: TableShape, folded: list[FoldResult]) -> TableEntry:
    """Return a table's entry after a batch."""
    is_emptied = shape.emptied_at > entry.applied
    files = [] if is_emptied else list(entry.files)
    deltas = [] if is_emptied else list(entry.deltas)
    incomplete = {} if is_emptied else {one.bucket: one for one in entry.incomplete}
    numbers = tuple(one.number for one in entry.fields)
    changed = [one for one in folded if one.changed]
    for one in changed:
        if one.replaces_deltas:  # and all base files
            files, deltas = [], []
        if one.path is not None:
            file = BucketFile(one.bucket, one.path, one.rows, numbers, size_bytes=one.size_bytes)
            (deltas if one.is_delta else files).append(file)
        incomplete.pop(one.bucket, None)
        if one.incomplete_path is not None:
            incomplete[one.bucket] = BucketFile(one.bucket, one.incomplete_path, one.incomplete_rows, numbers)
    return replace(
        entry,
        # A TRUNCATE alone does not show whether the table's records have a key.
        keyed=shape.keyed if entry.keyed is None and any(one.rows for one in changed) else entry.keyed,
        applied=max([entry.applied, shape.emptied_at, *(one.applied for one in folded)]),
        files=tuple(files),
        deltas=tuple(deltas),
        incomplete=tuple(incomplete[bucket] for bucket in sorted(incomplete)),
        history=(*entry.history, *_history_of(folded, numbers)),
    )


def _history_of(folded: list[FoldResult], numbers: tuple[int, ...]) -> list[BucketFile]:
    return [
        BucketFile(
            ALL_BUCKETS, one.history_path, one.history_rows, numbers, 0, one.history_bytes, one.history_us
        )
        for one in folded
        if one.history_path is not None
    ]


_LACKS = (
    "copy the table again: `cdcd snapshot start --table SCHEMA.TABLE --recopy`, or `cdcd resnapshot` for all tables; "
    "a mirror with --on-error fail needs a larger --max-rows, so that the batch after its position has all of "
    "the copied rows"
)


def incomplete_tables(target: Target, version: TargetVersion) -> dict[str, CdcdError]:
    """Return the error of each table with an incomplete row that is not loading: its values will not come."""
    return {
        topic: _lacking(target, entry)
        for topic, entry in version.tables.items()
        if entry.incomplete and topic not in version.loading and entry.parked is None
    }


def _lacking(target: Target, entry: TableEntry) -> CdcdError:
    try:
        first = min(_missing_since(target, entry))
    except FILE_ERRORS as error:
        return error
    return MirrorInconsistent(
        "updates did not send all columns of rows that the mirror lacks, and cdcd is not copying the table",
        hint=_LACKS,
        topic=entry.topic,
        rows=sum(file.rows for file in entry.incomplete),
        first_commit_lsn=first,
    )


def _missing_since(target: Target, entry: TableEntry) -> list[str]:
    """Return the LSNs of the changes that did not send a value."""
    return [
        lsn
        for file in entry.incomplete
        for columns in read_incomplete(target, entry.shape(), file).column(MISSING).to_pylist()
        for _, lsn in columns
    ]
