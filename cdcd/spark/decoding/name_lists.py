"""Parameters that are lists of names: a text in place of a list is an error.

In: the values of parameters, by their names.  Out: nothing, or ConfigError.
Invariant: no text is taken for the list of its letters.
Must not: know which names there are.
"""

from __future__ import annotations

from collections.abc import Sequence

from cdcd.errors import ConfigError

__all__ = ["check_lists"]


def check_lists(**given: Sequence[str] | None) -> None:
    """Raise ConfigError for a parameter that is a text."""
    for parameter, names in given.items():
        if isinstance(names, str):
            raise ConfigError(f"{parameter} has to be a list of names", hint=f"write {parameter}=[...]")
