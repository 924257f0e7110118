"""A file that is not local, as an open file of which each read is a request.

In: how to read a part of the file, and its size.  Out: a binary file.
Must not: request what a reader has not asked for.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from typing import Any, BinaryIO, cast


def remote_file(read_range: Callable[[int, int], bytes | memoryview], size: int) -> BinaryIO:
    """Return an open file. `read_range` returns a number of bytes from a position on."""
    return cast(BinaryIO, _RemoteFile(read_range, size))


class _RemoteFile(io.RawIOBase):
    def __init__(self, read_range: Callable[[int, int], bytes | memoryview], size: int) -> None:
        super().__init__()
        self._read_range, self._size, self._place = read_range, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._size}[whence]
        self._place = max(0, start + offset)
        return self._place

    def tell(self) -> int:
        return self._place

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        length = min(len(view), self._size - self._place)
        if length <= 0:
            return 0
        view[:length] = memoryview(self._read_range(self._place, length)).cast("B")
        self._place += length
        return length
