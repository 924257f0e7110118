"""`make mirror-matrix`: mirrors in each format and SCD type under each fault, with each supported series of Spark.

In: --series, and arguments for pytest.  Out: a table with a line for each fault and series, a column for each format
and SCD type: the result of `test_fault_matrix`. Exit status 1 if a case failed, or did not run.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from tempfile import TemporaryDirectory

from cdcd.spark.target.versions import SCD_TYPES, TABLE_FORMATS
from tests.support.spark_versions import SERIES, python_with_spark

TESTS = "tests/spark/test_fault_matrix.py"
_CELL = re.compile(r"\[(?P<format>\w+)-(?P<scd>\d)-(?P<fault>\w+)\]")
Cell = tuple[str, str]
PASSED, FAILED, ABSENT = "ok", "FAILED", "-"


def main() -> int:
    """Run the cases, and print the table."""
    parser = argparse.ArgumentParser(prog="make mirror-matrix", description=__doc__)
    parser.add_argument("--series", default=",".join(SERIES), help="series of Spark, with commas")
    options, others = parser.parse_known_args()
    columns = [(one, str(scd)) for one in TABLE_FORMATS for scd in SCD_TYPES]
    is_whole = True
    lines = []
    for series in options.series.split(","):
        found = run(series, others)
        for fault in sorted({fault for fault, _ in found}):
            results = [found.get((fault, f"{one}-{scd}"), ABSENT) for one, scd in columns]
            is_whole = is_whole and set(results) == {PASSED}
            lines.append(f"{fault:20} {series:6} " + " ".join(f"{result:>12}" for result in results))
        is_whole = is_whole and bool(found)
    print(f"{'fault':20} {'Spark':6} " + " ".join(f"{one + ' ' + scd:>12}" for one, scd in columns))
    print(*lines, sep="\n")
    return 0 if is_whole else 1


def run(series: str, others: list[str]) -> dict[Cell, str]:
    """Return the result of each case, by fault and by format and SCD type."""
    with TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        command = [
            str(python_with_spark(series)),
            "-m",
            "pytest",
            "-m",
            "nightly",
            "-q",
            f"--junitxml={report}",
        ]
        subprocess.run([*command, TESTS, *others], check=False)
        return results_of(report.read_text()) if report.exists() else {}


def results_of(report: str) -> dict[Cell, str]:
    """Return the results of a report of pytest. Pure."""
    found: dict[Cell, str] = {}
    for case in ET.fromstring(report).iter("testcase"):
        if cell := _CELL.search(case.get("name", "")):
            key = (cell["fault"], f"{cell['format']}-{cell['scd']}")
            if case.find("skipped") is None:
                bad = case.find("failure") is not None or case.find("error") is not None
                found[key] = FAILED if bad else PASSED
    return found


if __name__ == "__main__":
    sys.exit(main())
