"""The output of `cdcd snapshot status`: a table for people, drawn again while a person watches, or JSON.

In: reports.  Out: lines.
Invariant: an unknown value is "-", never 0; a table that is still being copied is never shown as complete. Names and
reasons cannot act on the terminal; what is drawn on a terminal is never wider or higher than it.
Must not: ask anything.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
import unicodedata
from collections.abc import Sequence

from cdcd.cli.output import ascii_escapes, say
from cdcd.redaction import clean, strike
from cdcd.snapshot.control import TableReport

__all__ = ["NOTHING", "Lines", "Screen", "as_json", "table_lines"]

NOTHING = "no table is being copied"
_HEAD = ("TABLE", "DONE", "ROWS", "ESTIMATE", "ROWS/S", "LEFT", "STATE", "")
_RIGHT = {"ROWS", "ESTIMATE", "ROWS/S", "LEFT"}
_BAR_CHARACTERS = 10
_UNKNOWN = "-"
_MOST_PERCENT = 99
_NAME_CHARACTERS, _REASON_CHARACTERS = 200, 500


def table_lines(reports: Sequence[TableReport]) -> list[str]:
    """Return a heading and one line for each table."""
    if not reports:
        return [NOTHING]
    rows = [_HEAD, *map(_cells, reports)]
    widths = [max(map(_columns, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            _padded(cell, width, name in _RIGHT) for cell, width, name in zip(row, widths, _HEAD, strict=True)
        ).rstrip()
        for row in rows
    ]


def as_json(reports: Sequence[TableReport], indent: int | None = None) -> str:
    """Return the reports as JSON for other programs."""
    pages = [
        {name: strike(value) if isinstance(value, str) else value for name, value in fields.items()}
        for fields in map(dataclasses.asdict, reports)
    ]
    return ascii_escapes(json.dumps(pages, indent=indent))


class Lines:
    """Prints the lines that have changed: for a pipe or a file."""

    def __init__(self) -> None:
        self._printed: set[str] = set()

    def show(self, lines: Sequence[str]) -> None:
        """Print the lines that the last call did not have."""
        say(line for line in lines if line not in self._printed)
        self._printed = set(lines)


class Screen:
    """Draws the lines in the place of the former ones: for a terminal."""

    def __init__(self) -> None:
        self._drawn = 0

    def show(self, lines: Sequence[str]) -> None:
        """Replace the lines of the last call, as far as the terminal has room."""
        width, height = shutil.get_terminal_size()
        drawn = [piece for line in lines for piece in _wrapped(line, max(width - 1, 2))]
        room = max(height - 2, 1)
        if len(drawn) > room:
            drawn = [*drawn[:room], f"... {len(drawn) - room} more lines"]
        sys.stdout.write(f"\x1b[{self._drawn}F\x1b[J" if self._drawn else "")
        say(drawn)
        self._drawn = len(drawn)


def _cells(report: TableReport) -> tuple[str, ...]:
    return (
        clean(report.table, _NAME_CHARACTERS),
        _bar(report),
        f"{report.rows:,}",
        _number(report.estimated_rows),
        _number(report.rows_per_second),
        _duration(report.seconds_left),
        clean(
            f"{'' if report.kind == 'incremental' else f'{report.kind}, '}{report.state}", _NAME_CHARACTERS
        ),
        clean(report.reason or "", _REASON_CHARACTERS),
    )


def _bar(report: TableReport) -> str:
    if not report.estimated_rows:
        return _UNKNOWN
    percent = min(100 * report.rows // report.estimated_rows, _MOST_PERCENT)
    done = percent * _BAR_CHARACTERS // 100
    return f"[{'#' * done}{'.' * (_BAR_CHARACTERS - done)}] {percent:2} %"


def _number(value: float | None) -> str:
    return _UNKNOWN if value is None else f"{value:,.0f}"


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return _UNKNOWN
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    clock = f"{hour}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
    return f"{days}d {clock}" if days else clock


def _padded(cell: str, width: int, is_right: bool) -> str:
    blanks = " " * (width - _columns(cell))
    return blanks + cell if is_right else cell + blanks


def _columns(text: str) -> int:
    return sum(map(_columns_of, text))


def _columns_of(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _wrapped(text: str, width: int) -> list[str]:
    """Return the text in pieces of the width: a line that the terminal itself breaks could not be replaced."""
    pieces, begin, used = [], 0, 0
    for at, character in enumerate(text):
        used += _columns_of(character)
        if used > width:
            pieces.append(text[begin:at])
            begin, used = at, _columns_of(character)
    return [*pieces, text[begin:]]
