"""A mirror beside a hand-written pipeline: Spark's Kafka source, `from_avro`, and Delta's MERGE in foreachBatch.

Run by the Python of a Spark for which all jars exist, one process for each way.
In: JSON with the servers, the topics, the jars, the schemas, the way and its folder; then a line for each step:
`warm` loads into another folder, before the load that counts; a further load or batch into this one; `rows`.
Out: a line of JSON for each step: the seconds of a run to the newest commit, and the CPU seconds of this process, its
JVM and its workers; for the step `rows` the number of rows in the tables, and the peaks of the memory of this process
and of the others, the driver's JVM and workers (MB). The peer is what a data engineer writes:
the last change of each key, by commit and number, is merged; its tables have deletion vectors.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.avro.functions import from_avro

from cdcd.columnar.fallback import HEADER_BYTES
from cdcd.spark.clients.connection import Connection, RegistryAccess
from cdcd.spark.mirroring.start import mirror
from cdcd.spark.reading.mirror import read_mirror
from cdcd.spark.session import run_to_end
from tests.bench.spark.peer import peer_session
from tests.bench.usage import descendants_of, peak_memory_of, processes_below

Given = dict[str, Any]
DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.properties.defaults.enableDeletionVectors": "true",
    "spark.sql.shuffle.partitions": "4",
}


NEWER = "struct(s.commit_lsn, s.tx_seq) > struct(t.commit_lsn, t.tx_seq)"


def main(text: str) -> None:
    """Run a step for each line."""
    given = json.loads(text)
    of_peer = given["way"] == "merge"
    spark = peer_session(2, given["jars"] if of_peer else [], DELTA if of_peer else {})
    step, warm = (
        _merges(spark, one) if of_peer else _mirrors(spark, one)
        for one in (given, {**given, "folder": f"{given['folder']}-warm"})
    )
    print("{}", flush=True)
    for line in sys.stdin:
        if line.strip() == "rows":
            peaks = {
                "python_mb": _peak_mb(os.getpid()),
                "jvm_mb": sum(map(_peak_mb, processes_below(os.getpid()))),
            }
            print(json.dumps({"rows": _rows(spark, given)} | peaks), flush=True)
            continue
        begun_s, cpu_s = time.monotonic(), _cpu_s()
        (warm if line.strip() == "warm" else step)()
        print(json.dumps({"s": time.monotonic() - begun_s, "cpu_s": _cpu_s() - cpu_s}), flush=True)
    spark.stop()


def _rows(spark: SparkSession, given: Given) -> int:
    if given["way"] != "merge":
        opened = read_mirror(given["folder"])
        return sum(map(opened.rows, opened.topics))
    return sum(
        spark.read.format("delta").load(f"{given['folder']}/{topic}").count() for topic in given["topics"]
    )


def _cpu_s() -> float:
    own = resource.getrusage(resource.RUSAGE_SELF)
    return own.ru_utime + own.ru_stime + descendants_of(os.getpid()).total_s


def _peak_mb(pid: int) -> float:
    return (peak_memory_of(pid) or 0) / 1e6


def _mirrors(spark: SparkSession, given: Given) -> Callable[[], None]:
    connection = Connection(given["brokers"], given["prefix"], registry=RegistryAccess(given["registry"]))

    def step() -> None:
        failure = run_to_end(
            lambda: mirror(
                spark, connection, given["folder"], format=given["way"], max_rows=given["max_rows"]
            )
        )
        assert failure is None, failure

    return step


def _merges(spark: SparkSession, given: Given) -> Callable[[], None]:
    def step() -> None:
        queries = [_query(spark, given, topic) for topic in given["topics"]]
        for query in queries:
            query.awaitTermination()

    return step


def _query(spark: SparkSession, given: Given, topic: str) -> Any:
    raw = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", given["brokers"])
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", given["max_rows"])
        .option("kafka.isolation.level", "read_committed")
        .load()
    )
    table = f"{given['folder']}/{topic}"
    return (
        raw.writeStream.foreachBatch(lambda batch, _: _merged(given, table, batch))
        .option("checkpointLocation", f"{given['folder']}/_checkpoints/{topic}")
        .trigger(availableNow=True)
        .start()
    )


def _merged(given: Given, table: str, batch: DataFrame) -> None:
    """Merge the last change of each key into the table."""
    datum = F.expr(f"substring(value, {HEADER_BYTES + 1})")
    value = from_avro(datum, json.dumps(given["schema"]), {"avroSchema": json.dumps(given["pruned"])})
    changes = batch.where("value IS NOT NULL").select(value.alias("v")).select("v.op", "v.after", "v.source")
    last = Window.partitionBy("after.id").orderBy(F.desc("source.commit_lsn"), F.desc("source.tx_seq"))
    newest = (
        changes.withColumn("place", F.row_number().over(last))
        .where("place = 1")
        .select("op", "after.*", "source.commit_lsn", "source.tx_seq")
    )
    if not Path(table, "_delta_log").exists():
        newest.where("op <> 'd'").drop("op").write.format("delta").save(table)
        return
    columns = [one for one in newest.columns if one != "op"]
    newest.createOrReplaceTempView("newest")
    newest.sparkSession.sql(
        f"MERGE INTO delta.`{table}` t USING newest s ON t.id = s.id"
        f" WHEN MATCHED AND s.op = 'd' AND {NEWER} THEN DELETE"
        f" WHEN MATCHED AND {NEWER} THEN UPDATE SET {', '.join(f't.{one} = s.{one}' for one in columns)}"
        f" WHEN NOT MATCHED AND s.op <> 'd' THEN INSERT ({', '.join(columns)})"
        f" VALUES ({', '.join(f's.{one}' for one in columns)})"
    )


if __name__ == "__main__":
    main(sys.argv[1])
