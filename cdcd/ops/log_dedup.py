"""Repeated log lines: log the first at once, count the others.

In: levels, events and fields, from any thread.  Out: log lines; repeats within `window_s` are one line of level
info with their number, `repeated`, when the window ends.
Invariant: only repetitions are lost: the first line is never delayed, and a count follows each window with repeats,
at the latest at an orderly end of the process. At most MOST_WINDOWS lines are remembered.
Must not: hold its lock while it logs.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Hashable
from typing import Any

import structlog

__all__ = ["LogDeduplicator", "flush_counts"]

WINDOW_S = 60.0
MOST_WINDOWS = 256

_Key = tuple[int, str, Hashable]
_ALL: weakref.WeakSet[LogDeduplicator] = weakref.WeakSet()


def flush_counts() -> None:
    """Log all open counts, before the process ends."""
    for one in list(_ALL):
        one.flush()


class _Window:
    """One line: its content, the time when it was logged, and the number of repeats since then."""

    def __init__(self, now_s: float, level: int, event: str, fields: dict[str, Any]) -> None:
        self.since_s = now_s
        self.level, self.event, self.fields = level, event, fields
        self.repeated = 0


class LogDeduplicator:
    """The lines of one logger."""

    def __init__(self, logger: str, window_s: float = WINDOW_S) -> None:
        self._log = structlog.stdlib.get_logger(logger)
        self._window_s = window_s
        self._lock = threading.Lock()
        self._windows: dict[_Key, _Window] = {}
        self._timer: threading.Timer | None = None
        _ALL.add(self)

    def say(self, level: int, event: str, *, key: Hashable = None, **fields: Any) -> None:
        """Log the line, or count it if the same line was logged within the window.

        `key`: two lines with the same key are the same; without it their fields, which have to be hashable, count.
        """
        same = (level, event, tuple(fields.items()) if key is None else key)
        now_s = time.monotonic()
        with self._lock:
            over = self._over(now_s)
            window = self._windows.get(same)
            if window is None:
                if len(self._windows) >= MOST_WINDOWS:
                    over.append(self._windows.pop(next(iter(self._windows))))
                self._windows[same] = _Window(now_s, level, event, fields)
            else:
                window.repeated += 1
                self._wake_up(window.since_s + self._window_s - now_s)
        self._count(over, now_s)
        if window is None:
            self._log.log(level, event, **fields)

    def flush(self) -> None:
        """Log the open counts."""
        with self._lock:
            over, self._windows = list(self._windows.values()), {}
            timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        self._count(over, time.monotonic())

    def _over(self, now_s: float) -> list[_Window]:
        """Remove and return the windows that have ended; they are in the order of their start."""
        over = []
        for key, window in list(self._windows.items()):
            if now_s - window.since_s < self._window_s:
                break
            over.append(self._windows.pop(key))
        return over

    def _wake_up(self, in_s: float) -> None:
        if self._timer is None:
            self._timer = threading.Timer(max(0.0, in_s), self._look)
            self._timer.daemon = True
            self._timer.start()

    def _look(self) -> None:
        now_s = time.monotonic()
        with self._lock:
            self._timer = None
            over = self._over(now_s)
            waiting = [one.since_s for one in self._windows.values() if one.repeated]
            if waiting:
                self._wake_up(min(waiting) + self._window_s - now_s)
        self._count(over, now_s)

    def _count(self, over: list[_Window], now_s: float) -> None:
        for window in over:
            if window.repeated:
                within_s = round(now_s - window.since_s, 1)
                self._log.info(window.event, **window.fields, repeated=window.repeated, within_s=within_s)
