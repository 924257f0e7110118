"""Options of the snapshot: which tables are copied, how, and in which order.

Comes in: the `snapshot` mapping.  Goes out: `Snapshot`, and the pure core's `Selection`.
Invariant: without an override every published table is copied, completely.
Must not: know how rows are read.
"""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, Field, model_validator

from cdcd.config.format import Pattern, compiled, without_null
from cdcd.config.values import Room, Whole, refuse
from cdcd.snapshot.selection import CopyRule, Selection

_CHOICES = ("include", "where", "priority")


class SnapshotOverride(Room):
    """One rule for the tables that a pattern matches."""

    model_config = ConfigDict(json_schema_extra=without_null)

    table: Pattern = Field(description="regular expression that matches all of SCHEMA.TABLE")
    include: bool | None = Field(default=None, description="whether the tables are copied")
    where: str | None = Field(
        default=None, min_length=1, description="SQL condition: copy only the rows for which it is true"
    )
    priority: Whole | None = Field(
        default=None, ge=-1000, le=1000, description="tables with a higher priority are copied first (0)"
    )

    @model_validator(mode="after")
    def _changes_something(self) -> SnapshotOverride:
        if all(getattr(self, name) is None for name in _CHOICES):
            refuse("changes nothing", f"set one of {', '.join(_CHOICES)}")
        return self


class Snapshot(Room):
    """The copy of the tables before the stream."""

    mode: Literal["initial", "initial_only", "no_data", "never"] = Field(
        default="initial",
        description="initial: copy every table at the first start, then stream; initial_only: copy, then exit with "
        "status 0; no_data: create topics and schemas of every table, then stream; never: stream only",
    )
    workers: Whole = Field(
        default=2,
        ge=1,
        le=64,
        description="number of connections that copy tables, and parts of large tables, at the same time",
    )
    order: Literal["name", "smallest_first", "largest_first"] = Field(
        default="name", description="order of the tables, among those of the same priority"
    )
    overrides: tuple[SnapshotOverride, ...] = Field(
        default=(),
        description="options for some tables; a later rule overrides an earlier one",
        examples=[
            [
                {"table": r"audit\..*", "include": False},
                {"table": "public.orders", "where": "created_at >= '2026-01-01'", "priority": 10},
            ]
        ],
    )

    @property
    def copies_tables(self) -> bool:
        """Whether a first start copies the tables."""
        return self.mode in ("initial", "initial_only")

    def selection(self) -> Selection:
        """Return the rules as the pure core needs them."""
        rules = tuple(
            CopyRule(compiled(one.table), one.include, one.where, one.priority) for one in self.overrides
        )
        return Selection(rules, self.order)
