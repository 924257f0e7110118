"""What a `ChunkReader` returns: a table's description, a chunk's snapshot, its rows. Pure.

In: nothing.  Out: immutable values, and the error for a table that is not published.
Invariant: a description is of one version of a table's catalog rows.
Must not: read anything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from cdcd.errors import SnapshotRefused
from cdcd.lsn import Lsn
from cdcd.model import KeyValues, Relation, RowBatch
from cdcd.snapshot.key_sql import KeyColumn, order_of
from cdcd.snapshot.units import Blocks, CopiedTable
from cdcd.snapshot.visibility import Snapshot


class NotPublished(SnapshotRefused):
    """The table was dropped, or all publications exist and none has it."""


class ChunkTable(NamedTuple):
    """A table as it is published now. `key_names`: the columns of its records' key, () without one.

    `unreadable`: the first of them whose values the stream does not send as text.
    """

    table: CopiedTable
    relation: Relation
    key_names: tuple[str, ...]
    unreadable: str | None = None


FindPublished = Callable[[int], ChunkTable | None]
"""Returns the table with a relid, None if it is not published any more. Blocking. Raises Source errors."""


@dataclass(frozen=True, slots=True)
class Description:
    """A table as it is copied: its columns, its key's index, the row versions of its catalog rows.

    `partitions`: of a partitioned table, each as it is attached now. `empty_partitions`: those without rows, so that
    all their later rows come by the stream. `estimated_rows`: None if the server has no statistics.
    """

    table: CopiedTable
    relation: Relation
    key_names: tuple[str, ...]
    key: tuple[KeyColumn, ...]
    versions: tuple[object, ...]
    partitions: tuple[str, ...]
    empty_partitions: frozenset[str]
    estimated_rows: int | None

    @property
    def order(self) -> tuple[str, ...]:
        """What the order of the rows depends on: the key of a row is a position only in the same order."""
        return order_of(self.key)

    def has_partition(self, relid: int) -> bool:
        """Return whether a table is a partition of this one, at any level."""
        return any(name.startswith(f"{relid}:") for name in self.partitions)


class ChunkSnapshot(NamedTuple):
    """A snapshot in which the next chunk may be read."""

    snapshot: Snapshot
    end_lsn: Lsn


class CatalogVersions(NamedTuple):
    """The row versions of a table's catalog rows; everything committed before they were read ends below `end_lsn`."""

    versions: tuple[object, ...]
    end_lsn: Lsn


class ReadRows(NamedTuple):
    """Rows of a chunk, in slices, each with the key of its last row; () for a table without one.

    `is_last`: no further rows follow; of a chunk by keys: no rows of these keys. `is_cut`: rows were left out: the
    chunk became too large.
    """

    slices: list[tuple[RowBatch, KeyValues]]
    is_last: bool
    is_cut: bool
    size_bytes: int


NO_ROWS = ReadRows([], is_last=True, is_cut=False, size_bytes=0)


class Piece(NamedTuple):
    """The blocks of the next chunk, what is left of their range, and the partition that has them."""

    blocks: Blocks
    rest: Blocks | None
    leaf: tuple[str, str] | None


class ServerAndTimeline(NamedTuple):
    """The server of the stream."""

    system_identifier: str
    timeline: int
