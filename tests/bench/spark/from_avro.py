"""Spark's own `from_avro` on the benchmark's records: run by the Python of a Spark for which spark-avro exists.

In: a Parquet file of framed records; a JSON file of Avro schemas by name, that of the writer is "whole"; the jar; a
number of rounds.
Out: a line of JSON for each schema and round: CPU seconds of the JVM for a row. The records are in Spark's memory.
The cost of reading them there without decoding is subtracted, that of the same round.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.avro.functions import from_avro

from cdcd.columnar.fallback import HEADER_BYTES

WARM_UP_ROUNDS = 2
TICKS = os.sysconf("SC_CLK_TCK")


def main(records: str, schemas: str, jar: str, rounds: str) -> None:
    """Print the costs."""
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.jars", jar)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "2g")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    frame = spark.read.parquet(records).repartition(4).cache()
    rows = frame.count()
    jvm = _jvm(spark)
    ways = _ways(frame, json.loads(Path(schemas).read_text()))
    for number in range(WARM_UP_ROUNDS + int(rounds)):
        baseline_s = _cost_s(frame.select(F.length("value")), jvm)
        for name, way in ways.items():
            cost_s = _cost_s(way, jvm) - baseline_s
            if number >= WARM_UP_ROUNDS:
                print(json.dumps({"way": name, "cost_s": cost_s / rows}), flush=True)
    spark.stop()


def _ways(frame: DataFrame, schemas: dict[str, Any]) -> dict[str, DataFrame]:
    datum = F.expr(f"substring(value, {HEADER_BYTES + 1})")
    whole = json.dumps(schemas["whole"])
    return {
        name: frame.select(from_avro(datum, whole, {"avroSchema": json.dumps(one)}).alias("v")).select("v.*")
        for name, one in schemas.items()
    }


def _cost_s(frame: DataFrame, jvm: int) -> float:
    before_s = cpu_s(jvm)
    frame.write.format("noop").mode("overwrite").save()
    return cpu_s(jvm) - before_s


def _jvm(spark: SparkSession) -> int:
    return int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())


def cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process so far, all threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


if __name__ == "__main__":
    main(*sys.argv[1:])
