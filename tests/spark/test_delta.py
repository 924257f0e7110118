"""A mirror with Delta tables from real topics: delta-rs reads the rows that the topics have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from cdcd.demo.stack.s3 import S3Server
from cdcd.errors import ConfigError, SparkReadError
from cdcd.spark import consistent_view, read_mirror
from cdcd.spark.mirror_start import mirror
from cdcd.spark.reading import Mirror
from tests.spark.conftest import Command
from tests.spark.events import Table, column
from tests.spark.topics import TopicsWriter, rewind, rows_of, run_mirror

ITEMS = [column("id", "int", required=True), column("body", "string")]
LOG = [column("line", "string")]
Row = dict[str, Any]


def delta_rows(opened: Mirror, table: Table, options: dict[str, str] | None = None) -> list[Row]:
    """Return what delta-rs reads at the version that the mirror names."""
    uri, version = opened.delta_table(table.topic)
    found = DeltaTable(uri, version=version, storage_options=options).to_pyarrow_table()
    rows = found.drop_columns(["__special", "__key"]).to_pylist()
    return sorted(rows, key=repr)


def newest_rows(target: Path, name: str) -> list[Row]:
    found = DeltaTable(str(target / f"public.{name}")).to_pyarrow_table()
    return sorted(found.drop_columns(["__special", "__key"]).to_pylist(), key=repr)


def row(number: int, body: str = "first") -> Row:
    return {"id": number, "body": body}


@pytest.mark.parametrize("driver_bytes", [1 << 20, 0], ids=["driver", "tasks"])
def test_delta_tables_are_equal_to_the_topics(
    spark: SparkSession,
    topics: TopicsWriter,
    target: Path,
    command: Command,
    driver_bytes: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The rows that Spark's tasks fold are in files, which the driver removes after it has committed them."""
    items, lines = topics.table("items", ITEMS), topics.table("lines", LOG, ())
    options = {"format": "delta", "driver_bytes": driver_bytes}
    expected = [row(number) for number in range(200)]
    copied = [topics.change(items, "r", 10, number, after=row(number)) for number in range(200)]
    copied += [topics.change(lines, "r", 10, 200 + number, after={"line": "a"}) for number in range(2)]
    topics.commit(10, [one for each in copied for one in each])
    opened = run_mirror(spark, topics, target, **options)
    assert delta_rows(opened, items) == rows_of(opened, items) == sorted(expected, key=repr)
    assert delta_rows(opened, lines) == [{"line": "a"}] * 2

    changed = [*topics.change(items, "u", 20, 1, after=row(0, "changed"))]
    changed += topics.change(items, "d", 20, 2, before=row(1))
    changed += topics.change(lines, "d", 20, 3, before={"line": "a"})
    topics.commit(20, changed)
    expected = sorted([row(0, "changed"), *expected[2:]], key=repr)
    for is_repeated in (False, True):
        if is_repeated:
            rewind(target)
        opened = run_mirror(spark, topics, target, **options)
        assert delta_rows(opened, items) == newest_rows(target, "items") == expected == rows_of(opened, items)
        assert newest_rows(target, "lines") == [{"line": "a"}]
        assert not [*(target / "_data").rglob("*.parquet")]
    capsys.readouterr()
    assert command("verify", "--target", str(target), "--table", "public.items") == 0
    assert "equal, 199 rows in the topic, 199 in the mirror" in capsys.readouterr().out
    view = consistent_view(spark, str(target), at=10)
    assert view.table("public.items").count() == 200
    assert len(delta_rows(read_mirror(str(target), at=10), items)) == 200


def test_the_format_of_a_target_remains(spark: SparkSession, topics: TopicsWriter, target: Path) -> None:
    items = topics.table("items", ITEMS)
    topics.commit(10, topics.change(items, "r", 10, 1, after=row(1)))
    opened = run_mirror(spark, topics, target, format="delta")
    with pytest.raises(SparkReadError, match="another format"):
        run_mirror(spark, topics, target)
    assert delta_rows(opened, items) == newest_rows(target, "items") == [row(1)]
    with pytest.raises(ConfigError, match="use parquet or delta"):
        mirror(spark, topics.connection, str(target), format="iceberg")  # type: ignore[arg-type]


def test_the_command_makes_delta_tables(topics: TopicsWriter, target: Path, command: Command) -> None:
    items = topics.table("items", ITEMS)
    topics.commit(10, topics.change(items, "r", 10, 1, after=row(1)))
    topics.wait_until_visible()
    assert command("mirror", "--target", str(target), "--format", "delta", "--available-now") == 0
    assert newest_rows(target, "items") == [row(1)]


@pytest.mark.nightly
@pytest.mark.timeout(1200)  # the S3 server is built at its first use on a host
def test_delta_tables_in_a_bucket(
    spark: SparkSession, topics: TopicsWriter, s3: S3Server, bucket: str
) -> None:
    """delta-rs reads them with the options of the clouds' own tools."""
    items = topics.table("items", ITEMS)
    options = s3.options()
    secret = Path(options["secret_access_key"].removeprefix("file:")).read_text()
    lake, of_mirror = f"{bucket}/lake", {"format": "delta", "target_options": options}
    topics.commit(
        10, [one for number in range(50) for one in topics.change(items, "r", 10, number, after=row(number))]
    )
    expected = [row(number) for number in range(50)]
    for lsn in (20, 30, 40):
        run_mirror_in(spark, topics, lake, of_mirror)
        opened = read_mirror(lake, options)
        plain = options | {"secret_access_key": secret}
        assert delta_rows(opened, items, plain) == rows_of(opened, items) == sorted(expected, key=repr)
        expected[lsn] = row(lsn, "changed")
        topics.commit(lsn, topics.change(items, "u", lsn, 1, after=row(lsn, "changed")))


def run_mirror_in(spark: SparkSession, topics: TopicsWriter, lake: str, options: dict[str, Any]) -> None:
    topics.wait_until_visible()
    query = mirror(spark, topics.connection, lake, on_error="fail", **options)
    query.awaitTermination()
    assert query.exception() is None
