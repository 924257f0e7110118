"""A local Spark session for demos and tests, and a function that runs a query to its end.

In: a name and a number of cores.  Out: a session on 127.0.0.1, without a UI, with little memory.
In: a function that starts a query.  Out: the query's error, or None (`run_to_end`, for any session).
Invariant: the workers run the same Python.  Must not: be needed on a cluster; `mirror` works with any session.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

LATE_WORKER = "Python worker failed to connect back"
STARTS = 6
log = logging.getLogger("cdcd.spark.session")


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


def run_to_end(
    start: Callable[[], StreamingQuery], stopping: threading.Event | None = None
) -> StreamingQueryException | None:
    """Run a query until it ends by itself or `stopping` is set; return its error, or None.

    Spark gives the driver's Python worker of a source 10 seconds to start, and has no setting for that; a busy
    machine sometimes needs longer. Such a query has done nothing yet, so it is started again, a few times.
    """
    asked = stopping or threading.Event()
    failure = None
    for _ in range(STARTS):
        query = start()
        while query.isActive and not asked.wait(0.2):
            pass
        failure = query.exception()
        query.stop()
        if failure is None or LATE_WORKER not in str(failure) or asked.is_set():
            break
        log.warning("Spark's Python worker did not start within 10 s; the query starts again")
    return failure
