"""What commands say to people: each line struck out, escaped and cut (`cdcd.redaction`).

In: lines, which may hold a server's words and names.  Out: the same on standard output or standard error.
Invariant: what comes in as one line goes out as one line.
Must not: be used for what other programs read (JSON, YAML), which has escapes of its own.
"""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Iterable
from types import TracebackType
from typing import TextIO

from cdcd.redaction import MAX_CHARACTERS, clean, clean_lines

__all__ = ["ascii_escapes", "say", "show_uncaught"]

_UNPRINTABLE = re.compile(r"[^\n\x20-\x7e]")  # a line break is of the layout: in a string JSON has it escaped


def say(lines: Iterable[str], stream: TextIO | None = None) -> None:
    """Print the lines."""
    for line in lines:
        print(clean(line), file=stream, flush=True)


def show_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print what nobody has caught, as Python does, but struck out and escaped: `sys.excepthook`."""
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
        return
    lines = "".join(traceback.format_exception(kind, error, trace)).rstrip("\n")
    print(clean_lines(lines, 4 * MAX_CHARACTERS), file=sys.stderr)


def ascii_escapes(text: str) -> str:
    """Return JSON with escapes of JSON's own for what is no printable character, which may stay raw in it."""

    def escaped(found: re.Match[str]) -> str:
        character = found[0]
        if character.isprintable():
            return character
        units = character.encode("utf-16-be", "surrogatepass")
        return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))

    return _UNPRINTABLE.sub(escaped, text)
