"""`decode`: raw records of a topic as columns, from a batch and from a stream."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from cdcd.spark.decode import decode
from cdcd.spark.session import run_to_end
from cdcd.spark.source import register
from tests.spark.events import column
from tests.spark.topics import TopicsWriter

FIELDS = [
    column("id", "long", required=True),
    column("price", {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}),
    column("born", {"type": "int", "logicalType": "date"}),
    column("at", {"type": "long", "logicalType": "timestamp-micros"}),
    column("local", {"type": "long", "logicalType": "local-timestamp-micros"}),
    column("tags", {"type": "array", "items": ["null", "string"]}),
    column("raw", "bytes"),
]
ROW: dict[str, Any] = {
    "id": 7,
    "price": Decimal("-12.50"),
    "born": date(1969, 7, 20),
    "at": datetime(2024, 2, 29, 1, 2, 3, 4, tzinfo=UTC),
    "local": datetime(2024, 2, 29, 1, 2, 3, 5),
    "tags": ["a", None],
    "raw": b"\x00\xff",
}


def _raw(spark: SparkSession, topics: TopicsWriter, *, stream: bool) -> DataFrame:
    register(spark)
    reader = spark.readStream if stream else spark.read
    return reader.format("cdcd").option("brokers", topics.bootstrap).option("prefix", topics.prefix).load()


def test_a_batch_has_typed_columns(spark: SparkSession, topics: TopicsWriter) -> None:
    table = topics.table("kinds", FIELDS)
    topics.commit(
        10, topics.change(table, "u", 10, 3, after=ROW, unchanged=["raw"], special={"after.born": "infinity"})
    )
    topics.commit(20, topics.change(table, "d", 20, 1, before={"id": 7}))
    df = decode(_raw(spark, topics, stream=False), registry_url=topics.registry_url, topic=table.topic)
    update, delete, tombstone = (row.asDict(recursive=True) for row in df.orderBy("offset").collect())
    assert update["op"] == "u"
    assert update["key"] == {"id": 7}
    shown = update["after"]
    assert {**shown, "raw": bytes(shown["raw"]), "at": ROW["at"]} == ROW
    assert (update["commit_lsn"], update["tx_seq"], update["snapshot"]) == (10, 3, False)
    assert (update["unchanged"], update["special"]) == (["raw"], {"after.born": "infinity"})
    assert (delete["op"], delete["after"], delete["before"]["id"]) == ("d", None, 7)
    assert (tombstone["op"], tombstone["key"]) == (None, {"id": 7})


def test_records_of_older_schemas_come_under_the_newest(spark: SparkSession, topics: TopicsWriter) -> None:
    table = topics.table("grows", [column("id", "int", required=True), column("n", "int")])
    topics.commit(10, topics.change(table, "c", 10, 1, after={"id": 1, "n": 5}))
    table.alter([column("id", "int", required=True), column("n", "long"), column("more", "string")])
    topics.commit(20, topics.change(table, "c", 20, 1, after={"id": 2, "n": 2**40, "more": "x"}))
    df = decode(_raw(spark, topics, stream=False), registry_url=topics.registry_url, topic=table.topic)
    assert [tuple(row) for row in df.orderBy("commit_lsn").select("after.*").collect()] == [
        (1, 5, None),
        (2, 2**40, "x"),
    ]


@pytest.mark.nightly
def test_a_stream_decodes_as_a_batch_does(spark: SparkSession, topics: TopicsWriter, tmp_path: Path) -> None:
    table = topics.table("kinds", FIELDS)
    topics.commit(10, topics.change(table, "c", 10, 1, after=ROW))
    df = decode(_raw(spark, topics, stream=True), registry_url=topics.registry_url, topic=table.topic)
    stream = (
        df.writeStream.format("memory")
        .queryName(f"decoded_{topics.prefix}")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
    )
    assert run_to_end(stream.start) is None
    assert [row["id"] for row in spark.sql(f"select key.id from decoded_{topics.prefix}").collect()] == [7]
