"""(a), (b), (c), (d), (e), (g): each transaction is complete, there once, in commit order, with its values. Pure.

In: a block, its streamed events.  Out: findings.
Invariant: a transaction's events are found by its xid alone, whatever their partition and offset.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from tests.faults.assertions.images import Expected, expected_of, wrong_images
from tests.faults.facts import Block, Event, Finding, Key, Order, Point, Table, Transaction


def as_committed(
    block: Block,
    streamed: Sequence[Event],
    tables: Mapping[str, Table],
    last_end_lsn: int,
    point: Point | None,
) -> Iterator[Finding]:
    """(a), (b), (c), (d), (e), (g): each transaction is complete, there once, in commit order, with its values."""
    by_xid: dict[int | None, list[Event]] = defaultdict(list)
    for event in streamed:
        by_xid[event.xid].append(event)
    for transaction in block.transactions:
        found = by_xid.pop(transaction.xid, [])
        if point is not None:
            transaction = _behind(transaction, point)
        if point is not None and transaction.end_lsn <= point.lsn:
            if found:
                yield Finding("j", f"xid {transaction.xid} is in the snapshot and in the stream")
            last_end_lsn = transaction.end_lsn
            continue
        yield from _whole(transaction, found, tables, block.partitions)
        for lsn in {event.commit_lsn for event in found}:
            if not last_end_lsn <= lsn < transaction.end_lsn:
                yield Finding(
                    "d", f"xid {transaction.xid}: its commit LSN {lsn} is not between its neighbours"
                )
        last_end_lsn = transaction.end_lsn
    for xid, found in by_xid.items():
        yield Finding("b", f"xid {xid} was never committed, but has {len(found)} records: {found[0]}")


def _behind(transaction: Transaction, point: Point) -> Transaction:
    """Return the transaction without changes that the snapshots of their tables contain."""
    if transaction.end_lsn > max(point.floors.values(), default=0):
        return transaction
    return replace(
        transaction,
        changes=tuple(one for one in transaction.changes if transaction.end_lsn > point.of(one.table)),
    )


def _whole(
    transaction: Transaction,
    found: Sequence[Event],
    tables: Mapping[str, Table],
    partitions: Mapping[str, int],
) -> Iterator[Finding]:
    """Judge the events of one transaction."""
    expected = [one for change in transaction.changes for one in expected_of(change, tables)]
    name = f"xid {transaction.xid}"
    actual = _each_once(found)
    wanted, there = Counter(map(_signature, expected)), Counter(map(_signature_of_event, actual))
    missing, extra = wanted - there, there - wanted
    for (op, table, _), count in missing.items():
        yield Finding("a", f"{name}: {count} {op} of {table} missing")
    for (op, table, _), count in extra.items():
        yield Finding("b", f"{name}: {count} {op} of {table} too many")
    if missing and actual:
        yield Finding("e", f"{name}: {len(actual)} of {len(expected)} changes are there")
    if not missing and not extra:
        yield from _same(name, expected, actual)
    if [one.tx_seq for one in actual] != list(range(1, len(actual) + 1)):
        yield Finding("c", f"{name}: its changes are not numbered 1 to {len(actual)}")
    for event in actual:
        copies = {one.partition for one in found if one.op == "t" and one.sequence == event.sequence}
        if event.op == "t" and len(copies) != partitions[event.topic]:
            yield Finding("a", f"{name}: a truncate of {event.table} in {len(copies)} of its partitions")


def _same(name: str, expected: Sequence[Expected], actual: Sequence[Event]) -> Iterator[Finding]:
    if [_signature(one) for one in expected] != [_signature_of_event(one) for one in actual]:
        yield Finding("d", f"{name}: its changes are in another order")
        return
    for wanted, event in zip(expected, actual, strict=True):
        letter = wrong_images(wanted, event)
        if letter:
            yield Finding(letter, f"{name}: {event}: its values differ from the row")


def _signature(one: Expected) -> tuple[str, str, Key | None]:
    return one.op, one.table, one.key


def _signature_of_event(event: Event) -> tuple[str, str, Key | None]:
    return event.op, event.table, None if event.op in ("t", "m") else event.key


def _each_once(found: Sequence[Event]) -> list[Event]:
    """Return the events in sequence without repetitions; a truncate, which is in every partition, counts once."""
    by_sequence: dict[Order, Event] = {}
    for event in found:
        by_sequence.setdefault(event.sequence, event)
    return [by_sequence[sequence] for sequence in sorted(by_sequence)]
