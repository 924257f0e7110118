"""`make spark-matrix`: the tests of the reading side with each supported series of Spark.

In: --series, and arguments for pytest.  Out: pytest's output for each series; exit status 1 if a test failed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

from tests.support.spark_versions import SERIES, python_with_spark

PATHS = ["tests/spark", "tests/unit/spark", "tests/unit/columnar"]
NO_TESTS_FAILED = 0


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
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
