"""A stream of `format("cdcd")` without Spark: its source, called in the order in which Spark calls it.

In: the options of the source.  Out: the number of records of each batch, read from a real broker.
"""

from __future__ import annotations

from cdcd.spark.data_source import CdcdStreamReader
from cdcd.spark.source.cuts import Offsets
from cdcd.spark.source.source_options import parse_options


class Stream:
    """A stream that continues from its last batch; `again` is a new process."""

    def __init__(self, **options: str) -> None:
        self._options = options
        self._open()
        self.reached: Offsets | None = None

    def _open(self) -> None:
        self.reader = CdcdStreamReader(parse_options(self._options))

    def again(self) -> Stream:
        """Continue in a new process."""
        self.reader.stop()
        self._open()
        return self

    def planned(self) -> Offsets:
        """Return the end of the next batch."""
        if self.reached is None:
            self.reached = self.reader.initialOffset()
        return self.reader.latestOffset(self.reached, self.reader.getDefaultReadLimit())

    def read(self, end: Offsets) -> int:
        """Return the number of records up to the end, and continue there."""
        assert self.reached is not None
        tasks = self.reader.partitions(self.reached, end)
        found = sum(batch.num_rows for task in tasks for batch in self.reader.read(task))
        self.reached = end
        return found

    def batch(self) -> int:
        """Return the number of records of the next batch."""
        return self.read(self.planned())
