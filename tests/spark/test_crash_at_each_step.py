"""A mirror that dies at each of its changes of the target, one after another, and goes on: equal, and nothing twice.

The judge is a replay of the changes, and for the history the versions of that replay.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from cdcd.spark.formats import file_levels
from cdcd.spark.mirroring.records import RecordsOnDriver
from cdcd.spark.reading.mirror import read_mirror
from cdcd.spark.source.cuts import with_loading
from cdcd.spark.source.source_position import SourcePosition
from cdcd.spark.storage.uri import open_storage
from cdcd.spark.tables import compaction
from cdcd.spark.target.commit_log import read_latest
from cdcd.spark.target.left_files import sweep
from cdcd.spark.target.shape import KEY, SPECIAL
from cdcd.spark.target.versions import TABLE_FORMATS, ScdType, TableFormat
from tests.spark.batches import TOPIC, Batches, Record, records_table
from tests.spark.crashes import Died, DyingStorage, moments, with_logs
from tests.spark.foreign_readers import READERS
from tests.spark.history_model import FIELDS, Model, Row, batch_of, versions_of
from tests.support.nightly import nightly_except

BATCHES = 9
"""So many that files are merged, with the `FAN` of this test."""


class _Mirror:
    """A mirror of one table, the batches that it will be given, and what it has then."""

    def __init__(self, target: Path, table_format: TableFormat, scd_type: ScdType) -> None:
        self.items = Batches(target, FIELDS, table_format=table_format)
        self.items.scd_type, self.items.retain_s = scd_type, 0.0
        chosen = random.Random(1)
        self.model = Model()
        self.batches: list[list[Record]] = []
        self.states: list[list[Row]] = [[]]
        """The rows after so many batches."""
        for number in range(1, BATCHES + 1):
            self.batches.append(batch_of(self.items, self.model, 100 * number, chosen))
            self.states.append(sorted(self.model.rows.values(), key=lambda row: row["id"]))

    def run(self) -> None:
        """Apply the batches that the target does not have, as one process does; end it with its merges."""
        storage = self.items.storage or open_storage(str(self.items.target))
        with self.items.mirror() as mirror:
            sweep(storage, mirror._writer)
            for number, records in self._left(mirror.version.end_lsn):
                mirror.apply(
                    RecordsOnDriver(records_table(records)), with_loading({}, frozenset()), _end(number)
                )
                mirror.compact()

    def _left(self, end_lsn: int) -> Iterator[tuple[int, list[Record]]]:
        for number, records in enumerate(self.batches, 1):
            if _end(number).end_lsn > end_lsn:
                yield number, records

    def check_view(self) -> None:
        """Compare what readers see now, without a start, with the rows after the batches of the version."""
        version = read_latest(self.items.target)
        if version is None or not version.end_lsn:
            return
        opened, expected = read_mirror(self.items.target), self.states[version.end_lsn // 100]
        readers = [opened.table(TOPIC)]
        if version.table_format in READERS:
            readers.append(READERS[version.table_format].recorded(opened))
        for found in readers:
            assert sorted(_plain(found), key=lambda row: row["id"]) == expected

    def check(self, spark: SparkSession | None = None) -> None:
        """Compare the rows, the files, and with a Spark the history."""
        assert self.items.rows() == sorted(self.model.rows.values(), key=lambda row: row["id"])
        if spark is not None:
            assert versions_of(spark, self.items.target) == self.model.versions
        version = read_latest(self.items.target)
        assert version is not None
        left = {*open_storage(self.items.target).paths(f"_data/{TOPIC}")}
        expected = {*version.files(), *(path for path, _ in version.replaced)}
        assert left <= expected, "a crash has left a file that no start removes"


def _plain(rows: pa.Table) -> list[Row]:
    """Return rows without their keys, and without empty special texts."""
    return [
        {name: value for name, value in row.items() if name != KEY and (name != SPECIAL or value)}
        for row in rows.to_pylist()
    ]


def _end(number: int) -> SourcePosition:
    return SourcePosition(100 * number + 50)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("table_format", "step"), nightly_except(product(TABLE_FORMATS, [29, 1]), ("parquet", 29), ("delta", 29))
)
def test_a_crash_at_any_change_of_the_target_changes_nothing(
    tmp_path: Path, table_format: TableFormat, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all moments each `step`-th one."""
    _die_at_each(step, tmp_path, table_format, 1, monkeypatch)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("table_format", TABLE_FORMATS)
@pytest.mark.parametrize("step", [29, 1])
def test_a_crash_at_any_change_of_the_target_changes_no_version(
    spark: SparkSession, tmp_path: Path, table_format: TableFormat, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a target with a history, of which each fifth is compared."""
    _die_at_each(step, tmp_path, table_format, 2, monkeypatch, spark)


def _die_at_each(
    step: int,
    folder: Path,
    table_format: TableFormat,
    scd_type: ScdType,
    monkeypatch: pytest.MonkeyPatch,
    spark: SparkSession | None = None,
) -> None:
    for module in (compaction, file_levels):
        monkeypatch.setattr(module, "FAN", 2)
    dying: list[DyingStorage | None] = [None]
    with_logs(monkeypatch, lambda: dying[0])
    whole = _Mirror(folder / "whole", table_format, scd_type)
    whole.items.storage = dying[0] = DyingStorage(open_storage(str(whole.items.target)))
    whole.run()
    changes = dying[0].changes
    whole.items.storage = dying[0] = None
    whole.check(spark)
    assert changes > 2 * BATCHES
    chosen = list(moments(changes))[::step]
    hit = 0
    for place, (at, is_done) in enumerate(chosen):
        one = _Mirror(folder / f"mirror{place}", table_format, scd_type)
        one.items.storage = dying[0] = DyingStorage(open_storage(str(one.items.target)), at, is_done=is_done)
        try:
            one.run()
        except Died:
            hit += 1
            dying[0] = None
            one.check_view()
        dying[0] = one.items.storage = None
        one.run()
        one.check(spark if place % 5 == 0 else None)
    assert hit > len(chosen) / 2, "most of the moments were met"
