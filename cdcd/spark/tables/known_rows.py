"""The rows before a batch whose values its changes need: PostgreSQL did not send all columns.

In: the events of a bucket, the plan of its table.  Out: rows with `__missing`.
Invariant: only if an event lacks a column, the rows of the events' keys are read; incomplete rows always.
Must not: write.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from cdcd.spark.decoding.events import Event
from cdcd.spark.storage.uri import Target
from cdcd.spark.tables.plan import TablePlan
from cdcd.spark.tables.table_files import look_up, read_bucket, read_incomplete
from cdcd.spark.target.shape import KEY, TableShape, as_complete
from cdcd.spark.target.versions import ALL_BUCKETS, BucketFile


def needed_keys(events: Iterable[Event]) -> set[bytes | None]:
    """Return the keys whose rows events may need: all of them if one lacks a column."""
    found = list(events)
    return {event.key for event in found} if any(event.unchanged for event in found) else set()


def complete_rows(
    events: Sequence[Event],
    plan: TablePlan,
    shape: TableShape,
    bucket: int,
    target: Target,
    known: pa.Table | None = None,
) -> pa.Table:
    """Return the complete rows of which events need values. `known`: has all of them, None: they are looked up."""
    wanted = pa.array(needed_keys(events), pa.binary())
    if not len(wanted):
        return as_complete(read_bucket(target, shape, None))
    if known is not None:
        return as_complete(known.filter(pc.is_in(known[KEY], value_set=wanted)))
    files = [one for one in plan.files if ALL_BUCKETS in (bucket, one.bucket) or one.bucket == bucket]
    return as_complete(look_up(target, shape, files, plan.deltas, wanted))


def incomplete_rows(plan: TablePlan, shape: TableShape, bucket: int, target: Target) -> pa.Table:
    """Return the incomplete rows of a bucket."""
    files: list[BucketFile | None] = [None]
    files += [one for one in plan.incomplete.values() if bucket in (ALL_BUCKETS, one.bucket)]
    return pa.concat_tables([read_incomplete(target, shape, file) for file in files])
