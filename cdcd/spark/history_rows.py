"""Every row that a batch's changes give, for the history of a keyed table.

In: the records of a bucket, those decoded that columns can have; the plan of the table; its files.
Out: one line for each change, with the row after it: the columns of `history_schema`.
Invariant: each change after the watermark is there once, those before a TRUNCATE too, and the TRUNCATE itself. A
column that PostgreSQL did not send has the value of the row before; a line whose values are not all known has
`__missing`.
Must not: write.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from cdcd.errors import MirrorInconsistent
from cdcd.spark import events as ev
from cdcd.spark.arrow_fold import Changes, at_of, new_rows, shaped
from cdcd.spark.fold import RowState, missing_of, order_events, row_states, rows_of
from cdcd.spark.known_rows import complete_rows, incomplete_rows
from cdcd.spark.plan import TablePlan
from cdcd.spark.shape import (
    AT_TYPE,
    KEY,
    MISSING,
    MISSING_TYPE,
    TableShape,
    arrow_schema,
    as_complete,
    history_schema,
)
from cdcd.spark.storage import Target
from cdcd.spark.table_files import read_bucket
from cdcd.spark.versions import ALL_BUCKETS

__all__ = ["Decoded", "history_rows"]

_AT = ["timeline", "commit_lsn", "phase", "tx_seq"]
LOST = "x"
"""The operation of a line behind which changes are missing: the table was parked, or the stream has a gap."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """The records of a bucket. `changes`: those that are decoded into columns, None: none of them.

    `others`: the events that are no change of a row; without `changes` all events. `shape`: with the last TRUNCATE.
    """

    records: pa.Table
    changes: Changes | None
    others: Sequence[ev.Event]
    shape: TableShape


def history_rows(found: Decoded, plan: TablePlan, bucket: int, target: Target) -> pa.Table:
    """Return a line for each change of the records. Raises MovedRow, MirrorInconsistent.

    If changes before a TRUNCATE are inconsistent, the history has those after it.
    """
    shape = replace(
        plan.shape, watermark=max(plan.shape.watermark, plan.former_until), emptied_at=ev.BEGINNING
    )
    over = replace(shape, watermark=max(shape.watermark, found.shape.emptied_at))
    lost_after = plan.lost_after
    if lost_after is None:
        try:
            return _lines_after(found, shape, plan, bucket, target)
        except MirrorInconsistent:
            if over == shape:
                raise
            lost_after = shape.watermark
    lines = _lines_after(found, over, plan, bucket, target)
    if bucket not in (0, ALL_BUCKETS):
        return lines
    return pa.concat_tables([lines, _lost_line(lost_after._replace(tx_seq=lost_after.tx_seq + 1), shape)])


def _lines_after(found: Decoded, shape: TableShape, plan: TablePlan, bucket: int, target: Target) -> pa.Table:
    others = list(found.others)
    lost = {one.sequence for one in others if _is_loss(one) and one.sequence > shape.watermark}
    parts = [_lost_line(one, shape) for one in lost]
    if found.changes is not None:
        in_columns = lines_in_columns(found.changes, shape)
        if in_columns is None:
            others = plan.events_in(found.records)
        else:
            parts.append(in_columns[0])
            others += plan.events_in(found.records.take(in_columns[1]))
    events = order_events(others, shape)
    is_former = shape.watermark > plan.shape.watermark
    known = as_complete(read_bucket(target, shape, None))
    if not is_former:
        rows = complete_rows(events, plan, shape, bucket, target)
        known = pa.concat_tables([rows, incomplete_rows(plan, shape, bucket, target)])
    return pa.concat_tables([*parts, lines_of_events(events, shape, known, whole=bucket == ALL_BUCKETS)])


def _is_loss(event: ev.Event) -> bool:
    """Return whether changes are missing, and a new copy of all rows follows."""
    return event.op == "g" and "gap.to_lsn" not in event.special


def lines_in_columns(changes: Changes, shape: TableShape) -> tuple[pa.Table, pa.Array] | None:
    """Return the lines of the changes that have all columns, and the numbers of the other records.

    None if all records have to be folded one by one.
    """
    found = new_rows(changes, shape)
    if found is None:
        return None
    rows, rest = found
    rows = _each_once(rows)
    is_delete = pc.equal(rows["op"], "d")
    present, deleted = rows.filter(pc.invert(is_delete)), rows.filter(is_delete)
    schema = arrow_schema(shape.fields)
    gone = _only_keys(deleted["key"].combine_chunks(), schema)
    both = pa.concat_tables([shaped(present, shape), gone])
    of_change = pa.concat_tables([present, deleted])
    return _lines(
        both,
        of_change["op"].combine_chunks(),
        at_of(of_change),
        of_change["commit_us"].combine_chunks(),
        pa.nulls(both.num_rows, MISSING_TYPE),
        shape,
    ), rest


def _each_once(rows: pa.Table) -> pa.Table:
    """Return the rows without those of a repeated record."""
    if rows.num_rows < 2:
        return rows
    place = pa.array(range(rows.num_rows), pa.int64())
    first = rows.select(_AT).append_column("place", place).group_by(_AT).aggregate([("place", "min")])
    return rows if first.num_rows == rows.num_rows else rows.take(first["place_min"])


def lines_of_events(
    events: Sequence[ev.Event], shape: TableShape, existing: pa.Table, *, whole: bool
) -> pa.Table:
    """Return the lines of events. `existing`, `whole`: as in `fold_keyed`. Raises MovedRow, MirrorInconsistent."""
    states = list(row_states(events, shape, existing, whole=whole))
    present = [(event, row) for event, row in states if row is not None]
    ends = [event for event, row in states if row is None]
    held: list[RowState] = [row for _, row in present]
    rows = rows_of([event.key or b"" for event, _ in present], held, shape, existing)
    gone = _only_keys(pa.array([event.key for event in ends], pa.binary()), arrow_schema(shape.fields))
    in_order = [*(event for event, _ in present), *ends]
    missing = pa.concat_arrays([missing_of(held, shape), pa.nulls(len(ends), MISSING_TYPE)])
    return _lines(
        pa.concat_tables([rows, gone]),
        pa.array([event.op for event in in_order], pa.string()),
        pa.array([event.sequence._asdict() for event in in_order], AT_TYPE),
        pa.array([event.commit_us for event in in_order], pa.int64()),
        missing,
        shape,
    )


def _lost_line(at: ev.Sequence, shape: TableShape) -> pa.Table:
    """Return the line of a position behind which changes are missing."""
    return _lines(
        _only_keys(pa.nulls(1, pa.binary()), arrow_schema(shape.fields)),
        pa.array([LOST], pa.string()),
        pa.array([at._asdict()], AT_TYPE),
        pa.nulls(1, pa.int64()),
        pa.nulls(1, MISSING_TYPE),
        shape,
    )


def _only_keys(keys: pa.Array, schema: pa.Schema) -> pa.Table:
    columns = [keys if one.name == KEY else pa.nulls(len(keys), one.type) for one in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def _lines(
    rows: pa.Table,
    op: pa.Array,
    at: pa.Array,
    commit_us: pa.Array,
    missing: pa.Array,
    shape: TableShape,
) -> pa.Table:
    schema = history_schema(shape.fields)
    assert schema.names[-1] == MISSING
    return pa.Table.from_arrays([*rows.columns, op, at, commit_us, missing], schema=schema)
