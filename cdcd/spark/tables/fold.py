"""Fold changes into a table: compute the rows after the last change of each key.

In: events of one table (all of a batch, or those of some hash buckets) and the target's rows.
Out: the new rows, as Arrow tables with `__key` and `__special`.
Invariant: the result depends only on the events' sequence, never on the order of arrival, and folding the same
events again changes nothing, because events up to the watermark are dropped.  Must not: do I/O, log values.

A keyed table has the last row of each key. Columns that PostgreSQL did not send (`unchanged`, F46) have the value of
the row before, in this batch or in the target; after a change of the key that row is under the old key, one step
earlier in the same transaction (F47). If there is no such row, or it lacks the value, too, the new row is incomplete,
which is normal while cdcd copies the table incrementally. Columns that a snapshot does not copy (`unchanged` of its
rows) are null until a change has their value. A table without a key is folded by `bag_fold`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from cdcd.errors import MirrorInconsistent
from cdcd.spark.decoding.columns import arrow_array
from cdcd.spark.decoding.events import BEGINNING, ENDS, Event, Sequence
from cdcd.spark.target.large_columns import filtered, is_among, taken_values
from cdcd.spark.target.shape import (
    KEY,
    MISSING,
    MISSING_TYPE,
    SPECIAL,
    SPECIAL_TYPE,
    TableShape,
    arrow_schema,
)


class MovedRow(Exception):
    """A row needs values of a row of another key that is not in these events."""


class RowState(NamedTuple):
    """An unfinished row.

    `from_existing`: column -> place of the existing row that has the column's value.
    `missing`: column without a value -> commit LSN of the first change that did not send it.
    """

    values: Mapping[str, Any]
    special: Mapping[str, str]
    from_existing: Mapping[str, int]
    missing: Mapping[str, int]


def order_events(events: Iterable[Event], shape: TableShape) -> list[Event]:
    """Return the new events in order: after the watermark and the last TRUNCATE, each sequence once, no markers."""
    bound = max(shape.watermark, shape.emptied_at)
    unique = {event.sequence: event for event in events if event.sequence > bound and event.op != "g"}
    return [unique[sequence] for sequence in sorted(unique)]


def fold_keyed(
    events: list[Event], shape: TableShape, existing: pa.Table, *, whole: bool
) -> tuple[pa.Table, pa.Array]:
    """Return the new rows and the keys to remove from `existing` (all keys that changed).

    `existing` and the new rows have `__missing`: a row is incomplete if neither a change nor a row before has all of
    its values.
    `whole`: the events are all events of the table; otherwise MovedRow is raised if another bucket is needed.
    """
    state: dict[bytes, RowState | None] = {}
    for event, row in row_states(events, shape, existing, whole=whole):
        assert event.key is not None
        state[event.key] = row
    held = {key: row for key, row in state.items() if row is not None}
    new = rows_of(list(held), list(held.values()), shape, existing)
    return new.append_column(MISSING, _missing_of(held.values(), shape)), pa.array(list(state), pa.binary())


def row_states(
    events: Iterable[Event], shape: TableShape, existing: pa.Table, *, whole: bool
) -> Iterator[tuple[Event, RowState | None]]:
    """Yield each event with the row of its key after it, None for a deleted row, a TRUNCATE and a gap.

    `existing`, `whole`: as in `fold_keyed`. Raises MovedRow, MirrorInconsistent.
    """
    events = list(events)
    state: dict[bytes, RowState | None] = {}
    before = _Before(events, shape, existing)
    removed: tuple[Sequence, bytes, RowState | None] | None = None
    for event in events:
        key = event.key
        if event.op in ENDS:
            state, before, removed = {}, _Before([], shape, existing), None
            yield event, None
            continue
        if key is None:
            raise MirrorInconsistent("a change of a table with a key has no key", **where_of(shape, event))
        if event.op == "d":
            removed = (event.sequence, key, state[key] if key in state else before.row(key))
            state[key] = None
            yield event, None
            continue
        if event.op not in ("c", "u", "r") or event.after is None:
            raise MirrorInconsistent(
                "the change has an operation that produces no row", **where_of(shape, event)
            )
        row = _state_of(event, shape)
        if event.unchanged:
            previous = state[key] if key in state else before.row(key)
            if event.op == "c":
                previous = _moved_from(event, removed, whole=whole)
            row = _with_unchanged(row, event, previous or _unknown(event, shape), shape)
            if event.op == "r":
                row = row._replace(missing={})
        state[key] = row
        yield event, row


class _Before:
    """The existing rows of the keys of these events, complete or not; looked up only if a value was not sent."""

    def __init__(self, events: list[Event], shape: TableShape, existing: pa.Table) -> None:
        self._shape = shape
        self._places: dict[bytes | None, int] = {}
        self._missing: dict[int, dict[int, int]] = {}
        if any(event.unchanged for event in events):
            needed = list({event.key for event in events})
            keys = existing.column(KEY).combine_chunks()
            found = pc.index_in(pa.array(needed, pa.binary()), value_set=keys).to_pylist()
            self._places = {key: place for key, place in zip(needed, found, strict=True) if place is not None}
            places = list(self._places.values())
            missing = existing.column(MISSING).take(pa.array(places, pa.int64())).to_pylist()
            self._missing = {place: dict(one) for place, one in zip(places, missing, strict=True) if one}

    def row(self, key: bytes) -> RowState | None:
        """Return the row of a key, None if there is none."""
        place = self._places.get(key)
        if place is None:
            return None
        numbers = self._missing.get(place, {})
        missing = {one.avro_name: numbers[one.number] for one in self._shape.fields if one.number in numbers}
        held = {one.avro_name: place for one in self._shape.fields}  # `missing` comes before
        return RowState({}, {}, held, missing)


def _unknown(event: Event, shape: TableShape) -> RowState:
    """Return a row of which nothing is known before this event."""
    return RowState({}, {}, {}, {one.avro_name: event.sequence.commit_lsn for one in shape.fields})


def _missing_of(rows: Iterable[RowState], shape: TableShape) -> pa.Array:
    numbers = {one.avro_name: one.number for one in shape.fields}
    return pa.array(
        [[(numbers[name], lsn) for name, lsn in row.missing.items()] or None for row in rows], MISSING_TYPE
    )


def where_of(shape: TableShape, event: Event) -> dict[str, Any]:
    """Return the place of a change, for an error."""
    return {
        "topic": shape.topic,
        "op": event.op,
        "timeline": event.sequence.timeline,
        "commit_lsn": event.sequence.commit_lsn,
        "tx_seq": event.sequence.tx_seq,
    }


def _state_of(event: Event, shape: TableShape) -> RowState:
    return row_state(event, shape, "after", event.after or {})


def row_state(event: Event, shape: TableShape, image: str, values: Mapping[str, Any]) -> RowState:
    """Return a row as a change has sent it. `image`: before or after."""
    special = (
        {
            avro_name_of(shape, event, name.removeprefix(image + ".")): text
            for name, text in event.special.items()
            if name.startswith(image + ".")
        }
        if event.special
        else {}
    )
    others = {name for name, sequence in shape.began_after.items() if event.sequence <= sequence}
    if others:
        values = {name: value for name, value in values.items() if name not in others}
        special = {name: text for name, text in special.items() if name not in others}
    return RowState(values, special, {}, {})


def avro_name_of(shape: TableShape, event: Event, name: str) -> str:
    """Return the Avro name of a column, which an envelope may give by its PostgreSQL or its Avro name."""
    renamed = shape.renames.get(event.schema_id, {})
    if name in renamed:
        return renamed[name]
    for one in shape.fields:
        if name in (one.avro_name, one.name):
            return one.avro_name
    return name


def _moved_from(
    event: Event, removed: tuple[Sequence, bytes, RowState | None] | None, *, whole: bool
) -> RowState | None:
    """Return the row that a change of the key removed one step earlier, None if there was none."""
    step_before = event.sequence._replace(tx_seq=event.sequence.tx_seq - 1)
    if removed is not None and removed[0] == step_before:
        return removed[2]
    if not whole:
        raise MovedRow
    return None


def _with_unchanged(row: RowState, event: Event, previous: RowState, shape: TableShape) -> RowState:
    values, special = dict(row.values), dict(row.special)
    from_existing, missing = dict(row.from_existing), dict(row.missing)
    for given in event.unchanged:
        name = avro_name_of(shape, event, given)
        values.pop(name, None)
        special.pop(name, None)
        if event.sequence <= shape.began_after.get(name, BEGINNING):
            continue  # another column of this name, which is gone
        if name in previous.missing:
            missing[name] = previous.missing[name]
        elif name in previous.from_existing:
            from_existing[name] = previous.from_existing[name]
        else:
            values[name] = previous.values.get(name)
            if name in previous.special:
                special[name] = previous.special[name]
    return RowState(values, special, from_existing, missing)


def rows_of(keys: list[bytes], rows: list[RowState], shape: TableShape, existing: pa.Table) -> pa.Table:
    """Return rows with the columns of the target, `__special`, and their keys."""
    columns = []
    for one in shape.fields:
        column = arrow_array([row.values.get(one.avro_name) for row in rows], one.avro)
        holders = {
            number: row.from_existing[one.avro_name]
            for number, row in enumerate(rows)
            if one.avro_name in row.from_existing
        }
        columns.append(_patched(column, existing.column(one.name), holders) if holders else column)
    return pa.Table.from_arrays(
        [*columns, _specials(rows, shape, existing), pa.array(keys, pa.binary())],
        schema=arrow_schema(shape.fields),
    )


def _patched(
    column: pa.Array | pa.ChunkedArray, old: pa.ChunkedArray, holders: Mapping[int, int]
) -> pa.ChunkedArray:
    """Return the column with some values from the existing rows."""
    values = taken_values(old, pa.array(list(holders.values()), pa.int64()))
    own = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    both = pa.chunked_array([*own, *values.chunks], column.type)
    indices = list(range(len(column)))
    for position, number in enumerate(holders):
        indices[number] = len(column) + position
    return taken_values(both, pa.array(indices, pa.int64()))


def _specials(rows: Iterable[RowState], shape: TableShape, existing: pa.Table) -> pa.Array:
    needed = sorted({place for row in rows for place in row.from_existing.values()})
    maps = taken_values(existing.column(SPECIAL), pa.array(needed, pa.int64())).to_pylist()
    old = {place: dict(entries or ()) for place, entries in zip(needed, maps, strict=True)}
    names = {one.avro_name: one.name for one in shape.fields}
    result = []
    for row in rows:
        entries = {names[name]: text for name, text in row.special.items() if name in names}
        for name, place in row.from_existing.items():
            if names.get(name, "") in old[place]:
                entries[names[name]] = old[place][names[name]]
        result.append(list(entries.items()) or None)
    return pa.array(result, SPECIAL_TYPE)


def without_keys(existing: pa.Table, keys: pa.Array | pa.ChunkedArray) -> pa.Table:
    """Return the rows whose key is not among `keys`."""
    wanted = keys if isinstance(keys, pa.ChunkedArray) else pa.chunked_array([keys])
    return filtered(existing, pc.invert(is_among(existing.column(KEY), wanted)))
