"""Few heaps for the threads of the process, so that the allocator gives one thread what another has given back.

In: nothing.  Out: glibc's malloc with at most `HEAPS` arenas; any other is left as it is, and so is what
MALLOC_ARENA_MAX or GLIBC_TUNABLES say.
By itself glibc makes as many as eight for each processor, and what is freed in one stays there: with sessions made
again all the time cdcd had 26 MiB free and kept after ten minutes, and more each minute; with two heaps 5 MiB.
Must not: be called when there are threads: the heaps that they have stay.
"""

from __future__ import annotations

import ctypes
import os

__all__ = ["limit_malloc_arenas"]

HEAPS = 2
"""One for the thread of the event loop, one for all others."""
_M_ARENA_MAX = -8


def limit_malloc_arenas() -> None:
    """Bound the number of heaps from now on."""
    if "MALLOC_ARENA_MAX" in os.environ or "arena_max" in os.environ.get("GLIBC_TUNABLES", ""):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, HEAPS)
