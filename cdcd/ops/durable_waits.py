"""Those who wait until an LSN is durable in Kafka: to read their own writes, or to let a deployment continue.

In: the durable position, after each group; LSNs.  Out: an answer for each LSN when it is reached.
Invariant: an answer is never early: all transactions that committed below the LSN, and are published, are durable in
Kafka then. The position is unknown, and everybody waits, until the initial snapshot is complete, and while no stream
is open: the source may be another server then, whose LSNs mean something else.
Must not: do anything for each waiter at a commit, but for those whose LSN it reaches.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools

from cdcd.lsn import INVALID_LSN, Lsn

__all__ = ["DurableWaits"]


class DurableWaits:
    """The durable LSN of a daemon, and its waiters in the order of their LSNs."""

    def __init__(self) -> None:
        self.lsn: Lsn = INVALID_LSN
        """All commits below it are durable in Kafka; INVALID_LSN: unknown."""
        self._is_streaming = False
        self._waiting: list[tuple[Lsn, int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()

    def __len__(self) -> int:
        """Return the number of waiters."""
        return sum(not one.done() for _, _, one in self._waiting)

    def begins_at(self, lsn: Lsn | None) -> None:
        """Note that a stream is open, from a durable position on, None while that is unknown.

        It may be lower than the one of the stream before: the source may be restored.
        """
        self._is_streaming = True
        self.lsn = INVALID_LSN
        if lsn is not None:
            self.advanced(lsn)

    def ends(self) -> None:
        """Note that no stream is open."""
        self._is_streaming = False
        self.lsn = INVALID_LSN

    def advanced(self, lsn: Lsn) -> None:
        """Set a later durable position, and answer those whose LSN it has reached."""
        if not self._is_streaming:
            return
        self.lsn = max(self.lsn, lsn)
        while self._waiting and (self._waiting[0][0] <= self.lsn or self._waiting[0][2].done()):
            _, _, waiter = heapq.heappop(self._waiting)
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self, lsn: Lsn, timeout_s: float) -> bool:
        """Wait until all commits below an LSN are durable. Return False if they are not after `timeout_s`."""
        if self._has(lsn):
            return True
        waiter = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (lsn, next(self._numbers), waiter))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(waiter, timeout_s)  # which cancels it at the time-out
            return True
        self._forget()
        return False

    def _has(self, lsn: Lsn) -> bool:
        return self.lsn != INVALID_LSN and lsn <= self.lsn

    def _forget(self) -> None:
        """Remove those that have given up once they are the most, so that each costs little."""
        if len(self._waiting) > 2 * len(self):
            self._waiting = [one for one in self._waiting if not one[2].done()]
            heapq.heapify(self._waiting)
