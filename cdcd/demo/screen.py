"""Progress of the demo for a person: a live table on a terminal, otherwise a line every few seconds.

In: the progress of the workload, cdcd and the mirror.  Out: text on standard output.
Invariant: messages remain on the screen in order; the table is always last.
Must not: decide anything, raise if a reading is missing.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from rich.console import Console
from rich.live import Live
from rich.table import Table

LINE_EVERY_S = 3.0


@dataclass(frozen=True, slots=True)
class Picture:
    """The progress at one time. Counts only grow; `lag_bytes` None: unknown."""

    phase: str
    transactions: int
    changes: int
    cdcd_state: str
    rows_written: int
    lag_seconds: float | None
    lag_bytes: float | None
    mirror: str


class Screen:
    """The output. Use as a context manager; `show` limits its own rate."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False, soft_wrap=True)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._is_live = self._console.is_terminal
        self._started_at = time.monotonic()
        self._last_at = 0.0
        self._last: Picture | None = None
        self._rates = (0.0, 0.0)

    def __enter__(self) -> Screen:
        if self._is_live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_live:
            self._live.stop()

    def say(self, text: str) -> None:
        """Print a permanent line, after the seconds since the start."""
        self._console.print(f"{time.monotonic() - self._started_at:6.1f} s  {text}", markup=False)

    def show(self, picture: Picture) -> None:
        """Show the picture; on a terminal a few times a second, otherwise every few seconds."""
        now = time.monotonic()
        every = 0.5 if self._is_live else LINE_EVERY_S
        if now - self._last_at < every:
            return
        if self._last is not None:
            seconds = now - self._last_at
            self._rates = (
                (picture.changes - self._last.changes) / seconds,
                # a new process counts from 0 again
                max(0, picture.rows_written - self._last.rows_written) / seconds,
            )
        self._last, self._last_at = picture, now
        if self._is_live:
            self._live.update(self._table(picture), refresh=True)
        else:
            self.say(_line(picture, self._rates))

    def _table(self, picture: Picture) -> Table:
        seconds = time.monotonic() - self._started_at
        table = Table(title=f"cdcd demo: {picture.phase}, {seconds:.0f} s", title_justify="left")
        for column in ("", "so far", "rate", "now"):
            table.add_column(column, justify="left" if column in ("", "now") else "right")
        changed, written = self._rates
        done = f"{picture.transactions:,} transactions"
        table.add_row("PostgreSQL", f"{picture.changes:,} changes", f"{changed:,.0f}/s", done)
        table.add_row("cdcd -> Kafka", f"{picture.rows_written:,} rows", f"{written:,.0f}/s", _cdcd(picture))
        table.add_row("Spark mirror", "", "", picture.mirror)
        return table


def _line(picture: Picture, rates: tuple[float, float]) -> str:
    return (
        f"{picture.phase}: {picture.transactions:,} transactions, {picture.changes:,} changes ({rates[0]:,.0f}/s)"
        f" | cdcd {_cdcd(picture)}, {picture.rows_written:,} rows to Kafka ({rates[1]:,.0f}/s)"
        f" | mirror {picture.mirror}"
    )


def _cdcd(picture: Picture) -> str:
    if picture.lag_seconds is None or picture.lag_bytes is None:
        return picture.cdcd_state
    return f"{picture.cdcd_state}, lag {picture.lag_seconds:.1f} s, {_size(picture.lag_bytes)}"


def _size(size_bytes: float) -> str:
    for unit in ("B", "kB", "MB"):
        if size_bytes < 1000:
            return f"{size_bytes:.0f} {unit}"
        size_bytes /= 1000
    return f"{size_bytes:.1f} GB"
