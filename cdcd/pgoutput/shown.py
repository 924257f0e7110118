"""Convert a message to plain values for JSON: every field of the table by its name, for debugging the protocol.

In: a message of `messages`.  Out: a dict of text, numbers, booleans, lists and dicts, in wire order.
LSNs are `X/Y`, times microseconds since 2000-01-01 as on the wire. Bytes are under the key "text" if they are valid
UTF-8 and were sent as text, else under "hex".
Invariant: the output is derived from the message table, so no field can be missing; a field that is not on the wire
of this session is absent.
Must not: be used by the daemon or in an error: the output contains row values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cdcd.lsn import format_lsn
from cdcd.pgoutput.messages import (
    FORMAT_OF,
    RELATION_COLUMN_FIELDS,
    AnyMessage,
    FieldFormat,
    OldTuple,
    RelationColumn,
    TupleColumn,
    TupleData,
    When,
    WireFormat,
)


def message_fields(message: AnyMessage) -> dict[str, Any]:
    """Return the fields of a message by their names."""
    return _fields(message, FORMAT_OF[type(message)].fields)


def shown_bytes(value: bytes) -> dict[str, str]:
    """Return `{"text": ...}` for valid UTF-8, else `{"hex": ...}`."""
    try:
        return {"text": value.decode("utf-8")}
    except UnicodeDecodeError:
        return {"hex": value.hex()}


def _fields(part: object, fields: tuple[FieldFormat, ...]) -> dict[str, Any]:
    values = ((one, getattr(part, one.name)) for one in fields)
    return {
        one.name: _SHOWN.get(one.wire.kind, _as_it_is)(value)
        for one, value in values
        if one.wire.when is When.ALWAYS or value is not None
    }


def _as_it_is(value: Any) -> Any:
    return value


def _column(column: TupleColumn) -> dict[str, Any]:
    kind = column.kind.decode("ascii")
    if column.value is None:
        return {"kind": kind}
    # A binary value that is valid UTF-8 is not text: int4 65 would be shown as "\0\0\0A".
    return {"kind": kind, **(shown_bytes(column.value) if kind == "t" else {"hex": column.value.hex()})}


def _tuple(data: TupleData) -> list[dict[str, Any]]:
    return [_column(column) for column in data.columns]


def _old_tuple(old: OldTuple | None) -> dict[str, Any] | None:
    return None if old is None else {"marker": old.marker.decode("ascii"), "columns": _tuple(old.data)}


def _relation_columns(columns: tuple[RelationColumn, ...]) -> list[dict[str, Any]]:
    return [_fields(column, RELATION_COLUMN_FIELDS) for column in columns]


_SHOWN: dict[WireFormat, Callable[[Any], Any]] = {
    WireFormat.LSN: format_lsn,
    WireFormat.CONTENT: shown_bytes,
    WireFormat.RELIDS: list,
    WireFormat.COLUMNS: _relation_columns,
    WireFormat.NEW_TUPLE: _tuple,
    WireFormat.OLD_TUPLE: _old_tuple,
    WireFormat.OPTIONAL_OLD_TUPLE: _old_tuple,
}
