"""The flat value: the row itself, with a few fields that describe the change.

In: a relation's dotted name, its columns' fields, the names of the added fields.  Out: the Value's Avro schema.
Invariant: the order of the added fields here is the order in which `cdcd.avro` writes their bytes. Every column is
optional, because a truncate has no row and a delete may have only the key. The added fields also have special values
and the names of unsent columns, so that the flat format loses only the old row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cdcd.errors import SchemaError
from cdcd.schema.codec import AvroSchema
from cdcd.schema.envelope import TIMELINE_DEFAULT
from cdcd.schema.policy import FlatNames

FLAT_PROPERTY = "cdcd.flat"
"""The property of a flat record with the names of the added fields, by meaning."""


def flat_schema(
    name: str,
    columns: list[dict[str, Any]],
    names: FlatNames,
    table: str,
    properties: Mapping[str, Any],
) -> AvroSchema:
    """Return the Value record. Raises SchemaError where a column has the name of an added field."""
    taken = {column["name"] for column in columns}
    added: list[dict[str, Any]] = [
        {"name": names.op, "type": "string"},
        {"name": names.deleted, "type": "boolean"},
        {"name": names.timeline, "type": "long", "default": TIMELINE_DEFAULT},
        {"name": names.commit_lsn, "type": "long"},
        {"name": names.tx_seq, "type": "long"},
        {"name": names.ts_ms, "type": "long"},
        {"name": names.special, "type": ["null", {"type": "map", "values": "string"}], "default": None},
        {"name": names.unchanged, "type": {"type": "array", "items": "string"}, "default": []},
    ]
    for field in added:
        if field["name"] in taken:
            raise SchemaError(
                "a column has the name of a field that the flat format adds",
                hint="choose another name for the field under format.flat, and restart cdcd",
                table=table,
                column=field["name"],
            )
    meanings = {meaning: getattr(names, meaning) for meaning in names.__dataclass_fields__}
    return {
        "type": "record",
        "name": name,
        "connect.name": name,
        FLAT_PROPERTY: meanings,
        **properties,
        "fields": [*columns, *added],
    }
