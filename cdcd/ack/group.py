"""Group whole PostgreSQL transactions into one Kafka transaction, and know the safe LSN.

In: chunks of records in commit order, some of which end a PostgreSQL transaction (a boundary).
Out: what is produced next, when the Kafka transaction is committed, and with which position.
Invariant: a Kafka transaction is only ever committed at a boundary, and boundaries are committed in the order
in which they were received, so the position of the last committed group is the end of a contiguous prefix of
everything received (F7). A position is never invented: it is a boundary's own end LSN (F2), or where a PREPARE
below it begins (F33).
Must not: do I/O, read the clock; the times come in as arguments.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from cdcd.lsn import INVALID_LSN, Lsn
from cdcd.model import PreparedBefore, Record


@dataclass(frozen=True, slots=True)
class Boundary:
    """A place where everything before it is complete.

    `commit_lsn` is the last transaction before it, `end_lsn` what may be confirmed once it is durable,
    `commit_us` that transaction's commit time (Unix epoch). `transactions` counts those ending here.
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


@dataclass(frozen=True, slots=True)
class Chunk:
    """Records of one transaction, and the boundary after them when they complete it."""

    records: Sequence[Record]
    size_bytes: int
    boundary: Boundary | None = None


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """When a group is full."""

    max_rows: int
    max_bytes: int
    max_wait_us: int


class Group:
    """The PostgreSQL transactions of the Kafka transaction that is open now, and the chunks waiting behind it."""

    def __init__(self, limits: GroupLimits) -> None:
        self._limits = limits
        self._waiting: deque[Chunk] = deque()
        self._boundaries_waiting = 0
        self.waiting_bytes = 0
        self.rows = 0
        self.bytes = 0
        self.transactions = 0
        self.opened_us: int | None = None
        self.is_hurried = False
        """Wait for nothing any more: whole transactions are committed as soon as they are taken."""
        self.boundary: Boundary | None = None
        """The last boundary taken in; None while a partial transaction is in, or nothing is."""

    # --- in ---

    def add(self, chunk: Chunk) -> None:
        """Append a chunk behind everything received so far."""
        self._waiting.append(chunk)
        self.waiting_bytes += chunk.size_bytes
        self._boundaries_waiting += chunk.boundary is not None

    @property
    def idle_boundary(self) -> Boundary | None:
        """A position that nothing has to be written for (an idle or filtered stream, F11), or None."""
        return self.boundary if self.rows == 0 else None

    @property
    def is_partial(self) -> bool:
        """Whether a transaction that is not complete yet has records in this group."""
        return self.rows > 0 and self.boundary is None

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
        if chunk.boundary is not None:
            self._boundaries_waiting -= 1
            self.boundary = chunk.boundary
            self.transactions += chunk.boundary.transactions
        elif chunk.records:
            self.boundary = None
        return chunk

    def _must_close(self, now_us: int) -> bool:
        """Whether the open group has to be committed before anything else joins it."""
        if self.boundary is None or self.rows == 0:
            return False
        if self.rows >= self._limits.max_rows or self.bytes >= self._limits.max_bytes:
            return True
        # What comes next is only a part of a transaction: the complete ones do not wait for it.
        return self._boundaries_waiting == 0 and bool(self._waiting) and self._waited(now_us)

    def _waited(self, now_us: int) -> bool:
        return (
            self.is_hurried or self.opened_us is None or now_us - self.opened_us >= self._limits.max_wait_us
        )

    # --- out ---

    def ready(self, now_us: int) -> bool:
        """Whether the Kafka transaction is to be committed now: records, whole transactions, nothing better to do."""
        if self.rows == 0 or self.boundary is None:
            return False
        return self._must_close(now_us) or (not self._waiting and self._waited(now_us))

    def wait_us(self, now_us: int) -> int | None:
        """Microseconds until a complete group has waited long enough, or None when none waits."""
        if self.rows == 0 or self.boundary is None or self.opened_us is None:
            return None
        return max(0, self.opened_us + self._limits.max_wait_us - now_us)

    def close(self) -> Boundary:
        """Start the next group; return the boundary of the one that ends. The caller commits it."""
        assert self.boundary is not None
        boundary = self.boundary
        self.reset()
        return boundary

    def reset(self) -> None:
        """Forget the open group (it was committed or aborted), keep what waits."""
        self.rows = self.bytes = self.transactions = 0
        self.opened_us = None
        self.boundary = None

    def drop_partial_tail(self) -> None:
        """Forget waiting chunks behind the last boundary: they will be sent again after a restart."""
        while self._waiting and self._waiting[-1].boundary is None:
            self.waiting_bytes -= self._waiting.pop().size_bytes


class SafeLsn:
    """The one value that is confirmed to PostgreSQL: moves forward only (F2, F7)."""

    def __init__(self, durable_lsn: Lsn = INVALID_LSN) -> None:
        self.lsn = durable_lsn

    def durable(self, end_lsn: Lsn) -> Lsn:
        """Record that everything up to `end_lsn` is durable in Kafka; return the safe LSN."""
        self.lsn = max(self.lsn, end_lsn)
        return self.lsn
