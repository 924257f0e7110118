"""The archive of the classes of the tests' Spark: a driver's JVM starts in about half the CPU time.

In: the cache of artefacts.  Out: `PYSPARK_SUBMIT_ARGS`, which PySpark reads when it starts a JVM, for this process and
all that it starts. `python -m tests.support.spark_classes` is the run whose classes are archived.
Invariant: as for the servers: without an archive Spark is slower at its start, and otherwise the same.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from cdcd.demo.stack.artefacts import Cache
from cdcd.demo.stack.class_archive import class_archive_flags
from cdcd.demo.stack.packages import installed_package, java
from cdcd.spark.session import session

VARIABLE = "PYSPARK_SUBMIT_ARGS"
TRAINED_WITHIN_S = 400.0
"""It uses 25 seconds of CPU time, which a busy machine has not at once."""


def use_class_archive(cache: Cache) -> None:
    """Let Spark use the archive. The first call on a machine starts a Spark to build it."""
    if VARIABLE in os.environ:
        return
    cache.root.mkdir(parents=True, exist_ok=True)
    artefact = cache.root / f"spark-{version('pyspark')}"
    if flags := class_archive_flags(artefact, java(), _train, installed_package("pyspark") / "jars"):
        os.environ[VARIABLE] = _arguments(flags)


def _arguments(flags: Sequence[str]) -> str:
    return f"--conf 'spark.driver.defaultJavaOptions={' '.join(flags)}' pyspark-shell"


def _train(flags: Sequence[str]) -> None:
    subprocess.run(
        [sys.executable, "-m", __name__],
        env={**os.environ, VARIABLE: _arguments(flags)},
        cwd=Path(__file__).parents[2],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=TRAINED_WITHIN_S,
        check=False,  # the archive is there, or it is not
    )


def _batch(spark: SparkSession, folder: Path) -> None:
    rows = spark.range(1000).withColumn("text", F.col("id").cast("string"))
    rows.repartition(2).write.parquet(str(folder / "rows"))
    read = spark.read.parquet(str(folder / "rows"))
    read.groupBy((F.col("id") % 7).alias("k")).agg(F.max("text"), F.count("*")).orderBy("k").collect()
    read.createOrReplaceTempView("rows")
    spark.sql("SELECT a.id FROM rows a JOIN rows b ON a.id = b.id WHERE b.text > '5'").toArrow()
    spark.createDataFrame([(1, "a")], "id int, text string").mapInArrow(_same, "id int, text string").collect()


def _same(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


def _stream(spark: SparkSession, folder: Path) -> None:
    source = spark.readStream.schema("id long, text string").parquet(str(folder / "rows"))
    writer = source.writeStream.foreachBatch(lambda frame, _number: frame.count())
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()


def main() -> None:
    """Use what the tests use most; end the JVM, which then writes the archive."""
    spark = session("classes", shuffle_partitions=2)
    process = spark.sparkContext._gateway.proc  # type: ignore[union-attr]
    with tempfile.TemporaryDirectory(prefix="cdcd-classes-") as folder:
        _batch(spark, Path(folder))
        _stream(spark, Path(folder))
    spark.stop()
    process.stdin.close()
    process.wait(TRAINED_WITHIN_S)


if __name__ == "__main__":
    main()
