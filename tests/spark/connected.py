"""A client of Spark Connect, in a process of its own: it reads the topics in each way, and prints what it found.

In: the server's URL; a JSON object with the options, the topic and a folder.
Out: a JSON object, as the last line.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from cdcd.errors import ConfigError
from cdcd.spark import consistent_view, decode
from cdcd.spark.clients.connection_options import connection_from
from cdcd.spark.data_source import register
from cdcd.spark.mirroring.start import mirror
from cdcd.spark.session import run_to_end
from cdcd.spark.testing import Database, Table


def main(url: str, task: dict[str, Any]) -> dict[str, Any]:
    """Return the ids that each way of reading finds, and the error of the mirror."""
    spark = SparkSession.builder.remote(url).getOrCreate()
    options, folder = task["options"], Path(task["folder"])
    connection = connection_from(options)
    register(spark)
    table = spark.read.format("cdcd").options(**options).option("table", "public.items").load()
    raw = spark.read.format("cdcd").options(**options).load()
    decoded = decode(raw, topic=task["topic"], connection=connection)
    found = {"session": type(spark).__module__, "table": ids(table), "decode": ids(decoded)}
    stream = spark.readStream.format("cdcd").options(**options).option("table", "public.items").load()
    writer = stream.writeStream.format("parquet").option("path", str(folder / "out"))
    writer = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True)
    failure = run_to_end(writer.start)
    assert failure is None, failure
    found["stream"] = ids(spark.read.parquet(str(folder / "out")))
    try:
        mirror(spark, connection, str(folder / "mirror"))
    except ConfigError as refused:
        found["mirror"] = str(refused)
    found["views"] = views(spark, str(folder / "views"))
    spark.stop()
    return found


def views(spark: SparkSession, target: str) -> list[int]:
    """Return the numbers of views that two calls of `consistent_view` leave; a table is loading at the second one."""
    items, others = (Table(f"public.{name}", {"id": "int"}, ["id"]) for name in ("items", "others"))
    shop, found = Database(items, others), []
    for loading in ([], [items]):
        shop.commit(items.insert(id=shop.lsn), others.insert(id=shop.lsn))
        shop.mirror(target, loading=loading)
        consistent_view(spark, target)
        found.append(sum(spark.catalog.tableExists(f"public_{name}") for name in ("items", "others")))
    return found


def ids(frame: DataFrame) -> list[int]:
    """Return the ids in a frame."""
    return sorted(row["id"] for row in frame.select("after.id").collect())


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], json.loads(sys.argv[2]))))
