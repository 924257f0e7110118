"""Transactions that wait for their end: contents gathered from the wire, and which of them are prepared.

In: the contents of a streamed or prepared transaction; PREPAREs and what was decided about them.
Out: the same contents when they are due; the oldest PREPARE that is undecided.
Invariant: a prepared transaction is found by gid and xid together, since a gid may be used again once it is
decided (F35), and only then: two undecided ones of one gid are an error. Rows of a prepared transaction keep
the descriptions that were in force when they were sent, whatever its session learns until COMMIT PREPARED.
Must not: outlive its walsender session; the server sends what is undecided again (F33).

What a session is sent of a prepared transaction, as PostgreSQL 15, 16, 17 and 18 do it alike, found by trying:
- it is sent (again) at its PREPARE if that record's start, `prepare_lsn`, is not below where the session starts:
  one started exactly there gets Begin Prepare to Prepare, one started a byte later only Commit Prepared, without
  rows. So `prepare_lsn` itself may be confirmed, and nothing beyond it before the decision.
- what was prepared before two_phase was switched on (a START_REPLICATION with it does so for good, from its start
  LSN on) is sent whole right before its Commit Prepared, in every session; its `prepare_lsn` then lies behind.
- one that changed no published table comes as well, empty, and so does its decision; one that changed nothing at
  all (it has locked rows) comes as Commit Prepared alone, from 18 on as Prepare and Commit Prepared.
- one that was streamed may come again unstreamed. A Relation that was sent in a stream is sent again to others
  after Stream Prepare; one sent between Begin Prepare and Prepare is not.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from cdcd.errors import ProtocolError
from cdcd.lsn import Lsn
from cdcd.model import Relation
from cdcd.pgoutput import messages
from cdcd.txn.relations import RelationCache
from cdcd.txn.store import ChangeStore


@dataclass(slots=True)
class OpenTransaction:
    """One transaction whose end the server has not sent yet. `is_streamed`: it comes in segments, with xids."""

    xid: int
    store: ChangeStore
    is_streamed: bool
    relations: RelationCache
    origin: messages.Origin | None = None
    described_before: list[Relation] = field(default_factory=list)
    """Relations that the session had described before the first row here that needed them."""
    published_as: list[int | None] = field(default_factory=list)
    """For each Relation message of the contents, as which table the rows behind it came (F78)."""
    stopped_at_pg_us: int = 0
    """When the server sent its last Stream Stop, by the server's clock."""
    subxids: set[int] = field(default_factory=set)
    """Subtransactions that something was streamed of and whose rollback was not told."""
    rolled_back: int = 0
    """How many were such until their rollback was told: a store may have to remember each."""
    is_unsafe: bool = False
    """A subtransaction may have been rolled back already when the server decoded its rows."""

    def adopt(self, relids: Iterable[int], session: RelationCache) -> None:
        """Note how the session describes these relations now. Raises RelationUnknown (F43)."""
        # What the old tuples of rows have depends on the partitions that they may come from, as these are now (F78).
        wanted = sorted(set(relids))
        wanted += session.partitions_of(wanted)
        unknown_here = tuple(relid for relid in wanted if relid not in self.relations)
        self.described_before += self.relations.adopt(unknown_here, session)


class OpenStreams:
    """The streamed transactions that are neither committed, prepared nor aborted.

    Keyed by xid alone: within one session no two transactions in progress share one (F27).
    `subtransactions`: how many they have together that something was streamed of, rolled back or not.
    """

    def __init__(self) -> None:
        self._by_xid: dict[int, OpenTransaction] = {}
        self.subtransactions = 0

    def __len__(self) -> int:
        return len(self._by_xid)

    def get(self, xid: int) -> OpenTransaction | None:
        """Return the transaction, None when it is not open."""
        return self._by_xid.get(xid)

    def open(self, stream: OpenTransaction) -> None:
        """Keep a transaction that is not open yet."""
        self._by_xid[stream.xid] = stream

    def take(self, xid: int) -> OpenTransaction | None:
        """Return the transaction and forget it, with its subtransactions."""
        stream = self._by_xid.pop(xid, None)
        if stream is not None:
            self.subtransactions -= len(stream.subxids) + stream.rolled_back
            stream.subxids.clear()
        return stream

    def note(self, stream: OpenTransaction, xid: int | None) -> bool:
        """Something of this (sub)transaction was streamed; return whether it is a subtransaction not known before."""
        if xid is None or xid == stream.xid or xid in stream.subxids:
            return False
        stream.subxids.add(xid)
        self.subtransactions += 1
        return True

    def roll_back(self, stream: OpenTransaction, xid: int) -> None:
        """Drop what was streamed of a subtransaction; the server also tells of those that it sent nothing of."""
        if xid in stream.subxids:
            stream.subxids.remove(xid)
            stream.rolled_back += 1
            stream.store.abort_subtransaction(xid)  # nested ones come one by one (F26)


@dataclass(frozen=True, slots=True)
class PreparedTransaction:
    """A prepared transaction: `prepare_lsn` is where its PREPARE record begins."""

    contents: OpenTransaction
    gid: str
    prepare_lsn: Lsn
    prepare_pg_us: int


@dataclass(frozen=True, slots=True)
class OldestPrepared:
    """What is prepared and undecided: how many, and the oldest's LSN and time."""

    count: int
    oldest_lsn: Lsn
    oldest_pg_us: int


class PreparedTransactions:
    """The prepared transactions of one session that are neither committed nor rolled back."""

    def __init__(self) -> None:
        self._by_gid: dict[str, PreparedTransaction] = {}

    def add(self, one: PreparedTransaction) -> None:
        """Keep it. Raises ProtocolError when the gid is undecided already: its decision did not come."""
        before = self._by_gid.get(one.gid)
        if before is not None:
            raise ProtocolError(
                "a transaction is prepared under a gid that is not decided yet",
                xid=one.contents.xid,
                undecided_xid=before.contents.xid,
                prepare_lsn=one.prepare_lsn,
            )
        self._by_gid[one.gid] = one

    def take(self, gid: str, xid: int) -> OpenTransaction | None:
        """Return the contents of what is decided now, and forget it; None when it is not known."""
        found = self._by_gid.get(gid)
        if found is None or found.contents.xid != xid:
            return None
        del self._by_gid[gid]
        return found.contents

    @property
    def oldest_prepared(self) -> OldestPrepared | None:
        """What is undecided, None when nothing is."""
        if not self._by_gid:
            return None
        # Not the first that came: what was prepared before two_phase was switched on comes late (F34).
        oldest = min(self._by_gid.values(), key=lambda one: one.prepare_lsn)
        return OldestPrepared(len(self._by_gid), oldest.prepare_lsn, oldest.prepare_pg_us)
