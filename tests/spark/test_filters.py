"""Filters of a frame: those of `format("cdcd")` are right, because it leaves Spark's `pushFilters` alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, EqualTo, Filter, InputPartition
from pyspark.sql.types import StructType

from cdcd.spark.data_source import register
from tests.spark.events import column
from tests.spark.topics import TopicsWriter

PUSHES = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture
def pushing(spark: SparkSession) -> Iterator[SparkSession]:
    """Yield a session that gives filters to sources in Python."""
    before = spark.conf.get(PUSHES)
    spark.conf.set(PUSHES, "true")
    yield spark
    spark.conf.set(PUSHES, str(before))


def test_spark_reads_with_the_last_filter_of_a_frame(pushing: SparkSession) -> None:
    """If this fails, Spark is corrected: then `CdcdReader` can take ranges of offsets from filters."""

    class Reader(DataSourceReader):  # type: ignore[misc]
        wanted: int | None = None

        def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802
            self.wanted = next((one.value for one in filters if isinstance(one, EqualTo)), None)
            yield from filters  # Spark applies each one, too

        def partitions(self) -> list[InputPartition]:
            return [InputPartition(self.wanted)]

        def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
            return iter([(n,) for n in range(3) if partition.value in (None, n)])

    class Numbers(DataSource):  # type: ignore[misc]
        @classmethod
        def name(cls) -> str:
            return "numbers"

        def schema(self) -> str:
            return "n int"

        def reader(self, schema: StructType) -> DataSourceReader:
            return Reader()

    pushing.dataSource.register(Numbers)
    frame = pushing.read.format("numbers").load()
    assert [one.n for one in frame.where("n = 0").union(frame.where("n = 1")).collect()] == [1], (
        "0 is missing"
    )
    assert [one.n for one in frame.collect()] == [1], "0 and 2 are missing"


def test_each_filter_of_a_frame_has_its_rows(pushing: SparkSession, topics: TopicsWriter) -> None:
    items = topics.table("items", [column("id", "int", required=True)])
    for number in (1, 2, 3):
        topics.commit(10 * number, topics.change(items, "c", 10 * number, 1, after={"id": number}))
    topics.wait_until_readable(30)
    register(pushing)
    options = {"brokers": topics.bootstrap, "prefix": topics.prefix, "registry": topics.registry_url}
    frame = pushing.read.format("cdcd").options(**options, table="public.items").load()
    both = frame.where("after.id = 1").union(frame.where("after.id = 2"))
    assert sorted(one.after.id for one in both.collect()) == [1, 2]
    assert sorted(one.after.id for one in frame.collect()) == [1, 2, 3]
