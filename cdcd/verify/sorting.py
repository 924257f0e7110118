"""Sort entries, however many there are, with the memory of one piece.

In: blocks of whole entries, in any order.  Out: blocks of the same entries in the order of their bytes.
Invariant: a piece is sorted in memory; of more pieces each is a file without a name, and they are merged. At most
`_MOST_RUNS` files of a level are open. The C extension sorts a piece as Python does.
Must not: leave a file behind.
"""

from __future__ import annotations

import heapq
import tempfile
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Any

from cdcd.extensions import extension

PIECE_BYTES = 16 << 20
_MOST_RUNS = 64
_BLOCK_ENTRIES = 2_000


def entries_of(block: bytes, size: int) -> Iterator[bytes]:
    """Yield the entries of a block."""
    for at in range(0, len(block), size):
        yield block[at : at + size]


def sorted_in_python(block: bytes, size: int) -> bytes:
    """Return the entries of a block in the order of their bytes."""
    return b"".join(sorted(entries_of(block, size)))


_extension: Any = extension("cdcd.verify._entries")
sorted_entries = sorted_in_python if _extension is None else _extension.sorted_entries


def sorted_blocks(
    blocks: Iterable[bytes], size: int, folder: Path, piece_bytes: int = PIECE_BYTES
) -> Iterator[bytes]:
    """Yield the entries of `size` bytes in order, in blocks. `folder`: for files. Raises OSError."""
    runs = _Runs(size, folder)
    piece = bytearray()
    try:
        for block in blocks:
            piece += block
            if len(piece) >= piece_bytes:
                runs.add([sorted_entries(bytes(piece), size)])
                piece.clear()
        last = sorted_entries(bytes(piece), size)
        piece.clear()
        yield from runs.merged_with(last)
    finally:
        runs.close()


class _Runs:
    """Sorted files by level: `_MOST_RUNS` files of a level become one of the next."""

    def __init__(self, size: int, folder: Path) -> None:
        self._size, self._folder = size, folder
        self._levels: list[list[IO[bytes]]] = []

    def add(self, blocks: Iterable[bytes], level: int = 0) -> None:
        """Write a sorted file."""
        if level == len(self._levels):
            self._levels.append([])
        file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 - open until all files are merged
        self._levels[level].append(file)
        for block in blocks:
            file.write(block)
        if len(self._levels[level]) == _MOST_RUNS:
            full, self._levels[level] = self._levels[level], []
            try:
                self.add(self._merged(full, b""), level + 1)
            finally:
                _close(full)

    def merged_with(self, last: bytes) -> Iterator[bytes]:
        """Yield the entries of all files and of a sorted block."""
        files = [file for level in self._levels for file in level]
        return self._merged(files, last) if files else iter([last])

    def _merged(self, files: list[IO[bytes]], last: bytes) -> Iterator[bytes]:
        entries = heapq.merge(*map(self._read, files), entries_of(last, self._size))
        while block := b"".join(islice(entries, _BLOCK_ENTRIES)):
            yield block

    def _read(self, file: IO[bytes]) -> Iterator[bytes]:
        file.seek(0)
        while block := file.read(_BLOCK_ENTRIES * self._size):
            yield from entries_of(block, self._size)

    def close(self) -> None:
        """Remove the files."""
        for level in self._levels:
            _close(level)


def _close(files: Iterable[IO[bytes]]) -> None:
    for file in files:
        file.close()
