"""Policies that give two different values of a key column the same key.

In: a column of a key, the name of its type, its policy.  Out: whether two different values may have one key (F82).
Invariant: every other policy, and the default, encodes different values differently.
"""

from __future__ import annotations

from cdcd.model import Column, Relation
from cdcd.schema.policy import Policy
from cdcd.schema.relation_schema import RelationSchemas
from cdcd.schema.types.numeric import precision_and_scale

_EXACT_DIGITS = 15
"""The number of decimal digits that a double always preserves."""


def may_merge(policy: Policy) -> bool:
    """Whether there is a type of which this policy may merge values."""
    return policy.numeric_as == "double" or policy.interval_as == "microseconds"


def merges(column: Column, type_name: str, policy: Policy) -> bool:
    """Whether two values of a column may get the same bytes. `type_name` is that of `resolve`, without its domain."""
    kind = type_name.removesuffix("[]")
    if kind == "interval":
        return policy.interval_as == "microseconds"
    declared = precision_and_scale(column.typmod)
    is_exact = declared is not None and declared[0] <= _EXACT_DIGITS and kind == type_name
    return kind == "numeric" and policy.numeric_as == "double" and not is_exact


def merged_key_columns(relation: Relation, schemas: RelationSchemas) -> tuple[str, ...]:
    """Return the columns of the key whose policy may merge values."""
    names = set(schemas.key_columns)
    pairs = zip(relation.columns, schemas.columns, strict=True)
    return tuple(
        column.name
        for column, codec in pairs
        if column.name in names and merges(column, codec.type_name, codec.policy)
    )
