"""Those who wait until an LSN is durable in Kafka: to read their own writes, or to let a deployment continue.

In: the durable position, after each group; LSNs.  Out: a future for each LSN, done when it is reached.
Invariant: an answer is never early: all transactions that committed below the LSN, and are published, are durable in
Kafka then. The position is unknown, and every request waits, until the initial snapshot is complete, and while no
stream is open: the source may be another server then, whose LSNs mean something else.
Must not: do anything for each waiter at a commit, but for those whose LSN it reaches; keep those that have given up.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from typing import Protocol

from cdcd.lsn import INVALID_LSN, Lsn, end_of_commits

__all__ = ["DurableWaits"]

_FEW = 64
"""So many that have given up may be left, so that each of them costs little."""


class Readers(Protocol):
    """Whether consumers with read_committed see what is durable now."""

    @property
    def is_reached(self) -> bool: ...
    async def reached(self) -> None: ...


class DurableWaits:
    """The durable LSN of a daemon, and its waiters in the order of their LSNs."""

    def __init__(self) -> None:
        self.lsn: Lsn = INVALID_LSN
        """All commits below it are durable in Kafka; INVALID_LSN: unknown."""
        self.system_identifier: str | None = None
        """That of the server of the last stream, None before the first one; and its timeline."""
        self.timeline: int | None = None
        self.readers: Readers | None = None
        """What readers see of the last stream's records; None: there was no stream."""
        self._is_streaming = False
        self._waiting: list[tuple[Lsn, int, asyncio.Future[Lsn]]] = []
        self._numbers = itertools.count()
        self._count = 0

    def __len__(self) -> int:
        """Return the number of waiters."""
        return self._count

    def begins_at(self, lsn: Lsn | None, system_identifier: str, timeline: int) -> None:
        """Note that a stream is open, from a durable position on, None while that is unknown.

        It may be lower than the one of the stream before: the source may be restored, or another server promoted.
        """
        self._is_streaming = True
        self.system_identifier, self.timeline = system_identifier, timeline
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
        while self._waiting and self._waiting[0][0] <= self.lsn:
            _, _, waiter = heapq.heappop(self._waiting)
            if not waiter.done():
                waiter.set_result(self.lsn)

    def waiter(self, lsn: Lsn) -> asyncio.Future[Lsn]:
        """Return a future of the durable LSN, done when all commits below `lsn` are durable. Cancel it to give up."""
        lsn = end_of_commits(lsn)
        waiter: asyncio.Future[Lsn] = asyncio.get_running_loop().create_future()
        if self.lsn != INVALID_LSN and lsn <= self.lsn:
            waiter.set_result(self.lsn)
            return waiter
        self._count += 1
        waiter.add_done_callback(self._left)
        if len(self._waiting) > 2 * self._count + _FEW:
            self._waiting = [one for one in self._waiting if not one[2].done()]
            heapq.heapify(self._waiting)
        heapq.heappush(self._waiting, (lsn, next(self._numbers), waiter))
        return waiter

    def _left(self, _waiter: asyncio.Future[Lsn]) -> None:
        self._count -= 1
