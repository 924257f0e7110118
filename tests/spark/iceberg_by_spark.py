"""Spark's own Iceberg reads the tables of a mirror, as of each commit as PostgreSQL has them.

`make spark-matrix` runs this file by its name, in a process of its own, with the Spark for which Iceberg has a
release: the JVM gets its jar when it starts. The other tests have a session without jars.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.postgres import PostgresServer
from cdcd.demo.stack.registry import SchemaRegistry
from cdcd.escaped_names import unescape
from cdcd.spark.clients.connection import Connection, RegistryAccess
from cdcd.spark.reading.mirror import Mirror, read_mirror
from cdcd.spark.session import session
from cdcd.spark.target.shape import KEY
from tests.bench.spark.jars import submit_with_iceberg
from tests.spark.batches import TOPIC, Batches
from tests.spark.events import column
from tests.spark.foreign_readers import FOLDER, PyIceberg
from tests.spark.test_plain_views import HISTORY, assert_equal, daemon, reach
from tests.spark.unit.test_open_tables import mirrored, newest, normalised, row
from tests.spark.unit.test_plain_views import EVERY_TYPE
from tests.support.daemon import Daemon, await_confirmed
from tests.support.stack import run

ID, BODY = column("id", "int", required=True), column("body", "string")
__all__ = ["daemon"]


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Return a session with Iceberg on its class path."""
    submit_with_iceberg()
    running = session("cdcd iceberg", "2", memory="1g", shuffle_partitions=2)
    yield running
    running.stop()


def read(spark: SparkSession, path: Path | str) -> pa.Table:
    return spark.read.format("iceberg").load(str(path)).toArrow().drop_columns([KEY])


def in_catalog(spark: SparkSession, catalog: str, items: Batches) -> str:
    """Return the name of the table in a new catalog, which is a name for the mirror's folder."""
    spark.conf.set(f"spark.sql.catalog.{catalog}", "org.apache.iceberg.spark.SparkCatalog")
    spark.conf.set(f"spark.sql.catalog.{catalog}.type", "hadoop")
    spark.conf.set(f"spark.sql.catalog.{catalog}.warehouse", str(items.target))
    return f"{catalog}.`{FOLDER}`"


def of_tables(spark: SparkSession, opened: Mirror) -> dict[str, pa.Table]:
    """Return the rows of all tables by their names in the schema public."""
    prefix = f"{opened.version.prefix}.public."
    return {
        unescape(topic.removeprefix(prefix)): read(spark, opened.iceberg_table(topic))
        for topic in opened.topics
    }


@pytest.mark.timeout(1200)
def test_spark_reads_the_rows_of_the_database(
    spark: SparkSession,
    daemon: Daemon,
    postgres: PostgresServer,
    database: str,
    kafka: KafkaBroker,
    registry: SchemaRegistry,
    tmp_path: Path,
) -> None:
    connection = Connection(kafka.bootstrap, daemon.name, registry=RegistryAccess(registry.url))
    for statements in HISTORY:
        run(postgres, database, *statements)
        await_confirmed(postgres, daemon)
        opened = reach(spark, connection, tmp_path / "it's a lake", "iceberg")
        assert_equal(postgres.dsn(database), of_tables(spark, opened))


def test_every_type_and_a_name_in_a_catalog(spark: SparkSession, tmp_path: Path) -> None:
    items = Batches(tmp_path / "mirror", [ID, BODY], table_format="iceberg")
    items.run([items.change("r", 10, n + 1, after=row(n, "first")) for n in range(9)], loading=False)
    items.alter([ID, BODY, *(column(name, avro) for name, (avro, _) in EVERY_TYPE.items())])
    values = {name: value for name, (_, value) in EVERY_TYPE.items()}
    items.run([items.change("u", 20, 1, after=row(1, "changed") | values)], loading=False)
    found = PyIceberg().newest(items.target).drop_columns([KEY])
    assert normalised(read(spark, items.target / FOLDER)) == normalised(found)
    table = in_catalog(spark, "shop", items)
    assert normalised(spark.sql(f"SELECT * FROM {table}").toArrow()) == normalised(found)
    labels = spark.sql(
        f"SELECT summary['cdcd.version'] FROM {table}.snapshots ORDER BY committed_at"
    ).collect()
    assert int(labels[-1][0]) == read_mirror(items.target).version.number


@pytest.mark.parametrize(
    ("catalog", "statement"),
    [
        ("rows", "INSERT INTO {table} SELECT * FROM {table} LIMIT 2"),
        ("columns", "ALTER TABLE {table} ADD COLUMN more int"),
        ("format", "ALTER TABLE {table} SET TBLPROPERTIES ('format-version' = '3')"),
    ],
)
def test_what_spark_changes_is_taken_back(
    spark: SparkSession, tmp_path: Path, catalog: str, statement: str
) -> None:
    items = Batches(tmp_path / "mirror", [ID, BODY], table_format="iceberg")
    items.run([items.change("r", 10, n + 1, after=row(n, "first")) for n in range(9)], loading=False)
    rows = mirrored(items.target)
    table = in_catalog(spark, catalog, items)
    spark.sql(statement.format(table=table))
    assert (items.target / FOLDER / "metadata" / "v2.metadata.json").exists()
    with items.mirror():
        assert newest(items) == mirrored(items.target) == rows
    items.run([items.change("u", 20, 1, after=row(1, "changed"))], loading=False)
    assert normalised(read(spark, items.target / FOLDER)) == mirrored(items.target) != rows
    assert read_mirror(items.target).rows(TOPIC) == 9
