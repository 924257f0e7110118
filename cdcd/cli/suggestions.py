"""Error messages for unknown commands and options, with suggestions.

Comes in: the words of the command line, the commands' names.  Goes out: lines for stderr, none for a valid command.
Must not: run anything.
"""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, ClassVar, NoReturn


class Parser(argparse.ArgumentParser):
    """A parser that suggests an option of any command for an unknown one."""

    _options: ClassVar[set[str]] = set()

    def add_argument(self, *args: Any, **more: Any) -> argparse.Action:
        """Add the argument and record its names."""
        action = super().add_argument(*args, **more)
        self._options.update(action.option_strings)
        return action

    def error(self, message: str) -> NoReturn:
        """End with the message and a suggestion."""
        super().error(meant(message, self._options))


def complaint(words: Sequence[str], commands: Collection[str]) -> list[str]:
    """Return the error for an unknown command, with a suggestion; no lines for a known one."""
    word = _first_word(words)
    if word is None or word in commands:
        return []
    near = difflib.get_close_matches(word, sorted(commands), n=1)
    if near:
        return [f"cdcd: there is no command {word!r}; did you mean {near[0]!r}?"]
    if Path(word).is_file():
        return [f"cdcd: there is no command {word!r}; `cdcd --config {word}` runs the daemon with this file"]
    return [f"cdcd: there is no command {word!r}; the commands are {', '.join(sorted(commands))}"]


def meant(message: str, options: Collection[str]) -> str:
    """Return a parser's message with a suggestion for an unknown option."""
    words = message.partition("unrecognized arguments: ")[2].split()
    word = next((word.partition("=")[0] for word in words if word.startswith("-")), "")
    near = difflib.get_close_matches(word, sorted(options), n=1) if word else []
    return f"{message}; did you mean {near[0]}?" if near else message


def _first_word(words: Sequence[str]) -> str | None:
    """Return the first word that is neither an option nor an option's value."""
    is_value = False
    for word in words:
        if is_value:
            is_value = False
        elif word == "--config":
            is_value = True
        elif not word.startswith("-"):
            return word
    return None
