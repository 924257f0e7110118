"""The framing inside CopyBoth: the messages that a walsender and a standby exchange. Pure.

In: one CopyData payload (or a batch of them).  Out: one message of the table, or items cut into batches; and the
bytes of a standby's messages.
Wire source: "Streaming Replication Protocol", messages XLogData (w), Primary keepalive (k), Standby status
update (r), Hot standby feedback (h). All integers big-endian.
Invariant: every byte of a message is in exactly one item, in the order of the wire; an error names message and
field.
Must not: do I/O, or read more of a pgoutput message than its type byte and, inside a stream, the xid.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from cdcd.errors import MessageTrailing, MessageTruncated, MessageUnknown
from cdcd.frame_layout import LENGTH, STREAMED_RELID_AT, XID_AT
from cdcd.lsn import Lsn
from cdcd.model import Control, Item, Keepalive, RowBatch

XLOG_DATA = 0x77  # 'w'
KEEPALIVE = 0x6B  # 'k'

_XID = struct.Struct(">I")
_LSN = struct.Struct(">Q")
_CLOCK = struct.Struct(">q")

_STREAM_START = 0x53  # 'S'
_STREAM_STOP = 0x45  # 'E'
_ROWS = frozenset(b"IUD")


@dataclass(frozen=True, slots=True)
class XLogData:
    """One `w` message. `start_lsn` is the message's LSN; it does not mean that all earlier data was received (F6)."""

    start_lsn: Lsn
    end_lsn: Lsn
    sent_at_pg_us: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class StandbyStatusUpdate:
    """One `r` message: three complete positions (F8), the sender's time, and whether a reply is requested."""

    write_lsn: Lsn
    flush_lsn: Lsn
    apply_lsn: Lsn
    sent_at_pg_us: int
    reply_requested: bool


@dataclass(frozen=True, slots=True)
class HotStandbyFeedback:
    """One `h` message. cdcd sends none: a logical slot has its own catalog_xmin."""

    sent_at_pg_us: int
    xmin: int
    xmin_epoch: int
    catalog_xmin: int
    catalog_xmin_epoch: int


Frame = XLogData | Keepalive | StandbyStatusUpdate | HotStandbyFeedback


@dataclass(frozen=True, slots=True)
class FrameFormat:
    """One row of the table: type byte, documented name, class, fields in wire order with `struct` letters.

    The letters: Q an LSN, q a TimestampTz, I a transaction id or epoch, ? an Int8 that is 0 or 1. After these fields
    XLogData has its payload of at least one byte.
    """

    type_byte: int
    name: str
    cls: type[Frame]
    fields: tuple[tuple[str, str], ...]
    has_payload: bool = False

    @property
    def layout(self) -> struct.Struct:
        """The type byte and the fixed fields."""
        return struct.Struct(">c" + "".join(letter for _, letter in self.fields))

    def offset(self, field: str) -> int:
        """Return the offset of a field."""
        before = itertools.takewhile(lambda one: one[0] != field, self.fields)
        return struct.calcsize(">c" + "".join(letter for _, letter in before))


_REPLY = ("reply_requested", "?")
_SENT_AT = ("sent_at_pg_us", "q")
_POSITIONS = (("write_lsn", "Q"), ("flush_lsn", "Q"), ("apply_lsn", "Q"))
_XMINS = (("xmin", "I"), ("xmin_epoch", "I"), ("catalog_xmin", "I"), ("catalog_xmin_epoch", "I"))

_XLOG_FIELDS = (("start_lsn", "Q"), ("end_lsn", "Q"), _SENT_AT)
FRAMES = {
    row.type_byte: row
    for row in (
        FrameFormat(XLOG_DATA, "XLogData", XLogData, _XLOG_FIELDS, has_payload=True),
        FrameFormat(KEEPALIVE, "Primary keepalive", Keepalive, (("wal_end_lsn", "Q"), _SENT_AT, _REPLY)),
        FrameFormat(ord("r"), "Standby status update", StandbyStatusUpdate, (*_POSITIONS, _SENT_AT, _REPLY)),
        FrameFormat(ord("h"), "Hot standby feedback", HotStandbyFeedback, (_SENT_AT, *_XMINS)),
    )
}
"""The table by type byte."""

FRAME_OF = {row.cls: row for row in FRAMES.values()}
"""The table by class."""

XLOG_BYTES = FRAMES[XLOG_DATA].layout.size
XLOG_LSN_AT = FRAMES[XLOG_DATA].offset("start_lsn")
XLOG_SENT_AT = FRAMES[XLOG_DATA].offset("sent_at_pg_us")
KEEPALIVE_BYTES = FRAMES[KEEPALIVE].layout.size
KEEPALIVE_LSN_AT = FRAMES[KEEPALIVE].offset("wal_end_lsn")
KEEPALIVE_SENT_AT = FRAMES[KEEPALIVE].offset("sent_at_pg_us")
KEEPALIVE_REPLY_AT = FRAMES[KEEPALIVE].offset("reply_requested")

_XLOG_LSN = slice(XLOG_LSN_AT, FRAMES[XLOG_DATA].offset("end_lsn"))
_STATUS = FRAMES[ord("r")].layout


def read_frame(data: bytes) -> Frame:
    """Return the message in one CopyData payload of either side.

    Raises MessageTruncated, -Trailing or -Unknown, with the names of message and field.
    """
    if not data:
        raise MessageTruncated("an empty CopyData message", message_name="CopyData", field="type")
    row = FRAMES.get(data[0])
    if row is None:
        raise MessageUnknown(f"CopyData message type 0x{data[0]:02x}", message_name="CopyData", field="type")
    size_bytes = row.layout.size
    if len(data) < size_bytes + row.has_payload:
        raise _truncated(row, len(data))
    if len(data) > size_bytes and not row.has_payload:
        message = f"{row.name} has {len(data) - size_bytes} bytes after its last field"
        raise MessageTrailing(message, message_name=row.name, field="end", size_bytes=len(data))
    _check_flag(row, data)
    payload = (data[size_bytes:],) if row.has_payload else ()
    frame: Frame = row.cls(*row.layout.unpack_from(data)[1:], *payload)
    return frame


def write_frame(frame: Frame) -> bytes:
    """Return the CopyData payload of a message: the reverse of `read_frame`."""
    row = FRAME_OF[type(frame)]
    values = (getattr(frame, name) for name, _ in row.fields)
    fixed = row.layout.pack(bytes((row.type_byte,)), *values)
    return fixed + frame.payload if isinstance(frame, XLogData) else fixed


def parse_copy_data(data: bytes) -> XLogData | Keepalive:
    """Return the message in one CopyData payload of the server. Raises as `read_frame`."""
    frame = read_frame(data)
    if not isinstance(frame, XLogData | Keepalive):
        raise MessageUnknown(
            f"CopyData message type 0x{data[0]:02x} from a server", message_name="CopyData", field="type"
        )
    return frame


def _truncated(row: FrameFormat, size_bytes: int) -> MessageTruncated:
    """Return the error that names the field in which the message ends."""
    end, ends_in = 1, "payload"
    for name, letter in row.fields:
        end += struct.calcsize(">" + letter)
        if size_bytes < end:
            ends_in = name
            break
    return MessageTruncated(
        f"{row.name} ends inside {ends_in}", message_name=row.name, field=ends_in, size_bytes=size_bytes
    )


def _check_flag(row: FrameFormat, data: bytes) -> None:
    name, letter = row.fields[-1]
    if letter == "?" and data[row.layout.size - 1] > 1:
        message = f"{row.name}: {name} has a value that the protocol does not define"
        raise MessageUnknown(message, message_name=row.name, field=name)


def standby_status_update(
    write_lsn: Lsn, flush_lsn: Lsn, apply_lsn: Lsn, now_pg_us: int, reply_requested: bool
) -> bytes:
    """Return the `r` message: three complete positions (F8), cdcd's time, and whether a reply is requested."""
    return _STATUS.pack(b"r", write_lsn, flush_lsn, apply_lsn, now_pg_us, reply_requested)


def cut_items(messages: Sequence[bytes], in_stream: bool) -> tuple[list[Item], bool]:
    """Cut CopyData payloads into items; `in_stream`: the first one is inside a stream segment.

    Returns the items, and whether the last message is inside a segment. Consecutive rows (inside a stream: of one
    xid) share a `RowBatch`; any other message ends it. Raises as `parse_copy_data`.
    """
    items: list[Item] = []
    frames: list[bytes] = []
    xid: int | None = None
    rows, pack, header = _ROWS, LENGTH.pack, XLOG_BYTES

    for data in messages:
        size = len(data) - header
        if size > 0 and data[0] == XLOG_DATA:
            kind = data[header]
            if kind in rows:
                row_xid = _row_xid(data) if in_stream else None
                if frames and row_xid != xid:
                    items.append(RowBatch(b"".join(frames), len(frames) // 3, xid))
                    frames.clear()
                xid = row_xid
                frames += (pack(size), data[_XLOG_LSN], data[header:])
                continue
            item: Item = Control(
                _LSN.unpack_from(data, XLOG_LSN_AT)[0],
                data[header:],
                _CLOCK.unpack_from(data, XLOG_SENT_AT)[0],
            )
            if kind == _STREAM_START:
                in_stream = True
            elif kind == _STREAM_STOP:
                in_stream = False
        else:
            item = _not_xlog_data(data)
        if frames:
            items.append(RowBatch(b"".join(frames), len(frames) // 3, xid))
            frames.clear()
        items.append(item)

    if frames:
        items.append(RowBatch(b"".join(frames), len(frames) // 3, xid))
    return items, in_stream


def _row_xid(data: bytes) -> int:
    if len(data) < XLOG_BYTES + STREAMED_RELID_AT:
        raise MessageTruncated(
            "a row inside a stream segment ends before its xid", message_name="XLogData", field="xid"
        )
    xid: int = _XID.unpack_from(data, XLOG_BYTES + XID_AT)[0]
    return xid


def _not_xlog_data(data: bytes) -> Item:
    parsed = parse_copy_data(data)
    if isinstance(parsed, XLogData):
        raise MessageUnknown("XLogData where a keepalive was expected")
    return parsed
