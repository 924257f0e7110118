"""What is said to who has typed a command that there is not, or none.

Comes in: the words of the command line, the commands' names.  Goes out: lines for stderr, none where all is well.
Must not: run anything.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence
from pathlib import Path


def complaint(words: Sequence[str], commands: Collection[str]) -> list[str]:
    """Return what is wrong with the command, and what may have been meant."""
    word = _first_word(words)
    if word is None or word in commands:
        return []
    near = difflib.get_close_matches(word, sorted(commands), n=1)
    if near:
        return [f"cdcd: there is no command {word!r}; did you mean {near[0]!r}?"]
    if Path(word).is_file():
        return [f"cdcd: there is no command {word!r}; `cdcd --config {word}` runs the daemon with this file"]
    return [f"cdcd: there is no command {word!r}; there are {', '.join(sorted(commands))}"]


def _first_word(words: Sequence[str]) -> str | None:
    """Return the first word that is no option and no option's value."""
    is_value = False
    for word in words:
        if is_value:
            is_value = False
        elif word == "--config":
            is_value = True
        elif not word.startswith("-"):
            return word
    return None
