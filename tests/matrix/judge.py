"""The comparison of a cell's topics, read by an independent consumer, with the witness's account.

In: an `Account`, the workload's notes, a cell; decoded records.  Out: counts, or an AssertionError that names the
first difference.
Invariant: every transaction, in commit order; every change of a transaction, in order; every value; each once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.matrix import tables
from tests.matrix.account import UNCHANGED, Account, Change, Emitted, Row, Transaction, Truncation
from tests.matrix.cells import Cell
from tests.matrix.workload import Done
from tests.support.reader import Event, Sequence

MESSAGES = "message"
FLAGS = {"cascade": "truncate.cascade", "restart_seqs": "truncate.restart_identity"}
Line = tuple[int, str]
"""LSN of a change, and the rest of the change as one text."""
Reported = list[tuple[int, list[Line]]]
"""Transactions by id, in order."""


@dataclass(frozen=True)
class Counts:
    """The number of items compared and found equal."""

    transactions: int
    changes: int
    messages: int


def judge(
    cell: Cell, major: int, account: Account, done: Done, prefix: str, events: Iterable[Event]
) -> Counts:
    """Compare the records with the account; `prefix` is the name of the daemon."""
    origins: dict[int, set[str | None]] = {xid: {done.origin} for xid in done.origin_xids}
    if cell.streaming != "off":
        origins |= {xid: {done.origin, None} for xid in done.unreported_xids}
    found = _Found(prefix, origins)
    for event in events:
        found.take(event)
    expected, read = _Expected(cell, major, done).reported(account), found.reported()
    assert [xid for xid, _ in read] == [xid for xid, _ in expected], _other_order(expected, read)
    for (xid, lines), (_, ours) in zip(expected, read, strict=True):
        if lines != ours:
            raise AssertionError(_difference(xid, lines, ours))
    loose = [(one.lsn, one.content) for one in account.loose] if cell.messages else []
    assert sorted(found.loose) == sorted(loose), "messages outside transactions"
    return Counts(len(expected), sum(len(lines) for _, lines in expected), len(loose))


class _Found:
    """The records read, by transaction."""

    def __init__(self, prefix: str, origins: Mapping[int, set[str | None]]) -> None:
        self.loose: list[tuple[int, str]] = []
        self._prefix = prefix
        self._origins = origins
        self._unburied: dict[tuple[str, int], Any] = {}
        self._partitions: dict[tuple[str, str], int] = {}
        self._lines: dict[Sequence, tuple[int, Line]] = {}
        self._truncated: set[tuple[Sequence, int]] = set()
        self._last: dict[tuple[str, int], Sequence] = {}

    def take(self, event: Event) -> None:
        """Record one event, and check that a tombstone follows its delete."""
        place = (event.topic, event.partition)
        deleted = self._unburied.pop(place, None)
        assert deleted == (event.key if event.value is None else None), (
            f"a missing or an extra tombstone in {place}"
        )
        if event.value is None:
            return
        if event.topic == f"{self._prefix}.{MESSAGES}" and not event.value["transactional"]:
            self.loose.append((event.value["lsn"], event.value["content"].decode()))
            return
        sequence = event.sequence
        assert sequence is not None, f"a record without a sequence in {event.topic}"
        if event.op in ("c", "u", "d"):
            self._check_row(event)
        before = self._last.get(place)
        assert before is None or before < sequence, (
            f"out of order in {event.topic}: {before}, then {sequence}"
        )
        self._last[place] = sequence
        if event.op == "t":  # a barrier: one in each partition
            assert (sequence, event.partition) not in self._truncated, f"twice: {event.topic} {sequence}"
            self._truncated.add((sequence, event.partition))
            known = self._lines.get(sequence)
            assert known is None or known[1] == _line_of(event), f"two changes with {sequence}"
        else:
            assert sequence not in self._lines, f"twice: {event.topic} {sequence}"
        self._lines[sequence] = event.source["txId"], _line_of(event)

    def _check_row(self, event: Event) -> None:
        """Check that the key is the row's, always in one partition, and that the origin is the transaction's."""
        source = event.value["source"]
        row = event.value["after"] if event.op != "d" else event.value["before"]
        key = {name: row[name] for name in tables.key_of(source["table"])} or None
        assert event.key == key, f"the key of {event.topic} {event.sequence} is not its row's"
        where = self._partitions.setdefault((event.topic, repr(key)), event.partition)
        assert where == event.partition, f"a key of {event.topic} is in two partitions"
        if event.op == "d" and key:
            self._unburied[event.topic, event.partition] = key
        origins = self._origins.get(source["txId"], {None})
        assert source["origin"] in origins, f"transaction {source['txId']} has the origin {source['origin']}"

    def reported(self) -> Reported:
        """Return the transactions in the order of their commit; the changes of each numbered from 1."""
        assert not self._unburied, f"a delete at the end of {list(self._unburied)} without a tombstone"
        reported: Reported = []
        commit, number = (0, 0), 0
        for sequence in sorted(self._lines):
            xid, line = self._lines[sequence]
            number = number + 1 if sequence[:2] == commit else 1
            assert sequence[2] == number, f"transaction {xid} has no change {number}"
            if number == 1:
                reported.append((xid, []))
            commit = sequence[:2]
            assert reported[-1][0] == xid, f"transactions {reported[-1][0]} and {xid} have one commit LSN"
            reported[-1][1].append(line)
        return reported


def _line_of(event: Event) -> Line:
    if event.op == "m":
        return event.value["lsn"], _message(event.value["prefix"], event.value["content"].decode())
    source = event.value["source"]
    assert event.topic.endswith(f".{source['schema']}.{source['table']}")
    before, after = event.value["before"], event.value["after"]
    if after is not None:
        for column in source["unchanged"]:
            assert after[column] is None
            after[column] = UNCHANGED
    special = _without_marks(before, source["special"] or {})
    return source["lsn"], _text(source["table"], event.value["op"], before, after, special)


def _without_marks(before: Row | None, special: dict[str, str]) -> dict[str, str]:
    """Leave out the marks of columns that were not logged in an old row: such a column is null, and not of the key
    (F78).

    Where a partition's old row has only the key, an identity FULL with nulls and an index cannot be told apart.
    """
    marks = {name for name in special if name.endswith(".not_logged")}
    for mark in marks:
        assert before is not None, "a mark of an unlogged column without an old row"
        assert before[mark.split(".")[1]] is None, "a value for a column that is marked as not logged"
    return {name: text for name, text in special.items() if name not in marks}


def _message(prefix: str, content: str) -> str:
    return f"{MESSAGES} {prefix}: {content}"


def _text(table: str, op: str, before: Row | None, after: Row | None, special: dict[str, str]) -> str:
    """Return a change as text, without the NULLs of `before`, which the witness omits too."""
    shown = None if before is None else sorted((name, one) for name, one in before.items() if one is not None)
    return f"{table} {op} {shown} {after and sorted(after.items())} {sorted(special.items())}"


class _Expected:
    """The witness's account as the publications of a cell show it."""

    def __init__(self, cell: Cell, major: int, done: Done) -> None:
        self._cell = cell
        self._major = major
        self._origin_xids = done.origin_xids if cell.origin == "none" else set()
        self._attached = set(tables.PARTITIONS)

    def reported(self, account: Account) -> Reported:
        reported: Reported = []
        for transaction in account.transactions:
            lines = list(self._lines(transaction))
            if lines and transaction.xid not in self._origin_xids:
                reported.append((transaction.xid, lines))
        return reported

    def _lines(self, transaction: Transaction) -> Iterator[Line]:
        for change in transaction.changes:
            if isinstance(change, Emitted):
                if change.prefix == tables.MARK:
                    self._note(change.content)
                if self._cell.messages:
                    yield change.lsn, _message(change.prefix, change.content)
            elif isinstance(change, Truncation):
                special = {FLAGS[flag]: "true" for flag in change.flags}
                for table in change.tables:
                    if self._is_truncated(table):
                        yield change.lsn, _text(table, "t", None, None, special)
            else:
                yield from self._rows(change)

    def _note(self, mark: str) -> None:
        name, verb, _ = mark.split()
        (self._attached.add if verb == "attached" else self._attached.remove)(name)

    def _is_truncated(self, table: str) -> bool:
        """Return whether a TRUNCATE reports this table: a root published as itself replaces its partitions."""
        if table == "parted":
            return self._cell.via_root
        return not (self._cell.via_root and table in self._attached)

    def _rows(self, change: Change) -> Iterator[Line]:
        table = change.table
        if table in tables.PARTITIONS and table in self._attached and self._cell.via_root:
            table = "parted"
        old, new = (self._sent(table, row) for row in (change.old, change.new))
        verb = self._filtered(table, change.verb, old, new)
        key = tables.key_of(table)
        if verb is None:
            return
        if verb == "INSERT":
            yield change.lsn, _text(table, "c", None, new, {})
        elif verb == "DELETE":
            yield change.lsn, _text(table, "d", old or self._key(new, key), None, {})
        else:
            assert new is not None
            if old is not None:
                self._fill(old, new)
            if key and old is not None and any(old[name] != new[name] for name in key):
                yield change.lsn, _text(table, "d", old, None, {})
                yield change.lsn, _text(table, "c", None, new, {})
            else:
                yield change.lsn, _text(table, "u", old, new, {})

    def _sent(self, table: str, row: Row | None) -> Row | None:
        columns = tables.sent_columns(table, self._major)
        if row is None or columns is None:
            return row
        return {name: value for name, value in row.items() if name in columns}

    @staticmethod
    def _key(row: Row | None, key: tuple[str, ...]) -> Row:
        assert row is not None
        return {name: row[name] for name in key}

    @staticmethod
    def _fill(old: Row, new: Row) -> None:
        """Fill in unchanged TOASTed values from an identity with the complete row (F46)."""
        for name, value in new.items():
            if value == UNCHANGED and name in old:
                new[name] = old[name]

    def _filtered(self, table: str, verb: str, old: Row | None, new: Row | None) -> str | None:
        """Apply the row filter: an UPDATE may become an INSERT or a DELETE."""
        if table != "filtered" or self._major < 15:
            return verb
        was, stays = (row is None or row["id"] % tables.FILTERED_OUT != 0 for row in (old or new, new or old))
        if verb == "INSERT":
            return verb if stays else None
        if verb == "DELETE":
            return verb if was else None
        if was and stays:
            return verb
        return "DELETE" if was else "INSERT" if stays else None


def _other_order(expected: Reported, read: Reported) -> str:
    wanted, got = [xid for xid, _ in expected], [xid for xid, _ in read]
    lost, foreign = sorted(set(wanted) - set(got)), sorted(set(got) - set(wanted))
    if lost or foreign:
        shown = [(xid, lines[:3]) for xid, lines in (*expected, *read) if xid in {*lost[:1], *foreign[:1]}]
        return f"transactions lost: {lost}, unknown: {foreign}: {shown}"
    at = next(place for place, pair in enumerate(zip(wanted, got, strict=False)) if pair[0] != pair[1])
    return f"transaction {at} is {got[at]}, but the committed one is {wanted[at]}"


def _difference(xid: int, expected: list[Line], read: list[Line]) -> str:
    for number, (one, other) in enumerate(zip(expected, read, strict=False), 1):
        if one != other:
            return f"transaction {xid}, change {number}:\n  committed {one}\n  read      {other}"
    return f"transaction {xid}: {len(expected)} changes committed, {len(read)} read"
