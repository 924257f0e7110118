"""`delivery: at_least_once`: repetitions after a restart are dropped, all other events are judged as always. Pure.

In: events by partition and offset, the last sequence of each partition before.  Out: first occurrences; findings.
Invariant: a reader that drops records whose (timeline, commit_lsn, tx_seq) does not increase loses nothing. So the
first occurrences have to be in order: only repetitions are dropped here, and the order of all others is judged.
Repetitions begin where a start may begin, and have no gaps (`replayed`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from tests.faults.assertions.durable import is_back, until
from tests.faults.facts import Event, Finding, Order, Place, Progress, Table


def first_ones(
    events: Sequence[Event], last: Mapping[Place, Order], tables: Mapping[str, Table]
) -> tuple[list[Event], list[Finding]]:
    """Return the events without repetitions, and (g) the repetitions that differ from the first occurrence."""
    remaining, findings = [], []
    first: dict[tuple[Place, Order], Event] = {}
    dropped: dict[Place, Event | None] = {}
    left = Counter((event.place, event.sequence) for event in events if event.op != "x")
    for event, following in zip(events, [*events[1:], None], strict=True):
        at = event.place, event.sequence
        if event.is_odd:
            remaining.append(event)
            continue
        if event.op == "x":
            deleted = dropped.get(event.place)
            if deleted is None or (deleted.op, deleted.key) != ("d", event.key):
                remaining.append(event)
            continue
        left[at] -= 1
        is_repeated = at in first or event.sequence <= last.get(event.place, (0, 0, 0))
        if at in first and _reported(event) != _reported(first[at]):
            findings.append(Finding("g", f"{event}: differs from its first occurrence at {first[at].offset}"))
        if is_repeated or (left[at] and _is_cut_off(event, following, tables)):
            dropped[event.place] = event
            continue
        first[at] = event
        dropped[event.place] = None
        remaining.append(event)
    return remaining, findings


def _reported(event: Event) -> tuple[object, ...]:
    return event.op, event.key, event.before, event.after, event.unchanged, event.xid


def _is_cut_off(event: Event, following: Event | None, tables: Mapping[str, Table]) -> bool:
    """Whether a delete was the last record before a kill: its tombstone follows its repetition."""
    if event.op != "d" or not tables[event.table].key:
        return False
    return following is None or (following.place, following.op) != (event.place, "x")


def replayed(
    events: Sequence[Event], records: Sequence[Progress], before: Progress | None
) -> Iterator[Finding]:
    """(c) Repetitions are those of a start: all changes behind a progress record, in order.

    Changes that a progress record covers are never repeated, so that each kill repeats one group at most.
    """
    places: dict[Place, list[Event]] = defaultdict(list)
    for event in events:
        if event.op != "x" and not event.is_odd:
            places[event.place].append(event)
    for place, reported in places.items():
        yield from _replayed_in(place, reported, records, before)


def _replayed_in(
    place: Place, reported: Sequence[Event], records: Sequence[Progress], before: Progress | None
) -> Iterator[Finding]:
    order = sorted({event.position for event in reported})
    streamed = sorted({event.position for event in reported if not event.is_snapshot})
    following = dict(pairwise(order))
    starts = {order[0], *_behind(records, order), *_behind(records, streamed)}
    cuts = deque((record.offsets[place], until(record)) for record in records if place in record.offsets)
    durable = (0, 0) if before is None else until(before)
    last: tuple[int, int] | None = None
    for event in reported:
        while cuts and cuts[0][0] <= event.offset:
            durable = max(durable, cuts.popleft()[1])
        if event.position <= durable:
            yield Finding("c", f"{event}: repeated after a progress record that covers it")
        elif last is not None and event.position <= last and event.position not in starts:
            yield Finding("c", f"{event}: repeated, and no start begins there")
        elif last is not None and event.position > last and following[last] != event.position:
            yield Finding("c", f"{event}: follows {last}, but {following[last]} is skipped")
        last = event.position


def _behind(records: Sequence[Progress], order: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the first position behind each record.

    Both of all events and of the streamed ones: the rows of a complete snapshot are not repeated, and their position
    (the end of the server's WAL when they were copied) may be behind the records of the stream.
    """
    for at in (bisect_right(order, until(record)) for record in records):
        if at < len(order):
            yield order[at]


def covered(
    records: Sequence[Progress], events: Sequence[Event], before: Progress | None, offsets: dict[Place, int]
) -> Iterator[Finding]:
    """(e) without Kafka transactions: all changes that a progress record covers were written before it."""
    waiting: dict[Place, list[Event]] = defaultdict(list)
    for event in reversed(events):
        if event.op != "x" and not event.is_odd:
            waiting[event.place].append(event)
    for record in records:
        if is_back(record, before):
            yield Finding("e", f"the progress record at {record.offset} goes back")
        before = record
        offsets.update(record.offsets)
        for place, queue in waiting.items():
            while queue and queue[-1].offset < offsets.get(place, 0):
                queue.pop()
            if queue and record.phase == "streaming" and queue[-1].position <= until(record):
                yield Finding(
                    "e", f"{queue[-1]}: written after the progress record at {record.offset} that covers it"
                )
    for queue in waiting.values():
        if queue:
            yield Finding("e", f"{queue[-1]}: written, and no progress record covers it")
