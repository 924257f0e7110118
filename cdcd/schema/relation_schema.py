"""A Relation message -> the Avro schemas of its topic's key and value, and the codec of each column.

In: the relation, the catalog's types, the key's columns (`keys`), the topic prefix.
Out: `RelationSchemas`.
Invariant: key columns are required in both records; every other column is ["null", T] with default null, so that
adding and dropping columns is compatible in both directions and a delete with only the key has a row. In the value a
column that was nullable remains nullable, so that a first key does not break the topic's readers. The value's record
has the relation's oid, and its fields have the attnums if those are known, by which a reader recognizes a table that
was created again, and a column with another name. The key's schema has no attribute that can change while the key's
values remain: its id is part of the key's bytes, which decide the partition and which keys compaction treats as the
same.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from cdcd.model import Column, PgType, Relation
from cdcd.schema.attnums import RELID, with_attnum
from cdcd.schema.codec import AvroSchema, Codec
from cdcd.schema.envelope import envelope_schema
from cdcd.schema.flat import flat_schema
from cdcd.schema.forms import unchanged_bytes
from cdcd.schema.keys import KEY_PROPERTY, key_of
from cdcd.schema.named_types import defined_once, name_composites
from cdcd.schema.names import column_names, full_name
from cdcd.schema.policy import DEFAULT_POLICY, NO_RULES, Policies, Policy
from cdcd.schema.resolve import ResolvedType, resolve


@dataclass(frozen=True, slots=True)
class ColumnCodec:
    """One column of the relation: its Avro field's name, whether the Value's field is required, and its codec.

    `unchanged` is the field's bytes for a TOASTed value that was not sent.
    """

    name: str
    field: str
    type_name: str
    is_required: bool
    codec: Codec
    policy: Policy = DEFAULT_POLICY
    unchanged: bytes = b"\x00"


@dataclass(frozen=True, slots=True)
class RelationSchemas:
    """`key` is None for a relation without a key; `value` is the envelope, or the flat row; `columns` follow the
    relation. `is_key_required`: no column of the key can be null. `has_attnums`: the value has its columns' attnums.
    """

    key: AvroSchema | None
    value: AvroSchema
    key_columns: tuple[str, ...]
    columns: tuple[ColumnCodec, ...]
    is_key_required: bool = True
    is_flat: bool = False
    has_attnums: bool = False


def relation_schemas(
    relation: Relation,
    types: Mapping[int, PgType],
    key_columns: tuple[str, ...] | None,
    prefix: str,
    policies: Policies = NO_RULES,
    *,
    is_key_required: bool = True,
    nullable: Collection[str] = (),
    attnums: Sequence[int] | None = None,
) -> RelationSchemas:
    """Return the schemas of a relation. Raises SchemaError on names that collide.

    `types` also has the types that its types are made of; `key_columns` are those of `key_of`, None where only the
    relation is known; `is_key_required`: the database allows no null in them; `nullable` are the columns that may be
    null in the topic's existing values; `attnums` are those of the relation's columns, None if unknown.
    """
    keys = key_of(relation, None, None) if key_columns is None else key_columns
    table = f"{relation.schema}.{relation.name}"
    base = full_name(prefix, relation.schema, relation.name)
    is_flat = policies.table(table).value == "flat"
    required = set(keys).difference(nullable) if is_key_required else set()
    resolved = [
        resolve(c.type_oid, c.typmod, types, policies.column(table, c.name)) for c in relation.columns
    ]
    columns = _columns(relation, resolved, set() if is_flat else required, f"{base}.Value", policies)
    rows = [
        _field(codec, _properties(column, kind, number), codec.is_required)
        for codec, column, kind, number in zip(
            columns, relation.columns, resolved, attnums or (None,) * len(columns), strict=True
        )
    ]
    if is_flat:
        # All types of a flat value allow null, so they do not show which columns are in the key.
        rows = [row | {KEY_PROPERTY: True} if row["pg.name"] in required else row for row in rows]
        value = flat_schema(f"{base}.Value", rows, policies.flat, table, {RELID: relation.relid})
    else:
        value = envelope_schema(base, _record(f"{base}.Value", rows, {RELID: relation.relid}))
    by_name = {c.name: _field(c, {"pg.name": c.name}, is_key_required) for c in columns}
    key = defined_once(_record(f"{base}.Key", [by_name[name] for name in keys])) if keys else None
    has_attnums = attnums is not None
    return RelationSchemas(key, defined_once(value), keys, columns, is_key_required, is_flat, has_attnums)


def _columns(
    relation: Relation,
    resolved: list[ResolvedType],
    required: set[str],
    namespace: str,
    policies: Policies,
) -> tuple[ColumnCodec, ...]:
    table = f"{relation.schema}.{relation.name}"
    fields = column_names((column.name for column in relation.columns), table)
    of_table = policies.table(table)
    columns = []
    for column, field, kind in zip(relation.columns, fields, resolved, strict=True):
        policy = policies.column(table, column.name)
        codec = _placed(kind.codec, namespace, field, policy == of_table)
        unchanged = unchanged_bytes(codec.avro, policy)
        columns.append(
            ColumnCodec(column.name, field, kind.type_name, column.name in required, codec, policy, unchanged)
        )
    return tuple(columns)


def _placed(codec: Codec, namespace: str, field: str, is_as_the_table: bool) -> Codec:
    """Return the codec with full names for its composite types.

    A column with a policy of its own has its own records: the same type may be another record there, and the names in
    the other columns must not depend on it.
    """
    return replace(
        codec, avro=name_composites(codec.avro, namespace if is_as_the_table else f"{namespace}.{field}")
    )


def _record(
    name: str, fields: list[dict[str, Any]], properties: Mapping[str, Any] = MappingProxyType({})
) -> AvroSchema:
    return {"type": "record", "name": name, "connect.name": name, **properties, "fields": fields}


def _field(column: ColumnCodec, properties: dict[str, Any], is_required: bool) -> dict[str, Any]:
    avro = column.codec.avro
    if is_required:
        return {"name": column.field, "type": avro, **properties}
    return {"name": column.field, "type": ["null", avro], "default": None, **properties}


def _properties(column: Column, kind: ResolvedType, attnum: int | None) -> dict[str, Any]:
    """Return the properties of a column."""
    properties: dict[str, Any] = {
        "pg.name": column.name,
        "pg.type": kind.type_name,
        "pg.typmod": column.typmod,
    }
    if kind.domain is not None:
        properties["pg.domain"] = kind.domain
    return with_attnum(properties, attnum)
