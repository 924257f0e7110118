"""Composite types -> Avro record with a field ["null", T] for each attribute.

In: record_out's text: `(1,"a ""b"" c",,"(x,y)")`, where no text between two commas is NULL and "" is empty.
Out: the fields' Avro bytes, one after another.
Invariant: an attribute has the codec that a column of its type would have. A value with a special attribute is
`Special` as a whole, and so is a value whose attributes differ from the catalog's (F44: another number of attributes,
or a text that is not of its type). Every composite type may be altered so, so every one may be special.
The record's name here is `<schema>.<type>`; `named_types.name_composites` puts it below the table's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from cdcd.model import Attribute, PgType
from cdcd.schema.codec import UNREADABLE, Codec, Encoder, Special
from cdcd.schema.names import column_names, full_name
from cdcd.schema.types.quoted import DOUBLED, of_doubled

_value_at = re.compile(rb'(?:"(' + DOUBLED + rb')"|([^"\\(),]*))(,|\Z)').match
_NULL, _SOME = b"\x00", b"\x02"
_SPECIAL = (
    "a special attribute; other attributes than in the current catalog: another number, or an attribute that its "
    "type cannot parse"
)


def composite_codec(pg_type: PgType, codecs: Sequence[Codec], type_names: Sequence[str]) -> Codec:
    """Return the codec of a composite type; `codecs` and `type_names` are those of its attributes.

    Raises SchemaError where two attributes have one Avro name.
    """
    qualified = f"{pg_type.schema}.{pg_type.name}"
    names = column_names((a.name for a in pg_type.attributes), qualified, "type")
    avro = {
        "type": "record",
        "name": full_name(pg_type.schema, pg_type.name),
        "pg.type": qualified,
        "fields": [
            _field(name, attribute, codec, type_name)
            for name, attribute, codec, type_name in zip(
                names, pg_type.attributes, codecs, type_names, strict=True
            )
        ],
    }
    return Codec(avro, _text([codec.text for codec in codecs]), special=_SPECIAL)


def _field(name: str, attribute: Attribute, codec: Codec, type_name: str) -> dict[str, Any]:
    return {
        "name": name,
        "type": ["null", codec.avro],
        "default": None,
        "pg.name": attribute.name,
        "pg.type": type_name,
        "pg.typmod": attribute.typmod,
    }


def _text(encoders: Sequence[Encoder]) -> Encoder:
    def encode_composite(raw: bytes) -> bytes:
        if raw[:1] != b"(" or raw[-1:] != b")" or len(raw) < 2:
            raise ValueError("not a composite value")
        values = _cut(raw[1:-1])
        if len(values) != len(encoders):
            if raw == b"()" and not encoders:
                return b""
            raise Special(raw)
        try:
            return b"".join(
                [
                    _NULL if value is None else _SOME + encode(value)
                    for value, encode in zip(values, encoders, strict=True)
                ]
            )
        except (Special, *UNREADABLE):
            raise Special(raw) from None

    return encode_composite


def _cut(body: bytes) -> list[bytes | None]:
    """Return the values between the parentheses, None for NULL."""
    values: list[bytes | None] = []
    position = 0
    goes_on = b","
    while goes_on:
        match = _value_at(body, position)
        if match is None:
            raise ValueError("not a composite value")
        quoted, bare, goes_on = match.groups()
        if quoted is None:
            values.append(bare or None)
        else:
            values.append(of_doubled(quoted))
        position = match.end()
    return values
