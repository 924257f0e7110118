"""cdcd with a wall clock that a test can set: `python -m tests.faults.clocked --config FILE`.

In: the file that CDCD_TEST_CLOCK names, with the number of seconds that the clock is ahead.  Out: as cdcd.
The monotonic clock does not change, as on a system whose wall clock is set.
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

from cdcd.cli import main  # noqa: E402 - modules that import time.time by name have to get this one

sys.exit(main())
