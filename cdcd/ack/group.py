"""Group complete PostgreSQL transactions into one Kafka transaction, and track the safe LSN.

In: chunks of records in commit order, some of which end a PostgreSQL transaction (a commit position).
Out: the next chunk to produce, the time to commit the Kafka transaction, and its position.
Invariant: a Kafka transaction is only committed at a commit position; or, if the limits allow it, at the end of a
part of a transaction that is too large for one, with the previous commit position. Commit positions are committed in
the order in which they were received, so the position of the last committed group is the end of a contiguous prefix
of all received data (F7). A position is never computed: it is a commit position's own end LSN (F2), or the start of a
PREPARE below that LSN (F33).
Must not: do I/O, read the clock; times are arguments.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from cdcd.ack.wait_policy import NO_WAIT, WaitPolicy
from cdcd.lsn import INVALID_LSN, Lsn
from cdcd.model import CopyState, PartPosition, PreparedBefore, Record


@dataclass(frozen=True, slots=True)
class CommitPosition:
    """A position before which every transaction is complete.

    `commit_lsn` is that of the last transaction before the position, `end_lsn` the LSN that may be confirmed once the
    position is durable, `commit_us` the transaction's commit time (Unix epoch), 0 if unknown. `transactions` is the
    number of transactions that end here.
    `covered_lsn` is the LSN up to which all committed data was received, if an undecided prepared transaction holds
    `end_lsn` below it (F33); 0 if it equals `end_lsn`. `prepared_before`: transactions whose rows may still be lost.
    """

    commit_lsn: Lsn
    end_lsn: Lsn
    commit_us: int
    transactions: int = 1
    phase: str = "streaming"
    snapshot_tables: tuple[str, ...] = ()
    covered_lsn: Lsn = INVALID_LSN
    prepared_before: PreparedBefore = field(default_factory=PreparedBefore)
    part: PartPosition | None = None
    """The part of the next transaction that is also written."""
    copy: CopyState | None = None
    """The state of a snapshot, as long as it has tables left or the stream depends on it."""
    signals_at: int = -1
    """The offset of the next signal in its topic, if a snapshot begins and has no `copy` yet; -1 otherwise."""
    copies_noted: int = 0
    """The last begin or end of a copy before the position, see `IncompleteTopics.recorded`; 0: all are recorded."""


@dataclass(frozen=True, slots=True)
class RecordChunk:
    """Records of one transaction, and the commit position after them if they complete the transaction.

    `reached` is the position inside the transaction after these records, if the transaction may be split there.
    """

    records: Sequence[Record]
    size_bytes: int
    commit_position: CommitPosition | None = None
    reached: PartPosition | None = None

    @property
    def commit_lsn(self) -> Lsn:
        """The commit LSN of the records' transaction."""
        if self.reached is not None:
            return self.reached.commit_lsn
        return INVALID_LSN if self.commit_position is None else self.commit_position.commit_lsn


@dataclass(frozen=True, slots=True)
class LargeLimits:
    """The limits of a Kafka transaction that holds an incomplete PostgreSQL transaction. 0 is no limit.

    `allows_parts`: at a limit the Kafka transaction is committed, as a part; otherwise the transaction is refused.
    """

    max_rows: int
    max_bytes: int
    max_time_us: int
    allows_parts: bool


LINGER_MAX_ROWS = 20_000
"""A group with this number of rows does not linger: a commit costs little by comparison, and rows take memory."""

NO_LIMITS = LargeLimits(0, 0, 0, allows_parts=False)


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """The limits at which a group is full. `large` applies while the group ends inside a transaction.

    `snapshot_rows`: `max_rows` of a group of snapshot rows, None for the same.
    """

    max_rows: int
    max_bytes: int
    max_wait_us: int
    large: LargeLimits = NO_LIMITS
    snapshot_rows: int | None = None


class Group:
    """The PostgreSQL transactions of the open Kafka transaction, and the chunks that wait for the next one."""

    def __init__(self, limits: GroupLimits) -> None:
        self._limits = limits
        self._waiting: deque[RecordChunk] = deque()
        self._positions_waiting = 0
        self.waiting_bytes = 0
        self.rows = 0
        self.bytes = 0
        self.transactions = 0
        self.opened_us: int | None = None
        self._policy = NO_WAIT
        self._flushes = 0
        self._is_commit_announced = False
        self.commit_position: CommitPosition | None = None
        """The commit position of the last chunk taken; None if the group ends inside a transaction or is empty."""
        self._whole: CommitPosition | None = None
        self._reached: PartPosition | None = None
        self._is_split = False
        self._whole_rows = self._whole_bytes = 0
        """The size of the complete transactions in the open group."""

    # --- chunks in ---

    def begin_at(self, commit_position: CommitPosition) -> None:
        """Set the commit position before the first chunk; a part of the first transaction is committed with it."""
        self._whole = commit_position
        self._is_split = commit_position.part is not None

    def add(self, chunk: RecordChunk) -> None:
        """Append a chunk after all chunks received so far."""
        self._waiting.append(chunk)
        self.waiting_bytes += chunk.size_bytes
        self._positions_waiting += chunk.commit_position is not None

    @property
    def idle_position(self) -> CommitPosition | None:
        """A position that needs no records and no Kafka transaction (an idle or filtered stream, F11), or None."""
        return self.commit_position if self.rows == 0 else None

    @property
    def is_partial(self) -> bool:
        """Whether an incomplete transaction has records in this group."""
        return self.rows > 0 and self.commit_position is None

    @property
    def is_commit_imminent(self) -> bool:
        """Whether all transactions in the group are complete and wait at most `join_us` for others to join."""
        is_moment = 0 < self._max_wait_us <= self._policy.join_us
        return self.rows > 0 and self.commit_position is not None and is_moment

    @property
    def _is_brief(self) -> bool:
        return self._is_commit_announced or self._policy.is_brief

    # --- the wait before a commit ---

    def wait_by(self, policy: WaitPolicy) -> None:
        """Apply this policy from now on, to the open group as well."""
        self._policy = policy

    @property
    def policy(self) -> WaitPolicy:
        """The policy by which complete transactions wait."""
        return self._policy

    def begin_flush(self) -> None:
        """Stop waiting: complete transactions are committed as soon as they are taken."""
        self._flushes += 1

    def end_flush(self) -> None:
        """Apply the policy again, after the last flush."""
        self._flushes -= 1

    @property
    def is_flushing(self) -> bool:
        """Whether complete transactions are committed without waiting."""
        return self._flushes > 0

    def announce_commit(self) -> None:
        """Note that the sink prepares the commit of the open group: no part of a transaction joins any more."""
        self._is_commit_announced = True

    # --- chunks to produce ---

    def take(self, now_us: int) -> RecordChunk | None:
        """Return the next chunk to produce; None if no chunk waits, or if the group has to be committed first."""
        if not self._waiting or self._must_close(now_us):
            return None
        chunk = self._waiting.popleft()
        self.waiting_bytes -= chunk.size_bytes
        self.rows += len(chunk.records)
        self.bytes += chunk.size_bytes
        if chunk.records and self.opened_us is None:
            self.opened_us = now_us
        if chunk.commit_position is not None:
            self._positions_waiting -= 1
            self.commit_position = chunk.commit_position
            if self._whole is None or chunk.commit_position.end_lsn >= self._whole.end_lsn:
                self._whole = chunk.commit_position  # an idle position may be lower than the durable position
            self.transactions += chunk.commit_position.transactions
            self._whole_rows, self._whole_bytes = self.rows, self.bytes
        elif chunk.records:
            self.commit_position = None
            self._reached = chunk.reached
        return chunk

    def _must_close(self, now_us: int) -> bool:
        """Return whether the open group has to be committed before another chunk joins it."""
        if self.commit_position is None or self.rows == 0:
            return self._can_be_split and self._over_limit(now_us) is not None
        max_rows, snapshot_rows = self._limits.max_rows, self._limits.snapshot_rows
        if snapshot_rows is not None and self.commit_position.phase == "snapshot":
            max_rows = snapshot_rows
        if self.rows >= max_rows or self.bytes >= self._limits.max_bytes:
            return True
        is_position_due = self._policy.position_us > 0 and self._waited(now_us)
        if is_position_due and not self.is_flushing:  # a flush commits all waiting chunks together
            return True
        # The next chunks are only a part of a transaction: complete transactions do not wait for it.
        is_part_next = self._positions_waiting == 0 and bool(self._waiting)
        return is_part_next and (self._is_brief or self._waited(now_us))

    @property
    def _can_be_split(self) -> bool:
        is_possible = self.is_partial and self._reached is not None and self._whole is not None
        return self._limits.large.allows_parts and is_possible

    def _over_limit(self, now_us: int, *, but_rows: int = 0, but_bytes: int = 0) -> str | None:
        """Return the name of the limit that the open group has reached, None if it has reached none."""
        limits = self._limits.large
        if limits.max_rows and self.rows - but_rows >= limits.max_rows:
            return "rows"
        if limits.max_bytes and self.bytes - but_bytes >= limits.max_bytes:
            return "bytes"
        open_us = 0 if self.opened_us is None else now_us - self.opened_us
        return "time" if limits.max_time_us and open_us >= limits.max_time_us else None

    def refused(self, now_us: int, stalled_us: int) -> str | None:
        """Return the limit that a transaction has reached that may not be split, None if it has reached none.

        `stalled_us`: how long Kafka accepted no records; this time does not count. Nor do the complete transactions
        that are already in the group.
        """
        if not self.is_partial or self._can_be_split:
            return None
        whole_rows, whole_bytes = self._whole_rows, self._whole_bytes
        return self._over_limit(now_us - stalled_us, but_rows=whole_rows, but_bytes=whole_bytes)

    def _waited(self, now_us: int) -> bool:
        return self.is_flushing or self.opened_us is None or now_us - self.opened_us >= self._max_wait_us

    # --- the commit ---

    def ready(self, now_us: int) -> bool:
        """Return whether the Kafka transaction is to be committed now."""
        if self.rows == 0:
            # The end of a transaction whose last part is durable: only the position has to be written.
            return self._is_split and self.commit_position is not None and self.commit_position.part is None
        if self.commit_position is None:
            return self._must_close(now_us)
        return self._must_close(now_us) or (not self._waiting and self._waited(now_us))

    def wait_us(self, now_us: int, stalled_us: int = 0) -> int | None:
        """Return the microseconds until the group's wait ends, None without a wait. `stalled_us`: see `refused`."""
        if self.is_partial and self._limits.large.max_time_us and self.opened_us is not None:
            stalled_us = 0 if self._can_be_split else stalled_us
            return max(0, self.opened_us + self._limits.large.max_time_us + stalled_us - now_us)
        if self.rows == 0 or self.commit_position is None or self.opened_us is None:
            return None
        return max(0, self.opened_us + self._max_wait_us - now_us)

    @property
    def _max_wait_us(self) -> int:
        policy = self._policy
        linger_us = 0 if self.rows >= LINGER_MAX_ROWS else policy.linger_us
        return max(self._limits.max_wait_us, linger_us, policy.join_us, policy.position_us)

    def close(self) -> CommitPosition:
        """Start the next group; return the commit position of the previous one, which the caller commits."""
        commit_position = self.commit_position
        if commit_position is None:
            assert self._whole is not None
            commit_position = dataclasses.replace(
                self._whole, transactions=self.transactions, part=self._reached
            )
        self._is_split = commit_position.part is not None
        self.reset()
        return commit_position

    def reset(self) -> None:
        """Empty the open group (it was committed or aborted); waiting chunks remain."""
        self.rows = self.bytes = self.transactions = self._whole_rows = self._whole_bytes = 0
        self.opened_us = None
        self.commit_position = None
        self._is_commit_announced = False

    def drop_partial_tail(self) -> None:
        """Drop waiting chunks after the last commit position: the server sends them again after a restart."""
        while self._waiting and self._waiting[-1].commit_position is None:
            self.waiting_bytes -= self._waiting.pop().size_bytes


class SafeLsn:
    """The LSN that is confirmed to PostgreSQL; it only advances (F2, F7)."""

    def __init__(self, durable_lsn: Lsn = INVALID_LSN) -> None:
        self.lsn = durable_lsn

    def advance(self, end_lsn: Lsn) -> Lsn:
        """Advance to `end_lsn`, up to which all data is durable in Kafka; return the safe LSN."""
        self.lsn = max(self.lsn, end_lsn)
        return self.lsn
