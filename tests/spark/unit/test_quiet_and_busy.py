"""What a mirror does besides its batches: with none at all, and while they come without a pause."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from cdcd.errors import RegistryUnavailable
from cdcd.spark.clients.connection import Connection
from cdcd.spark.mirroring import batches as mirror_batches
from cdcd.spark.mirroring import empty_tables
from cdcd.spark.mirroring import session as mirror_session
from cdcd.spark.mirroring.batch_source import MirrorSource
from cdcd.spark.mirroring.metrics import MirrorMetrics
from cdcd.spark.mirroring.records import Records, RecordsOnDriver
from cdcd.spark.mirroring.retries import Retries
from cdcd.spark.mirroring.session import MirrorSessions, MirrorSettings
from cdcd.spark.reading.mirror import read_mirror, wait
from cdcd.spark.source.cuts import with_loading
from cdcd.spark.target.versions import TableEntry
from tests.spark.batches import TOPIC, Batches, records_table
from tests.spark.events import column
from tests.support.planned import PREFIX, Planned, PlannedTopic, T, U

FIELDS = [column("id", "int", required=True), column("name", "string")]


class _Source(MirrorSource):
    """The batches of the planned Kafka, which have no records of a table."""

    def records(self, _buckets: int) -> Records:
        return RecordsOnDriver(records_table([]))


@pytest.fixture
def kafka(kafka: Planned, monkeypatch: pytest.MonkeyPatch) -> Planned:
    kafka.topics = {T: PlannedTopic("t", 0), U: PlannedTopic("u", 0)}
    kafka.id = lambda: "A"  # type: ignore[attr-defined]
    monkeypatch.setattr(mirror_session, "Cluster", lambda *_: kafka)
    monkeypatch.setattr(mirror_session, "MirrorSource", _Source)
    monkeypatch.setattr(mirror_session, "access_of", lambda _: None)
    monkeypatch.setattr(empty_tables, "described", lambda _, topic: TableEntry(topic, keyed=True))
    return kafka


def sessions(target: Path, interval_s: float | None = None) -> MirrorSessions:
    settings = MirrorSettings(
        Connection("127.0.0.1:1", PREFIX),
        str(target),
        None,
        {"maxRows": "1"},
        interval_s,
        buckets=4,
        driver_bytes=1 << 20,
        accept_gaps=False,
        accept_cluster=False,
        on_error="fail",
        retain_s=600,
    )
    return MirrorSessions(None, settings, MirrorMetrics(with_process=False), Retries(0))  # type: ignore[arg-type]


def run(target: Path) -> None:
    """Run a mirror that ends at the newest commit."""
    made = sessions(target)
    made.run(made.open(), threading.Event())


def test_a_mirror_that_ends_at_the_newest_commit_has_the_position_of_an_idle_stream(
    kafka: Planned, tmp_path: Path
) -> None:
    """Also directly after another version, and after a failover."""
    kafka.topics[T].end = 1
    kafka.progress(1000, {T: 1})
    run(tmp_path)
    kafka.progress(1000, {}, end_lsn=2008)
    run(tmp_path)
    assert wait(tmp_path, 2000, timeout_s=0).end_lsn == 2008
    assert read_mirror(tmp_path).commit_time is not None
    kafka.progress(1000, {}, end_lsn=1900, timeline=2, began_lsn=1800)
    run(tmp_path)
    assert wait(tmp_path, 1900, timeline=2, timeout_s=0).reached_lsn("s") == 1900
    number = read_mirror(tmp_path).version.number
    run(tmp_path)
    assert read_mirror(tmp_path).version.number == number + 1, "only that of the new writer"


def test_it_has_the_tables_without_rows_if_there_are_no_others(kafka: Planned, tmp_path: Path) -> None:
    kafka.progress(1000, {})
    run(tmp_path)
    assert read_mirror(tmp_path).topics == [T, U]


@pytest.mark.parametrize("is_loading", [False, True])
def test_a_busy_mirror_gets_tables_without_rows_unless_one_is_copied(
    kafka: Planned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_loading: bool
) -> None:
    """There is a new commit before each batch is applied, so the mirror is never idle."""
    monkeypatch.setattr(mirror_session, "LOOK_FOR_EMPTY_S", -1.0)
    stopping, lsns = threading.Event(), iter(range(100, 106))

    class Busy(_Source):
        def advance(self) -> bool:
            if (lsn := next(lsns, None)) is None:
                stopping.set()
                return True
            kafka.topics[T].end = lsn
            kafka.progress(lsn, {T: lsn}, loading=[T] if is_loading else [])
            return super().advance()

    monkeypatch.setattr(mirror_session, "MirrorSource", Busy)
    made = sessions(tmp_path, interval_s=0.0)
    made.run(made.open(), stopping)
    assert read_mirror(tmp_path).topics == ([] if is_loading else [U])


def test_a_registry_that_does_not_answer_delays_no_batch(
    kafka: Planned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Only the search for tables without rows asks it; a mirror without a backlog ends with its error."""
    monkeypatch.setattr(mirror_session, "LOOK_FOR_EMPTY_S", -1.0)

    def described(*_: object) -> TableEntry:
        raise RegistryUnavailable("no answer")

    monkeypatch.setattr(empty_tables, "described", described)
    lsns = iter(range(100, 106))

    class Busy(_Source):
        def advance(self) -> bool:
            if (lsn := next(lsns, None)) is not None:
                kafka.topics[T].end = lsn
                kafka.progress(lsn, {T: lsn})
            return super().advance()

    monkeypatch.setattr(mirror_session, "MirrorSource", Busy)
    made = sessions(tmp_path, interval_s=0.0)
    with pytest.raises(RegistryUnavailable):
        made.run(made.open(), threading.Event())
    assert read_mirror(tmp_path).version.offsets[T] == {"0": 105}
    assert "is tried again" in caplog.text


def test_a_mirror_that_is_behind_looks_for_none(
    kafka: Planned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []
    monkeypatch.setattr(mirror_session, "LOOK_FOR_EMPTY_S", -1.0)
    monkeypatch.setattr(empty_tables.EmptyTables, "look", lambda *_: looks.append(len(kafka.log)) or [])
    for lsn in range(100, 110):
        kafka.progress(lsn, {T: lsn})
    kafka.topics[T].end = 109
    made = sessions(tmp_path)
    made.run(made.open(), threading.Event())
    assert len(looks) <= 4, "one at the open, and at the end"


def test_a_mirror_that_is_behind_does_not_get_them(
    kafka: Planned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commits that it has not applied may say that cdcd copies such a table, and has not written a row yet."""
    monkeypatch.setattr(mirror_session, "LOOK_FOR_EMPTY_S", -1.0)
    for lsn in range(100, 110):
        kafka.progress(lsn, {T: lsn})
    kafka.progress(110, {T: 110}, loading=[U])
    kafka.topics[T].end = 110
    run(tmp_path)
    assert read_mirror(tmp_path).topics == []


def test_a_batch_has_the_histories_of_tables_without_changes_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the clock, once in `EXPIRED_S`."""
    items = Batches(tmp_path / "mirror", FIELDS)
    items.scd_type, items.history_retain_s = 2, 3600.0
    items.run([items.change("c", 10, 1, after={"id": 1, "name": "a"})], loading=False)
    noted: list[Any] = []
    with items.mirror() as batches:
        monkeypatch.setattr(batches._compactor, "note", lambda topics: noted.append(list(topics)))
        for _ in range(2):
            batches.apply(RecordsOnDriver(records_table([])), with_loading({}, frozenset()))
        assert [one for one in noted if one] == [[TOPIC]]
        monkeypatch.setattr(mirror_batches, "EXPIRED_S", -1.0)
        batches.apply(RecordsOnDriver(records_table([])), with_loading({}, frozenset()))
        assert [one for one in noted if one] == [[TOPIC], [TOPIC]]
