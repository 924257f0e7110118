"""Bugs planted in the block of a good run, each with the letter of the assertion that has to find it. Pure.

`killed_in_between` is no bug where repetitions are allowed; REPEATING are bugs that only such a run can have.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise

from tests.faults.assertions.compacted import Left, compact
from tests.faults.assertions.durable import until
from tests.faults.facts import Block, Event, Order, Place, Progress, Sample
from tests.faults.lag_plants import LAG_PLANTS


def _streamed(block: Block, *ops: str) -> list[Event]:
    return [event for event in block.events if event.op in ops and not event.is_snapshot]


def _with(block: Block, events: Iterable[Event]) -> Block:
    ordered = sorted(events, key=lambda event: (event.topic, event.partition, event.offset))
    return replace(block, events=tuple(ordered))


def _by_xid(block: Block) -> dict[int | None, list[Event]]:
    found = defaultdict(list)
    for event in _streamed(block, "c", "u", "d"):
        found[event.xid].append(event)
    return found


def row_dropped(block: Block) -> Block:
    return _without(block, _streamed(block, "c")[10])


def _without(block: Block, lost: Event) -> Block:
    """Remove one change with all its repetitions."""
    here = lost.place, lost.sequence
    return _with(block, (one for one in block.events if one.is_snapshot or (one.place, one.sequence) != here))


def _within(block: Block, op: str) -> Event:
    """Return a change that follows one of the same transaction in its partition: no start begins there."""
    before: dict[Place, int] = {}
    for event in _streamed(block, "c", "u", "d"):
        if event.op == op and before.get(event.place) == event.commit_lsn:
            return event
        before[event.place] = event.commit_lsn
    raise AssertionError("no partition has two changes of one transaction")


def row_repeated(block: Block) -> Block:
    again = _within(block, "u")
    return _with(block, [*block.events, replace(again)])


def row_repeated_later(block: Block) -> Block:
    """As after a replay without a check of the position: the repetition is last in its partition."""
    again = _within(block, "u")
    last = max(event.offset for event in block.events if event.place == again.place)
    return _with(block, [*block.events, replace(again, offset=last + 1)])


def swapped_within_a_key(block: Block) -> Block:
    last: dict[object, Event] = {}
    for event in _streamed(block, "c", "u"):
        before = last.get((event.topic, event.key)) if event.key else None
        if before is not None:
            others = [one for one in block.events if one not in (before, event)]
            return _with(
                block, [*others, replace(before, offset=event.offset), replace(event, offset=before.offset)]
            )
        last[event.topic, event.key] = event
    raise AssertionError("no key has two changes")


def transaction_torn(block: Block) -> Block:
    torn = next(events for events in _by_xid(block).values() if len({event.place for event in events}) > 1)
    gone = [event for event in torn if event.place == torn[0].place]
    return _with(block, (event for event in block.events if event not in gone))


def kafka_transaction_torn(block: Block) -> Block:
    """The last record of a transaction is in the next Kafka transaction."""
    places = _streamed(block, "c", "u")
    for at, record in enumerate(block.progress):
        for event in places:
            if record.offsets.get(event.place) == event.offset + 1:
                offsets = {**record.offsets, event.place: event.offset}
                records = list(block.progress)
                records[at] = replace(record, offsets=offsets)
                return replace(block, progress=tuple(records))
    raise AssertionError("no record ends a Kafka transaction")


def value_altered(block: Block) -> Block:
    event = next(one for one in _streamed(block, "c") if one.after and one.after.get("note"))
    changed = replace(event, after={**(event.after or {}), "note": "something else"})
    return _with(block, (changed if one is event else one for one in block.events))


def null_for_unchanged(block: Block) -> Block:
    """F46: a TOASTed value that was not sent is written as null."""
    event = next(one for one in _streamed(block, "u") if one.unchanged)
    return _with(
        block, (replace(one, unchanged=frozenset()) if one is event else one for one in block.events)
    )


def aborted_let_through(block: Block) -> Block:
    event = _streamed(block, "c")[-1]
    committed = {one.xid for one in block.transactions}
    xid = next(xid for xid in range(min(committed), max(committed)) if xid not in committed)
    last = max(one.offset for one in block.events if one.place == event.place)
    # A number that the transaction does not have; otherwise the event would be a repetition with other values.
    tx_seq = max(one.tx_seq for one in block.events if one.commit_lsn == event.commit_lsn) + 1
    invented = replace(event, xid=xid, offset=last + 1, tx_seq=tx_seq)
    return _with(block, [*block.events, invented])


def confirmed_early(block: Block) -> Block:
    middle = block.progress[len(block.progress) // 2]
    sample = Sample(confirmed_lsn=middle.end_lsn + 8, end_offset=middle.offset + 1)
    return replace(block, samples=(*block.samples, sample))


def truncate_lost(block: Block) -> Block:
    lost = _streamed(block, "t")[0]
    return _with(
        block,
        (
            one
            for one in block.events
            if one.op != "t" or (one.table, one.sequence) != (lost.table, lost.sequence)
        ),
    )


def truncate_in_one_partition(block: Block) -> Block:
    lost = _streamed(block, "t")[0]
    return _with(block, (one for one in block.events if one is not lost))


def snapshot_row_lost(block: Block) -> Block:
    emptied = {change.table for one in block.transactions for change in one.changes if change.op == "t"}
    rows = (one for one in block.events if one.op == "r" and one.table not in emptied)
    lost = max(
        rows, key=lambda one: one.commit_lsn
    )  # not a row of an abandoned snapshot, where it is no loss
    return _with(block, (one for one in block.events if one is not lost))


def copied_row_outdated(block: Block) -> Block:
    """A chunk's row comes after a newer change of its key."""
    newest = {event.key: event for event in _streamed(block, "c", "u") if event.table == "plain"}
    deleted = {event.key for event in _streamed(block, "d") if event.table == "plain"}
    event = next(one for key, one in newest.items() if key not in deleted and one.after and one.after["n"])
    last = max((one for one in block.events if one.place == event.place), key=lambda one: one.offset)
    row = replace(
        event,
        op="r",
        after={**(event.after or {}), "n": None},
        offset=last.offset + 1,
        commit_lsn=max(one.commit_lsn for one in block.events) + 1,
        is_snapshot=True,
    )
    return _with(block, [*block.events, row])


def tombstone_lost(block: Block) -> Block:
    lost = next(one for one in block.events if one.op == "x")
    return _with(block, (one for one in block.events if one is not lost))


def tombstone_of_a_moved_row_lost(block: Block) -> Block:
    """F47: after an update of the key, a compacted topic retains the old key for ever."""
    moved = {(one.xid, one.tx_seq - 1) for one in _streamed(block, "c")}
    deletes = [one for one in _streamed(block, "d") if (one.xid, one.tx_seq) in moved]
    behind = {(one.place, one.offset + 1) for one in deletes if one.key}
    lost = next(one for one in block.events if one.op == "x" and (one.place, one.offset) in behind)
    return _with(block, (one for one in block.events if one is not lost))


def _in_other_bytes(block: Block, event: Event) -> Block:
    """Return the block with the event's key under another schema id: equal when decoded, different for compaction."""
    assert event.raw_key is not None
    other = replace(event, raw_key=b"\0\0\0\xff\xff" + event.raw_key[5:])
    return _with(block, (other if one is event else one for one in block.events))


def _standing(block: Block, op: str) -> Event:
    """Return the last record of an existing row."""
    left: Left = {}
    compact(left, block.events)
    return next(one for of_place in left.values() for one in of_place.values() if one.op == op)


def key_in_other_bytes(block: Block) -> Block:
    """Compaction retains an old version of the row in addition to the current one."""
    return _in_other_bytes(block, _standing(block, "u"))


def tombstone_in_other_bytes(block: Block) -> Block:
    """Compaction retains the delete event of a deleted row, in a table that is not truncated later."""
    return _in_other_bytes(block, next(one for one in block.events if one.op == "x" and one.table == "whole"))


def another_partition(block: Block) -> Block:
    last: set[object] = set()
    for event in _streamed(block, "c", "u"):
        if event.key and (event.topic, event.key) in last:
            moved = replace(event, partition=1 - event.partition)
            return _with(block, (moved if one is event else one for one in block.events))
        last.add((event.topic, event.key))
    raise AssertionError("no key has two changes")


def column_missing(block: Block) -> Block:
    event = _streamed(block, "c")[5]
    less = {name: value for name, value in (event.after or {}).items() if name != "n"}
    return _with(block, (replace(one, after=less) if one is event else one for one in block.events))


def not_decodable(block: Block) -> Block:
    event = _streamed(block, "c")[5]
    odd = replace(event, op="?", is_odd="SchemaParseException")
    return _with(block, (odd if one is event else one for one in block.events))


def seen_and_undone(block: Block) -> Block:
    topic, partition, offset = next(iter(block.digests))
    return replace(block, seen_live={**block.seen_live, (topic, partition, offset + 10**6): 1})


def not_seen_live(block: Block) -> Block:
    """The reader that runs during the faults has missed one record."""
    (missed, *_) = block.seen_live
    return replace(block, seen_live={one: digest for one, digest in block.seen_live.items() if one != missed})


def no_slot_samples(block: Block) -> Block:
    """The sampler of the slot has no samples."""
    return replace(block, samples=())


def never_caught_up(block: Block) -> Block:
    return replace(block, caught_up_s=None)


def lag_stays(block: Block) -> Block:
    return replace(block, lag_s=3.0)


PLANTS: dict[Callable[[Block], Block], str] = {
    row_dropped: "a",
    row_repeated: "c",
    row_repeated_later: "c",
    swapped_within_a_key: "d",
    transaction_torn: "e",
    kafka_transaction_torn: "e",
    value_altered: "g",
    null_for_unchanged: "g",
    aborted_let_through: "b",
    confirmed_early: "i",
    truncate_lost: "a",
    truncate_in_one_partition: "a",
    snapshot_row_lost: "j",
    copied_row_outdated: "j",
    tombstone_lost: "f",
    tombstone_of_a_moved_row_lost: "f",
    key_in_other_bytes: "f",
    tombstone_in_other_bytes: "f",
    another_partition: "d",
    column_missing: "h",
    not_decodable: "h",
    seen_and_undone: "e",
    not_seen_live: "e",
    no_slot_samples: "i",
    never_caught_up: "k",
    lag_stays: "k",
    **dict.fromkeys(LAG_PLANTS, "k"),
}


FOUND_BY_COMPACTION = (key_in_other_bytes, tombstone_in_other_bytes)
"""Invisible to a reader that decodes the keys."""


def killed_in_between(block: Block, durable: Progress | None = None) -> Block:
    """As at_least_once allows: a kill, then repetitions of the changes that the last progress record did not cover.

    `durable`: that progress record; the middle one by default. Where possible, the kill is between a delete and its
    tombstone.
    """
    durable = durable or block.progress[len(block.progress) // 2]
    places: dict[Place, list[Event]] = defaultdict(list)
    for event in block.events:
        places[event.place].append(event)
    events: list[Event] = []
    shifts: dict[Place, tuple[int, int]] = {}
    for place, reported in places.items():
        begin = next((at for at, one in enumerate(reported) if _is_behind(one, durable)), len(reported))
        again = reported[begin:]
        deletes = [at for at in range(begin + 1, len(reported)) if reported[at].op == "x"]
        written = reported[: deletes[len(deletes) // 2]] if deletes else reported
        events += written
        if again:
            shifts[place] = again[0].offset, written[-1].offset + 1 - again[0].offset
            events += [replace(one, offset=one.offset + shifts[place][1]) for one in again]
    return replace(
        _with(block, events), progress=tuple(_with_offsets_behind(one, shifts) for one in block.progress)
    )


def _is_behind(event: Event, record: Progress) -> bool:
    return event.op != "x" and not event.is_snapshot and event.position > until(record)


def _with_offsets_behind(record: Progress, shifts: dict[Place, tuple[int, int]]) -> Progress:
    """Return the progress record with the offsets of changes that were written after the kill."""
    offsets = dict(record.offsets)
    for place, (begin, shift) in shifts.items():
        if offsets.get(place, 0) > begin:
            offsets[place] += shift
    return replace(record, offsets=offsets)


def _twice(block: Block, *ops: str) -> list[tuple[Event, Event]]:
    """Return the changes that occur more than once: the first occurrence and a later one."""
    first: dict[tuple[Place, Order], Event] = {}
    return [
        (first[one.place, one.sequence], one)
        for one in _streamed(block, *ops)
        if first.setdefault((one.place, one.sequence), one) is not one
    ]


def lost_by_the_kill(block: Block) -> Block:
    """A change that was received but not written before the kill is not requested again."""
    ends = {again.place: again for _, again in _twice(block, "c", "u", "d")}
    lost = next(
        one
        for one in _streamed(block, "c", "u")
        if one.place in ends
        and one.offset > ends[one.place].offset
        and one.sequence > ends[one.place].sequence
    )
    return _with(block, (one for one in block.events if one is not lost))


def repeated_row_dropped(block: Block) -> Block:
    """All occurrences are dropped: with only one dropped, the change would still be there."""
    return _without(block, _twice(block, "c")[0][0])


def first_in_its_repetition(block: Block) -> Block:
    """A change is written only after later ones: a reader that drops positions that do not increase misses it."""
    (late, _), (other, _) = next(
        (one, other)
        for one, other in pairwise(_twice(block, "c", "u"))
        if one[0].place == other[0].place and one[1].offset < other[1].offset
    )
    assert late.offset < other.offset
    return _with(block, (one for one in block.events if one is not late))


def repeated_otherwise(block: Block) -> Block:
    again = _twice(block, "c")[0][1]
    changed = replace(again, after={**(again.after or {}), "note": "something else"})
    return _with(block, (changed if one is again else one for one in block.events))


def repeated_though_durable(block: Block) -> Block:
    """All changes from a start's position are repeated once more, although progress records cover them by now."""
    _, start = _twice(block, "c", "u", "d")[0]
    reported = [event for event in block.events if event.place == start.place]
    shift = reported[-1].offset + 1 - start.offset
    more = [replace(event, offset=event.offset + shift) for event in reported[reported.index(start) :]]
    return _with(block, [*block.events, *more])


HIDDEN_BY_REPETITIONS = (
    row_dropped,
    row_repeated,
    row_repeated_later,
    swapped_within_a_key,
    transaction_torn,
    kafka_transaction_torn,
    aborted_let_through,
    truncate_in_one_partition,
    tombstone_lost,
)
"""Bugs that an oracle that allows too many repetitions would miss; the other bugs do not depend on repetitions."""

REPEATING: dict[Callable[[Block], Block], str] = {
    lost_by_the_kill: "a",
    repeated_row_dropped: "a",
    first_in_its_repetition: "d",
    repeated_otherwise: "g",
    repeated_though_durable: "c",
}
