"""SQL views of a mirror of a real database: PostgreSQL compares what DuckDB and Spark read with its own tables."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import psycopg2
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from cdcd.demo.compare import compare_table
from cdcd.demo.mirrored import Mirror as Position
from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.postgres import PostgresServer
from cdcd.demo.stack.registry import SchemaRegistry
from cdcd.demo.stack.s3 import S3Server
from cdcd.spark.clients.connection import Connection, RegistryAccess
from cdcd.spark.mirroring.start import mirror
from cdcd.spark.reading.mirror import Mirror, read_mirror
from cdcd.spark.reading.plain_views import plain_views, script_of
from cdcd.spark.session import run_to_end
from cdcd.spark.storage.uri import open_storage
from cdcd.spark.target.shape import SPECIAL
from cdcd.spark.target.versions import TableFormat
from cdcd.spark.testing import Database, Table
from tests.spark.batches import Batches
from tests.spark.events import column
from tests.spark.unit.test_open_tables import normalised
from tests.spark.unit.test_plain_views import EVERY_TYPE, ID, arrow, duck, mirrored, numbered
from tests.support.daemon import STREAM_ONLY, Daemon, await_confirmed
from tests.support.stack import run
from tests.support.waiting import eventually

ODD = 'Größe; "it\'s"'
QUOTED = ODD.replace('"', '""')
HISTORY = (
    (
        'CREATE TABLE items (id int PRIMARY KEY, name text, price numeric(12, 3), at timestamptz, "SELECT" int)',
        f'CREATE TABLE "{QUOTED}" (id int PRIMARY KEY, "{QUOTED}" text)',
        "CREATE TABLE bag (line text, n int)",
        "ALTER TABLE bag REPLICA IDENTITY FULL",
        "INSERT INTO items SELECT n, 'name ' || n, n / 7.0, timestamptz 'epoch' + n * interval '1 us', n "
        "FROM generate_series(1, 300) n",
        f"INSERT INTO \"{QUOTED}\" VALUES (1, 'it''s'), (2, NULL)",
        "INSERT INTO bag VALUES ('a', 1), ('a', 1), ('b', NULL)",
    ),
    (
        "UPDATE items SET name = 'changed', at = 'infinity' WHERE id % 10 = 0",
        "DELETE FROM items WHERE id % 7 = 0",
        "UPDATE items SET id = id + 1000 WHERE id < 4",
        "DELETE FROM bag WHERE line = 'b'",
        "INSERT INTO bag VALUES ('a', 1), ('c', 3)",
    ),
    (
        "ALTER TABLE items RENAME name TO title",
        'ALTER TABLE items ADD size bigint, ALTER "SELECT" TYPE bigint',
        "ALTER TABLE bag RENAME line TO text",
        "UPDATE items SET size = id * 10000000000, price = 'NaN' WHERE id > 290",
        'INSERT INTO items (id, "SELECT") VALUES (1, 1000000000000)',
        "UPDATE bag SET n = 9 WHERE text = 'c'",
        f'TRUNCATE "{QUOTED}"',
        f"INSERT INTO \"{QUOTED}\" VALUES (3, 'after')",
    ),
    (
        "ALTER TABLE items DROP price, DROP at",
        "ALTER TABLE items ADD price numeric(12, 3)",
        "UPDATE items SET price = 1.125 WHERE id < 100",
        "DELETE FROM items WHERE id > 290",
        "INSERT INTO bag VALUES ('d', 4)",
    ),
)
NAMES = ("items", ODD, "bag")


@pytest.fixture
def daemon(
    tmp_path: Path, postgres: PostgresServer, database: str, kafka: KafkaBroker, registry: SchemaRegistry
) -> Iterator[Daemon]:
    """Yield a daemon that streams all tables of a new database."""
    name = f"views{os.getpid()}"
    run(postgres, database, f"CREATE PUBLICATION cdcd_{name} FOR ALL TABLES")
    with Daemon(
        *(tmp_path / "cdcd", name),
        dsn=postgres.dsn(database),
        bootstrap=kafka.bootstrap,
        registry_url=registry.url,
        snapshot=STREAM_ONLY,
    ) as running:
        running.start().wait_state("streaming")
        yield running


def reach(spark: SparkSession, connection: Connection, target: Path, table_format: TableFormat) -> Mirror:
    """Run the mirror until it has all commits."""
    position = Position(target, connection.prefix)

    def has_all() -> bool:
        end = position.end(connection.brokers)
        failure = run_to_end(
            partial(mirror, spark, connection, str(target), format=table_format, on_error="fail")
        )
        assert failure is None, failure
        return position.has_reached(end)

    eventually(has_all, "the mirror has all commits", 300)
    return read_mirror(target)


def assert_equal(dsn: str, names: dict[str, pa.Table]) -> None:
    with closing(psycopg2.connect(dsn)) as connection:
        for name, rows in names.items():
            outcome = compare_table(connection, "public", name, rows)
            assert outcome.is_equal, (name, outcome)
            assert outcome.mirror_rows, name


def of_spark(spark: SparkSession, opened: Mirror) -> dict[str, pa.Table]:
    """Make the views in Spark; return their rows by the tables' names."""
    found = {}
    for view in plain_views(opened, "spark"):
        assert view.statement is not None, view
        spark.sql(view.statement)
        name = "`" + view.name.replace("`", "``") + "`"
        found[view.table.removeprefix("public.")] = spark.sql(f"SELECT * FROM {name}").toArrow()
    return found


def of_duckdb(opened: Mirror) -> dict[str, pa.Table]:
    found = {}
    for view in plain_views(opened):
        name = '"' + view.name.replace('"', '""') + '"'
        found[view.table.removeprefix("public.")] = arrow(opened, name)
    return found


@pytest.mark.timeout(1200)
def test_the_views_have_the_rows_of_the_database(
    spark: SparkSession,
    daemon: Daemon,
    postgres: PostgresServer,
    database: str,
    kafka: KafkaBroker,
    registry: SchemaRegistry,
    tmp_path: Path,
) -> None:
    connection = Connection(kafka.bootstrap, daemon.name, registry=RegistryAccess(registry.url))
    dsn = postgres.dsn(database)
    for statements in HISTORY:
        run(postgres, database, *statements)
        await_confirmed(postgres, daemon)
        of_parquet = reach(spark, connection, tmp_path / "it's parquet", "parquet")
        assert {view.table for view in plain_views(of_parquet)} == {f"public.{name}" for name in NAMES}
        assert_equal(dsn, of_duckdb(of_parquet))
        if statements in HISTORY[2:]:  # Spark takes seconds to plan views of many files
            assert_equal(dsn, of_spark(spark, of_parquet))
        for table_format in ("delta", "iceberg"):
            assert_equal(dsn, of_duckdb(reach(spark, connection, tmp_path / table_format, table_format)))


def test_sparks_dialect_has_any_names_paths_and_types(spark: SparkSession, tmp_path: Path) -> None:
    names = [
        'quote"',
        "apostrophe'",
        "back`tick",
        "semicolon;--",
        "back\\slash",
        "Größe",
        "SELECT",
        "a.b",
        "c1",
    ]
    odd = {
        f"n{place}": column(f"n{place}", "string", **{"pg.name": name}) for place, name in enumerate(names)
    }
    folder = tmp_path / "it's [a] *`?{b}'%20\\n"
    folder.mkdir()
    items = Batches(folder / "mirror", [ID, *odd.values()])
    texts = {name: f"value of {name}" for name in odd}
    items.run([items.change("r", 10, 1, after={"id": 1, **texts})], loading=False)
    items.alter([ID, *odd.values(), *(column(name, avro) for name, (avro, _) in EVERY_TYPE.items())])
    values = {name: value for name, (_, value) in EVERY_TYPE.items()}
    items.run([items.change("c", 20, 1, after={"id": 2, **texts, **values})], loading=False)
    opened = read_mirror(items.target)
    (found,) = of_spark(spark, opened).values()
    assert normalised(found) == mirrored(opened)


def test_sparks_dialect_follows_a_column_through_its_names(spark: SparkSession, tmp_path: Path) -> None:
    odd = column("n", "string", **{"pg.name": "it's\\", "pg.attnum": 2})
    items = Batches(tmp_path / "mirror", [numbered("id", 1, "int"), odd, numbered("b", 3)])
    special = {"after.it's\\": "infinity", "after.b": "-infinity"}
    items.run(
        [items.change("r", 10, 1, after={"id": 1, "n": None, "b": None}, special=special)], loading=False
    )
    items.alter([numbered("id", 1, "int"), numbered("b", 2)])
    items.run([items.change("c", 20, 1, after={"id": 2, "b": "x"})], loading=False)
    first, *_ = rows = mirrored(read_mirror(items.target))
    assert dict(first[SPECIAL]) == {"b": "infinity"}
    (found,) = of_spark(spark, read_mirror(items.target)).values()
    assert normalised(found) == rows
    items.run([items.change("t", 30, 1)], loading=False)
    (found,) = of_spark(spark, read_mirror(items.target)).values()
    assert (found.column_names, found.num_rows) == (["id", "b", SPECIAL], 0)


@pytest.mark.nightly
@pytest.mark.timeout(1200)  # the S3 server is built at its first use on a host
@pytest.mark.parametrize("folder", ["it's a lake", "a[1]", "st*r?", "size=7", "plus+hash#"])
def test_duckdb_reads_the_views_of_a_bucket(s3: S3Server, bucket: str, folder: str) -> None:
    items = Table("public.items", {"id": "bigint", "body": "text"}, key=["id"])
    shop = Database(items)
    lake = open_storage(f"{bucket}/{folder}", s3.options())
    shop.commit(*(items.insert(id=number, body="first") for number in range(50)))
    shop.mirror(lake)
    shop.commit(items.update(id=1, body="changed"), items.delete(id=2))
    opened = shop.mirror(lake)
    with duck("httpfs") as connection:
        endpoint = s3.url.removeprefix("http://")
        connection.execute(
            f"CREATE OR REPLACE SECRET (TYPE s3, KEY_ID '{s3.user}', SECRET '{s3.password}', "
            f"ENDPOINT '{endpoint}', USE_SSL false, URL_STYLE 'path', REGION 'us-east-1')"
        )
        connection.execute("\n".join(script_of(opened, plain_views(opened), time.time())))
        found = connection.execute("SELECT * FROM public_items").to_arrow_table()
    assert normalised(found) == normalised(opened.table(items.topic))
    assert found.num_rows == 49
