"""Encode pgoutput messages: the counterpart of the decoder, for tests and the simulator.

In: messages of `messages`.  Out: payload bytes as a walsender sends them, and RowBatches of row frames.
Invariant: `decode(encode(m)) == m` with the same session facts.
Must not: be used by the daemon, which never sends these messages.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Any

from cdcd.frame_layout import HEADER as FRAME_HEADER
from cdcd.lsn import Lsn
from cdcd.model import RowBatch
from cdcd.pgoutput.messages import (
    FORMAT_OF,
    RELATION_COLUMN_FIELDS,
    AnyMessage,
    Delete,
    FieldFormat,
    Insert,
    OldTuple,
    RelationColumn,
    TupleData,
    Update,
    When,
    WireFormat,
    is_present,
)


def encode(
    message: AnyMessage, *, in_stream: bool, protocol_version: int = 4, streaming_parallel: bool = False
) -> bytes:
    """Return the payload of a message. Raise ValueError if its conditional fields do not fit the session."""
    row = FORMAT_OF[type(message)]
    parts = [bytes((row.type_byte,))]
    for one in row.fields:
        value = getattr(message, one.name)
        present = is_present(
            one.wire.when,
            in_stream=in_stream,
            protocol_version=protocol_version,
            streaming_parallel=streaming_parallel,
        )
        _check_presence(row.name, one, present, value)
        if present:
            parts.append(_WRITERS[one.wire.kind](value))
    return b"".join(parts)


def row_batch_of(rows: Iterable[tuple[Lsn, Insert | Update | Delete]], *, xid: int | None = None) -> RowBatch:
    """Return the RowBatch of these rows; `xid` as in their messages, None outside a stream segment."""
    frames = []
    for lsn, message in rows:
        payload = encode(message, in_stream=xid is not None)
        if message.xid != xid:
            raise ValueError("a row's xid differs from its batch's")
        frames.append(FRAME_HEADER.pack(len(payload), lsn) + payload)
    return RowBatch(b"".join(frames), len(frames), xid)


def _check_presence(name: str, one: FieldFormat, present: bool, value: object) -> None:
    if one.wire.when is not When.ALWAYS and present != (value is not None):
        raise ValueError(f"{name}: {one.name} is on the wire {one.wire.when.value}")


def _number(layout: str) -> Callable[[Any], bytes]:
    return struct.Struct(layout).pack


def _write_zero(value: int) -> bytes:
    if value:
        raise ValueError("unused flags must be 0")
    return b"\0"


def _write_string(value: str) -> bytes:
    raw = value.encode("utf-8")
    if b"\0" in raw:
        raise ValueError("a String cannot hold NUL")
    return raw + b"\0"


def _write_content(value: bytes) -> bytes:
    return struct.pack(">I", len(value)) + value


def _write_relids(relids: tuple[int, ...]) -> bytes:
    return struct.pack(f">{len(relids)}I", *relids)


def _write_columns(columns: tuple[RelationColumn, ...]) -> bytes:
    parts = [struct.pack(">H", len(columns))]
    parts += [
        _WRITERS[one.wire.kind](getattr(column, one.name))
        for column in columns
        for one in RELATION_COLUMN_FIELDS
    ]
    return b"".join(parts)


def _write_tuple(data: TupleData) -> bytes:
    parts = [struct.pack(">H", len(data.columns))]
    for column in data.columns:
        if (column.value is not None) != (column.kind in (b"t", b"b")):
            raise ValueError(f"a column of kind {column.kind!r} has a value of the wrong type")
        parts.append(column.kind)
        if column.value is not None:
            parts.append(_write_content(column.value))
    return b"".join(parts)


def _write_old_tuple(old: OldTuple) -> bytes:
    return old.marker + _write_tuple(old.data)


_WRITERS: dict[WireFormat, Callable[[Any], bytes]] = {
    WireFormat.ZERO: _write_zero,
    WireFormat.FLAG: _number(">?"),
    WireFormat.TRUNCATE_OPTIONS: _number(">B"),
    WireFormat.IDENTITY: lambda value: value.encode("ascii"),
    WireFormat.OID: _number(">I"),
    WireFormat.XID: _number(">I"),
    WireFormat.TYPMOD: _number(">i"),
    WireFormat.LSN: _number(">Q"),
    WireFormat.TIME: _number(">q"),
    WireFormat.STRING: _write_string,
    WireFormat.CONTENT: _write_content,
    WireFormat.RELID_COUNT: _number(">I"),
    WireFormat.RELIDS: _write_relids,
    WireFormat.COLUMNS: _write_columns,
    WireFormat.NEW_TUPLE: lambda value: b"N" + _write_tuple(value),
    WireFormat.OLD_TUPLE: _write_old_tuple,
    WireFormat.OPTIONAL_OLD_TUPLE: lambda value: b"" if value is None else _write_old_tuple(value),
}
