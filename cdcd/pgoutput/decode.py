"""Decode one pgoutput message from its bytes, strictly.

In: a payload (type byte and fields), and the three session properties that change the layout.
Out: one message of `messages`.
Invariant: every byte is read exactly once. A count or length is compared with the remaining bytes before memory is
allocated for it. Bytes that PostgreSQL's documentation does not allow raise a ProtocolError with message and field.
Must not: put bytes of a value into an error.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from cdcd.errors import MessageTrailing, MessageTruncated, MessageUnknown, ProtocolError
from cdcd.pgoutput.messages import (
    MESSAGES,
    RELATION_COLUMN_FIELDS,
    AnyMessage,
    MessageFormat,
    OldTuple,
    RelationColumn,
    TupleColumn,
    TupleData,
    WireFormat,
    is_present,
)

_UINT16 = struct.Struct(">H")
_UINT32 = struct.Struct(">I")
_INT32 = struct.Struct(">i")
_UINT64 = struct.Struct(">Q")
_INT64 = struct.Struct(">q")

_COLUMN_MIN_BYTES = 1 + 1 + 4 + 4  # flags, an empty name's NUL, type oid, typmod
_TUPLE_COLUMN_MIN_BYTES = 1
_RELID_BYTES = 4


def decode(
    payload: bytes, *, in_stream: bool, protocol_version: int, streaming_parallel: bool = False
) -> AnyMessage:
    """Return the message that the complete `payload` encodes.

    `in_stream`: the message is between Stream Start and Stream Stop, so that contents have an xid.
    Raises MessageUnknown, MessageTruncated, MessageTrailing, or ProtocolError for a name that is not UTF-8.
    """
    row = format_of(payload, protocol_version)
    cursor = _Cursor(payload, row)
    values: dict[str, Any] = {}
    for one in row.fields:
        if is_present(
            one.wire.when,
            in_stream=in_stream,
            protocol_version=protocol_version,
            streaming_parallel=streaming_parallel,
        ):
            value = _READERS[one.wire.kind](cursor, one.name)
            if not one.is_derived:
                values[one.name] = value
    cursor.finish()
    return row.cls(**values)


def format_of(payload: bytes, protocol_version: int = 4) -> MessageFormat:
    """Return the table's row for a payload. Raises MessageUnknown for a type that this version does not have."""
    if not payload:
        raise MessageTruncated("a message without a type byte", field="type")
    row = MESSAGES.get(payload[0])
    if row is None:
        raise MessageUnknown(f"unknown message type 0x{payload[0]:02x}")
    if row.since_version > protocol_version:
        raise MessageUnknown(f"{row.name} does not exist in protocol version {protocol_version}")
    return row


class _Cursor:
    """A position in a payload that never goes beyond its end."""

    __slots__ = ("_at", "_payload", "_row", "relid_count")

    def __init__(self, payload: bytes, row: MessageFormat) -> None:
        self._payload = payload
        self._row = row
        self._at = 1
        self.relid_count = 0

    @property
    def left_bytes(self) -> int:
        return len(self._payload) - self._at

    def take(self, size_bytes: int, field: str) -> bytes:
        if size_bytes > self.left_bytes:
            raise self.truncated(field)
        start, self._at = self._at, self._at + size_bytes
        return self._payload[start : self._at]

    def number(self, layout: struct.Struct, field: str) -> int:
        value: int = layout.unpack(self.take(layout.size, field))[0]
        return value

    def peek(self, field: str) -> bytes:
        if not self.left_bytes:
            raise self.truncated(field)
        return self._payload[self._at : self._at + 1]

    def string(self, field: str) -> str:
        end = self._payload.find(0, self._at)
        if end < 0:
            raise self.truncated(field)
        raw = self.take(end - self._at, field)
        self._at += 1
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            # client_encoding is UTF8 (F53), so the database's own encoding is not enforced (SQL_ASCII).
            raise ProtocolError(
                f"{self._row.name}: {field} is not UTF-8", message_name=self._row.name, field=field
            ) from None

    def count(self, layout: struct.Struct, item_min_bytes: int, field: str) -> int:
        value = self.number(layout, field)
        if value * item_min_bytes > self.left_bytes:
            raise self.truncated(field)
        return value

    def truncated(self, field: str) -> MessageTruncated:
        return MessageTruncated(
            f"{self._row.name} ends inside {field}",
            message_name=self._row.name,
            field=field,
            offset=self._at,
            size_bytes=len(self._payload),
        )

    def unknown(self, field: str) -> MessageUnknown:
        # Without the byte itself: in a malformed message it may be part of a row's value.
        return MessageUnknown(
            f"{self._row.name}: {field} has a value that the protocol does not define",
            message_name=self._row.name,
            field=field,
            offset=self._at - 1,
        )

    def finish(self) -> None:
        if self.left_bytes:
            raise MessageTrailing(
                f"{self._row.name} has {self.left_bytes} bytes after its last field",
                message_name=self._row.name,
                field="end",
                size_bytes=len(self._payload),
            )


def _one_of(allowed: bytes) -> Callable[[_Cursor, str], int]:
    def read(cursor: _Cursor, field: str) -> int:
        byte = cursor.take(1, field)[0]
        if byte not in allowed:
            raise cursor.unknown(field)
        return byte

    return read


_zero = _one_of(b"\0")
_zero_or_one = _one_of(b"\0\1")
_options = _one_of(b"\0\1\2\3")
_identity = _one_of(b"dnfi")
_tuple_kind = _one_of(b"nutb")
_new_marker = _one_of(b"N")
_old_marker = _one_of(b"KO")


def _read_flag(cursor: _Cursor, field: str) -> bool:
    return _zero_or_one(cursor, field) == 1


def _read_identity(cursor: _Cursor, field: str) -> str:
    return chr(_identity(cursor, field))


def _read_content(cursor: _Cursor, field: str) -> bytes:
    return cursor.take(cursor.number(_UINT32, f"{field}.length"), field)


def _read_relid_count(cursor: _Cursor, field: str) -> int:
    cursor.relid_count = cursor.count(_UINT32, _RELID_BYTES, field)
    return cursor.relid_count


def _read_relids(cursor: _Cursor, field: str) -> tuple[int, ...]:
    return tuple(cursor.number(_UINT32, f"{field}[{index}]") for index in range(cursor.relid_count))


def _read_columns(cursor: _Cursor, field: str) -> tuple[RelationColumn, ...]:
    count = cursor.count(_UINT16, _COLUMN_MIN_BYTES, f"{field}.count")
    return tuple(_read_column(cursor, f"{field}[{index}]") for index in range(count))


def _read_column(cursor: _Cursor, where: str) -> RelationColumn:
    values = {
        one.name: _READERS[one.wire.kind](cursor, f"{where}.{one.name}") for one in RELATION_COLUMN_FIELDS
    }
    return RelationColumn(**values)


def _read_tuple(cursor: _Cursor, field: str) -> TupleData:
    count = cursor.count(_UINT16, _TUPLE_COLUMN_MIN_BYTES, f"{field}.count")
    return TupleData(tuple(_read_tuple_column(cursor, f"{field}[{index}]") for index in range(count)))


def _read_tuple_column(cursor: _Cursor, where: str) -> TupleColumn:
    kind = bytes((_tuple_kind(cursor, f"{where}.kind"),))
    if kind in (b"n", b"u"):
        return TupleColumn(kind)
    return TupleColumn(kind, _read_content(cursor, where))


def _read_new_tuple(cursor: _Cursor, field: str) -> TupleData:
    _new_marker(cursor, f"{field}.marker")
    return _read_tuple(cursor, field)


def _read_old_tuple(cursor: _Cursor, field: str) -> OldTuple:
    marker = bytes((_old_marker(cursor, f"{field}.marker"),))
    return OldTuple(marker, _read_tuple(cursor, field))


def _read_optional_old_tuple(cursor: _Cursor, field: str) -> OldTuple | None:
    if cursor.peek(f"{field}.marker") == b"N":
        return None
    return _read_old_tuple(cursor, field)


def _number(layout: struct.Struct) -> Callable[[_Cursor, str], int]:
    return lambda cursor, field: cursor.number(layout, field)


_READERS: dict[WireFormat, Callable[[_Cursor, str], Any]] = {
    WireFormat.ZERO: _zero,
    WireFormat.FLAG: _read_flag,
    WireFormat.TRUNCATE_OPTIONS: _options,
    WireFormat.IDENTITY: _read_identity,
    WireFormat.OID: _number(_UINT32),
    WireFormat.XID: _number(_UINT32),
    WireFormat.TYPMOD: _number(_INT32),
    WireFormat.LSN: _number(_UINT64),
    WireFormat.TIME: _number(_INT64),
    WireFormat.STRING: _Cursor.string,
    WireFormat.CONTENT: _read_content,
    WireFormat.RELID_COUNT: _read_relid_count,
    WireFormat.RELIDS: _read_relids,
    WireFormat.COLUMNS: _read_columns,
    WireFormat.NEW_TUPLE: _read_new_tuple,
    WireFormat.OLD_TUPLE: _read_old_tuple,
    WireFormat.OPTIONAL_OLD_TUPLE: _read_optional_old_tuple,
}
