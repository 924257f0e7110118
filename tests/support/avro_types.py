"""Types for the codecs' tests: oids, a small catalog, and functions that read encoded values with fastavro.

In: an oid, a modifier, a value's text.  Out: the value that an independent Avro reader reads.
Invariant: expected values come from hand-written tables or from PostgreSQL, never from cdcd's own decoder.
"""

from __future__ import annotations

import io
import struct
from typing import Any

import fastavro

from cdcd.model import Attribute, PgType
from cdcd.schema.codec import Codec
from cdcd.schema.named_types import defined_once
from cdcd.schema.policy import DEFAULT_POLICY, Policy
from cdcd.schema.resolve import resolve

BOOL, INT8, INT2, INT4, OID, XID, XID8 = 16, 20, 21, 23, 26, 28, 5069
FLOAT4, FLOAT8, NUMERIC, MONEY = 700, 701, 1700, 790
TEXT, JSON, JSONB, BYTEA, UUID, BIT, VARBIT = 25, 114, 3802, 17, 2950, 1560, 1562
DATE, TIME, TIMETZ, TIMESTAMP, TIMESTAMPTZ, INTERVAL = 1082, 1083, 1266, 1114, 1184, 1186
INT4_ARRAY, TEXT_ARRAY, NUMERIC_ARRAY, DATE_ARRAY, BYTEA_ARRAY, BOX, BOX_ARRAY = (
    1007,
    1009,
    1231,
    1182,
    1001,
    603,
    1020,
)
INT2VECTOR, INT4RANGE = 22, 3904
MOOD, MOOD_ARRAY, PRICE, NET_PRICE, PRICE_ARRAY, TAGS = 9001, 9002, 9003, 9004, 9005, 9006
CITEXT, ADDRESS, ADDRESS_ARRAY, PERSON, NOTHING, SINGLE, HSTORE = 9007, 9008, 9009, 9010, 9011, 9012, 9013
VECTOR, HALFVEC, SPARSEVEC, GEOMETRY, GEOGRAPHY, LTREE, SPAN, SPANS = range(9014, 9022)
TEMPERATURE = 9022


def typmod(precision: int, scale: int) -> int:
    """Return the type modifier of numeric(precision, scale)."""
    return (precision << 16 | scale & 0x7FF) + 4


TYPES = {
    oid: PgType(oid, "pg_catalog", name, "b", element)
    for oid, name, element in [
        (INT4, "int4", 0),
        (TEXT, "text", 0),
        (NUMERIC, "numeric", 0),
        (DATE, "date", 0),
        (BYTEA, "bytea", 0),
        (INT4_ARRAY, "_int4", INT4),
        (TEXT_ARRAY, "_text", TEXT),
        (NUMERIC_ARRAY, "_numeric", NUMERIC),
        (DATE_ARRAY, "_date", DATE),
        (BYTEA_ARRAY, "_bytea", BYTEA),
        (BOX_ARRAY, "_box", BOX),
        (INT2VECTOR, "int2vector", INT2),
    ]
} | {
    entry.oid: entry
    for entry in [
        PgType(BOX, "pg_catalog", "box", "b", delimiter=";"),
        PgType(INT4RANGE, "pg_catalog", "int4range", "r", subtype_oid=INT4),
        PgType(MOOD, "public", "mood", "e"),
        PgType(MOOD_ARRAY, "public", "_mood", "b", MOOD),
        PgType(PRICE, "public", "price", "d", base_oid=NUMERIC, base_typmod=typmod(10, 2)),
        PgType(NET_PRICE, "public", "net_price", "d", base_oid=PRICE),
        PgType(PRICE_ARRAY, "public", "_price", "b", PRICE),
        PgType(TAGS, "public", "tags", "d", base_oid=TEXT_ARRAY),
        PgType(CITEXT, "public", "citext", "b", extension="citext"),
        PgType(
            ADDRESS,
            "public",
            "address",
            "c",
            attributes=(Attribute("street", TEXT, -1), Attribute("house no", INT4, -1)),
        ),
        PgType(ADDRESS_ARRAY, "public", "_address", "b", ADDRESS),
        PgType(
            PERSON,
            "public",
            "person",
            "c",
            attributes=(
                Attribute("home", ADDRESS, -1),
                Attribute("others", ADDRESS_ARRAY, -1),
                Attribute("born", DATE, -1),
                Attribute("paid", NUMERIC, typmod(10, 2)),
                Attribute("labels", HSTORE, -1),
            ),
        ),
        PgType(NOTHING, "public", "nothing", "c"),
        PgType(SINGLE, "public", "single", "c", attributes=(Attribute("a", TEXT, -1),)),
        PgType(HSTORE, "ext", "hstore", "b", extension="hstore"),
        PgType(VECTOR, "public", "vector", "b", extension="vector"),
        PgType(HALFVEC, "public", "halfvec", "b", extension="vector"),
        PgType(SPARSEVEC, "public", "sparsevec", "b", extension="vector"),
        PgType(GEOMETRY, "public", "geometry", "b", delimiter=":", extension="postgis"),
        PgType(GEOGRAPHY, "public", "geography", "b", extension="postgis"),
        PgType(LTREE, "public", "ltree", "b", extension="ltree"),
        PgType(SPAN, "public", "span", "r", subtype_oid=PRICE),
        PgType(SPANS, "public", "span_multirange", "m", subtype_oid=SPAN),
        PgType(TEMPERATURE, "public", "temperature", "b"),
    ]
}


def codec(oid: int, modifier: int = -1, policy: Policy = DEFAULT_POLICY, **choices: Any) -> Codec:
    """Return the codec of a column of this type; `choices` are options of a policy."""
    return resolve(oid, modifier, TYPES, Policy(**choices) if choices else policy).codec


def read(encoded: bytes, avro: Any) -> Any:
    """Return the value that fastavro reads; no bytes may remain."""
    buffer = io.BytesIO(encoded)
    value = fastavro.schemaless_reader(buffer, fastavro.parse_schema(defined_once(avro)), None)
    assert buffer.read() == b""
    return value


def value_of(oid: int, text: str, modifier: int = -1, **choices: Any) -> Any:
    """Encode a value's text and return the value that fastavro reads."""
    found = codec(oid, modifier, **choices)
    return read(found.text(text.encode()), found.avro)


def raw_of(oid: int, text: str) -> Any:
    """Do the same without the logical type, for values that Python's own types cannot represent."""
    found = codec(oid)
    avro = found.avro
    plain = avro["type"] if isinstance(avro, dict) and "logicalType" in avro else avro
    return read(found.text(text.encode()), plain)


def binary_numeric(digits: list[int], weight: int, sign: int, dscale: int) -> bytes:
    """Return the bytes that numeric_send writes."""
    return struct.pack(f">HhHH{len(digits)}H", len(digits), weight, sign, dscale, *digits)


def binary_array(oid: int, items: list[bytes | None], lower: int = 1) -> bytes:
    """Return the bytes that array_send writes for one dimension."""
    out = struct.pack(">iiIii", 1, 0, oid, len(items), lower)
    for item in items:
        out += struct.pack(">i", -1) if item is None else struct.pack(">i", len(item)) + item
    return out
