"""Compare a mirror with its topics: does each table have the rows that result from the changes?

In: a connection, the target of a mirror.  Out: for each table whether it is equal, or how it differs, or why that
cannot be known.
Invariant: the topics are read up to exactly the offsets of the mirror's version, and folded by `sql_fold`, not by
the code of the mirror. A table is never equal by default: what cannot be known is a result of its own, with the
reason.
Must not: change the mirror; show a value of a row, or a key that was not asked for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import StructType

from cdcd.errors import CdcdError, SparkReadError
from cdcd.lsn import format_lsn
from cdcd.spark.clients.connection import Connection
from cdcd.spark.clients.kafka import Cluster
from cdcd.spark.clients.sent_to_tasks import for_tasks
from cdcd.spark.data_source import register
from cdcd.spark.decoding.decode import decode, decoding_of
from cdcd.spark.decoding.schemas import access_of, schema_by_id
from cdcd.spark.formats.other_readers import other_rows
from cdcd.spark.mirroring.batches import is_table
from cdcd.spark.mirroring.sql_fold import History, fold, history_of, order_changes, value_of
from cdcd.spark.mirroring.verified_columns import CurrentNames, current_names
from cdcd.spark.reading.mirror import Mirror, read_mirror
from cdcd.spark.reading.table_frame import table_frame
from cdcd.spark.session import first_line, is_of_spark, reason_of
from cdcd.spark.source.cuts import ids_of, with_ids
from cdcd.spark.source.table_options import topics_of
from cdcd.spark.target.shape import SPECIAL, Field
from cdcd.spark.target.versions import TableEntry

Status = Literal["equal", "differs", "unknown"]
KINDS = ("missing", "extra", "different")
SHOWN_KEYS = 10
READERS = "16"


@dataclass(frozen=True, slots=True)
class TableResult:
    """The result of one table. `keys`: of some rows of each kind, as JSON, or as digests.

    `unknown_rows`: rows of a table that differs whose own state is not known. `lsn`: all commits below it are in the
    compared version of the mirror, and not all later ones; None: unknown.
    """

    topic: str
    status: Status
    reason: str = ""
    rows_in_topic: int = 0
    rows_in_mirror: int = 0
    missing: int = 0
    extra: int = 0
    different: int = 0
    unknown_rows: int = 0
    keys: Mapping[str, tuple[str, ...]] | None = None
    lsn: str | None = None


@contextmanager
def _persisted(frame: DataFrame) -> Iterator[DataFrame]:
    """Have the frame computed once in the block, however often it is used there."""
    frame = frame.persist()
    try:
        yield frame
    finally:
        frame.unpersist()


_CASE_SENSITIVE = "spark.sql.caseSensitive"


class _Unknown(Exception):
    """The reason why a table cannot be compared."""


@dataclass(frozen=True, slots=True)
class _Shown:
    """How many keys of each kind of difference are shown, and whether as texts; otherwise as digests."""

    most: int
    has_texts: bool


def verify(
    spark: SparkSession,
    connection: Connection,
    target: str,
    *,
    target_options: Mapping[str, str] | None = None,
    tables: Sequence[str] = ("*",),
    shows_keys: bool = False,
    most_keys: int = SHOWN_KEYS,
    is_over: Callable[[], bool] = lambda: False,
) -> Iterator[TableResult]:
    """Yield the result of each table that `tables` names, by name or pattern.

    `most_keys`: of the rows of each kind of difference. `is_over`: whether the time is over, after which
    Spark's jobs are cancelled, and no table is compared.
    Raises SparkReadError if there is no mirror, or one of another prefix or cluster, or no such table.
    """
    opened = read_mirror(target, target_options)
    cluster = Cluster(connection.brokers, connection.read_properties())
    _check_origin(opened, connection, cluster)
    register(spark)
    version = opened.version
    existing = {topic for topic in version.offsets if is_table(topic, version.prefix)} | set(version.tables)
    existing -= version.dropped.keys()
    lsn = format_lsn(reached) if (reached := opened.reached_lsn()) else None
    for topic in topics_of(tables, version.prefix, existing):
        if is_over():
            yield TableResult(topic, "unknown", _OVER, lsn=lsn)
            continue
        table = _Table(spark, connection, cluster, opened, topic, _Shown(most_keys, shows_keys))
        try:
            with _distinguished_cases(spark):
                result = table.compare()
        except _Unknown as error:
            result = TableResult(topic, "unknown", str(error))
        except Exception as error:  # noqa: BLE001 - also of the JVM; another table may need less
            result = TableResult(topic, "unknown", _OVER if is_over() else why(error))
        yield replace(result, lsn=lsn)


@contextmanager
def _distinguished_cases(spark: SparkSession) -> Iterator[None]:
    """PostgreSQL distinguishes columns that differ only in case; so does a comparison."""
    was = spark.conf.get(_CASE_SENSITIVE)
    spark.conf.set(_CASE_SENSITIVE, "true")
    try:
        yield
    finally:
        spark.conf.set(_CASE_SENSITIVE, was or "false")


def why(error: Exception) -> str:
    """Return cdcd's error in one line, of another error only its name: its text may have values."""
    reason = reason_of(error)
    if isinstance(error, CdcdError) or reason != first_line(error):
        return reason
    if is_of_spark(error):
        condition = error.getCondition() if isinstance(error, PySparkException) else None
        return f"Spark failed: {condition or type(error).__name__}"
    return f"an internal error: {type(error).__name__}"


def _check_origin(opened: Mirror, connection: Connection, cluster: Cluster) -> None:
    version = opened.version
    for what, mirrored, now in (
        ("prefix", version.prefix, connection.prefix),
        ("Kafka cluster", version.cluster, cluster.id()),
    ):
        if mirrored not in ("", now):
            raise SparkReadError(
                f"the target mirrors another {what}",
                hint="choose the target of this mirror, or the connection with which the target was created",
                target=opened.target.uri,
                has=mirrored,
                now=now,
            )


class _Table:
    """One table of the mirror, and its topic."""

    def __init__(
        self,
        spark: SparkSession,
        connection: Connection,
        cluster: Cluster,
        opened: Mirror,
        topic: str,
        shown: _Shown,
    ) -> None:
        self._spark, self._connection, self._cluster = spark, connection, cluster
        self._opened, self._topic, self._shown = opened, topic, shown
        self._entry = opened.version.tables.get(topic, TableEntry(topic))
        self._ids = ids_of(opened.version.offsets)
        self._ends = {
            partition: end for partition, end in opened.version.offsets.get(topic, {}).items() if end > 0
        }

    @property
    def _fields(self) -> list[Field]:
        """The columns, without retained ones, which the newest schema of the topic does not have."""
        return [one for one in self._entry.fields if not one.retained]

    def compare(self) -> TableResult:
        """Return the result. Raises _Unknown. Rows that differ are certain, whatever other readers find."""
        others = other_rows(self._opened.target, self._opened.version, self._entry)
        result = self._compare()
        if result.status == "equal" and others:
            raise _Unknown(others)
        return result

    def _compare(self) -> TableResult:
        if self._topic in self._opened.version.loading:
            raise _Unknown(
                "cdcd still copied the table at the mirror's commit; verify again when it is complete"
            )
        if not self._ends and self._entry.is_empty:
            return TableResult(self._topic, "equal")  # no record of the topic is before the mirror's commit
        if self._entry.keyed is False and self._entry.fields:
            raise _Unknown(_NO_KEY)
        if not self._ends:
            return self._without_changes()
        if self._entry.parked is not None:
            raise _Unknown(f"the table is parked: {self._entry.parked.code}: {self._entry.parked.reason}")
        with _persisted(order_changes(self._changes())) as changes:
            return self._judge(changes)

    def _judge(self, changes: DataFrame) -> TableResult:
        history = history_of(changes)
        self._check(history)
        if not history.last:
            return self._without_changes()
        if "key" not in changes.columns:
            raise _Unknown(_NO_KEY)
        names = current_names(self._topic, history.last, partial(schema_by_id, access_of(self._connection)))
        mirrored = [one.name for one in self._fields]
        if wrong := set(mirrored) ^ set(names.shown.values()):
            return TableResult(
                self._topic,
                "differs",
                f"the mirror has other columns than the topic: {', '.join(sorted(wrong))}",
            )
        if names.renames:
            with _persisted(order_changes(self._changes(names))) as renamed:
                return self._compared(renamed, history, names)
        return self._compared(changes, history, names)

    def _compared(self, changes: DataFrame, history: History, names: CurrentNames) -> TableResult:
        """Compare the rows. `changes`: with the current names."""
        if names.left is not None and (history.emptied is None or history.emptied < names.left):
            history = replace(history, emptied=names.left)
        columns = self._typed(changes)
        began = names.began(history.last, [one.name for one in self._fields])
        expected = fold(changes, columns, history, began)
        return self._joined(expected, self._mirrored(changes, columns), len(columns))

    def _without_changes(self) -> TableResult:
        """Return the result of a topic without a change: each row of the mirror is extra."""
        if self._entry.is_empty:
            return TableResult(self._topic, "equal")
        changes = self._changes()
        if "key" not in changes.columns:
            raise _Unknown(_NO_KEY)
        columns = self._typed(changes)
        mirrored = self._mirrored(changes, columns)
        return self._joined(mirrored.where("false"), mirrored, len(columns))

    # --- what cannot be known

    def _check(self, history: History) -> None:
        if history.keyless:
            raise _Unknown(_NO_KEY)
        if history.gap is not None and (history.emptied is None or history.gap > history.emptied):
            raise _Unknown(
                "the topic has a marker of missing changes, which the mirror has passed with --accept-gaps"
            )
        starts = self._cluster.starts([(self._topic, int(partition)) for partition in self._ends])
        removed = [partition for (_, partition), start in starts.items() if start > 0]
        if set(removed) - history.emptied_in:
            raise _Unknown("Kafka has removed the first records of the topic (its retention)")
        policy = self._cluster.cleanup_policy(self._topic)
        if policy is None:
            raise _Unknown("the cleanup.policy of the topic cannot be read: grant DescribeConfigs on it")
        if "compact" in policy:
            raise _Unknown("the topic is compacted, so that records may be missing")

    # --- both sides

    def _changes(self, names: CurrentNames | None = None) -> DataFrame:
        options = self._connection.options() | {
            "topics": self._topic,
            "endingOffsets": json.dumps(with_ids({self._topic: self._ends}, self._ids)),
            "readers": READERS,
        }
        raw = self._spark.read.format("cdcd").options(**options).load()
        if names is None:
            return decode(raw, topic=self._topic, connection=self._connection)
        decoding = names.decoding(decoding_of(access_of(self._connection), [self._topic]))
        return names.renamed(raw.mapInArrow(for_tasks(decoding.decode), decoding.schema))

    def _typed(self, changes: DataFrame) -> list[tuple[str, str]]:
        """Return the mirror's columns with the types of `decode`."""
        types = {one.name: one.dataType.simpleString() for one in changes.schema["after"].dataType.fields}
        gone = [one.name for one in self._fields if one.name not in types]
        if gone:
            raise _Unknown(f"the newest schema of the topic lacks columns of the mirror: {', '.join(gone)}")
        return [(one.name, types[one.name]) for one in self._fields]

    def _mirrored(self, changes: DataFrame, columns: Sequence[tuple[str, str]]) -> DataFrame:
        """Return the mirror's rows in the form of `fold`."""
        rows = table_frame(self._spark, self._opened.target, self._entry)
        key = changes.schema["key"].dataType
        assert isinstance(key, StructType)
        if missing := [one.name for one in key if one.name not in dict(columns)]:
            raise _Unknown(f"the rows have no columns {', '.join(missing)}, which the key has")
        types = dict(columns)
        of_key = [_column(one.name).cast(one.dataType).alias(one.name) for one in key]
        values = [
            value_of(_column(name), F.col(SPECIAL)[name], types[name]).alias(f"c{number}")
            for number, (name, _) in enumerate(columns)
        ]
        return rows.select(F.struct(*of_key).alias("key"), *values)

    def _joined(self, expected: DataFrame, mirrored: DataFrame, width: int) -> TableResult:
        numbered = [f"c{n}" for n in range(width)]
        lacking = F.expr(" or ".join(f"{one} is null" for one in numbered))
        sides = [
            side.select(
                "key", F.struct(*numbered).alias("row"), has_not.alias("has_not"), F.lit(name).alias("side")
            )
            for side, has_not, name in ((expected, lacking, "topic"), (mirrored, F.lit(False), "mirror"))
        ]
        rows = (
            sides[0]
            .union(sides[1])
            .groupBy("key")
            .agg(
                F.expr("first(row, true) filter (where side = 'topic')").alias("expected"),
                F.expr("first(row, true) filter (where side = 'mirror')").alias("found"),
                F.expr("count(*) filter (where side = 'topic')").alias("in_topic"),
                F.expr("count(*) filter (where side = 'mirror')").alias("in_mirror"),
                F.expr("bool_or(has_not)").alias("has_not"),
            )
            .withColumn("kind", _kind_of(_is_null_within("key", expected), numbered))
        )
        return self._counted(rows)

    def _counted(self, rows: DataFrame) -> TableResult:
        """Return the result of joined rows. A difference is certain, whatever cannot be known of other rows."""
        counts = rows.agg(
            *(F.coalesce(F.sum(F.expr(text)), F.lit(0)).alias(name) for name, text in _COUNTS.items())
        ).collect()[0]
        found = {kind: counts[kind] for kind in KINDS}
        if not any(found.values()):
            for kind, reason in _OPEN.items():
                if counts[kind]:
                    raise _Unknown(f"{counts[kind]} rows {reason}")
        keys, reason = _shown_keys(rows, self._shown) if any(found.values()) else ({}, "")
        return TableResult(
            self._topic,
            "differs" if any(found.values()) else "equal",
            reason,
            rows_in_topic=counts["in_topic"],
            rows_in_mirror=counts["in_mirror"],
            unknown_rows=sum(counts[kind] for kind in _OPEN),
            keys=keys,
            **found,
        )


_OVER = "the table was not compared within the time (--mirror-timeout)"
_NO_KEY = "the table has no key, and the rows of such a table are not compared"
_OPEN = {
    "unsent": "have values that PostgreSQL did not send, and that no copy of the table has",
    "null_key": "have a key outside the type of its column",
}
"""Kinds of rows whose state is not known."""
_COUNTS = {
    **{kind: f"int(kind = '{kind}')" for kind in (*KINDS, *_OPEN)},
    "extra": "if(kind = 'extra', in_mirror - in_topic, 0)",
    "in_topic": "in_topic",
    "in_mirror": "in_mirror",
}


def _kind_of(is_null_key: Column, numbered: Sequence[str]) -> Column:
    """Return the kind of a joined row, null for an equal one. A value that no change has is not compared."""
    differs = " or ".join(
        f"(expected.{one} is not null and not (expected.{one} <=> found.{one}))" for one in numbered
    )
    return (
        F.when(is_null_key, F.lit("null_key"))
        .when(F.expr("in_mirror > in_topic"), F.lit("extra"))
        .when(F.expr("in_mirror = 0"), F.lit("missing"))
        .when(F.expr(differs), F.lit("different"))
        .when(F.expr("has_not"), F.lit("unsent"))
    )


def _shown_keys(rows: DataFrame, shown: _Shown) -> tuple[dict[str, tuple[str, ...]], str]:
    """Return the keys of the first rows of each kind, and why there are none: that rows differ is known without."""
    try:
        return _keys(rows, shown), ""
    except Exception as error:  # noqa: BLE001 - as that of a table
        return {}, f"the keys of the rows that differ could not be read: {why(error)}"


def _keys(rows: DataFrame, shown: _Shown) -> dict[str, tuple[str, ...]]:
    key = F.to_json("key")
    text = key if shown.has_texts else F.substring(F.sha2(key, 256), 1, 16)
    chosen = rows.where(F.col("kind").isin(*KINDS)).select("kind", text.alias("key"))
    number = F.row_number().over(Window.partitionBy("kind").orderBy("key"))
    first = chosen.withColumn("number", number).where(F.col("number") <= shown.most).collect()
    return {
        kind: tuple(sorted(row["key"] for row in first if row["kind"] == kind))
        for kind in KINDS
        if any(row["kind"] == kind for row in first)
    }


def _is_null_within(key: str, frame: DataFrame) -> Column:
    type_ = frame.schema[key].dataType
    assert isinstance(type_, StructType)
    is_null = F.lit(False)
    for one in type_:
        is_null = is_null | F.col(key).getField(one.name).isNull()
    return is_null


def _column(name: str) -> Column:
    return F.col("`" + name.replace("`", "``") + "`")
