"""The memory budget for open transactions, and for rows that wait for Kafka.

In: the memory that both use.  Out: open transactions moved to disk, or a wait, or SpillFull.
Invariant: each has a share of its own, because a replay empties the first while it fills the second. Beyond half of
the budget the largest open transaction goes to disk, in a thread, so that status updates continue (F14); the budget
is exceeded by one item at most. When the disk is full, reading stops (F15). First, all complete transactions are
written to Kafka and confirmed; then cdcd waits `DISK_TIMEOUT_S` for space on the disk. After that the session ends
with SpillFull. At cdcd's own limit there is no wait: only changes that are still to be read could end an open
transaction.
Must not: read the stored changes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

import structlog

from cdcd.errors import SpillFull
from cdcd.spill.pool import OWN_LIMIT, Usage
from cdcd.threads import settled, start_in_thread

DISK_TIMEOUT_S = 30.0
"""How long cdcd waits for other programs to free space on a full disk."""
RETRY_S = 0.5
_LOG = structlog.stdlib.get_logger("cdcd.buffers")
_FULL_HINT = (
    "no change is lost. cdcd pauses reading, writes the complete transactions, waits 30 s for free space in "
    "buffer.spill_dir, then halts. Free disk space; or raise buffer.spill and restart cdcd"
)


class Pool(Protocol):
    """The spill pool, as far as it is used here."""

    usage: Usage

    def spill_largest(self) -> None: ...  # noqa: D102


def open_share(budget_bytes: int) -> int:
    """Return the share of open transactions, in bytes."""
    return max(1, budget_bytes // 2)


def waiting_share(budget_bytes: int) -> int:
    """Return the share of rows that wait for the Kafka client: enough to encode on while a transaction commits.

    A larger share would not be faster: if Kafka is the bottleneck, it only delays rows.
    """
    return max(1, budget_bytes // 8)


class Buffers:
    """Enforces the budget; the pump checks it after each item."""

    def __init__(
        self,
        pool: Pool,
        flush: Callable[[], Awaitable[None]],
        budget_bytes: int,
        blocked: Callable[[bool], None],
        *,
        disk_timeout_s: float = DISK_TIMEOUT_S,
    ) -> None:
        self._pool = pool
        self._flush = flush
        self._limit_bytes = open_share(budget_bytes)
        self._blocked = blocked
        self._disk_timeout_s = disk_timeout_s
        self._moving: asyncio.Future[None] | None = None

    @property
    def is_over(self) -> bool:
        """Whether open transactions use more than their share."""
        return self._pool.usage.memory_bytes > self._limit_bytes

    async def relieve(self) -> None:
        """Move open transactions to disk until the budget holds. Raises SpillFull, SpillError."""
        try:
            await self._move()
        except SpillFull as error:
            await self._wait_for_room(error)

    async def settled(self) -> None:
        """Wait until no thread writes to disk any more."""
        await settled(self._moving)

    async def _move(self) -> None:
        while self.is_over:
            self._moving = start_in_thread(self._pool.spill_largest)
            await asyncio.shield(self._moving)

    async def _wait_for_room(self, error: SpillFull) -> None:
        self._blocked(True)
        try:
            _LOG.warning("spill_full", error=error.without_hint, hint=_FULL_HINT)
            await self._flush()
            if error.context.get("cause") == OWN_LIMIT:
                raise error
            await self._retry()
        finally:
            self._blocked(False)

    async def _retry(self) -> None:
        deadline_s = time.monotonic() + self._disk_timeout_s
        while True:
            try:
                return await self._move()
            except SpillFull:
                if time.monotonic() >= deadline_s:
                    raise
            await asyncio.sleep(RETRY_S)
