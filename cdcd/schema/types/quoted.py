"""Text between double quotes, as array_out, record_out and hstore_out write it.

In: the bytes between the quotes.  Out: the value.
Invariant: in what the patterns match every quote and backslash is escaped, and matching needs no memory for each
byte: the possessive `*+` goes back to none of them, where `(...)*` keeps 160 bytes each to go back to.
"""

from __future__ import annotations

BACKSLASHED = rb'[^"\\\0]*+(?:\\["\\][^"\\\0]*+)*+'
r"""A pattern: a backslash before each quote and backslash. No text of PostgreSQL has a zero byte."""

DOUBLED = rb'[^"\\]*+(?:(?:""|\\\\)[^"\\]*+)*+'
"""A pattern: each quote and backslash twice."""


def of_backslashed(quoted: bytes) -> bytes:
    """Return the value of what `BACKSLASHED` matches."""
    if b"\\" not in quoted:
        return quoted
    # The zero byte stands for a backslash until none is left that belongs to a quote.
    return quoted.replace(b"\\\\", b"\0").replace(b'\\"', b'"').replace(b"\0", b"\\")


def of_doubled(quoted: bytes) -> bytes:
    """Return the value of what `DOUBLED` matches."""
    return quoted.replace(b'""', b'"').replace(b"\\\\", b"\\")
