"""Copy the units of a snapshot over several connections at the same time, each in its own thread.

In: the planned units in their order, a function that makes a reader.  Out: the rows of all units, as they come.
Invariant: the rows of a unit come in their order, and its end comes after its last row. A unit that was not read to
its last row ends with the error of its table, never as one that was read. A bounded number of batches is read ahead
of the consumer. Whatever ends the consumer, no thread continues to run after `close`, even if the server is silent.
Must not: encode, or decide the order of the units.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable
from typing import NamedTuple

import structlog

from cdcd.errors import CdcdError, SourceUnavailable
from cdcd.lsn import Lsn
from cdcd.snapshot.table import CopiedRows, SnapshotPlan, SnapshotReader, TableLocked, concerns_a_table
from cdcd.snapshot.units import CopyUnit
from cdcd.threads import settled, start_in_thread

_LOG = structlog.stdlib.get_logger("cdcd.snapshot")
LOCK_TIMEOUT_MS = 5_000
"""How long a connection waits for the lock of a table before it copies other tables first."""
_LOCKED_HINT = (
    "the other tables are copied first; the wait ends with the transaction that holds the lock: ask the owner of "
    "that transaction to end it"
)
_BATCHES_AHEAD, _MOST_AHEAD = 3, 6
"""Batches that were read and not consumed: for each connection, and together, but one for each connection."""
_MISSING_HINT = (
    "no row is missing: the copy continues with fewer connections. For full speed raise max_connections or the "
    "role's CONNECTION LIMIT, or lower snapshot.workers"
)


class Piece(NamedTuple):
    """Rows of a unit; None: all of its rows were read; an error: its table cannot be copied."""

    unit: CopyUnit
    rows: CopiedRows | CdcdError | None


class _Cancelled(Exception):
    """The consumer has ended."""


class CopyWorkers:
    """`first` is the reader that has planned the units; the others are made by `new_reader`, in their threads."""

    def __init__(
        self,
        first: SnapshotReader,
        new_reader: Callable[[], SnapshotReader],
        planned: SnapshotPlan,
        lsn: Lsn,
        workers: int,
    ) -> None:
        self.units, self.estimates, self.partitions = planned
        self._waiting = deque(self.units)
        self._left = len(self.units)
        self._new_reader = new_reader
        self._readers = [first]
        self._lsn = lsn
        self.count = max(1, min(workers, self._left))
        """The number of connections, at most."""
        self._ahead = max(self.count, min(_BATCHES_AHEAD * self.count, _MOST_AHEAD))
        self._room = threading.Semaphore(self._ahead)
        self._is_cancelled = False
        self._failed: dict[int, CdcdError] = {}
        """By relid, the error of each table whose other units are not read."""
        self._locked: dict[int, str] = {}
        self._working = self.count
        self._lock = threading.Lock()
        self._loop = asyncio.get_running_loop()
        self._pieces: asyncio.Queue[Piece | BaseException] = asyncio.Queue()
        self._threads: list[asyncio.Future[None]] = []

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        """Yield the rows of all units, or the error of a table. Then call `close`.

        Raises an error that concerns every table: SnapshotStale, SourceUnavailable, ProtocolError.
        """
        for number in range(self.count):
            thread = start_in_thread(self._work, self._readers[0] if number == 0 else None)
            thread.add_done_callback(self._ended)
            self._threads.append(thread)
        while self._left:
            piece = await self._pieces.get()
            if isinstance(piece, BaseException):
                raise piece
            self._left -= not isinstance(piece.rows, CopiedRows)
            yield piece
            self._room.release()

    async def close(self) -> None:
        """End the threads and their connections."""
        self._is_cancelled = True
        self._room.release(self._ahead + self.count)
        with self._lock:
            for reader in self._readers if self._left else ():
                reader.hang_up()  # its thread may wait for a server that does not send
        for thread in self._threads:
            await settled(thread)
        for reader in self._readers:
            reader.close()

    # --- in the threads ---

    def _work(self, reader: SnapshotReader | None) -> None:
        with contextlib.suppress(_Cancelled):
            reader = self._another() if reader is None else reader
            while reader is not None and (unit := self._next()) is not None:
                reader = self._copy(reader, *unit)
            if reader is not None:
                reader.release()

    def _copy(self, reader: SnapshotReader, unit: CopyUnit, lock_timeout_ms: int) -> SnapshotReader | None:
        """Copy a unit; return the reader of the next one: after an error, a connection is not used again."""
        failed = self._failed.get(unit.table.relid)
        if failed is not None:
            self._put(Piece(unit, failed))
            return reader
        try:
            for rows in reader.copy(unit, self._lsn, lock_timeout_ms):
                self._put(Piece(unit, rows))
            self._put(Piece(unit, None))
        except TableLocked as locked:
            self._defer(unit, str(locked))
        except CdcdError as error:
            if not concerns_a_table(error):
                raise
            self._failed.setdefault(unit.table.relid, error)
            self._put(Piece(unit, error))
            reader.close()
            return self._another()
        return reader

    def _defer(self, unit: CopyUnit, holders: str) -> None:
        """Copy the units of a locked table after those of the other tables."""
        relid = unit.table.relid
        with self._lock:
            same = [one for one in self._waiting if one.table.relid == relid]
            others = [one for one in self._waiting if one.table.relid != relid]
            self._waiting = deque([*others, unit, *same])
            is_known, self._locked[relid] = self._locked.get(relid) == holders, holders
        if not is_known:
            _LOG.warning("table_locked", table=unit.table.title, held_by=holders or None, hint=_LOCKED_HINT)

    def _another(self) -> SnapshotReader | None:
        """Return a reader with a connection of its own; None if the other threads copy what is left."""
        try:
            reader = self._new_reader()
        except SourceUnavailable as error:
            # Too many connections, for example. If the server is unavailable, another reader raises the error.
            with self._lock:
                self._working -= 1
                if self._waiting and not self._working:
                    raise
            _LOG.warning("snapshot_worker_missing", error=str(error), hint=_MISSING_HINT)
            return None
        with self._lock:
            self._readers.append(reader)
        return reader

    def _next(self) -> tuple[CopyUnit, int] | None:
        """Return the next unit, and how long to wait for its table: without a limit if no other table is left."""
        with self._lock:
            if not self._waiting or self._is_cancelled:
                self._working -= 1
                return None
            unit = self._waiting.popleft()
            has_others = any(one.table.relid != unit.table.relid for one in self._waiting)
            return unit, LOCK_TIMEOUT_MS if has_others else 0

    def _put(self, piece: Piece) -> None:
        self._room.acquire()
        if self._is_cancelled:
            raise _Cancelled
        self._loop.call_soon_threadsafe(self._pieces.put_nowait, piece)

    def _ended(self, thread: asyncio.Future[None]) -> None:
        if not thread.cancelled() and (error := thread.exception()) is not None:
            self._pieces.put_nowait(error)
