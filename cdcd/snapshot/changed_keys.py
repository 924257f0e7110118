"""Track what the stream changed in one table while its chunks are read, and drop the outdated rows of a chunk.

In: the changes of each committed transaction of the stream, by xid; chunks, each with the snapshot it was read in.
Out: the records of a chunk that may be emitted, and the keys whose rows have to be read again.
Invariant: a chunk's row is emitted only if every earlier record of its key is of a transaction that the snapshot
sees. This holds if the chunk is filtered once everything committed before the chunk's end was received, and if each
transaction that the snapshot does not see either is tracked here or comes later (F36). If that is not known, the
chunk is refused, and has to be read again in a later snapshot.
Must not: do I/O. It has one table; several tables have one tracker each.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from cdcd.model import KeyValues, Record
from cdcd.snapshot.visibility import Snapshot, is_later_xid

_XID_BYTES = 500
_KEY_BYTES = 130
_INCOMPLETE_BYTES = 250
"""Estimates of the memory of one transaction, one key, and the values of one key, without their contents."""


class FilteredChunk(NamedTuple):
    """A chunk's records that may be emitted, and the keys whose rows are incomplete for readers (F46)."""

    records: list[Record]
    read_again: dict[bytes, KeyValues]


@dataclass(slots=True)
class _Changes:
    """The changes of one transaction."""

    keys: set[bytes] = field(default_factory=set)
    incomplete: dict[bytes, KeyValues] = field(default_factory=dict)
    is_truncate: bool = False


class ChangedKeys:
    """The changes of one table by transactions that a chunk's snapshot may not see.

    Tracking begins at a position of the stream. Until `refuse_until_visible` was called, every chunk is refused.
    `max_bytes` bounds the memory: at the limit the tracked keys are dropped, and chunks are refused until a snapshot
    sees every one of their transactions. `settling` has this tracker while `committed` has an effect.
    """

    def __init__(self, max_bytes: int, settling: set[ChangedKeys] | None = None) -> None:
        self._max_bytes = max_bytes
        self._settling = set() if settling is None else settling
        self._unsettled: set[int] | None = None
        self._by_xid: dict[int, _Changes] = {}
        self._untracked: tuple[int, int] | None = None
        """The first and the last xid of transactions of which not every change is tracked."""
        self._forgotten: Snapshot | None = None
        self.size_bytes = 0

    # --- the transactions before the tracked part of the stream ---

    def refuse_until_visible(self, xids: Iterable[int]) -> None:
        """Refuse chunks until their snapshot sees these transactions, or they are settled.

        `xids`: all transactions that had not ended after the tracking began (running_xids.py). One of them may have
        its commit record before the tracked part of the stream, and not be visible yet (F36).
        """
        self._unsettled = set(xids)
        if self._unsettled:
            self._settling.add(self)

    def settle(self, xids: Iterable[int]) -> None:
        """Note that these transactions have no commit record before the tracked part of the stream."""
        if self._unsettled is not None:
            self._unsettled.difference_update(xids)
            if not self._unsettled:
                self._settling.discard(self)

    # --- the stream ---

    def committed(self, xid: int) -> None:
        """Note that a transaction is committed in the tracked part of the stream: all its changes are noted here.

        To be called for each transaction, also for one that did not change the table.
        """
        self.settle((xid,))

    def note(
        self, xid: int, keys: Iterable[bytes], incomplete: Mapping[bytes, KeyValues] | None = None
    ) -> None:
        """Note keys of records that a transaction has written, both keys of a key change.

        `incomplete`: those of them whose record lacks unchanged values that PostgreSQL did not send (F46).
        """
        changes = self._changes_of(xid)
        for key in keys:
            if key not in changes.keys:
                changes.keys.add(key)
                self.size_bytes += _KEY_BYTES + len(key)
        for key, values in (incomplete or {}).items():
            if key not in changes.incomplete:
                self.size_bytes += _INCOMPLETE_BYTES + len(key) + 2 * sum(map(len, values))
            changes.incomplete[key] = values
        if self.size_bytes > self._max_bytes:
            self.lose_track()

    def note_truncate(self, xid: int) -> None:
        """Note that a transaction has truncated the table."""
        self._changes_of(xid).is_truncate = True

    def note_untracked(self, xid: int) -> None:
        """Note that a transaction has changed keys that are not known: chunks are refused until it is visible."""
        first, last = self._untracked or (xid, xid)
        self._untracked = (
            xid if is_later_xid(first, xid) else first,
            xid if is_later_xid(xid, last) else last,
        )

    def lose_track(self) -> None:
        """Drop the tracked keys: chunks are refused until their transactions are visible."""
        for xid in self._by_xid:
            self.note_untracked(xid)
        self._by_xid.clear()
        self.size_bytes = 0

    def _changes_of(self, xid: int) -> _Changes:
        if xid not in self._by_xid:
            self._by_xid[xid] = _Changes()
            self.size_bytes += _XID_BYTES
        return self._by_xid[xid]

    # --- the chunks ---

    def may_use(self, snapshot: Snapshot) -> bool:
        """Return whether a chunk of this snapshot can be filtered: if not, it has to be read in a later snapshot."""
        if self._unsettled is None or not all(map(snapshot.sees, self._unsettled)):
            return False
        if self._untracked is not None and not snapshot.sees_all(*self._untracked):
            return False
        return self._forgotten is None or snapshot.includes(self._forgotten)

    def filter(
        self, snapshot: Snapshot, records: Sequence[Record], requested: Collection[bytes] = ()
    ) -> FilteredChunk | None:
        """Return a chunk without outdated rows, None if the chunk is refused. Changes nothing.

        To be called at a transaction boundary at which everything committed before the chunk's end was received.
        `requested`: the keys of a chunk that reads keys again. They are still to be read if a transaction that left
        them incomplete is invisible; also if the chunk has no row, since that transaction may have created the row.
        """
        if not self.may_use(snapshot):
            return None
        unseen = self._unseen(snapshot)
        keys: set[bytes] = set()
        incomplete: dict[bytes, KeyValues] = {}
        for changes in unseen:
            keys |= changes.keys
            incomplete |= changes.incomplete
        is_outdated = any(changes.is_truncate for changes in unseen)
        emitted = [] if is_outdated else [record for record in records if record.key not in keys]
        read = dict.fromkeys((*requested, *(record.key for record in records if record.key is not None)))
        return FilteredChunk(emitted, {key: incomplete[key] for key in read if key in incomplete})

    def unchanged(self, snapshot: Snapshot, keys: Iterable[bytes]) -> list[bytes] | None:
        """Return the keys of which no record is of a transaction that the snapshot does not see; None: refused.

        To be called as `filter`. A row with such a key exists for readers exactly if the snapshot has it.
        """
        if not self.may_use(snapshot):
            return None
        unseen = self._unseen(snapshot)
        if any(changes.is_truncate for changes in unseen):
            return []
        return [key for key in keys if not any(key in changes.keys for changes in unseen)]

    def _unseen(self, snapshot: Snapshot) -> list[_Changes]:
        return [changes for xid, changes in self._by_xid.items() if not snapshot.sees(xid)]

    def forget(self, snapshot: Snapshot) -> None:
        """Forget the transactions that this snapshot sees. Chunks with an older snapshot are refused from now on."""
        for xid in [xid for xid in self._by_xid if snapshot.sees(xid)]:
            changes = self._by_xid.pop(xid)
            self.size_bytes -= _XID_BYTES + sum(_KEY_BYTES + len(key) for key in changes.keys)
            self.size_bytes -= sum(
                _INCOMPLETE_BYTES + len(key) + 2 * sum(map(len, values))
                for key, values in changes.incomplete.items()
            )
        self.settle([xid for xid in self._unsettled or () if snapshot.sees(xid)])
        if self._untracked is not None and snapshot.sees_all(*self._untracked):
            self._untracked = None
        if self._forgotten is None or snapshot.includes(self._forgotten):
            self._forgotten = snapshot
