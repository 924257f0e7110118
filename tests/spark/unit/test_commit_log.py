"""The commit log of a target: what is published is what is read, by its number, its LSN and its time."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from cdcd.errors import SparkReadError, StorageConflict, StorageError
from cdcd.spark.decoding.events import Sequence
from cdcd.spark.mirroring.dropped_tables import drop_table
from cdcd.spark.storage.uri import Storage, open_storage
from cdcd.spark.target import commit_log, target_writer
from cdcd.spark.target.commit_log import (
    LATEST,
    find_version,
    newer_versions,
    path_of,
    read_latest,
    read_version,
)
from cdcd.spark.target.left_files import sweep
from cdcd.spark.target.shape import Field
from cdcd.spark.target.target_writer import RECORDS_PER_BASE, TargetWriter, take_over
from cdcd.spark.target.versions import BucketFile, Parked, TableEntry, TargetVersion
from tests.support.nightly import nightly_except

RETAIN_S = 100.0
TOPICS = [f"shop.public.t{number}" for number in range(5)]


@dataclass
class Clock:
    now_s: float = 1_000_000.0

    def time(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    clock = Clock()
    monkeypatch.setattr(target_writer.time, "time", clock.time)
    return clock


@dataclass
class Published:
    """A target with what was published there."""

    target: Path
    writer: TargetWriter
    random: random.Random
    versions: list[TargetVersion] = field(default_factory=list)
    files: int = 0

    def publish(self) -> TargetVersion:
        now = self.writer.version
        assert now is not None
        tables = dict(now.tables)
        for topic in self.random.sample(TOPICS, self.random.randrange(3)):
            if self.random.random() < 0.2:
                tables.pop(topic, None)
            else:
                tables[topic] = self._changed(tables.get(topic, TableEntry(topic)))
        offsets = {topic: {"0": self.files + 1} for topic in tables}
        lsn = now.commit_lsn + self.random.randrange(3)
        version = replace(
            now, tables=tables, offsets=offsets, commit_lsn=lsn, end_lsn=lsn + 1, commit_us=lsn * 1000
        )
        self.versions.append(self.writer.publish(version))
        return self.versions[-1]

    def _changed(self, entry: TableEntry) -> TableEntry:
        self.files += 1
        path = f"_data/{entry.topic}/delta-{self.files:032x}.parquet"
        open_storage(self.target).write(path, b"rows")
        file = BucketFile(-1, path, 1, (1, 2))
        deltas = (file,) if self.random.random() < 0.3 else (*entry.deltas, file)
        fields = (Field(1, "id", "id", "int"), Field(2, "v", "v", ["null", "string"], is_later=True))
        return replace(entry, keyed=True, fields=fields, deltas=deltas, applied=Sequence(1, self.files, 1, 0))


def _published(target: Path, seed: object) -> Published:
    writer = take_over(target, TargetVersion("shop", 4, cluster="A", retain_s=RETAIN_S))
    assert writer.version is not None
    return Published(target, writer, random.Random(str(seed)), [writer.version])


@pytest.mark.parametrize("seed", nightly_except(range(8), 1))
def test_each_retained_version_is_read_as_it_was_published(seed: int, tmp_path: Path, clock: Clock) -> None:
    """Also over complete records, and starts of the writer."""
    log = _published(tmp_path, seed)
    for number in range(150):
        clock.now_s += log.random.choice([0.1, 1.0, 5.0])
        if log.random.random() < 0.05:
            log.writer = take_over(tmp_path, read_latest(tmp_path) or log.versions[-1])
            assert log.writer.version is not None
            log.versions.append(log.writer.version)
        log.publish()
        if number % 10:
            continue
        assert _bare(read_latest(tmp_path)) == _bare(log.versions[-1])
        ended = [one.published_s for one in log.versions[1:]] + [clock.now_s]
        retained = [
            one for one, until_s in zip(log.versions, ended, strict=True) if until_s >= clock.now_s - RETAIN_S
        ]
        assert len(retained) > 1
        for one in (retained[0], log.random.choice(retained)):
            found = read_version(tmp_path, one.number)
            assert _bare(found) == _bare(one)
            assert all((tmp_path / path).exists() for path in found.files())
            later = [_bare(each) for each in newer_versions(tmp_path, found)]
            assert later == [_bare(each) for each in log.versions if each.number > one.number]
        if retained[0].number > 1:
            with pytest.raises(SparkReadError, match=r"not retained.* oldest_lsn=\w+/\w+"):
                read_version(tmp_path, retained[0].number - 1)
    records = [path for path in open_storage(tmp_path).paths("_cdcd") if path != LATEST]
    assert len(records) < len(log.versions), "old records are removed"


def _bare(version: TargetVersion | None) -> Any:
    """A reader need not know which replaced files are removed already."""
    assert version is not None
    return replace(version, replaced=())


@pytest.mark.parametrize("seed", nightly_except(range(4), 0))
def test_a_version_is_found_by_its_lsn_and_its_time(seed: int, tmp_path: Path, clock: Clock) -> None:
    log = _published(tmp_path, seed)
    for _ in range(200):
        clock.now_s += 0.1
        log.publish()
    for _ in range(20):
        lsn = log.random.randrange(1, log.versions[-1].end_lsn + 1)
        assert find_version(tmp_path, lsn=lsn).number == next(
            one.number for one in log.versions if one.end_lsn >= lsn
        )
        time_us = log.random.randrange(log.versions[-1].commit_us + 1)
        expected = [one for one in log.versions if one.commit_us <= time_us][-1]
        if expected.commit_us:
            assert find_version(tmp_path, time_us=time_us).number == expected.number
            continue
        with pytest.raises(SparkReadError, match="does not know what was committed"):
            find_version(tmp_path, time_us=time_us)
    with pytest.raises(SparkReadError, match=r"not reached this LSN.* lsn=\w+/\w+"):
        find_version(tmp_path, lsn=log.versions[-1].end_lsn + 1)
    clock.now_s += 10 * RETAIN_S
    log.publish()
    for by in ({"lsn": 1}, {"time_us": 0}):
        with pytest.raises(SparkReadError, match=r"not retained.* oldest_lsn=\w+/\w+"):
            find_version(tmp_path, **by)


def test_a_reader_opens_few_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = _published(tmp_path, 0)
    for _ in range(5 * RECORDS_PER_BASE):
        log.publish()
    opened = []
    real = commit_log.version_after
    monkeypatch.setattr(
        commit_log, "version_after", lambda *one, **more: opened.append(1) or real(*one, **more)
    )
    read_latest(tmp_path)
    assert len(opened) <= RECORDS_PER_BASE


def test_the_size_of_a_record_follows_what_it_changes(tmp_path: Path) -> None:
    entries = {f"t{number}": TableEntry(f"t{number}") for number in range(1000)}
    offsets = {topic: {"0": 1} for topic in entries}
    writer = take_over(tmp_path, TargetVersion("shop", 4, tables=entries, offsets=offsets))
    version = writer.version
    assert version is not None
    changed = {**entries, "t7": replace(entries["t7"], keyed=True)}
    published = writer.publish(replace(version, tables=changed, offsets={**offsets, "t7": {"0": 2}}))
    assert (tmp_path / path_of(published.number)).stat().st_size < 2000
    assert read_latest(tmp_path) == published


def test_a_crash_after_the_record_of_a_start_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = _published(tmp_path, 1)
    log.publish()
    with monkeypatch.context() as patched:
        patched.setattr(TargetWriter, "_write_latest", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            take_over(tmp_path, log.versions[-1])
    found = read_latest(tmp_path)
    assert found is not None
    assert found.number == log.versions[-1].number + 1
    with pytest.raises(StorageConflict):
        log.publish()
    assert take_over(tmp_path, found).version is not None


@pytest.mark.parametrize("pause_s", [RETAIN_S / 4, 10 * RETAIN_S])
def test_a_writer_that_slept_while_another_took_over_publishes_and_removes_nothing(
    pause_s: float, tmp_path: Path, clock: Clock
) -> None:
    """F80: even if the records after its own are removed by then."""
    log = _published(tmp_path, 2)
    for _ in range(5):
        log.publish()
    slept = log.writer
    log.writer = take_over(tmp_path, log.versions[-1])
    for _ in range(200):
        clock.now_s += pause_s / 100
        last = log.publish()
    assert slept.version is not None
    assert (tmp_path / path_of(slept.version.number + 1)).exists() is (pause_s < RETAIN_S)
    with pytest.raises(StorageConflict, match="another mirror has taken over"):
        slept.publish(slept.version)
    assert _bare(read_latest(tmp_path)) == _bare(last)
    assert all((tmp_path / path).exists() for path in last.files())


def test_a_start_that_was_taken_over_removes_nothing_of_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F80: the other one takes over, and writes a file that no version names yet, at any moment of the sweep."""
    log = _published(tmp_path, 5)
    log.publish()
    storage = open_storage(tmp_path)
    path = f"_data/{TOPICS[0]}/delta-{'e' * 32}.parquet"
    real = type(storage).paths

    def paths(self: Storage, prefix: str = "") -> Iterator[str]:
        yield from [*real(self, prefix)]
        if log.writer is first:
            log.writer = take_over(tmp_path, log.versions[-1])
            storage.write(path, b"rows")

    first = log.writer
    with monkeypatch.context() as patched:
        patched.setattr(type(storage), "paths", paths)
        with pytest.raises(StorageConflict, match="another mirror has taken over"):
            sweep(tmp_path, first)
    assert storage.exists(path)
    sweep(tmp_path, log.writer)
    assert not storage.exists(path)


def test_the_versions_after_one_that_is_not_retained_any_more_are_an_error(
    tmp_path: Path, clock: Clock
) -> None:
    log = _published(tmp_path, 6)
    for _ in range(3):
        log.publish()
    stale = log.versions[1]
    for _ in range(200):
        clock.now_s += RETAIN_S / 20
        log.publish()
    assert not (tmp_path / path_of(stale.number + 1)).exists()
    with pytest.raises(SparkReadError, match="not retained"):
        [*newer_versions(tmp_path, stale)]


def test_a_pause_expires_nothing_and_a_longer_time_brings_nothing_back(tmp_path: Path, clock: Clock) -> None:
    log = _published(tmp_path, 7)
    for _ in range(3):
        clock.now_s += 1
        log.publish()
    clock.now_s += 10 * RETAIN_S
    assert read_version(tmp_path, 2) == log.versions[1]
    assert find_version(tmp_path, lsn=log.versions[2].end_lsn).end_lsn == log.versions[2].end_lsn
    clock.now_s += 1
    log.publish()
    assert log.writer.version is not None
    longer = replace(log.writer.version, retain_s=1000 * RETAIN_S)
    log.versions.append(log.writer.publish(longer))
    with pytest.raises(SparkReadError, match=r"not retained.* oldest_lsn=\w+/\w+"):
        read_version(tmp_path, 2)


@pytest.mark.parametrize("most", [100_000, 2])
def test_a_start_and_a_dropped_table_remove_no_file(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """A table in an open format may name it, until the mirror has changed that; also if there are too many."""
    log = _published(tmp_path, 10)
    for _ in range(10):
        clock.now_s += 1
        log.publish()
    before = {*open_storage(tmp_path).paths()}
    clock.now_s += 10 * RETAIN_S
    assert len(log.versions[-1].replaced) > 2
    monkeypatch.setattr(target_writer, "MOST_REPLACED", most)
    log.writer = take_over(tmp_path, log.versions[-1])
    assert log.writer.version is not None
    topic = next(iter(log.writer.version.tables))
    drop_table(tmp_path, topic.removeprefix("shop."))
    assert before <= {*open_storage(tmp_path).paths()}
    found = read_latest(tmp_path)
    assert found is not None
    TargetWriter(tmp_path, found).publish(found)
    assert not before <= {*open_storage(tmp_path).paths()}


def test_a_sweep_leaves_the_rows_of_an_open_table_for_the_retention(tmp_path: Path, clock: Clock) -> None:
    """Once: another start does not put it off."""
    entry = TableEntry(TOPICS[0], keyed=True, table_version=0)
    version = TargetVersion("shop", 4, tables={entry.topic: entry}, table_format="delta", retain_s=RETAIN_S)
    writer = take_over(tmp_path, version)
    left = f"public.t0/part-{'f' * 32}.parquet"
    open_storage(tmp_path).write(left, b"rows")
    for _ in range(3):
        sweep(tmp_path, writer)
        assert writer.version is not None
        assert [path for path, _ in writer.version.replaced] == [left]
        clock.now_s += 0.4 * RETAIN_S
        writer = take_over(tmp_path, writer.version)
    assert open_storage(tmp_path).exists(left)
    assert writer.version is not None
    writer.publish(writer.version)
    assert not open_storage(tmp_path).exists(left)


def test_replaced_files_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    """A complete record has them all."""
    monkeypatch.setattr(target_writer, "MOST_REPLACED", 20)
    log = _published(tmp_path, 8)
    for _ in range(150):
        clock.now_s += 0.1
        last = log.publish()
        assert len(last.replaced) < 50
    found = read_latest(tmp_path)
    assert found is not None
    oldest = next(one for one in log.versions if one.published_s >= found.retained_from_s)
    assert all((tmp_path / path).exists() for path in read_version(tmp_path, oldest.number).files())


@pytest.mark.parametrize("is_taken", [False, True])
def test_a_failed_replacement_of_the_number_is_a_conflict_only_if_another_has_replaced_it(
    is_taken: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = _published(tmp_path, 9)

    def fail(self: Storage, path: str, data: bytes, version: object) -> None:
        if is_taken:
            self.write(path, b'{"number": 99}')
        raise StorageError("no answer")

    monkeypatch.setattr(type(open_storage(tmp_path)), "replace", fail)
    with pytest.raises(StorageError) as raised:
        take_over(tmp_path, log.versions[-1])
    assert isinstance(raised.value, StorageConflict) is is_taken


def test_each_record_is_json_for_every_reader(tmp_path: Path, clock: Clock) -> None:
    """JSON has no infinite numbers, which Python writes and reads all the same."""
    log = _published(tmp_path, 11)
    log.publish()
    log.writer = take_over(tmp_path, log.versions[-1])
    drop_table(tmp_path, next(iter(log.versions[-1].tables)).removeprefix("shop."))
    records = [path for path in open_storage(tmp_path).paths("_cdcd") if path != LATEST]
    assert len(records) == 4
    for path in records:
        json.loads((tmp_path / path).read_bytes(), parse_constant=pytest.fail)


def test_a_missing_record_is_an_error(tmp_path: Path) -> None:
    log = _published(tmp_path, 3)
    (tmp_path / path_of(log.versions[0].number)).unlink()
    with pytest.raises(SparkReadError, match="a record of the target is missing"):
        read_latest(tmp_path)


def test_a_target_of_an_earlier_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(SparkReadError, match=r"earlier version of cdcd.*empty target"):
        read_latest(tmp_path)


def test_a_sweep_keeps_all_that_is_retained(tmp_path: Path, clock: Clock) -> None:
    log = _published(tmp_path, 4)
    for _ in range(100):
        clock.now_s += 2
        log.publish()
    before = {*open_storage(tmp_path).paths()}
    sweep(tmp_path)
    assert {*open_storage(tmp_path).paths()} == before
    left = [f"_data/{TOPICS[0]}/delta-{'f' * 32}.parquet", path_of(log.versions[-1].number + 2)]
    for path in left:
        open_storage(tmp_path).write(path, b"")
    sweep(tmp_path)
    assert {*open_storage(tmp_path).paths()} == before


def test_records_without_the_file_that_names_the_newest_are_no_empty_target(
    tmp_path: Path, clock: Clock
) -> None:
    """A mirror that began anew there would remove the files of all tables, whose rows Kafka may not have any more."""
    log = _published(tmp_path, "lost")
    for _ in range(3 * RECORDS_PER_BASE):
        clock.now_s += RETAIN_S / 10
        last = log.publish()
    assert not (tmp_path / path_of(1)).exists()
    before = {*tmp_path.rglob("*")} - {tmp_path / LATEST}
    (tmp_path / LATEST).unlink()
    with pytest.raises(SparkReadError, match="the file that names the newest one is missing") as raised:
        read_latest(tmp_path)
    with pytest.raises(SparkReadError):
        sweep(tmp_path)
    assert {*tmp_path.rglob("*")} == before
    newest = f'{{"number": {last.base}}}'
    assert newest in str(raised.value)
    (tmp_path / LATEST).write_text(newest)
    assert _bare(read_latest(tmp_path)) == _bare(last)


@pytest.mark.parametrize("written_as", [6, 7, 8, 9, 10])
def test_a_record_of_an_earlier_format_is_read(tmp_path: Path, written_as: int) -> None:
    """They have less of a table, and format 6 has another name for the version of a Delta table."""
    storage = open_storage(str(tmp_path))
    parked = Parked("CDCD-GAP", "a gap", 7, 1.5)
    file = BucketFile(0, "_data/base.parquet", 3, (1,))
    fields = (Field(1, "id", "id", "int"),)
    entry = TableEntry(TOPICS[0], keyed=True, files=(file,), fields=fields, table_version=3, parked=parked)
    written = TargetVersion("shop", 4, table_format="delta", tables={TOPICS[0]: entry})
    published = TargetWriter(storage, None).publish(written)
    record = json.loads((tmp_path / path_of(1)).read_text())
    assert record["format"] == 11
    record["format"] = written_as
    table = record["tables"][TOPICS[0]]
    del table["fields"][0]["retained"]
    if written_as < 10:
        del table["files"][0]["from_key"]
    if written_as < 9:
        del record["positions"], record["left"]
    if written_as < 8:
        del table["cleaned"], table["parked"]["offsets"]
    if written_as == 6:
        table["delta_version"] = table.pop("table_version")
    (tmp_path / path_of(1)).write_text(json.dumps(record))
    assert read_latest(storage) == published


@pytest.mark.parametrize("written_as", [5, 12])
def test_a_record_of_another_format_is_refused(tmp_path: Path, written_as: int) -> None:
    storage = open_storage(str(tmp_path))
    TargetWriter(storage, None).publish(TargetVersion("shop", 4))
    record = json.loads((tmp_path / path_of(1)).read_text())
    (tmp_path / path_of(1)).write_text(json.dumps(record | {"format": written_as, "of_that_one": 1}))
    with pytest.raises(SparkReadError, match=f"unknown format.*format={written_as}.*newer version of cdcd"):
        read_latest(storage)


def test_where_the_records_of_a_parked_table_end_is_in_its_record(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    parked = Parked("CDCD-GAP", "a gap", 7, 1.5, {"0": 12})
    entry = TableEntry(TOPICS[0], parked=parked, cleaned=5)
    published = TargetWriter(storage, None).publish(TargetVersion("shop", 4, tables={TOPICS[0]: entry}))
    assert read_latest(storage) == published
    assert published.parked == {TOPICS[0]: parked}


NOT_RECORDS: dict[str, Callable[[dict[str, Any]], bytes]] = {
    "nested deep": lambda record: b"[" * 100_000,
    "a path that is a number": lambda record: _with(record, "deltas", "path", 5),
    "a path that is null": lambda record: _with(record, "deltas", "path", None),
    "a key that is a number": lambda record: _with(record, "deltas", "from_key", 5),
    "a key that is not hexadecimal": lambda record: _with(record, "deltas", "from_key", "0x"),
    "a name that is a number": lambda record: _with(record, "fields", "name", 7),
    "an Avro name that is a number": lambda record: _with(record, "fields", "avro_name", 7),
}


def _with(record: dict[str, Any], part: str, name: str, value: object) -> bytes:
    for table in record["tables"].values():
        table[part][0][name] = value
    return json.dumps(record).encode()


@pytest.mark.parametrize("name", NOT_RECORDS)
def test_a_record_with_values_of_other_types_is_an_error_of_the_target(tmp_path: Path, name: str) -> None:
    log = _published(tmp_path, 1)
    while not log.versions[-1].tables:
        log.publish()
    path = tmp_path / path_of(log.versions[-1].number)
    path.write_bytes(NOT_RECORDS[name](json.loads(path.read_bytes())))
    with pytest.raises(SparkReadError, match="a record of the target"):
        read_latest(tmp_path)


@pytest.mark.parametrize("data", [b'{"number": Infinity}', b"[" * 1024, b'{"number": 1e400}'])
def test_the_number_of_the_newest_record_is_a_number(tmp_path: Path, data: bytes) -> None:
    _published(tmp_path, 1)
    (tmp_path / LATEST).write_bytes(data)
    with pytest.raises(SparkReadError, match="a file of the target is not readable"):
        read_latest(tmp_path)
