"""A column's type oid and modifier -> its codec, through domains, arrays and enums.

In: oid, typmod, and the catalog's `PgType`s closed over element and base types.  Out: `ResolvedType`.
Invariant: every type has a codec: what no family claims is a string of the server's text, because nothing is
ever dropped. A type the catalog no longer has (F44) is text as well.
Hstore, composite, range and extension types (other than citext) have no family yet: text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from cdcd.errors import SchemaError
from cdcd.model import PgType
from cdcd.schema.codec import Builder, Codec, Encoder
from cdcd.schema.policy import DEFAULT_POLICY, Policy
from cdcd.schema.sent.table import text_of_sent
from cdcd.schema.types import boolean, bytes_uuid, datetime, floating, integer, interval, numeric, text
from cdcd.schema.types.array import array_codec

FAMILIES: dict[int, Builder] = {
    **boolean.BUILDERS,
    **integer.BUILDERS,
    **floating.BUILDERS,
    **numeric.BUILDERS,
    **text.BUILDERS,
    **bytes_uuid.BUILDERS,
    **datetime.BUILDERS,
    **interval.BUILDERS,
}

_VECTORS = frozenset((22, 30))  # int2vector, oidvector: arrays in pg_type, but lists of numbers in their text
_MAX_DEPTH = 32


@dataclass(frozen=True, slots=True)
class ResolvedType:
    """A codec with the names that the schema's properties show. `domain` is None where there is none."""

    codec: Codec
    type_name: str
    domain: str | None = None


def resolve(
    oid: int,
    typmod: int,
    types: Mapping[int, PgType],
    policy: Policy = DEFAULT_POLICY,
    depth: int = 0,
) -> ResolvedType:
    """Return the codec of a type. Raises SchemaError where domains or arrays nest without end.

    What has no quicker way from its send format takes the way of its text. An array, composite or range always
    does: whatever the text encoder makes of one shape or of one of its values, binary makes the same.
    """
    found = _form(oid, typmod, types, policy, depth)
    if depth or (found.codec.binary is not None and not _is_made_of_others(oid, types)):
        return found
    text_of = text_of_sent(oid, types)
    binary = None if text_of is None else _after(text_of, found.codec.text)
    return replace(found, codec=replace(found.codec, binary=binary))


def _after(text_of: Encoder, encode: Encoder) -> Encoder:
    return lambda raw: encode(text_of(raw))


def _is_made_of_others(oid: int, types: Mapping[int, PgType]) -> bool:
    pg_type = types.get(oid)
    while pg_type is not None and pg_type.kind == "d":
        pg_type = types.get(pg_type.base_oid)
    return pg_type is not None and (pg_type.element_oid != 0 or pg_type.kind in "crm")


def _form(oid: int, typmod: int, types: Mapping[int, PgType], policy: Policy, depth: int) -> ResolvedType:
    if depth > _MAX_DEPTH:
        raise SchemaError("a type that is nested without end", oid=oid)
    pg_type = types.get(oid)
    if pg_type is None:
        builder = FAMILIES.get(oid)
        return ResolvedType(builder(typmod, policy) if builder else text.TEXT_ONLY, f"oid {oid}")
    name = _qualified(pg_type)
    if pg_type.kind == "d":
        base = resolve(
            pg_type.base_oid, typmod if typmod >= 0 else pg_type.base_typmod, types, policy, depth + 1
        )
        return ResolvedType(base.codec, base.type_name, name)
    if pg_type.element_oid and oid not in _VECTORS:
        element = resolve(pg_type.element_oid, typmod, types, policy, depth + 1)
        described = types.get(pg_type.element_oid)
        delimiter = described.delimiter if described else pg_type.delimiter
        codec = array_codec(element.codec, pg_type.element_oid, delimiter)
        return ResolvedType(codec, f"{element.domain or element.type_name}[]")
    if oid in FAMILIES:
        return ResolvedType(FAMILIES[oid](typmod, policy), name)
    sends_text = pg_type.kind == "e" or (pg_type.kind == "b" and pg_type.name == "citext")
    return ResolvedType(text.PLAIN if sends_text else text.TEXT_ONLY, name)


def _qualified(pg_type: PgType) -> str:
    return pg_type.name if pg_type.schema == "pg_catalog" else f"{pg_type.schema}.{pg_type.name}"
