"""Fold a batch's records into new bucket files, in Spark's tasks or on the driver.

In: records with topic and bucket, and the plans of their tables.  Out: per bucket the new file, and one with its
incomplete rows if it has any, or the result that the table has to be folded as a whole. Of a table in an open format
the driver's fold has the complete rows in its result; those that Spark's tasks fold are in files, until the driver
commits them.
Invariant: a fold reads the files that the plan names and writes only new files; the new files are not visible before
a version names them.  Must not: query the registry, read or write the commit log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from cdcd.columnar.keys import crc32s
from cdcd.errors import CdcdError, GapInTopic, MirrorInconsistent
from cdcd.spark.clients.sent_to_tasks import for_tasks
from cdcd.spark.decoding import events as ev
from cdcd.spark.storage.uri import Target
from cdcd.spark.tables.arrow_fold import Changes, Latest, changes_of, latest
from cdcd.spark.tables.bag_fold import fold_bag
from cdcd.spark.tables.data_file import FILE_ERRORS
from cdcd.spark.tables.fold import MovedRow, fold_keyed, order_events, without_keys
from cdcd.spark.tables.history_rows import PIECE_BYTES, Decoded, history_rows
from cdcd.spark.tables.key_ranges import is_in_ranges
from cdcd.spark.tables.known_rows import complete_rows, incomplete_rows, needed_keys
from cdcd.spark.tables.plan import TablePlan
from cdcd.spark.tables.table_files import (
    added_rows,
    changed_rows,
    look_up,
    read_bucket,
    read_rows,
    write_bucket,
    write_delta,
    write_history,
)
from cdcd.spark.tables.unreadable import DECODING_ERRORS, first_unreadable, is_of_a_record
from cdcd.spark.target.large_columns import lacks_room, taken
from cdcd.spark.target.shape import KEY, TableShape, as_complete, divide
from cdcd.spark.target.versions import ALL_BUCKETS, BucketFile

TABLE_ERRORS = (*FILE_ERRORS, GapInTopic)
"""The errors that concern one table only: its records are not a consistent history of its rows, or a file is lost."""
_READ = ["topic", "bucket", "partition", "offset", "key", "value"]
"""The columns of the records. Partition and offset are for the errors of a record."""
MOST_THREADS = 8
"""The threads of the driver that fold buckets."""
MOST_COLUMN_BYTES = 1 << 30
"""A column of Arrow has at most 2 GiB of bytes."""

_RESULT = (
    "topic string, bucket int, changed boolean, is_delta boolean, replaces_deltas boolean, path string, rows long, "
    "size_bytes long, timeline long, commit_lsn long, phase int, tx_seq long, moved boolean, "
    "incomplete_path string, incomplete_rows long, history_path string, history_rows long, history_bytes long, "
    "history_us long, failure_code string, failure string"
)


@dataclass(frozen=True, slots=True)
class FoldResult:
    """The result of one bucket's fold.

    `path` None: no file of complete rows. `is_delta`: its rows replace others; else they are all of the bucket.
    `replaces_deltas`: it also has the rows of the table's deltas. `incomplete_path` None: no such rows.
    `history_path`: the file of all changes, None without a history.
    `failure`: why the table cannot be folded, with the error's code; "" if it can.
    """

    topic: str
    bucket: int
    changed: bool
    is_delta: bool
    replaces_deltas: bool
    path: str | None
    rows: int
    applied: ev.Sequence
    moved: bool
    incomplete_path: str | None = None
    incomplete_rows: int = 0
    history_path: str | None = None
    history_rows: int = 0
    history_bytes: int = 0
    history_us: int = 0
    failure_code: str = ""
    failure: str = ""
    size_bytes: int = 0
    """Of `path`, in memory."""
    complete: pa.Table | None = field(default=None, compare=False, repr=False)
    """The complete rows, if they are in no file: those of `path` otherwise."""


def buckets_of(keys: pa.ChunkedArray, buckets: int) -> pa.Array:
    """Return the bucket of each key; the keys are without header."""
    found = [crc32s(chunk) for chunk in keys.chunks]
    return pa.array(np.concatenate([np.empty(0, np.uint32), *found]) % buckets, pa.int32())


def fold_in_tasks(
    changes: DataFrame, plans: dict[str, TablePlan], target: Target, buckets: int
) -> list[FoldResult]:
    """Fold each (topic, bucket) of a frame in Spark's tasks."""

    def run(group: pa.Table) -> pa.Table:
        found = write_folds(fold_or_failure(group, plans, target, buckets), target)
        return pa.Table.from_pylist([_row_of(one) for one in found], schema=_RESULT_ARROW)

    chosen = changes.select(*_READ)
    return _unpacked(
        one.asDict()
        for one in chosen.groupBy("topic", "bucket").applyInArrow(for_tasks(run), _RESULT).collect()
    )


def fold_on_driver(
    changes: pa.Table, plans: dict[str, TablePlan], target: Target, buckets: int
) -> list[FoldResult]:
    """Fold each (topic, bucket) of a table, some at the same time. The changed rows of a table are one file."""
    groups = list(_split(changes.select(_READ)))
    if not groups:
        return []
    in_memory = any(plan.is_open for plan in plans.values())  # all tables of a target have one format
    with ThreadPoolExecutor(min(len(groups), MOST_THREADS), "cdcd-fold") as pool:
        batches = _shared(groups, plans, target, pool)
        found = pool.map(
            lambda group, batch: fold_or_failure(group, plans, target, buckets, batch), groups, batches
        )
        by_topic: dict[str, list[Fold]] = {}
        for one in (fold for folds in found for fold in folds):
            by_topic.setdefault(one.shape.topic, []).append(one)
        files = pool.map(
            lambda folds: write_folds(unite_deltas(folds), target, in_memory=in_memory), by_topic.values()
        )
        return [one for folded in files for one in folded]


def _shared(
    groups: Sequence[pa.Table], plans: dict[str, TablePlan], target: Target, pool: ThreadPoolExecutor
) -> list[_Batch | None]:
    """Return the batches of groups with the rows that they need, None for those that are folded on their own.

    The keys of each bucket are in most files of a table in ranges: they are looked up once for all buckets. An error
    is that of the fold, which raises it again.
    """
    batches = list(pool.map(lambda group: _batch_or_none(group, plans), groups))
    needed: dict[str, set[bytes | None]] = {}
    for batch in batches:
        if batch is not None and batch.shape.emptied_at <= batch.shape.watermark:
            needed.setdefault(batch.shape.topic, set()).update(needed_keys(batch.events))
    known = {
        topic: _known_or_none(plans[topic], pa.array(keys, pa.binary()), target)
        for topic, keys in needed.items()
        if keys
    }
    return [None if one is None else replace(one, known=known.get(one.shape.topic)) for one in batches]


def _batch_or_none(group: pa.Table, plans: dict[str, TablePlan]) -> _Batch | None:
    plan = plans[group["topic"][0].as_py()]
    if not is_in_ranges(plan.files):
        return None
    with suppress(*TABLE_ERRORS, pa.ArrowException):
        return _decoded(group, plan, group["bucket"][0].as_py())
    return None


def _known_or_none(plan: TablePlan, keys: pa.Array, target: Target) -> pa.Table | None:
    with suppress(*TABLE_ERRORS, pa.ArrowException):
        return look_up(target, plan.shape, plan.files, plan.deltas, keys)
    return None


def _split(table: pa.Table) -> Iterator[pa.Table]:
    """Yield the records of each (topic, bucket), in their order."""
    topics = table["topic"].combine_chunks().dictionary_encode()
    buckets = np.asarray(table["bucket"]).astype(np.int64) - ALL_BUCKETS
    groups = np.asarray(topics.indices) * (buckets.max(initial=0) + 1) + buckets
    is_narrow = groups.max(initial=0) < 1 << 16  # numpy sorts numbers of 16 bits by radix
    order = np.argsort(groups.astype(np.uint16) if is_narrow else groups, kind="stable")
    encoded = table.set_column(table.column_names.index("topic"), "topic", topics)
    sorted_rows, start = taken(encoded, pa.array(order)), 0
    for size in np.unique(groups, return_counts=True)[1].tolist():
        yield sorted_rows.slice(start, size)
        start += size


def _row_of(one: FoldResult) -> dict[str, Any]:
    row = {name: getattr(one, name) for name in _COLUMNS}
    return row | one.applied._asdict()


_COLUMNS = [name for name in FoldResult.__dataclass_fields__ if name not in ("applied", "complete")]


def _unpacked(rows: Iterable[dict[str, Any]]) -> list[FoldResult]:
    return [
        FoldResult(
            applied=ev.Sequence(*(one[name] for name in ev.Sequence._fields)),
            **{name: value for name, value in one.items() if name not in ev.Sequence._fields},
        )
        for one in rows
    ]


_RESULT_ARROW = pa.schema(
    [
        ("topic", pa.string()),
        ("bucket", pa.int32()),
        ("changed", pa.bool_()),
        ("is_delta", pa.bool_()),
        ("replaces_deltas", pa.bool_()),
        ("path", pa.string()),
        ("rows", pa.int64()),
        ("size_bytes", pa.int64()),
        ("timeline", pa.int64()),
        ("commit_lsn", pa.int64()),
        ("phase", pa.int32()),
        ("tx_seq", pa.int64()),
        ("moved", pa.bool_()),
        ("incomplete_path", pa.string()),
        ("incomplete_rows", pa.int64()),
        ("history_path", pa.string()),
        ("history_rows", pa.int64()),
        ("history_bytes", pa.int64()),
        ("history_us", pa.int64()),
        ("failure_code", pa.string()),
        ("failure", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class Fold:
    """The rows of one bucket after its records, not written yet.

    `rows`: complete ones, None if nothing has changed; those of a delta have `DELETED`. `incomplete` None: none.
    `history`: all changes, in tables of a bounded size; none without a history.
    """

    shape: TableShape
    bucket: int
    applied: ev.Sequence
    rows: pa.Table | None = None
    is_delta: bool = False
    replaces_deltas: bool = False
    incomplete: pa.Table | None = None
    history: tuple[pa.Table, ...] = ()
    moved: bool = False
    failure: CdcdError | None = None


def unite_deltas(folds: list[Fold]) -> list[Fold]:
    """Return the folds of one table with one delta, which has the rows of all buckets."""
    deltas = [one.rows for one in folds if one.is_delta and one.rows is not None]
    if len(deltas) < 2 or any(one.moved or one.failure for one in folds):
        return folds
    rest = [
        replace(one, rows=one.rows.slice(0, 0)) if one.is_delta and one.rows is not None else one
        for one in folds
    ]
    return [
        *rest,
        Fold(folds[0].shape, ALL_BUCKETS, folds[0].applied, pa.concat_tables(deltas), is_delta=True),
    ]


def write_folds(folds: list[Fold], target: Target, *, in_memory: bool = False) -> list[FoldResult]:
    """Write the rows of folds into new files, none if a row needs another bucket, or the table cannot be folded.

    `in_memory`: the complete rows are in the result instead.
    """
    failed = [_described(one, None, None) for one in folds if one.failure]
    if failed:
        return failed
    if any(one.moved for one in folds):
        return [_described(replace(one, rows=None, moved=True), None, None) for one in folds]
    found = []
    for one in folds:
        file = None if in_memory else _written(one, target)
        incomplete = None
        if one.incomplete is not None and one.incomplete.num_rows:
            incomplete = write_bucket(target, one.shape, one.bucket, one.incomplete)
        described = _described(one, file, incomplete)
        if in_memory and one.rows is not None:
            described = replace(described, complete=one.rows, rows=one.rows.num_rows)
        found.append(described)
    return _with_history(folds, found, target)


def _with_history(folds: list[Fold], found: list[FoldResult], target: Target) -> list[FoldResult]:
    """Write the changes of all folds, which are of one table, into files of a bounded size."""
    lines = _in_pieces([one for fold in folds for one in fold.history])
    files = [write_history(target, folds[0].shape, one) for one in lines]
    if not files:
        return found
    further = _described(
        Fold(folds[0].shape, folds[0].bucket, folds[0].applied), None, None
    )  # changes no rows
    with_files = [
        replace(
            one,
            history_path=file.path,
            history_rows=file.rows,
            history_bytes=file.size_bytes,
            history_us=file.last_us,
        )
        for one, file in zip([found[0], *[further] * (len(files) - 1)], files, strict=True)
    ]
    return [*with_files, *found[1:]]


def _in_pieces(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield tables of lines, those that are small as one."""
    piece: list[pa.Table] = []
    for one in tables:
        if piece and sum(each.nbytes for each in piece) + one.nbytes > PIECE_BYTES:
            yield pa.concat_tables(piece)
            piece = []
        if one.num_rows:
            piece.append(one)
    if piece:
        yield pa.concat_tables(piece)


def _written(one: Fold, target: Target) -> BucketFile | None:
    if one.rows is None or (one.is_delta and not one.rows.num_rows):
        return None
    if one.is_delta:
        return write_delta(target, one.shape, one.rows, bucket=one.bucket)
    return write_bucket(target, one.shape, one.bucket, one.rows)


def _described(one: Fold, file: BucketFile | None, incomplete: BucketFile | None) -> FoldResult:
    return FoldResult(
        topic=one.shape.topic,
        bucket=one.bucket,
        changed=one.rows is not None,
        is_delta=one.is_delta,
        replaces_deltas=one.replaces_deltas,
        path=None if file is None else file.path,
        rows=0 if file is None else file.rows,
        size_bytes=0 if file is None else file.size_bytes,
        applied=one.applied,
        moved=one.moved,
        incomplete_path=None if incomplete is None else incomplete.path,
        incomplete_rows=0 if incomplete is None else incomplete.rows,
        failure_code="" if one.failure is None else one.failure.code,
        failure="" if one.failure is None else str(one.failure),
    )


@dataclass(frozen=True, slots=True)
class _Batch:
    """The records of a bucket. `events` are folded row by row, in order; `latest` has the rows of all other keys.

    `shape`: with the last TRUNCATE. `applied`: the last sequence.
    """

    events: list[ev.Event]
    latest: Latest | None
    shape: TableShape
    applied: ev.Sequence
    changes: Changes | None = None
    """The decoded changes of which `latest` has the last ones."""
    others: tuple[ev.Event, ...] = ()
    """The events that are not changes of a row, without `changes` all events."""
    known: pa.Table | None = None
    """Has the rows of the table that `events` need, None: they are not looked up yet."""

    @property
    def has_changes(self) -> bool:
        return bool(self.events) or (self.latest is not None and len(self.latest.keys) > 0)


def fold_or_failure(
    group: pa.Table, plans: dict[str, TablePlan], target: Target, buckets: int, batch: _Batch | None = None
) -> list[Fold]:
    """Fold as `fold_group`; an error of the table's records is the result."""
    plan = plans[group["topic"][0].as_py()]
    failure: CdcdError
    try:
        return fold_group(group, plans, target, buckets, batch)
    except TABLE_ERRORS as error:
        failure = error
    except MemoryError:  # Arrow's is an ArrowException
        raise
    except pa.ArrowException as error:  # its text may have values
        if lacks_room(error):
            raise
        failure = MirrorInconsistent(
            "rows cannot be stored in the columns of the table",
            topic=plan.shape.topic,
            error=type(error).__name__,
        )
    if not plan.parks:
        raise failure
    return [Fold(plan.shape, group["bucket"][0].as_py(), plan.shape.watermark, failure=failure)]


def fold_group(
    group: pa.Table, plans: dict[str, TablePlan], target: Target, buckets: int, batch: _Batch | None = None
) -> list[Fold]:
    """Fold the records of one (topic, bucket), or of all buckets of a topic (`ALL_BUCKETS`).

    `batch`: the decoded records, None: they are not decoded yet.
    """
    topic, bucket = group["topic"][0].as_py(), group["bucket"][0].as_py()
    plan = plans[topic]
    batch = batch or _decoded(group, plan, bucket)
    emptied_now = batch.shape.emptied_at > batch.shape.watermark
    nothing = Fold(batch.shape, bucket, batch.applied)
    try:
        if plan.has_history and batch.shape.keyed:
            decoded = Decoded(group, batch.changes, batch.others)
            nothing = replace(nothing, history=tuple(history_rows(decoded, plan, bucket, target)))
        if not batch.has_changes and not (emptied_now and not batch.shape.keyed):
            return [nothing]
        fold = _fold_keyed if batch.shape.keyed else _fold_bag
        folds = fold(batch, plan, bucket, emptied_now, target, buckets)
        return [replace(folds[0], history=nothing.history), *folds[1:]]
    except MovedRow:
        return [replace(nothing, moved=True)]


def _decoded(group: pa.Table, plan: TablePlan, bucket: int) -> _Batch:
    """Return the records. Raises MirrorInconsistent for one that cdcd did not write, with its place in Kafka."""
    try:
        return _batch_in_columns(group, plan, bucket) or _batch_by_row(group, plan)
    except DECODING_ERRORS as error:
        found = first_unreadable(group, plan.schemas, plan.shape.topic) if is_of_a_record(error) else None
        if found is None:
            raise
        raise found from None


def _batch_by_row(group: pa.Table, plan: TablePlan) -> _Batch:
    found = plan.events_in(group)
    shape = _checked(found, plan)
    last = max(event.sequence for event in found)
    return _Batch(order_events(found, shape), None, shape, last, others=tuple(found))


def _batch_in_columns(group: pa.Table, plan: TablePlan, bucket: int) -> _Batch | None:
    """Return the batch, mostly folded; None if all records have to be folded row by row."""
    if not plan.shape.keyed or bucket == ALL_BUCKETS or group.nbytes > MOST_COLUMN_BYTES:
        return None
    keys, values = group["key"].combine_chunks(), group["value"].combine_chunks()
    changes = changes_of(keys, values, plan.schemas, plan.shape.fields, with_times=plan.has_history)
    if changes is None or (plan.shape.renames and changes.name_columns):
        return None
    others = plan.events_in(group.take(changes.others))
    shape = _checked(others, plan)
    found = latest(changes, shape)
    if found is None:
        return None
    events = order_events([*others, *plan.events_in(group.take(found.rest))], shape)
    last = max([changes.last, *(event.sequence for event in others)])
    return _Batch(events, found, shape, last, changes, tuple(others))


def _checked(found: list[ev.Event], plan: TablePlan) -> TableShape:
    """Return the shape with the last TRUNCATE. Raises GapInTopic for a gap that is not accepted."""
    emptied = max((event.sequence for event in found if event.op == "t"), default=ev.BEGINNING)
    shape = replace(plan.shape, emptied_at=max(emptied, plan.shape.emptied_at))
    over = max(shape.watermark, shape.emptied_at)
    for event in found:
        ev.check_gap(event, shape.topic, is_accepted=plan.accepts_gaps or event.sequence <= over)
    return shape


def _fold_bag(
    batch: _Batch, plan: TablePlan, bucket: int, emptied_now: bool, target: Target, buckets: int
) -> list[Fold]:
    """Fold a table without a key: rows are added, or all of its files are replaced if some are removed."""
    shape, is_new = batch.shape, emptied_now or not (plan.files or plan.deltas)
    if not is_new and all(event.op in ("c", "r") for event in batch.events):
        added = fold_bag(batch.events, shape, read_bucket(target, shape, None))
        return [Fold(shape, 0, batch.applied, added_rows(added), is_delta=True)]
    existing = read_rows(target, shape, *((), ()) if is_new else (plan.files, plan.deltas))
    rows = fold_bag(batch.events, shape, existing)
    return [Fold(shape, 0, batch.applied, rows, replaces_deltas=True)]


def _fold_keyed(
    batch: _Batch, plan: TablePlan, bucket: int, emptied_now: bool, target: Target, buckets: int
) -> list[Fold]:
    """Fold a table with a key: the changed rows are a delta, of a table without rows the base files."""
    shape, is_new = batch.shape, emptied_now or not (plan.files or plan.deltas)
    existing = incomplete = as_complete(read_bucket(target, shape, None))
    if not emptied_now:
        incomplete = incomplete_rows(plan, shape, bucket, target)
    if not is_new:
        existing = complete_rows(batch.events, plan, shape, bucket, target, batch.known)
    known = pa.concat_tables([existing, incomplete])
    rows, keys = fold_keyed(batch.events, shape, known, whole=bucket == ALL_BUCKETS)
    if batch.latest is not None:
        rows = pa.concat_tables([rows, as_complete(batch.latest.rows)])
        keys = pa.concat_arrays([keys, batch.latest.keys])
    complete, lacking = divide(rows)
    lacking = pa.concat_tables([without_keys(incomplete, keys), lacking])
    result = complete if is_new else changed_rows(complete, keys)
    whole = Fold(shape, bucket, batch.applied, result, is_delta=not is_new, incomplete=lacking)
    if bucket != ALL_BUCKETS:
        return [whole]
    parts = zip(by_bucket(result, buckets), by_bucket(lacking, buckets), strict=True)
    return [
        replace(whole, bucket=number, rows=rows, incomplete=rows_lacking)
        for number, (rows, rows_lacking) in enumerate(parts)
    ]


def by_bucket(rows: pa.Table, buckets: int) -> list[pa.Table]:
    """Return the rows of each bucket; all of them if there is one."""
    if buckets == 1:
        return [rows]
    places = buckets_of(rows.column(KEY), buckets)
    return [rows.filter(pc.equal(places, number)) for number in range(buckets)]
