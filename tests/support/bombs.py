"""Compressed spaces that exceed the reader's limit, made quickly by repeating one compressed piece."""

from __future__ import annotations

import zlib

_PIECE = b" " * (1 << 20)


def zlib_bomb(mebibytes: int) -> bytes:
    """Return compressed spaces in zlib format."""
    check = 1
    for _ in range(mebibytes):
        check = zlib.adler32(_PIECE, check)
    return b"\x78\x01" + _deflated(mebibytes) + check.to_bytes(4, "big")


def gzip_bomb(mebibytes: int) -> bytes:
    """Return compressed spaces in gzip format."""
    check = 0
    for _ in range(mebibytes):
        check = zlib.crc32(_PIECE, check)
    size = mebibytes * len(_PIECE)
    head = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"
    return head + _deflated(mebibytes) + check.to_bytes(4, "little") + size.to_bytes(4, "little")


def _deflated(mebibytes: int) -> bytes:
    packer = zlib.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS)
    piece = packer.compress(_PIECE) + packer.flush(zlib.Z_FULL_FLUSH)  # no reference to earlier data
    return piece * mebibytes + packer.flush()
