"""The page of faults has a row for each fault, and each row has a test file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.faults.__main__ import ALONE, selected
from tests.faults.matrix import NUMBERS, files, main, names, rows
from tests.faults.test_fault_01_failpoints import ALL_LOADS, FEW_LOADS, LOADS


def test_the_page_has_a_row_for_each_fault() -> None:
    assert list(rows()) == list(NUMBERS)


ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("number", NUMBERS)
def test_each_fault_has_tests_under_its_number_and_the_page_names_them(number: int) -> None:
    assert files(number)
    assert rows()[number][2] == names(number)


def test_what_the_suite_leaves_out_is_what_make_faults_runs() -> None:
    makefile = (ROOT / "Makefile").read_text()
    (named,) = re.findall(r"^OF_FAULTS := (.*)$", makefile, re.M)
    assert [f"tests/faults/test_{name}.py" for name in named.split()] == ALONE
    assert "--ignore=tests/faults/test_%.py,$(OF_FAULTS)" in makefile
    assert 'make faults ARGS="--few' in (ROOT / ".ci" / "run").read_text()


@pytest.mark.parametrize("loads", [FEW_LOADS, ALL_LOADS])
def test_each_of_these_files_has_a_part_in_the_selection(loads: tuple[str, ...]) -> None:
    assert {test.split("::")[0] for test in selected(loads)} == set(ALONE)
    assert set(loads) <= set(LOADS)


REPORT = """<?xml version="1.0" encoding="utf-8"?>
<testsuites><testsuite name="pytest">
<testcase classname="tests.faults.test_fault_02_random_kills" name="a" time="1.5" />
<testcase classname="tests.faults.test_fault_02_copy_restarts" name="b" time="2.5" />
<testcase classname="tests.faults.test_fault_03_frozen" name="c" time="1.0" />
<testcase classname="tests.faults.test_fault_03_frozen" name="d" time="0.1"><failure /></testcase>
<testcase classname="tests.faults.test_fault_04_stops" name="e" time="0.1"><skipped /></testcase>
<testcase classname="tests.unit.test_lsn" name="f" time="0.1" />
</testsuite></testsuites>
"""


def test_a_report_is_read_and_what_failed_was_skipped_or_did_not_run_is_not_good(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.xml"
    report.write_text(REPORT)
    assert main(["2", "--report", str(report)]) == 0
    assert "2 passed, 4 s" in capsys.readouterr().out
    assert [main([str(number), "--report", str(report)]) for number in (3, 4, 5)] == [1, 1, 1]
    output = capsys.readouterr().out
    assert "1 failed, 1 passed, 1 s" in output
    assert "nothing ran" in output
