"""The key `copy` of the progress record: `CopyState` <-> JSON.

In: a `CopyState`, or the decoded JSON.  Out: the other one; equal after a round trip.
Invariant: it is read whole or not at all; an unknown key, as a newer version may write it, is an error of its own.
The names of pending tables, floors and point are those of every version; `tx_seq`, `tables`, `signals_at`,
`blocking`, `partial` and `excluded` are written only if they are not empty.
Must not: do I/O.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Set
from typing import Any

from cdcd.lsn import Lsn, format_lsn, parse_lsn
from cdcd.model import BlockingCopyState, CopyState, TableCopyState

__all__ = ["UnknownKey", "dumped_copy", "loaded_copy", "size_of", "with_keys"]

_ALWAYS = {"pending", "floors", "point_lsn"}
_SOMETIMES = {"tx_seq", "tables", "signals_at", "blocking", "partial", "excluded"}
_FLAGS = ("is_by_blocks", "is_scanned", "is_paused")
_TABLE_KEYS = {
    "topic",
    "after",
    *_FLAGS,
    "read_again",
    "where",
    "partitions",
    "key",
    "began",
    "rows",
    "rows_before",
    "compared_from",
    "columns",
    "row_filter",
}
_BLOCKING_FLAGS = ("empties", "has_failed")
_BLOCKING_KEYS = {"topic", "where", *_BLOCKING_FLAGS}
_MOST_DIGITS = 10
_MAX_LONG = (1 << 63) - 1


class UnknownKey(ValueError):
    """An object has the keys of this version, and others."""


def with_keys(
    document: object, name: str, always: Set[str], sometimes: Set[str] = frozenset()
) -> dict[str, Any]:
    """Return an object that has these keys. Raises ValueError with its name, UnknownKey if it has others as well."""
    if not isinstance(document, dict) or always - document.keys():
        raise ValueError(name)
    if document.keys() - always - sometimes:
        raise UnknownKey(name)
    return document


def dumped_copy(copy: CopyState) -> dict[str, Any]:
    """Return the JSON object of a state."""
    document: dict[str, Any] = {
        "pending": list(copy.pending),
        "floors": {str(relid): format_lsn(lsn) for relid, lsn in sorted(copy.floors.items())},
        "point_lsn": format_lsn(copy.point_lsn),
    }
    if copy.tx_seq:
        document["tx_seq"] = copy.tx_seq
    if copy.tables:
        document["tables"] = {str(relid): _dumped_table(one) for relid, one in copy.tables.items()}
    if copy.signals_at >= 0:
        document["signals_at"] = copy.signals_at
    if copy.blocking:
        document["blocking"] = {str(relid): _dumped_blocking(one) for relid, one in copy.blocking.items()}
    if copy.partial:
        document["partial"] = list(copy.partial)
    if copy.excluded:
        document["excluded"] = list(copy.excluded)
    return document


def size_of(copy: CopyState) -> int:
    """Return the bytes that a state takes in the progress record."""
    return len(json.dumps(dumped_copy(copy), separators=(",", ":")))


def _dumped_blocking(table: BlockingCopyState) -> dict[str, Any]:
    document: dict[str, Any] = {"topic": table.topic}
    document |= {name: True for name in _BLOCKING_FLAGS if getattr(table, name)}
    return document if table.where is None else document | {"where": table.where}


def _dumped_table(table: TableCopyState) -> dict[str, Any]:
    document: dict[str, Any] = {"topic": table.topic}
    if table.after is not None:
        document["after"] = list(table.after)
    document |= {name: True for name in _FLAGS if getattr(table, name)}
    if table.read_again:
        document["read_again"] = [
            [base64.b64encode(key).decode(), *values] for key, values in table.read_again.items()
        ]
    if table.where is not None:
        document["where"] = table.where
    if table.partitions:
        document["partitions"] = list(table.partitions)
    if table.key:
        document["key"] = list(table.key)
    if table.began_lsn:
        document["began"] = [format_lsn(table.began_lsn), table.began_as]
    if table.rows:
        document["rows"] = table.rows
    if table.rows_before:
        document["rows_before"] = table.rows_before
    if table.compared_from is not None:
        document["compared_from"] = list(table.compared_from)
    if table.columns is not None:
        document["columns"] = list(table.columns)
    if table.row_filter:
        document["row_filter"] = table.row_filter
    return document


def loaded_copy(document: object) -> CopyState:
    """Return the state that `dumped_copy` was given. Raises ValueError with the wrong key, UnknownKey."""
    document = with_keys(document, "", _ALWAYS, _SOMETIMES)
    pending, tables, blocking = document["pending"], document.get("tables", {}), document.get("blocking", {})
    partial, excluded = document.get("partial", []), document.get("excluded", [])
    for name, relids in (("pending", pending), ("partial", partial), ("excluded", excluded)):
        if not isinstance(relids, list) or not all(map(_is_relid, relids)):
            raise ValueError(name)
    if not isinstance(tables, dict) or not all(map(_is_relid_text, tables)):
        raise ValueError("tables")
    if not isinstance(blocking, dict) or not all(map(_is_relid_text, blocking)):
        raise ValueError("blocking")
    return CopyState(
        tuple(pending),
        _floors(document["floors"]),
        _lsn(document["point_lsn"], "point_lsn"),
        _count(document.get("tx_seq", 0), "tx_seq"),
        {int(relid): _table(one) for relid, one in tables.items()},
        _count(document.get("signals_at", -1), "signals_at", least=-1),
        {int(relid): _blocking(one) for relid, one in blocking.items()},
        tuple(partial),
        tuple(excluded),
    )


def _floors(floors: object) -> dict[int, Lsn]:
    if not isinstance(floors, dict) or not all(map(_is_relid_text, floors)):
        raise ValueError("floors")
    return {int(relid): _lsn(lsn, "floors") for relid, lsn in floors.items()}


def _table(document: object) -> TableCopyState:
    document = with_keys(document, "tables", {"topic"}, _TABLE_KEYS)
    topic, where, after = document["topic"], document.get("where"), document.get("after")
    again, partitions = document.get("read_again", []), document.get("partitions", [])
    key, began, columns = (
        document.get("key", []),
        document.get("began", ["0/0", ""]),
        document.get("columns", []),
    )
    is_right = (
        isinstance(topic, str)
        and isinstance(where, str | None)
        and isinstance(document.get("row_filter", ""), str)
        and (after is None or _is_key(after))
        and isinstance(again, list)
        and all(_is_key(one) and len(one) > 1 for one in again)
        and all(isinstance(one, list) for one in (partitions, key, began, columns))
        and all(isinstance(one, str) for one in (*partitions, *key, *began, *columns))
        and len(began) == 2
        and all(document.get(name, True) is True for name in _FLAGS)
    )
    if not is_right:
        raise ValueError("tables")
    try:
        read_again = {base64.b64decode(key, validate=True): tuple(values) for key, *values in again}
    except binascii.Error:
        raise ValueError("tables") from None
    return TableCopyState(
        topic,
        None if after is None else tuple(after),
        read_again=read_again,
        where=where,
        partitions=tuple(partitions),
        key=tuple(key),
        began_lsn=_lsn(began[0], "tables"),
        began_as=began[1],
        rows=_count(document.get("rows", 0), "tables"),
        rows_before=_count(document.get("rows_before", 0), "tables"),
        compared_from=_offsets(document["compared_from"]) if "compared_from" in document else None,
        columns=tuple(columns) if "columns" in document else None,
        row_filter=document.get("row_filter", ""),
        **{name: name in document for name in _FLAGS},
    )


def _offsets(values: object) -> tuple[int, ...]:
    if not isinstance(values, list):
        raise ValueError("tables")  # noqa: TRY004 - one error for all wrong content
    return tuple(_count(one, "tables") for one in values)


def _blocking(document: object) -> BlockingCopyState:
    document = with_keys(document, "blocking", {"topic"}, _BLOCKING_KEYS)
    topic, where = document["topic"], document.get("where")
    are_flags = all(document.get(name, True) is True for name in _BLOCKING_FLAGS)
    if not isinstance(topic, str) or not isinstance(where, str | None) or not are_flags:
        raise ValueError("blocking")
    return BlockingCopyState(topic, where, **{name: name in document for name in _BLOCKING_FLAGS})


def _is_key(values: object) -> bool:
    return isinstance(values, list) and bool(values) and all(isinstance(one, str) for one in values)


def _is_relid(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 32


def _is_relid_text(relid: str) -> bool:
    return relid.isdecimal() and relid.isascii() and len(relid) <= _MOST_DIGITS and _is_relid(int(relid))


def _count(value: object, name: str, least: int = 0) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= _MAX_LONG:
        raise ValueError(name)
    return value


def _lsn(value: object, name: str) -> Lsn:
    try:
        return parse_lsn(value if isinstance(value, str) else "")
    except ValueError:
        raise ValueError(name) from None
