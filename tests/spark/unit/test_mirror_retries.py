"""A mirror goes on by itself after what heals, and ends with the error otherwise; nothing is lost or half visible."""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cdcd.errors import (
    CdcdError,
    ConfigError,
    HistoryMissing,
    MirrorInconsistent,
    RegistryRefused,
    RegistryUnavailable,
    SinkAuthorization,
    SinkUnavailable,
    StorageConflict,
    StorageError,
    StorageUnavailable,
)
from cdcd.spark.clients.connection import Connection
from cdcd.spark.mirroring import retries as mirror_retries
from cdcd.spark.mirroring import session as mirror_session
from cdcd.spark.mirroring.metrics import MirrorMetrics
from cdcd.spark.mirroring.records import RecordsOnDriver
from cdcd.spark.mirroring.retries import LOST_WORKER, OTHER, Retries, code_of, heals
from cdcd.spark.mirroring.session import MirrorSessions, MirrorSettings
from cdcd.spark.source.backlog import Backlog
from cdcd.spark.source.cuts import Offsets
from cdcd.spark.source.source_position import SourcePosition
from cdcd.spark.storage import local as storage_local
from cdcd.spark.storage.uri import open_storage
from cdcd.spark.target.commit_log import LATEST, path_of, read_latest
from cdcd.spark.target.target_writer import take_over
from cdcd.spark.target.versions import TargetVersion
from tests.spark.batches import BUCKETS, TOPIC, Batches, Record, records_table
from tests.spark.events import column
from tests.support.nightly import nightly

ITEMS = [column("id", "int", required=True), column("body", "string")]
Fail = Callable[[str], None]


class _Kafka:
    """Batches of records, each at an offset of its own; `fail` is called for each request."""

    def __init__(self, batches: list[list[Record]]) -> None:
        self.batches = batches
        self.fail: Fail = lambda _: None
        self.opened = 0

    def id(self) -> str:
        self.fail("id")
        return "A"

    def partitions(self) -> dict[str, list[int]]:
        return {}

    def source(self, _spark: object, _connection: object, start: TargetVersion, *_: object) -> _Source:
        self.opened += 1
        return _Source(self, start.offsets.get(TOPIC, {}).get("0", 0))


class _Source:
    def __init__(self, kafka: _Kafka, start: int) -> None:
        self._kafka, self._next = kafka, start
        self.end: Offsets = {}

    @property
    def position(self) -> SourcePosition:
        return SourcePosition(100 * self._next, 1)

    def begin(self, *, ends_now: bool) -> None:
        pass

    @property
    def refused(self) -> dict[str, MirrorInconsistent]:
        return {}

    def advance(self) -> bool:
        self._kafka.fail("advance")
        if self._next == len(self._kafka.batches):
            return False
        self._next += 1
        self.end = {TOPIC: {"0": self._next}}
        return True

    def records(self, _buckets: int) -> RecordsOnDriver:
        self._kafka.fail("records")
        return RecordsOnDriver(records_table(self._kafka.batches[self._next - 1]))

    def backlog(self, *, is_applied: bool) -> Backlog:
        left = len(self._kafka.batches) - self._next + (not is_applied)
        return Backlog(left, left > 0, 1 if left else 0)

    def close(self) -> None:
        self._kafka.fail("close")


@pytest.fixture
def items(tmp_path: Path) -> Batches:
    return Batches(tmp_path / "mirror", ITEMS)


@pytest.fixture
def kafka(items: Batches, monkeypatch: pytest.MonkeyPatch) -> _Kafka:
    inserts = [[items.change("r", at, n, after=_row(n, "a")) for n in range(at, at + 8)] for at in (10, 20)]
    updates = [[items.change("u", at, n, after=_row(n, f"b{at}")) for n in range(10, 14)] for at in (30, 40)]
    made = _Kafka(inserts + updates)
    monkeypatch.setattr(mirror_session, "Cluster", lambda *_: made)
    monkeypatch.setattr(mirror_session, "MirrorSource", made.source)
    monkeypatch.setattr(mirror_session, "access_of", lambda _: None)
    monkeypatch.setattr(mirror_session, "schema_by_id", lambda _, number: items._schemas[number])
    monkeypatch.setattr(mirror_retries, "FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(mirror_retries, "MOST_PAUSE_S", 0.002)
    return made


def _row(number: int, body: str) -> dict[str, Any]:
    return {"id": number, "body": body}


EXPECTED = [_row(n, "b40" if n < 14 else "a") for n in (*range(10, 18), *range(20, 28))]


def _sessions(items: Batches, *, retry_s: float = 600, interval_s: float | None = None) -> MirrorSessions:
    settings = MirrorSettings(
        Connection("b:9092", "shop"),
        str(items.target),
        None,
        {},
        interval_s,
        BUCKETS,
        1 << 20,
        accept_gaps=False,
        accept_cluster=False,
        on_error="fail",
        retain_s=600,
    )
    return MirrorSessions(None, settings, MirrorMetrics(with_process=False), Retries(retry_s))


def _run(sessions: MirrorSessions) -> None:
    sessions.run(sessions.open(), threading.Event())


def _assert_whole(items: Batches) -> None:
    """Each batch is in the target once, and no file is left over."""
    version = read_latest(items.target)
    assert version is not None
    storage = open_storage(str(items.target))
    named = version.files() | {path for path, _ in version.replaced}
    records = {path_of(number) for number in range(version.complete[0][0], version.number + 1)}
    assert {*storage.paths()} == {LATEST, *records, *named}
    assert items.rows() == EXPECTED
    assert version.offsets[TOPIC] == {"0": 4}


@pytest.mark.parametrize("step", [3, nightly(1)])
def test_a_disk_that_is_full_is_waited_for_and_no_file_is_left_over(
    tmp_path: Path,
    kafka: _Kafka,
    items: Batches,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    step: int,
) -> None:
    """It is full at each `step`-th write once, from the first one after the start on, and again at the next two."""
    synchronise, number, times, is_met = os.fsync, 1 - step, 0, True
    while is_met:
        number, times = number + step, times + 1
        target = Batches(tmp_path / f"mirror-{number}", ITEMS)
        sessions = _sessions(target)
        first, calls, is_met = sessions.open(), 0, False

        def full(file: int, number: int = number) -> None:
            nonlocal calls, is_met
            calls += 1
            if number <= calls < number + 3:
                is_met = True
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            synchronise(file)

        with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
            patch.setattr(storage_local.os, "fsync", full)
            sessions.run(first, threading.Event())
        _assert_whole(target)
    assert number > 20
    tried = [one.getMessage() for one in caplog.records if "tries again" in one.getMessage()]
    assert all("CDCD-STORAGE-UNAVAILABLE" in one and "free space on the disk" in one for one in tried)
    assert len(tried) >= times - 1


@pytest.mark.parametrize("request_", ["id", "advance", "records", "close"])
@pytest.mark.parametrize(
    "error", [SinkUnavailable("away"), RegistryUnavailable("away"), SinkAuthorization("expired")], ids=repr
)
def test_what_heals_is_waited_for(kafka: _Kafka, items: Batches, request_: str, error: CdcdError) -> None:
    sessions = _sessions(items)
    first = sessions.open()
    failures = iter([True] * 5)

    def fail(what: str) -> None:
        is_met = what == request_ or (request_ == "id" and what == "advance" and kafka.opened == 1)
        if is_met and next(failures, False):
            raise error

    kafka.fail = fail
    sessions.run(first, threading.Event())
    _assert_whole(items)
    text = sessions.metrics.exposition().decode()
    if request_ != "close":
        assert f'cdcd_mirror_restarts_total{{reason="{error.code}"}}' in text
    assert "cdcd_mirror_batches_total 4.0" in text
    assert "cdcd_mirror_lag_seconds 0.0" in text
    assert "cdcd_mirror_backlog_offsets 0.0" in text


@pytest.mark.parametrize(
    "error",
    [
        HistoryMissing("removed"),
        StorageError("no bucket"),
        RegistryRefused("no id", status=404),
        KeyError("defect"),
    ],
    ids=repr,
)
def test_what_does_not_heal_ends_the_mirror(kafka: _Kafka, items: Batches, error: Exception) -> None:
    sessions = _sessions(items)

    def fail(what: str) -> None:
        if what == "records":
            raise error

    kafka.fail = fail
    with pytest.raises(type(error)) as raised:
        _run(sessions)
    assert raised.value is error
    assert kafka.opened == 1
    text = sessions.metrics.exposition().decode()
    assert f'cdcd_mirror_last_error_info{{code="{code_of(error)}"}} 1.0' in text
    assert "cdcd_mirror_restarts_total{" not in text


@pytest.mark.parametrize("retry_s", [0.0, 0.05])
def test_without_progress_it_ends_with_the_error(kafka: _Kafka, items: Batches, retry_s: float) -> None:
    def fail(what: str) -> None:
        if what == "records":
            raise SinkUnavailable("away")

    kafka.fail = fail
    with pytest.raises(SinkUnavailable, match="away"):
        _run(_sessions(items, retry_s=retry_s))
    assert (kafka.opened == 1) == (retry_s == 0)


def test_it_does_not_take_the_target_back_from_another_mirror(kafka: _Kafka, items: Batches) -> None:
    def fail(what: str) -> None:
        if what == "records":
            found = read_latest(items.target)
            assert found is not None
            take_over(items.target, found)
            raise SinkUnavailable("away")

    kafka.fail = fail
    with pytest.raises(StorageConflict, match="another mirror has taken over"):
        _run(_sessions(items))
    assert kafka.opened == 1


def test_a_conflict_with_its_own_late_request_is_none(
    kafka: _Kafka, items: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The storage has created a record, and the answer and each question about it got lost."""
    sessions = _sessions(items)
    first = sessions.open()
    create, failures = storage_local.LocalStorage.put_new, iter([True])

    def late(self: Any, path: str, data: bytes) -> Any:
        made = create(self, path, data)
        if next(failures, False):
            raise StorageConflict("another writer has created the file")
        return made

    monkeypatch.setattr(storage_local.LocalStorage, "put_new", late)
    sessions.run(first, threading.Event())
    _assert_whole(items)


def test_a_stop_ends_it_while_it_waits(
    kafka: _Kafka, items: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror_retries, "FIRST_PAUSE_S", 60.0)
    monkeypatch.setattr(mirror_retries, "MOST_PAUSE_S", 60.0)
    sessions, stopping = _sessions(items, interval_s=0.0), threading.Event()

    def fail(_: str) -> None:
        stopping.set()
        raise SinkUnavailable("away")

    first = sessions.open()
    kafka.fail = fail
    sessions.run(first, stopping)


class _OfSpark(Exception):
    """An error as Spark's tasks have it: with lines of Python and Java."""


@pytest.mark.parametrize(
    ("error", "code", "expected"),
    [
        (SinkUnavailable("away"), "CDCD-SINK-UNAVAILABLE", True),
        (StorageUnavailable("full"), "CDCD-STORAGE-UNAVAILABLE", True),
        (StorageError("no bucket"), "CDCD-STORAGE", False),
        (StorageConflict("taken"), "CDCD-STORAGE-CONFLICT", False),
        (RegistryRefused("login", status=401), "CDCD-REGISTRY-REFUSED", True),
        (RegistryRefused("no id", status=404), "CDCD-REGISTRY-REFUSED", False),
        (MirrorInconsistent("type"), "CDCD-MIRROR-INCONSISTENT", False),
        (ConfigError("wrong"), "CDCD-CONFIG", False),
        (_OfSpark("x\n  CDCD-STORAGE-UNAVAILABLE: full -> free\n\tat y"), "CDCD-STORAGE-UNAVAILABLE", True),
        (_OfSpark("Traceback\n  CDCD-GAP: a gap\n\tat scala"), "CDCD-GAP", False),
        (_OfSpark("Job aborted: ExecutorLostFailure (executor 1 exited"), LOST_WORKER, True),
        (_OfSpark("Python worker exited unexpectedly (crashed)"), LOST_WORKER, True),
        (_OfSpark("SparkContext was shut down"), OTHER, False),
        (ValueError("defect"), OTHER, False),
    ],
    ids=repr,
)
def test_the_class_of_an_error_says_whether_it_heals(error: Exception, code: str, expected: bool) -> None:
    assert (code_of(error), heals(error)) == (code, expected)


def test_the_pauses_grow_and_end_with_progress() -> None:
    now_s = [0.0]
    retries = Retries(600, lambda: now_s[0])
    expected = [1, 2, 4, 8, 16, 30, 30, 30]
    pauses = [retries.pause_after(SinkUnavailable("away")) for _ in range(8)]
    assert all(0.8 * about <= one <= 1.2 * about for one, about in zip(pauses, expected, strict=True))
    retries.advanced()
    assert retries.pause_after(SinkUnavailable("away")) <= 1.2
    now_s[0] = 599.5
    assert retries.pause_after(SinkUnavailable("away")) <= 0.5
    now_s[0] = 600
    with pytest.raises(SinkUnavailable):
        retries.pause_after(SinkUnavailable("away"))
