"""Write log lines from a thread, so that an unread log blocks only the log.

In: formatted records, from any thread.  Out: lines on a stream, in order.
Invariant: `emit` never waits for the stream: a full pipe, a full disk and a closed pipe lose lines. Lost lines are
counted, and the count is written as soon as a line can be written. Up to WAITING_LINES are queued in memory, with
WAITING_CHARACTERS in all; later lines are lost.
The thread writes to the descriptor, not to Python's stream: a thread that waits for a full pipe would hold the
stream's lock, and so block the end of the process.
Must not: log anything itself.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from typing import TextIO

WAITING_LINES = 10_000
WAITING_CHARACTERS = 16 << 20
FLUSH_S = 1.0


class ThreadedHandler(logging.Handler):
    """A handler of the logging module. `lost` counts the lost lines."""

    def __init__(self, stream: TextIO, waiting_lines: int = WAITING_LINES) -> None:
        super().__init__()
        self._descriptor = stream.fileno()
        self._waiting_lines = waiting_lines
        self._lines: deque[str] = deque()
        self._characters = 0
        self._changed = threading.Condition()
        self._is_writing = False
        self._unreported = 0
        self.lost = 0
        threading.Thread(target=self._write, name="cdcd-log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue the record's line."""
        try:
            line = self.format(record)
        except Exception:  # noqa: BLE001 - as in every handler: a record that cannot be formatted must not end the daemon
            self.handleError(record)
            return
        with self._changed:
            fits = not self._lines or self._characters + len(line) <= WAITING_CHARACTERS
            if fits and len(self._lines) < self._waiting_lines:
                self._lines.append(line)
                self._characters += len(line)
                self._changed.notify_all()
            else:
                self._lose()

    def flush(self) -> None:
        """Wait briefly until the queue is written."""
        with self._changed:
            self._changed.wait_for(lambda: not self._lines and not self._is_writing, FLUSH_S)

    def _write(self) -> None:
        while True:
            with self._changed:
                self._is_writing = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._lines)
                self._is_writing = True
                line, unreported = self._lines.popleft(), self._unreported
                self._characters -= len(line)
            try:
                if unreported:
                    self._put(self._lost_lines_notice(unreported))
                self._put(line)
            except OSError:  # closed pipe, full disk, or closed descriptor
                with self._changed:
                    self._lose()
                continue
            with self._changed:
                self._unreported -= unreported

    def _put(self, line: str) -> None:
        left = memoryview((line + "\n").encode(errors="backslashreplace"))
        while left:
            left = left[os.write(self._descriptor, left) :]

    def _lose(self) -> None:
        self.lost += 1
        self._unreported += 1

    def _lost_lines_notice(self, lost: int) -> str:
        record = logging.LogRecord("cdcd.log", logging.WARNING, "", 0, "log_lines_lost: %d", (lost,), None)
        return self.format(record)
