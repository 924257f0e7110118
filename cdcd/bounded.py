"""JSON from outside, read with a limit: others may be allowed to write to cdcd's topics.

In: a record's value, as JSON or in zlib's format.  Out: what it says.
Invariant: nothing is decompressed beyond MAX_BYTES, and whatever the bytes are, the only error is ValueError.
Must not: know what a record means.
"""

from __future__ import annotations

import json
import zlib
from typing import Any

__all__ = ["MAX_BYTES", "json_of", "shown", "unpacked"]

MAX_BYTES = 16 << 20
"""The topics of 200,000 tables. Parsed, it may take some twenty times as much for a moment."""
_MOST_CHARACTERS = 40


def json_of(value: bytes, max_bytes: int = MAX_BYTES) -> Any:
    """Return what the JSON says. Raises ValueError where it is none, too large or too deep."""
    if len(value) > max_bytes:
        raise ValueError(f"more than {max_bytes} bytes")
    try:
        return json.loads(value)
    except RecursionError:
        raise ValueError("too deep") from None


def unpacked(value: bytes, max_bytes: int = MAX_BYTES) -> bytes:
    """Return what was compressed. Raises ValueError where it is more than that, cut off, or something follows it."""
    one = zlib.decompressobj()
    try:
        data = one.decompress(value, max_bytes + 1)
    except zlib.error as error:
        raise ValueError("not compressed by zlib") from error
    if len(data) > max_bytes or not one.eof or one.unused_data:
        raise ValueError(f"more than {max_bytes} bytes, cut off, or followed by something")
    return data


def shown(found: object) -> str:
    """Return what may be shown of a value that is not as it has to be: a number or a word, or its kind."""
    text = repr(found) if isinstance(found, int | str) else ""
    return text if 0 < len(text) <= _MOST_CHARACTERS else f"of the kind {type(found).__name__}"
