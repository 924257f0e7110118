"""The subject of a schema, and the record names that two of the strategies use."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka.schema_registry import (
    record_subject_name_strategy,
    topic_record_subject_name_strategy,
    topic_subject_name_strategy,
)
from confluent_kafka.serialization import SerializationContext

from cdcd.model import Column, PgType, Relation, ReplicaIdentity
from cdcd.registry.subjects import full_record_name, subject_of
from cdcd.schema.names import key_record
from cdcd.schema.relation_schema import relation_schemas


@pytest.mark.parametrize("part", ["key", "value"])
@pytest.mark.parametrize(
    ("strategy", "judge"),
    [
        ("topic_name", topic_subject_name_strategy),
        ("record_name", record_subject_name_strategy),
        ("topic_record_name", topic_record_subject_name_strategy),
    ],
)
def test_a_subject_is_what_confluents_strategy_of_that_name_makes(
    strategy: Any, judge: Any, part: Any
) -> None:
    context = SerializationContext("shop.public.t", part)
    assert subject_of(strategy, "shop.public.t", part, "a.b.Key") == judge(context, "a.b.Key")


def test_a_records_name_has_its_namespace() -> None:
    assert full_record_name({"type": "record", "name": "a.b.C"}) == "a.b.C"
    assert full_record_name({"type": "record", "name": "C", "namespace": "a.b"}) == "a.b.C"
    assert full_record_name({"type": "record", "name": "a.C", "namespace": "b"}) == "a.C"
    assert full_record_name({"type": "record", "name": "C"}) == "C"


def test_a_tables_key_record_is_known_before_its_schema() -> None:
    """The registered key is looked up before the relation's schemas are built."""
    column = Column("id", 23, -1, True)
    relation = Relation(1, "odd schema", "Tä", ReplicaIdentity.DEFAULT, (column,))
    types = {23: PgType(23, "pg_catalog", "int4", "b", "N")}
    key = relation_schemas(relation, types, ("id",), "sh-op").key
    assert key is not None
    assert full_record_name(key) == key_record("sh-op", relation.schema, relation.name)
