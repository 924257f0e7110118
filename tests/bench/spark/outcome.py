"""What a read of a backlog has returned, judged by Arrow: each id once.

In: Parquet files, which Spark has committed; the number of rows that were written, with the ids from 0 on.
Out: `Ids`: the rows, the distinct ids, their smallest and largest, their sum; the longest text of a column.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq


@dataclass(frozen=True, slots=True)
class Ids:
    """The ids of some rows."""

    rows: int
    distinct: int
    smallest: int | None
    largest: int | None
    total: int | None

    @staticmethod
    def written(rows: int) -> Ids:
        """Return those of a whole backlog: 0, 1, 2, ..."""
        return Ids(rows, rows, 0, rows - 1, rows * (rows - 1) // 2)

    def check(self, rows: int) -> None:
        """Raise AssertionError unless each row that was written was read once."""
        expected = Ids.written(rows)
        assert self == expected, f"not each row once: {self}, not {expected}"


def ids_of(files: Sequence[str]) -> Ids:
    """Return the ids in the files."""
    ids = pa.chunked_array(list(_columns(files, "id")), pa.int64())
    ends = pc.min_max(ids).as_py()
    return Ids(len(ids), pc.count_distinct(ids).as_py(), ends["min"], ends["max"], pc.sum(ids).as_py())


def longest_of(files: Sequence[str], column: str) -> int:
    """Return the bytes of the longest text of a column."""
    return max(pc.max(pc.binary_length(one)).as_py() or 0 for one in _columns(files, column))


def _columns(files: Sequence[str], column: str) -> Iterator[pa.Array]:
    for file in files:
        for batch in pq.ParquetFile(file).iter_batches(columns=[column]):
            yield batch.column(0)
