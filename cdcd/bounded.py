"""Read JSON of unknown origin with a limit: other clients may be allowed to write to cdcd's topics.

In: a record's value, as JSON or in zlib's format.  Out: the parsed or decompressed value.
Invariant: nothing is decompressed beyond MAX_BYTES, and ValueError is the only error that any bytes can cause.
Must not: know what a record means.
"""

from __future__ import annotations

import json
import zlib
from typing import Any

__all__ = ["MAX_BYTES", "decompress", "json_of", "printable"]

MAX_BYTES = 16 << 20
"""Enough for the topics of 200,000 tables. The parsed value may briefly take about twenty times as much memory."""
_MOST_CHARACTERS = 40


def json_of(value: bytes, max_bytes: int = MAX_BYTES) -> Any:
    """Return the parsed JSON. Raises ValueError if the value is not JSON, too large or nested too deeply."""
    if len(value) > max_bytes:
        raise ValueError(f"more than {max_bytes} bytes")
    try:
        return json.loads(value)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def decompress(value: bytes, max_bytes: int = MAX_BYTES) -> bytes:
    """Return the decompressed bytes. Raises ValueError if they exceed the limit, are cut off, or data follows."""
    one = zlib.decompressobj()
    try:
        data = one.decompress(value, max_bytes + 1)
    except zlib.error as error:
        raise ValueError("not compressed by zlib") from error
    if len(data) > max_bytes or not one.eof or one.unused_data:
        raise ValueError(f"more than {max_bytes} bytes, cut off, or followed by other data")
    return data


def printable(found: object) -> str:
    """Return a printable form of an invalid value: a short number or text itself, otherwise the name of its type."""
    text = repr(found) if isinstance(found, int | str) else ""
    return text if 0 < len(text) <= _MOST_CHARACTERS else f"(of type {type(found).__name__})"
