"""A Delta or Iceberg table whose log is damaged: what a crash leaves is replaced, other damage parks the table."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from cdcd.errors import CdcdError, SparkReadError, StorageConflict, StorageError, TableLogUnreadable
from cdcd.spark.formats import open_table
from cdcd.spark.formats.delta_log import DeltaLog
from cdcd.spark.formats.iceberg_log import IcebergLog
from cdcd.spark.formats.open_tables import OpenTables
from cdcd.spark.mirroring.batches import MirrorBatches
from cdcd.spark.mirroring.dropped_tables import drop_table
from cdcd.spark.mirroring.records import RecordsOnDriver
from cdcd.spark.reading.mirror import read_mirror
from cdcd.spark.source.cuts import Offsets, with_loading
from cdcd.spark.storage.local import LocalStorage
from cdcd.spark.storage.uri import Storage, StoredFile, open_storage
from cdcd.spark.target.commit_log import read_latest
from cdcd.spark.target.target_writer import TargetWriter, take_over
from cdcd.spark.target.versions import Parked, TableFormat, TargetVersion
from tests.spark.batches import TOPIC, Batches, Record, records_table
from tests.spark.foreign_readers import READERS
from tests.spark.unit.test_open_tables import BODY, ID, OPEN, apply, crash, mirrored, newest, normalised, row
from tests.support.nightly import nightly, nightly_except

OTHERS, NEW = "shop.public.others", "shop.public.new"
UNREADABLE = [b"{", b"", b"\0" * 300, b'{"commitInfo":{}}\n{"add":', b"[]\n", b'{"add":5}\n']


@pytest.fixture(params=OPEN)
def table_format(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def items(tmp_path: Path, table_format: TableFormat) -> Batches:
    """Return a table with two rows in a mirror that parks, beside another one with such rows."""
    batches = Batches(tmp_path / "mirror", [ID, BODY], table_format=table_format)
    batches.on_error = "park"
    copied = [batches.change("r", 10, number + 1, after=row(number, "first")) for number in range(2)]
    with batches.mirror() as mirror:
        apply_to_both(mirror, copied)
    return batches


def apply_to_both(
    mirror: MirrorBatches, records: Sequence[Record], end: Offsets | None = None, loading: Sequence[str] = ()
) -> None:
    of_items = records_table(records)
    place = of_items.column_names.index("topic")
    names = pa.array([OTHERS] * len(records), of_items.schema.field("topic").type)
    both = pa.concat_tables([of_items, of_items.set_column(place, of_items.schema.field("topic"), names)])
    mirror.apply(RecordsOnDriver(both), with_loading(end or {}, frozenset(loading)))


def version_of(target: Storage) -> TargetVersion:
    found = read_latest(target)
    assert found is not None
    return found


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


@pytest.mark.parametrize("content", nightly_except(UNREADABLE, *UNREADABLE[:3]))
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
@pytest.mark.parametrize("content", [*UNREADABLE[:3], None])
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


# --- a table that is parked for its log ---------------------------------------------------------------------------


def test_a_parked_table_goes_on_when_its_log_is_readable_again_and_nothing_was_left_out(
    items: Batches,
) -> None:
    path, rows = log_file(items, named(items)), mirrored(items.target)
    saved = path.read_bytes()
    path.write_bytes(b"{")
    with items.mirror() as mirror:
        mirror.publish_start()
        assert parked(items) is not None
    path.write_bytes(saved)
    with items.mirror() as mirror:
        mirror.publish_start()
        assert parked(items) is None
        apply_to_both(mirror, [items.change("u", 20, 1, after=row(1, "changed"))])
    assert newest(items) == mirrored(items.target) == others(items) == [row(1, "changed"), rows[0]]


def test_a_parked_table_of_which_a_record_was_left_out_needs_a_copy(items: Batches) -> None:
    path, rows = log_file(items, named(items)), mirrored(items.target)
    saved = path.read_bytes()
    path.write_bytes(b"{")
    with items.mirror() as mirror:
        mirror.publish_start()
        apply_to_both(mirror, [items.change("u", 20, 1, after=row(1, "changed"))], {TOPIC: {"0": 5}})
    path.write_bytes(saved)
    with items.mirror() as mirror:
        mirror.publish_start()
        found = parked(items)
        apply_to_both(mirror, [items.change("u", 30, 1, after=row(1, "again"))], {TOPIC: {"0": 7}})
    assert found == parked(items)
    assert mirrored(items.target) == rows


@pytest.mark.parametrize("content", [None, b"{", b""])
@pytest.mark.parametrize("crashes", [1, nightly(2), 6])
def test_a_copy_of_a_parked_table_that_crashed_before_it_was_published_is_repeated(
    items: Batches, monkeypatch: pytest.MonkeyPatch, crashes: int, content: bytes | None
) -> None:
    """The operator has removed the folder, and the mirror still names a version of the table that was in it.

    `content`: of the newest version, if the crash has left it half written.
    """
    with items.mirror() as mirror:
        for number in range(3):
            apply_to_both(mirror, [items.change("u", 20 + number, 1, after=row(1, f"{number}"))])
    log_file(items, named(items)).write_bytes(b"{")
    with items.mirror() as mirror:
        mirror.publish_start()
        apply_to_both(mirror, [items.change("u", 30, 1, after=row(1, "left out"))], {TOPIC: {"0": 5}})
    found = parked(items)
    assert found is not None
    shutil.rmtree(items.target / "public.items")
    copy = [items.change("t", 40, 1), items.change("c", 40, 2, after=row(8, "copied"))]
    for _ in range(crashes):
        with items.mirror() as mirror, monkeypatch.context() as patched:
            mirror.publish_start()
            patched.setattr(TargetWriter, "publish", crash)
            with pytest.raises(KeyboardInterrupt):
                apply_to_both(mirror, copy, {TOPIC: {"0": 9}})
        assert parked(items) == found
    if content is not None:
        log = log_file(items, 0).parent
        newest_log(log).write_bytes(content)
    with items.mirror() as mirror:
        mirror.publish_start()
        assert parked(items) == found
        apply_to_both(mirror, copy, {TOPIC: {"0": 9}})
    assert parked(items) is None
    assert newest(items) == mirrored(items.target) == others(items) == [row(8, "copied")]
    with items.mirror() as mirror:
        mirror.publish_start()
        apply_to_both(mirror, [items.change("c", 50, 1, after=row(9, "new"))])
    assert newest(items) == mirrored(items.target) == others(items) == [row(8, "copied"), row(9, "new")]


def newest_log(folder: Path) -> Path:
    """Return the file of the newest version of a log."""
    return max(folder.glob("*.json"), key=lambda path: (len(path.name), path.name))


def test_a_parked_table_with_another_log_ends_a_mirror_that_does_not_park(
    items: Batches, tmp_path: Path
) -> None:
    folder = items.target / "public.items"
    shutil.copytree(folder, tmp_path / "backup")
    with items.mirror() as mirror:
        apply_to_both(mirror, [items.change("u", 20, 1, after=row(1, "changed"))])
    log_file(items, named(items)).write_bytes(b"{")
    with items.mirror() as mirror:
        mirror.publish_start()
    assert parked(items) is not None
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "backup", folder)
    items.on_error = "fail"
    with pytest.raises(TableLogUnreadable, match="copy the table again"), items.mirror():
        pass


def test_a_table_that_is_parked_for_its_records_remains_parked(items: Batches) -> None:
    value = items.change("u", 20, 1, after=row(1, "changed"))[1]
    items.run([(None, value)], loading=False)
    found = parked(items)
    assert found is not None
    with items.mirror() as mirror:
        mirror.publish_start()
    assert parked(items) == found


# --- dropped and new tables ---------------------------------------------------------------------------------------


def test_a_damaged_log_of_a_dropped_table_stops_nothing(
    items: Batches, caplog: pytest.LogCaptureFixture
) -> None:
    path = log_file(items, named(items))
    saved = path.read_bytes()
    drop_table(items.target, "public.items")
    path.write_bytes(b"{")
    with items.mirror() as mirror:
        mirror.publish_start()
        apply_to_both(mirror, [items.change("u", 20, 1, after=row(1, "changed"))])
    assert row(1, "changed") in others(items)
    assert TOPIC not in read_mirror(items.target).topics
    if items.table_format == "delta":
        assert "was dropped" in caplog.text
        assert "CDCD-TABLE-LOG" in caplog.text
        path.write_bytes(saved)
        with items.mirror() as mirror:
            mirror.publish_start()
    assert newest(items) == []


def test_a_damaged_log_of_a_new_table_parks_it_until_it_is_removed(items: Batches) -> None:
    folder = items.target / "public.new"
    entry = replace(read_mirror(items.target).version.tables[TOPIC], topic=NEW, files=(), table_version=None)
    log = folder / "_delta_log" if items.table_format == "delta" else folder / "metadata"
    log.mkdir(parents=True)
    (log / f"{0:020d}.json").write_bytes(b"{")
    (log / f"{1:020d}.json").write_bytes(b'{"commitInfo":{}}\n')
    with items.mirror() as mirror:
        assert mirror.add_empty([entry]) == {}
        apply_to_both(mirror, [items.change("u", 20, 1, after=row(1, "changed"))])
    assert row(1, "changed") in others(items) == newest(items)
    found = read_latest(items.target)
    assert found is not None
    if items.table_format == "iceberg":
        assert not found.parked, "a file of another format is no version"
        return
    assert found.parked.keys() == {NEW}
    assert f"public.new/_delta_log/{0:020d}.json" in found.parked[NEW].reason
    shutil.rmtree(folder)
    with items.mirror() as mirror:
        mirror.publish_start()
        assert mirror.add_empty([entry]) == {}
    opened = read_mirror(items.target)
    assert not opened.parked
    assert READERS[items.table_format].newest(items.target, "public.new").num_rows == 0


@pytest.mark.parametrize("content", UNREADABLE)
def test_a_first_version_that_a_crash_has_left_half_written_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    items = Batches(tmp_path / "mirror", [ID, BODY], table_format="delta")
    items.on_error = "park"
    copied = [items.change("r", 10, 1, after=row(1, "first"))]
    with monkeypatch.context() as patched, items.mirror() as mirror:
        patched.setattr(TargetWriter, "publish", crash)
        with pytest.raises(KeyboardInterrupt):
            apply_to_both(mirror, copied)
    log_file(items, 0).write_bytes(content)
    with items.mirror() as mirror:
        mirror.publish_start()
        apply_to_both(mirror, copied)
    assert parked(items) is None
    assert newest(items) == mirrored(items.target) == others(items) == [row(1, "first")]


# --- commits and checkpoints of Delta -----------------------------------------------------------------------------


@pytest.fixture
def delta(tmp_path: Path) -> Batches:
    """Return a Delta table and another one, both with some commits before and after a checkpoint."""
    items = Batches(tmp_path / "mirror", [ID, BODY], table_format="delta")
    items.on_error = "park"
    with items.mirror() as mirror:
        for number in range(6):
            apply_to_both(mirror, [items.change("c", 10 + number, 1, after=row(number, "first"))])
            if number == 2:
                DeltaTable(str(items.target / "public.items")).create_checkpoint()
    return items


def test_an_empty_commit_that_the_mirror_names_parks_the_table(delta: Batches) -> None:
    """delta-rs takes it for a commit that changes nothing."""
    rows, path = mirrored(delta.target), log_file(delta, named(delta))
    path.write_bytes(b"")
    with delta.mirror() as mirror:
        mirror.publish_start()
        apply_to_both(mirror, [delta.change("u", 20, 1, after=row(1, "changed"))])
    found = parked(delta)
    assert found is not None
    assert path.name in found.reason
    assert mirrored(delta.target) == rows
    assert row(1, "changed") in others(delta)


@pytest.mark.parametrize("number", [3, 4])
def test_a_commit_that_is_missing_parks_the_table(delta: Batches, number: int) -> None:
    rows, path = mirrored(delta.target), log_file(delta, number)
    path.unlink()
    with delta.mirror() as mirror:
        mirror.publish_start()
        apply_to_both(mirror, [delta.change("u", 20, 1, after=row(1, "changed"))])
    found = parked(delta)
    assert found is not None
    assert path.name in found.reason
    assert mirrored(delta.target) == rows
    assert row(1, "changed") in others(delta)


def checkpoint_of(items: Batches) -> Path:
    (found,) = (items.target / "public.items" / "_delta_log").glob("*.checkpoint.parquet")
    return found


def without_end(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-50])


def with_zeros(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:100] + bytes(500) + data[600:])


def empty(path: Path) -> None:
    path.write_bytes(b"")


DAMAGES = [without_end, with_zeros, empty, Path.unlink]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_checkpoint_that_is_not_readable_is_removed_where_the_commits_are_complete(
    delta: Batches, damage: Callable[[Path], None]
) -> None:
    path, rows = checkpoint_of(delta), mirrored(delta.target)
    damage(path)
    with pytest.raises(DeltaError):
        newest(delta)
    with delta.mirror() as mirror:
        mirror.publish_start()
        assert newest(delta) == mirrored(delta.target) == rows
        apply_to_both(mirror, [delta.change("u", 20, 1, after=row(1, "changed"))])
    assert parked(delta) is None
    assert not path.exists()
    assert newest(delta) == mirrored(delta.target) == others(delta) != rows


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_checkpoint_whose_commits_are_removed_parks_the_table(
    delta: Batches, damage: Callable[[Path], None]
) -> None:
    path, rows = checkpoint_of(delta), mirrored(delta.target)
    log_file(delta, 0).unlink()
    damage(path)
    last = path.with_name("_last_checkpoint").read_bytes()
    with delta.mirror() as mirror:
        mirror.publish_start()
        apply_to_both(mirror, [delta.change("u", 20, 1, after=row(1, "changed"))])
    found = parked(delta)
    assert found is not None
    assert (path.name if path.exists() else "_last_checkpoint") in found.reason
    assert path.with_name("_last_checkpoint").read_bytes() == last
    assert mirrored(delta.target) == rows
    assert row(1, "changed") in others(delta)


def test_an_earlier_checkpoint_is_used_where_the_last_one_is_not_readable(delta: Batches) -> None:
    first, rows = checkpoint_of(delta), mirrored(delta.target)
    DeltaTable(str(delta.target / "public.items")).create_checkpoint()
    (second,) = {*first.parent.glob("*.checkpoint.parquet")} - {first}
    for number in range(2):
        log_file(delta, number).unlink()
    without_end(second)
    with delta.mirror() as mirror:
        mirror.publish_start()
    assert (first.exists(), second.exists(), parked(delta)) == (True, False, None)
    assert newest(delta) == mirrored(delta.target) == rows


def test_a_start_that_was_taken_over_removes_no_checkpoint(delta: Batches) -> None:
    path = checkpoint_of(delta)
    without_end(path)
    target = open_storage(str(delta.target))
    version = read_latest(target)
    assert version is not None
    writer = take_over(target, version)
    take_over(target, version_of(target))
    with pytest.raises(StorageConflict):
        OpenTables(target, version, writer.own_latest, parks=True)
    assert path.exists()


# --- a crash after a commit with a checkpoint ----------------------------------------------------------------------


def torn(path: Path) -> None:
    path.write_bytes(b"{")


@pytest.fixture
def unpublished(delta: Batches, monkeypatch: pytest.MonkeyPatch) -> Batches:
    """Return the table with a commit and its checkpoint that the mirror does not name, as a crash leaves them."""
    checkpoint_of(delta).unlink()
    with monkeypatch.context() as patched, delta.mirror() as mirror:
        patched.setattr(TargetWriter, "publish", crash)
        with pytest.raises(KeyboardInterrupt):
            apply_to_both(mirror, [delta.change("u", 20, 1, after=row(1, "lost"))])
    DeltaTable(str(delta.target / "public.items")).create_checkpoint()
    assert f"{named(delta) + 1:020d}" in checkpoint_of(delta).name
    return delta


def start_and_apply(items: Batches) -> None:
    """Start the mirror: it has the rows that it names, and goes on."""
    rows = mirrored(items.target)
    with items.mirror() as mirror:
        mirror.publish_start()
        assert newest(items) == mirrored(items.target) == rows
        apply_to_both(mirror, [items.change("u", 30, 1, after=row(1, "changed"))])
    assert parked(items) is None
    assert newest(items) == mirrored(items.target) == others(items) != rows


@pytest.mark.parametrize("damage_of_checkpoint", [None, empty, nightly(without_end), nightly(with_zeros)])
@pytest.mark.parametrize("damage", [empty, torn, Path.unlink])
@pytest.mark.parametrize("has_hint", [True, False])
def test_a_checkpoint_of_a_commit_that_is_removed_is_removed(
    unpublished: Batches,
    damage: Callable[[Path], None],
    damage_of_checkpoint: Callable[[Path], None] | None,
    has_hint: bool,
) -> None:
    """delta-rs takes the version from the checkpoint, with or without its commit."""
    path = checkpoint_of(unpublished)
    damage(log_file(unpublished, named(unpublished) + 1))
    if damage_of_checkpoint is not None:
        damage_of_checkpoint(path)
    if not has_hint:
        path.with_name("_last_checkpoint").unlink()
    start_and_apply(unpublished)
    assert not path.exists() or not path.stat().st_size, "delta-rs leaves out an empty one without its commit"


class Killed(BaseException):
    """The process was killed."""


@pytest.mark.parametrize("removed", [0, 1, 2])
def test_a_crash_while_a_commit_with_a_checkpoint_is_removed_leaves_what_the_next_start_removes(
    unpublished: Batches, removed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`removed`: the number of files that are removed before the crash."""
    path, left = checkpoint_of(unpublished), log_file(unpublished, named(unpublished) + 1)
    empty(left)
    delete, done = LocalStorage.delete, list[str]()

    def killed(self: LocalStorage, paths: Iterable[str]) -> None:
        for one in paths:
            if "/_delta_log/" in one:
                if len(done) == removed:
                    raise Killed
                done.append(one.rpartition("/")[2])
            delete(self, [one])

    with monkeypatch.context() as patched:
        patched.setattr(LocalStorage, "delete", killed)
        with pytest.raises(Killed), unpublished.mirror():
            pass
    assert done == ["_last_checkpoint", path.name, left.name][:removed]
    start_and_apply(unpublished)
    assert not path.exists()


def test_a_checkpoint_that_delta_rs_refuses_parks_the_table(delta: Batches) -> None:
    """It is a Parquet file of other rows."""
    pq.write_table(pa.table({"other": [1]}), checkpoint_of(delta))
    with delta.mirror() as mirror:
        mirror.publish_start()
        apply_to_both(mirror, [delta.change("u", 20, 1, after=row(1, "changed"))])
    found = parked(delta)
    assert found is not None
    assert found.code == TableLogUnreadable.code
    assert row(1, "changed") in others(delta)


class PanicException(BaseException):
    """As the libraries in Rust raise it."""


def test_a_log_at_which_delta_rs_panics_parks_the_table(
    delta: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = DeltaTable.__init__

    def panics(self: DeltaTable, uri: str, *args: Any, **rest: Any) -> None:
        if uri.endswith("public.items"):
            raise PanicException("column start and length should not be negative")
        opened(self, uri, *args, **rest)

    with monkeypatch.context() as patched:
        patched.setattr(DeltaTable, "__init__", panics)
        with delta.mirror() as mirror:
            mirror.publish_start()
            apply_to_both(mirror, [delta.change("u", 20, 1, after=row(1, "changed"))])
    found = parked(delta)
    assert found is not None
    assert found.code == TableLogUnreadable.code
    assert row(1, "changed") in others(delta)


def test_a_commit_at_which_delta_rs_panics_is_an_error(
    delta: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    def panics(*_: Any, **__: Any) -> None:
        raise PanicException("called `Option::unwrap()` on a `None` value")

    with delta.mirror() as mirror:
        mirror.publish_start()
        monkeypatch.setattr(DeltaTable, "create_write_transaction", panics)
        with pytest.raises(StorageError, match="cannot change a Delta table"):
            apply_to_both(mirror, [delta.change("u", 20, 1, after=row(1, "changed"))])


def test_a_later_commit_of_another_writer_with_nulls_remains(delta: Batches) -> None:
    """Its rows are no rows of the mirror, which commits its own ones again."""
    path, rows = log_file(delta, named(delta) + 1), mirrored(delta.target)
    added = {"path": "foreign.parquet", "partitionValues": {}, "size": 10, "modificationTime": 1}
    action = {"add": {**added, "dataChange": True, "stats": None}, "remove": None}
    path.write_text(
        json.dumps({"commitInfo": {"timestamp": 1}, "add": None}) + "\n" + json.dumps(action) + "\n"
    )
    content = path.read_bytes()
    with delta.mirror() as mirror:
        mirror.publish_start()
    assert path.read_bytes() == content
    assert named(delta) == int(path.stem) + 1
    assert newest(delta) == mirrored(delta.target) == rows


# --- errors of the storage are no damage --------------------------------------------------------------------------


def refuse_to_read(patched: pytest.MonkeyPatch, items: Batches, refused: Path) -> str:
    """Make the storage refuse to read a file; return its path."""
    path, read_versioned = str(refused.relative_to(items.target)), LocalStorage.read_versioned

    def refuse(self: LocalStorage, asked: str, **rest: Any) -> StoredFile | None:
        if asked == path:
            raise StorageError("the storage refuses the request", file=asked)
        return read_versioned(self, asked, **rest)

    patched.setattr(LocalStorage, "read_versioned", refuse)
    return path


@pytest.mark.parametrize("table_format", ["iceberg"])
def test_an_error_of_the_storage_is_no_damage(items: Batches, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither of the version that the mirror names, nor of a later one, which a start replaces if it is damaged."""
    with monkeypatch.context() as patched, items.mirror() as mirror:
        patched.setattr(TargetWriter, "publish", crash)
        with pytest.raises(KeyboardInterrupt):
            apply_to_both(mirror, [items.change("u", 20, 1, after=row(1, "changed"))])
    for number in (named(items), named(items) + 1):
        with monkeypatch.context() as patched:
            refused = refuse_to_read(patched, items, log_file(items, number))
            with (
                pytest.raises(StorageError, match=f"refuses the request.*{refused}") as raised,
                items.mirror(),
            ):
                pass
        assert raised.type is StorageError
    with items.mirror() as mirror:
        mirror.publish_start()
    assert parked(items) is None
    assert newest(items) == mirrored(items.target)


def test_a_lack_of_memory_is_no_damage_of_a_log(items: Batches, monkeypatch: pytest.MonkeyPatch) -> None:
    def lacks_memory(*_: Any, **__: Any) -> None:
        raise pa.ArrowMemoryError("malloc of size 64 failed")

    rows, checkpoint = mirrored(items.target), None
    if items.table_format == "delta":
        DeltaTable(str(items.target / "public.items")).create_checkpoint()
        checkpoint = checkpoint_of(items)
        checkpoint.with_name("_last_checkpoint").write_bytes(b"{}")
        sound = checkpoint.read_bytes()
        without_end(checkpoint)
    with monkeypatch.context() as patched:
        patched.setattr("pyarrow.parquet.ParquetFile.__init__", lacks_memory)
        patched.setattr("pyiceberg.table.metadata.TableMetadataUtil.parse_raw", lacks_memory)
        with pytest.raises(MemoryError), items.mirror():
            pass
    if checkpoint is not None:
        assert checkpoint.exists()
        checkpoint.write_bytes(sound)
    with items.mirror() as mirror:
        mirror.publish_start()
    assert parked(items) is None
    assert newest(items) == mirrored(items.target) == rows


@pytest.mark.parametrize("error", [StorageError("no right to list"), SparkReadError("a record is missing")])
def test_old_versions_that_cannot_be_removed_stop_no_batch(
    items: Batches, error: CdcdError, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(open_table, "CLEAN_EVERY", 1)
    monkeypatch.setattr(open_table, "CLEAN_AGAIN", 2)
    log = DeltaLog if items.table_format == "delta" else IcebergLog
    remove, tries = log.remove_old_versions, list[int]()

    def refuse(self: Any, first: Callable[[], int]) -> None:
        if self._folder == "public.items":
            tries.append(self.version)
            raise error
        remove(self, first)

    with monkeypatch.context() as patched, items.mirror() as mirror:
        patched.setattr(log, "remove_old_versions", refuse)
        for number in range(6):
            apply_to_both(mirror, [items.change("u", 20 + number, 1, after=row(1, f"{number}"))])
    assert parked(items) is None
    assert {later - one for one, later in pairwise(tries)} == {2}
    assert f"old versions could not be removed; the removal is tried again: {error}" in caplog.text
    tables = read_mirror(items.target).version.tables
    assert tables[TOPIC].cleaned == 0 < tables[OTHERS].cleaned
    items.run([items.change("u", 30, 1, after=row(1, "last"))], loading=False)
    assert read_mirror(items.target).version.tables[TOPIC].cleaned
    assert newest(items) == mirrored(items.target)
