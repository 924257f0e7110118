"""(f) What compaction leaves of a topic is the table as well. Pure.

In: events by partition and offset, block after block; what stood before.  Out: what stands now; findings.
Invariant: compaction knows a partition and a key's bytes, nothing else: of each the last record stays, and none
where that is a tombstone. A record without a key is out of its reach, and a TRUNCATE is one: it empties what stands
before it in its partition. Must not: take a value from a record that compaction has removed, as a fold does.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from tests.faults.assertions.folds import key_of
from tests.faults.facts import Event, Finding, Key, Place, Row, Table

Left = dict[Place, dict[bytes, Event]]
"""The last record of each key in each partition."""


def compact(left: Left, events: Sequence[Event]) -> None:
    """Go on with these."""
    for event in events:
        if event.op == "t":
            left.pop(event.place, None)
        elif event.raw_key is not None:
            standing = left.setdefault(event.place, {})
            standing.pop(event.raw_key, None)
            if event.op != "x":
                standing[event.raw_key] = event


def compacted(
    rows: Mapping[str, Sequence[Row]], left: Left, tables: Mapping[str, Table]
) -> Iterator[Finding]:
    """(f) For each row of a table with a key there is one record, which has it as it is, and for no other key any."""
    standing: dict[str, list[Event]] = defaultdict(list)
    for of_place in left.values():
        for event in of_place.values():
            standing[event.table].append(event)
    for name, selected in rows.items():
        if tables[name].key:
            yield from _as_selected(tables[name], selected, standing[name])


def _as_selected(table: Table, selected: Sequence[Row], events: Sequence[Event]) -> Iterator[Finding]:
    name = f"the compacted topic of {table.name}"
    wanted: dict[Key, Row] = {key_of(table, row): row for row in selected}
    alive = [event for event in events if event.after is not None]
    for event in events:
        if event.after is None:
            yield Finding("f", f"{name}: {event}: stands there for good")
    there = Counter(key_of(table, event.after or {}) for event in alive)
    if missing := wanted.keys() - there.keys():
        yield Finding("f", f"{name}: {len(missing)} rows missing")
    if dead := there.keys() - wanted.keys():
        yield Finding("f", f"{name}: {len(dead)} rows that the table does not have")
    for event in alive:
        key = key_of(table, event.after or {})
        if there[key] > 1:
            yield Finding("f", f"{name}: {event}: {there[key]} records of its row")
        elif key in wanted and not _is(event, wanted[key]):
            yield Finding("f", f"{name}: {event}: not the row as it is")


def _is(event: Event, row: Row) -> bool:
    """Whether an event has the row: without what it lists as not sent, and what DDL added or dropped after it."""
    after = event.after or {}
    return all(after[name] == row[name] for name in (after.keys() & row.keys()) - event.unchanged)
