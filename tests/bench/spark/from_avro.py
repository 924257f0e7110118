"""Spark's own `from_avro` on the benchmark's records: run by the Python of a Spark for which spark-avro exists.

In: a Parquet file of framed records; a JSON file of Avro schemas by name, that of the writer is "whole"; the jar; on
standard input a line for each round, so that rounds alternate with those of other ways.
Out: for each round a line of JSON: for each schema the CPU seconds of the JVM for a row. The records are in Spark's
memory. The cost of reading them there without decoding is subtracted, that of the same round.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.avro.functions import from_avro

from cdcd.columnar.fallback import HEADER_BYTES
from tests.bench.spark.peer import cost, peer_session

WARM_UP_ROUNDS = 2


def main(records: str, schemas: str, jar: str) -> None:
    """Print the costs of each round that is asked for."""
    spark = peer_session(1, [jar])
    frame = spark.read.parquet(records).repartition(4).cache()
    rows = frame.count()
    ways = _ways(frame, json.loads(Path(schemas).read_text()))
    for _ in range(WARM_UP_ROUNDS):
        _costs(frame, ways, rows)
    print(flush=True)
    for _ in sys.stdin:
        print(json.dumps(_costs(frame, ways, rows)), flush=True)
    spark.stop()


def _costs(frame: DataFrame, ways: dict[str, Callable[[], DataFrame]], rows: int) -> dict[str, float]:
    baseline_s = cost(partial(frame.select, F.length("value"))).spark_s
    return {name: (cost(way).spark_s - baseline_s) / rows for name, way in ways.items()}


def _ways(frame: DataFrame, schemas: dict[str, Any]) -> dict[str, Callable[[], DataFrame]]:
    datum = F.expr(f"substring(value, {HEADER_BYTES + 1})")
    whole = json.dumps(schemas["whole"])

    def decoded(schema: Any) -> DataFrame:
        value = from_avro(datum, whole, {"avroSchema": json.dumps(schema)})
        return frame.select(value.alias("v")).select("v.*")

    return {name: partial(decoded, one) for name, one in schemas.items()}


if __name__ == "__main__":
    main(*sys.argv[1:])
