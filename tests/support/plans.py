"""Plans of a table `public.t`, made without a catalog and a registry."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from cdcd.avro.plan import RelationPlan, compile_plan
from cdcd.model import Column, PgType, Relation, ReplicaIdentity
from cdcd.schema.policy import NO_RULES, Policies
from cdcd.schema.relation_schema import relation_schemas

NO_TYPES: Mapping[int, PgType] = MappingProxyType({})


def plan_of_columns(
    columns: tuple[Column, ...],
    key: tuple[str, ...],
    policies: Policies = NO_RULES,
    *,
    types: Mapping[int, PgType] = NO_TYPES,
    is_required: bool = True,
) -> RelationPlan:
    """Return the plan of a table with these columns. `is_required`: no column of the key can be null."""
    relation = Relation(7, "public", "t", ReplicaIdentity.DEFAULT, columns)
    schemas = relation_schemas(relation, types, key, "shop", policies, is_key_required=is_required)
    return compile_plan(
        relation,
        schemas,
        topic="shop.public.t",
        partitions=3,
        key_schema_id=11,
        value_schema_id=12,
        tombstones=True,
    )
