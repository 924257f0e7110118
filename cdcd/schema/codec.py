"""What a column's type is to Avro: a schema fragment, and functions from raw column bytes to Avro bytes.

In: the column's bytes as TupleData carries them, kind `t` (the server's text) or `b` (its send function).
Out: the Avro encoding of the value, without a union's branch.
Invariant: an encoder returns the exact value, raises `Special` where the Avro type cannot hold it, or raises
one of `UNREADABLE` where the bytes are not what the server writes; it never guesses and never truncates.
Must not: keep state between rows, except caches of pure functions.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cdcd.schema.policy import Policy

AvroSchema = dict[str, Any]
"""An Avro record schema as JSON objects."""

AvroType = str | dict[str, Any]
"""An Avro type that may stand in a union: a primitive's name or a complex type."""

Encoder = Callable[[bytes], bytes]
"""Raw column bytes -> Avro bytes. Raises `Special` or one of `UNREADABLE`."""

UNREADABLE = (ValueError, OverflowError, LookupError, struct.error)
"""What an encoder raises on bytes it does not understand (UnicodeDecodeError is a ValueError)."""


class Special(Exception):
    """No error: a value that the column's Avro type cannot hold exactly; `text` is the server's text of
    it."""

    def __init__(self, text: bytes) -> None:
        super().__init__("a value for source.special")
        self.text = text


class Oversized(Exception):
    """No error yet: a value whose text is longer than the column's policy allows."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__("a value beyond max_value_bytes")
        self.size_bytes = size_bytes


@dataclass(frozen=True, slots=True)
class Codec:
    """One type's way into Avro. `binary` is None where the send format has no direct way.

    `may_be_special`: the type has values that `avro` cannot hold, for which the encoders raise `Special`.
    """

    avro: AvroType
    text: Encoder
    binary: Encoder | None = None
    may_be_special: bool = False


Builder = Callable[[int, Policy], Codec]
"""Type modifier (-1: none) and the column's policy -> codec."""
