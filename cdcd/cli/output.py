"""The output of commands for people: each line without secrets, escaped and cut (`cdcd.redaction`).

The commands of cdcd that a line names in backquotes have the configuration file (`cdcd.errors.commands`).

In: lines, which may contain a server's messages and names.  Out: the same lines on standard output or standard error.
Invariant: one line of input is one line of output.
Must not: be used for output to other programs (JSON, YAML), which has its own escapes.
"""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Iterable
from types import TracebackType
from typing import TextIO

from cdcd.errors.commands import typeable
from cdcd.redaction import MAX_CHARACTERS, clean, clean_lines

__all__ = ["ascii_escapes", "say", "show_uncaught"]

_UNPRINTABLE = re.compile(r"[^\n\x20-\x7e]")  # a raw line break is layout: in a string, JSON escapes it


def say(lines: Iterable[str], stream: TextIO | None = None) -> None:
    """Print the lines."""
    for line in lines:
        print(clean(typeable(line)), file=stream, flush=True)


def show_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an uncaught exception as Python does, but without secrets and escaped: `sys.excepthook`.

    Ctrl-C needs no explanation: Python ends the process by the signal, so that a shell's script ends, too.
    """
    if issubclass(kind, KeyboardInterrupt):
        return
    lines = "".join(traceback.format_exception(kind, error, trace)).rstrip("\n")
    print(clean_lines(lines, 4 * MAX_CHARACTERS), file=sys.stderr)


def ascii_escapes(text: str) -> str:
    """Return the JSON with unprintable characters as JSON escapes: JSON itself allows them raw."""

    def escaped(found: re.Match[str]) -> str:
        character = found[0]
        if character.isprintable():
            return character
        units = character.encode("utf-16-be", "surrogatepass")
        return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))

    return _UNPRINTABLE.sub(escaped, text)
