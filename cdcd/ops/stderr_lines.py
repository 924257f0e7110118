"""Turn lines that libraries write to stderr into log lines, for example libpq's notices while it connects.

In: a descriptor, usually stderr's.  Out: a stream to the descriptor's original target, for the log itself; each line
that is written to the descriptor meanwhile, as `server_notice` if it has libpq's format, otherwise as `stderr`.
Invariant: a writer never blocks: lines that do not fit in the pipe are lost. A line is cut at MOST_BYTES.
Must not: be used if a command prints to that descriptor on purpose.

Reason: libpq writes notices before the connection is established to stderr (a login event trigger's warnings, a
collation version mismatch), and psycopg2 cannot set a notice handler before that.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterator
from typing import TextIO

from cdcd.ops.log_dedup import LogDeduplicator
from cdcd.ops.notices import belongs_to_notice, emit, parse_notice
from cdcd.redaction import clean

__all__ = ["as_log_lines"]

MOST_BYTES = 2_000
_READ_BYTES = 65_536
_ENDS_WITHIN_S = 1.0


@contextlib.contextmanager
def as_log_lines(descriptor: int = 2) -> Iterator[TextIO]:
    """Read the lines written to the descriptor inside the block; yield a stream to the descriptor's old target."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before = os.dup(descriptor)
    os.dup2(writing, descriptor)
    os.close(writing)
    reader = threading.Thread(target=_read, args=(reading,), name="cdcd-stderr", daemon=True)
    reader.start()
    try:
        yield os.fdopen(before, "w", buffering=1, closefd=False)  # the last lines are logged after the block
    finally:
        os.dup2(before, descriptor)  # closes the pipe's last writing end, so its reader ends
        reader.join(_ENDS_WITHIN_S)


def _read(reading: int) -> None:
    lines = _Lines()
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        while data := pipe.read(_READ_BYTES):
            lines.take(data)
        lines.end()


class _Lines:
    """Bytes in, log lines out."""

    def __init__(self) -> None:
        self._deduplicator = LogDeduplicator("cdcd.stderr")
        self._begun = b""
        self._is_in_notice = False

    def take(self, data: bytes) -> None:
        """Log the complete lines in `data`."""
        *whole, begun = (self._begun + data).split(b"\n")
        self._begun = begun[:MOST_BYTES]
        for line in whole:
            self._say(line)

    def end(self) -> None:
        """Log the last incomplete line, and the counts."""
        self._say(self._begun)
        self._deduplicator.flush()

    def _say(self, line: bytes) -> None:
        text = line[:MOST_BYTES].decode("utf-8", "replace").strip()
        if not text or (self._is_in_notice and belongs_to_notice(text)):
            return  # only the first line of a notice is logged
        notice = parse_notice(text)
        self._is_in_notice = notice is not None
        if notice is not None:
            emit(*notice)
        else:
            self._deduplicator.say(logging.WARNING, "stderr", text=clean(text))
