"""Which implementation of the hot path runs: the C extensions, or their Python fallbacks.

In: the environment's CDCD_EXTENSIONS: `auto` (what is there), `compiled` (an error where one is missing), `python`.
Out: the extension of a name, or None for its fallback.
Invariant: a fallback is its extension's specification; which of them runs changes the speed and nothing else.
"""

from __future__ import annotations

import importlib
import os
from types import ModuleType

VARIABLE = "CDCD_EXTENSIONS"
EXTENSIONS = ("cdcd.avro.rows", "cdcd.sink._produce_batch", "cdcd.source.reading", "cdcd.txn._frames")
_CHOICES = ("auto", "compiled", "python")


def extension(name: str) -> ModuleType | None:
    """Return a C extension's module, None where its Python fallback is to run.

    Ends the process where the extension was asked for and is missing.
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
                f"{VARIABLE}=compiled: {name} is missing ({error}); install cdcd where there is a C compiler"
            ) from error
        return None


def is_fallback() -> bool:
    """Return whether a Python fallback runs that nobody has asked for."""
    chosen = os.environ.get(VARIABLE, "") or "auto"
    return chosen == "auto" and any(extension(name) is None for name in EXTENSIONS)


def implementation() -> str:
    """Return what runs, in the words of `cdcd --version`."""
    missing = [name for name in EXTENSIONS if extension(name) is None]
    return f"Python fallback for {', '.join(missing)}" if missing else "C extensions"
