"""The decompression bombs are valid compressed data."""

from __future__ import annotations

import gzip
import zlib

from tests.support.bombs import gzip_bomb, zlib_bomb


def test_a_bomb_unpacks_to_spaces() -> None:
    assert zlib.decompress(zlib_bomb(3)) == gzip.decompress(gzip_bomb(3)) == b" " * (3 << 20)
