"""A file of rows that is not there, and what else a merge cannot read: its table is parked, the others continue."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cdcd.errors import StorageConflict, StorageError, StorageUnavailable, TableFileMissing
from cdcd.spark.mirroring.batches import MirrorBatches
from cdcd.spark.mirroring.dropped_tables import drop_table
from cdcd.spark.reading.mirror import read_mirror
from cdcd.spark.storage.local import LocalStorage
from cdcd.spark.storage.uri import open_storage
from cdcd.spark.tables import compaction
from cdcd.spark.tables.compaction import Compactor, Merge, MergeResult
from cdcd.spark.tables.table_files import read_history
from cdcd.spark.target import unneeded_files
from cdcd.spark.target.commit_log import read_latest
from cdcd.spark.target.left_files import sweep
from cdcd.spark.target.target_writer import TargetWriter
from cdcd.spark.target.versions import TABLE_FORMATS, TableEntry, TableFormat, TargetVersion
from tests.spark.batches import TOPIC, Batches, Record
from tests.spark.unit.test_damaged_files import files_of, name_in
from tests.spark.unit.test_damaged_logs import OTHERS, apply_to_both, without_end
from tests.spark.unit.test_open_tables import BODY, ID, OPEN, mirrored, normalised, row

FIRST = 200


@pytest.fixture(params=TABLE_FORMATS)
def items(tmp_path: Path, request: pytest.FixtureRequest) -> Batches:
    """Return a table with rows in a mirror that parks, beside another one with such rows."""
    return made(tmp_path / "mirror", request.param)


def made(target: Path, table_format: TableFormat, **rest: Any) -> Batches:
    batches = Batches(target, [ID, BODY], table_format=table_format)
    batches.on_error = "park"
    for name, value in rest.items():
        setattr(batches, name, value)
    with batches.mirror() as mirror:
        apply_to_both(mirror, [batches.change("r", 10, n + 1, after=row(n, "first")) for n in range(FIRST)])
    return batches


def version_of(items: Batches) -> TargetVersion:
    found = read_latest(items.target)
    assert found is not None
    return found


def others_of(items: Batches) -> list[dict[str, Any]]:
    return normalised(read_mirror(items.target).table(OTHERS))


def copied(items: Batches, lsn: int) -> list[Record]:
    return [items.change("t", lsn, 1), items.change("c", lsn, 2, after=row(7, "copied"))]


def refuse(*_: Any, **__: Any) -> Any:
    raise OSError(errno.EACCES, os.strerror(errno.EACCES))


def fail(*_: Any, **__: Any) -> Any:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


# --- a batch --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sends_all", [True, False])
def test_a_file_that_is_missing_parks_its_table_until_a_copy(items: Batches, sends_all: bool) -> None:
    """`sends_all`: the fold of the batch needs no old row; a Delta or Iceberg table is changed file by file then."""
    rest = dict[str, Any]() if sends_all else {"unchanged": ["body"]}
    files = files_of(items)
    for path in files:
        path.unlink()
    with items.mirror() as mirror:
        mirror.publish_start()
        apply_to_both(mirror, [items.change("u", 20, 1, after=row(1, "changed"), **rest)])
        mirror.compact()
        apply_to_both(mirror, [items.change("c", 21, 1, after=row(900, "new"))])
    parked = version_of(items).parked
    has_read = items.table_format != "parquet" or not sends_all
    assert parked.keys() == ({TOPIC} if has_read else set())
    if has_read:
        assert parked[TOPIC].code == TableFileMissing.code
        assert name_in(parked[TOPIC].reason) in {one.name for one in files}
        assert "--recopy" in parked[TOPIC].reason
    assert (row(1, "changed") in others_of(items)) is sends_all
    assert row(900, "new") in others_of(items)
    with pytest.raises(TableFileMissing, match="in a reader, open the mirror again"):
        read_mirror(items.target).table(TOPIC)
    with items.mirror() as mirror:
        mirror.publish_start()
        apply_to_both(mirror, copied(items, 30))
    assert mirrored(items.target) == [row(7, "copied")]
    assert not version_of(items).parked


def test_a_file_that_is_missing_ends_a_mirror_that_does_not_park(items: Batches) -> None:
    items.on_error = "fail"
    before = version_of(items)
    for path in files_of(items):
        path.unlink()
    change = [items.change("u", 20, 1, after=row(1, "x"), unchanged=["body"])]
    with items.mirror() as mirror, pytest.raises(TableFileMissing, match="a backup of the target"):
        apply_to_both(mirror, change)
    assert version_of(items).tables[TOPIC] == before.tables[TOPIC]


def test_incomplete_rows_whose_file_is_missing_park_their_table(items: Batches) -> None:
    with items.mirror() as mirror:
        change = [items.change("u", 20, 1, after=row(900, "x"), unchanged=["body"])]
        apply_to_both(mirror, change, loading=[TOPIC, OTHERS])
        for file in version_of(items).tables[TOPIC].incomplete:
            (items.target / file.path).unlink()
        apply_to_both(mirror, [items.change("c", 30, 1, after=row(901, "y"))], loading=[OTHERS])
    parked = version_of(items).parked
    assert {topic: one.code for topic, one in parked.items()} == {TOPIC: TableFileMissing.code}
    assert row(901, "y") in others_of(items)


# --- what is not the table's trouble ---------------------------------------------------------------------------


@pytest.mark.parametrize("failing", [fail, refuse])
def test_a_storage_that_does_not_answer_parks_nothing(
    items: Batches, failing: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file may be missing or not: nobody knows."""
    for path in files_of(items):
        path.unlink()
    change = [items.change("u", 20, 1, after=row(1, "x"), unchanged=["body"])]
    with items.mirror() as mirror:
        mirror.publish_start()
        with monkeypatch.context() as patched:
            patched.setattr("pathlib.Path.stat", failing)
            with pytest.raises(StorageError) as raised:
                apply_to_both(mirror, change)
    assert not isinstance(raised.value, TableFileMissing)
    assert isinstance(raised.value, StorageUnavailable) is (failing is fail)
    assert not version_of(items).parked


def test_a_disk_that_is_not_mounted_parks_nothing(items: Batches) -> None:
    change = [items.change("u", 20, 1, after=row(1, "x"), unchanged=["body"])]
    away = items.target.with_name("away")
    with items.mirror() as mirror:
        mirror.publish_start()
        items.target.rename(away)
        items.target.mkdir()
        with pytest.raises(StorageError, match="No such file") as raised:
            apply_to_both(mirror, change)
        items.target.rmdir()
        away.rename(items.target)
    assert not isinstance(raised.value, TableFileMissing)
    assert not version_of(items).parked


def test_an_older_copy_of_the_target_parks_nothing(items: Batches, tmp_path: Path) -> None:
    """All files since then are missing; the next session continues from the version that was restored."""
    backup = shutil.copytree(items.target, tmp_path / "backup")
    with items.mirror() as mirror:
        mirror.publish_start()
        apply_to_both(mirror, [items.change("u", 20, 1, after=row(1, "new"))])
        apply_to_both(mirror, [*copied(items, 25)])
        shutil.rmtree(items.target)
        shutil.copytree(backup, items.target)
        with pytest.raises(StorageError):
            apply_to_both(mirror, [items.change("u", 30, 1, after=row(7, "x"), unchanged=["body"])])
    assert not version_of(items).parked
    assert len(mirrored(items.target)) == FIRST


# --- merges ---------------------------------------------------------------------------------------------------


@contextmanager
def merge_due(items: Batches, monkeypatch: pytest.MonkeyPatch) -> Iterator[MirrorBatches]:
    """Yield a mirror whose tables have many small files, and of which the next merge is due."""
    with items.mirror() as mirror:
        mirror.publish_start()
        with monkeypatch.context() as patched:
            patched.setattr(mirror._compactor, "start", lambda _: False)
            for number in range(compaction.FAN):
                changes = [items.change("c", 20 + number, 1, after=row(1000 + number, "small"))]
                apply_to_both(mirror, changes, {TOPIC: {"0": number}})
        yield mirror


@pytest.mark.parametrize("damage", [Path.unlink, without_end])
def test_a_file_that_a_merge_cannot_read_parks_its_table(
    items: Batches,
    damage: Callable[[Path], None],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also if no batch follows."""
    with merge_due(items, monkeypatch) as mirror:
        names = [path.name for path in files_of(items)]
        damage(files_of(items)[-1])
        mirror.compact()
        parked = version_of(items).parked
        assert parked.keys() == {TOPIC}
        assert name_in(parked[TOPIC].reason) in names
        assert "public.items is parked" in caplog.text
        assert "tried again" not in caplog.text
        others = version_of(items).tables[OTHERS]
        assert len(others.files) + len(others.deltas) < compaction.FAN, "the other table is merged"
        apply_to_both(mirror, [items.change("c", 60, 1, after=row(2000, "later"))])
        assert row(2000, "later") in others_of(items)
        apply_to_both(mirror, copied(items, 70))
        assert mirrored(items.target) == [row(7, "copied")]
        assert not version_of(items).parked


@pytest.mark.parametrize("case", ["restored", "a change was left out", "not restored"])
def test_a_table_whose_files_are_restored_continues_if_nothing_was_left_out(
    items: Batches, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with merge_due(items, monkeypatch) as mirror:
        rows, lost = mirrored(items.target), files_of(items)[-1]
        away = lost.rename(items.target.with_name(lost.name))
        mirror.compact()
    with items.mirror() as mirror:
        mirror.publish_start()
        assert version_of(items).parked.keys() == {TOPIC}
        if case == "a change was left out":
            apply_to_both(mirror, [items.change("u", 60, 1, after=row(1, "x"))], {TOPIC: {"0": 60}})
    if case != "not restored":
        away.rename(lost)
    with items.mirror() as mirror:
        mirror.publish_start()
        assert version_of(items).parked.keys() == (set() if case == "restored" else {TOPIC})
        if case == "restored":
            assert mirrored(items.target) == rows
            apply_to_both(mirror, [items.change("u", 70, 1, after=row(1, "on"))], {TOPIC: {"0": 70}})
            mirror.compact()
            assert row(1, "on") in mirrored(items.target)


def failed_merge(items: Batches, mirror: MirrorBatches) -> None:
    """Have a merge that was not able to read a file, and of which no batch knows yet."""
    files_of(items)[-1].unlink()
    mirror._compactor.note([TOPIC])
    mirror._compactor.start({TOPIC: version_of(items).tables[TOPIC]})
    mirror._compactor.wait()
    assert mirror._compactor.has_result


def test_a_copy_in_the_batch_after_a_failed_merge_parks_nothing(
    items: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    with merge_due(items, monkeypatch) as mirror:
        failed_merge(items, mirror)
        apply_to_both(mirror, copied(items, 70))
        assert not version_of(items).parked
    assert mirrored(items.target) == [row(7, "copied")]


def test_a_merge_of_files_that_the_table_no_longer_has_parks_nothing(
    items: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    with merge_due(items, monkeypatch) as mirror:
        failed_merge(items, mirror)
        with monkeypatch.context() as patched:
            patched.setattr(mirror._compactor, "take", lambda _: {})
            apply_to_both(mirror, copied(items, 70))
        mirror.publish_merged()
        assert not version_of(items).parked
    assert mirrored(items.target) == [row(7, "copied")]


@pytest.mark.parametrize("table_format", OPEN)
def test_a_merge_of_a_table_that_is_not_opened_any_more_is_none(
    tmp_path: Path, table_format: TableFormat
) -> None:
    """A batch has parked the table between the choice of the merge and its beginning."""
    items = made(tmp_path / "mirror", table_format)
    with items.mirror() as mirror:
        mirror.publish_start()
        assert mirror._open is not None
        entry = version_of(items).tables[TOPIC]
        merge = Merge(TOPIC, entry.files, (), is_whole=True)
        for path in files_of(items):
            path.unlink()
        apply_to_both(mirror, [items.change("u", 20, 1, after=row(1, "changed"))])
        assert version_of(items).parked.keys() == {TOPIC}
        assert mirror._open.write(entry, merge, threading.Event()) is None


class _Failing:
    """Merges that fail with an error that is none of cdcd."""

    def next(self, topic: str, entry: TableEntry) -> Merge | None:
        return Merge(topic, (), (), is_whole=True)

    def write(self, entry: TableEntry, merge: Merge, stopping: threading.Event) -> MergeResult | None:
        raise KeyError(merge.topic)

    def discard(self, result: MergeResult) -> None:
        """Nothing is written."""


def test_no_error_of_a_merge_ends_the_mirror(caplog: pytest.LogCaptureFixture) -> None:
    compactor, tables = Compactor(_Failing()), {TOPIC: TableEntry(TOPIC)}
    compactor.note(tables)
    assert compactor.start(tables)
    compactor.wait()
    assert compactor.take(tables) == {}
    assert compactor.take_damaged() == {}
    assert f"{TOPIC}: its files could not be merged; this is tried again" in caplog.text


# --- the history ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", [Path.unlink, without_end])
def test_a_file_of_the_history_parks_no_table_and_a_new_history_can_begin(
    tmp_path: Path, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    """The rows are not in it; a reader of the history gets the error."""
    items = made(tmp_path / "mirror", "parquet", scd_type=2)
    with items.mirror() as mirror:
        (file,) = version_of(items).tables[TOPIC].history
        damage(items.target / file.path)
        for number in range(compaction.FAN):
            apply_to_both(mirror, [items.change("u", 20 + number, 1, after=row(1, f"{number}"))])
        mirror.compact()
        assert not version_of(items).parked
        assert f"{TOPIC}: its files could not be merged" in caplog.text
        assert file.path in caplog.text
        assert "drop-table --target TARGET" in caplog.text
        apply_to_both(mirror, [items.change("u", 40, 1, after=row(1, "later"))])
        assert row(1, "later") in mirrored(items.target)
    drop_table(items.target, "public.items")
    with items.mirror() as mirror:
        mirror.publish_start()
        apply_to_both(mirror, copied(items, 50))
        mirror.compact()
        assert mirrored(items.target) == [row(7, "copied")]
        entry = version_of(items).tables[TOPIC]
        assert file not in entry.history
        assert sum(
            read_history(open_storage(items.target), entry.shape(), one).num_rows for one in entry.history
        )


# --- removals -------------------------------------------------------------------------------------------------


def refused(*_: Any) -> Any:
    raise StorageError("access is refused")


def left_in(mirror: MirrorBatches) -> set[str]:
    """Return the files of rows that no version has, and that are not about to be removed."""
    paths, version = mirror._target.paths(), mirror.version
    rows = {path for path in paths if path.endswith(".parquet") and "_delta_log" not in path}
    return rows - version.files() - {path for path, _ in version.replaced}


def test_replaced_files_that_cannot_be_removed_end_and_delay_no_batch(
    items: Batches, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """They are removed later by the same mirror."""
    clock = SimpleNamespace(s=1000.0)
    monkeypatch.setattr(unneeded_files, "time", SimpleNamespace(monotonic=lambda: clock.s))
    items.retain_s = 0.0
    with items.mirror() as mirror:
        mirror.publish_start()
        with monkeypatch.context() as patched:
            patched.setattr(LocalStorage, "delete", refused)
            for number in range(4):
                apply_to_both(mirror, copied(items, 20 + number))
            assert caplog.text.count("could not be removed; this is tried again") == 1, "not in each batch"
        assert left_in(mirror)
        clock.s += unneeded_files.REMOVE_AGAIN_S + 1
        apply_to_both(mirror, copied(items, 40))
        assert not left_in(mirror)
    assert mirrored(items.target) == [row(7, "copied")]


@pytest.mark.parametrize("at_once", [1_000, 1])
def test_a_file_that_cannot_be_removed_keeps_no_other(
    items: Batches, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(s=1000.0)
    monkeypatch.setattr(unneeded_files, "time", SimpleNamespace(monotonic=lambda: clock.s))
    monkeypatch.setattr(unneeded_files, "AT_ONCE", at_once)
    items.retain_s = 0.0
    with items.mirror() as mirror:
        mirror.publish_start()
        stuck = files_of(items)
        apply_to_both(mirror, copied(items, 20))
        for one in stuck:
            one.unlink(missing_ok=True)
            one.mkdir()
            (one / "held").write_bytes(b"")
        for number in range(4):
            clock.s += unneeded_files.REMOVE_AGAIN_S + 1
            apply_to_both(mirror, copied(items, 30 + number))
        held = {path for path in left_in(mirror) if not path.endswith("/held")}
        assert not held - {one.relative_to(items.target).as_posix() for one in stuck}
    assert mirrored(items.target) == [row(7, "copied")]


@pytest.mark.parametrize("table_format", OPEN)
def test_a_start_that_reverts_a_table_with_a_missing_file_parks_only_this_table(
    tmp_path: Path, table_format: TableFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a crash between the commit of a table and the record of the mirror that names it."""
    items = made(tmp_path / "mirror", table_format)
    files = files_of(items)
    with items.mirror() as mirror:
        mirror.publish_start()
        with monkeypatch.context() as patched:
            patched.setattr(TargetWriter, "publish", refuse)
            with pytest.raises(OSError, match="denied"):
                apply_to_both(mirror, [items.change("u", 20, 1, after=row(1, "x"))])
    for one in files:
        one.unlink()
    with items.mirror() as mirror:
        mirror.publish_start()
        apply_to_both(mirror, [items.change("u", 20, 1, after=row(1, "x"))])
        assert version_of(items).parked.keys() == {TOPIC}
        apply_to_both(mirror, copied(items, 40))
    assert not version_of(items).parked
    assert mirrored(items.target) == [row(7, "copied")]


@pytest.mark.parametrize("is_older", [True, False])
@pytest.mark.parametrize("table_format", OPEN)
def test_a_folder_that_was_restored_as_it_was_before_stops_no_start(
    tmp_path: Path, table_format: TableFormat, is_older: bool
) -> None:
    items = made(tmp_path / "mirror", table_format)
    folder = items.target / version_of(items).folder_of(TOPIC)
    backup = shutil.copytree(folder, tmp_path / "backup")
    with items.mirror() as mirror:
        mirror.publish_start()
        apply_to_both(mirror, [items.change("u", 20, 1, after=row(1, "x"))])
        for one in files_of(items):
            one.unlink()
        apply_to_both(mirror, [items.change("u", 21, 1, after=row(1, "x"))])
    assert version_of(items).parked.keys() == {TOPIC}
    shutil.rmtree(folder)
    if is_older:
        shutil.copytree(backup, folder)
    with items.mirror() as mirror:
        mirror.publish_start()
        apply_to_both(mirror, copied(items, 40))
    assert not version_of(items).parked
    assert mirrored(items.target) == [row(7, "copied")]


def test_files_of_an_unused_fold_that_cannot_be_removed_end_no_batch(
    items: Batches, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The next start removes them."""
    unknown = [items.change("u", 30, 1, after=row(900 + n, "x"), unchanged=["body"]) for n in range(4)]
    with items.mirror() as mirror:
        mirror.publish_start()
        with monkeypatch.context() as patched:
            patched.setattr(LocalStorage, "delete", refused)
            apply_to_both(mirror, [*unknown, items.change("c", 30, 9, after=row(9, "y"))])
        assert left_in(mirror)
    assert version_of(items).parked.keys() == {TOPIC, OTHERS}
    assert "could not be removed; the next start" in caplog.text
    with items.mirror() as mirror:
        mirror.publish_start()
        sweep(open_storage(items.target), mirror._writer)
        assert not left_in(mirror)


def test_a_writer_that_was_taken_over_is_no_failed_removal(items: Batches, tmp_path: Path) -> None:
    items.retain_s = 0.0
    with items.mirror() as first:
        apply_to_both(first, copied(items, 20))
        with items.mirror() as second:
            apply_to_both(second, copied(items, 30))
            with pytest.raises(StorageConflict):
                apply_to_both(first, copied(items, 30))


@pytest.mark.parametrize("method", ["paths", "delete"])
def test_a_sweep_that_fails_stops_no_start(
    items: Batches, method: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    left = f"_data/{TOPIC}/delta-{'f' * 32}.parquet"
    (items.target / left).parent.mkdir(parents=True, exist_ok=True)
    (items.target / left).write_bytes(b"left")
    with items.mirror() as mirror:
        with monkeypatch.context() as patched:
            patched.setattr(LocalStorage, method, refused)
            sweep(open_storage(items.target), mirror._writer)
        assert "could not be removed; the next start" in caplog.text
        assert (items.target / left).exists()
        sweep(open_storage(items.target), mirror._writer)
        assert not (items.target / left).exists()
        with items.mirror(), pytest.raises(StorageConflict):
            sweep(open_storage(items.target), mirror._writer)
