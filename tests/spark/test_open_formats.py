"""A mirror with Delta or Iceberg tables from real topics: delta-rs and PyIceberg read the topics' rows."""

from __future__ import annotations

import threading
import time
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.table import StaticTable
from pyspark.sql import SparkSession

from cdcd.demo.stack.s3 import S3Server
from cdcd.errors import ConfigError, SparkReadError
from cdcd.spark import consistent_view, read_mirror
from cdcd.spark.formats.delta_log import DeltaLog
from cdcd.spark.formats.iceberg_log import IcebergLog
from cdcd.spark.mirroring.start import mirror
from cdcd.spark.reading.mirror import Mirror
from cdcd.spark.reading.plain_views import plain_views, script_of
from cdcd.spark.target.versions import TableFormat
from tests.spark.conftest import Command
from tests.spark.events import Table, column
from tests.spark.foreign_readers import READERS
from tests.spark.topics import TopicsWriter, rewind, rows_of, run_mirror
from tests.spark.unit.test_plain_views import duck
from tests.support.hdfs import HdfsServer
from tests.support.nightly import nightly_except
from tests.support.pages import python_blocks

ITEMS = [column("id", "int", required=True), column("body", "string")]
LOG = [column("line", "string")]
OPEN: tuple[TableFormat, ...] = ("delta", "iceberg")
Row = dict[str, Any]


def recorded_rows(opened: Mirror, table: Table) -> list[Row]:
    """Return what another reader finds at the version that the mirror names."""
    return plain(READERS[opened.version.table_format].recorded(opened, table.topic))


def newest_rows(target: Path, name: str, table_format: TableFormat) -> list[Row]:
    return plain(READERS[table_format].newest(target, f"public.{name}"))


def plain(found: pa.Table) -> list[Row]:
    return sorted(found.drop_columns(["__special", "__key"]).to_pylist(), key=repr)


def row(number: int, body: str = "first") -> Row:
    return {"id": number, "body": body}


@pytest.mark.parametrize(
    ("table_format", "driver_bytes"),
    nightly_except(product(OPEN, (1 << 20, 0)), ("delta", 0), ("iceberg", 1 << 20)),
)
def test_the_tables_are_equal_to_the_topics(
    spark: SparkSession,
    topics: TopicsWriter,
    target: Path,
    command: Command,
    table_format: TableFormat,
    driver_bytes: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The rows that Spark's tasks fold are in files, which the driver removes after it has committed them."""
    items, lines = topics.table("items", ITEMS), topics.table("lines", LOG, ())
    options = {"format": table_format, "driver_bytes": driver_bytes}
    expected = [row(number) for number in range(200)]
    copied = [topics.change(items, "r", 10, number, after=row(number)) for number in range(200)]
    copied += [topics.change(lines, "r", 10, 200 + number, after={"line": "a"}) for number in range(2)]
    topics.commit(10, [one for each in copied for one in each])
    opened = run_mirror(spark, topics, target, **options)
    assert recorded_rows(opened, items) == rows_of(opened, items) == sorted(expected, key=repr)
    assert recorded_rows(opened, lines) == [{"line": "a"}] * 2

    changed = [*topics.change(items, "u", 20, 1, after=row(0, "changed"))]
    changed += topics.change(items, "d", 20, 2, before=row(1))
    changed += topics.change(lines, "d", 20, 3, before={"line": "a"})
    topics.commit(20, changed)
    expected = sorted([row(0, "changed"), *expected[2:]], key=repr)
    for is_repeated in (False, True):
        if is_repeated:
            rewind(target)
        opened = run_mirror(spark, topics, target, **options)
        assert (
            recorded_rows(opened, items)
            == newest_rows(target, "items", table_format)
            == expected
            == rows_of(opened, items)
        )
        assert newest_rows(target, "lines", table_format) == [{"line": "a"}]
        assert not [*(target / "_data").rglob("*.parquet")]
    capsys.readouterr()
    assert command("verify", "--target", str(target), "--table", "public.items") == 0
    assert "equal, 199 rows in the topic, 199 in the mirror" in capsys.readouterr().out
    view = consistent_view(spark, str(target), at=10)
    assert view.table("public.items").count() == 200
    assert len(recorded_rows(read_mirror(str(target), at=10), items)) == 200


@pytest.mark.parametrize("table_format", nightly_except(OPEN, "iceberg"))
def test_the_format_of_a_target_remains(
    spark: SparkSession, topics: TopicsWriter, target: Path, table_format: TableFormat
) -> None:
    items = topics.table("items", ITEMS)
    topics.commit(10, topics.change(items, "r", 10, 1, after=row(1)))
    opened = run_mirror(spark, topics, target, format=table_format)
    with pytest.raises(SparkReadError, match="another format"):
        run_mirror(spark, topics, target)
    assert recorded_rows(opened, items) == newest_rows(target, "items", table_format) == [row(1)]
    with pytest.raises(ConfigError, match=r"use .parquet. or .delta. or .iceberg."):
        mirror(spark, topics.connection, str(target), format="orc")  # type: ignore[arg-type]


@pytest.mark.parametrize("table_format", nightly_except(OPEN, "iceberg"))
def test_a_failure_between_the_commits_of_two_tables_changes_neither(
    spark: SparkSession,
    topics: TopicsWriter,
    target: Path,
    table_format: TableFormat,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    items, others = topics.table("items", ITEMS), topics.table("others", ITEMS)
    for lsn, body in ((10, "first"), (20, "second")):
        sent = [
            one for table in (items, others) for one in topics.change(table, "u", lsn, 1, after=row(1, body))
        ]
        topics.commit(lsn, sent)
        if lsn == 10:
            run_mirror(spark, topics, target, format=table_format)
    topics.wait_until_visible()
    with monkeypatch.context() as patched:
        fail_after_one(patched, IcebergLog if table_format == "iceberg" else DeltaLog)
        query = mirror(spark, topics.connection, str(target), format=table_format, on_error="fail")
        with pytest.raises(SparkReadError, match="the second commit"):
            query.awaitTermination()
    newest = [newest_rows(target, name, table_format) for name in ("items", "others")]
    assert sorted(newest, key=repr) == [[row(1, "first")], [row(1, "second")]]
    opened = read_mirror(str(target))
    assert [recorded_rows(opened, table) for table in (items, others)] == [[row(1, "first")]] * 2
    opened = run_mirror(spark, topics, target, format=table_format)
    newest = [newest_rows(target, name, table_format) for name in ("items", "others")]
    assert newest == [recorded_rows(opened, table) for table in (items, others)] == [[row(1, "second")]] * 2


def fail_after_one(monkeypatch: pytest.MonkeyPatch, log: Any) -> None:
    """Let one commit succeed, and each further one fail."""
    commit, place, done = log.commit, threading.Lock(), []

    def once(*arguments: Any, **options: Any) -> None:
        with place:
            if done:
                raise SparkReadError("the second commit")
            commit(*arguments, **options)
            done.append(True)

    monkeypatch.setattr(log, "commit", once)


@pytest.mark.parametrize("table_format", nightly_except(OPEN, "delta"))
def test_the_command_makes_the_tables(
    topics: TopicsWriter, target: Path, command: Command, table_format: TableFormat
) -> None:
    items = topics.table("items", ITEMS)
    topics.commit(10, topics.change(items, "r", 10, 1, after=row(1)))
    topics.wait_until_visible()
    assert command("mirror", "--target", str(target), "--format", table_format, "--available-now") == 0
    assert newest_rows(target, "items", table_format) == [row(1)]
    if table_format == "delta":  # the page's reader
        (text,) = python_blocks("docs/spark/mirror-formats.md")
        read: dict[str, Any] = {}
        exec(text.replace("/data/shop/public.orders", str(target / "public.items")), read)
        assert plain(read["rows"]) == [row(1)]


@pytest.mark.nightly
@pytest.mark.timeout(1200)  # the S3 server is built at its first use on a host
@pytest.mark.parametrize("table_format", OPEN)
def test_the_tables_in_a_bucket(
    spark: SparkSession, topics: TopicsWriter, s3: S3Server, bucket: str, table_format: TableFormat
) -> None:
    """Both read them with the options of the clouds' own tools, or their own."""
    items = topics.table("items", ITEMS)
    options = s3.options()
    secret = Path(options["secret_access_key"].removeprefix("file:")).read_text()
    lake, of_mirror = f"{bucket}/it's a lake", {"format": table_format, "target_options": options}
    topics.commit(
        10, [one for number in range(50) for one in topics.change(items, "r", 10, number, after=row(number))]
    )
    expected = [row(number) for number in range(50)]
    for lsn in (20, 30, 40):
        run_mirror_in(spark, topics, lake, of_mirror)
        opened = read_mirror(lake, options)
        found = rows_in_bucket(opened, items, options | {"secret_access_key": secret})
        assert found == rows_of(opened, items) == sorted(expected, key=repr)
        if table_format == "iceberg":
            assert rows_by_duckdb(opened, s3) == found
        expected[lsn] = row(lsn, "changed")
        topics.commit(lsn, topics.change(items, "u", lsn, 1, after=row(lsn, "changed")))


@pytest.mark.nightly
@pytest.mark.timeout(1200)  # the jars of HDFS are fetched at their first use on a host
@pytest.mark.parametrize("table_format", OPEN)
def test_the_tables_in_hdfs(
    spark: SparkSession, topics: TopicsWriter, hdfs: HdfsServer, table_format: TableFormat
) -> None:
    """PyIceberg reads HDFS by libhdfs only, so Iceberg's are read by the mirror's own log."""
    items, options = topics.table("items", ITEMS), hdfs.options()
    lake = f"{hdfs.uri.rpartition('/')[0]}/{table_format}"  # delta-rs finds no path with a space
    of_mirror = {"format": table_format, "target_options": options}
    topics.commit(
        10, [one for number in range(50) for one in topics.change(items, "r", 10, number, after=row(number))]
    )
    expected = [row(number) for number in range(50)]
    for lsn in (20, 30, 40):
        run_mirror_in(spark, topics, lake, of_mirror)
        opened = read_mirror(lake, options)
        if table_format == "delta":
            assert rows_in_bucket(opened, items, options) == sorted(expected, key=repr)
        assert rows_of(opened, items) == sorted(expected, key=repr)
        expected[lsn] = row(lsn, "changed")
        topics.commit(lsn, topics.change(items, "u", lsn, 1, after=row(lsn, "changed")))


def rows_in_bucket(opened: Mirror, table: Table, options: dict[str, str]) -> list[Row]:
    if opened.version.table_format == "iceberg":
        properties = {
            "s3.endpoint": options["endpoint"],
            "s3.region": options["region"],
            "s3.access-key-id": options["access_key_id"],
            "s3.secret-access-key": options["secret_access_key"],
        }
        return plain(
            StaticTable.from_metadata(opened.iceberg_table(table.topic), properties).scan().to_arrow()
        )
    uri, version = opened.delta_table(table.topic)
    return plain(DeltaTable(uri, version=version, storage_options=options).to_pyarrow_table())


def rows_by_duckdb(opened: Mirror, s3: S3Server) -> list[Row]:
    with duck("httpfs", "avro", "iceberg") as connection:
        endpoint = s3.url.removeprefix("http://")
        connection.execute(
            f"CREATE OR REPLACE SECRET (TYPE s3, KEY_ID '{s3.user}', SECRET '{s3.password}', ENDPOINT '{endpoint}', "
            "USE_SSL false, URL_STYLE 'path', REGION 'us-east-1')"
        )
        connection.execute("\n".join(script_of(opened, plain_views(opened), time.time())))
        found = connection.execute("SELECT id, body FROM public_items").to_arrow_table()
    return sorted(found.to_pylist(), key=repr)


def run_mirror_in(spark: SparkSession, topics: TopicsWriter, lake: str, options: dict[str, Any]) -> None:
    topics.wait_until_visible()
    query = mirror(spark, topics.connection, lake, on_error="fail", **options)
    query.awaitTermination()
    assert query.exception() is None
