"""A table of a mirror as a DataFrame, whose tasks read the files.

In: a Spark session, the storage of the target, the table's entry in a version.
Out: a DataFrame with the columns under PostgreSQL's names, and `__special`.
Invariant: a task reads one base file, and of the deltas the keys that it may have; no row is read on the driver.
Must not: read the commit log; write.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructField, StructType

from cdcd.spark.clients.sent_to_tasks import for_tasks
from cdcd.spark.decoding.columns import arrow_type, without_time
from cdcd.spark.decoding.decode import spark_type
from cdcd.spark.storage.uri import Storage
from cdcd.spark.tables.key_ranges import parts_of
from cdcd.spark.tables.table_files import read_part
from cdcd.spark.target.large_columns import in_few_chunks
from cdcd.spark.target.shape import KEY, SPECIAL, SPECIAL_TYPE, TableShape
from cdcd.spark.target.versions import TableEntry

__all__ = ["columns_of", "frame_of_rows", "table_frame"]

_ROWS = 10_000


def table_frame(
    spark: SparkSession, target: Storage, entry: TableEntry, *, with_key: bool = False
) -> DataFrame:
    """Return the rows of a table; times of day are microseconds, as those of `decode`. `with_key`: with `__key`."""
    fields, schema = columns_of(entry, with_key=with_key)
    if entry.is_empty:
        return spark.createDataFrame([], schema)
    names = fields.names
    shape, parts = entry.shape(), parts_of(entry)

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("file").to_pylist():
                rows = read_part(target, shape, parts[number])
                yield from rows.select(names).cast(fields).to_batches(max_chunksize=_ROWS)

    numbers = spark.createDataFrame([(number,) for number in range(len(parts))], "file int")
    return numbers.repartition(len(parts)).mapInArrow(for_tasks(read), schema)


def frame_of_rows(spark: SparkSession, entry: TableEntry, rows: pa.Table) -> DataFrame:
    """Return rows of a table, with `__key`, as a frame like `table_frame`."""
    fields, schema = columns_of(entry, with_key=True)
    if not rows.num_rows:
        return spark.createDataFrame([], schema)
    # Of a table whose first chunk is empty, Spark would read no chunk.
    return spark.createDataFrame(in_few_chunks(rows.select(fields.names).cast(fields)), schema)


def columns_of(entry: TableEntry | TableShape, *, with_key: bool = False) -> tuple[pa.Schema, StructType]:
    """Return the columns of a table in Arrow and in Spark; `with_key`: with `__key`."""
    fields = [pa.field(one.name, without_time(arrow_type(one.avro))) for one in entry.fields]
    fields.append(pa.field(SPECIAL, SPECIAL_TYPE))
    if with_key:
        fields.append(pa.field(KEY, pa.binary()))
    return pa.schema(fields), StructType([StructField(one.name, spark_type(one.type)) for one in fields])
