"""The format policies of records: one default, and rules for tables and columns.

In: the default, rules of (pattern of a table, pattern of a column, changes to the policy).
Out: the `Policy` of a table or of one of its columns.
Invariant: the default loses no information. A later rule overrides an earlier one, and a rule for a column overrides
every rule for its table. The policy is a function of names alone, so it is the same after a restart.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class FlatNames:
    """The names of the fields that the flat format adds to the row."""

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
    """All format options. The first four apply to a table, the rest to a column.

    `value`: the envelope, or the row itself with a few added fields. `key_columns`: the key of a table without a key
    in the database. `keyless`: the key of a table without either: null and one partition, or, if its replica identity
    is FULL, the whole row.
    `special`: the treatment of a value that the column's Avro type cannot hold (NaN, infinity, 24:00:00, an array of
    two dimensions): `separate` puts it into `source.special`, `halt` halts, `string` makes the whole column a string
    of the server's text. `max_value_bytes`: the longest text of a value, 0 for no limit; `oversized` is the treatment
    of a longer one. `placeholder`: the text of a TOASTed value that was not sent, in a string or bytes column; "":
    null.
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
    """Changes to the policy of tables (`schema.table`) or columns whose whole name a pattern matches."""

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
"""The policy without any configuration."""

NO_RULES = Policies()
"""The default policy for every table and column."""
