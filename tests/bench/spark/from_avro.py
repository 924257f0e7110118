"""Spark's own `from_avro` on the benchmark's records: run by the Python of a Spark for which spark-avro exists.

In: a Parquet file of framed records; a JSON file of Avro schemas by name, that of the writer is "whole"; the jar; a
number of rounds.
Out: a line of JSON for each schema and round: CPU seconds of the JVM for a row. The records are in Spark's memory.
The cost of reading them there without decoding is subtracted, that of the same round.
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
from tests.bench.spark.peer import cost_s, peer_session

WARM_UP_ROUNDS = 2


def main(records: str, schemas: str, jar: str, rounds: str) -> None:
    """Print the costs."""
    spark = peer_session(1, [jar])
    frame = spark.read.parquet(records).repartition(4).cache()
    rows = frame.count()
    ways = _ways(frame, json.loads(Path(schemas).read_text()))
    for number in range(WARM_UP_ROUNDS + int(rounds)):
        baseline_s = cost_s(partial(frame.select, F.length("value")))
        for name, way in ways.items():
            decoding_s = cost_s(way) - baseline_s
            if number >= WARM_UP_ROUNDS:
                print(json.dumps({"way": name, "cost_s": decoding_s / rows}), flush=True)
    spark.stop()


def _ways(frame: DataFrame, schemas: dict[str, Any]) -> dict[str, Callable[[], DataFrame]]:
    datum = F.expr(f"substring(value, {HEADER_BYTES + 1})")
    whole = json.dumps(schemas["whole"])

    def decoded(schema: Any) -> DataFrame:
        value = from_avro(datum, whole, {"avroSchema": json.dumps(schema)})
        return frame.select(value.alias("v")).select("v.*")

    return {name: partial(decoded, one) for name, one in schemas.items()}


if __name__ == "__main__":
    main(*sys.argv[1:])
