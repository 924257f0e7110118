"""What `cdcd verify` prints while it runs: each outcome as soon as it is known, and the progress between them.

In: outcomes, how much is done.  Out: lines on standard output; one line on standard error if that is a terminal.
Must not: print a row's value.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable

from cdcd.cli.output import say
from cdcd.redaction import clean
from cdcd.verify.outcome import TableOutcome, counts_of, lines_of

__all__ = ["Progress", "Shown"]

_DRAWN_EVERY_S = 0.5
_BAR_CHARACTERS = 20


class Shown(list[TableOutcome]):
    """Outcomes, whose lines are printed as they come. `of` and `compared`: the names of both sides."""

    def __init__(self, of: str = "source", compared: str = "topics", is_shown: bool = True) -> None:
        super().__init__()
        self._sides, self._is_shown = (of, compared), is_shown

    def append(self, outcome: TableOutcome) -> None:
        """Add an outcome, and print it."""
        super().append(outcome)
        self.say(lines_of(outcome, *self._sides))

    def end(self) -> None:
        """Print the number of tables in each state."""
        self.say([counts_of(self)])

    def say(self, lines: Iterable[str]) -> None:
        """Print lines, unless the output is for programs."""
        if self._is_shown:
            say(lines)


class Progress:
    """One line on standard error, drawn again in its place; nothing if that is no terminal."""

    def __init__(self, *, is_drawn: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._is_drawn, self._clock = is_drawn, clock
        self._drawn_s = 0.0
        self._width = 0

    def show(self, table: str, stage: str, done: int, total: int | None) -> None:
        """Draw the line, at most every half second."""
        if not self._is_drawn or self._clock() - self._drawn_s < _DRAWN_EVERY_S:
            return
        self._drawn_s = self._clock()
        unit = "records" if stage == "topics" else "rows"
        line = f"{clean(table, 60)}  {stage}: {done:,} {unit}{_bar(done, total)}"
        sys.stderr.write("\r" + line.ljust(self._width))
        sys.stderr.flush()
        self._width = len(line)

    def end(self) -> None:
        """Remove the line."""
        if self._width:
            sys.stderr.write("\r" + " " * self._width + "\r")


def _bar(done: int, total: int | None) -> str:
    if not total:
        return ""
    percent = min(100 * done // total, 99)
    marks = percent * _BAR_CHARACTERS // 100
    return f"  [{'#' * marks}{'.' * (_BAR_CHARACTERS - marks)}] {percent:2} %"
