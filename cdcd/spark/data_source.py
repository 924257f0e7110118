"""The Spark data source `format("cdcd")`: changes or raw records, in batches that end on a PostgreSQL commit.

In: the options of a connection and of the source (`source_options`).
Out: with the option table the columns of `decoding`, decoded in the tasks that read; otherwise rows topic, partition,
offset, timestamp, key, value; with the option target the rows of a mirror's table (`mirrored_table`). Arrow batches,
no JVM connector. With `loading` "true" each batch of a stream has one more row for each table that cdcd still copies
at the batch's end: its topic is "loading/<topic>", it has no value. The end of such a copy then makes a batch, even
without records. With `ids` "true" the first batch that has records of a topic has a row "id/<topic>", whose offset is
the topic's id - 1.
Invariant: `latestOffset` is the sum of progress records, so a batch holds whole PostgreSQL transactions of all
topics; a start that Kafka has removed is an error (CDCD-HISTORY-MISSING).
Must not: change its schema: that of a stream is fixed when it starts.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from cdcd.columnar.record_schema import RAW_DDL, RAW_SCHEMA
from cdcd.errors import ConfigError, PositionUnavailable, SnapshotIncomplete
from cdcd.spark.clients.connection import Connection
from cdcd.spark.clients.kafka import Range
from cdcd.spark.clients.sent_to_tasks import SentToTasks
from cdcd.spark.decoding.decode import Decoding, decoding_of
from cdcd.spark.decoding.schemas import access_of
from cdcd.spark.reading.catalog_state import CatalogState
from cdcd.spark.reading.mirror import read_mirror
from cdcd.spark.reading.mirrored_table import MirrorReader, is_of_a_mirror, mirrored_table
from cdcd.spark.reading.table_frame import columns_of
from cdcd.spark.source.backlog import Backlog
from cdcd.spark.source.commits import Commits
from cdcd.spark.source.cuts import (
    ID,
    LOADING,
    BatchLimits,
    Offsets,
    ids_of,
    is_pseudo,
    loading_of,
    normal,
    of_topics,
    start_of,
    with_start,
)
from cdcd.spark.source.late_topics import Late
from cdcd.spark.source.pieces import pieces
from cdcd.spark.source.prefix_topics import existing_tables, is_without_records
from cdcd.spark.source.ranges import read_ranges
from cdcd.spark.source.read_limits import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from cdcd.spark.source.record_sizes import RecordSizes
from cdcd.spark.source.source_options import SourceOptions, parse_options
from cdcd.spark.source.source_position import SourcePosition
from cdcd.spark.source.table_options import TableOptions, is_only_in_a_pattern, topics_of
from cdcd.spark.storage.uri import Target

UNLIMITED_ROWS = 2**62
ONE_BATCH = (
    "%s: the query ends after its first batch, which is not at the newest commit. If you used availableNow: Spark "
    "4.1 runs it as a single batch; start the query again, or set none of maxRows, maxBytes and maxCommits"
)
_NO_ROW = (
    "%s: the table has had no row yet, so it has no columns, and the query does not read it, nor its later rows; "
    "start the query again when it has rows"
)
log = logging.getLogger("cdcd.spark.data_source")


class RangesPartition(InputPartition):  # type: ignore[misc]
    """The input of one task: ranges of several Kafka partitions, read with one consumer."""

    def __init__(self, ranges: Sequence[Range]) -> None:
        super().__init__(tuple(ranges))


def _tasks(ranges: Sequence[Range], options: SourceOptions, sizes: RecordSizes) -> list[RangesPartition]:
    """Return the tasks of one batch, of about equal bytes."""
    known = sizes.of(ranges) if options.readers > 1 or options.max_bytes is not None else {}
    return [RangesPartition(share) for share in pieces(ranges, known, options.readers)]


def _marks(start: Offsets, end: Offsets, options: SourceOptions) -> list[Range]:
    """Return the rows of a batch that are no records of Kafka: the loading tables, and the ids of new topics."""
    loading = [Range(LOADING + topic, 0, 0, 1) for topic in sorted(loading_of(end))]
    if not options.ids:
        return loading
    known = ids_of(start)
    return loading + [
        Range(ID + topic, 0, 0, one) for topic, one in ids_of(end).items() if topic not in known
    ]


def _marked(marks: Sequence[Range]) -> pa.RecordBatch:
    """Return the rows of marks: like that of a topic's last record, the offset is before the end."""
    return pa.RecordBatch.from_pylist(
        [{"topic": one.topic, "partition": 0, "offset": one.end - 1} for one in marks], schema=RAW_SCHEMA
    )


def _read(
    connection: Connection, ranges: Sequence[Range], decoding: Decoding | None
) -> Iterator[pa.RecordBatch]:
    batches = read_ranges(connection.brokers, connection.read_properties(), ranges)
    return batches if decoding is None else decoding.decode(batches)


class CdcdStreamReader(SentToTasks, DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """The streaming reader. Spark has one on the driver for planning, and others in the tasks for reading.

    Spark 4.1 does not say where a batch starts. It is the end of the last batch: after a restart Spark first plans an
    empty batch at that offset, or the last batch again; later each end that `latestOffset` returns becomes a batch.
    """

    def __init__(self, options: SourceOptions, decoding: Decoding | None = None) -> None:
        self._options = options
        self._decoding = decoding
        self._commits: Commits | None = None
        self._sizes = RecordSizes(options.connection)
        self._fixed = self._ended = False
        self._end: Offsets | None = None
        self._initial: Offsets | None = None
        self._refused: PositionUnavailable | SnapshotIncomplete | None = None
        self._ends_without_start = 0

    def initialOffset(self) -> Offsets:  # noqa: N802 - Spark's name
        """Return the start offsets of a query without a checkpoint, none if there is no such position.

        They are the same at each call, because Spark may call it after `latestOffset`. Spark also calls it to repeat
        the first batch, whose start is in its end: the position may not be in Kafka any more then. For a new query
        `latestOffset` raises the error.
        """
        if self._initial is None:
            try:
                self._initial = self._driver().initial()
            except (PositionUnavailable, SnapshotIncomplete) as error:
                self._initial, self._refused = {}, error
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return the limit of the options."""
        if not self._options.has_limits:
            return ReadAllAvailable()
        return ReadMaxRows(self._options.max_rows or UNLIMITED_ROWS)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Set the newest commit at the first `latestOffset`, which knows the start, as the end of the query."""
        self._fixed = True

    def latestOffset(  # noqa: N802 - Spark's name
        self, start: Offsets | None = None, limit: ReadLimit | None = None
    ) -> Offsets:
        """Return the offsets of a PostgreSQL commit that is at most `limit` away, or `start` again.

        Without both (Spark 4.1): the end of the last batch, and the limit of the options.
        """
        if start is None:
            start = self.initialOffset() if self._end is None else self._end
            self._ends_without_start += 1
        self._end = self._next(normal(start), limit or self.getDefaultReadLimit())
        return self._end

    def _next(self, start: Offsets, limit: ReadLimit) -> Offsets:
        commits = self._driver()
        if self._refused is not None and start == self._initial:
            raise self._refused
        if self._fixed and not self._ended:
            commits.end_now()
            self._ended = True
        commits.refresh(start)
        if start == self._initial:  # a query that continues has them from its checkpoint
            commits.check_names()
        commits.check_start(start)
        if isinstance(limit, ReadMaxRows):
            end = commits.next_end(start, self._limits(start, limit))
        else:
            end = commits.newest(start)
        return self._with_start(end, start)

    def _with_start(self, end: Offsets, start: Offsets) -> Offsets:
        """Return the end of a batch, that of a query's first one with its start.

        Spark does not store the start of a source in Python: to repeat the first batch, it asks for a new one. It
        also runs the first batch, and repeats it, if that is empty. The same options may be another start by then:
        Kafka may have removed the first records.
        """
        return with_start(end, start) if start == self._initial else end

    def _limits(self, start: Offsets, limit: ReadMaxRows) -> BatchLimits:
        """Return the limits of the batch that starts here; for that of bytes, the sizes of records are estimated."""
        asked, commits = self._options, self._driver()
        if asked.max_bytes is not None:
            backlog = of_topics(commits.known_end(start))
            if self._sizes.lacks(topic for topic in backlog if backlog[topic] != start.get(topic)):
                self._sizes.learn(commits.ranges(start, backlog))
        rows = min(limit.max_rows, asked.max_rows or UNLIMITED_ROWS)
        return BatchLimits(rows, asked.max_commits, asked.max_bytes, self._sizes.between)

    def position(self, end: Offsets) -> SourcePosition:
        """Return the position in the source of the end that `latestOffset` has returned last."""
        return self._driver().position(end)

    @property
    def shared(self) -> dict[str, tuple[str, ...]]:
        """By topic, the slots that write to it at the same time, as far as the last `latestOffset` has seen."""
        return self._driver().shared

    def late(self, end: Offsets) -> Late:
        """Return which topics of these offsets are behind the others, as far as the last `latestOffset` has seen."""
        return self._driver().late(end)

    def backlog(self, reached: Offsets) -> Backlog:
        """Return what the topics have after these offsets, as far as the last `latestOffset` has seen."""
        return self._driver().backlog(reached)

    def reportLatestOffset(self) -> Offsets | None:  # noqa: N802 - Spark's name
        """Return the newest commit, for Spark's progress: the backlog is its distance to the end. None: not known."""
        if self._end is None or self._driver().is_behind:
            return None
        return self._driver().known_end(self._end)

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        """Return the tasks of one batch. Raises HistoryMissing if Kafka no longer has all of its records."""
        tasks = _tasks(self.ranges(start, end), self._options, self._sizes)
        marks = _marks(start, end, self._options)
        return [*tasks, RangesPartition(marks)] if marks else tasks

    def ranges(self, start: Offsets, end: Offsets) -> list[Range]:
        """Return the ranges of one batch. Raises HistoryMissing if Kafka no longer has all of its records."""
        if self._refused is not None and start == self._initial and start_of(end) is None:
            raise self._refused
        self._end = normal(end)
        return self._driver().ranges(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one task's ranges."""
        if is_pseudo(partition.value[0].topic):
            return iter([_marked(partition.value)])
        return _read(self._options.connection, partition.value, self._decoding)

    def stop(self) -> None:
        """Close the connections to Kafka. Warn if a limit has ended a query of Spark 4.1 before the newest commit."""
        if self._commits is not None:
            commits, self._commits = self._commits, None
            try:
                if self._ends_without_start == 1 and commits.newest(self._end or {}) != self._end:
                    log.warning(ONE_BATCH, self._options.connection.prefix)
            finally:
                commits.close()

    def _driver(self) -> Commits:
        if self._commits is None:
            self._commits = Commits(self._options)
        return self._commits


class CdcdReader(SentToTasks, DataSourceReader):  # type: ignore[misc]
    """The batch reader: from the start to the end, by default the newest commit at the call.

    It has no `pushFilters`: up to 4.3 Spark plans each query of a frame with the ranges of the frame's last filter,
    so a union of two filters, or a query without one, would lose rows, also if the filters are returned to Spark
    (tests/spark/test_filters.py).
    """

    def __init__(self, options: SourceOptions, decoding: Decoding | None = None) -> None:
        self._decoding = decoding
        self._options = options.of_a_batch()

    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks.

        Raises HistoryMissing if Kafka no longer has all of their records, PositionUnavailable for a start or an end
        that is not in Kafka, SnapshotIncomplete if there are only rows of a snapshot that is not complete, or if
        cdcd still copies a table of the query at the end.
        """
        commits = Commits(self._options)
        try:
            ranges = commits.batch_ranges(*commits.batch())
        finally:
            commits.close()
        return _tasks(ranges, self._options, RecordSizes(self._options.connection))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one task's ranges; no task has none when there is nothing to read."""
        if partition is None or partition.value is None:
            return iter(())
        return _read(self._options.connection, partition.value, self._decoding)


class CdcdDataSource(SentToTasks, DataSource):  # type: ignore[misc]
    """`spark.read.format("cdcd")` and `spark.readStream.format("cdcd")`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._known: SourceOptions | None = None
        self._decoding: Decoding | None = None

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "cdcd"

    def schema(self) -> str | StructType:
        """Return the raw schema, or the columns of the tables. Raises ConfigError for the options, SparkReadError.

        Spark calls it at `load()`, so wrong options are reported before any plan has them. It sends this object,
        which knows the tables then, to where the readers are made.
        """
        if is_of_a_mirror(self.options):
            return columns_of(mirrored_table(self.options).entry())[1]
        options = self._parsed()
        if options.tables is None:
            return RAW_DDL
        self._decoding = _decoding(options.connection, options.tables)
        read = frozenset(one.topic for one in self._decoding.versions)
        self._known = replace(options, topics=read)
        return self._decoding.schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the batch reader."""
        if is_of_a_mirror(self.options):
            return MirrorReader(mirrored_table(self.options), schema)
        return CdcdReader(self._parsed_with_schema(), self._decoding)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return the streaming reader. Raises ConfigError for a mirror."""
        if is_of_a_mirror(self.options):
            raise ConfigError(
                "a mirror cannot be read as a stream",
                hint="read the topics as a stream, or use `cdcd.spark.changes`",
            )
        return CdcdStreamReader(self._parsed_with_schema().of_a_stream(), self._decoding)

    def _parsed_with_schema(self) -> SourceOptions:
        """Return the options. Raises ConfigError if the query has given a schema, so that Spark asks for none."""
        options = self._parsed()
        if options.tables is not None and self._decoding is None:
            raise ConfigError(
                "schema() does not choose the columns of a table: the topics' schemas have them",
                hint="remove schema(...), and set the option columns to the names of the wanted columns",
            )
        return options

    def _parsed(self) -> SourceOptions:
        if self._known is None:
            self._known = parse_options(self.options)
        return self._known


def _decoding(connection: Connection, tables: TableOptions) -> Decoding:
    existing = existing_tables(connection)

    def leaves_out(topic: str) -> bool:
        """Whether a topic without a schema is one of a table without a row, which only a pattern has selected."""
        if not is_only_in_a_pattern(topic, tables.tables, connection.prefix, existing):
            return False
        if not is_without_records(connection, topic):
            return False
        log.warning(_NO_ROW, topic)
        return True

    topics = topics_of(tables.tables, connection.prefix, existing)
    decoding = decoding_of(access_of(connection), topics, leaves_out=leaves_out, **dict(tables.parameters))
    if not tables.is_case_sensitive:
        decoding.check_cases()
    return decoding


def register(
    spark: SparkSession,
    target: Target | None = None,
    *,
    catalog: str | None = None,
    target_options: Mapping[str, str] | None = None,
) -> CatalogState | None:
    """Register `format("cdcd")` in this session; with a target, also the tables of a mirror in a catalog.

    `catalog`: a namespace such as "spark_catalog.shop". Return the name of each table, with its error, None without a
    target. Raises SparkReadError if there is no mirror, ConfigError.
    """
    spark.dataSource.register(CdcdDataSource)
    if (target is None) != (catalog is None):
        raise ConfigError(
            "registering tables needs both a target and a catalog",
            hint='pass both, such as register(spark, "/data/shop", catalog="spark_catalog.shop"), or none',
        )
    if target is None or catalog is None:
        return None
    from cdcd.spark.reading.catalog import Catalog, namespace_of
    from cdcd.spark.reading.catalog_updates import register_all

    wanted = Catalog(spark, namespace_of(catalog), target_options or {})
    return register_all(wanted, read_mirror(target, target_options))
