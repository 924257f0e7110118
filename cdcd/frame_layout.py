"""The frame: the layout of messages in a batch's bytes. Python and C code take its sizes from this module only.

    frame          | length int32 | LSN int64 | payload: one message, `length` bytes |   the next frame ...

    Insert, Update, Delete                        | type | relid int32 | tuples |
    the same inside a stream segment  | type | xid int32 | relid int32 | tuples |
    Begin          | 'B' | commit LSN int64 | commit time int64 | xid int32 |
    Commit         | 'C' | flags int8 | commit LSN int64 | end LSN int64 | commit time int64 |

In: the protocol's message formats.  Out: structs, sizes and offsets; `..._AT` counts from the beginning of the
frame or of the message. All integers are big-endian, without padding.
Invariant: the C extensions read these values when they are loaded (`frame_layout.pxi`).
"""

from __future__ import annotations

from struct import Struct, calcsize

LENGTH = Struct(">I")
HEADER = Struct(">IQ")
"""The payload's length, and the message's LSN."""

LSN_BYTES = calcsize(">Q")
FRAME_BYTES = HEADER.size
FRAME_LSN_AT = LENGTH.size

# The offset of a field is the size of the fields before it.
XID_AT = calcsize(">c")
RELID_AT = calcsize(">c")
STREAMED_RELID_AT = calcsize(">cI")
RELID_BYTES = calcsize(">I")

BEGIN_BYTES = calcsize(">cQqI")
BEGIN_COMMIT_LSN_AT = calcsize(">c")
BEGIN_TIME_AT = calcsize(">cQ")
BEGIN_XID_AT = calcsize(">cQq")

COMMIT_BYTES = calcsize(">cbQQq")
COMMIT_FLAGS_AT = calcsize(">c")
COMMIT_LSN_AT = calcsize(">cb")
COMMIT_END_LSN_AT = calcsize(">cbQ")


def relid_at(xid: int | None) -> int:
    """Return the offset of the relid in a row message; `xid` is None outside a stream segment."""
    return RELID_AT if xid is None else STREAMED_RELID_AT
