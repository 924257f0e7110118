"""A relation's schemas, ids and topic -> the plan that encodes its rows.

In: relation, `RelationSchemas`, topic, partitions, schema ids.  Out: `RelationPlan`, immutable.
Invariant: everything that all rows of a relation share is in the plan as bytes or as a function, so that the row loop
needs no look-up by name.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace
from typing import Any

from cdcd.avro.murmur2 import partition_for
from cdcd.avro.transaction import NULL, SOME
from cdcd.errors import SchemaError
from cdcd.extensions import extension
from cdcd.model import Relation
from cdcd.schema.codec import AvroSchema, Encoder
from cdcd.schema.identity import OldTuples
from cdcd.schema.relation_schema import ColumnCodec, RelationSchemas
from cdcd.schema.varint import encode_string

_EXTENSION = extension("cdcd.avro.rows")


@dataclass(frozen=True, slots=True)
class RelationPlan:
    """How one relation's rows become records.

    `steps` has per column (branch prefix, bytes of null or None where null is not allowed, text encoder).
    `key_indexes` are the key columns' positions in key order, empty without a key; `key_steps` are their positions
    with their steps. `is_flat`: a value is the row itself; `null_row` is the row of a truncate. `old_tuples` are the
    columns that old tuples may lack, None where they have all columns of the relation's identity. All records of a
    relation without a key go to `null_key_partition`, which preserves their order.
    """

    relation: Relation
    table: str
    topic: str
    partitions: int
    tombstones: bool
    columns: tuple[ColumnCodec, ...]
    steps: tuple[tuple[bytes, bytes | None, Encoder], ...]
    key_indexes: tuple[int, ...]
    key_steps: tuple[tuple[int, bytes, bytes | None, Encoder], ...]
    is_key_required: bool
    is_flat: bool
    null_row: bytes
    key_header: bytes
    value_header: bytes
    schema_and_table: bytes
    null_key_partition: int
    old_tuples: OldTuples | None
    value_schema: AvroSchema
    """For code that locates a field in a record's bytes; encoding does not use it."""
    compiled: Any = field(default=None, compare=False, repr=False)
    """The plan in the form of the compiled row codec, None where the fallback runs."""


HEADER_BYTES = 5
"""Size of the Confluent wire format's header, which precedes the Avro bytes."""


def frame_header(schema_id: int) -> bytes:
    """Return the Confluent wire format's header: a zero byte and the big-endian schema id."""
    return b"\x00" + struct.pack(">I", schema_id)


def compile_plan(
    relation: Relation,
    schemas: RelationSchemas,
    *,
    topic: str,
    partitions: int,
    key_schema_id: int | None,
    value_schema_id: int,
    tombstones: bool,
    old_tuples: OldTuples | None = None,
) -> RelationPlan:
    """Return the plan. `schemas` belong to `relation`; `key_schema_id` is None exactly without a key.

    Raises SchemaError where the arguments contradict each other.
    """
    table = f"{relation.schema}.{relation.name}"
    names = tuple(column.name for column in relation.columns)
    if names != tuple(column.name for column in schemas.columns):
        raise SchemaError("the schemas belong to another relation", table=table)
    if (key_schema_id is None) != (schemas.key is None):
        raise SchemaError("a key schema needs an id, and an id a key schema", table=table)
    if partitions < 1:
        raise SchemaError("a topic has at least one partition", topic=topic, partitions=partitions)
    key_indexes = tuple(names.index(name) for name in schemas.key_columns)
    plan = RelationPlan(
        relation=relation,
        table=table,
        topic=topic,
        partitions=partitions,
        tombstones=tombstones,
        columns=schemas.columns,
        steps=tuple(_step(column, column.is_required) for column in schemas.columns),
        key_indexes=key_indexes,
        key_steps=tuple((i, *_step(schemas.columns[i], schemas.is_key_required)) for i in key_indexes),
        is_key_required=schemas.is_key_required,
        is_flat=schemas.is_flat,
        null_row=NULL * len(schemas.columns),
        key_header=b"" if key_schema_id is None else frame_header(key_schema_id),
        value_header=frame_header(value_schema_id),
        schema_and_table=encode_string(relation.schema.encode()) + encode_string(relation.name.encode()),
        null_key_partition=partition_for(topic.encode(), partitions),
        old_tuples=old_tuples,
        value_schema=schemas.value,
    )
    return plan if _EXTENSION is None else replace(plan, compiled=_EXTENSION.CompiledPlan(plan))


def _step(column: ColumnCodec, is_required: bool) -> tuple[bytes, bytes | None, Encoder]:
    if is_required:
        return b"", None, column.codec.text
    return SOME, NULL, column.codec.text
