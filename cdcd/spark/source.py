"""The Spark data source `format("cdcd")`: raw Kafka records whose batches end on a PostgreSQL commit.

In: a connection's options (`connection_options`), topics, startingOffsets, maxRows, maxCommits, readers, loading.
Out: rows topic, partition, offset, timestamp, key, value; Arrow batches, no JVM connector. With `loading` "true" each
batch of a stream has one more row for each table that cdcd copies incrementally at the batch's end: its topic is
"loading/<topic>", it has no value. The end of such a copy then makes a batch, even without records.
Invariant: `latestOffset` is the sum of progress records, so a batch holds whole PostgreSQL transactions of all
topics; a start that Kafka has removed is an error (CDCD-HISTORY-MISSING).
Must not: decode; one topic holds several schema ids, and a stream's schema is fixed when it starts.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from cdcd.columnar.record_schema import RAW_SCHEMA
from cdcd.errors import SnapshotIncomplete
from cdcd.spark.connection import Connection
from cdcd.spark.connection_options import connection_from
from cdcd.spark.cuts import (
    LOADING,
    Commit,
    Offsets,
    after_compaction,
    covers,
    cut,
    loading_of,
    normal,
    seen,
    without_loading,
)
from cdcd.spark.kafka import Cluster, ProgressReader, Range, check_history
from cdcd.spark.ranges import read_ranges

log = logging.getLogger("cdcd.spark.source")
RAW_DDL = "topic string, partition int, offset long, timestamp timestamp, key binary, value binary"
UNLIMITED_ROWS = 2**62
PROGRESS_SUFFIX = ".__progress"


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of the data source. `starting` None: the first record in Kafka."""

    connection: Connection
    topics: frozenset[str] | None
    starting: Offsets | None
    max_rows: int | None
    max_commits: int | None
    readers: int
    loading: bool = False


def parse_options(options: Mapping[str, str]) -> SourceOptions:
    """Return Spark's options (names in any case). Raises ConfigError with every problem."""
    given = {name.lower(): value for name, value in options.items()}
    connection = connection_from(options, _OWN, found=_wrong_values(given))
    starting = given.get("startingoffsets", "earliest")
    topics = frozenset(name.strip() for name in given.get("topics", "").split(",") if name.strip())
    return SourceOptions(
        connection=connection,
        topics=topics or None,
        starting=None if starting == "earliest" else normal(json.loads(starting)),
        max_rows=int(given["maxrows"]) if "maxrows" in given else None,
        max_commits=int(given["maxcommits"]) if "maxcommits" in given else None,
        readers=int(given.get("readers", "2")),
        loading=given.get("loading", "").lower() == "true",
    )


def _wrong_values(given: Mapping[str, str]) -> Iterator[str]:
    for name in ("maxRows", "maxCommits", "readers"):
        value = given.get(name.lower(), "1")
        if not value.isdecimal() or int(value) < 1:
            yield f"option {name} has to be a whole number from 1"
    if given.get("loading", "true").lower() not in ("true", "false"):
        yield "option loading has to be true or false"
    starting = given.get("startingoffsets", "earliest")
    try:
        if starting != "earliest":
            normal(json.loads(starting))
    except (AttributeError, TypeError, ValueError):
        yield 'option startingOffsets has to be earliest or offsets as {"TOPIC": {"0": OFFSET}}'


_OWN = ("topics", "startingOffsets", "maxRows", "maxCommits", "readers", "loading")


class RangesPartition(InputPartition):  # type: ignore[misc]
    """The input of one task: ranges of several Kafka partitions, read with one consumer."""

    def __init__(self, ranges: Sequence[Range]) -> None:
        super().__init__(tuple(ranges))


class Commits:
    """The driver's view of the progress topic: returns cuts, and stores the records it has read.

    A compacted progress topic does not name every partition. Partitions that it does not name have been complete for
    a long time, so their end is used, listed before the progress topic is read (`after_compaction`).
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        connection = options.connection
        self._prefix = connection.prefix
        properties = connection.read_properties()
        self._cluster = Cluster(connection.brokers, properties)
        self._reader = ProgressReader(
            connection.brokers, properties, self._prefix + PROGRESS_SUFFIX, self._cluster
        )
        self._pending: deque[Commit] = deque()
        self._unopened: list[Commit] = []
        self._opened = False
        self._told = False

    def refresh(self) -> None:
        """Read the progress records committed since the last call."""
        ends = {} if self._opened else self._ends()
        asked = self._options
        read = [seen(one, asked.topics, loading=asked.loading) for one in self._reader.read()]
        commits, self._unopened = self._unopened + read, []
        if commits and not self._opened:
            if not self._reader.is_whole:
                complete = after_compaction(ends, commits)
                if complete is None:
                    self._unopened = commits  # the partitions' ends are inside a transaction or a snapshot
                    return
                commits = complete
            self._opened = True
        self._pending += commits
        if self.is_inside_snapshot and not self._told:
            log.warning(
                "%s: a snapshot is not complete; the batch that has it comes when it is", self._prefix
            )
        self._told = self.is_inside_snapshot

    @property
    def is_inside_snapshot(self) -> bool:
        """Whether the newest record is of a snapshot that is not complete, so that no batch may have its rows."""
        newest = (self._unopened or list(self._pending))[-1:]
        return any(one.is_part and one.snapshot is not None for one in newest)

    def newest(self, start: Offsets) -> Offsets:
        """Return the offsets of the newest commit known."""
        return cut(start, self._pending)

    def following(self, start: Offsets, max_rows: int | None) -> Offsets:
        """Return the end offsets of the next batch, within the limits; `start` if there is nothing new."""
        # Only commits up to `start` are removed, because Spark may ask again from the same start. The last of them
        # remains, because it says which tables are loading now.
        while len(self._pending) > 1 and all(covers(start, self._pending[place]) for place in (0, 1)):
            self._pending.popleft()
        return cut(start, self._pending, max_rows=max_rows, max_commits=self._options.max_commits)

    def initial(self) -> Offsets:
        """Return the start offsets of a new query."""
        if self._options.starting is not None:
            return self._options.starting
        named = self._partitions()
        offsets: Offsets = {}
        for (topic, partition), offset in self._cluster.starts(named).items():
            offsets.setdefault(topic, {})[str(partition)] = offset
        return normal(offsets)

    def ranges(self, start: Offsets, end: Offsets) -> list[Range]:
        """Return the ranges between two cuts. Raises HistoryMissing if Kafka no longer has all of their records."""
        return check_history(self._cluster, without_loading(start), without_loading(end))

    def close(self) -> None:
        """Leave the broker."""
        self._reader.close()

    def _partitions(self) -> list[tuple[str, int]]:
        """Return the partitions of the topics with this prefix, without topics of a longer prefix."""
        existing = self._cluster.partitions()
        prefixes = [name.removesuffix(PROGRESS_SUFFIX) for name in existing if name.endswith(PROGRESS_SUFFIX)]
        prefixes = [other for other in prefixes if other.startswith(self._prefix + ".")]
        return [
            (name, partition)
            for name, numbers in existing.items()
            if belongs(name, self._prefix, prefixes)
            and (self._options.topics is None or name in self._options.topics)
            for partition in numbers
        ]

    def _ends(self) -> Offsets:
        ends: Offsets = {}
        for (topic, partition), offset in self._cluster.ends(self._partitions()).items():
            ends.setdefault(topic, {})[str(partition)] = offset
        return ends


def belongs(topic: str, prefix: str, longer_prefixes: Sequence[str]) -> bool:
    """Return whether a topic has changes of this prefix, and is neither internal nor another daemon's."""
    if not topic.startswith(prefix + ".") or topic.startswith(prefix + ".__"):
        return False
    return not any(topic.startswith(longer + ".") for longer in longer_prefixes)


def _shares(ranges: Sequence[Range], readers: int) -> list[RangesPartition]:
    """Distribute the ranges to at most `readers` tasks, the longest first, so that the tasks end together."""
    shares: list[list[Range]] = [[] for _ in range(max(1, min(readers, len(ranges))))]
    sizes = [0] * len(shares)
    for part in sorted(ranges, key=lambda one: one.start - one.end):
        smallest = sizes.index(min(sizes))
        shares[smallest].append(part)
        sizes[smallest] += part.end - part.start
    return [RangesPartition(share) for share in shares if share]


def _marked(marks: Sequence[Range]) -> pa.RecordBatch:
    """Return the rows of the loading tables, which are no records of Kafka."""
    return pa.RecordBatch.from_pylist(
        [{"topic": one.topic, "partition": 0, "offset": 0} for one in marks], schema=RAW_SCHEMA
    )


class CdcdStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """The streaming reader. Spark has one on the driver for planning, and others in the tasks for reading."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._commits: Commits | None = None
        self._fixed = False

    def initialOffset(self) -> Offsets:  # noqa: N802 - Spark's name
        """Return the start offsets of a query without a checkpoint."""
        return self._driver().initial()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return the limit of the options."""
        if self._options.max_rows is None and self._options.max_commits is None:
            return ReadAllAvailable()
        return ReadMaxRows(self._options.max_rows or UNLIMITED_ROWS)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Set the current newest commit as the end of the query."""
        self._driver().refresh()
        self._fixed = True

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802 - Spark's name
        """Return the offsets of a PostgreSQL commit that is at most `limit` away, or `start` again."""
        commits = self._driver()
        if not self._fixed:
            commits.refresh()
        start = normal(start)
        if isinstance(limit, ReadMaxRows):
            return commits.following(start, min(limit.max_rows, self._options.max_rows or UNLIMITED_ROWS))
        return commits.newest(start)

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        """Return the tasks of one batch. Raises HistoryMissing if Kafka no longer has all of its records."""
        shares = _shares(self._driver().ranges(start, end), self._options.readers)
        marks = [Range(LOADING + topic, 0, 0, 1) for topic in sorted(loading_of(end))]
        return [*shares, RangesPartition(marks)] if marks else shares

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one task's ranges."""
        if partition.value[0].topic.startswith(LOADING):
            return iter([_marked(partition.value)])
        connection = self._options.connection
        return read_ranges(connection.brokers, connection.read_properties(), partition.value)

    def stop(self) -> None:
        """Leave the broker."""
        if self._commits is not None:
            self._commits.close()
            self._commits = None

    def _driver(self) -> Commits:
        if self._commits is None:
            self._commits = Commits(self._options)
        return self._commits


class CdcdReader(DataSourceReader):  # type: ignore[misc]
    """The batch reader: from the start to the newest commit at the call."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = replace(options, loading=False)  # a batch cannot say which tables are loading

    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks.

        Raises HistoryMissing if Kafka no longer has all of their records, SnapshotIncomplete if there are only rows
        of a snapshot that is not complete.
        """
        commits = Commits(self._options)
        try:
            commits.refresh()
            start = commits.initial()
            end = commits.newest(start)
            if end == start and commits.is_inside_snapshot:
                raise SnapshotIncomplete(
                    "the snapshot is not complete", prefix=self._options.connection.prefix
                )
            return _shares(commits.ranges(start, end), self._options.readers)
        finally:
            commits.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one task's ranges; no task has none when there is nothing to read."""
        if partition is None or partition.value is None:
            return iter(())
        connection = self._options.connection
        return read_ranges(connection.brokers, connection.read_properties(), partition.value)


class CdcdDataSource(DataSource):  # type: ignore[misc]
    """`spark.read.format("cdcd")` and `spark.readStream.format("cdcd")`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._known: SourceOptions | None = None

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "cdcd"

    def schema(self) -> str:
        """Return the raw schema, which does not depend on the topics. Raises ConfigError for the options.

        Spark calls it at `load()`, so wrong options are reported before any plan has them.
        """
        self._parsed()
        return RAW_DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the batch reader."""
        return CdcdReader(self._parsed())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return the streaming reader."""
        return CdcdStreamReader(self._parsed())

    def _parsed(self) -> SourceOptions:
        if self._known is None:
            self._known = parse_options(self.options)
        return self._known


def register(spark: SparkSession) -> None:
    """Register `format("cdcd")` in this session."""
    spark.dataSource.register(CdcdDataSource)
