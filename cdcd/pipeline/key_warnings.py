"""Warnings for readers of a topic about its keys: null, shared by rows, changed, or new.

In: plans and the properties of their keys.  Out: a warning for each, once in a session for each table.
Must not: refuse anything, show a value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import structlog

from cdcd.avro.plan import RelationPlan
from cdcd.model import Relation

_LOG = structlog.stdlib.get_logger("cdcd.plans")
_KEYLESS_HINT = (
    "records of the table have a null key and go to one partition, and a compacted topic refuses such records: "
    "add a primary key, or set format.key_columns or (with REPLICA IDENTITY FULL) format.keyless"
)
_KEY_ADDED_HINT = (
    "no key schema was registered before: earlier records of the topic have null keys, in one partition (or keys "
    "of a deleted schema), and cdcd does not rewrite these records. Readers by key have to start again with a "
    "snapshot"
)
_FLAWED_HINT = (
    "records of the table have a null key and go to one partition, and a compacted topic refuses such records: "
    "two rows may share the table's key temporarily, because {flaw}. Recreate the constraint, NOT DEFERRABLE and "
    "valid in each partition, or set format.key_columns"
)
_NOT_UNIQUE_HINT = (
    "no unique index prevents two rows with this key: readers by key, and a compacted topic, have only one of the "
    "two rows, and no row once one of them is deleted. Choose columns with a UNIQUE constraint that is not DEFERRABLE"
)
_NOT_EXACT_HINT = (
    "format.numeric_as: double, or format.interval_as: microseconds, may map two keys that differ in PostgreSQL to "
    "one; readers by key then have only one of the two rows. format.overrides can exclude these columns"
)
_KEY_SCHEMA_HINT = (
    "the type of a key column was changed: from here on the same key has other bytes, and may go to another "
    "partition. Readers have to sort by commit_lsn and tx_seq, and a compacted topic retains the records of both"
)

Say = Callable[..., None]
"""Takes an event and its fields."""


def warn(event: str, **fields: Any) -> None:
    """Log the event as a warning."""
    _LOG.warning(event, **fields)


class KeyWarnings:
    """The warnings of one session."""

    def __init__(self, say: Say = warn) -> None:
        self._say = say
        self._keyless: set[int] = set()
        self._shared: set[int] = set()

    def keyless(self, plan: RelationPlan, flaw: str | None) -> None:
        """Warn that a table's records have a null key (F45). `flaw`: why its key cannot be used, if it has one."""
        if not plan.key_indexes and plan.relation.relid not in self._keyless:
            self._keyless.add(plan.relation.relid)
            hint = _KEYLESS_HINT if flaw is None else _FLAWED_HINT.format(flaw=flaw)
            self._say("relation_without_key", table=plan.table, topic=plan.topic, hint=hint)

    def shared(
        self, relation: Relation, columns: tuple[str, ...], merged: tuple[str, ...], *, is_unique: bool
    ) -> None:
        """Warn that rows may share the key, because of the chosen columns or types (F82)."""
        if (is_unique and not merged) or relation.relid in self._shared:
            return
        self._shared.add(relation.relid)
        table = f"{relation.schema}.{relation.name}"
        if not is_unique:
            self._say("key_not_unique", table=table, key=list(columns), hint=_NOT_UNIQUE_HINT)
        if merged:
            self._say("key_not_exact", table=table, columns=list(merged), hint=_NOT_EXACT_HINT)

    def schema_changed(self, topic: str, schema_id: int) -> None:
        """Warn that a column of the key has another type from here on."""
        self._say("key_schema_changed", topic=topic, schema_id=schema_id, hint=_KEY_SCHEMA_HINT)

    def added(self, topic: str, schema_id: int) -> None:
        """Warn that a topic whose records had null keys has a key from here on."""
        self._say("key_added", topic=topic, schema_id=schema_id, hint=_KEY_ADDED_HINT)
