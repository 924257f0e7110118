"""The incremental snapshots of one session, as the stream and the progress record see them.

In: the state of the last progress record, the stream's changes, the chunks that were emitted.
Out: the state of each position.
Invariant: a table is watched from the moment at which its copy begins, or from the beginning of the session: each
later transaction's changes of it are noted before the transaction's commit position (F36). Changes that are dropped,
because an earlier copy has them, are noted as well.
Must not: do I/O, or decide what is read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Protocol

from cdcd.avro.plan import RelationPlan
from cdcd.lsn import Lsn
from cdcd.model import BlockingCopyState, CopyState, Relation, RowBatch, TableCopyState, TransactionBatch
from cdcd.pipeline.changed_rows import changed_rows
from cdcd.snapshot.changed_keys import ChangedKeys
from cdcd.snapshot.table_copy import ChunkPosition, TableCopy, chunk_position
from cdcd.txn.transaction_batch import transactions_of

MAX_TRACKED_BYTES = 16 * 1024 * 1024
"""For each table, the memory of changes that the next chunk may not see."""
MAX_KEYS_TO_READ_AGAIN = 1_000
"""For each table; they are in every progress record."""
KEYS_PER_CHUNK = 50
NO_COPY = CopyState()


class WatchedTable:
    """One table that is being copied. `described`: the latest description of the stream since a chunk was begun.

    `settling`: see `ChangedKeys`.
    """

    def __init__(self, state: TableCopyState, settling: set[ChangedKeys] | None = None) -> None:
        changed = ChangedKeys(MAX_TRACKED_BYTES, settling)
        self.copy = TableCopy(state, changed, max_keys=MAX_KEYS_TO_READ_AGAIN, keys_per_chunk=KEYS_PER_CHUNK)
        self.described: Relation | None = None
        self.key_header: bytes | None = None
        """The header of the keys that were noted last."""

    def note_key_header(self, header: bytes) -> None:
        """Note the header of the stream's keys. With another one than before, earlier keys match no record."""
        if self.key_header not in (None, header):
            self.copy.restart()
        self.key_header = header

    def has_key_header(self, header: bytes) -> bool:
        """Return whether the noted keys have the header of a chunk's keys; if not, forget them."""
        is_same = self.key_header in (None, header)
        if not is_same:
            self.copy.restart()
            self.key_header = None
        return is_same


class Incomplete(Protocol):
    """The topics that lack rows until a copy is complete."""

    @property
    def noted(self) -> int: ...  # noqa: D102
    def begins(self, relid: int, topic: str, *, is_needed: bool) -> None: ...  # noqa: D102
    def moves(self, relid: int, topic: str) -> None: ...  # noqa: D102
    def completes(self, relid: int, topic: str) -> None: ...  # noqa: D102
    def emptied(self, relid: int) -> None: ...  # noqa: D102


class _NotWatched:
    noted = 0

    def begins(self, relid: int, topic: str, *, is_needed: bool) -> None: ...

    def moves(self, relid: int, topic: str) -> None: ...

    def completes(self, relid: int, topic: str) -> None: ...

    def emptied(self, relid: int) -> None: ...


class TableCopies:
    """The tables of one session."""

    def __init__(self, copy: CopyState | None = None, incomplete: Incomplete | None = None) -> None:
        """`incomplete` notes each copy that begins or is complete."""
        self.incomplete = incomplete or _NotWatched()
        self._now = copy or NO_COPY
        self._is_changed = False
        self._settling: set[ChangedKeys] = set()
        """The trackers that wait for the end of a transaction; each transaction would otherwise pass all tables."""
        self.tables = {
            relid: WatchedTable(state, self._settling) for relid, state in self._now.tables.items()
        }

    @property
    def is_watching(self) -> bool:
        """Whether changes have to be noted."""
        return bool(self.tables)

    @property
    def signals_at(self) -> int:
        """The offset of the next signal, -1 if none was read."""
        return self._now.signals_at

    @property
    def blocking(self) -> Mapping[int, BlockingCopyState]:
        """By relid, the tables that a blocking snapshot has left to copy."""
        return self._now.blocking

    def set_blocking(self, relid: int, state: BlockingCopyState | None) -> None:
        """Set the state of a table of a blocking snapshot; None: it is complete, or was stopped."""
        blocking = {known: one for known, one in self._now.blocking.items() if known != relid}
        if state is not None:
            blocking[relid] = state
        if blocking != self._now.blocking:
            self._now = replace(self._now, blocking=blocking)
            self._is_changed = True

    def note_coverage(self, relid: int, *, is_whole: bool) -> None:
        """Note whether the topic of a table has all rows from before the stream: for `cdcd verify`."""
        others = tuple(one for one in self._now.partial if one != relid)
        partial = others if is_whole else (*others, relid)
        if partial != self._now.partial:
            self._now = replace(self._now, partial=partial)
            self._is_changed = True

    @property
    def partial(self) -> frozenset[int]:
        """The tables whose topics lack rows from before the stream."""
        return frozenset(self._now.partial)

    def note_uncopied(self, relids: Iterable[int], published: Collection[int]) -> None:
        """Note that the topics of these tables lack rows from before the stream; forget tables not published."""
        partial = tuple(dict.fromkeys([*filter(published.__contains__, self._now.partial), *relids]))
        if partial != self._now.partial:
            self._now = replace(self._now, partial=partial)
            self._is_changed = True

    # --- commands ---

    def begin(self, relid: int, state: TableCopyState) -> None:
        """Begin to watch a table, or begin its copy again."""
        self.end(relid)
        self.tables[relid] = WatchedTable(state, self._settling)
        self._is_changed = True

    def end(self, relid: int) -> None:
        """Stop watching a table: its copy is complete, or was stopped."""
        if (table := self.tables.pop(relid, None)) is not None:
            self._settling.discard(table.copy.changed)
            self._is_changed = True

    def with_begun(
        self, tables: Mapping[int, TableCopyState], blocking: Mapping[int, BlockingCopyState]
    ) -> CopyState:
        """Return the state that the progress record would have if these copies began."""
        return replace(
            self._now, tables={**self._states(), **tables}, blocking={**self._now.blocking, **blocking}
        )

    def pause(self, relid: int, *, is_paused: bool) -> None:
        """Set whether chunks of a table are read."""
        copy = self.tables[relid].copy
        copy.state = replace(copy.state, is_paused=is_paused)
        self._is_changed = True

    def note_state(self) -> None:
        """Note that a table's state was set."""
        self._is_changed = True

    def read_signals(self, next_offset: int) -> None:
        """Note that the signals below this offset have had their effect. A new topic begins with lower offsets."""
        self._now = replace(self._now, signals_at=next_offset)
        self._is_changed = True

    # --- the stream ---

    def note_rows(self, xid: int, batch: RowBatch, plans: Mapping[int, RelationPlan]) -> None:
        """Note the rows of a transaction. Raises ProtocolError, ValueUnencodable."""
        for relid, found in changed_rows(batch, plans, self.tables).items():
            table = self.tables[relid]
            copy, before = table.copy, table.copy.state
            table.note_key_header(plans[relid].key_header)
            if found.is_unknown:
                copy.changed.note_untracked(xid)
                copy.restart()
            copy.note(xid, found.keys, found.incomplete, found.moved)
            self._is_changed |= copy.state is not before

    def note_transactions(
        self, transactions: TransactionBatch, plans: Mapping[int, RelationPlan], written_lsn: Lsn
    ) -> None:
        """Note complete transactions, but none up to `written_lsn`: they are durable (F4). Raises as `note_rows`."""
        for xid, commit_lsn, rows in transactions_of(transactions):
            if commit_lsn <= written_lsn:
                continue
            if rows is not None:
                self.note_rows(xid, rows, plans)
            self.committed(xid)

    def note_dropped(self, xid: int, relids: Iterable[int]) -> None:
        """Note that a transaction's changes of these tables are not written: an earlier copy has them."""
        for relid in relids:
            if relid in self.tables:
                self.tables[relid].copy.changed.note_untracked(xid)

    def note_truncate(self, xid: int, relids: Collection[int]) -> None:
        """Note that a transaction has truncated these tables."""
        for relid in relids:
            if relid in self.tables:
                self.tables[relid].copy.changed.note_truncate(xid)

    def emptied(self, relids: Iterable[int]) -> None:
        """Note that the stream has the TRUNCATE of these tables, and so all of their rows from it on.

        The position after the transaction says so. Of a table that is being copied the end of its copy does.
        """
        for relid in relids:
            if relid not in self.tables and relid not in self.blocking:
                self.incomplete.emptied(relid)

    def committed(self, xid: int) -> None:
        """Note that a transaction is received completely. Its changes are all noted."""
        for changed in tuple(self._settling):
            changed.committed(xid)

    def described(self, relation: Relation) -> None:
        """Note the stream's description of a table."""
        if relation.relid in self.tables:
            self.tables[relation.relid].described = relation

    # --- positions ---

    def next_position(self, covered_lsn: Lsn) -> ChunkPosition:
        """Return the commit LSN of records emitted at `covered_lsn`, and the number before their first one."""
        last = ChunkPosition(self._now.point_lsn - 1, self._now.tx_seq) if self._now.point_lsn else None
        return chunk_position(last, covered_lsn)

    def emitted(self, covered_lsn: Lsn, tx_seq: int) -> None:
        """Note that copied rows were emitted at `covered_lsn`, with numbers up to `tx_seq`."""
        self._now = replace(self._now, point_lsn=covered_lsn, tx_seq=tx_seq)
        self._is_changed = True

    def _states(self) -> dict[int, TableCopyState]:
        return {relid: table.copy.state for relid, table in self.tables.items()}

    def state_at(self, end_lsn: Lsn) -> CopyState | None:
        """Return what the progress record of a position needs: the same object as long as nothing has changed."""
        if self._is_changed:
            self._is_changed = False
            self._now = replace(self._now, tables=self._states())
        if self._now is NO_COPY:
            return None
        left = self._now.left_at(end_lsn)
        self._now = left or NO_COPY
        return left
