"""COPY's text format, for loading the shop and for loading a mirror back.

In: rows of text values, None for NULL.  Out: the lines that `COPY ... FROM STDIN` reads, as a file.
Invariant: every value arrives unchanged, with any characters (except NUL, which no text has).
Must not: have more than one block of lines in memory.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence

Values = Sequence[str | None]
"""One row as the server reads it: the text of each column, None for NULL."""

_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})


def copy_line(values: Values) -> str:
    """Return one row as a line of COPY's text format."""
    return "\t".join("\\N" if value is None else value.translate(_ESCAPES) for value in values) + "\n"


class CopyFile(io.RawIOBase):
    """A readable binary file made of rows, for psycopg2's `copy_expert`."""

    def __init__(self, rows: Iterable[Values]) -> None:
        self._lines: Iterator[str] = (copy_line(row) for row in rows)
        self._left = b""

    def readable(self) -> bool:
        """Return True: this file is read only."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Return up to `size` bytes, the rest of the file for a negative size; b"" at the end."""
        wanted = size if size >= 0 else 1 << 62
        blocks = [self._left]
        length = len(self._left)
        for line in self._lines:
            blocks.append(line.encode())
            length += len(blocks[-1])
            if length >= wanted:
                break
        whole = b"".join(blocks)
        self._left = whole[wanted:]
        return whole[:wanted]
