"""The Avro codec of a column's type: a schema fragment, and functions from raw column bytes to Avro bytes.

In: the column's bytes in TupleData, kind `t` (the server's text) or `b` (its send function).
Out: the Avro encoding of the value, without a union's branch.
Invariant: an encoder returns the exact value, raises `Special` where the Avro type cannot hold it, or raises one of
`UNREADABLE` where the server would not write these bytes; it never guesses and never truncates.
Must not: have state between rows, except caches of pure functions.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from cdcd.schema.policy import Policy

AvroSchema = dict[str, Any]
"""An Avro record schema as JSON objects."""

AvroType = str | dict[str, Any]
"""An Avro type that may be a branch of a union: a primitive's name or a complex type."""

Encoder = Callable[[bytes], bytes]
"""Raw column bytes -> Avro bytes. Raises `Special` or one of `UNREADABLE`."""

UNREADABLE = (ValueError, OverflowError, LookupError, struct.error)
"""The errors of an encoder for invalid bytes (UnicodeDecodeError is a ValueError)."""


class Special(Exception):
    """Not an error: a value that the column's Avro type cannot hold exactly; `text` is the server's text of it."""

    def __init__(self, text: bytes) -> None:
        super().__init__("a value for source.special")
        self.text = text


class Oversized(Exception):
    """Not an error by itself: a value whose text is longer than the column's policy allows."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__("a value beyond max_value_bytes")
        self.size_bytes = size_bytes


class Op(enum.IntEnum):
    """The operation of the compiled row codec on a column: one for each format that it decodes itself.

    TEXT and BINARY: PostgreSQL's text format and binary format of the type.
    """

    CALL = 0
    BOOLEAN_TEXT = 1
    BOOLEAN_BINARY = 2
    INTEGER_TEXT = 3
    INTEGER_BINARY = 4
    UNSIGNED_BINARY = 5
    STRING = 6
    JSONB_BINARY = 7
    BYTES = 8
    BYTEA_TEXT = 9
    REAL_TEXT = 10
    REAL_BINARY = 11
    DOUBLE_TEXT = 12
    DOUBLE_BINARY = 13
    DECIMAL_TEXT = 14
    DECIMAL_BINARY = 15
    NUMERIC_TEXT = 16
    NUMERIC_BINARY = 17
    DATE_TEXT = 18
    DATE_BINARY = 19
    TIME_TEXT = 20
    TIME_BINARY = 21
    TIMESTAMP_TEXT = 22
    TIMESTAMPTZ_TEXT = 23
    TIMESTAMP_BINARY = 24
    UUID_TEXT = 25
    UUID_BINARY = 26
    ARRAY_TEXT = 27


class Operation(NamedTuple):
    """An encoder in the form of the compiled row codec; the encoder is its specification.

    `low` and `high`: the range of an integer; its width in binary format, in bytes; precision and scale of a decimal;
    the delimiter of an array. `max_bytes`: the longest text, 0 for no limit. The encoder handles special values, and
    values that the operation does not support.
    """

    op: Op
    low: int = 0
    high: int = 0
    max_bytes: int = 0
    element: Operation | None = None


CALL = Operation(Op.CALL)
"""The operation that calls the encoder."""


@dataclass(frozen=True, slots=True)
class Codec:
    """The encoders of one type. `binary` is None where the send format has no direct encoder; it may still be decoded
    to text (`binary_format.table`).

    `special`: the values that `avro` cannot hold, for which the encoders raise `Special`, in words; "" for none.
    `text_op` and `binary_op`: the encoders as operations. `content`: what a value of `avro` is, in words, where its
    type does not say it. docs/types.md is generated from the words.
    """

    avro: AvroType
    text: Encoder
    binary: Encoder | None = None
    special: str = ""
    text_op: Operation = CALL
    binary_op: Operation = CALL
    content: str = ""

    @property
    def may_be_special(self) -> bool:
        """Return whether the type has values that `avro` cannot hold."""
        return self.special != ""


Builder = Callable[[int, Policy], Codec]
"""Type modifier (-1: none) and the column's policy -> codec."""
