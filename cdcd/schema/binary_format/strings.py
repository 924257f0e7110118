"""Types whose send format is their text, with or without a version byte; bytea, uuid, "char", hstore, PostGIS.

In: the send functions' bytes.  Out: the output functions' text.
Invariant: an unknown version is unreadable.
"""

from __future__ import annotations

from cdcd.schema.binary_format.cut import all_of, int32_at, value_at


def as_is(raw: bytes) -> bytes:
    """Return the text of a send function that sends the text."""
    return raw


def after_version_1(raw: bytes) -> bytes:
    """Convert jsonb, jsonpath, ltree, lquery, ltxtquery: a byte 1, then the text."""
    if raw[:1] != b"\x01":
        raise ValueError("not version 1")
    return raw[1:]


def one_character(raw: bytes) -> bytes:
    """Convert charsend's byte: zero is empty text; the text of a byte above 127 depends on server and encoding."""
    if len(raw) != 1 or raw[0] > 127:
        raise ValueError("not an ASCII character")
    return raw.rstrip(b"\x00")


def bytea(raw: bytes) -> bytes:
    """Convert byteasend's bytes to hex."""
    return b"\\x" + raw.hex().encode()


def upper_hex(raw: bytes) -> bytes:
    """Convert PostGIS' extended well-known binary, whose text is its hex."""
    if len(raw) < 5:
        raise ValueError("not a binary geometry")
    return raw.hex().upper().encode()


def uuid(raw: bytes) -> bytes:
    """Convert uuid_send's 16 bytes."""
    if len(raw) != 16:
        raise ValueError("not a binary uuid")
    h = raw.hex()
    return f"{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}".encode()


def _hstore_quoted(text: bytes) -> bytes:
    return b'"%s"' % text.replace(b"\\", b"\\\\").replace(b'"', b'\\"')


def hstore(raw: bytes) -> bytes:
    """Convert hstore_send's count and pairs."""
    count, position = int32_at(raw, 0), 4
    if not 0 <= count <= (len(raw) - 4) // 8:
        raise ValueError("not a binary hstore")
    pairs = []
    for _ in range(count):
        key, position = value_at(raw, position)
        value, position = value_at(raw, position)
        if key is None:
            raise ValueError("not a binary hstore")
        pairs.append(_hstore_quoted(key) + b"=>" + (b"NULL" if value is None else _hstore_quoted(value)))
    all_of(position, raw)
    return b", ".join(pairs)
