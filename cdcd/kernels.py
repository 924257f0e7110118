"""Which kernels of the hot path run: the compiled ones, or their twins in Python.

In: the environment's CDCD_KERNELS: `auto` (what is there), `compiled` (an error where one is missing), `python`.
Out: the compiled module of a name, or None for its twin.
Invariant: a twin is the kernel's specification; which of them runs changes the speed and nothing else.
"""

from __future__ import annotations

import importlib
import os
from types import ModuleType

VARIABLE = "CDCD_KERNELS"
KERNELS = ("cdcd.avro.rows", "cdcd.sink._produce_batch", "cdcd.source.reading", "cdcd.txn._frames")
_CHOICES = ("auto", "compiled", "python")


def compiled(name: str) -> ModuleType | None:
    """Return a kernel's compiled module, None where its twin is to run.

    Ends the process where it was asked for and is not there.
    """
    choice = os.environ.get(VARIABLE, "") or "auto"
    if choice not in _CHOICES:
        raise SystemExit(f"{VARIABLE}: one of {', '.join(_CHOICES)}, not {choice!r}")
    if choice == "python":
        return None
    try:
        return importlib.import_module(name)
    except ImportError as error:
        if choice == "compiled":
            raise SystemExit(
                f"{VARIABLE}=compiled: {name} is not there ({error}); install cdcd where there is a C compiler"
            ) from error
        return None


def is_fallback() -> bool:
    """Return whether a twin runs that nobody has asked for."""
    chosen = os.environ.get(VARIABLE, "") or "auto"
    return chosen == "auto" and any(compiled(name) is None for name in KERNELS)


def running() -> str:
    """Return what runs, in the words of `cdcd --version`."""
    found = [name for name in KERNELS if compiled(name) is not None]
    if len(found) == len(KERNELS):
        return "compiled kernels"
    missing = ", ".join(name for name in KERNELS if name not in found)
    return f"kernels in Python: {missing}"
