"""What the records look like where there is a choice: one policy for all, and rules for tables and columns.

In: the defaults, rules of (pattern of a table, pattern of a column, what they change).
Out: the `Policy` of a table or of one of its columns.
Invariant: the defaults lose nothing; a later rule goes before an earlier one, and a rule for a column before
every rule for its table. The policy is a function of names alone, so it is the same after a restart.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class FlatNames:
    """What the flat format calls the fields that it adds to the row."""

    op: str = "__op"
    deleted: str = "__deleted"
    timeline: str = "__timeline"
    commit_lsn: str = "__commit_lsn"
    tx_seq: str = "__tx_seq"
    ts_ms: str = "__ts_ms"
    special: str = "__special"
    unchanged: str = "__unchanged"


@dataclass(frozen=True, slots=True)
class Policy:
    """Every choice. The first four are a table's, the rest a column's.

    `value`: the envelope, or the row itself with a few fields more. `key_columns`: the key of a table that
    the database gives none. `keyless`: what it has without them: null and one partition, or, if its replica
    identity is FULL, the whole row as its key.
    `special`: where a value goes that the column's Avro type cannot hold (NaN, infinity, 24:00:00, an array of two
    dimensions): `separate` into `source.special`, `halt`, or `string`, which makes the whole column a string of
    the server's text. `max_value_bytes`: the longest text of a value, 0 for any; a longer one is `oversized`.
    `placeholder`: what stands in a string or bytes column for a TOASTed value that was not sent; "": null.
    """

    value: Literal["envelope", "flat"] = "envelope"
    tombstones: bool = True
    key_columns: tuple[str, ...] = ()
    keyless: Literal["one_partition", "row"] = "one_partition"
    numeric_as: Literal["exact", "string", "double", "variable_scale"] = "exact"
    money_as: Literal["decimal", "string"] = "decimal"
    interval_as: Literal["iso_8601", "fields", "microseconds"] = "iso_8601"
    json_as: Literal["json", "string"] = "json"
    special: Literal["separate", "halt", "string"] = "separate"
    max_value_bytes: int = 0
    oversized: Literal["halt", "omit"] = "halt"
    placeholder: str = ""


@dataclass(frozen=True, slots=True)
class Rule:
    """What is otherwise for tables (`schema.table`) or columns whose whole name a pattern matches."""

    table: re.Pattern[str]
    column: re.Pattern[str] | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Policies:
    """The default and the rules, in the order of the configuration."""

    default: Policy = Policy()
    rules: tuple[Rule, ...] = ()
    flat: FlatNames = FlatNames()

    def table(self, table: str) -> Policy:
        """Return the policy of `schema.table`."""
        changes: dict[str, Any] = {}
        for rule in self.rules:
            if rule.column is None and rule.table.fullmatch(table):
                changes.update(rule.changes)
        return replace(self.default, **changes)

    def column(self, table: str, column: str) -> Policy:
        """Return the policy of a column of `schema.table`."""
        changes: dict[str, Any] = {}
        for rule in self.rules:
            if rule.column is not None and rule.table.fullmatch(table) and rule.column.fullmatch(column):
                changes.update(rule.changes)
        return replace(self.table(table), **changes)


DEFAULT_POLICY = Policy()
"""What holds where nothing is configured."""

NO_RULES = Policies()
"""The default policy for every table and column."""
