"""`decode`: raw records of a topic as columns, from a batch and from a stream."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from cdcd.errors import ConfigError, SparkReadError
from cdcd.spark import decode
from cdcd.spark.data_source import register
from cdcd.spark.session import run_to_end
from tests.spark.events import column
from tests.spark.topics import TopicsWriter

ID = column("id", "long", required=True)
FIELDS = [
    ID,
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
    df = decode(
        _raw(spark, topics, stream=False), registry_url=topics.registry_url, topic=table.topic, before=True
    )
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


def test_broken_records_go_into_a_table_of_their_own(
    spark: SparkSession, topics: TopicsWriter, tmp_path: Path
) -> None:
    """As the documentation shows it, with the function for foreachBatch, and no record is lost."""
    table = topics.table("orders", [ID, column("born", {"type": "int", "logicalType": "date"})])
    (good,) = topics.change(table, "c", 10, 1, after={"id": 1}, special={"after.born": "infinity"})
    foreign = (table.topic, 0, good[2], b"\0" + (2**31 - 1).to_bytes(4, "big") + b"x")
    topics.commit(10, [good, foreign, (table.topic, 1, good[2], b"{}")])
    raw = _raw(spark, topics, stream=False)
    decoding = partial(decode, registry_url=topics.registry_url, topic=table.topic, special="string")
    orders, broken = str(tmp_path / "orders"), str(tmp_path / "broken")

    def write(batch: DataFrame, number: int) -> None:
        batch.persist()
        batch.where("error is not null").drop("op", "after", "special_after").write.mode("append").parquet(
            broken
        )
        batch.where("error is null").select("op", "after.*", "special_after").write.mode("append").parquet(
            orders
        )
        batch.unpersist()

    write(decoding(raw, on_error="quarantine"), 0)
    assert [tuple(row) for row in spark.read.parquet(orders).collect()] == [
        ("c", 1, None, (None, "infinity"))
    ]
    found = spark.read.parquet(broken).orderBy("partition").collect()
    assert [bytes(row["raw_value"]) for row in found] == [foreign[3], b"{}"]
    assert "the registry has no schema with this id" in found[0]["error"]
    assert [row["schema_id"] for row in found] == [2**31 - 1, None]

    with pytest.raises(PythonException, match=rf"CDCD-SPARK-READ.*topic={table.topic} partition="):
        decoding(raw).collect()
    with pytest.raises(ConfigError, match="special has an unknown value"):
        decode(raw, topic=table.topic, registry_url=topics.registry_url, special="text")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="columns has to be a list of names"):
        decode(raw, topic=table.topic, registry_url=topics.registry_url, columns="id")


def test_an_engine_that_is_not_there_is_refused(
    spark: SparkSession, topics: TopicsWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`tests/spark/engines_compared.py` tests the engine where the session has the package."""
    table = topics.table("orders", [ID])
    topics.commit(10, topics.change(table, "c", 10, 1, after={"id": 1}))
    raw = _raw(spark, topics, stream=False)
    decoding = partial(decode, raw, topic=table.topic, registry_url=topics.registry_url)
    with pytest.raises(ConfigError, match=r'cdcd\.spark\.packages\(\).*engine="native"'):
        decoding(engine="spark-avro")
    with pytest.raises(ConfigError, match='does not have on_error="quarantine"'):
        decoding(engine="spark-avro", on_error="quarantine")
    with pytest.raises(ConfigError, match="choose auto, native, spark-avro"):
        decoding(engine="jvm")
    monkeypatch.setenv("CDCD_EXTENSIONS", "python")
    assert decoding().schema == decoding(engine="native").schema


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


def test_one_pass_returns_the_changes_of_several_tables(spark: SparkSession, topics: TopicsWriter) -> None:
    """Names that differ only in case are refused, unless Spark distinguishes them."""
    name = "Stra_u00dfe"
    orders = topics.table("orders", [ID, column(name, "string", **{"pg.name": "Straße", "pg.type": "text"})])
    people = topics.table("people", [column("code", "string", required=True)], key=("code",))
    other = topics.table("other", [column("ID", "string", required=True)], key=("ID",))
    topics.commit(
        10,
        [
            *topics.change(orders, "u", 10, 1, before={"id": 1}, after={"id": 1, name: "A"}),
            *topics.change(people, "c", 10, 2, after={"code": "x"}),
            *topics.change(other, "c", 10, 3, after={"ID": "B"}),
        ],
    )
    kafka = _raw(spark, topics, stream=False)
    kafka = kafka.withColumn("timestampType", F.lit(0))  # a column of the JVM's source
    df = decode(
        kafka, topic=[orders.topic, people.topic], registry_url=topics.registry_url, columns=["Straße"]
    )
    found = df.orderBy("tx_seq").select("topic", "key.*", "after.*").collect()
    assert [tuple(row) for row in found] == [
        (orders.topic, 1, None, "A"),
        (people.topic, None, "x", None),
    ]
    assert df.select("after.*").schema["Straße"].metadata == {"pg.type": "text"}

    both = partial(decode, kafka, topic=[orders.topic, other.topic], registry_url=topics.registry_url)
    with pytest.raises(SparkReadError, match=r"spark\.sql\.caseSensitive"):
        both()
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        found = both().orderBy("tx_seq").select("after.id", "after.ID").collect()
        assert [tuple(row) for row in found] == [(1, None), (None, "B")]
    finally:
        spark.conf.unset("spark.sql.caseSensitive")
