"""The format of an item in a segment: a header, then the bytes from the wire.

In: a batch or control message.  Out: its header; and the reverse.
Invariant: a segment can be read from its beginning without an index, so memory does not grow with the data on disk.
A damaged piece is an error, never a row.
"""

from __future__ import annotations

import struct
import zlib
from typing import BinaryIO, NamedTuple

from cdcd.errors import SpillError
from cdcd.model import Control, RowBatch

# kind | crc32 of the bytes | length of the bytes | xid of a streamed batch | rows of a batch, or a message's LSN
_HEADER = struct.Struct(">BIIIQ")
HEADER_BYTES = _HEADER.size
_ROW_BATCH, _STREAMED_ROW_BATCH, _CONTROL = b"rsc"


class Header(NamedTuple):
    """A piece's header, as read."""

    kind: int
    crc: int
    length: int
    xid: int
    number: int

    @property
    def batch_xid(self) -> int | None:
        """The xid of a streamed batch, None for other pieces."""
        return self.xid if self.kind == _STREAMED_ROW_BATCH else None


def bytes_of(item: RowBatch | Control) -> bytes:
    """Return the bytes of an item as received from the wire."""
    return item.frames if isinstance(item, RowBatch) else item.payload


def header_of(item: RowBatch | Control) -> bytes:
    """Return the header of an item."""
    data = bytes_of(item)
    crc = zlib.crc32(data)
    if isinstance(item, Control):
        return _HEADER.pack(_CONTROL, crc, len(data), 0, item.lsn)
    if item.xid is None:
        return _HEADER.pack(_ROW_BATCH, crc, len(data), 0, item.count)
    return _HEADER.pack(_STREAMED_ROW_BATCH, crc, len(data), item.xid, item.count)


_DISK_HINT = "check the disk, then run `cdcd resume`: the server sends the transactions again"


def read_header(file: BinaryIO) -> Header:
    """Read the next piece's header. Raises SpillError if it is incomplete or of an unknown kind."""
    data = file.read(HEADER_BYTES)
    if len(data) != HEADER_BYTES:
        raise SpillError("a segment ends inside a header", hint=_DISK_HINT)
    header = Header._make(_HEADER.unpack(data))
    if header.kind not in (_ROW_BATCH, _STREAMED_ROW_BATCH, _CONTROL):
        raise SpillError("a segment contains a piece of an unknown kind", hint=_DISK_HINT)
    return header


def read_item(file: BinaryIO, header: Header) -> RowBatch | Control:
    """Read the piece's bytes. Raises SpillError if they differ from the bytes that were written."""
    data = file.read(header.length)
    if len(data) != header.length or zlib.crc32(data) != header.crc:
        raise SpillError("a segment does not contain the bytes that were written to it", hint=_DISK_HINT)
    if header.kind == _CONTROL:
        return Control(header.number, data)
    return RowBatch(data, header.number, header.batch_xid)
