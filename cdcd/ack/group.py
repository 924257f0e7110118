"""Group whole PostgreSQL transactions into one Kafka transaction, and know the safe LSN.

In: chunks of records in commit order, some of which end a PostgreSQL transaction (a commit position).
Out: what is produced next, when the Kafka transaction is committed, and with which position.
Invariant: a Kafka transaction is only ever committed at a commit position, or, where the policy has it so, at the end
of a part of a transaction that is too large for one, with the position of the commit position before. Commit
positions are committed in the order in which they were received, so the position of the last committed group is the
end of a contiguous prefix of everything received (F7). A position is never invented: it is a commit position's own
end LSN (F2), or where a PREPARE below it begins (F33).
Must not: do I/O, read the clock; the times come in as arguments.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from cdcd.ack.wait_policy import NO_WAIT, WaitPolicy
from cdcd.lsn import INVALID_LSN, Lsn
from cdcd.model import PartPosition, PreparedBefore, Record


@dataclass(frozen=True, slots=True)
class CommitPosition:
    """A place where everything before it is complete.

    `commit_lsn` is the last transaction before it, `end_lsn` what may be confirmed once it is durable,
    `commit_us` that transaction's commit time (Unix epoch), 0 where it is not known. `transactions` counts those
    ending here.
    `covered_lsn` is how far everything that is committed was received, where a prepared transaction that is not
    decided yet keeps `end_lsn` below (F33); 0 where it is `end_lsn`. `prepared_before` is what may be lost still.
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
    """What is written of the transaction that follows, besides."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Records of one transaction, and the commit position after them when they complete it.

    `reached` is how far the transaction is written with them, where it may be cut there.
    """

    records: Sequence[Record]
    size_bytes: int
    commit_position: CommitPosition | None = None
    reached: PartPosition | None = None

    @property
    def commit_lsn(self) -> Lsn:
        """Where their transaction commits."""
        if self.reached is not None:
            return self.reached.commit_lsn
        return INVALID_LSN if self.commit_position is None else self.commit_position.commit_lsn


@dataclass(frozen=True, slots=True)
class LargeLimits:
    """How large a Kafka transaction may become for the sake of one PostgreSQL transaction. 0 is no limit.

    `allows_parts`: it is committed then, as a part; otherwise the transaction is refused.
    """

    max_rows: int
    max_bytes: int
    max_time_us: int
    allows_parts: bool


LINGER_MAX_ROWS = 20_000
"""Patience for more would only take memory: a commit costs little beside so many."""

NO_LIMITS = LargeLimits(0, 0, 0, allows_parts=False)


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """When a group is full. `large` holds as long as it ends inside a transaction."""

    max_rows: int
    max_bytes: int
    max_wait_us: int
    large: LargeLimits = NO_LIMITS


class Group:
    """The PostgreSQL transactions of the Kafka transaction that is open now, and the chunks waiting behind it."""

    def __init__(self, limits: GroupLimits) -> None:
        self._limits = limits
        self._waiting: deque[Chunk] = deque()
        self._positions_waiting = 0
        self.waiting_bytes = 0
        self.rows = 0
        self.bytes = 0
        self.transactions = 0
        self.opened_us: int | None = None
        self._policy = NO_WAIT
        self._is_flushing = False
        self._is_commit_announced = False
        self.commit_position: CommitPosition | None = None
        """The last commit position taken in; None while a partial transaction is in, or nothing is."""
        self._whole: CommitPosition | None = None
        self._reached: PartPosition | None = None
        self._is_split = False
        self._whole_rows = self._whole_bytes = 0
        """What of the open group belongs to transactions that are complete."""

    # --- in ---

    def begin_at(self, commit_position: CommitPosition) -> None:
        """Set what is complete before the first chunk: the position of a part of the first transaction."""
        self._whole = commit_position
        self._is_split = commit_position.part is not None

    def add(self, chunk: Chunk) -> None:
        """Append a chunk behind everything received so far."""
        self._waiting.append(chunk)
        self.waiting_bytes += chunk.size_bytes
        self._positions_waiting += chunk.commit_position is not None

    @property
    def idle_position(self) -> CommitPosition | None:
        """A position that nothing has to be written for (an idle or filtered stream, F11), or None."""
        return self.commit_position if self.rows == 0 else None

    @property
    def is_partial(self) -> bool:
        """Whether a transaction that is not complete yet has records in this group."""
        return self.rows > 0 and self.commit_position is None

    @property
    def is_commit_imminent(self) -> bool:
        """Whether all that is in is complete, and waits a moment at most for what is still to join it."""
        is_moment = 0 < self._max_wait_us <= self._policy.join_us
        return self.rows > 0 and self.commit_position is not None and is_moment

    @property
    def _is_brief(self) -> bool:
        return self._is_commit_announced or self._policy.is_brief

    # --- how long it waits ---

    def wait_by(self, policy: WaitPolicy) -> None:
        """Wait by this policy from now on, with the group that is open too."""
        self._policy = policy

    @property
    def policy(self) -> WaitPolicy:
        """What complete transactions wait for."""
        return self._policy

    def begin_flush(self) -> None:
        """Wait for nothing any more: whole transactions are committed as soon as they are taken."""
        self._is_flushing = True

    def end_flush(self) -> None:
        """Wait by the policy again."""
        self._is_flushing = False

    @property
    def is_flushing(self) -> bool:
        """Whether nothing is waited for."""
        return self._is_flushing

    def announce_commit(self) -> None:
        """The open group is soon committed, and the sink prepares for it: no part of a transaction joins any more."""
        self._is_commit_announced = True

    # --- through ---

    def take(self, now_us: int) -> Chunk | None:
        """Return the next chunk to produce, or None: nothing waits, or the group has to be committed first."""
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
                self._whole = chunk.commit_position  # an idle position may lie before what is durable
            self.transactions += chunk.commit_position.transactions
            self._whole_rows, self._whole_bytes = self.rows, self.bytes
        elif chunk.records:
            self.commit_position = None
            self._reached = chunk.reached
        return chunk

    def _must_close(self, now_us: int) -> bool:
        """Whether the open group has to be committed before anything else joins it."""
        if self.commit_position is None or self.rows == 0:
            return self._can_be_split and self._over_limit(now_us) is not None
        if self.rows >= self._limits.max_rows or self.bytes >= self._limits.max_bytes:
            return True
        is_position_due = self._policy.position_us > 0 and self._waited(now_us)
        if is_position_due and not self._is_flushing:  # whoever hurries wants all that waits in one go
            return True
        # What comes next is only a part of a transaction: the complete ones do not wait for it.
        is_part_next = self._positions_waiting == 0 and bool(self._waiting)
        return is_part_next and (self._is_brief or self._waited(now_us))

    @property
    def _can_be_split(self) -> bool:
        is_possible = self.is_partial and self._reached is not None and self._whole is not None
        return self._limits.large.allows_parts and is_possible

    def _over_limit(self, now_us: int, *, but_rows: int = 0, but_bytes: int = 0) -> str | None:
        """Return which limit the open group has reached, None when it has reached none."""
        limits = self._limits.large
        if limits.max_rows and self.rows - but_rows >= limits.max_rows:
            return "rows"
        if limits.max_bytes and self.bytes - but_bytes >= limits.max_bytes:
            return "bytes"
        open_us = 0 if self.opened_us is None else now_us - self.opened_us
        return "time" if limits.max_time_us and open_us >= limits.max_time_us else None

    def refused(self, now_us: int, stalled_us: int) -> str | None:
        """Return the limit that a transaction has reached which may not be cut, None when all is well.

        `stalled_us`: for how long Kafka took nothing, which is not the transaction's doing. Nor are the complete
        ones that are in the group already.
        """
        if not self.is_partial or self._can_be_split:
            return None
        whole_rows, whole_bytes = self._whole_rows, self._whole_bytes
        return self._over_limit(now_us - stalled_us, but_rows=whole_rows, but_bytes=whole_bytes)

    def _waited(self, now_us: int) -> bool:
        return self._is_flushing or self.opened_us is None or now_us - self.opened_us >= self._max_wait_us

    # --- out ---

    def ready(self, now_us: int) -> bool:
        """Whether the Kafka transaction is to be committed now: records, whole transactions, nothing better to do."""
        if self.rows == 0:
            # The end of a transaction whose last part is durable: nothing to write but the position.
            return self._is_split and self.commit_position is not None and self.commit_position.part is None
        if self.commit_position is None:
            return self._must_close(now_us)
        return self._must_close(now_us) or (not self._waiting and self._waited(now_us))

    def wait_us(self, now_us: int, stalled_us: int = 0) -> int | None:
        """Microseconds until a group has waited long enough, None when none waits. `stalled_us`: as in `refused`."""
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
        """Start the next group; return the commit position of the one that ends. The caller commits it."""
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
        """Forget the open group (it was committed or aborted), keep what waits."""
        self.rows = self.bytes = self.transactions = self._whole_rows = self._whole_bytes = 0
        self.opened_us = None
        self.commit_position = None
        self._is_commit_announced = False

    def drop_partial_tail(self) -> None:
        """Forget waiting chunks behind the last commit position: they will be sent again after a restart."""
        while self._waiting and self._waiting[-1].commit_position is None:
            self.waiting_bytes -= self._waiting.pop().size_bytes


class SafeLsn:
    """The one value that is confirmed to PostgreSQL: moves forward only (F2, F7)."""

    def __init__(self, durable_lsn: Lsn = INVALID_LSN) -> None:
        self.lsn = durable_lsn

    def advance(self, end_lsn: Lsn) -> Lsn:
        """Advance to `end_lsn`, up to which everything is durable in Kafka; return the safe LSN."""
        self.lsn = max(self.lsn, end_lsn)
        return self.lsn
