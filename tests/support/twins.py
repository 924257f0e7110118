"""The two forms of a compiled kernel: a test that names both runs on both.

In: names of modules.  Out: those to run.
Invariant: the compiled one is left out only where it was not built and nobody asked for it (CDCD_KERNELS=compiled).
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from types import ModuleType

from cdcd.kernels import VARIABLE


def twins(twin: str, kernel: str) -> list[str]:
    """The modules' names, for `parametrize`."""
    return [twin, kernel] if is_wanted(kernel) else [twin]


def is_wanted(kernel: str) -> bool:
    """Whether the kernel is there, or has to be."""
    return os.environ.get(VARIABLE) == "compiled" or importlib.util.find_spec(kernel) is not None


def loaded(name: str) -> ModuleType:
    """The module; one that has to be there and is not is an error."""
    return importlib.import_module(name)


READING = ("cdcd.source.batch", "cdcd.source.reading")
"""Twin and kernel of what reads and cuts."""
