"""Assertions on single partitions: (h) readable, (c), (d) in order, (f) a tombstone after each delete. Pure.

In: events by partition and offset, and the state after the blocks before.  Out: findings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.faults.facts import Event, Finding, Key, Order, Place, Table


def readable(events: Sequence[Event]) -> list[Finding]:
    """(h) Every record decodes under the schema that its id names."""
    return [Finding("h", f"{event}: {event.is_odd}") for event in events if event.is_odd]


def in_order(events: Sequence[Event], last: dict[Place, Order]) -> list[Finding]:
    """(c), (d) In each partition the sequence increases; an equal one is reported as a repetition."""
    findings = []
    seen: set[tuple[Place, Order]] = set()
    for event in events:
        if event.op == "x" or event.is_odd:
            continue
        at = (event.place, event.sequence)
        before = last.get(event.place)
        if at in seen or event.sequence == before:
            findings.append(Finding("c", f"{event}: repeated"))
        elif before is not None and event.sequence < before:
            findings.append(Finding("d", f"{event}: after {before}"))
        seen.add(at)
        last[event.place] = max(event.sequence, before or (0, 0, 0))
    return findings


def one_partition_per_key(events: Sequence[Event], partition_of: dict[tuple[str, Key], int]) -> list[Finding]:
    """(d) All changes of a key are in one partition, so that they have one order."""
    findings = []
    for event in events:
        if event.key is not None and event.op != "t":
            partition = partition_of.setdefault((event.topic, event.key), event.partition)
            if partition != event.partition:
                findings.append(Finding("d", f"{event}: its key was in partition {partition}"))
    return findings


def tombstones(events: Sequence[Event], tables: Mapping[str, Table]) -> list[Finding]:
    """(f) The record after a delete is the tombstone of its key, and there are no other tombstones."""
    findings, open_deletes = [], {}
    for event in events:
        due: Event | None = open_deletes.pop(event.place, None)
        if due is not None and (event.op, event.key) != ("x", due.key):
            findings.append(Finding("f", f"{due}: no tombstone follows"))
        if due is None and event.op == "x":
            findings.append(Finding("f", f"{event}: a tombstone without a delete before it"))
        if event.op == "d" and event.table in tables and tables[event.table].key:
            open_deletes[event.place] = event
    return findings + [Finding("f", f"{due}: no tombstone follows") for due in open_deletes.values()]
