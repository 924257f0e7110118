"""Which cases of a test run at each change, and which only in `make nightly`.

In: the cases of a parametrisation, and those to keep.  Out: the same cases; the others have the marker `nightly`.
Invariant: each case is in one of both runs. A case to keep that does not exist is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def nightly(*values: Any, id: str | None = None) -> Any:
    """Return one case, which runs in `make nightly` only."""
    return pytest.param(*values, id=id, marks=pytest.mark.nightly)


def nightly_except(
    cases: Iterable[Any], *selected: Any, of: Callable[[Any], Any] = lambda case: case
) -> list[Any]:
    """Return the cases, all but those to keep marked `nightly`. A tuple is one case of several parameters.

    `kept`: what `of` returns for a case; for a `pytest.param`, its id or, without one, its values.
    """
    found = [(case, _key(case, of)) for case in cases]
    missing = [one for one in selected if all(one != key for _, key in found)]
    assert not missing, f"no such cases: {missing}"
    return [case if any(one == key for one in selected) else _marked(case) for case, key in found]


def _key(case: Any, of: Callable[[Any], Any]) -> Any:
    if not hasattr(case, "marks"):
        return of(case)
    return case.id or (case.values[0] if len(case.values) == 1 else case.values)


def _marked(case: Any) -> Any:
    if hasattr(case, "marks") and hasattr(case, "values"):
        return pytest.param(*case.values, id=case.id, marks=[*case.marks, pytest.mark.nightly])
    return nightly(*case) if isinstance(case, tuple) else nightly(case)
