"""The history of a mirrored table: every version of each row, with the time from and until which it was valid.

In: a target of SCD type 2, a table, a position in the source.
Out: a DataFrame in the form of Databricks' SCD type 2: `__start_at`, `__end_at`.
Invariant: the versions of a key do not overlap, and those valid at a commit are the rows of the table as of it, as
far as the history goes back. A row that was copied again without a difference is one version.
Must not: read rows before a query does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import StructField, StructType

from cdcd.errors import ConfigError, SparkReadError
from cdcd.spark.columns import arrow_type, without_time
from cdcd.spark.decoding import spark_type
from cdcd.spark.events import SNAPSHOT
from cdcd.spark.exact_json import EXACT_JSON
from cdcd.spark.reading import At, read_mirror
from cdcd.spark.shape import AT, AT_TYPE, COMMIT_US, KEY, MISSING, OP, SPECIAL, SPECIAL_TYPE
from cdcd.spark.storage import Storage, Target
from cdcd.spark.table_files import read_ends, read_history
from cdcd.spark.versions import TableEntry

__all__ = ["history"]

Reading = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
_ROWS = 10_000
_ROW, _CHANGE, _ENDS, _KNOWN = "__row", "__change", "__ends", "__known"
_START, _END = "__start_at", "__end_at"
_START_TIME, _END_TIME = "__start_time", "__end_time"
ADDED = (_START, _END, _START_TIME, _END_TIME)


def history(
    spark: SparkSession,
    target: Target,
    table: str,
    *,
    at: At | None = None,
    track_history_column_list: Sequence[str] | None = None,
    track_history_except_column_list: Sequence[str] | None = None,
    target_options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return the versions of each row of a table, in no order.

    The table's columns, `__special`, and
    `__start_at`, `__end_at`: struct of `timeline`, `commit_lsn`, `tx_seq`: the change that made the version, and the
    one that ended it; `__end_at` is null for a row that is valid. `__start_time`, `__end_time`: the times of their
    commits, null if unknown. A version that is valid at an LSN has `__start_at.commit_lsn <= lsn`, and no
    `__end_at.commit_lsn <= lsn`.

    `track_history_column_list`: only a change of one of these columns makes a new version; others change the version
    in place. `track_history_except_column_list`: all columns but these. `at`: as in `read_mirror`.
    Raises SparkReadError if the target has no history, or the table has none, ConfigError.
    """
    opened = read_mirror(target, target_options, at=at)
    topic = f"{opened.version.prefix}.{table}"
    entry = opened.version.tables.get(topic)
    if entry is None:
        raise SparkReadError("the mirror has no such table", table=table, target=opened.target.uri)
    if opened.version.scd_type != 2:
        raise SparkReadError(
            "the mirror has no history",
            hint="mirror into another target with stored_as_scd_type=2 (--scd 2)",
            target=opened.target.uri,
        )
    if entry.keyed is False:
        raise SparkReadError("a table without a key has no history", table=table, target=opened.target.uri)
    names = [one.name for one in entry.fields]
    if taken := sorted(set(names) & set(ADDED)):
        raise SparkReadError(
            "the table has columns with names of the history", table=table, columns=", ".join(taken)
        )
    tracked = _tracked(names, track_history_column_list, track_history_except_column_list)
    return _versions(_lines(spark, opened.target, entry), _ends(spark, opened.target, entry), names, tracked)


def _tracked(names: Sequence[str], only: Sequence[str] | None, without: Sequence[str] | None) -> list[str]:
    """Return the columns whose changes make a version. Raises ConfigError."""
    if only is not None and without is not None:
        raise ConfigError("pass track_history_column_list or track_history_except_column_list, not both")
    if unknown := sorted({*(only or ()), *(without or ())} - set(names)):
        raise ConfigError("the table has no such column", columns=", ".join(unknown))
    if only is not None:
        return list(only)
    return [name for name in names if name not in (without or ())]


# --- read the files ------------------------------------------------------------------------------------------


def _lines(spark: SparkSession, target: Storage, entry: TableEntry) -> DataFrame:
    """Return the changes of rows: `__row` (columns and `__special`), `__key`, `__change`, `__known`."""
    fields = [pa.field(one.name, without_time(arrow_type(one.avro))) for one in entry.fields]
    row = pa.schema([*fields, pa.field(SPECIAL, SPECIAL_TYPE)])
    columns = pa.schema(
        [(_ROW, pa.struct(list(row))), (KEY, pa.binary()), *_CHANGE_FIELDS, (_KNOWN, pa.bool_())]
    )
    shape, files = entry.shape(), entry.history

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("file").to_pylist():
                lines = read_history(target, shape, files[number])
                lines = lines.filter(lines[KEY].is_valid())
                count = len(row)
                held = lines.select(list(range(count))).cast(row).to_struct_array()
                known = lines[MISSING].is_null()
                changed = pa.Table.from_arrays(
                    [held, lines[KEY], lines[OP], lines[AT], lines[COMMIT_US], known], schema=columns
                )
                yield from changed.to_batches(max_chunksize=_ROWS)

    return _in_tasks(spark, len(files), read, columns)


def _ends(spark: SparkSession, target: Storage, entry: TableEntry) -> DataFrame:
    """Return the changes that end all rows."""
    files = entry.history

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("file").to_pylist():
                found = read_ends(target, files[number])
                yield from found.cast(pa.schema(_CHANGE_FIELDS)).to_batches()

    return _in_tasks(spark, len(files), read, pa.schema(_CHANGE_FIELDS))


_CHANGE_FIELDS = [pa.field(OP, pa.string()), pa.field(AT, AT_TYPE), pa.field(COMMIT_US, pa.int64())]


def _in_tasks(spark: SparkSession, count: int, read: Reading, columns: pa.Schema) -> DataFrame:
    schema = StructType([StructField(one.name, spark_type(one.type)) for one in columns])
    if not count:
        return spark.createDataFrame([], schema)
    numbers = spark.createDataFrame([(number,) for number in range(count)], "file int")
    return numbers.repartition(count).mapInArrow(read, schema)


# --- versions of rows ----------------------------------------------------------------------------------------


def _versions(lines: DataFrame, ends: DataFrame, names: Sequence[str], tracked: Sequence[str]) -> DataFrame:
    """Return the versions: lines of one key in their order, those without a difference as one."""
    change = F.struct(F.col(AT), F.col(COMMIT_US), F.col(OP)).alias(_CHANGE)
    all_ends = ends.select(change).agg(F.sort_array(F.collect_list(_CHANGE)).alias(_ENDS))
    placed = lines.select(_ROW, KEY, _KNOWN, change).crossJoin(F.broadcast(all_ends))
    by_key = Window.partitionBy(KEY).orderBy(f"{_CHANGE}.{AT}")
    following = F.lead(_CHANGE).over(by_key)
    before = F.lag(F.struct(_ROW, _KNOWN, _CHANGE)).over(by_key)
    described = placed.select(
        *(_ROW, KEY, _KNOWN, _CHANGE),
        F.least(following, _first_end()).alias("ended"),
        _continues(before, tracked).alias("continues"),
    )
    number = F.sum(F.when(F.col("continues"), 0).otherwise(1)).over(by_key)
    grouped = (
        described.withColumn("version", number)
        .groupBy(KEY, "version")
        .agg(
            F.max_by(_ROW, f"{_CHANGE}.{AT}").alias("row"),
            F.min(_CHANGE).alias("began"),
            F.max_by("ended", f"{_CHANGE}.{AT}").alias("ended"),
            F.min(_KNOWN).alias("is_known"),
        )
    )
    present = grouped.where((F.col(f"began.{OP}") != "d") & F.col("is_known"))
    return present.select(
        *(F.col("row")[name].alias(name) for name in (*names, SPECIAL)),
        _position("began").alias(_START),
        _position("ended").alias(_END),
        F.timestamp_micros(f"began.{COMMIT_US}").alias(_START_TIME),
        F.timestamp_micros(f"ended.{COMMIT_US}").alias(_END_TIME),
    )


def _first_end() -> Column:
    """Return the first change after the line that ends all rows."""
    later = F.filter(_ENDS, lambda one: one[AT] > F.col(_CHANGE)[AT])
    return F.get(later, F.lit(0))


def _continues(before: Column, tracked: Sequence[str]) -> Column:
    """Return whether a line has the version of the line before: a row without a difference.

    A row that is copied again follows a TRUNCATE of the snapshot, which ends no version; one of the source does.
    """
    is_row = (F.col(_CHANGE)[OP] != "d") & (before[_CHANGE][OP] != "d")
    is_ended = F.exists(
        _ENDS,
        lambda one: (
            (one[AT] > before[_CHANGE][AT])
            & (one[AT] < F.col(_CHANGE)[AT])
            & ((one[OP] != "t") | (one[AT]["phase"] != SNAPSHOT))
        ),
    )
    is_same = F.col(_KNOWN) == before[_KNOWN]
    values = [_values(F.col(_ROW), tracked), _values(before[_ROW], tracked)]
    return F.coalesce(is_row & is_same & ~is_ended & values[0].eqNullSafe(values[1]), F.lit(False))


def _values(row: Column, names: Sequence[str]) -> Column:
    """Return columns of a row as a text that differs if they differ."""
    specials = F.map_filter(row[SPECIAL], lambda name, _: name.isin(list(names)))
    values = F.struct(*(row[name].alias(name) for name in names), specials.alias(SPECIAL))
    return F.to_json(values, EXACT_JSON)


def _position(change: str) -> Column:
    """Return a change's position as Databricks' `sequence_by` has it, null without one."""
    at = F.col(f"{change}.{AT}")
    parts = F.struct(*(at[name].alias(name) for name in ("timeline", "commit_lsn", "tx_seq")))
    return F.when(at.isNotNull(), parts)
