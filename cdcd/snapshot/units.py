"""Divide the tables of a snapshot into units, which several connections copy at the same time. Pure.

In: the tables, and the files of each: its own, or those of its partitions.  Out: `CopyUnit`s, each with the SQL of
its rows.
Invariant: each row that the snapshot sees is in exactly one unit of its table. A range of blocks has no upper bound
if it is the last one of its file; a range of key values has no lower bound if it is the first one.
Must not: read a value, or depend on the size of a file for anything but speed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

UNIT_PAGES = 4096
"""32 MB: what one unit reads at most, by blocks. A crash repeats at most the units that were not finished."""
MOST_UNITS_BY_KEY = 1_000


@dataclass(frozen=True, slots=True)
class CopiedTable:
    """The parts of one relation that are copied. `is_partitioned`: it is read with its partitions."""

    relid: int
    schema: str
    name: str
    columns: tuple[str, ...]
    row_filter: str | None
    is_partitioned: bool
    where: str | None = None
    """A condition of the configuration, besides the publication's row filter."""
    priority: int = 0

    @property
    def title(self) -> str:
        """The name for logs and errors."""
        return f"{self.schema}.{self.name}"


@dataclass(frozen=True, slots=True)
class TableFile:
    """The file of a table, or of a partition (`leaf` is its oid). `pages`: its size in blocks.

    `rows`: the server's estimate, None if it has no statistics.
    """

    pages: int
    leaf: int | None = None
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class KeyBounds:
    """Values of one column that divide the table into ranges of about the same size, as SQL literals in its order."""

    column: str
    literals: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CopyUnit:
    """The rows of a table that one COPY reads: all, or those of a partition (`leaf`), or those of a range.

    `condition` is SQL, or None for all rows. `number` counts the units of a table from 0.
    """

    table: CopiedTable
    number: int = 0
    leaf: int | None = None
    condition: str | None = None


def estimated_rows(files: Sequence[TableFile]) -> int | None:
    """Return the estimated rows of a table, None if they are not known."""
    rows = [file.rows for file in files]
    return None if None in rows else sum(filter(None, rows))


def units_of(
    table: CopiedTable,
    files: Sequence[TableFile],
    *,
    has_block_ranges: bool,
    bounds: KeyBounds | None = None,
    unit_pages: int = UNIT_PAGES,
) -> list[CopyUnit]:
    """Return the units of a table.

    `has_block_ranges`: the server reads a range of blocks without reading the others (PostgreSQL 14 and later);
    otherwise `bounds` divide the table, if there are any.
    """
    parts: list[tuple[int | None, str | None]] = []
    for file in files:
        ranges = _block_ranges(file.pages, unit_pages) if has_block_ranges else [None]
        parts += [(file.leaf, condition) for condition in ranges]
    if len(parts) == 1 and bounds is not None and not has_block_ranges:
        pages = sum(file.pages for file in files)
        parts = [(None, condition) for condition in _key_ranges(bounds, pages // unit_pages)]
    return [CopyUnit(table, number, *part) for number, part in enumerate(parts or [(None, None)])]


def _block_ranges(pages: int, unit_pages: int) -> list[str | None]:
    starts = range(0, max(pages - unit_pages // 2, 1), unit_pages)
    if len(starts) == 1:
        return [None]
    found: list[str | None] = []
    for start in starts:
        condition = f"ctid >= '({start},0)'::pg_catalog.tid"
        # The last range has no upper bound: the file may have grown since it was measured.
        is_last = start == starts[-1]
        found.append(
            condition if is_last else f"{condition} AND ctid < '({start + unit_pages},0)'::pg_catalog.tid"
        )
    return found


def _key_ranges(bounds: KeyBounds, wanted: int) -> list[str | None]:
    wanted = min(wanted, len(bounds.literals) + 1, MOST_UNITS_BY_KEY)
    if wanted < 2:
        return [None]
    step = (len(bounds.literals) + 1) / wanted
    chosen = [bounds.literals[round(number * step) - 1] for number in range(1, wanted)]
    column, found = bounds.column, [f"{bounds.column} < {chosen[0]}"]
    found += [f"{column} >= {low} AND {column} < {high}" for low, high in pairwise(chosen)]
    return [*found, f"{column} >= {chosen[-1]}"]
