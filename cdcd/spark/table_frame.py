"""A table of a mirror as a DataFrame, whose tasks read the files.

In: a Spark session, the storage of the target, the table's entry in a version.
Out: a DataFrame with the columns under PostgreSQL's names, and `__special`.
Invariant: a task reads one base file, and the deltas that may replace its rows; no row is read on the driver.
Must not: read the commit log; write.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructField, StructType

from cdcd.spark.columns import arrow_type, without_time
from cdcd.spark.decoding import spark_type
from cdcd.spark.shape import KEY, SPECIAL, SPECIAL_TYPE
from cdcd.spark.storage import Storage
from cdcd.spark.table_files import read_deltas, read_unchanged, without_deleted
from cdcd.spark.versions import BucketFile, TableEntry

__all__ = ["table_frame"]

_ROWS = 10_000


def table_frame(spark: SparkSession, target: Storage, entry: TableEntry) -> DataFrame:
    """Return the rows of a table; times of day are microseconds, as those of `decode`."""
    fields = [pa.field(one.name, without_time(arrow_type(one.avro))) for one in entry.fields]
    fields.append(pa.field(SPECIAL, SPECIAL_TYPE))
    schema = StructType([StructField(one.name, spark_type(one.type)) for one in fields])
    if entry.is_empty:
        return spark.createDataFrame([], schema)
    shape, deltas = entry.shape(), entry.deltas
    parts: list[BucketFile | None] = [*entry.files, *([None] if deltas else [])]

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("file").to_pylist():
                part = parts[number]
                rows = (
                    without_deleted(read_deltas(target, shape, deltas))
                    if part is None
                    else read_unchanged(target, shape, part, deltas)
                ).drop_columns([KEY])
                yield from rows.cast(pa.schema(fields)).to_batches(max_chunksize=_ROWS)

    numbers = spark.createDataFrame([(number,) for number in range(len(parts))], "file int")
    return numbers.repartition(len(parts)).mapInArrow(read, schema)
