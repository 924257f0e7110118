"""A file of rows that cannot be decoded: its table is parked, also where only a page of it is damaged."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cdcd.errors import MirrorInconsistent
from cdcd.spark.reading.mirror import read_mirror
from cdcd.spark.storage.uri import open_storage
from cdcd.spark.tables.data_file import opened_in_parts
from cdcd.spark.target.commit_log import read_latest
from cdcd.spark.target.versions import TABLE_FORMATS, TableFormat
from tests.spark.batches import TOPIC, Batches
from tests.spark.unit.test_damaged_logs import OTHERS, apply_to_both, empty, without_end
from tests.spark.unit.test_open_tables import BODY, ID, mirrored, normalised, row


def with_other_pages(path: Path) -> None:
    """Damage the values; the footer, which has the columns and the ranges, remains."""
    data = path.read_bytes()
    path.write_bytes(data[:4] + bytes(len(data) // 3) + data[4 + len(data) // 3 :])


@pytest.fixture(params=TABLE_FORMATS)
def items(tmp_path: Path, request: pytest.FixtureRequest) -> Batches:
    """Return a table with rows in a mirror that parks, beside another one with such rows."""
    table_format: TableFormat = request.param
    batches = Batches(tmp_path / "mirror", [ID, BODY], table_format=table_format)
    batches.on_error = "park"
    with batches.mirror() as mirror:
        apply_to_both(
            mirror, [batches.change("r", 10, n + 1, after=row(n, f"{n} " * 50)) for n in range(200)]
        )
    return batches


def files_of(items: Batches) -> list[Path]:
    entry = read_mirror(items.target).version.tables[TOPIC]
    return [items.target / one.path for one in (*entry.files, *entry.deltas)]


def name_in(text: str) -> str:
    (found,) = re.findall(r"[\w-]+\.parquet", text)
    return str(found)


@pytest.mark.parametrize("damage", [without_end, with_other_pages, empty])
@pytest.mark.parametrize("sends_all", [True, False])
def test_a_file_that_cannot_be_decoded_parks_its_table_until_a_copy(
    items: Batches, damage: Callable[[Path], None], sends_all: bool
) -> None:
    """`sends_all`: the fold of the batch needs no old row; a Delta or Iceberg table is changed file by file then."""
    rest = dict[str, Any]() if sends_all else {"unchanged": ["body"]}
    files = files_of(items)
    for path in files:
        damage(path)
    with items.mirror() as mirror:
        mirror.publish_start()
        apply_to_both(mirror, [items.change("u", 20, 1, after=row(1, "changed"), **rest)])
        mirror.compact()
    version = read_latest(items.target)
    assert version is not None
    has_read = items.table_format != "parquet" or not sends_all
    assert version.parked.keys() == ({TOPIC} if has_read else set())
    if has_read:
        found = version.parked[TOPIC]
        assert found.code == MirrorInconsistent.code
        assert name_in(found.reason) in {one.name for one in files}
    others = normalised(read_mirror(items.target).table(OTHERS))
    assert len(others) == 200
    assert (row(1, "changed") in others) is sends_all
    with pytest.raises(MirrorInconsistent, match="cannot be decoded"):
        read_mirror(items.target).table(TOPIC)
    with items.mirror() as mirror:
        mirror.publish_start()
        apply_to_both(mirror, [items.change("t", 30, 1), items.change("c", 30, 2, after=row(7, "copied"))])
    assert mirrored(items.target) == [row(7, "copied")]
    assert not read_mirror(items.target).parked


def test_a_file_that_cannot_be_decoded_ends_a_mirror_that_does_not_park(items: Batches) -> None:
    items.on_error = "fail"
    before = read_latest(items.target)
    for path in files_of(items):
        without_end(path)
    change = [items.change("u", 20, 1, after=row(1, "x"), unchanged=["body"])]
    with items.mirror() as mirror, pytest.raises(MirrorInconsistent, match="cannot be decoded"):
        apply_to_both(mirror, change)
    after = read_latest(items.target)
    assert before is not None
    assert after is not None
    assert {*open_storage(items.target).paths()} >= after.files() == before.files()


def test_incomplete_rows_that_cannot_be_decoded_park_their_table(items: Batches) -> None:
    with items.mirror() as mirror:
        change = [items.change("u", 20, 1, after=row(900, "x"), unchanged=["body"])]
        apply_to_both(mirror, change, loading=[TOPIC, OTHERS])
        version = read_latest(items.target)
        assert version is not None
        for file in version.tables[TOPIC].incomplete:
            without_end(items.target / file.path)
        apply_to_both(mirror, [items.change("c", 30, 1, after=row(901, "y"))], loading=[OTHERS])
    version = read_latest(items.target)
    assert version is not None
    assert version.parked.keys() == {TOPIC}
    assert "cannot be decoded" in version.parked[TOPIC].reason
    assert row(901, "y") in normalised(read_mirror(items.target).table(OTHERS))


def lacks_memory(*_: Any, **__: Any) -> None:
    raise pa.ArrowMemoryError("malloc of size 64 failed")


@pytest.mark.parametrize("method", ["read", "read_row_groups"])
def test_a_lack_of_memory_is_no_damage_of_a_file(
    items: Batches, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the error of the decoder nor that of a table ends as a table that is parked."""
    change = [items.change("u", 20, 1, after=row(1, "changed"), unchanged=["body"])]
    with monkeypatch.context() as patched, items.mirror() as mirror:
        mirror.publish_start()
        patched.setattr(f"pyarrow.parquet.ParquetFile.{method}", lacks_memory)
        with suppress(MemoryError):  # another method is used for files of this size
            apply_to_both(mirror, change)
    assert not read_mirror(items.target).parked
    path = files_of(items)[0].relative_to(items.target).as_posix()
    with monkeypatch.context() as patched, opened_in_parts(items.target, path) as file:
        patched.setattr(f"pyarrow.parquet.ParquetFile.{method}", lacks_memory)
        with pytest.raises(MemoryError):
            file.read() if method == "read" else file.read_row_groups([0])


def test_a_lack_of_memory_parks_no_table_whose_rows_are_folded(
    items: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched, items.mirror() as mirror:
        mirror.publish_start()
        patched.setattr("cdcd.spark.tables.tasks.fold_group", lacks_memory)
        with pytest.raises(MemoryError):
            apply_to_both(mirror, [items.change("u", 20, 1, after=row(1, "changed"))])
    assert not read_mirror(items.target).parked
