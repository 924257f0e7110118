"""The page of faults and their tests belong together: a row for each, and a file for each row."""

from __future__ import annotations

import pytest

from tests.faults.matrix import NUMBERS, files, rows


def test_the_page_has_a_row_for_each_fault() -> None:
    assert list(rows()) == list(NUMBERS)


@pytest.mark.parametrize("number", NUMBERS)
def test_each_fault_has_tests_under_its_number(number: int) -> None:
    assert files(number)
