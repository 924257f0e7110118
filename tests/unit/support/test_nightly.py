"""Cases that are left to the nightly run are marked, and none is lost."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.nightly import nightly, nightly_except


def split(cases: list[Any]) -> tuple[list[Any], list[Any]]:
    """Return the values of the cases that `make test` runs, and of those that it does not."""
    params = [case if hasattr(case, "marks") else pytest.param(*case) for case in cases]
    is_late = [any(mark.name == "nightly" for mark in param.marks) for param in params]
    return (
        [param.values for param, late in zip(params, is_late, strict=True) if not late],
        [param.values for param, late in zip(params, is_late, strict=True) if late],
    )


def test_all_but_the_selected_cases_are_marked() -> None:
    cases = [(14, "a"), (14, "b"), (18, "a"), (18, "b")]
    assert split(nightly_except(cases, (14, "b"), (18, "a"))) == (
        [(14, "b"), (18, "a")],
        [(14, "a"), (18, "b")],
    )


def test_a_case_is_found_by_its_id_or_by_a_function_of_it() -> None:
    named = [pytest.param(1, id="one"), pytest.param(2, marks=pytest.mark.long), pytest.param(3, id="three")]
    marked = nightly_except(named, "one", 2)
    assert split(marked) == ([(1,), (2,)], [(3,)])
    assert marked[2].id == "three"
    assert split(nightly_except([("ab",), ("c",)], 2, of=lambda case: len(case[0]))) == ([("ab",)], [("c",)])


def test_marks_that_a_case_has_stay() -> None:
    (marked,) = nightly_except([pytest.param(1, marks=pytest.mark.timeout(9))])
    assert {mark.name for mark in marked.marks} == {"timeout", "nightly"}
    assert split([nightly(1, 2)]) == ([], [(1, 2)])


def test_a_selected_case_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(AssertionError, match=r"no such cases: \['3'\]"):
        nightly_except(["1", "2"], "1", "3")
