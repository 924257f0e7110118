"""A Relation message -> the Avro schemas of its topic's key and value, and the codec of each column.

In: the relation, the catalog's types, the key columns that the catalog names, the topic prefix.
Out: `RelationSchemas`.
Invariant: key columns are required in both records, every other column is ["null", T] with default null, so
that adding and dropping columns stays compatible both ways and a delete that carries only the key has a row.
The identity decides the key (F45): DEFAULT and INDEX the flagged columns, FULL the catalog's primary key if
all of it is published, NOTHING none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cdcd.model import Column, PgType, Relation, ReplicaIdentity
from cdcd.schema.codec import AvroSchema, Codec
from cdcd.schema.envelope import envelope_schema
from cdcd.schema.names import column_names, full_name
from cdcd.schema.resolve import ResolvedType, resolve


@dataclass(frozen=True, slots=True)
class ColumnCodec:
    """One column of the relation: its Avro field's name, whether the field is required, and its codec."""

    name: str
    field: str
    type_name: str
    is_required: bool
    codec: Codec


@dataclass(frozen=True, slots=True)
class RelationSchemas:
    """`key` is None for a relation without a key; `value` is the envelope; `columns` follow the relation."""

    key: AvroSchema | None
    value: AvroSchema
    key_columns: tuple[str, ...]
    columns: tuple[ColumnCodec, ...]


def relation_schemas(
    relation: Relation, types: Mapping[int, PgType], key_columns: tuple[str, ...] | None, prefix: str
) -> RelationSchemas:
    """Return the schemas of a relation. `types` is closed over element and base types; `key_columns` is the
    catalog's key in key order, None where it was not looked up. Raises SchemaError on names that collide.
    """
    keys = _key_of(relation, key_columns)
    fields = column_names((c.name for c in relation.columns), f"{relation.schema}.{relation.name}")
    resolved = [resolve(c.type_oid, c.typmod, types) for c in relation.columns]
    properties = [
        _properties(column, kind, number)
        for number, (column, kind) in enumerate(zip(relation.columns, resolved, strict=True), 1)
    ]
    columns = tuple(
        ColumnCodec(column.name, field, kind.type_name, column.name in keys, kind.codec)
        for column, field, kind in zip(relation.columns, fields, resolved, strict=True)
    )
    base = full_name(prefix, relation.schema, relation.name)
    value_fields = [_field(c, p) for c, p in zip(columns, properties, strict=True)]
    by_name = {c.name: field for c, field in zip(columns, value_fields, strict=True)}
    key = _record(f"{base}.Key", [by_name[name] for name in keys]) if keys else None
    value = envelope_schema(base, _record(f"{base}.Value", value_fields))
    return RelationSchemas(key, value, keys, columns)


def _key_of(relation: Relation, key_columns: tuple[str, ...] | None) -> tuple[str, ...]:
    names = {column.name for column in relation.columns}
    if relation.identity is ReplicaIdentity.NOTHING:
        return ()
    if relation.identity is ReplicaIdentity.FULL:
        # FULL flags every column, so only the catalog knows the key; a key that is partly unpublished is
        # none.
        return key_columns if key_columns and names.issuperset(key_columns) else ()
    flagged = tuple(column.name for column in relation.columns if column.is_key)
    # The catalog answers for now, the flags for the time of the change (F44): the catalog only gives the
    # order.
    return key_columns if key_columns and set(key_columns) == set(flagged) else flagged


def _record(name: str, fields: list[dict[str, Any]]) -> AvroSchema:
    return {"type": "record", "name": name, "connect.name": name, "fields": fields}


def _field(column: ColumnCodec, properties: dict[str, Any]) -> dict[str, Any]:
    avro = column.codec.avro
    if column.is_required:
        return {"name": column.field, "type": avro, **properties}
    return {"name": column.field, "type": ["null", avro], "default": None, **properties}


def _properties(column: Column, kind: ResolvedType, number: int) -> dict[str, Any]:
    properties: dict[str, Any] = {
        "pg.name": column.name,
        "pg.type": kind.type_name,
        "pg.typmod": column.typmod,
        "pg.attnum": number,  # the position in the Relation message: the wire does not carry pg_attribute's
    }
    if kind.domain is not None:
        properties["pg.domain"] = kind.domain
    return properties
