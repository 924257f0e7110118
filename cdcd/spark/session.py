"""A Spark session, local or of the cluster that the program was submitted to, and how to run a query to its end.

In: a name, a number of cores.  Out: a local session on 127.0.0.1, without a UI, with little memory (`session`); or
the session of spark-submit, where that runs the program (`submitted_or_local`).
In: a function that starts a query.  Out: the query's error, or None (`run_to_end`, for any session); `reason_of` has
one of Spark's errors in a line.
Invariant: the workers of a local session run the same Python.  Must not: change the resources of a cluster.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
from collections.abc import Callable
from typing import Protocol

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from cdcd.errors import CdcdError

SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""The variable that spark-submit sets for the programs that it runs."""
_SQL = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.timeType.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.streaming.minBatchesToRetain": "10",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
}
NO_LOG = "OFF"
"""A log level for commands that show no value of a row: a line of the JVM may have one, in the text of an error."""
_OF_PY4J = "An error occurred while calling "
MOST_TASKS = 10_000
LATE_WORKER = "Python worker failed to connect back"
STARTS = 6
_OF_CDCD = re.compile(r"\bCDCD-[A-Z-]+: .*")
log = logging.getLogger("cdcd.spark.session")


class Query(Protocol):
    """The part of Spark's streaming query, and of `MirrorQuery`, that ends a query and returns its error."""

    @property
    def isActive(self) -> bool: ...  # noqa: D102, N802 - the name that Spark gives it

    def exception(self) -> Exception | None: ...  # noqa: D102

    def stop(self) -> None: ...  # noqa: D102


def session(
    app: str, cores: str = "2", *, memory: str = "1g", shuffle_partitions: int = 4, log_level: str = "WARN"
) -> SparkSession:
    """Return a new or the running local session. `log_level`: of the JVM's lines on standard error."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    return (
        SparkSession.builder.appName(app)
        .master(f"local[{cores}]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", memory)
        .config("spark.driver.extraJavaOptions", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")
        .config("spark.sql.shuffle.partitions", str(shuffle_partitions))
        .config("spark.sql.adaptive.enabled", "false")
        .config("spark.log.level", log_level)
        .config(map=_SQL)
        .getOrCreate()
    )


def submitted_or_local(app: str, cores: str, memory: str, log_level: str = "WARN") -> SparkSession:
    """Return the session of spark-submit, with its resources, where that runs the program; otherwise a local one."""
    if SUBMITTED in os.environ:
        return SparkSession.builder.appName(app).config(map=_SQL).getOrCreate()
    return session(app, cores, memory=memory, log_level=log_level)


def reason_of(error: Exception) -> str:
    """Return the text of cdcd's error inside one of Spark's, without lines of Python and Java; else one line.

    Of an error of Arrow its type.
    """
    if isinstance(error, pa.ArrowException):
        return first_line(error)
    found = _OF_CDCD.findall(str(error))
    return str(found[-1]).strip() if found else first_line(error)


def first_line(error: Exception) -> str:
    """Return what an error says, without a trace; of an error of Java that PySpark does not convert, Java's text."""
    if isinstance(error, pa.ArrowException):  # its text may have values
        return type(error).__name__
    text = str(error)
    if text.startswith(_OF_PY4J):
        text = text.partition("\n: ")[2] or text
    return next(iter(text.strip().splitlines()), type(error).__name__)


def is_shown_in_a_line(error: Exception) -> bool:
    """Return whether a command shows only the reason of an error; a trace of Arrow's errors may have values."""
    return isinstance(error, CdcdError | pa.ArrowException) or is_of_spark(error)


def is_of_spark(error: Exception) -> bool:
    """Return whether an error is of PySpark, or of py4j: of Java, such as for a class that it does not find."""
    return isinstance(error, PySparkException) or type(error).__module__.startswith("py4j.")


def parallelism(spark: SparkSession) -> int:
    """Return how many tasks Spark plans by default; by a small job, because Spark Connect has no SparkContext."""
    tasks = spark.range(MOST_TASKS).select(F.spark_partition_id().alias("task"))
    return int(tasks.agg(F.max("task")).collect()[0][0]) + 1


def is_remote(spark: SparkSession) -> bool:
    """Return whether a session is one of Spark Connect."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def run_to_end(
    start: Callable[[], Query], stopping: threading.Event | None = None, *, starts: int = STARTS
) -> Exception | None:
    """Run a query until it ends by itself or `stopping` is set; return its error, or None.

    Spark gives the driver's Python worker of a source 10 seconds to start, and has no setting for that; a busy
    machine sometimes needs longer. Such a query has done nothing yet, so it is started again, up to
    `starts` times in all.
    """
    asked = stopping or threading.Event()
    failure = None
    for _ in range(starts):
        query = start()
        while query.isActive and not asked.wait(0.2):
            pass
        failure = query.exception()
        query.stop()
        if failure is None or LATE_WORKER not in str(failure) or asked.is_set():
            break
        log.warning("Spark's Python worker did not start within 10 s; the query starts again")
    return failure
