"""(e) atomic visibility; (i) the confirmed position is durable; (k) liveness. Pure.

In: progress records, events, samples of the slot.  Out: findings.
Invariant: the records of a Kafka transaction become visible together, and each transaction has one progress record.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence

from tests.faults.facts import Block, Event, Finding, Place, Progress, Sample

CATCH_UP_WITHIN_S = 120.0


def cut_at_commits(
    records: Sequence[Progress],
    events: Sequence[Event],
    before: Progress | None,
    offsets: dict[Place, int],
) -> Iterator[Finding]:
    """(e) Each progress record cuts all topics at the same commit: earlier changes are before the cut in each
    partition, later ones behind it. A Kafka transaction becomes visible as a whole and has one progress record.
    """
    waiting: dict[Place, list[Event]] = defaultdict(list)
    for event in reversed(events):
        waiting[event.place].append(event)
    last = before
    for record in records:
        if is_back(record, last):
            yield Finding("e", f"the progress record at {record.offset} goes back")
        low = (0, 0) if last is None or last.phase == "snapshot" else until(last)
        for place, offset in record.offsets.items():
            queue = waiting[place]
            while queue and queue[-1].offset < offset:
                event = queue.pop()
                if event.op == "x" or event.is_snapshot or event.is_odd or record.phase == "snapshot":
                    continue
                if not low < event.position <= until(record):
                    yield Finding("e", f"{event}: its position is outside its Kafka transaction")
        for place in waiting:
            if waiting[place] and waiting[place][-1].offset < offsets.get(place, 0):
                yield Finding("e", f"{waiting[place][-1]}: its offset is below an earlier record's")
        offsets.update(record.offsets)
        last = record
    for queue in waiting.values():
        if queue:
            yield Finding("e", f"{queue[-1]}: visible, and no progress record covers it")


def is_back(record: Progress, last: Progress | None) -> bool:
    """Whether a streaming progress record ends before the previous streaming one."""
    return last is not None and record.phase == last.phase == "streaming" and record.end_lsn < last.end_lsn


def until(record: Progress) -> tuple[int, int]:
    """Return the last position that a record covers."""
    whole_until = (record.commit_lsn, 1 << 62)
    return whole_until if record.part is None else max(whole_until, record.part)


def safe(
    samples: Sequence[Sample], records: Sequence[Progress], committed: list[Progress]
) -> Iterator[Finding]:
    """(i) The slot's confirmed position was durable: a progress record committed by then covers it.

    During a snapshot nothing is confirmed: the slot remains at the position of its creation. A block without samples
    is a finding as well.
    """
    if not samples:
        yield Finding("i", "there are no samples of the slot")
    committed.extend(records)
    offsets = [record.offset for record in committed]
    reported: set[int] = set()
    for sample in samples:
        end = bisect_left(offsets, sample.end_offset)
        if end == 0 or committed[end - 1].phase == "snapshot" or sample.confirmed_lsn in reported:
            continue
        if all(committed[at].end_lsn < sample.confirmed_lsn for at in range(end - 1, -1, -1)):
            reported.add(sample.confirmed_lsn)
            yield Finding(
                "i", f"{sample.confirmed_lsn} was confirmed, {committed[end - 1].end_lsn} was durable"
            )


def stable(block: Block, seen_before: set[tuple[str, int, int]]) -> list[Finding]:
    """(e) Records that a reader saw during the faults are unchanged afterwards, and the reader saw all records."""
    findings = []
    for place, digest in block.seen_live.items():
        if block.digests.get(place) != digest:
            findings.append(
                Finding("e", f"a reader saw {place} during the faults, and the record is missing now")
            )
    seen_before.update(block.seen_live)
    if unseen := block.digests.keys() - seen_before:
        findings.append(
            Finding("e", f"a reader during the faults was not given {len(unseen)} records: {min(unseen)}")
        )
    return findings


def live(block: Block) -> list[Finding]:
    """(k) The daemon has caught up in time after the last fault, and its lag metric shows this."""
    findings = []
    if block.caught_up_s is None or block.caught_up_s > CATCH_UP_WITHIN_S:
        findings.append(Finding("k", f"not caught up within {CATCH_UP_WITHIN_S:g} s"))
    elif block.lag_s != 0:
        findings.append(Finding("k", f"caught up, but the lag metric is {block.lag_s}"))
    return findings
