"""Columns of a query that its table lost while the query ran: by DROP COLUMN, or by a new name.

In: the versions of the schemas when the query started; a schema that a record has, and its id.
Out: the names of the lost columns.
Invariant: ids of a registry increase, so a schema with a smaller id than the newest version's is an older one, whose
columns are not a loss.
Must not: fetch a schema.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cdcd.spark.decoding.columns import AvroType
from cdcd.spark.decoding.frame import column_name
from cdcd.spark.decoding.schemas import TopicVersions, expand, value_record


@dataclass(frozen=True, slots=True)
class StartColumns:
    """The columns of one topic's rows when the query started. `newest_id`: that of the schema which has them."""

    newest_id: int
    columns: tuple[str, ...]


def start_columns(versions: Sequence[TopicVersions]) -> dict[str, StartColumns]:
    """Return the columns at the start, by the full name of the topic's envelope."""
    found = {}
    for each in versions:
        newest = max(each.values, key=lambda one: one.schema_id)
        envelope = expand(json.loads(newest.text))
        found[_full_name(envelope)] = StartColumns(newest.schema_id, _columns(envelope))
    return found


def lost_columns(start: Mapping[str, StartColumns], schema_id: int, schema: AvroType) -> tuple[str, ...]:
    """Return the columns that a record's expanded schema lost since the start; none of the schema of a key."""
    then = start.get(_full_name(schema))
    if then is None or schema_id <= then.newest_id:
        return ()
    now = frozenset(_columns(schema))
    return tuple(name for name in then.columns if name not in now)


def _columns(envelope: AvroType) -> tuple[str, ...]:
    return tuple(column_name(one) for one in value_record(envelope)["fields"])


def _full_name(schema: Any) -> str:
    """Return the full name of a record, "" of another schema."""
    if not isinstance(schema, dict):
        return ""
    return ".".join(str(schema[part]) for part in ("namespace", "name") if part in schema)
