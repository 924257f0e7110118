"""A mirror's policies for columns, where Spark's tasks fold the batches, and with a real daemon."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import psycopg2
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from cdcd.demo.compare import compare_table, report
from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.postgres import PostgresServer
from cdcd.demo.stack.registry import SchemaRegistry
from cdcd.spark.clients.connection import Connection, RegistryAccess
from cdcd.spark.mirroring.records import Records, RecordsInSpark
from cdcd.spark.mirroring.verify import verify
from cdcd.spark.reading.row_history import history
from cdcd.spark.target.versions import TableFormat
from tests.spark.batches import BUCKETS
from tests.spark.running_mirrors import MirrorInSession, await_all
from tests.spark.unit.test_column_policies import BOTH, Mirrored, Model, write
from tests.support.daemon import STREAM_ONLY, Daemon, await_confirmed
from tests.support.nightly import nightly
from tests.support.stack import PostgresServers, drop_database, new_database_name, run


@pytest.mark.parametrize("has_key", [True, False], ids=["key", "no key"])
@pytest.mark.parametrize("table_format", ["parquet", nightly("delta"), nightly("iceberg")])
def test_tasks_give_the_table_that_the_driver_gives(
    spark: SparkSession, tmp_path: Path, has_key: bool, table_format: TableFormat
) -> None:
    def in_tasks(records: pa.Table) -> Records:
        return RecordsInSpark(spark.createDataFrame(records), BUCKETS)

    model = Model(random.Random(7), BOTH)
    items = Mirrored(
        *(tmp_path / "t", *model.fields()), policies=BOTH, has_key=has_key, table_format=table_format
    )
    items.batches.records = in_tasks
    for number in range(40):
        if model.chosen.random() < 0.3:
            model.alter()
            items.alter(*model.fields())
        write(items, model)
        if number % 20 == 19:
            items.apply()
    assert items.rows() == model.expected()
    assert model.retained, "columns were dropped"


@pytest.fixture
def source(pg_server: PostgresServers) -> PostgresServer:
    return pg_server(18)


@pytest.fixture
def database_there(source: PostgresServer) -> Iterator[str]:
    name = new_database_name()
    source.create_database(name)
    yield name
    drop_database(source, name)


BEFORE = (
    'CREATE TABLE dropped (id int PRIMARY KEY, a text, b text, "A b" int)',
    "CREATE TABLE typed (id int PRIMARY KEY, n int, at timestamp)",
    "INSERT INTO dropped SELECT n, 'a' || n, 'b' || n, n FROM generate_series(1, 9) n",
    "INSERT INTO typed SELECT n, n, timestamp '2026-01-01' + n * interval '1 day' FROM generate_series(1, 9) n",
    "CREATE TABLE saved AS SELECT * FROM dropped",
    "CREATE TABLE saved_typed AS SELECT * FROM typed",
)
DDL = (
    'ALTER TABLE dropped DROP a, DROP "A b"',
    "INSERT INTO dropped VALUES (10, 'new')",
    "ALTER TABLE dropped RENAME b TO c",
    'ALTER TABLE dropped ADD "A" int',
    "UPDATE dropped SET c = 'changed', \"A\" = id WHERE id IN (1, 2)",
    "DELETE FROM dropped WHERE id = 3",
    "INSERT INTO dropped VALUES (11, 'new', 11)",
    "ALTER TABLE typed ALTER n TYPE text USING 'n' || n, ALTER at TYPE date",
    "INSERT INTO typed VALUES (10, 'ten', '2027-01-01')",
    "UPDATE typed SET n = 'changed' WHERE id IN (1, 2)",
    "DELETE FROM typed WHERE id = 3",
)
AFTER = (
    """CREATE TABLE dropped_there AS
       SELECT t.id, t.c, t."A", CASE WHEN t.id NOT IN (1, 2) THEN s.a END a__2,
              CASE WHEN t.id NOT IN (1, 2) THEN s."A b" END "A b"
         FROM dropped t LEFT JOIN saved s USING (id)""",
    "ALTER TABLE dropped_there ADD PRIMARY KEY (id)",
    """CREATE TABLE typed_there AS
       SELECT t.id, CASE WHEN t.id IN (1, 2, 10) THEN t.n END n, CASE WHEN t.id IN (1, 2, 10) THEN t.at END at,
              CASE WHEN t.id NOT IN (1, 2) THEN s.n END n__2, CASE WHEN t.id NOT IN (1, 2) THEN s.at END at__3
         FROM typed t LEFT JOIN saved_typed s USING (id)""",
    "ALTER TABLE typed_there ADD PRIMARY KEY (id)",
)
"""What the mirror has to have, as PostgreSQL says it: values of a row from before, unless it was written since."""


@pytest.mark.parametrize("table_format", ["parquet", nightly("delta"), nightly("iceberg")])
def test_a_mirror_of_a_real_database_has_the_values_that_postgresql_had(
    spark: SparkSession,
    source: PostgresServer,
    database_there: str,
    kafka: KafkaBroker,
    registry: SchemaRegistry,
    tmp_path: Path,
    table_format: TableFormat,
) -> None:
    name, dsn = f"columns{os.getpid()}{table_format}", source.dsn(database_there)
    execute = partial(run, source, database_there)
    execute(*BEFORE, f"CREATE PUBLICATION cdcd_{name} FOR TABLE dropped, typed")
    daemon = Daemon(tmp_path / "cdcd", name, dsn=dsn, bootstrap=kafka.bootstrap, registry_url=registry.url)
    daemon.config["registry"]["incompatible"] = "register_with_none"
    daemon.config["snapshot"] = dict(STREAM_ONLY)  # a copy would replace the former values
    policies = {"dropped_columns": "keep", "changed_types": "new_column", "format": table_format}
    with daemon:
        daemon.start().wait_state("streaming")
        mirror = MirrorInSession(
            *(spark, tmp_path, daemon, kafka, registry), stored_as_scd_type=2, **policies
        )
        try:
            await_confirmed(source, daemon, 120)
            await_all(mirror, kafka.bootstrap)
            execute(*DDL)
            await_confirmed(source, daemon, 120)
            await_all(mirror, kafka.bootstrap)
        finally:
            mirror.stop()
        assert daemon.stop() == 0
    execute(*AFTER)
    read = partial(mirror.tables.read, "public")
    with closing(psycopg2.connect(dsn)) as there:
        found = [compare_table(there, "public", f"{one}_there", read(one)) for one in ("dropped", "typed")]
    assert report(found) == []
    assert [one.mirror_rows for one in found] == [10, 9]
    lines = history(spark, mirror.target, "public.dropped").where("id = 1").orderBy("__start_at").collect()
    assert [(one["a__2"], one["c"]) for one in lines] == [("a1", "b1"), (None, "changed")]
    connection = Connection(kafka.bootstrap, name, registry=RegistryAccess(registry.url))
    verified = {one.topic.rpartition(".")[2]: one for one in verify(spark, connection, str(mirror.target))}
    assert (verified["dropped"].status, verified["dropped"].reason) == ("equal", "")
    assert verified["typed"].status == "unknown", "values of two types are not decoded into one column"
    assert "cannot be converted to their column" in verified["typed"].reason
