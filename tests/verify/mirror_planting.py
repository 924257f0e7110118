"""Differences between a source and a mirror of it, planted by kind in the mirror's files.

In: a mirror of `mirrored_table`, of any format, and the rows that its files had earlier.  Out: the files with
differences, and what was planted, by the kind of difference and the key.
How: a Parquet file is written again under its name. What names the files, the mirror's records and the logs of Delta
and Iceberg, is as before. A row is changed where readers find it: in the newest file that has its key.
Invariant: PostgreSQL judges each difference: before, it does not distinguish the row in the file from its own, and
afterwards it does. Each key is planted once.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg2
import pyarrow as pa
import pyarrow.parquet as pq

from cdcd.spark.reading.mirror import Mirror
from cdcd.spark.target.shape import KEY, SPECIAL
from tests.verify.mirrored_table import TYPES, Judge
from tests.verify.one_value import MUTATIONS

Row = dict[str, Any]
Place = tuple[Path, int]
NEW_ID = 1_000_000
ATTEMPTS = 200
"""The draws until a row with a fitting value is found."""


@dataclass(frozen=True, slots=True)
class Planted:
    """One planted difference: what verify has to call it, the key, and the kind in which it is counted."""

    difference: str
    id: int
    kind: str


class Files:
    """The files of a table of a mirror as rows. A row of `rows` is the visible one of its key."""

    def __init__(self, opened: Mirror, topic: str) -> None:
        folder, entry = opened.target.folder, opened.version.tables[topic]
        assert folder is not None
        self.base = [folder / one.path for one in entry.files]
        tables = {
            path: pq.read_table(path) for path in self.base + [folder / one.path for one in entry.deltas]
        }
        self._schemas = {path: table.schema for path, table in tables.items()}
        self.contents: dict[Path, list[Row]] = {path: table.to_pylist() for path, table in tables.items()}
        self._places: dict[bytes, Place] = {}
        self._held: Counter[bytes] = Counter()
        for path, rows in self.contents.items():
            for number, row in enumerate(rows):
                self._places[row[KEY]] = path, number
                self._held[row[KEY]] += 1

    @property
    def rows(self) -> dict[int, Place]:
        """The places of the visible rows by their ids. A deleted row of a delta has no id."""
        found = {}
        for path, number in self._places.values():
            if (row := self.contents[path][number])["id"] is not None:
                found[row["id"]] = path, number
        return found

    def is_in_one_file(self, place: Place) -> bool:
        """Return whether no other file has a row of the same key."""
        path, number = place
        return self._held[self.contents[path][number][KEY]] == 1

    def write(self) -> None:
        """Write all files again. Rows without an entry (None) are left out; base files remain ordered by the key."""
        for path, rows in self.contents.items():
            left = [row for row in rows if row]
            if path in self.base:
                left.sort(key=lambda row: row[KEY])
            pq.write_table(pa.Table.from_pylist(left, schema=self._schemas[path]), path, compression="snappy")


@dataclass
class Planter:
    """Plants differences in the rows of a table; `old`: rows that the files had earlier, by their ids."""

    files: Files
    old: Mapping[int, Row]
    judge: Judge
    draw: random.Random
    planted: list[Planted] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._places = self.files.rows
        self._free = sorted(self._places)
        self.draw.shuffle(self._free)
        self._added = NEW_ID

    def plant(self, each: int, values: int) -> list[Planted]:
        """Plant `each` differences of each kind of row, and so many changed values; write the files."""
        kinds: list[Callable[[], Iterator[Planted]]] = [
            self._removed, self._added_row, self._twice, self._former, self._exchanged, self._other_key,
        ]  # fmt: skip
        for kind in kinds:
            for _ in range(each):
                self.planted += kind()
        of_values = sorted({kind for one in MUTATIONS.values() for kind in one} | set(_OF_EACH_TYPE))
        self.draw.shuffle(of_values)
        for number in range(values):
            self.planted += self._value(of_values[number % len(of_values)])
        self.files.write()
        return self.planted

    def _row(self, place: Place) -> Row:
        path, number = place
        return self.files.contents[path][number]

    def _taken(self, fits: Callable[[int], bool] = lambda _: True) -> int:
        """Return a random row that was not taken before, and that the source does not distinguish from its own."""
        at = next(n for n, one in enumerate(self._free) if fits(one))
        number = self._free.pop(at)
        row = self._row(self._places[number])
        assert not self.judge.distinguishes(number, shown(row)), f"the row {number} differs without a change"
        return number

    def _judged(self, number: int) -> bool:
        """Return whether the source distinguishes the row in the file from its own."""
        return self.judge.distinguishes(number, shown(self._row(self._places[number])))

    # --- kinds of rows

    def _removed(self) -> Iterator[Planted]:
        number = self._taken(lambda one: self.files.is_in_one_file(self._places[one]))
        self._row(self._places[number]).clear()
        yield Planted("missing", number, "a row removed")

    def _copied(self, row: Row) -> Row:
        """Add a row with a key of its own to a base file, and return it."""
        self._added += 1
        copied = {**row, KEY: b"planted" + self._added.to_bytes(8, "big")}
        self.files.contents[self.draw.choice(self.files.base)].append(copied)
        return copied

    def _added_row(self) -> Iterator[Planted]:
        copied = self._copied(self._row(self._places[self._taken()]))
        copied["id"] = self._added
        yield Planted("extra", self._added, "a row added")

    def _twice(self) -> Iterator[Planted]:
        number = self._taken()
        self._copied(self._row(self._places[number]))
        yield Planted("extra", number, "a row twice")

    def _former(self) -> Iterator[Planted]:
        def has_changed(one: int) -> bool:
            return one in self.old and self.judge.distinguishes(one, shown(self.old[one]))

        number = self._taken(has_changed)
        row = self._row(self._places[number])
        row.update({name: value for name, value in self.old[number].items() if name in row and name != KEY})
        assert self._judged(number)
        yield Planted("different", number, "an old version of the row")

    def _exchanged(self) -> Iterator[Planted]:
        first, second = self._taken(), self._taken()
        rows = [self._row(self._places[one]) for one in (first, second)]
        values = [{name: row[name] for name in (*TYPES, SPECIAL)} for row in rows]
        for row, other in zip(rows, reversed(values), strict=True):
            row.update(other)
        for number in (first, second):
            assert self._judged(number)
            yield Planted("different", number, "the values of two rows exchanged")

    def _other_key(self) -> Iterator[Planted]:
        number = self._taken()
        self._added += 1
        self._row(self._places[number])["id"] = self._added
        yield Planted("missing", number, "the key of a row changed")
        yield Planted("extra", self._added, "the key of a row changed")

    # --- one value

    def _value(self, kind: str) -> Iterator[Planted]:
        """Change a value in the first row that has a fitting one."""
        names = [name for name in TYPES if kind in (*MUTATIONS[TYPES[name]], *_OF_EACH_TYPE)]
        self.draw.shuffle(names)

        def is_changed(number: int) -> bool:
            row = self._row(self._places[number])
            return any(self._change(row, number, name, kind) for name in names)

        number = self._taken()
        for _ in range(ATTEMPTS):
            if is_changed(number):
                yield Planted("different", number, kind)
                return
            self._free.append(number)
            number = self._taken()
        raise AssertionError(f"no row has a value for: {kind}")

    def _change(self, row: Row, number: int, name: str, kind: str) -> bool:
        """Change a value of a row so that PostgreSQL distinguishes it; return False if it did not fit."""
        changed = self._changed(row, name, kind)
        if changed is None:
            return False
        value, special = changed
        try:
            if not self.judge.distinguishes(number, {name: value if special is None else special}):
                return False
        except psycopg2.DataError:  # a digit of an address, a label: no value of the type
            return False
        specials = [one for one in row[SPECIAL] or () if one[0] != name]
        if special is not None:
            specials.append((name, special))
        row.update({name: value, SPECIAL: specials or None})
        return True

    def _changed(self, row: Row, name: str, kind: str) -> tuple[Any, str | None] | None:
        """Return another value and its special text, None if this kind does not fit the value."""
        value, special = row[name], dict(row[SPECIAL] or ()).get(name)
        if kind == _SPECIAL:
            other = {"infinity": "-infinity", "-infinity": "infinity", "NaN": "Infinity"}.get(special or "")
            return None if special is None else (None, self.draw.choice((None, other)))
        if special is not None:
            return None
        if kind == _NULL:
            return None if value is None else (None, None)
        if kind == _NO_NULL:
            return None if value is not None else (self._any(name), None)
        if value is None:
            return None
        try:
            return MUTATIONS[TYPES[name]][kind](value, self.draw), None
        except (IndexError, ValueError, TypeError, AttributeError):
            return None  # no zero, no element NULL, an attribute that is NULL

    def _any(self, name: str) -> Any:
        """Return a value of the column in another row."""
        rows = (self._row(self._places[self.draw.choice(self._free)]) for _ in range(ATTEMPTS))
        return next(row[name] for row in rows if row[name] is not None)


_NULL, _NO_NULL, _SPECIAL = "NULL for a value", "a value for NULL", "a value outside the type"
_OF_EACH_TYPE = (_NULL, _NO_NULL, _SPECIAL)


def shown(row: Row) -> Row:
    """Return the values of a row as PostgreSQL has them: a special text in place of its null."""
    special = dict(row[SPECIAL] or ())
    return {name: special.get(name, row[name]) for name in TYPES}


def plant(
    opened: Mirror,
    topic: str,
    old: Mapping[int, Row],
    judge: Judge,
    draw: random.Random,
    each: int,
    values: int,
) -> list[Planted]:
    """Plant differences in a table of a mirror; return them. `old`: as `rows_of` of the files before a change."""
    planted = Planter(Files(opened, topic), old, judge, draw).plant(each, values)
    _check(Files(opened, topic), judge, planted)
    return planted


def rows_of(opened: Mirror, topic: str) -> dict[int, Row]:
    """Return the rows in the files of a table, by their ids."""
    files = Files(opened, topic)
    return {number: files.contents[path][at] for number, (path, at) in files.rows.items()}


def _check(files: Files, judge: Judge, planted: list[Planted]) -> None:
    """Check the rows that the files have now against the keys of the source."""
    source, found = judge.ids(), set(files.rows)
    of = {kind: {one.id for one in planted if one.difference == kind} for kind in ("missing", "extra")}
    assert source - found == of["missing"]
    assert found - source == {one for one in of["extra"] if one > NEW_ID}
