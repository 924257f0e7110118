"""The place where the stream waits while a blocking snapshot is copied.

In: the consistent point of the snapshot.  Out: the commit position at which the stream waits.
Invariant: the stream waits when it has passed on every transaction that the snapshot sees, and none that it does not
see: a consistent point divides all transactions by the LSN of their commit records (F36). So no copied row is older
than what readers have, and no change is dropped.
Must not: do I/O.
"""

from __future__ import annotations

import asyncio

from cdcd.ack.group import CommitPosition
from cdcd.lsn import Lsn

__all__ = ["Hold"]


class Hold:
    """One wait of the stream, before the first transaction whose commit LSN is `lsn` or higher."""

    def __init__(self, lsn: Lsn) -> None:
        self.lsn = lsn
        self.reached = asyncio.Event()
        """Set while the stream waits."""
        self._is_over = asyncio.Event()
        self._position: CommitPosition | None = None

    @property
    def is_over(self) -> bool:
        """Whether the stream continues, or need not wait any more."""
        return self._is_over.is_set()

    @property
    def position(self) -> CommitPosition:
        """The position at which the stream waits, without the state of the copies."""
        assert self._position is not None
        return self._position

    def end(self) -> None:
        """Let the stream continue."""
        self._is_over.set()

    async def wait(self, position: CommitPosition) -> None:
        """Wait at this position until the hold is over."""
        if not self.is_over:
            self._position = position
            self.reached.set()
            await self._is_over.wait()
