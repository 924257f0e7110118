"""Those who wait until an LSN is durable in Kafka: to read their own writes, or to let a deployment continue.

In: the durable position and the ends of the records, after each group; LSNs; what readers see (`unseen`, `seen`).
Out: a future for each LSN, done when it is reached.
Invariant: an answer is never early: all transactions that committed below the LSN, and are published, are durable in
Kafka then, and a `read_committed` consumer gets them. A broker answers a commit before its markers are in all
partitions, so a durable position counts only when the last stable offsets have passed its records. The position is
unknown, and every request waits, until the initial snapshot is complete, and while no stream is open: the source may
be another server then, whose LSNs mean something else.
Must not: do anything for each waiter at a commit, but for those whose LSN it reaches; keep those that have given up;
do I/O.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from cdcd.lsn import INVALID_LSN, Lsn, end_of_commits

__all__ = ["DurableWaits", "Unseen"]

_FEW = 64
"""So many that have given up may be left, so that each of them costs little."""


@dataclass(frozen=True, slots=True)
class Unseen:
    """A durable position, and the ends of the records before it that readers may not see yet, by (topic, partition).

    Readers see them when the last stable offset of each partition is the end or higher.
    """

    lsn: Lsn
    ends: Mapping[tuple[str, int], int]


class DurableWaits:
    """The durable LSN of a daemon, and its waiters in the order of their LSNs."""

    def __init__(self) -> None:
        self.lsn: Lsn = INVALID_LSN
        """All commits below it are durable in Kafka, and seen by readers; INVALID_LSN: unknown."""
        self.durable_lsn: Lsn = INVALID_LSN
        """All commits below it are durable in Kafka; readers may get the last of them later. INVALID_LSN: unknown."""
        self._ends: dict[tuple[str, int], int] = {}
        self._is_wanted = asyncio.Event()
        self.system_identifier: str | None = None
        """That of the server of the last stream, None before the first one; and its timeline."""
        self.timeline: int | None = None
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
        Readers see everything below it: a producer begins after the markers of its predecessor's transactions.
        """
        self._is_streaming = True
        self.system_identifier, self.timeline = system_identifier, timeline
        self.lsn = self.durable_lsn = INVALID_LSN
        if lsn is not None:
            self.advanced(lsn)

    def ends(self) -> None:
        """Note that no stream is open."""
        self._is_streaming = False
        self.lsn = self.durable_lsn = INVALID_LSN
        self._is_wanted.clear()

    def forget_written(self) -> None:
        """Forget the ends of records: a new producer begins, after the markers of all transactions before."""
        self._ends.clear()

    def written(self, offsets: Mapping[str, Mapping[int, int]]) -> None:
        """Note a committed Kafka transaction: the offset after its last record, by topic and partition."""
        for topic, partitions in offsets.items():
            for partition, end in partitions.items():
                self._ends[topic, partition] = end

    def advanced(self, lsn: Lsn) -> None:
        """Set a later durable position, after `written`; answer those whose LSN it has reached, if readers see it."""
        if not self._is_streaming:
            return
        self.durable_lsn = max(self.durable_lsn, lsn)
        if self._ends:
            self._want()
        else:
            self._answer(self.durable_lsn)

    async def unseen(self) -> Unseen:
        """Wait until somebody waits for a durable position that readers may not see; return it."""
        await self._is_wanted.wait()
        return Unseen(self.durable_lsn, dict(self._ends))

    def seen(self, found: Unseen) -> None:
        """Answer those whose LSN was reached: readers see everything that `unseen` has returned."""
        self._is_wanted.clear()
        for place, end in found.ends.items():
            if self._ends.get(place) == end:
                del self._ends[place]
        if self._is_streaming and self.durable_lsn >= found.lsn:
            self._answer(found.lsn if self._ends else self.durable_lsn)
            self._want()

    def _want(self) -> None:
        if self._waiting and self._waiting[0][0] <= self.durable_lsn:
            self._is_wanted.set()

    def _answer(self, lsn: Lsn) -> None:
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
        self._want()
        return waiter

    def _left(self, _waiter: asyncio.Future[Lsn]) -> None:
        self._count -= 1
