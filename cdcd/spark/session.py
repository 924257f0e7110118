"""A local Spark session for demos and tests.

In: a name and a number of cores.  Out: a session on 127.0.0.1, without a UI, with little memory.
Invariant: the workers run this very Python.  Must not: be needed on a cluster; any session will do for `mirror`.
"""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession


def session(app: str, cores: str = "2", *, memory: str = "1g", shuffle_partitions: int = 4) -> SparkSession:
    """Return a new or the running local session."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    return (
        SparkSession.builder.appName(app)
        .master(f"local[{cores}]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", memory)
        .config("spark.driver.extraJavaOptions", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")
        .config("spark.sql.shuffle.partitions", str(shuffle_partitions))
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.timeType.enabled", "true")
        .config("spark.sql.execution.arrow.pyspark.enabled", "true")
        .config("spark.sql.streaming.minBatchesToRetain", "10")
        .config("spark.sql.streaming.noDataMicroBatches.enabled", "false")
        .config("spark.sql.adaptive.enabled", "false")
        .config("spark.log.level", "WARN")
        .getOrCreate()
    )
