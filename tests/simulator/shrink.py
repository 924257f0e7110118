"""Shrink a failing simulation while it fails in the same way.

In: a failing case.  Out: a case with less work, fewer sessions and fewer faults that fails with the same error.
Must not: confuse two failures: they are the same if the class of the error and its line are equal.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from dataclasses import replace

from tests.simulator.judge import Case, run
from tests.simulator.kafka import Odds

MOST_RUNS = 500


def failure_of(case: Case) -> tuple[str, str, int | None] | None:
    """Return the error of a failing case and its position; None if the case does not fail."""
    try:
        run(case)
    except Exception as error:  # noqa: BLE001 - every error is a failure of the simulation
        last = traceback.extract_tb(error.__traceback__)[-1]
        return type(error).__name__, last.filename, last.lineno
    return None


def shrunk(case: Case) -> Case:
    """Return the smallest failing case found."""
    failure, left = failure_of(case), MOST_RUNS
    assert failure is not None, "the case does not fail"
    smaller = iter(_smaller(case))
    while left and (one := next(smaller, None)) is not None:
        left -= 1
        if failure_of(one) == failure:
            case, smaller = one, iter(_smaller(one))
    return case


def _smaller(case: Case) -> Iterator[Case]:
    """Yield smaller cases, the smallest first."""
    for steps in (case.steps // 2, case.steps * 3 // 4, case.steps - 1):
        if 0 < steps < case.steps:
            yield replace(case, steps=steps)
    for at in range(len(case.breaks)):
        yield replace(case, breaks=case.breaks[:at] + case.breaks[at + 1 :])
    if case.odds != Odds():
        yield replace(case, odds=Odds())
    if case.is_foreign:
        yield replace(case, is_foreign=False)
    elif case.is_daemon:
        yield replace(case, is_daemon=False)
    if case.two_phase_from <= len(case.breaks) and not case.is_foreign:
        yield replace(case, two_phase_from=100)
    for at, limit in enumerate(case.breaks):
        for less in (limit // 2, limit - 1):
            if 0 <= less < limit:
                yield replace(case, breaks=(*case.breaks[:at], less, *case.breaks[at + 1 :]))
