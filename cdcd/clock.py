"""The clock that measures pauses and time-outs.

In: nothing.  Out: microseconds since an arbitrary moment.
Invariant: the clock never goes back, even when the system time is changed.
"""

from __future__ import annotations

import time

__all__ = ["monotonic_us"]


def monotonic_us() -> int:
    """Return the time of the clock that the event loop uses for its time-outs, in microseconds.

    The running loop is not asked: each such call makes a system call to check whether the process was forked.
    """
    return time.monotonic_ns() // 1_000
