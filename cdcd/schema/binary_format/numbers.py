"""Integers, booleans, and types made of integers: oids, transaction ids, LSNs, tuple ids, snapshots, money.

In: the send functions' big-endian bytes.  Out: decimal digits and the types' own notations.
Invariant: the length is exactly that of the type.
"""

from __future__ import annotations

import struct

from cdcd.schema.binary_format.cut import TextOfBinary

_BOOLEAN = {b"\x01": b"t", b"\x00": b"f"}
_unpack_tid = struct.Struct(">IH").unpack
_unpack_snapshot = struct.Struct(">iQQ").unpack_from


def integer(layout: str) -> TextOfBinary:
    """Return the function of an integer of this struct layout."""
    unpack = struct.Struct(layout).unpack
    return lambda raw: b"%d" % unpack(raw)[0]


def boolean(raw: bytes) -> bytes:
    """Convert boolsend's one byte."""
    return _BOOLEAN[raw]


def money(raw: bytes) -> bytes:
    """Convert cash_send's eight bytes to the text of lc_monetary C, the session's setting: two fraction digits."""
    (n,) = struct.unpack(">q", raw)
    whole, fraction = divmod(abs(n), 100)
    return b"%s$%s.%02d" % (b"-" if n < 0 else b"", f"{whole:,}".encode(), fraction)


def lsn(raw: bytes) -> bytes:
    """Convert pg_lsn_send's eight bytes."""
    return b"%X/%X" % struct.unpack(">II", raw)


def tid(raw: bytes) -> bytes:
    """Convert tidsend's block and offset."""
    return b"(%d,%d)" % _unpack_tid(raw)


def snapshot(raw: bytes) -> bytes:
    """Convert pg_snapshot_send's count, xmin, xmax and transactions in progress."""
    count, xmin, xmax = _unpack_snapshot(raw)
    if count < 0 or len(raw) != 20 + 8 * count:
        raise ValueError("not a binary snapshot")
    running = struct.unpack_from(f">{count}Q", raw, 20)
    return b"%d:%d:%s" % (xmin, xmax, b",".join(b"%d" % xid for xid in running))
