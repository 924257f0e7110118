"""All change stores of one session: their total size, and the choice of the store that is spilled next.

In: settings, the stores that the assembler requests.  Out: `Usage`, for budgets and metrics.
Invariant: `disk_bytes` is the current size of all files and never exceeds the limit. The largest store is written
first and completely, so that few writes free much memory and small transactions stay in memory.
Must not: decide when to spill; the pipeline does, since other data shares the memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import BinaryIO, Protocol

from cdcd.errors import SpillFull
from cdcd.failpoints import hit
from cdcd.spill.folder import Folder, Segment
from cdcd.spill.settings import SpillSettings
from cdcd.spill.store import SpillStore

SEGMENT_BYTES = 64 << 20
"""The size of a segment. A segment is removed once it has been read, so that a replay frees disk space early."""
OWN_LIMIT = "buffer.spill"
"""The cause of a SpillFull that waiting cannot resolve: only open transactions use this space."""


@dataclass(slots=True)
class Usage:
    """The memory and disk space in use, and the limit."""

    memory_bytes: int = 0
    disk_bytes: int = 0
    disk_limit_bytes: int = 0
    files: int = 0


class Observer(Protocol):
    """The receiver of changes in disk usage."""

    def spill(self, usage: Usage) -> None: ...  # noqa: D102
    def spilled(self, *, transactions: int, size_bytes: int) -> None: ...  # noqa: D102


class SpillPool:
    """Creates the stores and moves them to disk. Not for two threads at once."""

    def __init__(
        self,
        settings: SpillSettings,
        observer: Observer,
        *,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        """Open the folder (blocking). The observer is called in the caller's thread. Raises SpillError."""
        self._folder = Folder(settings.below)
        self._observer = observer
        self._segment_bytes = segment_bytes
        self._stores: set[SpillStore] = set()
        self.usage = Usage(disk_limit_bytes=settings.disk_bytes)
        observer.spill(self.usage)

    def new_store(self) -> SpillStore:
        """Return an empty store; to be passed to the assembler as `new_store`."""
        store = SpillStore(self)
        self._stores.add(store)
        return store

    def spill_largest(self) -> None:
        """Write the store that uses most memory (blocking). Raises SpillFull, SpillError; may be retried."""
        store = max(self._stores, key=lambda store: store.memory_bytes)
        was_spilled = store.is_spilled
        try:
            store.spill()
        finally:
            self._observer.spilled(transactions=int(store.is_spilled and not was_spilled), size_bytes=0)
            self._observer.spill(self.usage)

    def close(self) -> None:
        """Remove all files (blocking). Raises SpillError."""
        self._stores.clear()
        self.usage.memory_bytes = self.usage.disk_bytes = self.usage.files = 0
        self._observer.spill(self.usage)
        self._folder.close()

    # --- for the stores ------------------------------------------------------------------------------------

    def held(self, difference_bytes: int) -> None:
        """Add a change of the memory in use."""
        self.usage.memory_bytes += difference_bytes

    def write(self, segments: list[Segment], data: bytes) -> None:
        """Append to the last segment, or to a new one if the last is full. Raises SpillFull, SpillError."""
        usage = self.usage
        if usage.disk_bytes + len(data) > usage.disk_limit_bytes:
            raise SpillFull(
                "the open transactions are larger than buffer.spill allows",
                cause=OWN_LIMIT,
                limit_bytes=usage.disk_limit_bytes,
                transactions=len(self._stores),
            )
        if segments and segments[-1].size_bytes < self._segment_bytes:
            self._folder.append(segments[-1], data)
        else:
            segment = self._folder.new_segment()
            self._folder.append(segment, data)
            segments.append(segment)
            usage.files += 1
        hit("in_spill")
        usage.disk_bytes += len(data)
        self._observer.spilled(transactions=0, size_bytes=len(data))

    def reader(self, segment: Segment) -> BinaryIO:
        """Open a segment for reading. Raises SpillError."""
        return self._folder.reader(segment)

    def remove(self, segment: Segment) -> None:
        """Remove a segment. Raises SpillError."""
        self._folder.remove(segment)
        self.usage.files -= 1
        self.usage.disk_bytes -= segment.size_bytes
        self._observer.spill(self.usage)

    def forget(self, store: SpillStore) -> None:
        """Remove a store that is empty and will not be used again."""
        self._stores.discard(store)
