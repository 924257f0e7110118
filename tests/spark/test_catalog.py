"""Tables of a mirror in a catalog of Spark: always the newest rows, and no table of another owner is touched."""

from __future__ import annotations

import logging
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cdcd.demo.stack.s3 import S3Server
from cdcd.errors import EXIT_FAILURE, EXIT_OK, ConfigError
from cdcd.spark import drop_table, register, testing
from cdcd.spark.__main__ import main
from cdcd.spark.commands import register as register_command
from cdcd.spark.commands import running
from cdcd.spark.commands.running import EXIT_UNKNOWN
from cdcd.spark.commands.status import status_of
from cdcd.spark.data_source import CdcdDataSource
from cdcd.spark.mirroring.query import MirrorQuery
from cdcd.spark.mirroring.start import mirror
from cdcd.spark.reading.catalog_state import read_state
from cdcd.spark.reading.mirror import read_mirror
from cdcd.spark.session import reason_of, run_to_end
from cdcd.spark.storage.uri import open_storage
from tests.spark.conftest import Command
from tests.spark.events import Table, column
from tests.spark.topics import TopicsWriter, run_mirror
from tests.support.waiting import eventually

ITEMS = [column("id", "int", required=True), column("body", "string")]
CATALOG = "spark_catalog.shop"


@pytest.fixture(autouse=True)
def database(spark: SparkSession, tmp_path: Path) -> Iterator[None]:
    spark.sql(f"CREATE DATABASE shop LOCATION '{tmp_path / 'warehouse'}'")
    yield
    spark.sql("DROP DATABASE shop CASCADE")


def insert(topics: TopicsWriter, table: Table, lsn: int, **row: Any) -> None:
    topics.commit(lsn, topics.change(table, "c", lsn, 1, after=row))


def rows(spark: SparkSession, query: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in spark.sql(query).collect())


def metrics_of(query: MirrorQuery) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{query.metrics_port}/metrics", timeout=10) as answer:
        return str(answer.read().decode())


def errors_of(target: str | Path) -> dict[str, str]:
    state = read_state(open_storage(target))
    assert state is not None
    return state.errors


def test_a_running_mirror_registers_each_table_and_sql_has_the_newest_rows(
    spark: SparkSession, topics: TopicsWriter, target: Path
) -> None:
    """Tables and columns that come later are there, too; a query of a registered table changes nothing."""
    items = topics.table("items", ITEMS)
    insert(topics, items, 10, id=1, body="it's")
    topics.wait_until_visible()
    query = mirror(spark, topics.connection, str(target), trigger="0 seconds", catalog=CATALOG)
    try:
        eventually(lambda: spark.catalog.tableExists("shop.public_items"), "registered")
        assert rows(spark, "SELECT id, body FROM shop.public_items") == [(1, "it's")]
        insert(topics, items, 20, id=2, body=None)
        eventually(lambda: rows(spark, "SELECT id FROM shop.public_items") == [(1,), (2,)], "the new row")

        wider = Table(items.topic, [*ITEMS, column("size", "long")], items.key, items.registry_url)
        insert(topics, wider, 30, id=3, body="c", size=7)
        later = topics.table("later", [ITEMS[0], column("n", "long")])
        insert(topics, later, 40, id=1, n=5)
        eventually(lambda: spark.catalog.tableExists("shop.public_later"), "the later table")
        eventually(lambda: "size" in spark.table("shop.public_items").columns, "the later column")
        assert rows(spark, "SELECT size FROM shop.public_items WHERE id = 3") == [(7,)]
        assert rows(spark, "SELECT n FROM shop.public_later") == [(5,)]
    finally:
        query.stop()
    below = [row["tableName"] for row in spark.sql("SHOW TABLES IN shop").collect()]
    assert sum(name.startswith("_cdcd_public_items_") for name in below) == 1, (
        "no table of former columns is left"
    )
    assert errors_of(target) == {}
    shown = status_of(read_mirror(target), 0.0)["catalog"]
    assert (shown["name"], len(shown["registered"]), shown["errors"]) == (CATALOG, 2, {})


def test_a_table_of_another_owner_remains_and_the_mirror_goes_on(
    spark: SparkSession, topics: TopicsWriter, target: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The error is in the log, in the status and in the metrics; the other tables are registered."""
    spark.sql("CREATE VIEW shop.public_items AS SELECT 'ours' AS owner")
    items, others = topics.table("items", ITEMS), topics.table("others", ITEMS)
    insert(topics, items, 10, id=1, body="a")
    insert(topics, others, 20, id=2, body="b")
    topics.wait_until_visible()
    with caplog.at_level(logging.ERROR, "cdcd.spark.reading.catalog"):
        opened = run_mirror(spark, topics, target, catalog=CATALOG)
    assert opened.topics == sorted([items.topic, others.topic])
    assert rows(spark, "SELECT * FROM shop.public_items") == [("ours",)]
    assert rows(spark, "SELECT id FROM shop.public_others") == [(2,)]
    assert errors_of(target)[items.topic].startswith(
        "CDCD-CATALOG: the catalog has another table of this name"
    )
    assert "another table of this name" in caplog.text

    spark.sql("DROP VIEW shop.public_items")
    state = register(spark, str(target), catalog=CATALOG)
    assert state is not None
    assert state.errors == {}
    assert rows(spark, "SELECT id FROM shop.public_items") == [(1,)]


def test_another_target_does_not_take_over_a_name(
    spark: SparkSession, topics: TopicsWriter, target: Path, tmp_path: Path
) -> None:
    insert(topics, topics.table("items", ITEMS), 10, id=1, body="a")
    run_mirror(spark, topics, target, catalog=CATALOG)
    run_mirror(spark, topics, tmp_path / "other", catalog=CATALOG)
    assert len(errors_of(tmp_path / "other")) == 1
    assert register(spark, str(target), catalog=CATALOG) is not None
    assert errors_of(target) == {}


def test_a_catalog_without_the_database_stops_no_mirror(
    spark: SparkSession, topics: TopicsWriter, target: Path
) -> None:
    """It is tried again, and succeeds as soon as the database is there."""
    items = topics.table("items", ITEMS)
    insert(topics, items, 10, id=1, body="a")
    topics.wait_until_visible()
    query = mirror(
        *(spark, topics.connection, str(target)),
        trigger="0 seconds",
        catalog="spark_catalog.later",
        metrics_port=0,
    )
    try:
        eventually(
            lambda: 'cdcd_mirror_catalog_tables{state="failed"} 1.0' in metrics_of(query), "an attempt"
        )
        assert "SCHEMA_NOT_FOUND" in errors_of(target)[items.topic]
        spark.sql("CREATE DATABASE later")
        eventually(lambda: errors_of(target) == {}, "registered")
        eventually(
            lambda: 'cdcd_mirror_catalog_tables{state="registered"} 1.0' in metrics_of(query), "the metric"
        )
        assert rows(spark, "SELECT id FROM later.public_items") == [(1,)]
    finally:
        query.stop()
        spark.sql("DROP DATABASE IF EXISTS later CASCADE")


@pytest.mark.nightly
def test_delta_tables_without_deltas_package_are_an_error_that_is_shown(
    spark: SparkSession, topics: TopicsWriter, target: Path
) -> None:
    items = topics.table("items", ITEMS)
    insert(topics, items, 10, id=1, body="a")
    opened = run_mirror(spark, topics, target, catalog=CATALOG, format="delta")
    assert opened.topics == [items.topic]
    assert "CDCD-CATALOG" in errors_of(target)[items.topic]


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_a_mirror_in_a_bucket_has_references_to_secrets_in_the_catalog(
    spark: SparkSession, topics: TopicsWriter, s3: S3Server, bucket: str
) -> None:
    insert(topics, topics.table("items", ITEMS), 10, id=1, body="a")
    options = s3.options()
    topics.wait_until_visible()
    start = partial(mirror, spark, topics.connection, f"{bucket}/m", catalog=CATALOG, target_options=options)
    assert run_to_end(start) is None
    assert rows(spark, "SELECT id FROM shop.public_items") == [(1,)]
    text = str(spark.sql("DESCRIBE TABLE EXTENDED shop.public_items").collect())
    assert options["secret_access_key"] in text
    assert s3.password not in text


def test_loading_and_parked_tables_are_read_only_on_request(
    spark: SparkSession, topics: TopicsWriter, target: Path
) -> None:
    items = topics.table("items", ITEMS)
    insert(topics, items, 10, id=1, body="a")
    run_mirror(spark, topics, target, catalog=CATALOG)
    special = {"gap.from_lsn": "0/42", "gap.to_lsn": "0/46", "gap.reason": "CDCD-SLOT-LOST"}
    topics.commit(70, topics.change(items, "g", 70, 1, special=special))
    with pytest.raises(Exception, match="parked"):
        run_mirror(spark, topics, target, on_error="park", catalog=CATALOG)
    with pytest.raises(Exception, match="CDCD-MIRROR-PARKED") as raised:
        spark.table("shop.public_items").collect()
    assert "CDCD-MIRROR-PARKED" in reason_of(raised.value)
    options = {"target": str(target), "table": "public.items", "parked": "true"}
    assert [row["id"] for row in spark.read.format("cdcd").options(**options).load().collect()] == [1]


def test_the_source_reads_a_table_of_a_mirror_as_of_a_commit(
    spark: SparkSession, topics: TopicsWriter, target: Path
) -> None:
    register(spark)
    items = topics.table("items", ITEMS)
    for number in (1, 2):
        insert(topics, items, number * 10, id=number, body="x")
        run_mirror(spark, topics, target)
    read = spark.read.format("cdcd").option("target", str(target)).option("table", "public.items")
    assert sorted(row["id"] for row in read.load().collect()) == [1, 2]
    assert [row["id"] for row in read.option("at", "0/A").load().collect()] == [1]


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"tabel": "public.items"}, "did you mean table"),
        ({}, "set the option table"),
        ({"table": "public.x", "parked": "yes"}, "parked has to be true or false"),
    ],
)
def test_wrong_options_of_a_mirrored_table(spark: SparkSession, more: dict[str, str], text: str) -> None:
    register(spark)
    with pytest.raises(Exception, match=text):
        spark.read.format("cdcd").options(target="/nowhere", **more).load()


def test_a_stream_of_a_mirror_is_refused(spark: SparkSession, topics: TopicsWriter, target: Path) -> None:
    register(spark)
    insert(topics, topics.table("items", ITEMS), 10, id=1, body="a")
    run_mirror(spark, topics, target)
    source = CdcdDataSource({"target": str(target), "table": "public.items"})
    with pytest.raises(ConfigError, match="a mirror cannot be read as a stream"):
        source.streamReader(source.schema())  # type: ignore[arg-type]


@pytest.mark.parametrize("catalog", ["", "shop..x", "a.`b`"])
def test_a_catalog_that_is_no_namespace_is_refused_at_the_start(
    spark: SparkSession, topics: TopicsWriter, target: Path, catalog: str
) -> None:
    with pytest.raises(ConfigError, match="not a namespace of Spark"):
        mirror(spark, topics.connection, str(target), catalog=catalog)


def test_the_commands_refuse_a_catalog_that_ends_with_them(
    spark: SparkSession,
    topics: TopicsWriter,
    target: Path,
    command: Command,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(register_command, "submitted_or_local", running.submitted_or_local)
    insert(topics, topics.table("items", ITEMS), 10, id=1, body="a")
    words = ["--target", str(target), "--catalog", CATALOG]
    assert main(["register", *words]) == EXIT_UNKNOWN
    assert command("mirror", *words, "--available-now") == EXIT_FAILURE
    assert caplog.text.count("ends with it") == 2
    run_mirror(spark, topics, target)
    monkeypatch.setattr(register_command, "lasting", lambda spark, _: spark)
    assert main(["register", *words]) == EXIT_OK
    assert rows(spark, "SELECT id FROM shop.public_items") == [(1,)]


def test_a_name_that_another_table_has_now_is_not_removed(
    spark: SparkSession, topics: TopicsWriter, target: Path
) -> None:
    """Two tables whose names differ in case only have one name in a catalog; one of them is dropped."""
    tables = [topics.table(name, ITEMS) for name in ("things", "Things")]
    for number, table in enumerate(tables, 1):
        insert(topics, table, number * 10, id=number, body="a")
    run_mirror(spark, topics, target, catalog=CATALOG)
    assert len(errors_of(target)) == 2
    drop_table(target, "public.Things")
    register(spark, str(target), catalog=CATALOG)
    assert errors_of(target) == {}
    assert rows(spark, "SELECT id FROM shop.public_things") == [(1,)]


def test_a_table_that_is_named_like_those_below_the_views_remains(
    spark: SparkSession, topics: TopicsWriter, target: Path
) -> None:
    spark.sql("CREATE TABLE shop._cdcd_public_items_20261128 USING parquet AS SELECT 'ours' AS owner")
    insert(topics, topics.table("items", ITEMS), 10, id=1, body="a")
    run_mirror(spark, topics, target, catalog=CATALOG)
    assert rows(spark, "SELECT id FROM shop.public_items") == [(1,)]
    assert rows(spark, "SELECT * FROM shop._cdcd_public_items_20261128") == [("ours",)]


VARIABLE = "${spark.app.name}"
VARIABLES = {
    "a column": testing.Table("public.items", {"id": "bigint", VARIABLE: "text"}, key=["id"]),
    "the name": testing.Table(f"public.{VARIABLE}", {"id": "bigint"}, key=["id"]),
    "an unknown variable": testing.Table("public.items", {"id": "bigint", "${price}": "text"}, key=["id"]),
}


@pytest.mark.parametrize("table", VARIABLES.values(), ids=VARIABLES)
def test_no_name_in_the_catalog_is_replaced_by_the_value_of_a_variable(
    spark: SparkSession, tmp_path: Path, table: testing.Table
) -> None:
    """Whoever names a column would read the environment of the driver, in a catalog that others read."""
    others = testing.Table("public.others", {"id": "bigint"}, key=["id"])
    shop = testing.Database(table, others)
    shop.commit(table.insert(id=1), others.insert(id=2))
    shop.mirror(tmp_path / "mirror")
    register(spark, str(tmp_path / "mirror"), catalog=CATALOG)
    (error,) = errors_of(tmp_path / "mirror").values()
    assert ("${" in error, "CDCD-CATALOG" in error) == (True, True), error
    names = {row["tableName"] for row in spark.sql("SHOW TABLES IN shop").collect()}
    assert {one for one in names if not one.startswith("_cdcd")} == {"public_others"}
    assert not [one for one in names if "items" in one]


def test_a_view_that_an_earlier_version_has_registered_with_replaced_names_is_removed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, target = VARIABLES["a column"], str(tmp_path / "mirror")
    shop = testing.Database(table)
    shop.commit(table.insert(id=1))
    shop.mirror(target)
    with monkeypatch.context() as patched:
        patched.setattr("cdcd.spark.reading.catalog.substitutes", lambda session: False)
        register(spark, target, catalog=CATALOG)
    columns = [one.name for one in spark.catalog.listColumns("shop.public_items")]
    assert (len(columns), VARIABLE in columns) == (3, False), "the name of the column is the variable's value"
    register(spark, target, catalog=CATALOG)
    assert spark.sql("SHOW TABLES IN shop").collect() == []
    assert list(errors_of(target)) == [table.topic]


def test_a_session_without_replacement_registers_any_name(spark: SparkSession, tmp_path: Path) -> None:
    table, target = (
        testing.Table("public.items", {"id": "bigint", VARIABLE: "text"}, key=["id"]),
        str(tmp_path),
    )
    shop = testing.Database(table)
    shop.commit(table.insert(id=1))
    shop.mirror(target)
    spark.conf.set("spark.sql.variable.substitute", "false")
    try:
        register(spark, target, catalog=CATALOG)
        assert errors_of(target) == {}
        assert rows(spark, f"SELECT id, `{VARIABLE}` FROM shop.public_items") == [(1, None)]
    finally:
        spark.conf.unset("spark.sql.variable.substitute")
