"""The size of the next chunk: as many rows as are read in the time goal. Pure.

In: the rows and the duration of each chunk.  Out: the limit for the next one.
Invariant: the limit is at least `LEAST`, at most `MOST` or a lower limit that is given, and at most doubles from one
chunk to the next. It halves when a chunk was refused: rows that change all the time are read in small chunks.
"""

from __future__ import annotations

LEAST = 50
MOST = 100_000
FIRST = 2_000


class ChunkPace:
    """The pace of one table."""

    def __init__(self, goal_s: float, most: int | None = None) -> None:
        """`most`: a lower limit than `MOST`, if any."""
        self._goal_s = goal_s
        self._most = MOST if most is None else min(MOST, most)
        self.rows = min(FIRST, self._most)

    def was_read(self, rows: int, seconds: float) -> None:
        """Note a chunk that was read."""
        if rows >= self.rows or self.is_over(seconds):
            factor = self._goal_s / seconds if seconds > 0 else 2.0
            self.rows = min(self._most, max(LEAST, int(self.rows * min(2.0, max(0.5, factor)))))

    def is_over(self, seconds: float) -> bool:
        """Return whether a chunk took longer than the time goal."""
        return seconds > self._goal_s

    def was_refused(self) -> None:
        """Note a chunk whose rows were not all written."""
        self.rows = min(self._most, max(LEAST, self.rows // 2))
