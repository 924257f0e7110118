"""Fold a batch's records into new bucket files, in Spark's tasks or on the driver.

In: records with topic and bucket, and the plans of their tables.  Out: per bucket the new file, and one with its
incomplete rows if it has any, or the result that the table has to be folded as a whole.
Invariant: a fold reads the files that the plan names and writes only new files; the new files are not visible before
the manifest names them.  Must not: query the registry, read or write the manifest.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from cdcd.spark import events as ev
from cdcd.spark.arrow_fold import Latest, changes_of, latest
from cdcd.spark.fold import MovedRow, fold_bag, fold_keyed, ordered, without_keys
from cdcd.spark.manifest import BucketFile, read_bucket, read_incomplete, write_bucket
from cdcd.spark.plan import TablePlan
from cdcd.spark.shape import KEY, TableShape, as_complete, divided
from cdcd.spark.storage import Target

MOST_THREADS = 8
"""Of the driver."""
MOST_COLUMN_BYTES = 1 << 30
"""A column of Arrow has at most 2 GiB of bytes."""
WHOLE = -1
"""A bucket number that means all buckets of the table."""

_RESULT = (
    "topic string, bucket int, path string, rows long, "
    "timeline long, commit_lsn long, phase int, tx_seq long, moved boolean, "
    "incomplete_path string, incomplete_rows long"
)


@dataclass(frozen=True, slots=True)
class Folded:
    """The result of one bucket's fold. `path` None: nothing has changed. `incomplete_path` None: no such rows."""

    topic: str
    bucket: int
    path: str | None
    rows: int
    applied: ev.Sequence
    moved: bool
    incomplete_path: str | None = None
    incomplete_rows: int = 0


def bucket_of(key: bytes, buckets: int) -> int:
    """Return the bucket of a key without header."""
    return zlib.crc32(key) % buckets


def fold_in_tasks(
    changes: DataFrame, plans: dict[str, TablePlan], target: Target, buckets: int
) -> list[Folded]:
    """Fold each (topic, bucket) of a frame in Spark's tasks."""

    def run(group: pa.Table) -> pa.Table:
        return fold_group(group, plans, target, buckets)

    chosen = changes.select("topic", "bucket", "key", "value")
    return _unpacked(
        one.asDict() for one in chosen.groupBy("topic", "bucket").applyInArrow(run, _RESULT).collect()
    )


def fold_on_driver(
    changes: pa.Table, plans: dict[str, TablePlan], target: Target, buckets: int
) -> list[Folded]:
    """Fold each (topic, bucket) of a table, some at the same time: they wait for the storage."""
    groups = list(_split(changes.select(["topic", "bucket", "key", "value"])))
    if not groups:
        return []
    with ThreadPoolExecutor(min(len(groups), MOST_THREADS), "cdcd-fold") as pool:
        folded = list(pool.map(lambda group: fold_group(group, plans, target, buckets), groups))
    return _unpacked(pa.concat_tables(folded).to_pylist())


def _split(table: pa.Table) -> Iterator[pa.Table]:
    """Yield the records of each (topic, bucket), in their order."""
    places = ["topic", "bucket"]
    order = pc.sort_indices(table, [(name, "ascending") for name in places])  # a stable sort
    sizes = (
        table.group_by(places)
        .aggregate([([], "count_all")])
        .sort_by([(name, "ascending") for name in places])
    )
    sorted_rows, start = table.take(order), 0
    for size in sizes["count_all"].to_pylist():
        yield sorted_rows.slice(start, size)
        start += size


def _unpacked(rows: Iterable[dict[str, Any]]) -> list[Folded]:
    return [
        Folded(
            one["topic"],
            one["bucket"],
            one["path"],
            one["rows"],
            ev.Sequence(one["timeline"], one["commit_lsn"], one["phase"], one["tx_seq"]),
            one["moved"],
            one["incomplete_path"],
            one["incomplete_rows"],
        )
        for one in rows
    ]


_RESULT_ARROW = pa.schema(
    [
        ("topic", pa.string()),
        ("bucket", pa.int32()),
        ("path", pa.string()),
        ("rows", pa.int64()),
        ("timeline", pa.int64()),
        ("commit_lsn", pa.int64()),
        ("phase", pa.int32()),
        ("tx_seq", pa.int64()),
        ("moved", pa.bool_()),
        ("incomplete_path", pa.string()),
        ("incomplete_rows", pa.int64()),
    ]
)


class _Batch(NamedTuple):
    """The records of a bucket. `events` are folded row by row, in order; `latest` has the rows of all other keys.

    `shape`: with the last TRUNCATE. `applied`: the last sequence.
    """

    events: list[ev.Event]
    latest: Latest | None
    shape: TableShape
    applied: ev.Sequence

    @property
    def has_changes(self) -> bool:
        return bool(self.events) or (self.latest is not None and len(self.latest.keys) > 0)


def fold_group(group: pa.Table, plans: dict[str, TablePlan], target: Target, buckets: int) -> pa.Table:
    """Fold the records of one (topic, bucket), write the bucket's new file, and return its description."""
    topic, bucket = group["topic"][0].as_py(), group["bucket"][0].as_py()
    plan = plans[topic]
    batch = _batch_in_columns(group, plan, bucket) or _batch_by_row(group, plan)
    emptied_now = batch.shape.emptied_at > batch.shape.watermark
    written: list[_Written] = []
    moved = False
    if batch.has_changes or (emptied_now and not batch.shape.keyed):
        try:
            written = _fold_buckets(batch, plan, bucket, emptied_now, target, buckets)
        except MovedRow:
            moved = True
    rows = [_described(*one) for one in written] or [_NOTHING | {"bucket": bucket}]
    common = {"topic": topic, "moved": moved, **batch.applied._asdict()}
    return pa.Table.from_pylist([{**common, **one} for one in rows], schema=_RESULT_ARROW)


def _batch_by_row(group: pa.Table, plan: TablePlan) -> _Batch:
    found = _events_of(group, plan)
    shape = _checked(found, plan)
    return _Batch(ordered(found, shape), None, shape, max(event.sequence for event in found))


def _batch_in_columns(group: pa.Table, plan: TablePlan, bucket: int) -> _Batch | None:
    """Return the batch, mostly folded; None if all records have to be folded row by row."""
    if not plan.shape.keyed or bucket == WHOLE or group.nbytes > MOST_COLUMN_BYTES:
        return None
    keys, values = group["key"].combine_chunks(), group["value"].combine_chunks()
    changes = changes_of(keys, values, plan.schemas, plan.shape.fields)
    if changes is None:
        return None
    others = _events_of(group.take(changes.others), plan)
    shape = _checked(others, plan)
    found = latest(changes, shape)
    if found is None:
        return None
    events = ordered([*others, *_events_of(group.take(found.rest), plan)], shape)
    return _Batch(events, found, shape, max([changes.last, *(event.sequence for event in others)]))


def _events_of(group: pa.Table, plan: TablePlan) -> list[ev.Event]:
    records = zip(group["key"].to_pylist(), group["value"].to_pylist(), strict=True)
    return list(ev.read_events(records, plan.schemas))


def _checked(found: list[ev.Event], plan: TablePlan) -> TableShape:
    """Return the shape with the last TRUNCATE. Raises GapInTopic for a gap that is not accepted."""
    emptied = max((event.sequence for event in found if event.op == "t"), default=ev.BEGINNING)
    shape = replace(plan.shape, emptied_at=max(emptied, plan.shape.emptied_at))
    over = max(shape.watermark, shape.emptied_at)
    for event in found:
        ev.check_gap(event, shape.topic, is_accepted=plan.accepts_gaps or event.sequence <= over)
    return shape


_Written = tuple[BucketFile, BucketFile | None]
_NOTHING: dict[str, Any] = {"path": None, "rows": 0, "incomplete_path": None, "incomplete_rows": 0}


def _described(file: BucketFile, incomplete: BucketFile | None) -> dict[str, Any]:
    described = _NOTHING | {"path": file.path, "rows": file.rows, "bucket": file.bucket}
    if incomplete is not None:
        described |= {"incomplete_path": incomplete.path, "incomplete_rows": incomplete.rows}
    return described


def _fold_buckets(
    batch: _Batch,
    plan: TablePlan,
    bucket: int,
    emptied_now: bool,
    target: Target,
    buckets: int,
) -> list[_Written]:
    shape = batch.shape
    existing = _existing(plan.files, shape, bucket, emptied_now, partial(read_bucket, target))
    if not shape.keyed:
        return [(write_bucket(target, shape, 0, fold_bag(batch.events, shape, existing)), None)]
    incomplete = _existing(plan.incomplete, shape, bucket, emptied_now, partial(read_incomplete, target))
    existing = pa.concat_tables([as_complete(existing), incomplete])
    rows, keys = fold_keyed(batch.events, shape, existing, whole=bucket == WHOLE)
    if batch.latest is not None:
        rows = pa.concat_tables([rows, as_complete(batch.latest.rows)])
        keys = pa.concat_arrays([keys, batch.latest.keys])
    result = pa.concat_tables([without_keys(existing, keys), rows])
    if bucket != WHOLE:
        return [_written(target, shape, bucket, result)]
    places = pa.array([bucket_of(key, buckets) for key in result.column(KEY).to_pylist()], pa.int32())
    return [_written(target, shape, one, result.filter(pc.equal(places, one))) for one in range(buckets)]


def _existing(
    files: Mapping[int, BucketFile],
    shape: TableShape,
    bucket: int,
    emptied_now: bool,
    read: Callable[[TableShape, BucketFile | None], pa.Table],
) -> pa.Table:
    held: list[BucketFile | None] = [None]
    if not emptied_now:
        held = [files.get(bucket)] if bucket != WHOLE else [*files.values()] or [None]
    return pa.concat_tables([read(shape, file) for file in held])


def _written(target: Target, shape: TableShape, bucket: int, rows: pa.Table) -> _Written:
    complete, incomplete = divided(rows)
    file = write_bucket(target, shape, bucket, complete)
    return file, write_bucket(target, shape, bucket, incomplete) if incomplete.num_rows else None
