"""A table's files while a mirror changes it: few of them, none removed under a reader, none for a plain reader."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.dataset as ds
import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from cdcd.errors import StorageError
from cdcd.spark.mirroring.batches import MirrorBatches
from cdcd.spark.mirroring.records import RecordsOnDriver
from cdcd.spark.reading.mirror import read_mirror
from cdcd.spark.source.cuts import with_loading
from cdcd.spark.storage.uri import open_storage
from cdcd.spark.tables import compaction
from cdcd.spark.tables.compaction import (
    FAN,
    PAUSE_S,
    Compactor,
    FileMerges,
    Merge,
    MergeResult,
    with_merged,
    write_merge,
)
from cdcd.spark.target.commit_log import read_latest
from cdcd.spark.target.target_writer import TargetWriter
from cdcd.spark.target.versions import Parked, TableEntry
from tests.spark.batches import TOPIC, Batches, Record, records_table
from tests.spark.events import column

FIELDS = [column("id", "int", required=True), column("body", "string")]


def _row(number: int, body: str) -> dict[str, object]:
    return {"id": number, "body": body}


@pytest.fixture
def items(tmp_path: Path) -> Batches:
    """Return a table with 100 rows in base files."""
    batches = Batches(tmp_path / "mirror", FIELDS)
    batches.run([_copied(batches, number) for number in range(100)], loading=False)
    return batches


def _copied(batches: Batches, number: int) -> Record:
    return batches.change("r", 10, number + 1, after=_row(number, "first"))


def _entry(items: Batches) -> TableEntry:
    found = read_latest(items.target)
    assert found is not None
    return found.tables[TOPIC]


def _updated(items: Batches, batch: int) -> list[dict[str, Any]]:
    change = items.change("u", 20 + batch, 1, after=_row(batch % 50, f"batch {batch}"))
    gone = items.change("d", 20 + batch, 2, before=_row(99 - batch, ""))
    return items.run([change, gone], loading=False)


def test_a_small_batch_writes_what_it_changes(items: Batches) -> None:
    before = _entry(items)
    rows = _updated(items, 1)
    after = _entry(items)
    assert after.files == before.files
    assert [one.rows for one in after.deltas] == [2]
    assert len(rows) == 99
    assert rows[1] == _row(1, "batch 1")


def test_the_files_remain_few(items: Batches) -> None:
    """Whatever the number of batches: `Batches` makes a mirror of its own for each."""
    target = open_storage(str(items.target))
    for batch in range(3 * FAN):
        rows = _updated(items, batch)
        entry = _entry(items)
        while merge := compaction.next_merge(TOPIC, entry):
            changed = with_merged(entry, write_merge(target, entry, merge, threading.Event()))
            assert changed is not None
            entry = changed
        assert len(entry.deltas) < 2 * FAN
        opened = read_latest(items.target)
        assert opened is not None
        TargetWriter(target, opened).publish(replace(opened, tables={TOPIC: entry}))
        assert items.rows() == rows
    assert len(rows) == 100 - 3 * FAN
    assert len(_entry(items).deltas) < FAN


@pytest.mark.parametrize("is_whole", [False, True])
def test_a_merge_of_files_that_are_gone_changes_nothing(items: Batches, is_whole: bool) -> None:
    """A TRUNCATE comes while it runs; and what is appended meanwhile remains."""
    for batch in range(FAN):
        _updated(items, batch)
    entry, target = _entry(items), open_storage(str(items.target))
    merge = Merge(TOPIC, entry.files if is_whole else (), entry.deltas, is_whole=is_whole)
    rows = _updated(items, FAN)
    result = write_merge(target, entry, merge, threading.Event())
    appended = _entry(items)
    changed = with_merged(appended, result)
    assert changed is not None
    assert changed.deltas[-1] == appended.deltas[-1]
    assert len(changed.deltas) == (1 if is_whole else 2)
    opened = read_latest(items.target)
    assert opened is not None
    TargetWriter(target, opened).publish(replace(opened, tables={TOPIC: changed}))
    assert items.rows() == rows
    items.run([items.change("t", 90, 1)], loading=False)
    assert with_merged(_entry(items), result) is None


def test_a_stopped_merge_leaves_no_file(items: Batches) -> None:
    for batch in range(FAN):
        _updated(items, batch)
    entry, target = _entry(items), open_storage(str(items.target))
    paths = sorted(target.paths())
    stopping = threading.Event()
    stopping.set()
    with pytest.raises(compaction.MergeStopped):
        write_merge(target, entry, Merge(TOPIC, entry.files, entry.deltas, is_whole=True), stopping)
    compactor = Compactor(FileMerges(target))
    compactor.note([TOPIC])
    assert compactor.start({TOPIC: entry})
    compactor.wait()
    compactor.close()
    assert sorted(target.paths()) == paths


def test_an_outdated_merge_removes_its_file_and_the_next_one_begins(items: Batches) -> None:
    for batch in range(FAN):
        _updated(items, batch)
    entry, target = _entry(items), open_storage(str(items.target))
    paths = sorted(target.paths())
    compactor = Compactor(FileMerges(target))
    compactor.note([TOPIC])
    assert compactor.start({TOPIC: entry})
    compactor.wait()
    assert compactor.take({TOPIC: TableEntry(TOPIC)}) == {}
    assert sorted(target.paths()) == paths
    assert compactor.start({TOPIC: entry})
    compactor.wait()
    (changed,) = compactor.take({TOPIC: entry}).values()
    assert len(changed.deltas) < len(entry.deltas)
    assert not compactor.start({TOPIC: changed})
    compactor.close()


def test_no_merge_of_a_parked_table_begins(items: Batches) -> None:
    for batch in range(FAN):
        _updated(items, batch)
    entry = _entry(items)
    parked = replace(entry, parked=Parked("CDCD-TABLE-LOG", "", 0, 0.0))
    compactor = Compactor(FileMerges(open_storage(str(items.target))))
    compactor.note([TOPIC])
    assert not compactor.start({TOPIC: parked})
    compactor.note([TOPIC])
    assert compactor.start({TOPIC: entry})
    compactor.close()


def test_the_history_of_a_parked_table_is_cut(items: Batches) -> None:
    """The retention of a history holds for each table."""

    class Cuts(FileMerges):
        def next(self, topic: str, entry: TableEntry) -> Merge | None:
            return Merge(topic, (), (), is_whole=False, history=entry.files, is_cut=True)

        def write(self, entry: TableEntry, merge: Merge, stopping: threading.Event) -> MergeResult:
            return MergeResult(merge, (), ())

    compactor = Compactor(Cuts(open_storage(str(items.target))))
    compactor.note([TOPIC])
    assert compactor.start({TOPIC: replace(_entry(items), parked=Parked("CDCD-GAP", "", 0, 0.0))})
    compactor.close()


def test_a_reader_has_its_files_while_the_version_is_retained(items: Batches) -> None:
    opened = read_mirror(str(items.target))
    before = opened.table(TOPIC)
    items.run([items.change("t", 20, 1)], loading=False)
    for batch in range(5):
        items.run([items.change("c", 30 + batch, 1, after=_row(batch, "new"))], loading=False)
    assert opened.table(TOPIC).equals(before)
    items.retain_s = -1.0
    items.run([items.change("c", 40, 1, after=_row(9, "new"))], loading=False)
    with pytest.raises(StorageError, match="open the mirror again"):
        opened.table(TOPIC)


def test_a_plain_reader_finds_no_rows(items: Batches, spark: SparkSession) -> None:
    """It would count the replaced ones, too."""
    _updated(items, 1)
    for folder in (items.target, items.target / TOPIC):
        with pytest.raises((PySparkException, Py4JError)):
            spark.read.parquet(str(folder)).count()
    found = ds.dataset(items.target, format="parquet", exclude_invalid_files=True)
    assert found.files == []


def _apply(mirror: MirrorBatches, records: list[Record]) -> None:
    mirror.apply(RecordsOnDriver(records_table(records)), with_loading({}, frozenset()))


def test_a_merge_that_fails_is_begun_again_after_a_pause_and_the_batches_go_on(
    items: Batches, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A delta cannot be read for a time. No batch needs it: each row is sent whole."""
    now = SimpleNamespace(s=1000.0)
    monkeypatch.setattr(compaction, "time", SimpleNamespace(monotonic=lambda: now.s))
    expected = dict.fromkeys(range(100), "first")

    def batch(number: int) -> list[Record]:
        expected[number % 50] = f"batch {number}"
        return [items.change("u", 20 + number, 1, after=_row(number % 50, f"batch {number}"))]

    with items.mirror() as mirror:
        for number in range(FAN - 1):
            _apply(mirror, batch(number))
        (path, *_) = (items.target / one.path for one in _entry(items).deltas)
        away = path.rename(path.with_name("away"))
        _apply(mirror, batch(FAN))
        mirror._compactor.wait()
        for number in range(FAN + 1, FAN + 4):
            _apply(mirror, batch(number))
            mirror._compactor.wait()
        assert caplog.text.count("could not be merged") == 1, "no merge is begun during the pause"
        assert len(_entry(items).deltas) == FAN + 3

        now.s += PAUSE_S + 1
        _apply(mirror, batch(FAN + 4))  # tried again, while the file is still away
        mirror._compactor.wait()
        mirror.publish_merged()  # no batch follows that would name the table
        assert caplog.text.count("could not be merged") == 2
        away.rename(path)
        now.s += PAUSE_S + 1
        mirror.compact()
        assert len(_entry(items).deltas) < FAN
    assert items.rows() == [_row(number, body) for number, body in sorted(expected.items())]
