"""Every format and SCD type under every fault of a mirror that runs: equal at the end, also its history.

`make mirror-matrix` runs these cases with each series of Spark, and prints them as a table.
The judge is a replay of the changes. A fault that did not strike fails its case.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cdcd.errors import StorageConflict
from cdcd.spark.formats import file_levels
from cdcd.spark.mirroring import retries as mirror_retries
from cdcd.spark.mirroring.query import MirrorQuery
from cdcd.spark.mirroring.start import mirror
from cdcd.spark.reading.mirror import read_mirror
from cdcd.spark.storage.uri import open_storage
from cdcd.spark.tables import compaction
from cdcd.spark.target.commit_log import LATEST, read_latest
from cdcd.spark.target.left_files import sweep
from cdcd.spark.target.target_writer import take_over
from cdcd.spark.target.versions import SCD_TYPES, TABLE_FORMATS, ScdType, TableFormat
from tests.spark.crashes import Died, DyingStorage, with_logs
from tests.spark.history_model import FIELDS, Model, batch_of, versions_of
from tests.spark.topics import Sent, TopicsWriter, rewind, rows_of
from tests.support.waiting import eventually

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1200)]
COMMITS = 4
"""Between two faults."""
WITHIN_S = 300


class _Changes:
    """Makes the records of a topic."""

    def __init__(self, topics: TopicsWriter) -> None:
        self._topics = topics
        self.table = topics.table("items", FIELDS)

    def change(self, op: str, commit_lsn: int, tx_seq: int, **rest: Any) -> list[Sent]:
        """Return the records of one change."""
        return self._topics.change(self.table, op, commit_lsn, tx_seq, **rest)


class Case:
    """A mirror of one table in one format, its source, and the model."""

    def __init__(
        self, spark: SparkSession, topics: TopicsWriter, target: Path, table_format: TableFormat, scd: ScdType
    ) -> None:
        self.spark, self.topics, self.target = spark, topics, target
        self.format, self.scd = table_format, scd
        self.changes, self.model, self.lsn = _Changes(topics), Model(), 0
        self._random = random.Random(f"{table_format}{scd}")

    def commit(self, *, copies: int = 1) -> None:
        """Commit random changes. `copies`: how often each record is there, as an at_least_once sink repeats them."""
        self.lsn += 100
        made = batch_of(self.changes, self.model, self.lsn, self._random)
        sent = [one for some in made for one in some]
        for _ in range(copies):
            self.topics.commit(self.lsn, sent)

    def commits(self) -> None:
        """Commit several times."""
        for _ in range(COMMITS):
            self.commit()

    @contextmanager
    def running(self, **options: Any) -> Iterator[MirrorQuery]:
        """Run the mirror in this process."""
        query = mirror(
            self.spark,
            self.topics.connection,
            str(self.target),
            format=self.format,
            stored_as_scd_type=self.scd,
            trigger="20 milliseconds",
            on_error="fail",
            **options,
        )
        try:
            yield query
        finally:
            query.stop()

    def command(self) -> list[str]:
        """Return the command of a mirror in a process of its own."""
        command = [sys.executable, "-m", "cdcd.spark", "mirror", "--target", str(self.target)]
        command += [
            "--format",
            self.format,
            "--scd",
            str(self.scd),
            "--trigger-ms",
            "20",
            "--on-error",
            "fail",
        ]
        command += ["--brokers", self.topics.bootstrap, "--prefix", self.topics.prefix]
        return [*command, "--registry", self.topics.registry_url]

    def is_current(self) -> bool:
        """Return whether the mirror has all commits."""
        version = read_latest(open_storage(self.target))
        return version is not None and version.commit_lsn >= self.lsn

    def reached(self, query: MirrorQuery | None = None) -> None:
        """Wait until the mirror has all commits."""

        def has() -> bool:
            assert query is None or query.isActive, query.exception()
            return self.is_current()

        eventually(has, f"the mirror has {self.lsn}", deadline_s=WITHIN_S)

    def judge(self) -> None:
        """Compare the rows, and the history."""
        expected = sorted(self.model.rows.values(), key=repr)
        assert rows_of(read_mirror(self.target), self.changes.table) == expected
        if self.scd == 2:
            assert versions_of(self.spark, self.target) == self.model.versions


Fault = Callable[[Case, pytest.MonkeyPatch], None]


def process_killed(case: Case, _: pytest.MonkeyPatch) -> None:
    """SIGKILL of the driver, with its JVM, while the source goes on."""
    for _kill in range(2):
        case.commits()
        process = subprocess.Popen(case.command(), stdout=subprocess.DEVNULL, start_new_session=True)
        try:
            case.reached()
            case.commit()
        finally:
            assert process.poll() is None, "the mirror has ended by itself"
            os.killpg(process.pid, signal.SIGKILL)
            subprocess.run(["pkill", "-KILL", "-s", str(process.pid)], check=False)
            process.wait()
    _go_on(case)


def died_at_a_change(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of the process at a random change of the target, again and again."""
    for module in (compaction, file_levels):
        monkeypatch.setattr(module, "FAN", 2)
    dying: list[DyingStorage | None] = [None]
    with_logs(monkeypatch, lambda: dying[0])
    dice, hit = random.Random(case.format), 0
    for _ in range(10):
        case.commit()
        inner = open_storage(str(case.target))
        storage = DyingStorage(inner, dice.randrange(8), is_done=dice.random() < 0.5)
        dying[0] = storage
        monkeypatch.setattr("cdcd.spark.mirroring.session.open_storage", lambda *_, one=storage: one)
        with suppress(Died), case.running() as query:
            is_over = lambda one=storage, run=query: one.is_dead or not run.isActive or case.is_current()  # noqa: E731
            eventually(is_over, "it ends", WITHIN_S)
        hit += storage.is_dead
        dying[0] = None
        monkeypatch.setattr("cdcd.spark.mirroring.session.open_storage", open_storage)
    assert hit > 3
    _go_on(case)


def worker_killed(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGKILL of Spark's Python workers while they fold."""
    from tests.spark.test_mirror_faults import _workers

    monkeypatch.setattr(mirror_retries, "FIRST_PAUSE_S", 0.2)
    monkeypatch.setattr(mirror_retries, "MOST_PAUSE_S", 1.0)
    stopping, killed = threading.Event(), []

    def kill() -> None:
        while not stopping.wait(0.02):
            for pid in _workers():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)

    case.commit()
    with case.running(driver_bytes=0) as query:
        case.reached(query)
        killing = threading.Thread(target=kill)
        killing.start()
        case.commits()
        eventually(lambda: killed, "a worker is killed", WITHIN_S)
        stopping.set()
        killing.join()
        case.reached(query)


def batch_repeated(case: Case, _: pytest.MonkeyPatch) -> None:
    """All records once more, after the version that has them."""
    for _repetition in range(2):
        case.commits()
        _go_on(case)
        rewind(case.target)
    _go_on(case)


def records_twice(case: Case, _: pytest.MonkeyPatch) -> None:
    """Records that are in the topics twice, in later Kafka transactions, in one batch or in two."""
    case.commit(copies=3)
    with case.running() as query:
        for _copy in range(COMMITS):
            case.commit(copies=2)
            case.reached(query)
        case.commit(copies=2)
    _go_on(case)


def two_mirrors(case: Case, _: pytest.MonkeyPatch) -> None:
    """Another process takes the target over: the first one stops, and neither removes what the other has named."""
    case.commit()
    with case.running() as query:
        case.reached(query)
        found = read_latest(case.target)
        assert found is not None
        take_over(case.target, found)
        case.commits()
        eventually(lambda: not query.isActive, "the first mirror stops", WITHIN_S)
        assert StorageConflict.code in str(query.exception())
    sweep(case.target)
    _go_on(case)


def old_copy_restored(case: Case, _: pytest.MonkeyPatch) -> None:
    """The target of some commits ago, from a backup."""
    copy = case.target.with_name("copy")
    case.commits()
    _go_on(case)
    shutil.copytree(case.target, copy)
    case.commits()
    _go_on(case)
    shutil.rmtree(case.target)
    shutil.copytree(copy, case.target)
    case.commit()
    _go_on(case)


def pointer_lost(case: Case, _: pytest.MonkeyPatch) -> None:
    """The file that names the newest complete record is gone; the records are there."""
    for _loss in range(2):
        case.commits()
        _go_on(case)
        (case.target / LATEST).unlink()
    _go_on(case)


def _go_on(case: Case) -> None:
    """Run the mirror with a last commit, until it has that."""
    case.commit()
    with case.running() as query:
        case.reached(query)


FAULTS: tuple[Fault, ...] = (
    process_killed,
    died_at_a_change,
    worker_killed,
    batch_repeated,
    records_twice,
    two_mirrors,
    old_copy_restored,
    pointer_lost,
)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
@pytest.mark.parametrize("scd", SCD_TYPES)
@pytest.mark.parametrize("table_format", TABLE_FORMATS)
def test_a_mirror_is_equal_after(
    fault: Fault,
    table_format: TableFormat,
    scd: ScdType,
    spark: SparkSession,
    topics: TopicsWriter,
    target: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The ids are the cells of the matrix."""
    case = Case(spark, topics, target, table_format, scd)
    fault(case, monkeypatch)
    case.judge()
