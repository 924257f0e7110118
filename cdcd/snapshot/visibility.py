"""Decide which of the stream's transactions a snapshot of the server sees.

In: the text of `pg_current_snapshot()` (PostgreSQL 12: `txid_current_snapshot()`), xids as the stream has them.
Out: whether the snapshot sees a transaction.
Invariant: the order in which transactions become visible is not the order of their commit records (F36). An xid
answers which changes a chunk has; an LSN does not.
Must not: do I/O.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

from cdcd.errors import ProtocolError

_NAMED_SINCE = 130_000
_TEXT = re.compile(r"([0-9]{1,20}):([0-9]{1,20}):([0-9,]*)", re.ASCII)
_MAX_IN_PROGRESS = 1 << 19
"""max_connections and max_prepared_transactions are below 2^18 each."""
_MAX_CHARACTERS = 21 * (_MAX_IN_PROGRESS + 2)
_FIRST_NORMAL_XID = 3
_XIDS = 1 << 32
_HALF = 1 << 31
_MAX_FULL_XID = 1 << 63


def snapshot_function(server_version: int) -> str:
    """Return the name of the function that returns the snapshot of the transaction."""
    return "pg_current_snapshot" if server_version >= _NAMED_SINCE else "txid_current_snapshot"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot's visibility: xids with their epoch, without subtransactions.

    Every transaction below `xmin` has ended, no transaction from `xmax` on is visible, `in_progress` are those in
    between that had not ended. `in_progress` does not list transactions from `xmax` on, even those that run and have
    their commit record in the WAL.
    """

    xmin: int
    xmax: int
    in_progress: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> Snapshot:
        """Return the snapshot of a text `xmin:xmax:xid,xid`. Raises ProtocolError."""
        found = _TEXT.fullmatch(text) if len(text) <= _MAX_CHARACTERS else None
        if found is None or any(len(xid) > 20 for xid in found[3].split(",")):
            raise ProtocolError("the server's snapshot is not of the form xmin:xmax:xid,xid")
        xmin, xmax = int(found[1]), int(found[2])
        try:
            in_progress = [int(xid) for xid in found[3].split(",")] if found[3] else []
        except ValueError:
            raise ProtocolError("the server's snapshot has an empty xid") from None
        ascending = [xmin - 1, *in_progress, xmax]
        if not (_FIRST_NORMAL_XID <= xmin <= xmax < _MAX_FULL_XID) or not all(
            before < after for before, after in pairwise(ascending)
        ):
            raise ProtocolError("the xids of the server's snapshot are not in ascending order")
        return cls(xmin, xmax, frozenset(in_progress))

    def sees(self, xid: int) -> bool:
        """Return whether the snapshot sees a committed transaction, given by its top-level xid of 32 bits.

        Raises ProtocolError for a number that is not an xid of this server.
        """
        full = self._full(xid)
        return full < self.xmin or (full < self.xmax and full not in self.in_progress)

    def sees_all(self, first_xid: int, last_xid: int) -> bool:
        """Return whether no transaction from `first_xid` to `last_xid` is invisible or still running."""
        first, last = self._full(first_xid), self._full(last_xid)
        return last < self.xmax and not any(first <= xid <= last for xid in self.in_progress)

    def includes(self, other: Snapshot) -> bool:
        """Return whether this snapshot sees every transaction that `other` sees."""
        ahead = sum(xid >= self.xmax for xid in other.in_progress)
        return other.xmax - self.xmax <= ahead and all(
            xid in other.in_progress for xid in self.in_progress if xid < other.xmax
        )

    def _full(self, xid: int) -> int:
        """Return the xid with its epoch: of all xids with these 32 bits, the one nearest to `xmax`."""
        full = self.xmax + (xid - self.xmax + _HALF) % _XIDS - _HALF
        if not (_FIRST_NORMAL_XID <= xid < _XIDS) or full < _FIRST_NORMAL_XID:
            raise ProtocolError("the stream has an xid that the snapshot's server has not assigned")
        return full


def is_later_xid(xid: int, other: int) -> bool:
    """Return whether an xid of 32 bits was assigned after another, as PostgreSQL compares them."""
    return 0 < (xid - other) % _XIDS < _HALF
