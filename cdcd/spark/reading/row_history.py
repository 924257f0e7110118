"""The history of a mirrored table: every version of each row, with the time from and until which it was valid.

In: a target of SCD type 2, a table, a position in the source.
Out: a DataFrame in the form of Databricks' SCD type 2: `__start_at`, `__end_at`.
Invariant: the versions of a key do not overlap, and those valid at a commit are the rows of the table as of it, as
far as the history goes back and all values are known. A value that PostgreSQL did not send is that of the row before.
A row that was copied again without a difference is one version.
Must not: read rows before a query does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import StructField, StructType

from cdcd.errors import ConfigError, SparkReadError
from cdcd.spark.clients.sent_to_tasks import for_tasks
from cdcd.spark.decoding.columns import arrow_type, without_time
from cdcd.spark.decoding.decode import spark_type
from cdcd.spark.decoding.events import BEGUN_ANEW, SNAPSHOT, TRUNCATES
from cdcd.spark.decoding.exact_json import EXACT_JSON
from cdcd.spark.decoding.name_lists import check_lists
from cdcd.spark.reading.chosen_table import refuse_unfinished, topic_of
from cdcd.spark.reading.mirror import At, read_mirror
from cdcd.spark.storage.uri import Storage, Target
from cdcd.spark.tables.table_files import read_ends, read_history
from cdcd.spark.target.shape import AT_TYPE, KEY, SPECIAL, SPECIAL_TYPE
from cdcd.spark.target.versions import TableEntry

__all__ = ["history"]

Reading = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
_ROWS = 10_000
_ROW, _CHANGE, _UNSENT, _ENDS = "row", "change", "unsent", "ends"
_CHANGE_TYPE = pa.struct([("at", AT_TYPE), ("commit_us", pa.int64()), ("op", pa.string())])
"""A change; the first field orders changes."""
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
    loading: bool = False,
    parked: bool = False,
) -> DataFrame:
    """Return the versions of each row of a table, in no order.

    The table's columns, `__special`, and
    `__start_at`, `__end_at`: struct of `timeline`, `commit_lsn`, `tx_seq`: the change that made the version, and the
    one that ended it; `__end_at` is null for a row that is valid. `__start_time`, `__end_time`: the times of their
    commits, null if unknown. Within one timeline a version that is valid at an LSN has
    `__start_at.commit_lsn <= lsn`, and no `__end_at.commit_lsn <= lsn`.

    `track_history_column_list`: only a change of one of these columns makes a new version; others change the version
    in place. `track_history_except_column_list`: all columns but these. `at`: as in `read_mirror`.
    `loading`: also of a table that cdcd still copies, which lacks rows; `parked`: also of one that is not updated.
    Raises SparkReadError if the target has no history, or the table has none, TablesParked, ConfigError.
    """
    opened = read_mirror(target, target_options, at=at)
    topic = topic_of(opened, table)
    entry = opened.version.tables[topic]
    if opened.version.scd_type != 2:
        raise SparkReadError(
            "the mirror has no history",
            hint="mirror into another target with stored_as_scd_type=2 (--scd 2)",
            target=opened.target.uri,
        )
    if entry.keyed is False:
        raise SparkReadError(
            "a table without a key has no history",
            hint="create a primary key, then copy the table again; `consistent_view` has its current rows",
            table=table,
            target=opened.target.uri,
        )
    names = [one.name for one in entry.fields]
    if taken := sorted(set(names) & set(ADDED)):
        raise SparkReadError(
            "the table has columns with names of the history",
            hint="rename them in PostgreSQL; `consistent_view` has the current rows",
            table=table,
            columns=", ".join(taken),
        )
    refuse_unfinished(opened, topic, loading=loading, parked=parked)
    tracked = _tracked(names, track_history_column_list, track_history_except_column_list)
    return _versions(_lines(spark, opened.target, entry), _ends(spark, opened.target, entry), entry, tracked)


def _tracked(names: Sequence[str], only: Sequence[str] | None, without: Sequence[str] | None) -> list[str]:
    """Return the columns whose changes make a version. Raises ConfigError."""
    if only is not None and without is not None:
        raise ConfigError(
            "track_history_column_list and track_history_except_column_list exclude each other",
            hint="pass only one of them",
        )
    check_lists(track_history_column_list=only, track_history_except_column_list=without)
    if unknown := sorted({*(only or ()), *(without or ())} - set(names)):
        raise ConfigError(
            "the table has no such column",
            hint=f"correct the name; the columns are {', '.join(names)}",
            columns=", ".join(unknown),
        )
    if only is not None:
        return list(only)
    return [name for name in names if name not in (without or ())]


# --- read the files ------------------------------------------------------------------------------------------


def _lines(spark: SparkSession, target: Storage, entry: TableEntry) -> DataFrame:
    """Return the changes of rows: `row` (`c0`, `c1`, ... and `special`), `__key`, `change`, `unsent` (places)."""
    types = [without_time(arrow_type(one.avro)) for one in entry.fields]
    row = pa.struct([*((f"c{place}", one) for place, one in enumerate(types)), ("special", SPECIAL_TYPE)])
    unsent_type = pa.list_(pa.int32())
    columns = pa.schema([(_ROW, row), (KEY, pa.binary()), (_CHANGE, _CHANGE_TYPE), (_UNSENT, unsent_type)])
    places = {one.number: place for place, one in enumerate(entry.fields)}
    shape, files = entry.shape(), entry.history

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("file").to_pylist():
                lines = read_history(target, shape, files[number])
                lines = lines.filter(lines[KEY].is_valid())
                for one in lines.to_batches(max_chunksize=_ROWS):
                    held = [column.cast(kind) for column, kind in zip(one.columns, types, strict=False)]
                    special, key, change = one.columns[len(types) :]
                    changed = [
                        pa.StructArray.from_arrays([*held, special], fields=list(row)),
                        key,
                        _changes(change),
                        _placed(pc.struct_field(change, "unsent"), places),
                    ]
                    yield pa.RecordBatch.from_arrays(changed, schema=columns)

    return _in_tasks(spark, len(files), read, columns)


def _changes(change: pa.StructArray) -> pa.StructArray:
    parts = [pc.struct_field(change, one.name) for one in _CHANGE_TYPE]
    return pa.StructArray.from_arrays(parts, fields=list(_CHANGE_TYPE))


def _placed(unsent: pa.ListArray, places: Mapping[int, int]) -> pa.Array:
    """Return the places of columns without a value, by their numbers; few lines have any."""
    if unsent.null_count == len(unsent):
        return pa.nulls(len(unsent), unsent.type)
    found = [
        None if numbers is None else [places[number] for number in numbers if number in places]
        for numbers in unsent.to_pylist()
    ]
    return pa.array(found, unsent.type)


def _ends(spark: SparkSession, target: Storage, entry: TableEntry) -> DataFrame:
    """Return the changes that end all rows, as the column `change`."""
    files, columns = entry.history, pa.schema([(_CHANGE, _CHANGE_TYPE)])

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("file").to_pylist():
                for one in read_ends(target, files[number]).to_batches():
                    yield pa.RecordBatch.from_arrays([_changes(one.column(0))], schema=columns)

    return _in_tasks(spark, len(files), read, columns)


def _in_tasks(spark: SparkSession, count: int, read: Reading, columns: pa.Schema) -> DataFrame:
    schema = StructType([StructField(one.name, spark_type(one.type)) for one in columns])
    if not count:
        return spark.createDataFrame([], schema)
    numbers = spark.createDataFrame([(number,) for number in range(count)], "file int")
    return numbers.repartition(count).mapInArrow(for_tasks(read), schema)


# --- versions of rows ----------------------------------------------------------------------------------------


def _versions(lines: DataFrame, ends: DataFrame, entry: TableEntry, tracked: Sequence[str]) -> DataFrame:
    """Return the versions: lines of one key in their order, those without a difference as one."""
    all_ends = _counted(ends).agg(F.sort_array(F.collect_list(_CHANGE)).alias(_ENDS))
    filled = _filled(lines.crossJoin(F.broadcast(all_ends)), entry)
    by_key = Window.partitionBy(KEY).orderBy(f"{_CHANGE}.at")
    before = F.lag(F.struct(_ROW, "is_known", _CHANGE)).over(by_key)
    described = filled.select(
        *(_ROW, KEY, "is_known", _CHANGE),
        _ended(F.lead(_CHANGE).over(by_key)).alias("ended"),
        _continues(before, entry, tracked).alias("continues"),
    )
    number = F.sum(F.when(F.col("continues"), 0).otherwise(1)).over(by_key)
    grouped = (
        described.withColumn("version", number)
        .groupBy(KEY, "version")
        .agg(
            F.max_by(_ROW, f"{_CHANGE}.at").alias(_ROW),
            F.min(_CHANGE).alias("began"),
            F.max_by("ended", f"{_CHANGE}.at").alias("ended"),
            F.min("is_known").alias("is_known"),
        )
    )
    present = grouped.where((F.col("began.op") != "d") & F.col("is_known"))
    return present.select(
        *(F.col(_ROW)[f"c{place}"].alias(one.name) for place, one in enumerate(entry.fields)),
        F.col(_ROW)["special"].alias(SPECIAL),
        _position("began").alias(_START),
        _position("ended").alias(_END),
        F.timestamp_micros("began.commit_us").alias(_START_TIME),
        F.timestamp_micros("ended.commit_us").alias(_END_TIME),
    )


def _counted(ends: DataFrame) -> DataFrame:
    """Return the changes that end all rows, without the TRUNCATEs of copies that another copy followed too soon."""
    in_order = Window.partitionBy(_is_copy(F.col(_CHANGE))).orderBy(f"{_CHANGE}.at")
    following = F.lead(F.col(_CHANGE)["op"]).over(in_order)
    is_counted = F.coalesce(following != BEGUN_ANEW, F.lit(True))
    return ends.select(_CHANGE, is_counted.alias("is_counted")).where("is_counted").select(_CHANGE)


def _is_copy(end: Column) -> Column:
    """Return whether an end of all rows is the TRUNCATE of a copy."""
    return end["op"].isin(*TRUNCATES) & (end["at"]["phase"] == SNAPSHOT)


def _filled(lines: DataFrame, entry: TableEntry) -> DataFrame:
    """Return the lines with the values that updates did not send, and `is_known`: whether all values are there.

    A value is that of the newest line before that has one, in the run of updates since the row was there.
    """
    by_key = Window.partitionBy(KEY).orderBy(f"{_CHANGE}.at")
    at, previous = F.col(_CHANGE)["at"], F.lag(F.col(_CHANGE)["at"]).over(by_key)
    is_ended = F.exists(_ENDS, lambda one: (one["at"] > previous) & (one["at"] < at))
    begins = (F.col(_CHANGE)["op"] != "u") | previous.isNull() | is_ended
    runs = lines.withColumn("run", F.sum(F.when(begins, 1).otherwise(0)).over(by_key))
    so_far = Window.partitionBy(KEY, "run").orderBy(f"{_CHANGE}.at").rowsBetween(Window.unboundedPreceding, 0)
    values = []
    for place, one in enumerate(entry.fields):
        own = F.struct(
            F.col(_ROW)[f"c{place}"].alias("value"), _text_of(F.col(_ROW)["special"], one.name).alias("text")
        )
        is_sent = F.col(_UNSENT).isNull() | ~F.array_contains(_UNSENT, F.lit(place))
        values.append(F.last(F.when(is_sent, own), ignorenulls=True).over(so_far).alias(f"v{place}"))
    found = runs.select(_ROW, KEY, _CHANGE, _ENDS, _UNSENT, *values)
    texts = F.array(
        *(
            F.struct(F.lit(one.name).alias("key"), F.col(f"v{place}.text").alias("value"))
            for place, one in enumerate(entry.fields)
        )
    )
    special = F.map_from_entries(F.filter(texts, lambda one: one["value"].isNotNull()))
    row = F.struct(
        *(F.col(f"v{place}.value").alias(f"c{place}") for place in range(len(entry.fields))),
        F.when(F.size(special) > 0, special).alias("special"),
    )
    is_known = F.lit(True)
    for place in range(len(entry.fields)):
        is_known &= F.col(f"v{place}").isNotNull()
    return found.select(row.alias(_ROW), KEY, _CHANGE, _ENDS, is_known.alias("is_known"))


def _text_of(special: Column, name: str) -> Column:
    """Return the text of a value outside its type, null without one."""
    return F.try_element_at(special, F.lit(name))


def _ended(following: Column) -> Column:
    """Return the change that ends the row of a line, null if none does. `following`: that of the key's next line.

    The TRUNCATE of a copy ends the rows that are not there any more: those without a next line, or with an insert, or
    with a line after the next copy. A row that is copied, or that the stream changes or deletes before it is copied,
    was there until then. A copy that was not complete when the next one began ends nothing (`_counted`).
    """
    first_end = F.get(F.filter(_ENDS, lambda one: one["at"] > F.col(_CHANGE)["at"]), F.lit(0))
    was_there = following["at"].isNotNull() & _passes(F.col(_CHANGE), following)
    return F.when(was_there, following).otherwise(first_end)


def _passes(line: Column, following: Column) -> Column:
    """Return whether no end is between two lines of a row, or only that of the copy whose row the later line is."""
    ends = F.filter(_ENDS, lambda one: (one["at"] > line["at"]) & (one["at"] < following["at"]))
    end = F.get(ends, F.lit(0))
    return (F.size(ends) == 0) | ((F.size(ends) == 1) & _is_copy(end) & (following["op"] != "c"))


def _continues(before: Column, entry: TableEntry, tracked: Sequence[str]) -> Column:
    """Return whether a line has the version of the line before: a row without a difference.

    A row that is copied again follows a TRUNCATE of the snapshot, which ends no version; one of the source does. A
    row that is inserted or found after a copy that has not found it is another one, also if it has the same values.
    """
    is_row = (F.col(_CHANGE)["op"] != "d") & (before[_CHANGE]["op"] != "d")
    goes_on = _passes(before[_CHANGE], F.col(_CHANGE))
    is_same = F.col("is_known") == before["is_known"]
    values = [_values(F.col(_ROW), entry, tracked), _values(before[_ROW], entry, tracked)]
    return F.coalesce(is_row & is_same & goes_on & values[0].eqNullSafe(values[1]), F.lit(False))


def _values(row: Column, entry: TableEntry, names: Sequence[str]) -> Column:
    """Return columns of a row as a text that differs if they differ."""
    specials = F.map_filter(row["special"], lambda name, _: name.isin(list(names)))
    columns = (
        row[f"c{place}"].alias(f"c{place}") for place, one in enumerate(entry.fields) if one.name in names
    )
    special = F.when(F.size(specials) > 0, specials)  # the row may have texts of other columns only
    return F.to_json(F.struct(*columns, special.alias("special")), EXACT_JSON)


def _position(change: str) -> Column:
    """Return a change's position as Databricks' `sequence_by` has it, null without one."""
    at = F.col(f"{change}.at")
    parts = F.struct(*(at[name].alias(name) for name in ("timeline", "commit_lsn", "tx_seq")))
    return F.when(at.isNotNull(), parts)
