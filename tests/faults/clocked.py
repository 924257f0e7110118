"""cdcd with a wall clock that somebody sets: `python -m tests.faults.clocked --config FILE`.

In: the file that CDCD_TEST_CLOCK names, which holds how many seconds the clock is ahead.  Out: as cdcd.
The monotonic clock is left alone, as the system leaves it alone when its clock is set.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

_AHEAD = Path(os.environ["CDCD_TEST_CLOCK"])
_time, _time_ns = time.time, time.time_ns


def _ahead_s() -> float:
    return float(_AHEAD.read_text() or 0)


time.time = lambda: _time() + _ahead_s()
time.time_ns = lambda: _time_ns() + int(_ahead_s() * 1e9)

from cdcd.cli import main  # noqa: E402 - whoever takes the clock by its name has to take this one

sys.exit(main())
