"""The records of a mirror's batch: on the driver in Arrow, or in Spark's tasks.

In: the ranges of a batch.
Out: a summary of each topic's records, and their fold into new files.
Invariant: both give the same result. The driver folds a batch that has few bytes: a job of Spark costs more than
reading and folding these bytes.
Must not: read or write the commit log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from cdcd.columnar.record_schema import RAW_DDL, RAW_SCHEMA
from cdcd.spark.clients.connection import Connection
from cdcd.spark.clients.kafka import Range
from cdcd.spark.clients.sent_to_tasks import for_tasks
from cdcd.spark.decoding.schemas import HEADER_BYTES, Schema
from cdcd.spark.source.ranges import read_ranges
from cdcd.spark.storage.uri import Storage
from cdcd.spark.tables.arrow_fold import row_numbers
from cdcd.spark.tables.barriers import are_retained
from cdcd.spark.tables.plan import Look, SchemaSource, TablePlan
from cdcd.spark.tables.tasks import FoldResult, buckets_of, fold_in_tasks, fold_on_driver
from cdcd.spark.tables.unreadable import id_or_none, schema_of_changes
from cdcd.spark.target.large_columns import filtered
from cdcd.spark.target.versions import ALL_BUCKETS, TargetVersion


class Summary(NamedTuple):
    """The records of one topic under one schema in one partition. `last`: the value of the last one.

    `size_bytes`: of keys and values.
    """

    topic: str
    rows: int
    keyed: int
    keyless: int
    last: bytes | None
    size_bytes: int


class Records(Protocol):
    """The records of one batch."""

    def summaries(self) -> list[Summary]:
        """Return the summary of each topic, partition and schema."""

    def keyless(self, topics: Mapping[str, Mapping[int, Schema]]) -> dict[str, list[bytes]]:
        """Return by topic the values of its records without a key that `barriers` retains.

        `topics`: with the schemas of these records.
        """

    def fold(
        self, plans: dict[str, TablePlan], target: Storage, buckets: int, *, whole: bool = False
    ) -> list[FoldResult]:
        """Fold the records of the planned tables into new files; `whole`: all buckets of a table at once."""

    def close(self) -> None:
        """Free the memory."""


class RecordsOnDriver:
    """All records of a batch in one Arrow table with the columns of `RAW_SCHEMA`."""

    def __init__(self, records: pa.Table) -> None:
        self._records = records

    def summaries(self) -> list[Summary]:
        """Return the summary of each topic, partition and schema."""
        keys, values = self._records["key"], self._records["value"]
        has_value = pc.is_valid(values)
        topics, headers = (
            column.combine_chunks().dictionary_encode()  # Arrow groups numbers much faster than texts
            for column in (self._records["topic"], pc.binary_slice(values, 0, HEADER_BYTES))
        )
        table = pa.table(
            {
                "topic": topics.indices,
                "partition": self._records["partition"],
                "header": headers.indices,
                "keyed": pc.and_(pc.is_valid(keys), has_value),
                "keyless": pc.and_(pc.is_null(keys), has_value),
                "row": row_numbers(len(self._records)),
                "bytes": pc.add(_lengths(keys), _lengths(values)),
            }
        )
        grouped = table.group_by(["topic", "partition", "header"]).aggregate(
            [("row", "count"), ("keyed", "sum"), ("keyless", "sum"), ("row", "max"), ("bytes", "sum")]
        )
        return [
            Summary(
                topics.dictionary[one["topic"]].as_py(),
                *(one["row_count"], one["keyed_sum"], one["keyless_sum"]),
                last=values[
                    one["row_max"]
                ].as_py(),  # the records of a partition are in the order of their offsets
                size_bytes=one["bytes_sum"],
            )
            for one in grouped.to_pylist()
        ]

    def keyless(self, topics: Mapping[str, Mapping[int, Schema]]) -> dict[str, list[bytes]]:
        """Return by topic the values of its records without a key that `barriers` retains."""
        is_wanted = pc.and_(pc.is_null(self._records["key"]), pc.is_valid(self._records["value"]))
        return {
            topic: _retained(self._of([topic], is_wanted)["value"].chunks, schemas)
            for topic, schemas in topics.items()
        }

    def fold(
        self, plans: dict[str, TablePlan], target: Storage, buckets: int, *, whole: bool = False
    ) -> list[FoldResult]:
        """Fold the records of the planned tables into new files."""
        changes = self._of(plans, pc.is_valid(self._records["value"]))
        numbers = pa.repeat(pa.scalar(ALL_BUCKETS, pa.int32()), changes.num_rows)
        changes = changes.append_column("bucket", numbers if whole else _buckets(changes["key"], buckets))
        return fold_on_driver(changes, plans, target, buckets)

    def _of(self, topics: Iterable[str], is_wanted: pa.ChunkedArray) -> pa.Table:
        is_of_topics = pc.is_in(self._records["topic"], pa.array(list(topics), pa.string()))
        return filtered(self._records, pc.and_(is_wanted, is_of_topics))

    def close(self) -> None:
        """Free the memory."""
        self._records = RAW_SCHEMA.empty_table()


def _retained(values: Iterable[pa.Array], schemas: Mapping[int, Schema]) -> list[bytes]:
    """Return the values that are retained of all."""
    of_each = [one.filter(are_retained(one, schemas)) for one in values]
    both = pa.concat_arrays([pa.array([], pa.binary()), *of_each])
    retained: list[bytes] = both.filter(are_retained(both, schemas)).to_pylist()
    return retained


def _lengths(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.fill_null(pc.binary_length(texts).cast(pa.int64()), 0)


def _buckets(keys: pa.ChunkedArray, buckets: int) -> pa.Array:
    """Return what `_bucket_column` computes: the CRC of no bytes is 0."""
    bare = pc.fill_null(pc.binary_replace_slice(keys, 0, HEADER_BYTES, b""), b"")
    return buckets_of(bare, buckets)


class RecordsInSpark:
    """The records of a batch as a frame, cached until `close`."""

    def __init__(self, frame: DataFrame, buckets: int) -> None:
        self._frame = frame.withColumn("bucket", _bucket_column(buckets)).persist()

    def summaries(self) -> list[Summary]:
        """Return the summary of each topic, partition and schema."""
        found = (
            self._frame.groupBy("topic", "partition", F.substring("value", 1, HEADER_BYTES).alias("header"))
            .agg(
                F.count("*").alias("rows"),
                F.sum(F.expr("cast(key is not null and value is not null as long)")).alias("keyed"),
                F.sum(F.expr("cast(key is null and value is not null as long)")).alias("keyless"),
                F.max_by("value", "offset").alias("last"),
                F.sum(F.expr("coalesce(length(key), 0L) + coalesce(length(value), 0L)")).alias("bytes"),
            )
            .collect()
        )
        return [
            Summary(
                one["topic"],
                one["rows"],
                one["keyed"],
                one["keyless"],
                None if one["last"] is None else bytes(one["last"]),
                one["bytes"],
            )
            for one in found
        ]

    def keyless(self, topics: Mapping[str, Mapping[int, Schema]]) -> dict[str, list[bytes]]:
        """Return by topic the values of its records without a key that `barriers` retains; tasks do it first."""
        wanted = F.col("topic").isin(list(topics)) & F.col("key").isNull() & F.col("value").isNotNull()

        def retain(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for topic in pc.unique(batch["topic"]).to_pylist():
                    mine = batch.filter(pc.equal(batch["topic"], topic))
                    yield mine.filter(are_retained(mine["value"], topics[topic]))

        found: dict[str, list[bytes]] = {topic: [] for topic in topics}
        chosen = self._frame.where(wanted).select("topic", "value")
        for one in chosen.mapInArrow(for_tasks(retain), "topic string, value binary").collect():
            found[one["topic"]].append(bytes(one["value"]))
        return {topic: _retained([pa.array(found[topic], pa.binary())], topics[topic]) for topic in topics}

    def fold(
        self, plans: dict[str, TablePlan], target: Storage, buckets: int, *, whole: bool = False
    ) -> list[FoldResult]:
        """Fold the records of the planned tables into new files."""
        changes = self._frame.where(F.col("value").isNotNull() & F.col("topic").isin(list(plans)))
        if whole:
            changes = changes.withColumn("bucket", F.lit(ALL_BUCKETS))
        return fold_in_tasks(changes, plans, target, buckets)

    def close(self) -> None:
        """Free the memory."""
        self._frame.unpersist()


def _bucket_column(buckets: int) -> Any:
    """Return the bucket: the key's hash without its header, so that a new schema id moves no row; 0 without a key."""
    return F.expr(f"cast(coalesce(pmod(crc32(substring(key, {HEADER_BYTES + 1})), {buckets}), 0) as int)")


def read_on_driver(
    connection: Connection, ranges: Sequence[Range], most_bytes: int
) -> tuple[RecordsOnDriver | None, float]:
    """Return the records of these ranges, None if they have more bytes, and the bytes of an offset.

    Of ranges that are read in part these are the bytes of a record: an offset may have none.
    """
    batches, size_bytes, rows = [], 0, 0
    with closing(read_ranges(connection.brokers, connection.read_properties(), ranges)) as reading:
        for batch in reading:
            size_bytes += batch.nbytes
            rows += batch.num_rows
            if size_bytes > most_bytes:
                return None, size_bytes / rows
            batches.append(batch)
    offsets = sum(part.end - part.start for part in ranges)
    return RecordsOnDriver(pa.Table.from_batches(batches, RAW_SCHEMA)), size_bytes / max(1, offsets)


def read_in_spark(
    spark: SparkSession, connection: Connection, shares: Sequence[Sequence[Range]], buckets: int
) -> RecordsInSpark:
    """Return the records of these ranges; each share is read by a task of its own."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for share in batch.column(0).to_pylist():
                yield from read_ranges(connection.brokers, connection.read_properties(), shares[share])

    numbers = spark.range(0, len(shares), 1, len(shares))
    return RecordsInSpark(numbers.mapInArrow(for_tasks(read), RAW_DDL), buckets)


def looks_of(
    records: Records, is_table: Callable[[str], bool], version: TargetVersion, schema_of: SchemaSource
) -> list[Look]:
    """Return a summary of each table's records. `version`: that before the batch."""
    looks: dict[str, Look] = {}
    found = [one for one in records.summaries() if is_table(one.topic)]
    for one in found:
        look = looks.get(one.topic, Look(one.topic))
        looks[one.topic] = replace(
            look,
            rows=look.rows + one.rows,
            keyed_rows=look.keyed_rows + one.keyed,
            size_bytes=look.size_bytes + one.size_bytes,
            last_values=look.last_values if one.last is None else (*look.last_values, one.last),
        )
    barriers: dict[str, dict[int, Schema]] = {}
    needed = {topic for topic, look in looks.items() if _needs_truncates(look, version)}
    for one in found:
        if one.keyless and one.last is not None and one.topic in needed:
            number = id_or_none(one.last)
            is_left = version.is_left(one.topic)
            schema = (
                None if number is None else schema_of_changes(one.topic, number, schema_of, is_left=is_left)
            )
            if number is not None and schema is not None:
                barriers.setdefault(one.topic, {})[number] = schema
    if barriers:
        for topic, values in records.keyless(barriers).items():
            looks[topic] = replace(looks[topic], keyless_values=tuple(values))
    return list(looks.values())


def _needs_truncates(look: Look, version: TargetVersion) -> bool:
    """Whether the plan needs the TRUNCATEs of a table.

    A table without a key has few schema changes, and all its records are without a key: else they are not read.
    """
    if look.keyed_rows or look.topic in version.dropped:
        return True
    schemas = {id_or_none(one) for one in look.last_values}
    entry = version.tables.get(look.topic)
    if entry is None:
        return len(schemas) > 1
    return bool(entry.keyed or entry.parked) or len(schemas | {entry.schema_id}) > 1
