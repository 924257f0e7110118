"""Entries of equal size in files by key, so that the memory of a comparison is that of one file's keys.

In: entries, each with a key of 16 bytes in front.  Out: the entries of one file.
Invariant: a key is in the file of the first bits of its hash, so each bucket is in one file.
Must not: have more than `BUFFER_BYTES` in memory before they are written.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from cdcd.extensions import extension
from cdcd.verify.sorting import entries_of, sorted_blocks

MOST_FILES = 1 << 12
BUFFER_BYTES = 16 << 20
_ENTRIES_A_FILE = 50_000
_READ_BYTES = 1 << 20


def file_bits(entries: int) -> int:
    """Return the number of bits of a key's hash that choose its file, for this number of entries."""
    wanted = max(1, entries // _ENTRIES_A_FILE)
    return min((wanted - 1).bit_length(), MOST_FILES.bit_length() - 1)


def distribute_in_python(entries: bytes, size: int, bits: int, buffers: dict[int, bytearray]) -> None:
    """Append each entry of `size` bytes to the buffer of its file, which is made if there is none."""
    for entry in entries_of(entries, size):
        buffers.setdefault(_file_of(entry, bits), bytearray()).extend(entry)


def _file_of(key: bytes, bits: int) -> int:
    return int.from_bytes(key[:2], "big") >> (16 - bits)


_extension: Any = extension("cdcd.verify._entries")
distribute = distribute_in_python if _extension is None else _extension.distribute


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

    @property
    def bits(self) -> int:
        """How many bits of a key's hash choose its file."""
        return self._bits

    def file_of(self, key: bytes) -> int:
        """Return the number of a key's file."""
        return _file_of(key, self._bits)

    def append(self, entries: bytes) -> None:
        """Add entries. Raises OSError if the disk is full."""
        distribute(entries, self._size, self._bits, self._buffers)
        self._buffered += len(entries)
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
        for block in self._blocks(number):
            yield from entries_of(block, self._size)

    def sorted_blocks(self, number: int) -> Iterator[bytes]:
        """Yield the entries of a file in their order, in blocks."""
        return sorted_blocks(self._blocks(number), self._size, self._folder)

    def sorted(self, entries: Iterable[bytes]) -> Iterator[bytes]:
        """Yield some entries of files in their order."""
        for block in sorted_blocks(entries, self._size, self._folder):
            yield from entries_of(block, self._size)

    def _blocks(self, number: int) -> Iterator[bytes]:
        try:
            file = self._path(number).open("rb")
        except FileNotFoundError:
            return
        with file:
            while block := file.read(max(1, _READ_BYTES // self._size) * self._size):
                yield block

    def sizes(self) -> dict[str, int]:
        """Return the bytes of each file by its name."""
        return {path.name: path.stat().st_size for path in self._paths()}

    def trim(self) -> None:
        """Cut a last entry that a killed process has not written completely."""
        for path in self._paths():
            os.truncate(path, path.stat().st_size // self._size * self._size)

    def remove(self) -> None:
        """Remove the files, also those of a former run with another number of them."""
        self._buffers.clear()
        self._buffered = 0
        for path in self._paths():
            path.unlink(missing_ok=True)

    def _paths(self) -> list[Path]:
        return list(self._folder.glob(f"{self._name}-*"))

    def _path(self, number: int) -> Path:
        return self._folder / f"{self._name}-{number:04d}"
