"""The keys that the stream's changes write, for the tables of incremental snapshots. Pure.

In: a batch of row messages, the plans, the relids of the tables.  Out: `ChangedRows` for each of these tables.
Invariant: the keys are the bytes of the records' keys, also the old key of a change of a key. A row is incomplete if
PostgreSQL did not send a value that its update had not changed, and no old tuple has it (F46).
Must not: depend on whether the records are written: a replay of a transaction has the same result.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from cdcd.avro.columns import encode_key
from cdcd.avro.plan import RelationPlan
from cdcd.avro.tuple_data import UNCHANGED, BinaryValue, Raw, Row, cut_tuple
from cdcd.errors import MessageTruncated
from cdcd.frame_layout import FRAME_BYTES, RELID_BYTES, relid_at
from cdcd.model import KeyValues, Relation, RowBatch

_uint32_at = struct.Struct(">I").unpack_from
_INSERT, _DELETE, _KEY, _OLD = b"IDKO"


def _signed(raw: bytes) -> str:
    return str(int.from_bytes(raw, "big", signed=True))


def _unsigned(raw: bytes) -> str:
    return str(int.from_bytes(raw, "big"))


_TEXT_OF_BINARY: dict[int, Callable[[bytes], str]] = {
    16: lambda raw: "t" if raw == b"\x01" else "f",
    20: _signed,
    21: _signed,
    23: _signed,
    25: bytes.decode,
    26: _unsigned,
    1042: bytes.decode,
    1043: bytes.decode,
    2950: lambda raw: str(uuid.UUID(bytes=raw)),
}
"""By the type's oid: bool, int8, int2, int4, text, oid, bpchar, varchar, uuid."""


def has_text_form(type_oid: int) -> bool:
    """Return whether the text of a value in binary format is known."""
    return type_oid in _TEXT_OF_BINARY


def first_without_text(relation: Relation, names: Iterable[str]) -> str | None:
    """Return the first of these columns whose text a value in binary format does not show, None if all are known."""
    types = {column.name: column.type_oid for column in relation.columns}
    return next((name for name in names if not has_text_form(types[name])), None)


@dataclass(slots=True)
class ChangedRows:
    """The changes of one table in one batch.

    `keys`: of all records. `incomplete`: the keys whose row lacks values, with the values of the key's columns in the
    order of the record's key. `moved`: the old key of each incomplete key that a change of a key has written.
    `is_unknown`: the table has lost its key, or a row cannot be read again by the values that the stream has of it.
    """

    keys: set[bytes] = field(default_factory=set)
    incomplete: dict[bytes, KeyValues] = field(default_factory=dict)
    moved: dict[bytes, bytes] = field(default_factory=dict)
    is_unknown: bool = False


def changed_rows(
    batch: RowBatch, plans: Mapping[int, RelationPlan], relids: Collection[int]
) -> dict[int, ChangedRows]:
    """Return the changes of these tables. Raises ProtocolError and its subclasses, ValueUnencodable."""
    data, relid_position = batch.frames, relid_at(batch.xid)
    found: dict[int, ChangedRows] = {}
    at, end = 0, len(data)
    try:
        while at < end:
            start = at + FRAME_BYTES
            at = start + _uint32_at(data, at)[0]
            relid = _uint32_at(data, start + relid_position)[0]
            if relid in relids:
                changes = found.setdefault(relid, ChangedRows())
                if not plans[relid].key_indexes:
                    changes.is_unknown = True
                    continue
                lsn = int.from_bytes(data[start - 8 : start], "big")
                _note(changes, plans[relid], data, data[start], start + relid_position + RELID_BYTES, at, lsn)
    except (struct.error, IndexError):
        raise MessageTruncated("a row batch ends inside a row message") from None
    return found


def _note(
    changes: ChangedRows, plan: RelationPlan, data: bytes, kind: int, position: int, end: int, lsn: int
) -> None:
    width, part = len(plan.columns), data[position]
    old: Row | None = None
    old_key = b""
    if kind != _INSERT and part in (_KEY, _OLD):
        old, position, is_plain = cut_tuple(data, position + 1, end, width)
        old_key = encode_key(plan, old, is_plain, lsn)
        changes.keys.add(old_key)
    if kind == _DELETE:
        return
    new, _, is_plain = cut_tuple(data, position + 1, end, width)
    if old is not None:
        new = [
            was if one is UNCHANGED and was is not None else one for one, was in zip(new, old, strict=True)
        ]
    key = encode_key(plan, new, is_plain, lsn)
    changes.keys.add(key)
    if not any(value is UNCHANGED for value in new):
        changes.incomplete.pop(key, None)
        return
    columns = plan.relation.columns
    values = tuple(_text(new[i], columns[i].type_oid) for i in plan.key_indexes)
    if None in values:
        changes.is_unknown = True
        return
    changes.incomplete[key] = tuple(value for value in values if value is not None)
    if kind == _INSERT:
        changes.moved[key] = b""  # an update that begins to match a row filter: readers do not have the row
    elif old is not None and any(old[i] != new[i] for i in plan.key_indexes):
        changes.moved[key] = old_key


def _text(value: Raw, type_oid: int) -> str | None:
    """Return the text of a key column's value, None if it is not known."""
    if value is None or value is UNCHANGED:
        return None
    if isinstance(value, BinaryValue):
        return _TEXT_OF_BINARY[type_oid](bytes(value)) if type_oid in _TEXT_OF_BINARY else None
    return bytes(value).decode()
