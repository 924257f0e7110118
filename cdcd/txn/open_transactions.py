"""Open and prepared transactions: their contents, gathered from the wire, until their end or decision.

In: the contents of streamed and prepared transactions; PREPAREs and their decisions.
Out: the same contents at the commit; the oldest undecided PREPARE.
Invariant: a prepared transaction is identified by gid and xid together, since a gid may be used again after the
decision (F35). Two undecided transactions with the same gid are an error. Rows of a prepared transaction use the
descriptions that were valid when they were sent, even if the session receives others before COMMIT PREPARED.
Must not: outlive its walsender session; the server sends undecided transactions again (F33).

A session receives a prepared transaction as follows, observed identically with PostgreSQL 15, 16, 17 and 18:
- A transaction is sent (again) at its PREPARE if the start of that record, `prepare_lsn`, is not below the session's
  start LSN. A session that starts exactly there receives Begin Prepare to Prepare; one that starts a byte later
  receives only Commit Prepared, without rows. So `prepare_lsn` itself may be confirmed, but no higher LSN before the
  decision.
- A transaction prepared before two_phase was enabled (START_REPLICATION with the option enables it permanently, from
  its start LSN on) is sent completely right before its Commit Prepared, in every session; its `prepare_lsn` is then
  lower than LSNs already sent.
- A transaction that changed no published table is sent empty, with its decision. A transaction that changed nothing
  at all (it only locked rows) is sent as Commit Prepared alone, from version 18 on as Prepare and Commit Prepared.
- A streamed transaction may be sent again unstreamed. A Relation that was sent in a stream is sent again for other
  transactions after Stream Prepare; one sent between Begin Prepare and Prepare is not.
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
    """One transaction whose end the server has not sent yet. `is_streamed`: it is sent in segments, with xids."""

    xid: int
    store: ChangeStore
    is_streamed: bool
    relations: RelationCache
    origin: messages.Origin | None = None
    described_before: list[Relation] = field(default_factory=list)
    """Relations that the session had described before the first row here that needed them."""
    published_as: list[int | None] = field(default_factory=list)
    """For each Relation message of the contents, the `published_as` of the rows after it (F78)."""
    stopped_at_pg_us: int = 0
    """When the server sent the last Stream Stop, by the server's clock."""
    subxids: set[int] = field(default_factory=set)
    """Subtransactions with streamed changes whose rollback was not received."""
    rolled_back: int = 0
    """The number of subtransactions with streamed changes whose rollback was received; a store may remember each."""
    is_unsafe: bool = False
    """Whether a subtransaction may already have been rolled back when the server decoded its rows."""

    def adopt(self, relids: Iterable[int], session: RelationCache) -> None:
        """Copy the session's current descriptions of these relations. Raises RelationUnknown (F43)."""
        # The columns of old tuples depend on the current state of the partitions that the rows may come from (F78).
        wanted = sorted(set(relids))
        wanted += session.partitions_of(wanted)
        unknown_here = tuple(relid for relid in wanted if relid not in self.relations)
        self.described_before += self.relations.adopt(unknown_here, session)


class OpenStreams:
    """The streamed transactions that are neither committed, prepared nor aborted.

    Keyed by xid alone: within one session no two open transactions have the same xid (F27).
    `subtransactions`: the total number of their subtransactions with streamed changes, rolled back or not.
    """

    def __init__(self) -> None:
        self._by_xid: dict[int, OpenTransaction] = {}
        self.subtransactions = 0

    def __len__(self) -> int:
        return len(self._by_xid)

    def get(self, xid: int) -> OpenTransaction | None:
        """Return the transaction, None if it is not open."""
        return self._by_xid.get(xid)

    def open(self, stream: OpenTransaction) -> None:
        """Add a transaction that is not open yet."""
        self._by_xid[stream.xid] = stream

    def take(self, xid: int) -> OpenTransaction | None:
        """Remove the transaction with its subtransactions, and return it; None if it is not open."""
        stream = self._by_xid.pop(xid, None)
        if stream is not None:
            self.subtransactions -= len(stream.subxids) + stream.rolled_back
            stream.subxids.clear()
        return stream

    def note(self, stream: OpenTransaction, xid: int | None) -> bool:
        """Note streamed changes of a (sub)transaction; return whether this is a new subtransaction."""
        if xid is None or xid == stream.xid or xid in stream.subxids:
            return False
        stream.subxids.add(xid)
        self.subtransactions += 1
        return True

    def roll_back(self, stream: OpenTransaction, xid: int) -> None:
        """Drop the streamed changes of a subtransaction; the server also sends rollbacks of those without changes."""
        if xid in stream.subxids:
            stream.subxids.remove(xid)
            stream.rolled_back += 1
            stream.store.abort_subtransaction(xid)  # nested ones have messages of their own (F26)


@dataclass(frozen=True, slots=True)
class PreparedTransaction:
    """A prepared transaction: `prepare_lsn` is the start of its PREPARE record."""

    contents: OpenTransaction
    gid: str
    prepare_lsn: Lsn
    prepare_pg_us: int


@dataclass(frozen=True, slots=True)
class OldestPrepared:
    """The number of undecided prepared transactions, and the LSN and time of the oldest."""

    count: int
    oldest_lsn: Lsn
    oldest_pg_us: int


class PreparedTransactions:
    """The prepared transactions of one session that are neither committed nor rolled back."""

    def __init__(self) -> None:
        self._by_gid: dict[str, PreparedTransaction] = {}

    def add(self, one: PreparedTransaction) -> None:
        """Add a transaction. Raises ProtocolError if the gid is already undecided: its decision was not received."""
        before = self._by_gid.get(one.gid)
        if before is not None:
            raise ProtocolError(
                "a transaction was prepared with the gid of another undecided transaction",
                xid=one.contents.xid,
                undecided_xid=before.contents.xid,
                prepare_lsn=one.prepare_lsn,
            )
        self._by_gid[one.gid] = one

    def take(self, gid: str, xid: int) -> OpenTransaction | None:
        """Remove the transaction that is being decided and return its contents; None if it is unknown."""
        found = self._by_gid.get(gid)
        if found is None or found.contents.xid != xid:
            return None
        del self._by_gid[gid]
        return found.contents

    @property
    def oldest_prepared(self) -> OldestPrepared | None:
        """The undecided transactions, None if there are none."""
        if not self._by_gid:
            return None
        # Not the first received: transactions prepared before two_phase was enabled are sent late (F34).
        oldest = min(self._by_gid.values(), key=lambda one: one.prepare_lsn)
        return OldestPrepared(len(self._by_gid), oldest.prepare_lsn, oldest.prepare_pg_us)
