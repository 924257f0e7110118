"""A table is copied in COPY's binary format where the row codec decodes each type itself; the records are the same.

The judge is the stream in text format: an update of each row gives the same values, or the same special values.
"""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient

from cdcd.config.format import Format
from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.postgres import PostgresServer
from cdcd.demo.stack.registry import SchemaRegistry
from cdcd.session.snapshot_copy import in_best_format, tables_to_copy
from cdcd.source.catalog import Catalog
from tests.integration.conftest import NewDaemon
from tests.support.nightly import nightly
from tests.support.source import source_database
from tests.support.stack import PostgresServers, run_script
from tests.support.topics import committed_values
from tests.support.waiting import eventually

VALUES = {
    "bool": ("true", "false"),
    "int2": ("-32768", "32767"),
    "int4": ("-2147483648", "0"),
    "int8": ("-9223372036854775808", "9223372036854775807"),
    "oid": ("0", "4294967295"),
    "float4": ("'NaN'", "'-Infinity'", "1e-45", "-0.0", "3.4028235e38"),
    "float8": ("'Infinity'", "5e-324", "0.1", "-0.0", "1.7976931348623157e308"),
    "numeric": ("'NaN'", "0", "0.000", "-1e-20", "1e300", "12345678901234567890.123456789"),
    "numeric(12,2)": ("'NaN'", "0.10", "-9999999999.99"),
    "text": ("''", r"E'\\N\t\n'", "'grüße 🐘'", "repeat('x', 100000)"),
    "varchar(9)": ("'a '", "''"),
    "bpchar": ("'a '", "''"),
    "name": ("'a'", "''"),
    "bytea": (r"'\x00ff5c'", "''"),
    "date": ("'infinity'", "'4713-01-01 BC'", "'5874897-12-31'", "'2024-02-29'"),
    "time": ("'00:00'", "'24:00'", "'23:59:59.999999'"),
    "timestamp": (
        "'-infinity'",
        "'4713-01-01 BC'",
        "'294276-12-31 23:59:59.999999'",
        "'2024-02-29 12:00:00.5'",
    ),
    "timestamptz": ("'infinity'", "'1970-01-01 00:00:00+00'", "'2024-06-30 23:59:59.000001+02'"),
    "uuid": ("'00112233-4455-6677-8899-aabbccddeeff'",),
    "jsonb": ("'null'", """'{"a": [1, 1e400, "\\u00e9"]}'""", "'[]'"),
    "mood": ("'sad'", "'ha ppy'"),
    "percent": ("0", "100"),
}
"""By type the literals that are copied, besides null."""
AS_TEXT = ("int4[]", "inet", "interval", "aclitem", "int4range", "pair")


def make_tables(server: PostgresServer, database: str) -> list[str]:
    """Create a table for each type, with its values; return the tables' names."""
    run_script(
        server.dsn(database),
        "CREATE TYPE mood AS ENUM ('sad', 'ha ppy')",
        "CREATE DOMAIN percent AS int CHECK (VALUE <= 100)",
        "CREATE TYPE pair AS (a int, b text)",
    )
    names = []
    for number, kind in enumerate((*VALUES, *AS_TEXT)):
        names.append(f"t{number}")
        values = ["NULL", *VALUES.get(kind, ())]
        rows = ", ".join(f"({id_}, CAST({value} AS {kind}))" for id_, value in enumerate(values))
        run_script(
            server.dsn(database),
            f"CREATE TABLE t{number} (id int PRIMARY KEY, v {kind})",
            f"INSERT INTO t{number} VALUES {rows}",
        )
    return names


def without_logical_types(schema: Any) -> Any:
    """Return the schema with numbers and bytes in place of values that Python's types may not hold."""
    if isinstance(schema, dict):
        return {name: without_logical_types(part) for name, part in schema.items() if name != "logicalType"}
    return [without_logical_types(part) for part in schema] if isinstance(schema, list) else schema


def records(bootstrap: str, registry: SchemaRegistry, topic: str, at_least: int) -> list[Any]:
    """Return the values of a topic's records, as Avro has them."""
    client = SchemaRegistryClient({"url": registry.url})
    found = []
    for raw in committed_values(bootstrap, topic, at_least):
        assert raw is not None
        schema = json.loads(client.get_schema(int.from_bytes(raw[1:5], "big")).schema_str or "")
        parsed = fastavro.parse_schema(without_logical_types(schema))
        found.append(fastavro.schemaless_reader(io.BytesIO(raw[5:]), parsed, None))
    return found


def test_each_value_is_that_of_the_stream(
    postgres: PostgresServer,
    database: str,
    new_daemon: NewDaemon,
    kafka: KafkaBroker,
    registry: SchemaRegistry,
) -> None:
    tables = make_tables(postgres, database)
    with new_daemon(postgres, database) as daemon:
        daemon.start().wait_state("streaming")
        run_script(postgres.dsn(database), *(f"UPDATE {table} SET id = id" for table in tables))
        for table, kind in zip(tables, (*VALUES, *AS_TEXT), strict=True):
            rows = 1 + len(VALUES.get(kind, ()))
            found = records(kafka.bootstrap, registry, f"{daemon.name}.public.{table}", 2 * rows)
            # The text of NaN is equal to itself.
            copied, streamed = (
                {
                    one["after"]["id"]: repr((one["after"], one["source"]["special"]))
                    for one in found
                    if one["op"] == op
                }
                for op in "ru"
            )
            assert copied == streamed, kind
            assert len(copied) == rows


@pytest.mark.parametrize("major", [nightly(12), 18])
def test_the_format_is_chosen_by_the_types(pg_server: PostgresServers, major: int) -> None:
    server = pg_server(major)
    with source_database(server, "CREATE PUBLICATION pub FOR ALL TABLES") as settings:
        names = make_tables(server, settings.slot)
        run_script(settings.dsn, "CREATE TABLE mixed (id int PRIMARY KEY, a text, b int[])")
        catalog = Catalog(settings)
        tables = in_best_format(tables_to_copy(settings, catalog), catalog, Format().policies())
    chosen = {table.name: table.is_binary for table, _ in tables}
    kinds = dict(zip(names, (*VALUES, *AS_TEXT), strict=True))
    assert {kinds[name] for name, is_binary in chosen.items() if is_binary} == VALUES.keys()
    assert not chosen["mixed"]


def test_rows_are_copied_in_binary(postgres: PostgresServer, database: str, new_daemon: NewDaemon) -> None:
    run_script(
        postgres.dsn(database),
        "CREATE TABLE t (id int PRIMARY KEY)",
        "INSERT INTO t SELECT generate_series(1, 10)",
    )
    with (
        new_daemon(postgres, database) as daemon,
        postgres.session(dbname=database) as execute,
    ):
        daemon.config["snapshot"] = {
            "overrides": [{"table": r"public\.t", "where": "pg_sleep(1) IS NOT NULL"}]
        }
        daemon.start()
        seen = eventually(
            lambda: execute(
                "SELECT query FROM pg_stat_activity WHERE query LIKE 'COPY (%' AND state = 'active'"
            ),
            "a COPY runs",
            pause_s=0.01,
        )
        assert seen[0][0].endswith("TO STDOUT (FORMAT binary)")
