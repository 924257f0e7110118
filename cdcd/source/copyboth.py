"""The framing inside CopyBoth: XLogData and keepalive in, standby status update out. Pure.

In: one CopyData payload (or a batch of them).  Out: `XLogData`, `Keepalive`, or items cut into runs; and the
bytes of a Standby status update.
Wire source: "Streaming Replication Protocol", messages XLogData (w), Primary keepalive (k), Standby status
update (r). All integers big-endian.
Invariant: every byte of a message is in exactly one item, in the order of the wire.
Must not: do I/O, or look further into a pgoutput message than its type byte and, inside a stream, the xid.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from cdcd.errors import MessageTrailing, MessageTruncated, MessageUnknown
from cdcd.lsn import Lsn
from cdcd.model import Control, Item, Keepalive, Run

XLOG_DATA = 0x77  # 'w'
KEEPALIVE = 0x6B  # 'k'

_XLOG_HEADER = struct.Struct(">xQQq")  # start, end, server's clock
_KEEPALIVE = struct.Struct(">xQqB")  # wal end, server's clock, reply requested
_STATUS = struct.Struct(">cQQQqB")
_LENGTH = struct.Struct(">I")
_XID = struct.Struct(">I")
_LSN = struct.Struct(">Q")

_STREAM_START = 0x53  # 'S'
_STREAM_STOP = 0x45  # 'E'
_ROWS = frozenset(b"IUD")
_XLOG_BYTES = _XLOG_HEADER.size  # 25


@dataclass(frozen=True, slots=True)
class XLogData:
    """One `w` message. `start_lsn` is the message's LSN, not a position received up to (F6)."""

    start_lsn: Lsn
    end_lsn: Lsn
    sent_at_pg_us: int
    payload: bytes


def parse_copy_data(data: bytes) -> XLogData | Keepalive:
    """Return the message in one CopyData payload. Raises MessageTruncated, -Trailing or -Unknown."""
    if not data:
        raise MessageTruncated("an empty CopyData message")
    if data[0] == XLOG_DATA:
        if len(data) <= _XLOG_BYTES:
            raise MessageTruncated(f"XLogData of {len(data)} bytes has no payload")
        start_lsn, end_lsn, sent_at = _XLOG_HEADER.unpack_from(data)
        return XLogData(start_lsn, end_lsn, sent_at, data[_XLOG_BYTES:])
    if data[0] == KEEPALIVE:
        return _keepalive(data)
    raise MessageUnknown(f"CopyData message type 0x{data[0]:02x}")


def _keepalive(data: bytes) -> Keepalive:
    if len(data) < _KEEPALIVE.size:
        raise MessageTruncated(f"keepalive of {len(data)} bytes, {_KEEPALIVE.size} expected")
    if len(data) > _KEEPALIVE.size:
        raise MessageTrailing(f"keepalive of {len(data)} bytes, {_KEEPALIVE.size} expected")
    wal_end_lsn, sent_at, reply = _KEEPALIVE.unpack(data)
    if reply > 1:
        raise MessageUnknown(f"keepalive with reply flag {reply}")
    return Keepalive(wal_end_lsn, sent_at, reply == 1)


def standby_status_update(
    write_lsn: Lsn, flush_lsn: Lsn, apply_lsn: Lsn, now_pg_us: int, reply_requested: bool
) -> bytes:
    """Return the `r` message: three full positions (F8), our clock, and whether an answer is wanted."""
    return _STATUS.pack(b"r", write_lsn, flush_lsn, apply_lsn, now_pg_us, int(reply_requested))


def cut_items(messages: Sequence[bytes], in_stream: bool) -> tuple[list[Item], bool]:
    """Cut CopyData payloads into items; `in_stream` says whether the first one is inside a stream segment.

    Returns the items and the state after the last message. Consecutive rows (inside a stream: of one xid)
    share a `Run`; everything else ends it. Raises as `parse_copy_data`.
    """
    items: list[Item] = []
    frames: list[bytes] = []
    xid: int | None = None
    rows, pack, header = _ROWS, _LENGTH.pack, _XLOG_BYTES

    for data in messages:
        size = len(data) - header
        if size > 0 and data[0] == XLOG_DATA:
            kind = data[header]
            if kind in rows:
                row_xid = _row_xid(data) if in_stream else None
                if frames and row_xid != xid:
                    items.append(Run(b"".join(frames), len(frames) // 3, xid))
                    frames.clear()
                xid = row_xid
                frames += (pack(size), data[1:9], data[header:])
                continue
            item: Item = Control(_LSN.unpack_from(data, 1)[0], data[header:])
            if kind == _STREAM_START:
                in_stream = True
            elif kind == _STREAM_STOP:
                in_stream = False
        else:
            item = _not_xlog_data(data)
        if frames:
            items.append(Run(b"".join(frames), len(frames) // 3, xid))
            frames.clear()
        items.append(item)

    if frames:
        items.append(Run(b"".join(frames), len(frames) // 3, xid))
    return items, in_stream


def _row_xid(data: bytes) -> int:
    if len(data) < _XLOG_BYTES + 5:
        raise MessageTruncated("a row inside a stream segment ends before its xid")
    xid: int = _XID.unpack_from(data, _XLOG_BYTES + 1)[0]
    return xid


def _not_xlog_data(data: bytes) -> Item:
    parsed = parse_copy_data(data)
    if isinstance(parsed, XLogData):
        raise MessageUnknown("XLogData where a keepalive was expected")
    return parsed
