"""From Kafka to typed columns: `format("cdcd")` with `decode`, beside Spark's own Kafka source with `from_avro`.

Run by the Python of a Spark for which both jars exist.
In: JSON with the servers, the topic, the jars and the schemas.
Out: a line of JSON for each way and round: seconds, and the CPU seconds of the JVM and its Python workers. Each way
writes the same 13 columns into a noop sink.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.avro.functions import from_avro

from cdcd.columnar.fallback import HEADER_BYTES
from cdcd.spark import decode
from cdcd.spark.connection import Connection, RegistryAccess
from cdcd.spark.source import register

TICKS = os.sysconf("SC_CLK_TCK")


def main(text: str) -> None:
    """Print the costs."""
    given = json.loads(text)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", ",".join(given["jars"]))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "2g")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    register(spark)
    ways = {
        "cdcd, a table": lambda: by_table(spark, given),
        "cdcd + decode": lambda: by_decode(spark, given),
        "kafka + from_avro": lambda: by_spark(spark, given),
    }
    for number in range(1 + given["rounds"]):  # the first one warms up
        for name, way in ways.items():
            seconds, cpu_seconds = measured(way)
            if number:
                print(json.dumps({"way": name, "s": seconds, "cpu_s": cpu_seconds}), flush=True)
    spark.stop()


def by_table(spark: SparkSession, given: dict[str, Any]) -> DataFrame:
    """Return the columns by cdcd's data source."""
    options = _connection(given).options() | {"table": given["topic"].removeprefix(f"{given['prefix']}.")}
    typed = spark.read.format("cdcd").options(**options).load()
    return typed.select("op", "after.*", "commit_lsn", "tx_seq")


def by_decode(spark: SparkSession, given: dict[str, Any]) -> DataFrame:
    """Return the columns by cdcd's data source for raw records, and its decoder."""
    options = _connection(given).options() | {"topics": given["topic"]}
    raw = spark.read.format("cdcd").options(**options).load()
    decoded = decode(raw, topic=given["topic"], connection=_connection(given))
    return decoded.select("op", "after.*", "commit_lsn", "tx_seq")


def _connection(given: dict[str, Any]) -> Connection:
    return Connection(given["brokers"], given["prefix"], registry=RegistryAccess(given["registry"]))


def by_spark(spark: SparkSession, given: dict[str, Any]) -> DataFrame:
    """Return the columns by Spark's Kafka source, and its decoder with a schema of the wanted fields."""
    raw = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", given["brokers"])
        .option("subscribe", given["topic"])
        .option("kafka.isolation.level", "read_committed")
        .load()
    )
    datum = F.expr(f"substring(value, {HEADER_BYTES + 1})")
    value = from_avro(datum, json.dumps(given["schema"]), {"avroSchema": json.dumps(given["pruned"])})
    return raw.select(value.alias("v")).select("v.op", "v.after.*", "v.source.*")


def measured(way: Callable[[], DataFrame]) -> tuple[float, float]:
    """Run a way; return its seconds and CPU seconds."""
    before_s, begun_s = cpu_s(), time.monotonic()
    way().write.format("noop").mode("overwrite").save()
    return time.monotonic() - begun_s, cpu_s() - before_s


def cpu_s() -> float:
    """Return the CPU seconds of this process's descendants so far, also of those that have ended."""
    parents, ticks = {}, {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                fields = (folder / "stat").read_text().rsplit(") ", 1)[1].split()
            except OSError:
                continue
            parents[int(folder.name)] = int(fields[1])
            ticks[int(folder.name)] = sum(int(field) for field in fields[11:15])
    own = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in own and pid not in own}:
        own |= more
    return sum(ticks[pid] for pid in own - {os.getpid()}) / TICKS


if __name__ == "__main__":
    main(sys.argv[1])
