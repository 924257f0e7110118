"""Choose the implementation of the hot path: the C extensions, or their Python fallbacks.

In: the environment variable CDCD_EXTENSIONS: `auto` (the extensions that are installed), `compiled` (a missing
extension is an error), `python`.  Out: the extension of a name, or None for its fallback.
Invariant: a fallback is its extension's specification; the choice changes the speed and nothing else.
"""

from __future__ import annotations

import importlib
import os
from types import ModuleType

VARIABLE = "CDCD_EXTENSIONS"
EXTENSIONS = (
    "cdcd.avro.rows",
    "cdcd.columnar._arrow",
    "cdcd.columnar._keys",
    "cdcd.sink._produce_batch",
    "cdcd.snapshot._copy_rows",
    "cdcd.source.reading",
    "cdcd.txn._frames",
    "cdcd.verify._entries",
    "cdcd.verify._hashes",
)
_CHOICES = ("auto", "compiled", "python")


def extension(name: str) -> ModuleType | None:
    """Return a C extension's module, or None if its Python fallback is to run.

    Raises SystemExit if the variable requires the extension and it is missing, or if the variable's value is unknown.
    """
    choice = os.environ.get(VARIABLE, "") or "auto"
    if choice not in _CHOICES:
        raise SystemExit(f"{VARIABLE} must be one of {', '.join(_CHOICES)}, not {choice!r}")
    if choice == "python":
        return None
    try:
        return importlib.import_module(name)
    except ImportError as error:
        if choice == "compiled":
            raise SystemExit(
                f"{VARIABLE}=compiled: {name} is missing ({error}); install cdcd on a machine with a C compiler"
            ) from error
        return None


def is_fallback() -> bool:
    """Return whether a Python fallback runs although CDCD_EXTENSIONS does not ask for it."""
    chosen = os.environ.get(VARIABLE, "") or "auto"
    return chosen == "auto" and any(extension(name) is None for name in EXTENSIONS)


def implementation() -> str:
    """Return the implementation in use, as `cdcd --version` prints it."""
    missing = [name for name in EXTENSIONS if extension(name) is None]
    return f"Python fallback for {', '.join(missing)}" if missing else "C extensions"
