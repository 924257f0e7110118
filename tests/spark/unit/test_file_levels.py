"""Which files of a Delta or Iceberg table are merged: their number does not grow with what was deleted."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cdcd.spark.formats import file_levels, open_tables
from cdcd.spark.formats.file_levels import (
    FULL,
    FileSize,
    size_of_changed,
    size_of_new,
    size_of_same,
    small_files,
)
from cdcd.spark.mirroring.batches import MirrorBatches
from cdcd.spark.tables.table_files import write_part
from cdcd.spark.target.commit_log import read_latest
from cdcd.spark.target.versions import ALL_BUCKETS, BucketFile, TableFormat
from tests.spark.batches import TOPIC, Batches
from tests.spark.unit.test_open_tables import BODY, ID, apply, files_of_rows, mirrored, newest, of_both, row

FEW = 100
"""The rows of a full file here."""


@pytest.mark.parametrize(
    ("rows", "most", "before", "level"),
    [
        (100, 100, 0, FULL),  # nothing can be added to it
        (100, 100, FULL, FULL),
        (50, 100, FULL, FULL),  # half full
        (49, 100, FULL, 1),
        (7, 100, FULL, 0),
        (8, 100, FULL, 1),
        (64, 1000, FULL, 2),
        (64, 1000, 1, 1),  # a level is only lowered
        (99, 100, 0, 0),
        (7, 100, 2, 0),
        (1, 1, FULL, FULL),  # a row that fills a file alone
        (1, 1, 0, FULL),
        (1, 2, FULL, FULL),
        (1, 3, FULL, 0),
    ],
)
def test_the_level_of_a_file_follows_its_rows(rows: int, most: int, before: int, level: int) -> None:
    assert FileSize(most, most).level_of(rows, before) == level


def test_a_file_has_few_large_rows() -> None:
    large = pa.table({"a": [b"x" * (file_levels.FILE_BYTES // 4)] * 8})
    assert size_of_changed(large) == FileSize(3, 3)  # their offsets are bytes, too
    assert size_of_changed(large.slice(0, 1)) == FileSize(3, 3)
    assert size_of_changed(pa.table({"a": [b"x" * (file_levels.FILE_BYTES + 1)]})) == FileSize(1, 1)
    assert size_of_changed(large.slice(0, 0)) == FileSize(1, 1)
    assert size_of_new(large) == FileSize(7, 4)
    assert size_of_new(pa.table({"a": [b"x" * (file_levels.NEW_FILE_BYTES + 1)]})) == FileSize(1, 1)
    assert size_of_same(large) == FileSize(8, 3)


def test_a_file_of_new_rows_is_not_smaller_than_one_of_changed_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a merge would make as many files as there were, without end."""
    monkeypatch.setattr(file_levels, "NEW_FILE_BYTES", 1)
    monkeypatch.setattr(file_levels, "FILE_ROWS", 10)
    assert size_of_new(pa.table({"a": range(100)})) == FileSize(10, 5)


def file(number: int, *, level: int = 0, rows: int = 1, size_bytes: int = 1) -> BucketFile:
    return BucketFile(ALL_BUCKETS, f"part-{number}", rows, (1,), level, size_bytes)


def test_a_merge_does_not_read_more_than_it_can_have_in_memory() -> None:
    """As after a batch that has deleted more than half of the rows of each file."""
    half = file_levels.FILE_BYTES // 2
    halved = [file(number, level=5, rows=40_000, size_bytes=half) for number in range(1000)]
    assert small_files(halved) == tuple(halved[: file_levels.MERGED_BYTES // half])
    larger = [file(number, size_bytes=file_levels.MERGED_BYTES) for number in range(20)]
    assert small_files(larger) == tuple(larger[: file_levels.FAN])
    tiny = [file(number) for number in range(1000)]
    assert small_files(tiny) == tuple(tiny)


def test_full_files_with_few_rows_of_an_earlier_version_are_merged_with_others() -> None:
    """They are no reason for a merge: a large row may fill such a file, and would be written again and again."""
    left = [file(number, level=FULL, size_bytes=0) for number in range(20)]
    others = [file(100, level=FULL, rows=90_000, size_bytes=0), file(101, level=FULL)]
    small = [file(200 + number) for number in range(file_levels.FAN)]
    assert small_files([*left, *others]) == small_files([*left, *others, *small[1:]]) == ()
    assert small_files([*left, *others, *small]) == (*small, *left[: file_levels.FAN])


def queue(items: Batches, mirror: MirrorBatches, rounds: range) -> None:
    """Insert rows and delete nearly all of them, as in a table of tasks."""
    for number in rounds:
        new, lsn = [number * 3 * FEW + one for one in range(3 * FEW)], 100 + 20 * number
        insert = [items.change("c", lsn, place, after=row(one, "x")) for place, one in enumerate(new, 1)]
        gone = [one for one in new if one % FEW]
        delete = [
            items.change("d", lsn + 10, place, before=row(one, "")) for place, one in enumerate(gone, 1)
        ]
        for records in (insert, delete):
            assert apply(mirror, records) == ""
            mirror.compact()


def files_of(items: Batches) -> tuple[BucketFile, ...]:
    version = read_latest(items.target)
    assert version is not None
    return version.tables[TOPIC].files


@of_both
def test_a_table_whose_rows_are_deleted_has_few_files(
    tmp_path: Path, table_format: TableFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_levels, "FILE_ROWS", FEW)
    items = Batches(tmp_path / "mirror", [ID, BODY], table_format=table_format)
    with items.mirror() as mirror:
        for number in range(10):
            queue(items, mirror, range(number, number + 1))
            found = files_of(items)
            rows = sum(one.rows for one in found)
            assert len(found) < 2 * file_levels.FAN + rows // FEW
            assert all(one.size_bytes for one in found)
    assert len(newest(items)) == rows == 10 * 3
    assert newest(items) == mirrored(items.target)


@of_both
def test_a_load_in_batches_has_few_files(
    tmp_path: Path, table_format: TableFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each batch has more rows than a file that has changed, and fewer than a file of new rows."""
    monkeypatch.setattr(file_levels, "FILE_ROWS", FEW)
    items = Batches(tmp_path / "mirror", [ID, BODY], table_format=table_format)
    with items.mirror() as mirror:
        for number in range(2 * file_levels.FAN):
            rows = [row(number * 2 * FEW + one, "x") for one in range(2 * FEW)]
            records = [items.change("r", 100 + number, place, after=one) for place, one in enumerate(rows, 1)]
            assert apply(mirror, records) == ""
            mirror.compact()
    assert [one.rows for one in files_of(items)] == [file_levels.FAN * 2 * FEW] * 2
    assert newest(items) == mirrored(items.target)


def test_a_table_with_many_files_of_an_earlier_version_has_few_of_them_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files_of_rows(monkeypatch, FEW)
    items = Batches(tmp_path / "mirror", [ID, BODY], table_format="delta")

    def without_size(*arguments: Any) -> tuple[BucketFile, int]:
        found, size_bytes = write_part(*arguments)
        return BucketFile(found.bucket, found.path, found.rows, found.columns, found.level), size_bytes

    with monkeypatch.context() as earlier, items.mirror() as mirror:
        earlier.setattr(FileSize, "level_of", lambda _self, _rows, level: level)
        earlier.setattr(open_tables, "write_part", without_size)
        queue(items, mirror, range(20))
    assert len(files_of(items)) > 2 * file_levels.FAN
    monkeypatch.setattr(file_levels, "FILE_ROWS", 4 * FEW)  # so that two rows are few
    with items.mirror() as mirror:
        for number in range(5 * file_levels.FAN):
            assert apply(mirror, [items.change("c", 1000 + number, 1, after=row(-number, "new"))]) == ""
            mirror.compact()
        assert len(files_of(items)) < 2 * file_levels.FAN
    assert len(newest(items)) == 20 * 3 - 1 + 5 * file_levels.FAN
    assert newest(items) == mirrored(items.target)


def test_merges_of_any_files_end() -> None:
    """Also of files that an earlier version has left at any level."""
    chosen = random.Random(5)
    for _ in range(100):
        most = chosen.choice([1, 2, 3, 10, 1000])
        of_file = FileSize(most, chosen.choice([most, (most + 1) // 2]))
        files = [
            file(number, level=chosen.choice([0, 1, 2, 5, FULL]), rows=chosen.randint(1, most))
            for number in range(chosen.randint(1, 300))
        ]
        merges = 0
        while small := small_files(files):
            merges += 1
            rows = sum(one.rows for one in small)
            sizes = [most] * (rows // most) + [rows % most] * bool(rows % most)
            before = [FULL] * (len(sizes) - 1) + [small[0].level + 1]
            made = [
                file(1000 * merges + number, level=of_file.level_of(size, level), rows=size)
                for number, (size, level) in enumerate(zip(sizes, before, strict=True))
            ]
            files = [one for one in files if one not in small] + made
        assert merges <= 300
        levels = {one.level for one in files if one.level != FULL}
        assert sum(one.level != FULL for one in files) <= (file_levels.FAN - 1) * len(levels)
