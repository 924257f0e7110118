"""Schemas depend only on the relation and its types, and are legal Avro."""

from __future__ import annotations

import json

import fastavro
import pytest

from cdcd.errors import SchemaError
from cdcd.model import Column, PgType, Relation, ReplicaIdentity
from cdcd.schema.relation_schema import relation_schemas

TYPES = {
    23: PgType(23, "pg_catalog", "int4", "b"),
    25: PgType(25, "pg_catalog", "text", "b"),
    9001: PgType(9001, "shop", "label", "d", base_oid=25),
}


def relation(identity: ReplicaIdentity = ReplicaIdentity.DEFAULT, *, all_keys: bool = False) -> Relation:
    return Relation(
        1,
        "sales",
        "order lines",
        identity,
        (
            Column("order id", 23, -1, True),
            Column("label", 9001, -1, all_keys),
            Column("data", 3802, -1, all_keys),
            Column("line", 23, -1, True),
        ),
    )


def test_key_columns_are_required_and_the_others_nullable_with_a_default() -> None:
    schemas = relation_schemas(relation(), TYPES, ("line", "order id"), "shop")
    assert schemas.key == {
        "type": "record",
        "name": "shop.sales.order_u0020lines.Key",
        "connect.name": "shop.sales.order_u0020lines.Key",
        "fields": [
            {"name": "line", "type": "int", "pg.name": "line"},
            {"name": "order_u0020id", "type": "int", "pg.name": "order id"},
        ],
    }
    before = schemas.value["fields"][0]["type"][1]
    assert before["name"] == "shop.sales.order_u0020lines.Value"
    assert before["fields"][1] == {
        "name": "label",
        "type": ["null", "string"],
        "default": None,
        "pg.name": "label",
        "pg.type": "text",
        "pg.typmod": -1,
        "pg.domain": "shop.label",
    }
    assert before["fields"][2]["type"][1]["connect.name"] == "io.debezium.data.Json"
    assert [f["name"] for f in before["fields"] if f["type"] == "int"] == ["order_u0020id", "line"]


def test_schemas_parse_and_are_the_same_every_time() -> None:
    first, second = (relation_schemas(relation(), TYPES, None, "shop") for _ in range(2))
    assert json.dumps(first.value) == json.dumps(second.value)
    fastavro.parse_schema(first.value)
    fastavro.parse_schema(first.key)


def test_the_envelope_has_debeziums_fields_and_cdcds() -> None:
    value = relation_schemas(relation(), TYPES, None, "shop").value
    assert value["name"] == "shop.sales.order_u0020lines.Envelope"
    names = [field["name"] for field in value["fields"]]
    assert names == ["before", "after", "source", "transaction", "op", "ts_ms", "ts_us", "ts_ns"]
    source = value["fields"][2]["type"]
    assert source["connect.name"] == "io.debezium.connector.postgresql.Source"
    assert " ".join(field["name"] for field in source["fields"]) == (
        "version connector name ts_ms snapshot db sequence ts_us ts_ns schema table txId lsn xmin "
        "origin origin_lsn timeline commit_lsn tx_seq special unchanged"
    )


def test_the_keys_schema_stays_while_its_values_do() -> None:
    """The schema id is in the key's bytes: a schema with more than the values need would change the key."""
    text = PgType(25, "pg_catalog", "text", "b")
    forms = [
        Relation(1, "s", "t", ReplicaIdentity.DEFAULT, columns)
        for columns in (
            (Column("id", 1043, 14, True), Column("v", 25, -1, False)),
            (Column("id", 1043, 24, True), Column("v", 25, -1, False)),
            (Column("junk", 23, -1, False), Column("id", 1043, 14, True)),
            (Column("id", 9001, -1, True),),
        )
    ]
    types = {**TYPES, 25: text, 1043: PgType(1043, "pg_catalog", "varchar", "b")}
    keys = [relation_schemas(form, types, None, "shop").key for form in forms]
    assert keys == [keys[0]] * 4


def test_two_columns_of_one_name_are_a_schema_error() -> None:
    twice = Relation(
        1, "s", "t", ReplicaIdentity.FULL, (Column("a", 23, -1, True), Column("a", 25, -1, True))
    )
    with pytest.raises(SchemaError):
        relation_schemas(twice, TYPES, None, "shop")


def test_a_relation_without_columns_has_a_schema() -> None:
    schemas = relation_schemas(Relation(1, "s", "t", ReplicaIdentity.NOTHING, ()), {}, None, "shop")
    fastavro.parse_schema(schemas.value)
