"""The key of a record -> the text of its columns, as PostgreSQL writes it.

In: a relation's plan, the bytes of a key in its topic.  Out: `KeyValues`, in the order of the record's key.
Invariant: a text is returned only if the column's own encoder makes the same bytes of it. A key of another schema
than the plan's, or with a value whose text is not known, is an error, never a guess.
Wire source: Avro specification, "Binary Encoding" and "Logical Types".
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Any

from cdcd.avro.field_offsets import field_offsets, named_types
from cdcd.avro.plan import HEADER_BYTES, RelationPlan
from cdcd.errors import SchemaError, SnapshotRefused
from cdcd.frame_layout import HEADER
from cdcd.lsn import Lsn
from cdcd.model import KeyValues, RowBatch
from cdcd.schema.calendar import civil_of
from cdcd.schema.codec import UNREADABLE, AvroSchema, Oversized, Special
from cdcd.schema.relation_schema import ColumnCodec
from cdcd.schema.types.time import DAY_US, clock_text
from cdcd.schema.varint import decode_long

_OTHER_SCHEMA = "the topic has keys with another schema than the table's present key schema"
_NO_TEXT = "the topic has a key whose text cannot be derived from its bytes"
_NO_TEXT_OF_TYPE = "a column of the key has a type whose text cannot be derived from the topic's keys"
_HINT = "run `cdcd snapshot start --table {table} --recopy`: a truncate event then removes deleted rows"


def _long(data: bytes) -> int:
    return int(decode_long(data, 0)[0])


def _date_text(days: int) -> bytes:
    year, month, day = civil_of(days)
    return b"%04d-%02d-%02d" % (year if year > 0 else 1 - year, month, day)


def _era(days: int) -> bytes:
    return b"" if civil_of(days)[0] > 0 else b" BC"


def _date(data: bytes) -> bytes:
    days = _long(data)
    return _date_text(days) + _era(days)


def _timestamp(data: bytes, zone: bytes = b"") -> bytes:
    days, clock_us = divmod(_long(data), DAY_US)
    return _date_text(days) + b" " + clock_text(clock_us) + zone + _era(days)


def _sized(data: bytes) -> bytes:
    size, at = decode_long(data, 0)
    return data[at : at + size]


def _floating(layout: str) -> Callable[[bytes], bytes]:
    def text(data: bytes) -> bytes:
        (value,) = struct.unpack(layout, data)
        return {"nan": b"NaN", "inf": b"Infinity", "-inf": b"-Infinity"}.get(
            repr(value), repr(value).encode()
        )

    return text


_TEXT: dict[tuple[str, str | None], Callable[[bytes], bytes]] = {
    ("boolean", None): lambda data: b"t" if data == b"\x01" else b"f",
    ("int", None): lambda data: b"%d" % _long(data),
    ("long", None): lambda data: b"%d" % _long(data),
    ("float", None): _floating("<f"),
    ("double", None): _floating("<d"),
    ("string", None): _sized,
    ("string", "uuid"): _sized,
    ("bytes", None): lambda data: b"\\x" + _sized(data).hex().encode(),
    ("int", "date"): _date,
    ("long", "time-micros"): lambda data: clock_text(_long(data)),
    ("long", "local-timestamp-micros"): _timestamp,
    ("long", "timestamp-micros"): lambda data: _timestamp(data, b"+00"),
}
"""By Avro type and logical type; decimals have a scale in addition."""


def _decimal(scale: int) -> Callable[[bytes], bytes]:
    def text(data: bytes) -> bytes:
        unscaled = int.from_bytes(_sized(data), "big", signed=True)
        digits = str(abs(unscaled)).rjust(scale + 1, "0")
        sign, cut = "-" if unscaled < 0 else "", len(digits) - scale
        return f"{sign}{digits[:cut]}{'.' if scale else ''}{digits[cut:]}".encode()

    return text


_OF_TYPES = {
    "boolean": {"bool"},
    "float": {"float4"},
    "double": {"float8"},
    "decimal": {"numeric"},
}
"""The only types whose text these Avro types have: others, as money, or a numeric made a double, have another one."""
_ANOTHER_TEXT = {"interval"}


def _text_of(column: ColumnCodec) -> Callable[[bytes], bytes] | None:
    avro: Any = column.codec.avro
    kind, logical = (avro, None) if isinstance(avro, str) else (avro["type"], avro.get("logicalType"))
    if not isinstance(kind, str) or column.type_name in _ANOTHER_TEXT:
        return None
    if column.type_name not in _OF_TYPES.get(logical or kind, {column.type_name}):
        return None
    return _decimal(avro.get("scale", 0)) if logical == "decimal" else _TEXT.get((kind, logical))


def refuse_keys_without_text(plan: RelationPlan) -> None:
    """Raise SnapshotRefused if the text of a key is known for no value of one of its columns."""
    for column in (plan.columns[i] for i in plan.key_indexes):
        if _text_of(column) is None:
            hint = _HINT.format(table=plan.table)
            raise SnapshotRefused(_NO_TEXT_OF_TYPE, hint=hint, table=plan.table, column=column.name)


class KeyTexts:
    """The texts of one relation's keys. Raises SnapshotRefused, as `refuse_keys_without_text`."""

    def __init__(self, plan: RelationPlan) -> None:
        refuse_keys_without_text(plan)
        self._plan = plan
        self._schema = _key_schema(plan)
        self._named = named_types(self._schema)
        columns = [plan.columns[i] for i in plan.key_indexes]
        self._columns = [(one.field, one.codec.text, _text_of(one)) for one in columns]

    def of(self, key: bytes) -> KeyValues:
        """Return the values of a key. Raises SnapshotRefused for a key of another schema, or without a text."""
        if not key.startswith(self._plan.key_header):
            raise self._refused(_OTHER_SCHEMA)
        try:
            spans = field_offsets(self._schema, key, HEADER_BYTES, self._named)
        except SchemaError as error:
            raise self._refused(_OTHER_SCHEMA) from error
        if max(end for _, end in spans.values()) != len(key):
            raise self._refused(_OTHER_SCHEMA)
        values = []
        for name, encode, text_of in self._columns:
            start, end = spans[name]
            if not self._plan.is_key_required:
                branch, start = decode_long(key, start)
                if branch == 0:
                    raise self._refused(_NO_TEXT)  # a null: no row is found by it
            try:
                raw = b"" if text_of is None else text_of(key[start:end])
                text = raw.decode() if encode(raw) == key[start:end] else None
            except (*UNREADABLE, Special, Oversized):
                text = None
            if text is None:
                raise self._refused(_NO_TEXT)
            values.append(text)
        return tuple(values)

    def _refused(self, message: str) -> SnapshotRefused:
        hint = _HINT.format(table=self._plan.table)
        return SnapshotRefused(message, hint=hint, table=self._plan.table)


def deletes_of(plan: RelationPlan, keys: Iterable[KeyValues], lsn: Lsn) -> RowBatch:
    """Return the messages in which the server sends deletes of rows with these keys, as the primary key identifies
    them: the other columns are null.
    """
    frames, count = [], 0
    for values in keys:
        texts = dict(zip(plan.key_indexes, values, strict=True))
        parts = [_tuple_column(texts.get(i)) for i in range(len(plan.columns))]
        row = struct.pack(">H", len(parts)) + b"".join(parts)
        message = b"D" + struct.pack(">I", plan.relation.relid) + b"K" + row
        frames += [HEADER.pack(len(message), lsn), message]
        count += 1
    return RowBatch(b"".join(frames), count)


def _tuple_column(text: str | None) -> bytes:
    if text is None:
        return b"n"
    raw = text.encode()
    return b"t" + struct.pack(">I", len(raw)) + raw


def _key_schema(plan: RelationPlan) -> AvroSchema:
    fields = []
    for column in (plan.columns[i] for i in plan.key_indexes):
        avro = column.codec.avro
        fields.append({"name": column.field, "type": avro if plan.is_key_required else ["null", avro]})
    return {"type": "record", "name": "Key", "fields": fields}
