"""The oracle: what stands in the topics, held against PostgreSQL's own account. Pure.

In: blocks of a run, one after another (`facts`).  Out: findings, each with the letter of the broken assertion:
(a) no loss, (b) nothing invented, (c) each once, (d) order, (e) atomicity, (f) the fold is the table, (g) images,
(h) schemas, (i) nothing confirmed that is not durable, (j) snapshot and stream join, (k) liveness.
Invariant: each assertion is a function on plain data; what lasts over blocks is in `Memory` alone.
Must not: know how anything was read, nor share code with cdcd.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tests.faults.facts import (
    MESSAGE,
    Block,
    Change,
    Event,
    Finding,
    Key,
    Progress,
    Row,
    Sample,
    Table,
    Transaction,
)

CATCH_UP_WITHIN_S = 120.0


@dataclass
class Memory:
    """What is known of the blocks before."""

    last_sequence: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    partition_of: dict[tuple[str, Key], int] = field(default_factory=dict)
    last_end_lsn: int = 0
    truth: dict[str, Fold] = field(default_factory=dict)
    topic: dict[str, Fold] = field(default_factory=dict)
    progress: Progress | None = None
    offsets: dict[tuple[str, int], int] = field(default_factory=dict)
    committed: list[Progress] = field(default_factory=list)
    snapshot_lsn: int | None = None


@dataclass
class Fold:
    """A table as its changes leave it: rows by key, or a bag of rows where there is no key."""

    table: Table
    rows: dict[Key, Row] = field(default_factory=dict)
    bag: Counter[Key] = field(default_factory=Counter)

    def clear(self) -> None:
        self.rows.clear()
        self.bag.clear()

    def put(self, row: Row) -> None:
        if self.table.key:
            self.rows[key_of(self.table, row)] = row
        else:
            self.bag[whole(row)] += 1

    def drop(self, row: Row) -> Row:
        """Take a row out; what it was, as far as that is known."""
        if self.table.key:
            return self.rows.pop(key_of(self.table, row), {})
        self.bag[whole(row)] -= 1
        return row

    def contents(self) -> list[Row]:
        return [*self.rows.values(), *(dict(row) for row in self.bag.elements())]


def key_of(table: Table, row: Row) -> Key:
    """The key of a row."""
    return tuple((name, row[name]) for name in table.key)


def whole(row: Row) -> Key:
    """A whole row, comparable."""
    return tuple(sorted(row.items()))


class Oracle:
    """Judges one block after another."""

    def __init__(self, tables: Sequence[Table]) -> None:
        self.tables = {table.name: table for table in tables}
        self.memory = Memory()
        for table in tables:
            self.memory.truth[table.name] = Fold(table)
            self.memory.topic[table.name] = Fold(table)

    def judge(self, block: Block) -> list[Finding]:
        """Everything that is wrong with this block, and go on behind it."""
        memory, tables = self.memory, self.tables
        point = snapshot_point(block.progress, memory.progress) or memory.snapshot_lsn
        streamed = [one for one in block.events if not one.is_snapshot and one.op != "x" and not one.is_odd]
        findings = [
            *readable(block.events),
            *in_order(block.events, memory.last_sequence),
            *one_partition_per_key(block.events, memory.partition_of),
            *as_committed(block, streamed, tables, memory.last_end_lsn, point),
            *tombstones(block.events, tables),
            *joined(block, tables, memory.truth, point, memory.snapshot_lsn),
            *cut_at_commits(block.progress, block.events, memory.progress, memory.offsets),
            *safe(block.samples, block.progress, memory.committed),
            *stable(block),
            *live(block),
        ]
        self._remember(block, point)
        return findings + folded(block.rows, memory.truth, memory.topic)

    def _remember(self, block: Block, point: int | None) -> None:
        memory = self.memory
        memory.snapshot_lsn = point
        for transaction in block.transactions:
            memory.last_end_lsn = max(memory.last_end_lsn, transaction.end_lsn)
            fold_changes(memory.truth, transaction.changes)
        fold_events(memory.topic, block.events)
        if block.progress:
            memory.progress = block.progress[-1]


# --- the assertions ------------------------------------------------------------------------------------------


def readable(events: Sequence[Event]) -> list[Finding]:
    """(h) Every record decodes under the schema that its id names."""
    return [Finding("h", f"{event}: {event.is_odd}") for event in events if event.is_odd]


def in_order(events: Sequence[Event], last: dict[tuple[str, int], tuple[int, int]]) -> list[Finding]:
    """(c), (d) In each partition the sequence rises: what stands there twice is named so."""
    findings = []
    seen: set[tuple[tuple[str, int], tuple[int, int]]] = set()
    for event in events:
        if event.op == "x" or event.is_odd:
            continue
        at = (event.place, event.sequence)
        before = last.get(event.place)
        if at in seen or event.sequence == before:
            findings.append(Finding("c", f"{event}: a second time"))
        elif before is not None and event.sequence < before:
            findings.append(Finding("d", f"{event}: after {before}"))
        seen.add(at)
        last[event.place] = max(event.sequence, before or (0, 0))
    return findings


def one_partition_per_key(events: Sequence[Event], partition_of: dict[tuple[str, Key], int]) -> list[Finding]:
    """(d) A key's changes stand in one partition, so that their order is one."""
    findings = []
    for event in events:
        if event.key is not None and event.op != "t":
            kept = partition_of.setdefault((event.topic, event.key), event.partition)
            if kept != event.partition:
                findings.append(Finding("d", f"{event}: its key was in partition {kept}"))
    return findings


def as_committed(
    block: Block,
    streamed: Sequence[Event],
    tables: Mapping[str, Table],
    last_end_lsn: int,
    point: int | None,
) -> Iterator[Finding]:
    """(a), (b), (c), (d), (e), (g): each transaction is there whole, once, in commit order, as it was."""
    by_xid: dict[int | None, list[Event]] = defaultdict(list)
    for event in streamed:
        by_xid[event.xid].append(event)
    for transaction in block.transactions:
        found = by_xid.pop(transaction.xid, [])
        if point is not None and transaction.end_lsn <= point:
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
        yield Finding("b", f"xid {xid} was never committed, and has {len(found)} records: {found[0]}")


def _whole(
    transaction: Transaction,
    found: Sequence[Event],
    tables: Mapping[str, Table],
    partitions: Mapping[str, int],
) -> Iterator[Finding]:
    """One transaction."""
    expected = [one for change in transaction.changes for one in expected_of(change, tables)]
    name = f"xid {transaction.xid}"
    actual = _each_once(found)
    wanted, there = Counter(map(_signature, expected)), Counter(map(_signature_of_event, actual))
    missing, extra = wanted - there, there - wanted
    for (op, table, _), count in missing.items():
        yield Finding("a", f"{name}: {count} {op} of {table} missing")
    for (op, table, _), count in extra.items():
        yield Finding("b", f"{name}: {count} {op} of {table} that nobody did")
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
            yield Finding(letter, f"{name}: {event}: its images are not those of the row")


@dataclass(frozen=True)
class Expected:
    """What a change has to look like. `old`: the row before, which an unchanged value is compared with."""

    op: str
    table: str
    key: Key | None
    before: Row | None
    after: Row | None
    old: Row | None = None


def expected_of(change: Change, tables: Mapping[str, Table]) -> list[Expected]:
    """The events of one change: an update of the key is a delete and a create (F47)."""
    if change.op in ("t", "m"):
        return [Expected(change.op, change.table, None, None, change.after)]
    table = tables[change.table]

    def key(row: Row | None) -> Key | None:
        return key_of(table, row) if table.key and row is not None else None

    def old() -> Row | None:
        if change.before is None or table.is_full:
            return change.before
        return {name: value if name in table.key else None for name, value in change.before.items()}

    if change.op == "u" and key(change.before) != key(change.after):
        return [
            Expected("d", change.table, key(change.before), old(), None),
            Expected("c", change.table, key(change.after), None, change.after, change.before),
        ]
    before = old() if change.op == "d" or table.is_full else None
    row = change.before if change.op == "d" else change.after
    return [Expected(change.op, change.table, key(row), before, change.after, change.before)]


def _signature(one: Expected) -> tuple[str, str, Key | None]:
    return one.op, one.table, one.key


def _signature_of_event(event: Event) -> tuple[str, str, Key | None]:
    return event.op, event.table, None if event.op in ("t", "m") else event.key


def wrong_images(wanted: Expected, event: Event) -> str:
    """The letter of what is wrong with the rows before and after; "" when nothing is."""
    for row, image in ((wanted.before, event.before), (wanted.after, event.after)):
        if (row is None) != (image is None):
            return "g"
        if row is None or image is None:
            continue
        if row.keys() != image.keys():
            return "h"
        unchanged = event.unchanged if image is event.after else frozenset()
        for name in row:
            if name in unchanged:
                if image[name] is not None or (wanted.old or {}).get(name) != row[name]:
                    return "g"
            elif image[name] != row[name]:
                return "g"
    return ""


def _each_once(found: Sequence[Event]) -> list[Event]:
    """The events in sequence; a truncate, which stands in every partition, once; what is repeated, once."""
    by_sequence: dict[tuple[int, int], Event] = {}
    for event in found:
        by_sequence.setdefault(event.sequence, event)
    return [by_sequence[sequence] for sequence in sorted(by_sequence)]


def tombstones(events: Sequence[Event], tables: Mapping[str, Table]) -> list[Finding]:
    """(f) The record behind a delete is its key's tombstone, and there is no other one."""
    findings, open_deletes = [], {}
    for event in events:
        due: Event | None = open_deletes.pop(event.place, None)
        if due is not None and (event.op, event.key) != ("x", due.key):
            findings.append(Finding("f", f"{due}: no tombstone behind it"))
        if due is None and event.op == "x":
            findings.append(Finding("f", f"{event}: a tombstone behind no delete"))
        if event.op == "d" and event.table in tables and tables[event.table].key:
            open_deletes[event.place] = event
    return findings + [Finding("f", f"{due}: no tombstone behind it") for due in open_deletes.values()]


def snapshot_point(records: Sequence[Progress], before: Progress | None) -> int | None:
    """The consistent point of the last snapshot that was completed here: where the first record behind it ends."""
    point = None
    for record in records:
        if record.phase == "streaming" and (before is None or before.phase == "snapshot"):
            point = record.end_lsn
        before = record
    return point


def joined(
    block: Block,
    tables: Mapping[str, Table],
    truth: Mapping[str, Fold],
    point: int | None,
    before: int | None,
) -> Iterator[Finding]:
    """(j) The last snapshot holds each row of its point, once, and none else, and the stream is behind it.

    A TRUNCATE behind the point hides rows from it (PostgreSQL's is not MVCC-safe), and then stands in the stream.
    """
    if point is None or point == before:
        return
    at_point = {name: Fold(table) for name, table in tables.items()}
    for name, fold in truth.items():
        at_point[name].rows, at_point[name].bag = dict(fold.rows), fold.bag.copy()
    fold_changes(at_point, [one for tx in block.transactions if tx.end_lsn <= point for one in tx.changes])
    emptied = {
        one.table for tx in block.transactions if tx.end_lsn > point for one in tx.changes if one.op == "t"
    }
    for name in tables:
        copied = [
            one.after or {}
            for one in block.events
            if one.table == name and one.op == "r" and one.commit_lsn + 1 == point
        ]
        wanted, rows = _alike(at_point[name].contents(), copied)
        less, more = (wanted - rows).total(), (rows - wanted).total()
        if more or (less and name not in emptied):
            yield Finding("j", f"the snapshot of {name}: {less} rows missing, {more} too many")
    early = [
        one for one in block.events if not one.is_snapshot and one.op not in "xm" and one.commit_lsn < point
    ]
    if early:
        yield Finding("j", f"{early[0]}: in the stream, though it is before the snapshot's point {point}")


def cut_at_commits(
    records: Sequence[Progress],
    events: Sequence[Event],
    before: Progress | None,
    offsets: dict[tuple[str, int], int],
) -> Iterator[Finding]:
    """(e) At each progress record all topics are cut at one commit: nothing behind it is before the cut, nor the
    other way round. A Kafka transaction is what becomes visible at once, and each has one such record.
    """
    waiting: dict[tuple[str, int], list[Event]] = defaultdict(list)
    for event in reversed(events):
        waiting[event.place].append(event)
    last = before
    for record in records:
        if last is not None and record.phase == last.phase == "streaming" and record.end_lsn < last.end_lsn:
            yield Finding("e", f"the progress record at {record.offset} goes back")
        low = (0, 0) if last is None or last.phase == "snapshot" else _until(last)
        for place, offset in record.offsets.items():
            queue = waiting[place]
            while queue and queue[-1].offset < offset:
                event = queue.pop()
                if event.op == "x" or event.is_snapshot or event.is_odd or record.phase == "snapshot":
                    continue
                if not low < event.sequence <= _until(record):
                    yield Finding("e", f"{event}: not of the Kafka transaction that holds it")
        for place in waiting:
            if waiting[place] and waiting[place][-1].offset < offsets.get(place, 0):
                yield Finding("e", f"{waiting[place][-1]}: before the cut of an earlier record")
        offsets.update(record.offsets)
        last = record
    for queue in waiting.values():
        if queue:
            yield Finding("e", f"{queue[-1]}: visible, and no progress record covers it")


def _until(record: Progress) -> tuple[int, int]:
    """The last sequence that a record covers."""
    whole_until = (record.commit_lsn, 1 << 62)
    return whole_until if record.part is None else max(whole_until, record.part)


def safe(
    samples: Sequence[Sample], records: Sequence[Progress], committed: list[Progress]
) -> Iterator[Finding]:
    """(i) What the slot had confirmed was durable: a committed record before the end of that moment covers it.

    While a snapshot is taken nothing is confirmed: the slot stands where it was made.
    """
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


def stable(block: Block) -> list[Finding]:
    """(e) What a reader saw during the faults is there afterwards, with the same bytes."""
    findings = []
    for place, digest in block.seen_live.items():
        if block.digests.get(place) != digest:
            findings.append(
                Finding("e", f"a reader saw {place} during the faults, and it is not there any more")
            )
    return findings


def live(block: Block) -> list[Finding]:
    """(k) It has caught up in time after the last fault, and says so."""
    findings = []
    if block.caught_up_s is None or block.caught_up_s > CATCH_UP_WITHIN_S:
        findings.append(Finding("k", f"not caught up within {CATCH_UP_WITHIN_S:g} s"))
    elif block.lag_s != 0:
        findings.append(Finding("k", f"caught up, and the lag metric says {block.lag_s}"))
    return findings


def folded(
    rows: Mapping[str, Sequence[Row]], truth: Mapping[str, Fold], topic: Mapping[str, Fold]
) -> list[Finding]:
    """(f) Both accounts, folded, are the table. A row keeps the columns of its last change, DDL or not."""
    findings = []
    for name, selected in rows.items():
        for whose, fold in (("history", truth[name]), ("topic", topic[name])):
            one, other = _alike(fold.contents(), selected)
            if one != other:
                more, less = (one - other).total(), (other - one).total()
                findings.append(
                    Finding("f", f"the fold of {name}'s {whose}: {less} rows missing, {more} too many")
                )
    return findings


def _alike(rows: Sequence[Row], others: Sequence[Row]) -> tuple[Counter[Key], Counter[Key]]:
    """Both with the columns that all of them have: a row does not know what was added or dropped after it."""
    both = (*rows, *others)
    columns = set.intersection(*map(set, both)) if both else set()
    one, other = (
        Counter(whole({name: value for name, value in row.items() if name in columns}) for row in side)
        for side in (rows, others)
    )
    return one, other


# --- folding -------------------------------------------------------------------------------------------------


def fold_changes(folds: Mapping[str, Fold], changes: Sequence[Change]) -> None:
    """PostgreSQL's account."""
    for change in changes:
        if change.table == MESSAGE:
            continue
        fold = folds[change.table]
        if change.op == "t":
            fold.clear()
        if change.before is not None:
            fold.drop(change.before)
        if change.after is not None:
            fold.put(change.after)


def fold_events(folds: Mapping[str, Fold], events: Sequence[Event]) -> None:
    """The topics' account: what was not sent is taken from the row as it was."""
    deleted: dict[str, Row] = {}
    for event in sorted(events, key=lambda event: event.sequence):
        if event.op in "xm" or event.is_odd:
            continue
        fold = folds[event.table]
        if event.op == "t":
            fold.clear()
        elif event.op == "d" and event.before is not None:
            deleted[event.table] = fold.drop(event.before)
        elif event.after is not None:
            old: Row = {}
            if event.op == "u":
                old = fold.drop(event.before or event.after)
            elif event.op == "c":
                old = deleted.get(event.table, {})
            fold.put({n: old.get(n) if n in event.unchanged else v for n, v in event.after.items()})


def without(block: Block, *gone: Event) -> Block:
    """The block without some of its events."""
    return replace(block, events=tuple(event for event in block.events if event not in gone))
