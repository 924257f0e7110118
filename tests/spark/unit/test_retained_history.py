"""The retention of a history, as DuckDB reads it: what is valid after it remains, whatever files a cut takes."""

from __future__ import annotations

import random
import zlib
from pathlib import Path

import pytest

from cdcd.spark.reading.mirror import read_mirror
from cdcd.spark.tables import history_merges, tasks
from tests.spark.batches import Record
from tests.spark.events import column
from tests.spark.history_model import (
    FIELDS,
    Model,
    Timed,
    Version,
    batch_of,
    copy_of,
    item,
    plain_copy_of,
    stopped_copy_of,
)
from tests.spark.unit.test_plain_history import versions
from tests.support.nightly import nightly


@pytest.fixture
def items(tmp_path: Path) -> Timed:
    made = Timed(tmp_path / "mirror", FIELDS)
    made.scd_type = 2
    return made


def _cut(items: Timed, lsn: int) -> list[Version]:
    """Retain what has ended after an LSN; return the versions."""
    items.retain_from(lsn)
    items.compact()
    return versions(read_mirror(items.target))


@pytest.mark.parametrize("piece_bytes", [1, nightly(64 << 20)])
@pytest.mark.parametrize("seed", [1, *(nightly(seed) for seed in range(2, 6))])
def test_what_is_valid_after_the_retention_remains(
    items: Timed, monkeypatch: pytest.MonkeyPatch, seed: int, piece_bytes: int
) -> None:
    """Random changes of several times in one batch, whose history has several files; copies, some of them stopped."""
    monkeypatch.setattr(tasks, "PIECE_BYTES", piece_bytes)
    monkeypatch.setattr(history_merges, "SHARE", 1 << 30)  # a cut at each new line
    model, chosen = Model(), random.Random(seed)
    for lsn in range(100, 1100, 100):
        records: list[Record] = []
        if lsn in (400, 700):
            items.run(stopped_copy_of(items, model, lsn - 40, chosen), loading=True)
            records += stopped_copy_of(items, model, lsn - 30, chosen)
        make = copy_of if lsn in (400, 500, 700) else plain_copy_of if lsn == 800 else batch_of
        records += make(items, model, lsn, chosen)
        records += batch_of(items, model, lsn + 30, chosen)
        items.run(records, loading=False)
        found = _cut(items, lsn - chosen.choice([250, 120, 40, 10]))
        assert set(found) <= set(model.versions), "no version is another one than it was"
        assert set(found) >= {one for one in model.versions if one[4] is None}
    assert _cut(items, 10_000) == [one for one in model.versions if one[4] is None]


def test_a_truncate_ends_rows_of_the_other_files_of_its_batch(
    items: Timed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cut takes the file with the TRUNCATE, that of bucket 0, and leaves one with rows of another bucket."""
    monkeypatch.setattr(tasks, "PIECE_BYTES", 1)  # a file for each bucket
    keys = {number: zlib.crc32(bytes([2 * number])) % 4 for number in range(1, 40)}
    first = next(number for number, bucket in keys.items() if bucket == 0)
    one, other = [number for number, bucket in keys.items() if bucket == 1][:2]
    records = [
        items.change("c", 10, 1, after=item(one, "a")),
        items.change("c", 10, 2, after=item(first, "z")),
    ]
    records += [items.change("t", 20, 1), items.change("c", 100, 1, after=item(other, "b"))]
    items.run(records, loading=False)
    assert [file.last_us for file in items.entry().history] == [10_000_000, 20_000_000, 100_000_000]
    valid = (other, "b", "n", (100, 1), None)
    assert set(_cut(items, 50)) == {(one, "a", "n", (10, 1), (20, 1)), valid}
    assert _cut(items, 10_000) == [valid]
    assert items.lines() == 1


def test_a_copy_that_began_again_after_the_retention_ends_no_row(items: Timed) -> None:
    """Row 3 has ended with the copy that became complete, which the retention has; row 2 goes on."""
    items.run([items.change("c", 10, one, after=item(one, "a")) for one in (1, 2, 3)], loading=False)
    items.run([items.change("t", 20, 1, snapshot=True), _copied(items, 20, 1)], loading=True)
    copied = [items.change("t", 40, 1, snapshot=True), _copied(items, 40, 1), _copied(items, 40, 2)]
    items.run(copied, loading=False)
    expected = [(one, "a", "n", (10, one), None) for one in (1, 2)]
    assert _cut(items, 30) == [*expected, (3, "a", "n", (10, 3), (40, 1))]
    assert _cut(items, 10_000) == expected


def test_nothing_is_cut_off_a_table_that_was_parked_while_it_was_copied(items: Timed) -> None:
    """The next copy shows whether its rows have ended."""
    items.on_error = "park"
    items.run([items.change("c", 10, one, after=item(one, "a")) for one in (1, 2)], loading=False)
    items.run([items.change("t", 20, 1, snapshot=True)], loading=True)
    special = {"gap.from_lsn": "0/14", "gap.to_lsn": "0/1E", "gap.reason": "CDCD-SLOT-LOST"}
    items.run([items.change("g", 30, 1, special=special)], loading=False)
    assert set(read_mirror(items.target).parked)
    before = items.lines()
    _cut(items, 10_000)
    assert items.lines() == before


def _copied(items: Timed, lsn: int, number: int) -> Record:
    return items.change("r", lsn, 1 + number, after=item(number, "a"))


def test_values_in_arrays_and_composites_that_python_does_not_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dates before the year 1, or after 9999, are compared as any other."""
    time = {"type": "long", "logicalType": "timestamp-micros"}
    parts = [{"name": "day", "type": ["null", {"type": "int", "logicalType": "date"}], "default": None}]
    place = {"type": "record", "name": "Place", "fields": parts}
    times = {"type": "array", "items": ["null", time]}
    items = Timed(tmp_path / "mirror", [*FIELDS, column("times", times), column("place", place)])
    items.scd_type = 2
    monkeypatch.setattr(items, "rows", list)  # Python has no such times
    ages = {10: (-(10**17), -800_000), 20: (-(10**17) + 1, -800_000), 30: (-(10**17) + 1, 3_000_000)}
    for lsn, (us, day) in ages.items():
        row = {**item(1, "a"), "times": [us], "place": {"day": day}}
        items.run([items.change("c" if lsn == 10 else "u", lsn, 1, after=row)], loading=False)
    items.run([items.change("u", 40, 1, after=row)], loading=False)
    items.retain_from(15)
    items.compact()
    assert items.lines() == 4
    items.retain_from(10_000)
    items.compact()
    assert items.lines() == 2, "those of the version that is valid"
