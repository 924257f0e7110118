"""Entries of equal size in files by key, so that the memory of a comparison is that of one file's keys.

In: entries, each with a key of 16 bytes in front.  Out: the entries of one file.
Invariant: a key is in the file of the first bits of its hash, so each bucket is in one file.
Must not: have more than `BUFFER_BYTES` in memory before they are written.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

MOST_FILES = 1 << 12
BUFFER_BYTES = 16 << 20
_ENTRIES_A_FILE = 50_000


def file_bits(entries: int) -> int:
    """Return the number of bits of a key's hash that choose its file, for so many entries."""
    wanted = max(1, entries // _ENTRIES_A_FILE)
    return min((wanted - 1).bit_length(), MOST_FILES.bit_length() - 1)


def remove_files(folder: Path, name: str) -> None:
    """Remove all files of entries of this name, also those of another number of bits."""
    for path in folder.glob(f"{name}-*"):
        path.unlink(missing_ok=True)


class SpillFolder:
    """Files of entries in a folder, which must exist."""

    def __init__(self, folder: Path, name: str, entry_bytes: int, bits: int) -> None:
        self._folder, self._name, self._size, self._bits = folder, name, entry_bytes, bits
        self._buffers: dict[int, bytearray] = {}
        self._buffered = 0

    @property
    def files(self) -> range:
        """The numbers of the files."""
        return range(1 << self._bits)

    def file_of(self, key: bytes) -> int:
        """Return the number of a key's file."""
        return int.from_bytes(key[:2], "big") >> (16 - self._bits)

    def append(self, entry: bytes) -> None:
        """Add an entry. Raises OSError if the disk is full."""
        buffer = self._buffers.get(number := self.file_of(entry))
        if buffer is None:
            buffer = self._buffers[number] = bytearray()
        buffer += entry
        self._buffered += self._size
        if self._buffered >= BUFFER_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write all entries to their files."""
        for number, buffer in self._buffers.items():
            with self._path(number).open("ab") as file:
                file.write(buffer)
        self._buffers.clear()
        self._buffered = 0

    def read(self, number: int) -> Iterator[bytes]:
        """Yield the entries of a file, which must have been flushed."""
        try:
            data = self._path(number).read_bytes()
        except FileNotFoundError:
            return
        for at in range(0, len(data), self._size):
            yield data[at : at + self._size]

    def trim(self) -> None:
        """Cut a last entry that a killed process has not written completely."""
        for path in self._folder.glob(f"{self._name}-*"):
            os.truncate(path, path.stat().st_size // self._size * self._size)

    def remove(self) -> None:
        """Remove the files."""
        self._buffers.clear()
        for number in self.files:
            self._path(number).unlink(missing_ok=True)

    def _path(self, number: int) -> Path:
        return self._folder / f"{self._name}-{number:04d}"
