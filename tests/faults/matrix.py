"""The fault matrix: `python -m tests.faults.matrix [NUMBER ...]` runs each fault's tests and prints the results.

In: docs/reliability.md, whose table has a row for each fault; the files test_fault_NN_*.py.  Out: a table,
and status 1 if a test failed or a fault had none. `--report FILE...` reads pytest's --junitxml of an earlier run.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "reliability.md"
NUMBERS = range(1, 39)
_ROW = re.compile(r"^\| (\d+) \| (.*?) \| (.*?) \| (.*?) \|$", re.MULTILINE)
_FILE = re.compile(r"\btest_fault_(\d\d)_")
_COUNTS = re.compile(r"(\d+) (passed|failed|error)")


def rows() -> dict[int, tuple[str, str, list[str]]]:
    """Return the page's table: by number, the fault, what cdcd does, and the names of its tests."""
    found = _ROW.findall(PAGE.read_text())
    return {int(number): (fault, does, names.split(", ")) for number, fault, does, names in found}


def files(number: int) -> list[Path]:
    """Return the test files of a fault."""
    return sorted(TESTS.rglob(f"{_prefix(number)}*.py"))


def names(number: int) -> list[str]:
    """Return the names of the fault's test files without their common prefix."""
    return [file.stem.removeprefix(_prefix(number)) for file in files(number)]


def _prefix(number: int) -> str:
    return f"test_fault_{number:02}_"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the faults' tests one after another, or read reports. Return 1 unless all passed."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.matrix", description=__doc__)
    parser.add_argument("numbers", nargs="*", type=int, help="the faults' numbers (default: all)")
    parser.add_argument(
        "--report", type=Path, nargs="+", help="read these files of pytest's --junitxml, and run nothing"
    )
    options = parser.parse_args(arguments)
    wanted = options.numbers or list(NUMBERS)
    reported = None if options.report is None else read_reports(options.report)
    good = 0
    for number in wanted:
        is_good, line = _run(number) if reported is None else _reported(reported[number])
        good += is_good
        print(f"{number:>3}  {line:<28}  {rows()[number][0]}", flush=True)
    print(f"{good} of {len(wanted)}")
    return 0 if good == len(wanted) else 1


@dataclass(slots=True)
class Reported:
    """The results of one fault's tests in the reports."""

    passed: int = 0
    failed: int = 0
    took_s: float = 0.0


def read_reports(paths: Sequence[Path]) -> dict[int, Reported]:
    """Return the results in pytest's JUnit reports by the fault's number. A skipped test counts as failed."""
    found = {number: Reported() for number in NUMBERS}
    for case in (case for path in paths for case in ElementTree.parse(path).iter("testcase")):
        if match := _FILE.search(case.get("classname", "")):
            reported = found[int(match[1])]
            reported.took_s += float(case.get("time", "0"))
            if any(case.find(name) is not None for name in ("failure", "error", "skipped")):
                reported.failed += 1
            else:
                reported.passed += 1
    return found


def _reported(reported: Reported) -> tuple[bool, str]:
    counts = [f"{reported.failed} failed"] * bool(reported.failed) + [f"{reported.passed} passed"] * bool(
        reported.passed
    )
    is_good = reported.passed > 0 and reported.failed == 0
    return is_good, f"{', '.join(counts) or 'nothing ran'}, {reported.took_s:.0f} s"


def _run(number: int) -> tuple[bool, str]:
    began_s = time.monotonic()
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not long"]
    command += map(str, files(number))
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=TESTS.parent)
    counts = ", ".join(" ".join(found) for found in _COUNTS.findall(done.stdout.rsplit("\n", 2)[-2]))
    if done.returncode:
        print(done.stdout[-4000:], file=sys.stderr)
    return done.returncode == 0, f"{counts or 'nothing ran'}, {time.monotonic() - began_s:.0f} s"


if __name__ == "__main__":
    sys.exit(main())
