"""Python's cyclic garbage collector, set for a process whose work makes no cycles.

In: nothing.  Out: a collector that looks less often, and not at what is there for good.
A look comes after so many new containers, and a row is one: with Python's own 700 the collector took a tenth of the
loop's time under load, and each of its full looks went through all that the imports have made.
Must not: be called before what lasts for the process is made.
"""

from __future__ import annotations

import gc

__all__ = ["tune_gc"]

NEW_CONTAINERS = 10_000
"""Until the young are looked at: what a session leaves in cycles is some megabytes at most."""


def tune_gc() -> None:
    """Let the collector leave what exists alone, and look at what is new less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(NEW_CONTAINERS, *gc.get_threshold()[1:])
