"""Every type that a column can have has a mapping, on every major: the test reads all of pg_type.

A type that a future PostgreSQL or extension adds fails here until a mapping is defined. Pseudo-types cannot be a
column's.
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
from tests.support.nightly import nightly, nightly_except
from tests.support.source import source_database
from tests.support.stack import POSTGRES_MAJORS, PostgresServers
from tests.support.type_answers import BUILT_IN, OF_EXTENSIONS, SINCE_13, SINCE_14, STRING

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
    """Return all types that a column can have, and the types that they consist of."""
    rows = server.execute("SELECT oid::int8 FROM pg_type WHERE typtype <> 'p'", dbname=settings.slot)
    with contextlib.closing(Catalog(settings)) as catalog:
        return catalog.types(oid for (oid,) in rows)


def avro_of(entry: PgType, types: dict[int, PgType]) -> Any:
    return resolve(entry.oid, -1, types).codec.avro


@pytest.mark.parametrize("major", nightly_except(POSTGRES_MAJORS, 18))
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


@pytest.mark.parametrize("major", nightly_except(POSTGRES_MAJORS, 18))
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
    assert len(composites) > 180  # each table and view has one
    for entry in composites:
        avro = avro_of(entry, types)
        assert [field["pg.name"] for field in avro["fields"]] == [a.name for a in entry.attributes]
        for attribute, field in zip(entry.attributes, avro["fields"], strict=True):
            of_column = resolve(attribute.type_oid, attribute.typmod, types).codec.avro
            assert field["type"] == ["null", of_column], (entry.name, attribute.name)


@pytest.mark.parametrize("major", [nightly(12), 18])
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
