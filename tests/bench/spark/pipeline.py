"""From Kafka to typed columns: `format("cdcd")` with `decode`, beside Spark's own Kafka source with `from_avro`.

Run by the Python of a Spark for which both jars exist.
In: JSON with the servers, the topic, the jars and the schemas; on standard input a line for each round.
Out: for each round a line of JSON with each way: seconds, and the CPU seconds of the JVM, its workers, the broker.
Each way writes the same 13 columns into a noop sink.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.avro.functions import from_avro

from cdcd.columnar.fallback import HEADER_BYTES
from cdcd.spark import decode
from cdcd.spark.clients.connection import Connection, RegistryAccess
from cdcd.spark.data_source import register
from tests.bench.spark.peer import cost, peer_session


def main(text: str) -> None:
    """Print the costs."""
    given = json.loads(text)
    spark = peer_session(2, given["jars"])
    register(spark)
    ways = {
        "cdcd, a table": lambda: by_table(spark, given),
        "cdcd + decode": lambda: by_decode(spark, given),
        "kafka + from_avro": lambda: by_spark(spark, given),
    }
    _round(ways, given["broker"])  # which warms up
    print(flush=True)
    for _ in sys.stdin:
        print(json.dumps(_round(ways, given["broker"])), flush=True)
    spark.stop()


def _round(ways: Mapping[str, Callable[[], DataFrame]], broker: int) -> list[dict[str, Any]]:
    found = []
    for name, way in ways.items():
        begun_s = time.monotonic()
        used = cost(way, broker)
        found.append({"way": name, "s": time.monotonic() - begun_s, **asdict(used)})
    return found


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


if __name__ == "__main__":
    main(sys.argv[1])
