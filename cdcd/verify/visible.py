"""Which changes of the topics a snapshot of the source has.

In: the snapshot, the LSN of a message that was written after it, the newest xid after the wait.
Out: whether a change is visible.
Why it is exact: a change is in the snapshot if and only if its transaction is, and the record has the id of its
top-level transaction. Whatever the snapshot sees was committed before it was taken, so below the message. The order
of the commit records is not the order in which transactions become visible: with synchronous replication a
transaction may be in the topics for long before a snapshot sees it (F36), so the LSN alone is not sufficient. Of two
transactions that change one row the second waits for the lock of the first one, which is released only after it is
visible; a prepared transaction retains its locks. So no snapshot sees the second without the first, and leaving out
what it does not see leaves each row in a state that it had.
The xids of records have 32 bits. Only a transaction that runs at the snapshot, or began later, is invisible, and its
commit record is in the WAL of this time: `_WINDOW_BYTES` of WAL hold fewer than 2^31 xids, so no older transaction
with the same 32 bits is mistaken for it.
Must not: do I/O.
"""

from __future__ import annotations

from dataclasses import dataclass

from cdcd.lsn import Lsn
from cdcd.snapshot.visibility import Snapshot

_WINDOW_BYTES = 1 << 36
"""64 GiB. A transaction with a change writes at least 80 bytes of WAL: 2^31 of them write 160 GiB."""


@dataclass(frozen=True, slots=True)
class View:
    """A snapshot in the stream: `marker_lsn` is the LSN of the message that follows it."""

    snapshot: Snapshot
    marker_lsn: Lsn

    def has(self, commit_lsn: Lsn, xid: int | None) -> bool:
        """Return whether the snapshot has a change. `xid` None: a row of a copy, which is ordered by its position.

        Raises ProtocolError for a number that is not an xid of this server.
        """
        if commit_lsn >= self.marker_lsn:
            return False
        if xid is None or commit_lsn < self.marker_lsn - _WINDOW_BYTES:
            return True
        return self.snapshot.sees(xid)
