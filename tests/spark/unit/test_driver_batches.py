"""How large the batches of a load are: where Spark runs few tasks, as large as the driver can fold."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import pyarrow as pa
import pytest

from cdcd.columnar.record_schema import RAW_SCHEMA
from cdcd.spark.clients.connection import Connection
from cdcd.spark.clients.kafka import Range
from cdcd.spark.mirroring import batch_source, records
from cdcd.spark.mirroring.batch_source import FEW_TASKS, LEAST_ROWS, MirrorSource
from cdcd.spark.mirroring.records import Records, RecordsOnDriver, _buckets, read_on_driver
from cdcd.spark.source.record_sizes import UNKNOWN_BYTES, RecordSizes
from cdcd.spark.target.versions import TargetVersion
from tests.spark.batches import records_table
from tests.support.planned import PREFIX, Planned, PlannedTopic, T

COMMIT, ROWS = 1000, 100_000
CONNECTION = Connection("127.0.0.1:1", PREFIX)


@pytest.fixture
def load(kafka: Planned) -> Planned:
    """Return a topic with commits of 1000 rows."""
    kafka.topics = {T: PlannedTopic("t", ROWS)}
    for end in range(COMMIT, ROWS + 1, COMMIT):
        kafka.progress(end, {T: end})
    return kafka


Source = Callable[..., MirrorSource]


@pytest.fixture
def source(load: Planned, monkeypatch: pytest.MonkeyPatch) -> Source:
    """Return a function that begins to read the load, in a Spark that runs so many tasks at a time."""

    def made(driver_bytes: int, *, tasks: int = 2, max_rows: int = ROWS) -> MirrorSource:
        monkeypatch.setattr(batch_source, "parallelism", lambda _: tasks)
        options = {"maxRows": str(max_rows)}
        found = MirrorSource(None, CONNECTION, TargetVersion(PREFIX, 4), options, driver_bytes)  # type: ignore[arg-type]
        found.begin(ends_now=True)
        return found

    return made


def next_rows(of: MirrorSource) -> int:
    before = of.end.get(T, {"0": 0})["0"]
    assert of.advance()
    return of.end[T]["0"] - before


def test_the_first_batch_assumes_the_size_of_records(source: Source) -> None:
    assert next_rows(source(40_000 * UNKNOWN_BYTES)) == 36_000
    assert next_rows(source(40_000 * UNKNOWN_BYTES, tasks=FEW_TASKS)) == 36_000


def test_with_many_tasks_only_the_given_rows_limit_a_batch(source: Source) -> None:
    assert next_rows(source(40_000 * UNKNOWN_BYTES, tasks=FEW_TASKS + 1)) == ROWS


def test_the_given_rows_limit_a_batch_on_the_driver_too(source: Source) -> None:
    assert next_rows(source(40_000 * UNKNOWN_BYTES, max_rows=20_000)) == 20_000


def test_spark_s_tasks_fold_all_batches_of_a_driver_without_memory(source: Source) -> None:
    assert next_rows(source(0)) == ROWS
    assert next_rows(source(1)) == LEAST_ROWS, "a batch that the driver tries and does not fold"


def test_later_batches_have_the_size_of_the_records_before(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the records of a batch were too large for the driver."""
    on_driver, in_spark = (RecordsOnDriver(RAW_SCHEMA.empty_table()) for _ in range(2))
    read: list[tuple[Records | None, float]] = [(on_driver, 2 * UNKNOWN_BYTES), (None, 3 * UNKNOWN_BYTES)]
    monkeypatch.setattr(batch_source, "read_on_driver", lambda *_: read.pop(0))
    monkeypatch.setattr(batch_source, "read_in_spark", lambda *_: in_spark)
    monkeypatch.setattr(RecordSizes, "of", lambda *_: {})
    made = source(40_000 * UNKNOWN_BYTES)
    assert next_rows(made) == 36_000
    assert made.records(4) is on_driver
    assert next_rows(made) == 18_000
    assert made.records(4) is in_spark
    assert next_rows(made) == 12_000


def test_a_read_says_how_large_the_records_are(monkeypatch: pytest.MonkeyPatch) -> None:
    (batch,) = records_table([(b"key", b"x" * 100), (b"key", b"x" * 300)]).to_batches()
    monkeypatch.setattr(records, "read_ranges", lambda *_: (each for each in [batch] * 3))
    ranges = [Range(T, 0, 0, 8)]  # two offsets are those of markers
    found, offset_bytes = read_on_driver(CONNECTION, ranges, 3 * batch.nbytes)
    assert found is not None
    assert sum(part.rows for part in found.summaries()) == 6
    assert offset_bytes == 3 * batch.nbytes / 8
    assert read_on_driver(CONNECTION, ranges, 3 * batch.nbytes - 1) == (None, batch.nbytes / 2)


def test_the_buckets_of_keys_are_those_of_each_key() -> None:
    """Also of a record without a key, and of a foreign one whose key is shorter than a header."""
    keys = [None, b"", b"ab", *(b"\0\0\0\0\1" + bytes([n]) * (n % 9) for n in range(200))]
    column = pa.chunked_array([keys[:7], [], keys[7:]], pa.binary())
    expected = [0 if key is None else zlib.crc32(key[5:]) % 4 for key in keys]
    assert _buckets(column, 4).to_pylist() == expected
    assert set(expected) == {0, 1, 2, 3}
