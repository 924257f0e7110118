"""Named types in a schema: unique, deterministic, defined once. fastavro checks that a schema is legal."""

from __future__ import annotations

import json
import re
from typing import Any

import fastavro
import pytest

from cdcd.errors import SchemaError
from cdcd.model import Column, Relation, ReplicaIdentity
from cdcd.schema.named_types import defined_once, with_full_names
from cdcd.schema.policy import NO_RULES, Policies, Policy, Rule
from cdcd.schema.relation_schema import relation_schemas
from cdcd.spark.decoding.columns import arrow_type
from cdcd.spark.decoding.schemas import expand, value_record
from tests.support.avro_types import ADDRESS, ADDRESS_ARRAY, INTERVAL, NUMERIC, PERSON, TYPES


def value_fields(schema: Any) -> dict[str, Any]:
    return {field["pg.name"]: field["type"] for field in schema["fields"][0]["type"][1]["fields"]}


def schema_of(*columns: tuple[str, int], policies: Policies = NO_RULES) -> Any:
    described = tuple(Column(name, oid, -1, False) for name, oid in columns)
    relation = Relation(1, "sales", "order lines", ReplicaIdentity.NOTHING, described)
    schema = relation_schemas(relation, TYPES, (), "shop", policies).value
    fastavro.parse_schema(schema)
    return schema


BASE = "shop.sales.order_u0020lines.Value"


def test_a_composite_type_is_defined_by_its_first_column_and_named_by_the_others() -> None:
    fields = value_fields(schema_of(("a", ADDRESS), ("b", ADDRESS), ("c", ADDRESS_ARRAY), ("d", PERSON)))
    assert fields["a"][1]["name"] == f"{BASE}.public.address"
    assert fields["b"][1] == f"{BASE}.public.address"
    assert fields["c"][1]["items"][1] == f"{BASE}.public.address"
    person = {field["pg.name"]: field["type"][1] for field in fields["d"][1]["fields"]}
    assert person["home"] == f"{BASE}.public.address"


def test_a_column_with_choices_of_its_own_has_its_own_records() -> None:
    """With column options the same type may be a different record, in any order of the columns."""
    rule = Rule(re.compile(r"sales\..*"), re.compile("b"), {"numeric_as": "double"})
    for order in (("a", "b"), ("b", "a")):
        fields = value_fields(
            schema_of(*((name, PERSON) for name in order), policies=Policies(rules=(rule,)))
        )
        assert fields["a"][1]["name"] == f"{BASE}.public.person"
        assert fields["b"][1]["name"] == f"{BASE}.b.public.person"
        paid = [fields[name][1]["fields"][3]["type"][1] for name in ("a", "b")]
        assert paid[1] == "double"
        assert paid[0]["logicalType"] == "decimal"


def test_records_that_are_the_same_everywhere_keep_their_names() -> None:
    policies = Policies(Policy(numeric_as="variable_scale", interval_as="fields"))
    fields = value_fields(
        schema_of(("n", NUMERIC), ("m", NUMERIC), ("i", INTERVAL), ("j", INTERVAL), policies=policies)
    )
    assert fields["m"][1] == fields["n"][1]["name"] == "io.debezium.data.VariableScaleDecimal"
    assert fields["j"][1] == fields["i"][1]["name"] == "cdcd.Interval"


def test_a_key_of_a_composite_type_is_legal_by_itself() -> None:
    columns = (Column("a", ADDRESS, -1, True), Column("b", ADDRESS, -1, True))
    relation = Relation(1, "s", "t", ReplicaIdentity.DEFAULT, columns)
    schemas = relation_schemas(relation, TYPES, ("b", "a"), "shop")
    fastavro.parse_schema(schemas.key)
    fastavro.parse_schema(schemas.value)


def test_the_same_relation_gives_the_same_bytes() -> None:
    columns = (("a", PERSON), ("b", ADDRESS))
    assert json.dumps(schema_of(*columns)) == json.dumps(schema_of(*columns))


def test_what_all_tables_have_in_common_is_in_memory_once() -> None:
    """There may be thousands of tables, whose envelope schemas are mostly equal."""
    one, other = (
        {field["name"]: field["type"] for field in schema_of(("a", oid))["fields"]}
        for oid in (PERSON, ADDRESS)
    )
    assert one["source"] is other["source"]
    assert one["transaction"][1] is other["transaction"][1]


def test_two_records_of_one_name_are_a_schema_error() -> None:
    one = {"type": "record", "name": "a.b", "fields": []}
    other = {"type": "record", "name": "a.b", "fields": [{"name": "x", "type": "int"}]}
    outer = {
        "type": "record",
        "name": "o",
        "fields": [{"name": "p", "type": one}, {"name": "q", "type": ["null", other]}],
    }
    with pytest.raises(SchemaError):
        defined_once(outer)


def test_the_spark_side_has_columns_for_named_types() -> None:
    """Each reference resolves to the type that it names."""
    policies = Policies(Policy(numeric_as="variable_scale", interval_as="fields"))
    schema = schema_of(
        ("a", PERSON), ("b", ADDRESS), ("c", ADDRESS_ARRAY), ("i", INTERVAL), policies=policies
    )
    row = arrow_type(value_record(expand(schema)))
    address = row.field("b").type
    assert row.field("a").type.field("home").type == row.field("c").type.value_type == address
    assert [(field.name, str(field.type)) for field in address] == [
        ("street", "string"),
        ("house_u0020no", "int32"),
    ]
    assert str(row.field("a").type.field("labels").type).startswith("map<string, string")


def test_a_name_and_a_namespace_are_the_same_as_the_full_name() -> None:
    """As fastavro has it: a registry returns the second form, with short names inside the namespace."""

    def schema(name: dict[str, str], inner: dict[str, str], again: str) -> Any:
        fields = [{"name": "n", "type": ["null", "int"], "default": None}]
        pair = {"type": "record", **inner, "pg.type": "public.pair", "fields": fields}
        mood = {"type": "enum", "name": "a.moods.mood", "symbols": ["sad"]}
        columns = [
            {"name": "k", "type": {"type": "array", "items": pair}},
            {"name": "m", "type": {"type": "map", "values": mood}},
            {"name": "l", "type": ["null", again]},
        ]
        return {"type": "record", **name, "fields": columns}

    ours = schema({"name": "a.t.Key"}, {"name": "a.t.pair"}, "a.t.pair")
    theirs = schema({"name": "Key", "namespace": "a.t"}, {"name": "pair"}, "pair")
    assert fastavro.schema.to_parsing_canonical_form(ours) == fastavro.schema.to_parsing_canonical_form(
        theirs
    )
    assert with_full_names(theirs) == with_full_names(ours) == ours
    other = schema({"name": "Key", "namespace": "a.t"}, {"name": "pair", "namespace": "b"}, "b.pair")
    assert with_full_names(other) != ours
    assert with_full_names("pair") == "pair"
