"""Text between double quotes, in the format of array_out, record_out and hstore_out.

In: the bytes between the quotes.  Out: the value.
Invariant: every quote and backslash in a match is escaped, and matching needs no memory per byte: the possessive `*+`
does not backtrack, where `(...)*` stores 160 bytes per repetition for backtracking.
"""

from __future__ import annotations

BACKSLASHED = rb'[^"\\\0]*+(?:\\["\\][^"\\\0]*+)*+'
r"""A pattern: a backslash before each quote and backslash. No text of PostgreSQL has a zero byte."""

DOUBLED = rb'[^"\\]*+(?:(?:""|\\\\)[^"\\]*+)*+'
"""A pattern: each quote and backslash twice."""


def of_backslashed(quoted: bytes) -> bytes:
    """Return the value of a text that `BACKSLASHED` matches."""
    if b"\\" not in quoted:
        return quoted
    # The zero byte replaces an escaped backslash until the escapes of quotes are removed.
    return quoted.replace(b"\\\\", b"\0").replace(b'\\"', b'"').replace(b"\0", b"\\")


def of_doubled(quoted: bytes) -> bytes:
    """Return the value of a text that `DOUBLED` matches."""
    return quoted.replace(b'""', b'"').replace(b"\\\\", b"\\")
