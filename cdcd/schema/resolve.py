"""A column's type oid and modifier -> its codec, through domains, arrays, composite types, extensions.

In: oid, typmod, the catalog's `PgType`s with all types that they are made of, the column's policy.
Out: `ResolvedType`.
Invariant: every type has a codec: a type of no family is a string of the server's text, because cdcd never drops a
column. A type that the catalog no longer has (F44) is text as well, unless it is built in. A type of an extension is
identified by its extension and name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from cdcd.model import PgType
from cdcd.schema.binary_format.table import MAX_DEPTH, text_of_binary
from cdcd.schema.codec import CALL, Builder, Codec, Encoder
from cdcd.schema.forms import column_codec
from cdcd.schema.policy import DEFAULT_POLICY, Policy
from cdcd.schema.types import (
    bits,
    boolean,
    bytea,
    contrib,
    date,
    domain,
    floating,
    geometric,
    hstore,
    integer,
    interval,
    json,
    money,
    network,
    numeric,
    postgis,
    range,
    system,
    text,
    time,
    timestamp,
    uuid,
    vector,
)
from cdcd.schema.types.array import array_codec
from cdcd.schema.types.composite import composite_codec

FAMILIES: dict[int, Builder] = {
    **boolean.BUILDERS,
    **integer.BUILDERS,
    **floating.BUILDERS,
    **numeric.BUILDERS,
    **money.BUILDERS,
    **text.BUILDERS,
    **json.BUILDERS,
    **bytea.BUILDERS,
    **uuid.BUILDERS,
    **bits.BUILDERS,
    **date.BUILDERS,
    **time.BUILDERS,
    **timestamp.BUILDERS,
    **interval.BUILDERS,
    **network.BUILDERS,
    **geometric.BUILDERS,
    **system.BUILDERS,
}
"""Every built-in base type that a column can have, by oid."""

EXTENSIONS: dict[tuple[str, str], Builder] = {
    **hstore.EXTENSION_BUILDERS,
    **contrib.EXTENSION_BUILDERS,
    **vector.EXTENSION_BUILDERS,
    **postgis.EXTENSION_BUILDERS,
}
"""The base types of known extensions, by extension and name."""


@dataclass(frozen=True, slots=True)
class ResolvedType:
    """A codec with the names for the schema's properties. `domain` is None for a type that is not a domain."""

    codec: Codec
    type_name: str
    domain: str | None = None


def resolve(
    oid: int, typmod: int, types: Mapping[int, PgType], policy: Policy = DEFAULT_POLICY
) -> ResolvedType:
    """Return a column's codec. A type nested deeper than `MAX_DEPTH` is text.

    A binary value of a type without a binary encoder is converted to PostgreSQL's text first and then encoded.
    Arrays, composites and ranges always take this path, so that both formats give the same Avro bytes.
    """
    found = _resolve(oid, typmod, types, policy, 0)
    codec = column_codec(found.codec, policy)
    if codec.binary is None or _is_made_of_others(oid, types):
        text_of = text_of_binary(oid, types)
        codec = replace(
            codec, binary=None if text_of is None else _after(text_of, codec.text), binary_op=CALL
        )
    return replace(found, codec=codec)


def _after(text_of: Encoder, encode: Encoder) -> Encoder:
    return lambda raw: encode(text_of(raw))


def _is_made_of_others(oid: int, types: Mapping[int, PgType]) -> bool:
    pg_type = types.get(oid)
    while pg_type is not None and pg_type.kind == domain.KIND:
        pg_type = types.get(pg_type.base_oid)
    return pg_type is not None and (pg_type.element_oid != 0 or pg_type.kind in "crm")


def _resolve(oid: int, typmod: int, types: Mapping[int, PgType], policy: Policy, depth: int) -> ResolvedType:
    pg_type = types.get(oid)
    if depth > MAX_DEPTH:
        return ResolvedType(text.TEXT_ONLY, f"oid {oid}" if pg_type is None else _qualified(pg_type))
    if pg_type is None:
        builder = FAMILIES.get(oid)
        return ResolvedType(builder(typmod, policy) if builder else text.TEXT_ONLY, f"oid {oid}")
    name = _qualified(pg_type)
    if pg_type.kind == domain.KIND:
        base = _resolve(*domain.base_of(pg_type, typmod), types, policy, depth + 1)
        return ResolvedType(base.codec, base.type_name, name)
    if pg_type.element_oid and oid not in system.VECTORS:
        element = _resolve(pg_type.element_oid, typmod, types, policy, depth + 1)
        described = types.get(pg_type.element_oid)
        delimiter = described.delimiter if described else pg_type.delimiter
        codec = array_codec(element.codec, delimiter)
        return ResolvedType(codec, f"{element.domain or element.type_name}[]")
    if pg_type.kind == "c":
        parts = [_resolve(a.type_oid, a.typmod, types, policy, depth + 1) for a in pg_type.attributes]
        codecs, names = [part.codec for part in parts], [part.domain or part.type_name for part in parts]
        return ResolvedType(composite_codec(pg_type, codecs, names), name)
    return ResolvedType(_plain_codec(pg_type, typmod, policy), name)


def _plain_codec(pg_type: PgType, typmod: int, policy: Policy) -> Codec:
    """Return the codec of a type that is not made of other types."""
    if pg_type.oid == money.MONEY:
        typmod = pg_type.fraction_digits
    builder = FAMILIES.get(pg_type.oid) or EXTENSIONS.get((pg_type.extension, pg_type.name))
    if builder is not None:
        return builder(typmod, policy)
    if pg_type.kind in range.KINDS:
        return range.CODEC
    return text.ENUM if pg_type.kind == "e" else text.TEXT_ONLY


def _qualified(pg_type: PgType) -> str:
    return pg_type.name if pg_type.schema == "pg_catalog" else f"{pg_type.schema}.{pg_type.name}"
