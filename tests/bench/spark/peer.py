"""What the programs share that the benchmark runs with the Spark of its peer.

In: a number of cores, jars.  Out: a local session without a UI, whose workers run the same Python; a query's cost.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from tests.bench.usage import children_of, cpu_of, descendants_of


def peer_session(cores: int, jars: Sequence[str], more: Mapping[str, str] | None = None) -> SparkSession:
    """Return a session with the JVM's own flags: a benchmark needs its fast compiler. `more`: further settings."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    made = (
        SparkSession.builder.master(f"local[{cores}]")
        .config("spark.jars", ",".join(jars))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "2g")
        .config("spark.log.level", "ERROR")
    )
    for name, value in (more or {}).items():
        made = made.config(name, value)
    return made.getOrCreate()


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU seconds. `jvm_s`: in a local session that of the driver and of its executor; `python_s`: of its workers."""

    jvm_s: float = 0.0
    python_s: float = 0.0
    broker_s: float = 0.0

    @property
    def spark_s(self) -> float:
        """The JVM and its workers."""
        return self.jvm_s + self.python_s


def cost(way: Callable[[], DataFrame], broker: int | None = None) -> Cost:
    """Plan a frame and write it into a noop sink; return what it has cost. `broker`: a process id."""
    before = _used(broker)
    way().write.format("noop").mode("overwrite").save()
    after = _used(broker)
    return Cost(
        after.jvm_s - before.jvm_s, after.python_s - before.python_s, after.broker_s - before.broker_s
    )


def _used(broker: int | None) -> Cost:
    below = descendants_of(os.getpid()).total_s
    jvm_s = sum(used.total_s for pid in children_of(os.getpid()) if (used := cpu_of(pid)) is not None)
    of_broker = None if broker is None else cpu_of(broker)
    return Cost(jvm_s, below - jvm_s, 0.0 if of_broker is None else of_broker.total_s)
