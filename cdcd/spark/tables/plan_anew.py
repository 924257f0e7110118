"""Plan the batch of a table that may begin anew: it was parked or dropped, or its columns or its key do not continue.

In: as `plan_table`, and the entry before the batch.  Out: as `plan_table`.
Invariant: a table begins anew only if the batch empties it, by a TRUNCATE or by the event before the rows of a copy,
which makes all records before it irrelevant. Its history has none of them: other parts of them are not known. From
there on its columns have to continue.
Must not: do I/O except fetching schemas by id; use Spark.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial

from cdcd.errors import MirrorInconsistent
from cdcd.spark.decoding.events import read_events
from cdcd.spark.decoding.schemas import schema_id
from cdcd.spark.tables.plan import Look, SchemaSource, TablePlan, plan_table
from cdcd.spark.tables.retained_columns import DEFAULT_POLICIES, ColumnPolicies
from cdcd.spark.target.versions import TableEntry, TargetVersion

__all__ = ["known_us", "plan_or_anew", "resumed"]

Planned = tuple[TablePlan, TableEntry]
log = logging.getLogger("cdcd.spark.mirror")


def plan_or_anew(
    look: Look,
    entry: TableEntry,
    before: TableEntry,
    schema_by_id: SchemaSource,
    *,
    accepts_gaps: bool,
    has_history: bool,
    policies: ColumnPolicies = DEFAULT_POLICIES,
) -> Planned:
    """Return the plan of a table. `entry`: `before`, or what `resumed` has returned. Raises as `plan_table`.

    `has_history`: whether each change becomes a line of a history; of a table that begins anew, each after that.
    """
    plan = partial(plan_table, look, schema_by_id=schema_by_id, accepts_gaps=accepts_gaps, policies=policies)
    if entry is before:
        try:
            return plan(entry, needs_all=has_history)
        except MirrorInconsistent:
            anew = resumed(look, before, schema_by_id)
            if anew is None:
                raise
            entry = anew
    planned, entry_then = _plan_anew(plan, entry, before)
    return replace(planned, lost_after=before.applied), entry_then


def _plan_anew(plan: Callable[..., Planned], entry: TableEntry, before: TableEntry) -> Planned:
    """Return the plan of a table that is emptied; it continues its history if its columns continue."""
    if before.history:
        with suppress(MirrorInconsistent):
            return plan(_with_history_of(entry, before))
        log.warning("%s: the columns of the table have changed, so a new history begins", entry.topic)
    return plan(entry)


def resumed(look: Look, entry: TableEntry, schema_by_id: SchemaSource) -> TableEntry | None:
    """Return the new entry of a table that does not continue if the batch empties it; else None: it is parked."""
    schemas = {number: schema_by_id(number) for number in {schema_id(one) for one in look.keyless_values}}
    events = read_events(((None, value) for value in look.keyless_values), schemas)
    if not any(event.op == "t" and event.sequence > entry.applied for event in events):
        return None
    return TableEntry(
        entry.topic,
        keyed=True if entry.keyed else None,  # a table without a key may have got one
        next_number=entry.next_number,
        applied=entry.applied,
        relid=entry.relid,
        former=entry.former,
    )


def known_us(entry: TableEntry, version: TargetVersion) -> int | None:
    """Return the time of the last commit as of which a table is in a version, None if it is not known.

    A table that is copied is not as of one commit; its history has the times of the changes that it has.
    """
    if entry.parked is not None:
        commit_us = entry.parked.commit_us
    else:
        commit_us = 0 if entry.topic in version.loading else version.commit_us
    return max([commit_us, *(one.last_us for one in entry.history)]) or None


def _with_history_of(entry: TableEntry, before: TableEntry) -> TableEntry:
    """Return the new entry with the history of the former one, and the columns that the history has."""
    return replace(
        entry,
        schema_id=before.schema_id,
        value_schema=before.value_schema,
        fields=before.fields,
        history=before.history,
        copying=before.copying,
    )
