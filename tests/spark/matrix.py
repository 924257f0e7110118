"""`make spark-matrix`: the tests of the reading side with each supported series of Spark.

With the series for which there is spark-avro also both engines of `decode`, and with that of Iceberg also Spark as a
reader of its tables, each in a process whose JVM has the jar.
In: --series, and arguments for pytest.  Out: pytest's output for each series; exit status 1 if a test failed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

from tests.bench.spark.jars import AVRO_SERIES, ICEBERG_SERIES
from tests.support.spark_versions import SERIES, python_with_spark

PATHS = ["tests/spark", "tests/unit/spark", "tests/unit/columnar"]
WITH_JAR = {
    AVRO_SERIES: ("spark-avro", "tests/spark/engines_compared.py"),
    ICEBERG_SERIES: ("Iceberg", "tests/spark/iceberg_by_spark.py"),
}
NO_TESTS_FAILED, NO_TESTS_COLLECTED = 0, 5


def main() -> int:
    """Run the tests with each series."""
    parser = argparse.ArgumentParser(prog="make spark-matrix", description=__doc__)
    parser.add_argument("--series", default=",".join(SERIES), help="series of Spark, with commas")
    options, others = parser.parse_known_args()
    failed = []
    for series in options.series.split(","):
        python, begun_s = python_with_spark(series), time.monotonic()
        command = [str(python), "-m", "pytest", "--numprocesses", "3", "--dist", "loadfile", *PATHS, *others]
        status = subprocess.run(command).returncode
        print(f"Spark {series}: exit status {status}, {time.monotonic() - begun_s:.0f} s", flush=True)
        if status != NO_TESTS_FAILED:
            failed.append(series)
        if series in WITH_JAR:
            jar, path = WITH_JAR[series]
            status = subprocess.run([str(python), "-m", "pytest", path, *others]).returncode
            print(f"Spark {series} with {jar}: exit status {status}", flush=True)
            if status not in (NO_TESTS_FAILED, NO_TESTS_COLLECTED if others else NO_TESTS_FAILED):
                failed.append(f"{series} with {jar}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
