"""A C extension and its Python fallback: a test that names both runs on both.

In: names of modules.  Out: those to run.
Invariant: the extension is left out only where it was not built and nobody asked for it (CDCD_EXTENSIONS=compiled).
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from types import ModuleType

from cdcd.extensions import VARIABLE


def implementations(fallback: str, extension: str) -> list[str]:
    """The modules' names, for `parametrize`."""
    return [fallback, extension] if is_wanted(extension) else [fallback]


def is_wanted(extension: str) -> bool:
    """Whether the extension is there, or has to be."""
    return os.environ.get(VARIABLE) == "compiled" or importlib.util.find_spec(extension) is not None


def loaded(name: str) -> ModuleType:
    """The module; one that has to be there and is not is an error."""
    return importlib.import_module(name)


READING = ("cdcd.source.batch", "cdcd.source.reading")
"""The Python fallback and the C extension that read and cut."""
