"""Every type that a column can have has an answer, on every major: pg_type is walked whole.

A type that a future PostgreSQL or extension adds fails here until somebody has said what it becomes. Pseudo-types
cannot be a column's.
"""

from __future__ import annotations

import contextlib
import json
from typing import Any

import fastavro
import pytest

from cdcd.demo.stack.postgres import PostgresServer
from cdcd.model import Column, PgType, Relation, ReplicaIdentity
from cdcd.schema.relation_schema import relation_schemas
from cdcd.schema.resolve import EXTENSIONS, FAMILIES, resolve
from cdcd.source.catalog import Catalog
from cdcd.source.settings import SourceSettings
from tests.support.source import source_database
from tests.support.stack import POSTGRES_MAJORS, PostgresServers

STRING, LONG = "string", "long"
_JSON = {"type": STRING, "connect.version": 1, "connect.name": "io.debezium.data.Json"}
_FLOATS = {"type": "array", "items": "float"}

_OF_THE_CATALOG = (
    "int2vector",
    "oidvector",
    "tid",
    "aclitem",
    "gtsvector",
    "pg_lsn",
    "pg_snapshot",
    "txid_snapshot",
    "pg_node_tree",
    "pg_ndistinct",
    "pg_dependencies",
    "pg_mcv_list",
    "pg_brin_bloom_summary",
    "pg_brin_minmax_multi_summary",
    "regclass",
    "regcollation",
    "regconfig",
    "regdictionary",
    "regnamespace",
    "regoper",
    "regoperator",
    "regproc",
    "regprocedure",
    "regrole",
    "regtype",
)

BUILT_IN: dict[str, Any] = {
    "bool": "boolean",
    **dict.fromkeys(("int2", "int4"), "int"),
    **dict.fromkeys(("int8", "oid", "xid", "cid", "xid8"), LONG),
    "float4": "float",
    "float8": "double",
    "numeric": STRING,
    "money": {"type": "bytes", "logicalType": "decimal", "precision": 19, "scale": 2},
    **dict.fromkeys(("text", "varchar", "bpchar", "name", "char", "xml", "refcursor"), STRING),
    **dict.fromkeys(("tsvector", "tsquery", "jsonpath"), STRING),
    **dict.fromkeys(("json", "jsonb"), _JSON),
    "bytea": "bytes",
    "uuid": {"type": STRING, "logicalType": "uuid"},
    **dict.fromkeys(("bit", "varbit"), STRING),
    "date": {"type": "int", "logicalType": "date"},
    "time": {"type": LONG, "logicalType": "time-micros"},
    "timetz": STRING,
    "timestamp": {"type": LONG, "logicalType": "local-timestamp-micros"},
    "timestamptz": {"type": LONG, "logicalType": "timestamp-micros"},
    "interval": STRING,
    **dict.fromkeys(("inet", "cidr", "macaddr", "macaddr8"), STRING),
    **dict.fromkeys(("point", "line", "lseg", "box", "path", "polygon", "circle"), STRING),
    **dict.fromkeys(_OF_THE_CATALOG, STRING),
}
SINCE_13 = {"xid8", "pg_snapshot", "regcollation"}
SINCE_14 = {"pg_brin_bloom_summary", "pg_brin_minmax_multi_summary"}

OF_EXTENSIONS: dict[str, dict[str, Any]] = {
    "hstore": {"hstore": {"type": "map", "values": ["null", STRING]}, "ghstore": STRING},
    "citext": {"citext": STRING},
    "ltree": dict.fromkeys(("ltree", "lquery", "ltxtquery", "ltree_gist"), STRING),
    "cube": {"cube": STRING},
    "isn": dict.fromkeys(("ean13", "isbn13", "ismn13", "issn13", "isbn", "ismn", "issn", "upc"), STRING),
    "seg": {"seg": STRING},
    "intarray": dict.fromkeys(("query_int", "intbig_gkey"), STRING),
}
DOMAINS = {
    "cardinal_number": "int",
    "character_data": STRING,
    "sql_identifier": STRING,
    "time_stamp": BUILT_IN["timestamptz"],
    "yes_or_no": STRING,
    "price": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2},
    "prices": {
        "type": "array",
        "items": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}],
    },
}
OWN = (
    *(f"CREATE EXTENSION {name} WITH SCHEMA public" for name in OF_EXTENSIONS),
    "CREATE TYPE public.mood AS ENUM ('a')",
    "CREATE DOMAIN public.price AS numeric(10,2)",
    "CREATE DOMAIN public.prices AS public.price[]",
    "CREATE TYPE public.span AS RANGE (subtype = public.price)",
    'CREATE TYPE public."odd ""one" AS (a int, "b c" public.hstore, d public.price[], e public.mood)',
    'CREATE TABLE public.holds (x public."odd ""one", y public."odd ""one"[])',
)


def every_type(settings: SourceSettings, server: PostgresServer) -> dict[int, PgType]:
    """All types that a column can have, and what they are made of."""
    rows = server.execute("SELECT oid::int8 FROM pg_type WHERE typtype <> 'p'", dbname=settings.slot)
    with contextlib.closing(Catalog(settings)) as catalog:
        return catalog.types(oid for (oid,) in rows)


def avro_of(entry: PgType, types: dict[int, PgType]) -> Any:
    return resolve(entry.oid, -1, types).codec.avro


@pytest.mark.parametrize("major", POSTGRES_MAJORS)
def test_every_type_has_its_answer(pg_server: PostgresServers, major: int) -> None:
    server = pg_server(major)
    with source_database(server, *OWN) as settings:
        types = every_type(settings, server)
    columns = [entry for entry in types.values() if entry.kind != "p"]
    base = [entry for entry in columns if entry.kind == "b" and not entry.element_oid]
    built_in = {entry.name: avro_of(entry, types) for entry in base if not entry.extension}
    later = (SINCE_13 if major < 13 else set()) | (SINCE_14 if major < 14 else set())
    assert built_in == {name: avro for name, avro in BUILT_IN.items() if name not in later}
    assert all(entry.oid in FAMILIES for entry in base if not entry.extension)

    of_extensions: dict[str, dict[str, Any]] = {}
    for entry in base:
        if entry.extension:
            of_extensions.setdefault(entry.extension, {})[entry.name] = avro_of(entry, types)
            assert (entry.extension, entry.name) in EXTENSIONS
    assert of_extensions == OF_EXTENSIONS

    assert {e.name: avro_of(e, types) for e in columns if e.kind == "d"} == DOMAINS
    assert {avro_of(entry, types) for entry in columns if entry.kind in "erm"} == {STRING}
    assert {e.name for e in columns if e.kind == "e"} == {"mood"}
    assert sum(entry.kind == "r" for entry in columns) == 7
    assert sum(entry.kind == "m" for entry in columns) == (7 if major >= 14 else 0)


@pytest.mark.parametrize("major", POSTGRES_MAJORS)
def test_arrays_and_composite_types_are_made_of_their_parts(pg_server: PostgresServers, major: int) -> None:
    server = pg_server(major)
    with source_database(server, *OWN) as settings:
        types = every_type(settings, server)
    arrays = [entry for entry in types.values() if entry.element_oid]
    assert len(arrays) > 80
    for entry in arrays:
        element = resolve(entry.element_oid, -1, types).codec.avro
        assert avro_of(entry, types) == {"type": "array", "items": ["null", element]}, entry.name
    composites = [entry for entry in types.values() if entry.kind == "c"]
    assert len(composites) > 180  # each table and view is one
    for entry in composites:
        avro = avro_of(entry, types)
        assert [field["pg.name"] for field in avro["fields"]] == [a.name for a in entry.attributes]
        for attribute, field in zip(entry.attributes, avro["fields"], strict=True):
            of_column = resolve(attribute.type_oid, attribute.typmod, types).codec.avro
            assert field["type"] == ["null", of_column], (entry.name, attribute.name)


@pytest.mark.parametrize("major", [12, 18])
def test_a_table_with_a_column_of_every_type_has_a_legal_schema(
    pg_server: PostgresServers, major: int
) -> None:
    """Named types are defined once each, although `before` and `after` and many columns use them."""
    server = pg_server(major)
    with source_database(server, *OWN) as settings:
        types = every_type(settings, server)
    oids = sorted(entry.oid for entry in types.values() if entry.kind != "p")
    described = tuple(Column(f"c{oid}", oid, -1, False) for oid in oids)
    relation = Relation(1, "s", "every", ReplicaIdentity.NOTHING, described)
    schemas = relation_schemas(relation, types, (), "shop")
    fastavro.parse_schema(schemas.value)
    again = relation_schemas(relation, dict(reversed(types.items())), (), "shop")
    assert json.dumps(again.value) == json.dumps(schemas.value)
