"""(f) A compacted topic is equal to the table, too. Pure.

In: events by partition and offset, block after block; the records left before.  Out: the records left now; findings.
Invariant: compaction uses the partition and the key's bytes only. It leaves the last record of each key, and no
record where the last one is a tombstone. It never removes a record without a key, such as a TRUNCATE, which empties
its partition up to there. Must not: take a value from a record that compaction has removed, as a fold does.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from tests.faults.assertions.folds import key_of
from tests.faults.facts import Event, Finding, Key, Place, Row, Table

Left = dict[Place, dict[bytes, Event]]
"""The last record of each key in each partition."""


def compact(left: Left, events: Sequence[Event]) -> None:
    """Add these events to the records left."""
    for event in events:
        if event.op == "t":
            left.pop(event.place, None)
        elif event.raw_key is not None:
            records = left.setdefault(event.place, {})
            records.pop(event.raw_key, None)
            if event.op != "x":
                records[event.raw_key] = event


def compacted(
    rows: Mapping[str, Sequence[Row]], left: Left, tables: Mapping[str, Table]
) -> Iterator[Finding]:
    """(f) Each row of a table with a key has one record, with the row's values; no other key has a record."""
    records: dict[str, list[Event]] = defaultdict(list)
    for of_place in left.values():
        for event in of_place.values():
            records[event.table].append(event)
    for name, selected in rows.items():
        if tables[name].key:
            yield from _as_selected(tables[name], selected, records[name])


def _as_selected(table: Table, selected: Sequence[Row], events: Sequence[Event]) -> Iterator[Finding]:
    name = f"the compacted topic of {table.name}"
    wanted: dict[Key, Row] = {key_of(table, row): row for row in selected}
    alive = [event for event in events if event.after is not None]
    for event in events:
        if event.after is None:
            yield Finding("f", f"{name}: {event}: compaction would never remove it")
    there = Counter(key_of(table, event.after or {}) for event in alive)
    if missing := wanted.keys() - there.keys():
        yield Finding("f", f"{name}: {len(missing)} rows missing")
    if dead := there.keys() - wanted.keys():
        yield Finding("f", f"{name}: {len(dead)} rows that the table does not have")
    for event in alive:
        key = key_of(table, event.after or {})
        if there[key] > 1:
            yield Finding("f", f"{name}: {event}: its row has {there[key]} records")
        elif key in wanted and not _is(event, wanted[key]):
            yield Finding("f", f"{name}: {event}: differs from the row")


def _is(event: Event, row: Row) -> bool:
    """Whether an event has the row, apart from values not sent and columns that DDL added or dropped later."""
    after = event.after or {}
    return all(after[name] == row[name] for name in (after.keys() & row.keys()) - event.unchanged)
