"""What the programs share that the benchmark runs with the Spark of its peer.

In: a number of cores, jars.  Out: a local session without a UI, whose workers run the same Python.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

from pyspark.sql import DataFrame, SparkSession

from tests.bench.usage import descendants_of


def peer_session(cores: int, jars: Sequence[str]) -> SparkSession:
    """Return a session with the JVM's own flags: a benchmark needs its fast compiler."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    return (
        SparkSession.builder.master(f"local[{cores}]")
        .config("spark.jars", ",".join(jars))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "2g")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )


def cost_s(way: Callable[[], DataFrame]) -> float:
    """Plan a frame and write it into a noop sink; return the CPU seconds of the JVM and its Python workers."""
    before = descendants_of(os.getpid())
    way().write.format("noop").mode("overwrite").save()
    return (descendants_of(os.getpid()) - before).total_s
