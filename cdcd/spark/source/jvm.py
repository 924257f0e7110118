"""What Spark's own Kafka source and the table formats of the JVM need: offsets of PostgreSQL commits, and packages.

In: the options of `format("cdcd")`; a version of Spark.  Out: options of `format("kafka")`; Maven coordinates.
Invariant: a batch of these options has whole commits, as one of `format("cdcd")` has.
Must not: translate the security of librdkafka to that of Java's client; import PySpark before a version is asked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from cdcd.errors import ConfigError, PositionUnavailable
from cdcd.spark.clients.kafka import Range
from cdcd.spark.source.commits import Commits
from cdcd.spark.source.cuts import Offsets, normal
from cdcd.spark.source.prefix_topics import existing_tables
from cdcd.spark.source.source_options import SourceOptions, parse_options
from cdcd.spark.source.table_options import topics_of

_DELTA, _ICEBERG = (
    "io.delta:delta-spark_{0}_2.13:{1}",
    "org.apache.iceberg:iceberg-spark-runtime-{0}_2.13:{1}",
)
_KAFKA, _AVRO = "org.apache.spark:spark-sql-kafka-0-10_2.13:{1}", "org.apache.spark:spark-avro_2.13:{1}"
_PACKAGES: Mapping[str, Mapping[str, str]] = {
    "4.1": {_DELTA: "4.4.0", _ICEBERG: "1.12.0", _KAFKA: "4.1.1", _AVRO: "4.1.1"},
    "4.2": {_DELTA: "4.4.0", _KAFKA: "4.2.0", _AVRO: "4.2.0"},
}
"""Combinations that were run together."""


def offsets(options: Mapping[str, str]) -> dict[str, str]:
    """Return options of a batch read of Spark's own Kafka source, which begins and ends on a PostgreSQL commit.

    `options`: those of `format("cdcd")`, with its positions. The result has `kafka.bootstrap.servers`, `assign`,
    `startingOffsets`, `endingOffsets` and `kafka.isolation.level`. The caller adds a login to Kafka, under the names
    of Java's client. Raises ConfigError, SparkReadError, PositionUnavailable, SnapshotIncomplete, HistoryMissing.
    """
    asked = _with_topics_of_tables(parse_options(options).of_a_batch())
    commits = Commits(asked)
    try:
        start, end = commits.batch()
        ranges = commits.batch_ranges(start, end)
        start, end = commits.without_deleted(start), commits.without_deleted(end)
    finally:
        commits.close()
    starting, ending = _of_the_same_partitions(start, end, ranges)
    if not starting:
        raise PositionUnavailable(
            "there is no topic with this prefix",
            hint="start cdcd first, or correct the prefix",
            prefix=asked.connection.prefix,
        )
    return {
        "kafka.bootstrap.servers": asked.connection.brokers,
        "assign": json.dumps({topic: [int(one) for one in numbers] for topic, numbers in starting.items()}),
        "startingOffsets": json.dumps(starting),
        "endingOffsets": json.dumps(ending),
        "kafka.isolation.level": "read_committed",
    }


def _with_topics_of_tables(asked: SourceOptions) -> SourceOptions:
    """Return the options with the topics of the option `table`. Raises SparkReadError for a table without one."""
    if asked.tables is None:
        return asked
    topics = topics_of(asked.tables.tables, asked.connection.prefix, existing_tables(asked.connection))
    return replace(asked, topics=frozenset(topics), tables=None)


def _of_the_same_partitions(start: Offsets, end: Offsets, ranges: Sequence[Range]) -> tuple[Offsets, Offsets]:
    """Return both with all partitions of both, which Spark's source requires.

    A range begins with the first record that Kafka has, and Spark's source refuses to begin before it. A partition
    without a range has nothing to read.
    """
    firsts = {(part.topic, str(part.partition)): part.start for part in ranges}
    places = {
        (topic, one) for offsets in (start, end) for topic, numbers in offsets.items() for one in numbers
    }
    starting: Offsets = {}
    ending: Offsets = {}
    for topic, one in places:
        last = end.get(topic, {}).get(one, start.get(topic, {}).get(one, 0))
        starting.setdefault(topic, {})[one] = firsts.get((topic, one), last)
        ending.setdefault(topic, {})[one] = last
    return normal(starting), normal(ending)


def packages(spark_version: str | None = None) -> list[str]:
    """Return the Maven coordinates for `spark.jars.packages` that fit a version of Spark; None: the installed one.

    They are those of Delta Lake, Iceberg where it has a release, Spark's Kafka source and its Avro. `format("cdcd")`,
    `decode` and the Parquet mirror need none of them. Raises ConfigError for a version without known packages.
    """
    if spark_version is None:
        import pyspark

        spark_version = pyspark.__version__
    line = ".".join(spark_version.split(".")[:2])
    if line not in _PACKAGES:
        raise ConfigError(
            f'no packages are known for Spark {line}, only for {" and ".join(sorted(_PACKAGES))}: format("cdcd"), '
            "decode and the Parquet mirror need none",
            hint="install a pyspark of these series to use Spark's own Kafka source, Avro, Delta Lake or Iceberg",
        )
    return [form.format(line, version) for form, version in _PACKAGES[line].items()]
