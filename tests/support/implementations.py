"""A C extension and its Python fallback: a test that names both runs with both.

In: module names.  Out: the modules to test.
Invariant: the extension is omitted only if it was not built and CDCD_EXTENSIONS=compiled does not require it.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from types import ModuleType

from cdcd.extensions import VARIABLE


def implementations(fallback: str, extension: str) -> list[str]:
    """Return the module names, for `parametrize`."""
    return [fallback, extension] if is_wanted(extension) else [fallback]


def is_wanted(extension: str) -> bool:
    """Return whether the extension is built or required."""
    return os.environ.get(VARIABLE) == "compiled" or importlib.util.find_spec(extension) is not None


def loaded(name: str) -> ModuleType:
    """Return the module; raise an error if a required module is missing."""
    return importlib.import_module(name)


READING = ("cdcd.source.batch", "cdcd.source.reading")
"""The Python fallback and the C extension that read from libpq and divide into items."""
