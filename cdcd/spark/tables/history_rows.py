"""Every row that a batch's changes give, for the history of a keyed table.

In: the records of a bucket, those decoded that columns can have; the plan of the table; its files.
Out: one line for each change, with the row after it: the columns of `history_schema`, in tables of a bounded size.
Invariant: each change after the watermark is there once, those before a TRUNCATE too, the TRUNCATE itself, and a line
where changes are missing. A line has what the change has: a value that PostgreSQL did not send is not repeated, so
the lines of a batch have about its bytes. The exceptions are a row that got another key, and a copied row without
some columns: these have all values.
Must not: write.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from cdcd.spark.decoding import events as ev
from cdcd.spark.storage.uri import Target
from cdcd.spark.tables.arrow_fold import Changes, at_of, is_after, lacks_values, row_numbers, shaped
from cdcd.spark.tables.fold import RowState, avro_name_of, order_events, row_states, rows_of
from cdcd.spark.tables.known_rows import complete_rows, incomplete_rows
from cdcd.spark.tables.plan import TablePlan
from cdcd.spark.tables.table_files import read_bucket
from cdcd.spark.target.shape import (
    AT_TYPE,
    CHANGE_TYPE,
    KEY,
    SPECIAL,
    SPECIAL_TYPE,
    TableShape,
    arrow_schema,
    as_complete,
    history_schema,
)
from cdcd.spark.target.versions import ALL_BUCKETS

__all__ = ["PIECE_BYTES", "Decoded", "history_rows"]

_AT = ["timeline", "commit_lsn", "phase", "tx_seq"]
PIECE_BYTES = 64 << 20
"""About the most bytes of a table of lines, unless one line has more: a column of Arrow has a limit."""
_UNSENT_TYPE = CHANGE_TYPE.field("unsent").type
_WHOLE = ("c", "r")
"""The operations whose lines have all values, also of columns that were not sent: those of a row with another key,
and those of a copied row without some columns (`snapshot.overrides`)."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """The records of a bucket. `changes`: those that are decoded into columns, None: none of them.

    `others`: the events that are not changes of a row; without `changes` all events.
    """

    records: pa.Table
    changes: Changes | None
    others: Sequence[ev.Event]


def history_rows(found: Decoded, plan: TablePlan, bucket: int, target: Target) -> list[pa.Table]:
    """Return a line for each change of the records. Raises MovedRow, MirrorInconsistent."""
    bound = max(plan.shape.watermark, plan.former_until)
    if plan.lost_after is not None:  # all buckets begin after the TRUNCATE
        bound = max(bound, plan.shape.emptied_at)
    shape = replace(plan.shape, watermark=bound, emptied_at=ev.BEGINNING)
    parts: list[pa.Table] = []
    others = list(found.others)
    if found.changes is not None:
        in_columns = _lines_in_columns(found.changes, shape)
        if in_columns is None:
            others = plan.events_in(found.records)
        else:
            parts.append(in_columns)
    truncates = (_end_at(at, op="t" if at not in plan.again else ev.BEGUN_ANEW) for at in plan.truncates)
    events = order_events([*truncates, *(_as_end(one, plan) for one in others)], shape)
    if plan.lost_after is not None:
        lost_at = plan.lost_after._replace(tx_seq=plan.lost_after.tx_seq + 1)
        events.insert(0, _end_at(lost_at, plan.known_us))
    known = as_complete(read_bucket(target, shape, None))
    if bound == plan.shape.watermark and any(one.op in _WHOLE and one.unchanged for one in events):
        rows = complete_rows(events, plan, shape, bucket, target)
        known = pa.concat_tables([rows, incomplete_rows(plan, shape, bucket, target)])
    is_whole, has_ends = bucket == ALL_BUCKETS, bucket in (0, ALL_BUCKETS)  # the ends are lines of one bucket
    return [*parts, *_lines_of_events(events, shape, known, whole=is_whole, has_ends=has_ends)]


def _as_end(event: ev.Event, plan: TablePlan) -> ev.Event:
    """Return the marker of a gap as the end of all rows: they are copied again. Not of one that is accepted.

    Return the TRUNCATE of a copy that began before the copy before it was complete as such a one.
    """
    if event.op == "t" and event.sequence in plan.again:
        return event._replace(op=ev.BEGUN_ANEW)
    return event if event.op != "g" or plan.accepts_gaps else _end_at(event.sequence, event.commit_us)


def _end_at(at: ev.Sequence, commit_us: int | None = None, op: str = ev.LOST) -> ev.Event:
    return ev.Event(at, op, None, None, None, (), {}, 0, commit_us)


# --- in columns ----------------------------------------------------------------------------------------------


def _lines_in_columns(changes: Changes, shape: TableShape) -> pa.Table | None:
    """Return the lines of changes; None if a line has values of the row before, which were not sent."""
    rows = _each_once(changes.rows.filter(is_after(changes.rows, shape.watermark)))
    is_whole = pc.is_in(rows["op"], pa.array(_WHOLE))
    if pc.any(pc.and_(lacks_values(rows["unchanged"]), is_whole)).as_py():
        return None
    is_delete = pc.equal(rows["op"], "d")
    present, deleted = rows.filter(pc.invert(is_delete)), rows.filter(is_delete)
    gone = _only_keys(deleted["key"].combine_chunks(), shape)
    of_change = pa.concat_tables([present, deleted])
    unsent = _unsent_in(of_change, shape)
    return _lines(
        _without_texts(pa.concat_tables([shaped(present, shape), gone]), unsent, shape),
        of_change["op"].combine_chunks(),
        at_of(of_change),
        of_change["commit_us"].combine_chunks(),
        unsent,
        shape,
    )


def _without_texts(rows: pa.Table, unsent: pa.Array, shape: TableShape) -> pa.Table:
    """Return the rows without texts of values that were not sent; hardly a row has any."""
    specials = rows[SPECIAL].combine_chunks()
    both = pc.and_(specials.is_valid(), unsent.is_valid())
    if not pc.any(both).as_py():
        return rows
    names = {one.number: one.name for one in shape.fields}
    texts = specials.to_pylist()
    for place in pc.indices_nonzero(both).to_pylist():
        gone = {names[number] for number in unsent[place].as_py()}
        texts[place] = [one for one in texts[place] if one[0] not in gone] or None
    place = rows.schema.get_field_index(SPECIAL)
    return rows.set_column(place, rows.schema.field(place), pa.array(texts, SPECIAL_TYPE))


def _unsent_in(rows: pa.Table, shape: TableShape) -> pa.Array:
    """Return the numbers of the columns that updates did not send; few rows have any."""
    lists = rows["unchanged"].combine_chunks()
    # Arrays, not chunked ones: of one without a chunk pyarrow's indices_nonzero crashes.
    lacks = pc.and_(lacks_values(lists), pc.equal(rows["op"].combine_chunks(), "u"))
    found: list[list[int] | None] = [None] * len(lists)
    places = pc.indices_nonzero(lacks).to_pylist()
    numbers = {name: one.number for one in shape.fields for name in (one.name, one.avro_name)}
    numbers |= {one.avro_name: one.number for one in shape.fields}
    began = {
        numbers[name]: is_after(rows, at).combine_chunks() for name, at in shape.began_after.items() if places
    }
    for place in places:
        given = {numbers[name] for name in lists[place].as_py() if name in numbers}
        found[place] = [one for one in given if one not in began or began[one][place].as_py()] or None
    return pa.array(found, _UNSENT_TYPE)


def _each_once(rows: pa.Table) -> pa.Table:
    """Return the rows without those of a repeated record."""
    if rows.num_rows < 2:
        return rows
    place = row_numbers(rows.num_rows)
    first = rows.select(_AT).append_column("place", place).group_by(_AT).aggregate([("place", "min")])
    return rows if first.num_rows == rows.num_rows else rows.take(first["place_min"])


# --- one by one ----------------------------------------------------------------------------------------------


def _lines_of_events(
    events: Sequence[ev.Event], shape: TableShape, existing: pa.Table, *, whole: bool, has_ends: bool
) -> Iterator[pa.Table]:
    """Yield the lines of events, with those that end all rows if `has_ends`. `existing`, `whole`: as in `fold_keyed`.

    Raises MovedRow, MirrorInconsistent.
    """
    numbers = {one.avro_name: one.number for one in shape.fields}
    ends: list[ev.Event] = []
    piece: list[tuple[ev.Event, RowState, list[int] | None]] = []
    sizes, piece_bytes = _row_bytes(existing), 0
    for event, state in row_states(events, shape, existing, whole=whole):
        if state is None:
            if has_ends or event.key is not None:
                ends.append(event)
            continue
        row, unsent = _as_sent(event, state, shape)
        size = sum(len(one) for one in row.values.values() if isinstance(one, (bytes, str)))
        size += sum(sizes[place] for place in set(row.from_existing.values()))
        if piece and piece_bytes + size > PIECE_BYTES:
            yield _piece(piece, shape, existing)
            piece, piece_bytes = [], 0
        piece.append((event, row, [numbers[name] for name in unsent if name in numbers] or None))
        piece_bytes += size
    yield _piece(piece, shape, existing)
    yield _lines(
        _only_keys(pa.array([event.key for event in ends], pa.binary()), shape),
        *_of_changes(ends),
        pa.nulls(len(ends), _UNSENT_TYPE),
        shape,
    )


def _as_sent(event: ev.Event, state: RowState, shape: TableShape) -> tuple[RowState, set[str]]:
    """Return the row without the values that an update did not send, and the names of its columns without a value."""
    if event.op != "u" or not event.unchanged:
        return state, set(state.missing)
    names = {avro_name_of(shape, event, name) for name in event.unchanged}
    unsent = {name for name in names if event.sequence > shape.began_after.get(name, ev.BEGINNING)}
    return RowState(_without(state.values, names), _without(state.special, names), {}, {}), unsent


def _without(values: Mapping[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}


def _row_bytes(existing: pa.Table) -> list[int]:
    """Return about the bytes of the texts of each existing row."""
    total = pa.repeat(pa.scalar(0, pa.int64()), existing.num_rows)
    for column in existing.columns:
        if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
            lengths = pc.fill_null(pc.binary_length(column), 0).combine_chunks()
            total = pc.add(total, lengths.cast(pa.int64()))
    return list(total.to_pylist())


def _piece(
    piece: Sequence[tuple[ev.Event, RowState, list[int] | None]], shape: TableShape, existing: pa.Table
) -> pa.Table:
    rows = rows_of([event.key or b"" for event, _, _ in piece], [row for _, row, _ in piece], shape, existing)
    unsent = pa.array([numbers for _, _, numbers in piece], _UNSENT_TYPE)
    return _lines(rows, *_of_changes([event for event, _, _ in piece]), unsent, shape)


def _of_changes(events: Sequence[ev.Event]) -> tuple[pa.Array, pa.Array, pa.Array]:
    return (
        pa.array([event.op for event in events], pa.string()),
        pa.array([event.sequence._asdict() for event in events], AT_TYPE),
        pa.array([event.commit_us for event in events], pa.int64()),
    )


def _only_keys(keys: pa.Array, shape: TableShape) -> pa.Table:
    schema = arrow_schema(shape.fields)
    columns = [keys if one.name == KEY else pa.nulls(len(keys), one.type) for one in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def _lines(
    rows: pa.Table, op: pa.Array, at: pa.Array, commit_us: pa.Array, unsent: pa.Array, shape: TableShape
) -> pa.Table:
    change = pa.StructArray.from_arrays([op, at, commit_us, unsent], fields=list(CHANGE_TYPE))
    return pa.Table.from_arrays([*rows.columns, change], schema=history_schema(shape.fields))
