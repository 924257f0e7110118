"""What remains of the oldest lines of a history when the versions that have ended before them are removed. Pure.

In: the oldest lines of a history, those of rows of all keys or of some; the keys and the ends of later lines.
Out: the lines that remain.
Invariant: a version of a row that is valid after the last of these lines remains as it is: its start, its end and all
its values. The first line of a key that remains has the values that it did not send. All others are gone.
Must not: do I/O; look at a clock.

The rules of a version are those of `row_history`: lines of a key without a difference are one version; a TRUNCATE of
a snapshot ends the rows that have no line between it and the next one, or an insert, unless the next snapshot began
before it was complete; any other end of all rows ends each.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdcd.spark.decoding.columns import plain_type
from cdcd.spark.decoding.events import BEGUN_ANEW, SNAPSHOT, TRUNCATES, Sequence
from cdcd.spark.tables.arrow_fold import is_after
from cdcd.spark.target.large_columns import is_among, taken, taken_values
from cdcd.spark.target.shape import (
    AT_TYPE,
    CHANGE,
    CHANGE_TYPE,
    KEY,
    SPECIAL,
    SPECIAL_TYPE,
    Field,
    TableShape,
    history_schema,
)

__all__ = ["End", "counted_ends", "ends_of", "first_of", "retained_ends", "retained_rows"]

_AT = [one.name for one in AT_TYPE]
Numbers = Any
"""A numpy array of integers."""
Flags = Any
"""A numpy array of booleans."""


@dataclass(frozen=True, slots=True)
class End:
    """An end of all rows."""

    at: Sequence
    op: str

    @property
    def is_copy(self) -> bool:
        """Whether a row continues until a later line of a copy, an update or a delete."""
        return self.op in TRUNCATES and self.at.phase == SNAPSHOT


def ends_of(lines: pa.Table) -> list[End]:
    """Return the ends of all rows that lines are."""
    ops = pc.struct_field(lines[CHANGE], "op").to_pylist()
    return [End(at, op) for at, op in zip(_ats(lines), ops, strict=True)]


def counted_ends(ends: Iterable[End], later: Iterable[End]) -> list[End]:
    """Return the ends without those of copies that were not complete when the next one began.

    `later`: the ends in later files.
    """
    found: list[End] = []
    following = ""
    mine = set(ends)
    for one in sorted(mine.union(later), key=lambda end: end.at, reverse=True):
        is_counted = not one.is_copy or following != BEGUN_ANEW
        following = one.op if one.is_copy else following
        if is_counted and one in mine:
            found.append(one)
    return found[::-1]


def retained_rows(
    rows: pa.Table, ends: list[End], shape: TableShape, later: pa.ChunkedArray | pa.Array
) -> pa.Table:
    """Return the lines of rows that remain. `ends`: all ends of rows, of `counted_ends`.

    `later`: the keys of lines that follow, which may be those of a copy.
    """
    if not rows.num_rows:
        return rows
    rows = _in_order(rows)
    found = _Lines(rows, ends, shape)
    remains = found.remains(np.asarray(is_among(rows[KEY], later).combine_chunks()))
    return found.filled(remains).filter(pa.array(remains))


def retained_ends(ends: pa.Table, firsts: Iterable[Sequence]) -> pa.Table:
    """Return the lines that end all rows, without those before all other lines, of which `firsts` has the first ones.

    Those that remain are the last ones, so the copy before one of them is the same as it was (`counted_ends`).
    """
    first = min(firsts, default=None)
    still = [place for place, at in enumerate(_ats(ends)) if first is not None and at > first]
    return ends.take(pa.array(still, pa.int64()))


def first_of(lines: pa.Table) -> Sequence | None:
    """Return a position that is not after the first one of lines, None without lines."""
    if not lines.num_rows:
        return None
    places = _positions(lines)
    return Sequence(pc.min(places["timeline"]).as_py(), pc.min(places["commit_lsn"]).as_py(), SNAPSHOT, 0)


def _ats(lines: pa.Table) -> list[Sequence]:
    return [Sequence(**one) for one in pc.struct_field(lines[CHANGE], "at").to_pylist()]


def _in_order(rows: pa.Table) -> pa.Table:
    """Return the lines ordered by key and position."""
    places = _positions(rows).append_column(KEY, rows[KEY])
    order = pc.sort_indices(places, sort_keys=[(name, "ascending") for name in (KEY, *_AT)])
    return taken(rows, order).combine_chunks()


def _positions(rows: pa.Table) -> pa.Table:
    at = pc.struct_field(rows[CHANGE], "at")
    return pa.table({name: pc.struct_field(at, name) for name in _AT})


class _Lines:
    """Lines of rows in order. The arrays have a value for each of them."""

    def __init__(self, rows: pa.Table, ends: list[End], shape: TableShape) -> None:
        self._rows, self._fields = rows, shape.fields
        self._count = rows.num_rows
        self._all = np.arange(self._count)
        keys = rows[KEY].combine_chunks()
        self._is_same_key = np.concatenate([[False], np.asarray(pc.equal(keys[1:], keys[:-1]))])
        self._ops = np.asarray(pc.struct_field(rows[CHANGE], "op").to_pylist(), dtype=object)
        places = _positions(rows)
        others = [one.at for one in ends if not one.is_copy]
        self._ends, self._others = len(ends), len(others)
        self._ends_before = self._passed(places, [one.at for one in ends])
        self._others_before = self._passed(places, others)
        self._specials = {
            place: dict(texts) for place, texts in enumerate(rows[SPECIAL].to_pylist()) if texts
        }
        self._unsent = self._unsent_columns()
        self._sources = {number: self._source(flags) for number, flags in self._unsent.items()}
        self._is_known = self._known()

    def _passed(self, places: pa.Table, ends: list[Sequence]) -> Numbers:
        """Return how many of the ends are before each line."""
        passed = np.zeros(self._count, dtype=np.int64)
        for end in ends:
            passed += np.asarray(is_after(places, end).combine_chunks())
        return passed

    # --- values that updates did not send

    def _unsent_columns(self) -> dict[int, Flags]:
        """Return by number the columns of which some line has no value, and which lines."""
        lists = pc.struct_field(self._rows[CHANGE], "unsent").combine_chunks()
        found = {one.number: np.zeros(self._count, dtype=bool) for one in self._fields}
        for place in pc.indices_nonzero(lists.is_valid()).to_pylist():
            for number in lists[place].as_py():
                if number in found:
                    found[number][place] = True
        return {number: flags for number, flags in found.items() if flags.any()}

    def _source(self, is_unsent: Flags) -> Numbers:
        """Return which line has the value of each line, -1 if none has: in the run of updates since the row began."""
        has_ended = self._differs(self._ends_before)
        begins = ~self._is_same_key | has_ended | (self._ops != "u")
        began = np.maximum.accumulate(np.where(begins, self._all, 0))
        source = np.maximum.accumulate(np.where(is_unsent, -1, self._all))
        return np.where(source >= began, source, -1)

    def _known(self) -> Flags:
        known = np.ones(self._count, dtype=bool)
        for source in self._sources.values():
            known &= source >= 0
        return known

    def _differs(self, numbers: Numbers) -> Flags:
        return np.concatenate([[False], numbers[1:] != numbers[:-1]])

    # --- versions

    def remains(self, has_later: Flags) -> Flags:
        """Return which lines remain: of each key those of the version that is valid after its last line."""
        is_last = np.concatenate([~self._is_same_key[1:], [True]])
        may_go_on = (self._ends_before == self._ends) | (has_later & (self._ends_before == self._ends - 1))
        is_valid = (self._ops != "d") & (self._others_before == self._others) & may_go_on
        starts = np.maximum.accumulate(np.where(self._continues(), 0, self._all))
        group = np.cumsum(~self._is_same_key) - 1
        return is_valid[is_last][group] & (self._all >= starts[is_last][group])

    def _continues(self) -> Flags:
        """Return whether a line has the version of the line before."""
        is_row = self._ops != "d"
        known = self._is_known
        same = self._is_same_key & is_row & np.roll(is_row, 1) & (known == np.roll(known, 1))
        same &= ~self._differs(self._others_before)
        same &= ~(self._differs(self._ends_before) & (self._ops == "c"))
        same &= self._ends_before - np.roll(self._ends_before, 1) <= 1
        for field in self._fields:
            places = np.flatnonzero(same)
            same[places] = self._equal(field, places)
        return same

    def _equal(self, field: Field, places: Numbers) -> Flags:
        """Return whether the lines at these places have the value of the line before."""
        source = self._sources.get(field.number, self._all)
        now, before = source[places], source[places - 1]
        equal = now == before
        others = np.flatnonzero(~equal & (now >= 0) & (before >= 0))
        column = self._rows.column(self._fields.index(field))
        pairs = now[others], before[others]
        values = (taken_values(column, pa.array(one)) for one in pairs)
        texts = ([self._text(place, field) for place in one] for one in pairs)
        equal[others] = _equal_values(*values) & _equal_texts(*texts)
        return equal

    def _text(self, place: int, field: Field) -> str | None:
        return self._specials.get(int(place), {}).get(field.name)

    # --- values of the first line that remains

    def filled(self, remains: Flags) -> pa.Table:
        """Return all lines; the first of each key that remains has the values that it did not send."""
        follows = self._is_same_key & np.roll(remains, 1)
        firsts = remains & ~follows
        columns = list(self._rows.columns)
        changed: set[int] = set()
        for place, field in enumerate(self._fields):
            if field.number not in self._sources:
                continue
            source = self._sources[field.number]
            lacking = firsts & self._unsent[field.number] & (source >= 0)
            columns[place] = taken_values(columns[place], pa.array(np.where(lacking, source, self._all)))
            for line in map(int, np.flatnonzero(lacking)):
                changed.add(line)
                if (text := self._text(source[line], field)) is not None:
                    self._specials[line] = {**self._specials.get(line, {}), field.name: text}
        if not changed:
            return self._rows
        texts = [list(self._specials[one].items()) if one in self._specials else None for one in self._all]
        columns[len(self._fields)] = pa.array(texts, SPECIAL_TYPE)
        columns[-1] = self._with_sent(changed)
        return pa.Table.from_arrays(columns, schema=history_schema(self._fields))

    def _with_sent(self, changed: set[int]) -> pa.StructArray:
        """Return the changes; those of changed lines name only the columns whose value is not known."""
        change = self._rows[CHANGE].combine_chunks()
        unsent = pc.struct_field(change, "unsent").to_pylist()
        for line in changed:
            lacks = [number for number, source in self._sources.items() if source[line] < 0]
            unsent[line] = lacks or None
        parts = [pc.struct_field(change, one.name) for one in CHANGE_TYPE]
        parts[-1] = pa.array(unsent, CHANGE_TYPE.field("unsent").type)
        return pa.StructArray.from_arrays(parts, fields=list(CHANGE_TYPE))


def _equal_values(left: pa.ChunkedArray, right: pa.ChunkedArray) -> Flags:
    """Return whether values are equal, null to null, and a NaN to itself."""
    if pa.types.is_nested(left.type):  # Python has no date before the year 1, or after 9999
        plain = (one.cast(plain_type(one.type)).to_pylist() for one in (left, right))
        pairs = zip(*plain, strict=True)
        return np.array([repr(one) == repr(other) for one, other in pairs], dtype=bool)
    if pa.types.is_floating(left.type):
        whole = pa.int32() if left.type == pa.float32() else pa.int64()
        left, right = left.combine_chunks().view(whole), right.combine_chunks().view(whole)
    both_null = pc.and_(pc.is_null(left), pc.is_null(right))
    return np.asarray(pc.or_(pc.fill_null(pc.equal(left, right), False), both_null))


def _equal_texts(left: list[str | None], right: list[str | None]) -> Flags:
    return np.array([one == other for one, other in zip(left, right, strict=True)], dtype=bool)
