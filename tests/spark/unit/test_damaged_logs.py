"""A Delta or Iceberg table whose log is damaged: what a crash leaves is replaced, other damage parks the table."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from cdcd.errors import StorageError, TableLogUnreadable
from cdcd.spark.mirroring.batches import MirrorBatches
from cdcd.spark.mirroring.records import RecordsOnDriver
from cdcd.spark.reading.mirror import read_mirror
from cdcd.spark.source.cuts import with_loading
from cdcd.spark.target.commit_log import read_latest
from cdcd.spark.target.target_writer import TargetWriter
from cdcd.spark.target.versions import Parked, TableFormat
from tests.spark.batches import TOPIC, Batches, Record, records_table
from tests.spark.foreign_readers import READERS
from tests.spark.unit.test_open_tables import BODY, ID, OPEN, apply, crash, mirrored, newest, normalised, row

OTHERS = "shop.public.others"
UNREADABLE = [b"{", b"\0" * 300, b'{"commitInfo":{}}\n{"add":', b"[]\n"]


@pytest.fixture(params=OPEN)
def items(tmp_path: Path, request: pytest.FixtureRequest) -> Batches:
    """Return a table with two rows in a mirror that parks, beside another one with such rows."""
    table_format: TableFormat = request.param
    batches = Batches(tmp_path / "mirror", [ID, BODY], table_format=table_format)
    batches.on_error = "park"
    copied = [batches.change("r", 10, number + 1, after=row(number, "first")) for number in range(2)]
    with batches.mirror() as mirror:
        apply_to_both(mirror, copied)
    return batches


def apply_to_both(mirror: MirrorBatches, records: Sequence[Record]) -> None:
    of_items = records_table(records)
    place = of_items.column_names.index("topic")
    names = pa.array([OTHERS] * len(records), of_items.schema.field("topic").type)
    both = pa.concat_tables([of_items, of_items.set_column(place, of_items.schema.field("topic"), names)])
    mirror.apply(RecordsOnDriver(both), with_loading({}, frozenset()))


def log_file(items: Batches, number: int) -> Path:
    """Return the file of a version of the table's log."""
    if items.table_format == "delta":
        return items.target / "public.items" / "_delta_log" / f"{number:020d}.json"
    return items.target / "public.items" / "metadata" / f"v{number}.metadata.json"


def named(items: Batches) -> int:
    """Return the version of the table that the mirror names."""
    found = read_mirror(items.target).version.tables[TOPIC].table_version
    assert found is not None
    return found


def parked(items: Batches) -> Parked | None:
    found = read_latest(items.target)
    assert found is not None
    assert OTHERS not in found.parked
    return found.parked.get(TOPIC)


def others(items: Batches) -> list[dict[str, object]]:
    """Return the rows of the other table, of which another reader has the same ones."""
    opened = read_mirror(items.target)
    rows = normalised(READERS[items.table_format].recorded(opened, OTHERS))
    assert normalised(opened.table(OTHERS)) == rows
    return rows


@pytest.mark.parametrize("content", UNREADABLE)
def test_a_version_that_a_crash_has_left_half_written_is_replaced(
    items: Batches, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    """No version of the mirror names it, and nobody can read it."""
    change = [items.change("u", 20, 1, after=row(1, "changed"))]
    with monkeypatch.context() as patched, items.mirror() as mirror:
        patched.setattr(TargetWriter, "publish", crash)
        with pytest.raises(KeyboardInterrupt):
            apply_to_both(mirror, change)
    path = log_file(items, named(items) + 1)
    assert path.exists()
    path.write_bytes(content)
    rows = mirrored(items.target)
    with items.mirror() as mirror:
        mirror.publish_start()
        assert newest(items) == mirrored(items.target) == rows
        apply_to_both(mirror, change)
    assert parked(items) is None
    assert newest(items) == mirrored(items.target) == others(items) != rows


@pytest.mark.parametrize("is_restored", [True, False])
@pytest.mark.parametrize("content", [*UNREADABLE[:2], None])
def test_a_damaged_log_parks_its_table_until_the_hint_is_followed(
    items: Batches, content: bytes | None, is_restored: bool
) -> None:
    path, rows = log_file(items, named(items)), mirrored(items.target)
    saved = path.read_bytes()
    if content is None:
        shutil.rmtree(path.parent)
    else:
        path.write_bytes(content)
    with items.mirror() as mirror:
        mirror.publish_start()
        apply_to_both(mirror, [items.change("u", 20, 1, after=row(1, "changed"))])
    found = parked(items)
    assert found is not None
    assert found.code == TableLogUnreadable.code
    expected = path.parent if content is None else path
    if content is not None or items.table_format == "delta":
        assert str(expected.relative_to(items.target)) in found.reason
    assert "--recopy" in found.reason
    assert mirrored(items.target) == rows, "as before"
    assert row(1, "changed") in others(items)

    copy = [items.change("t", 30, 1), items.change("c", 30, 2, after=row(7, "copied"))]
    if content is not None:  # the hint is not followed yet
        with items.mirror() as mirror:
            mirror.publish_start()
            assert parked(items) == found
            apply_to_both(mirror, copy)
        assert others(items) == [row(7, "copied")]
        if (
            items.table_format == "iceberg"
        ):  # each version has all files, so the next one needs no earlier one
            assert parked(items) is None
            assert newest(items) == mirrored(items.target) == others(items)
            return
        assert parked(items) is not None
        assert mirrored(items.target) == rows

    if is_restored and content is not None:
        path.write_bytes(saved)
    else:
        shutil.rmtree(items.target / "public.items")
    copy = [items.change("t", 40, 1), items.change("c", 40, 2, after=row(8, "copied"))]
    with items.mirror() as mirror:
        mirror.publish_start()
        apply_to_both(mirror, copy)
        apply_to_both(mirror, [items.change("c", 50, 1, after=row(9, "new"))])
    assert parked(items) is None
    assert newest(items) == mirrored(items.target) == others(items) == [row(8, "copied"), row(9, "new")]


def test_a_damaged_log_ends_a_mirror_that_does_not_park_until_the_file_is_restored(items: Batches) -> None:
    path, rows = log_file(items, named(items)), mirrored(items.target)
    saved = path.read_bytes()
    path.write_bytes(b"{")
    items.on_error = "fail"
    with pytest.raises(TableLogUnreadable, match=f"CDCD-TABLE-LOG.*{path.name}.*backup"), items.mirror():
        pass
    path.write_bytes(saved)
    with items.mirror() as mirror:
        mirror.publish_start()
        assert apply(mirror, [items.change("c", 50, 1, after=row(9, "new"))]) == ""
    assert newest(items) == mirrored(items.target) == [*rows, row(9, "new")]


def test_the_log_of_an_older_backup_is_refused(items: Batches, tmp_path: Path) -> None:
    """Parking all tables would hide that the target was not restored as a whole."""
    folder = items.target / "public.items"
    shutil.copytree(folder, tmp_path / "backup")
    with items.mirror() as mirror:
        apply_to_both(mirror, [items.change("u", 20, 1, after=row(1, "changed"))])
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "backup", folder)
    with pytest.raises(StorageError) as raised, items.mirror():
        pass
    assert not isinstance(raised.value, TableLogUnreadable)
