"""The records of a mirror's batch: what the driver finds in Arrow is what Spark's SQL finds."""

from __future__ import annotations

import threading
import zlib
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PythonException
from pyspark.sql import SparkSession

from cdcd.columnar.record_schema import RAW_SCHEMA
from cdcd.errors import ConfigError, TableFileMissing
from cdcd.spark.decoding.schemas import HEADER_BYTES
from cdcd.spark.mirroring.batch_source import seconds_of
from cdcd.spark.mirroring.batches import OnError
from cdcd.spark.mirroring.query import MirrorQuery
from cdcd.spark.mirroring.records import Records, RecordsInSpark, RecordsOnDriver, looks_of
from cdcd.spark.reading.mirror import read_mirror
from cdcd.spark.source.cuts import with_loading
from cdcd.spark.tables.plan import Look
from cdcd.spark.target.versions import TABLE_FORMATS, TableFormat, TargetVersion
from tests.spark.batches import TOPIC, Batches, records_table
from tests.spark.events import Table, column, envelope_schema
from tests.spark.topics import TopicsWriter, rows_of, run_mirror
from tests.spark.unit.test_foreign_records import A, B, Shop
from tests.support.nightly import nightly

BUCKETS = 4
FIELDS = [column("id", "int", required=True), column("body", "string")]
ENVELOPE = envelope_schema("shop.public.a", FIELDS)


def _header(number: int) -> bytes:
    return b"\0" + number.to_bytes(4, "big")


def _table() -> pa.Table:
    """Return records of two topics, partitions and schemas, with tombstones and records without a key."""
    rows = []
    for place in range(400):
        topic = f"shop.public.{'ab'[place % 2]}"
        key = None if place % 7 == 0 else _header(1) + b"key %d" % (place % 50)
        value = None if place % 11 == 0 else _header(2 + place // 7 % 3) + b"value %d" % place
        rows.append({"topic": topic, "partition": place % 3, "offset": place, "key": key, "value": value})
    return pa.Table.from_pylist(rows, schema=RAW_SCHEMA)


@pytest.fixture
def both(spark: SparkSession) -> list[Records]:
    """Return the same records on the driver, in chunks that begin inside their buffers, and in Spark."""
    table = _table()
    frame = spark.createDataFrame(table)
    return [
        RecordsOnDriver(pa.concat_tables([table.slice(0, 100), table.slice(100)])),
        RecordsInSpark(frame, BUCKETS),
    ]


def test_both_have_the_same_summaries_and_keyless_records(both: list[Records]) -> None:
    driver, spark = (sorted(one.summaries(), key=repr) for one in both)
    assert driver == spark
    assert len(driver) == 2 * 3 * 4, "topics, partitions, and three schemas and the tombstones"
    version = TargetVersion("shop", BUCKETS)
    looks = [looks_of(one, lambda topic: topic.endswith("a"), version, lambda _: ENVELOPE) for one in both]
    assert [_shown(one) for one in looks[0]] == [_shown(one) for one in looks[1]]
    assert len(looks[0]) == 1


def test_both_keep_few_records_without_a_key(spark: SparkSession) -> None:
    """A table with a key that is parked, or dropped, may have very many of them."""
    items = Table("shop.public.a", FIELDS, (), "")
    items._value = (2, ENVELOPE)
    values = [items.event("c", 10, n, after={"id": n, "body": "x"})[1] for n in range(500)]
    last, special = values[-1], {"gap.from_lsn": "0/A", "gap.to_lsn": "0/14", "gap.reason": "CDCD-SLOT-LOST"}
    ends = [items.event("t", 9, 1)[1], items.event("g", 8, 1, special=special)[1], items.event("t", 7, 1)[1]]
    values = [*values[:100], ends[0], *values[100:300], *ends[1:], *values[300:]]
    rows = [
        {"topic": topic, "partition": 0, "offset": place, "key": None, "value": value}
        for topic in ("shop.public.a", "shop.public.b")
        for place, value in enumerate(values if topic.endswith("a") else [b"\0\0\0\0\2", *ends])
    ]
    table = pa.Table.from_pylist(rows, schema=RAW_SCHEMA)
    frame = spark.createDataFrame(table).repartition(3)
    asked = {"shop.public.a": {2: ENVELOPE}, "shop.public.b": {2: ENVELOPE}}
    for records in (RecordsOnDriver(table), RecordsInSpark(frame, BUCKETS)):
        found = {topic: sorted(values) for topic, values in records.keyless(asked).items()}
        assert found == {
            "shop.public.a": sorted([*ends, last]),
            "shop.public.b": sorted([b"\0\0\0\0\2", *ends]),
        }


def _shown(look: Look) -> Look:
    return replace(
        look, last_values=tuple(sorted(look.last_values)), keyless_values=tuple(sorted(look.keyless_values))
    )


def test_both_put_a_key_into_the_same_bucket(both: list[Records]) -> None:
    frame = both[1]._frame.where("key is not null").select("key", "bucket").distinct()  # type: ignore[attr-defined]
    found = {(bytes(row.key), row.bucket) for row in frame.collect()}
    assert {key for key, _ in found} == {one for one in _table()["key"].to_pylist() if one}
    assert all(bucket == zlib.crc32(key[HEADER_BYTES:]) % BUCKETS for key, bucket in found)
    assert len({bucket for _, bucket in found}) == BUCKETS


@pytest.mark.parametrize("on_error", ["park", "fail"])
def test_tasks_say_where_a_record_of_another_program_is(
    spark: SparkSession, tmp_path: Path, on_error: OnError
) -> None:
    def in_tasks(records: pa.Table) -> Records:
        return RecordsInSpark(spark.createDataFrame(records), BUCKETS)

    shop = Shop(tmp_path)
    shop.run(read=in_tasks)
    shop.add(b"{}", key=b"{}")
    shop.add(b"{}")
    shop.commit(A.insert(id=2), B.insert(id=2))
    place = f"topic={A.topic} partition=0 offset="
    if on_error == "fail":
        with pytest.raises(PythonException, match=place):
            shop.run(on_error, read=in_tasks)
        return
    version = shop.run(read=in_tasks)
    assert list(version.parked) == [A.topic]
    assert place in version.parked[A.topic].reason
    assert (shop.ids(A), shop.ids(B)) == ([1], [1, 2])


@pytest.mark.parametrize("in_tasks", [nightly({0}), nightly({1}), {0, 2}], ids=str)
def test_a_mirror_may_change_from_one_to_the_other(
    spark: SparkSession, topics: TopicsWriter, target: Path, in_tasks: set[int]
) -> None:
    """Also where a key moves to another bucket with a value that its change did not send."""
    items = topics.table("items", [column("id", "int", required=True), column("body", "string")])
    expected = {number: f"text {number}" for number in range(50)}
    for batch in range(3):
        lsn = 10 * (batch + 1)
        if batch == 0:
            rows = [{"id": number, "body": text} for number, text in expected.items()]
            topics.commit(
                lsn, [r for n, row in enumerate(rows) for r in topics.change(items, "r", lsn, n, after=row)]
            )
        else:
            moved = range(batch, 50, 7)
            topics.commit(
                lsn,
                [
                    sent
                    for number in moved
                    for sent in [
                        *topics.change(items, "d", lsn, 2 * number, before={"id": number, "body": None}),
                        *topics.change(
                            items,
                            "c",
                            lsn,
                            2 * number + 1,
                            after={"id": lsn * 100 + number, "body": None},
                            unchanged=["body"],
                        ),
                    ]
                ],
            )
            expected |= {lsn * 100 + number: expected.pop(number) for number in moved}
        opened = run_mirror(spark, topics, target, driver_bytes=0 if batch in in_tasks else 1 << 20)
        assert rows_of(opened, items) == sorted(
            ({"id": number, "body": text} for number, text in expected.items()), key=repr
        )


def test_a_mirror_ends_after_its_batch_and_returns_its_error() -> None:
    begun, may_end = threading.Event(), threading.Event()

    def run(stopping: threading.Event) -> None:
        begun.set()
        may_end.wait(60)
        assert stopping.wait(60)

    query = MirrorQuery(run, "a mirror")
    assert begun.wait(60)
    assert not query.awaitTermination(0.01)
    stopper = threading.Thread(target=query.stop)
    stopper.start()
    assert query.isActive, "the batch has not ended"
    may_end.set()
    stopper.join(60)
    assert (query.isActive, query.exception(), query.awaitTermination(60)) == (False, None, True)

    def fail(_: threading.Event) -> None:
        raise ConfigError("a reason")

    query = MirrorQuery(fail, "a mirror")
    with pytest.raises(ConfigError, match="a reason"):
        query.awaitTermination(60)
    assert isinstance(query.exception(), ConfigError)

    class PanicException(BaseException):
        """As a library in Rust raises it."""

    def panic(_: threading.Event) -> None:
        raise PanicException("a panic")

    query = MirrorQuery(panic, "a mirror")
    with pytest.raises(RuntimeError, match="PanicException"):
        query.awaitTermination(60)
    assert isinstance(query.exception(), RuntimeError)


def test_an_interval_is_as_spark_writes_it() -> None:
    given = {
        "2 seconds": 2,
        "100 milliseconds": 0.1,
        "1 minute": 60,
        "0.5 s": 0.5,
        "1 hour": 3600,
        "0 seconds": 0,
    }
    assert {text: seconds_of(text) for text in given} == given
    for wrong in ("", "soon", "-1 seconds", "2"):
        with pytest.raises(ConfigError, match="is not an interval"):
            seconds_of(wrong)


@pytest.mark.parametrize("table_format", TABLE_FORMATS)
def test_a_missing_file_parks_a_table_whose_rows_the_tasks_fold(
    tmp_path: Path, spark: SparkSession, table_format: TableFormat
) -> None:
    """They read the rows before the batch."""
    items = Batches(tmp_path / "mirror", FIELDS, table_format=table_format)
    items.on_error = "park"
    row = {"id": 1, "body": "first"}
    items.run([items.change("r", 10, 1, after=row)], loading=False)
    (file,) = read_mirror(items.target).version.tables[TOPIC].files
    (items.target / file.path).unlink()
    change = items.change("u", 20, 1, after={"id": 1, "body": None}, unchanged=["body"])
    records = RecordsInSpark(spark.createDataFrame(records_table([change])), BUCKETS)
    with items.mirror() as mirror:
        mirror.publish_start()
        mirror.apply(records, with_loading({}, frozenset()))
    records.close()
    parked = read_mirror(items.target).parked
    assert {topic: one.code for topic, one in parked.items()} == {TOPIC: TableFileMissing.code}
    assert file.path in parked[TOPIC].reason
