"""The clock that pauses and patience are measured by.

In: nothing.  Out: microseconds since any moment.
Invariant: it never goes back, whatever is done to the time of day.
"""

from __future__ import annotations

import time

__all__ = ["monotonic_us"]


def monotonic_us() -> int:
    """Return the event loop's own clock, that of its time-outs too, without asking which loop it is.

    That would be a system call each time: the loop looks whether the process has been forked.
    """
    return time.monotonic_ns() // 1_000
