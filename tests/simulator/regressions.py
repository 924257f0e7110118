"""Shrunk cases that once found a bug; `python -m tests.simulator` prints such a case."""

from __future__ import annotations

from tests.simulator.judge import Case
from tests.simulator.kafka import Odds

REGRESSIONS = (
    # possible losses of prepared transactions were forgotten between sessions
    Case(39, steps=118, breaks=(0, 10), two_phase_from=0, is_daemon=True, is_foreign=True, odds=Odds()),
    Case(13, steps=48, breaks=(2,), two_phase_from=0, is_daemon=True, is_foreign=True, odds=Odds()),
    # F2: the confirmed position was one byte too high
    Case(0, steps=28, breaks=(3, 3), two_phase_from=0, is_daemon=True, is_foreign=False),
    # F76: a commit with an unknown result was treated as successful
    Case(16, steps=40, breaks=(), two_phase_from=0, is_daemon=True, is_foreign=False),
    # F4: the last transaction was written again
    Case(2, steps=4, breaks=(5,), two_phase_from=100, is_daemon=True, is_foreign=False, odds=Odds()),
    # an outstanding commit decides the next session's start, and the simulator did not wait for it
    Case(1635, steps=30, breaks=(6,), two_phase_from=0, is_daemon=True, is_foreign=False),
    Case(4896, steps=15, breaks=(1,), two_phase_from=1, is_daemon=True, is_foreign=False),
)
