"""A plan with what it was made from: whether a later description of the relation needs another one.

In: the plan and its sources; those of the later description.  Out: whether they are the same.
Invariant: attnums that are not known any more, because columns were altered since, do not change a plan.
Must not: query the catalog.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from cdcd.avro.plan import RelationPlan
from cdcd.model import Relation
from cdcd.schema.attnums import KnownAttnums, attnums_in
from cdcd.schema.identity import OldTuples

__all__ = ["MadePlan", "PlanKey"]


class PlanKey(NamedTuple):
    """The columns of a relation's key, () without one; whether none of them can be null.

    `nullable`: the key columns that may be null in the topic's values nevertheless. `is_unique`: False if two rows
    may have the same key.
    """

    columns: tuple[str, ...]
    is_required: bool
    nullable: frozenset[str]
    is_unique: bool


@dataclass(frozen=True, slots=True)
class MadePlan:
    """A plan, and what it was made from. `attnums`: those of the description, None if they were not known."""

    relation: Relation
    key: PlanKey
    old: OldTuples | None
    attnums: tuple[int, ...] | None
    plan: RelationPlan

    def has(self, relation: Relation, key: PlanKey, old: OldTuples | None, known: KnownAttnums) -> bool:
        """Whether the plan is that of this description."""
        is_same = (self.relation, self.key, self.old) == (relation, key, old)
        return is_same and self._has_attnums(known)

    def _has_attnums(self, known: KnownAttnums) -> bool:
        """Whether the description has the same attnums; if they are unknown now, may have those of the schema."""
        if known.described is not None:
            return self.attnums == known.described
        attnums = attnums_in(self.plan.value_schema)
        return attnums is None or known.allow(attnums)
