"""Divide the tables of a snapshot into units, which several connections copy at the same time. Pure.

In: the tables, and the files of each: its own, or those of its partitions.  Out: `CopyUnit`s, each with the SQL of
its rows.
Invariant: each row that the snapshot sees is in exactly one unit of its table. The last range of blocks of a file has
no upper bound. The first range of key values has no lower bound and the last one no upper bound; a range has the rows
of its upper bound, so that the next rows are those behind it.
Must not: read a value, or depend on the size of a file for anything but speed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from cdcd.snapshot.key_sql import KeyColumn

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
    """A condition of the configuration, in addition to the publication's row filter."""
    priority: int = 0
    has_key: bool = False
    """Whether its records have a key, by which rows can be read again."""
    can_continue: bool = False
    """Whether an incremental snapshot can complete an interrupted copy of it."""
    is_binary: bool = False
    """Whether its values are read in binary format."""
    key: tuple[str, ...] = ()
    """The columns of its records' key, which are always read."""
    wanted: tuple[str, ...] | None = None
    """The columns that the configuration chooses in addition to the key; None: all columns."""

    @property
    def title(self) -> str:
        """The name for logs and errors."""
        return f"{self.schema}.{self.name}"

    @property
    def filter_digest(self) -> str:
        """What a progress record has of the row filter, which may be long: "" without one."""
        return "" if self.row_filter is None else hashlib.sha256(self.row_filter.encode()).hexdigest()[:16]

    @property
    def selected(self) -> tuple[str, ...]:
        """The columns whose values are read, in the order of `columns`."""
        if self.wanted is None:
            return self.columns
        chosen = {*self.wanted, *self.key}
        return tuple(column for column in self.columns if column in chosen)

    @property
    def omitted(self) -> tuple[int, ...]:
        """The positions in `columns` of those whose values are not read."""
        selected = set(self.selected)
        return tuple(number for number, column in enumerate(self.columns) if column not in selected)


@dataclass(frozen=True, slots=True)
class TableFile:
    """The file of a table, or of a partition (`leaf` is its oid). `pages`: its size in blocks.

    `rows`: the server's estimate, None if it has no statistics.
    """

    pages: int
    leaf: int | None = None
    rows: int | None = None
    node: int | None = None
    """The file's number (`pg_relation_filenode`), which changes when the table is rewritten."""


@dataclass(frozen=True, slots=True)
class KeyBounds:
    """Values of one column, in its order, that divide the table into ranges of about the same size.

    `order`: that of the rows of an incremental snapshot, if it begins with the column's; otherwise ().
    """

    column: KeyColumn
    values: tuple[str, ...]
    order: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class KeyRange:
    """The rows behind a value of a key's first column, up to another value and with it; None: no bound."""

    column: KeyColumn
    after: str | None
    upto: str | None
    order: tuple[str, ...] = ()
    """As in `KeyBounds`."""

    @property
    def condition(self) -> str:
        """The range as SQL."""
        bounds = (self.column.greater, self.after), (self.column.at_most, self.upto)
        return " AND ".join(self.column.comparison(by, value) for by, value in bounds if value is not None)


@dataclass(frozen=True, slots=True)
class Blocks:
    """A range of blocks of one file; `end` None: to the end of the file. `leaf`: the partition's oid, 0 for none."""

    leaf: int
    node: int
    first: int
    end: int | None

    @property
    def text(self) -> str:
        """The range in a progress record."""
        return f"{self.leaf}/{self.node}/{self.first}/{'' if self.end is None else self.end}"

    @classmethod
    def parse(cls, text: str) -> Blocks:
        """Return the range of a text. Raises ValueError."""
        leaf, node, first, end = text.split("/")
        return cls(int(leaf), int(node), int(first), int(end) if end else None)

    @property
    def condition(self) -> str | None:
        """The range as SQL, None for a complete file."""
        if self.first == 0 and self.end is None:
            return None
        low = f"ctid >= '({self.first},0)'::pg_catalog.tid"
        return low if self.end is None else f"{low} AND ctid < '({self.end},0)'::pg_catalog.tid"


def join_ranges(ranges: Iterable[Blocks]) -> list[Blocks]:
    """Return the ranges in order, each as long as possible."""
    found: list[Blocks] = []
    for one in sorted(ranges, key=lambda blocks: (blocks.leaf, blocks.node, blocks.first)):
        last = found[-1] if found else None
        if last is not None and (last.leaf, last.node, last.end) == (one.leaf, one.node, one.first):
            found[-1] = Blocks(one.leaf, one.node, last.first, one.end)
        else:
            found.append(one)
    return found


@dataclass(frozen=True, slots=True)
class CopyUnit:
    """The rows of a table that one COPY reads: all, or those of a partition (`leaf`), or those of a range.

    `range`: None for all rows. `number` counts the units of a table from 0.
    """

    table: CopiedTable
    number: int = 0
    leaf: int | None = None
    range: Blocks | KeyRange | None = None

    @property
    def condition(self) -> str | None:
        """The range as SQL, None for all rows."""
        return None if self.range is None else self.range.condition


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
    parts: list[tuple[int | None, Blocks | KeyRange | None]] = []
    for file in files:
        parts += [
            (file.leaf, one) for one in (_block_ranges(file, unit_pages) if has_block_ranges else [None])
        ]
    if len(parts) == 1 and bounds is not None and not has_block_ranges:
        pages = sum(file.pages for file in files)
        parts = [(None, one) for one in _key_ranges(bounds, pages // unit_pages)]
    return [CopyUnit(table, number, *part) for number, part in enumerate(parts or [(None, None)])]


def _block_ranges(file: TableFile, unit_pages: int) -> list[Blocks]:
    starts = range(0, max(file.pages - unit_pages // 2, 1), unit_pages)
    leaf, node = file.leaf or 0, file.node or 0
    # The last range has no upper bound: the file may have grown since it was measured.
    return [
        Blocks(leaf, node, start, None if start == starts[-1] else start + unit_pages) for start in starts
    ]


def _key_ranges(bounds: KeyBounds, wanted: int) -> list[KeyRange] | list[None]:
    wanted = min(wanted, len(bounds.values) + 1, MOST_UNITS_BY_KEY)
    if wanted < 2:
        return [None]
    step = (len(bounds.values) + 1) / wanted
    chosen = [bounds.values[round(number * step) - 1] for number in range(1, wanted)]
    ends = pairwise([None, *chosen, None])
    return [KeyRange(bounds.column, after, upto, bounds.order) for after, upto in ends]
