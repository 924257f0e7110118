"""Your own frame of changes into a Delta table: SCD types 1 and 2, with the parameters of Databricks' apply_changes.

In: a DataFrame of changes, in a batch or a stream; the key, the order, and what deletes a row.
Out: a Delta table, written by delta-rs on the driver, so that Spark needs no jar.
Invariant: the table is equal to all changes so far in their order, whatever the order of their arrival. A batch of a
stream that is repeated changes nothing, as each of its changes is known by key and sequence.
Must not: decide how changes become rows (`scd` does); make a Python object for a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructType, UserDefinedType

from cdcd.errors import ConfigError
from cdcd.spark.applying.changed_table import RESERVED, ChangedTable, TableRule
from cdcd.spark.applying.scd import DELETE, OP, SEQUENCE, TRUNCATE, UNSENT, UPSERT
from cdcd.spark.formats.delta_access import check_delta_target, require_delta
from cdcd.spark.session import is_remote
from cdcd.spark.storage.uri import Storage, Target, open_storage
from cdcd.spark.target.commit_log import has_version

__all__ = ["apply_changes"]

Expression: TypeAlias = str | Column
Names: TypeAlias = Sequence[str | Column]
_COLLATION = "UTF8_BINARY"
_NOT_OF_ARROW = ("variant", "geometry", "geography")
_NAMES_TYPE = "array<string>"
_STARTED_WITHIN_S = 60.0
"""The longest time from the first batch of a stream to the return of its start, which has the id of the query."""


def apply_changes(
    source: DataFrame,
    target: Target,
    keys: Names,
    sequence_by: Expression,
    *,
    apply_as_deletes: Expression | None = None,
    apply_as_truncates: Expression | None = None,
    where: Expression | None = None,
    ignore_null_updates: bool | Sequence[str] = False,
    unchanged_column: Expression | None = None,
    column_list: Names | None = None,
    except_column_list: Names | None = None,
    stored_as_scd_type: Literal[1, 2, "1", "2"] = 1,
    track_history_column_list: Names | None = None,
    track_history_except_column_list: Names | None = None,
    checkpoint: str | None = None,
    trigger: Mapping[str, Any] | None = None,
    target_options: Mapping[str, str] | None = None,
) -> StreamingQuery | None:
    """Apply changes to a Delta table, created if there is none; return the query of a stream, None for a batch.

    `sequence_by`: any type with an order, also a struct; unique for each change of a key, and never null.
    `where`: which rows of `source` are changes. `ignore_null_updates`: a null leaves the value of a column as it is,
    in all columns or in these. `unchanged_column`: an array of the names of the frame's columns whose values a change
    does not have. `column_list`: the columns of the table, in addition to the keys.
    Type 2 adds `__start_at` and `__end_at` (null: current), of the type of `sequence_by`; a change makes a new
    version if a tracked column differs, by default any. `trigger`: the arguments of Spark's `trigger`, such as
    {"availableNow": True}. Types and restarts: docs/spark/apply-changes.md.
    Raises ConfigError for parameters that do not fit the frame, the target or each other, ChangesInvalid,
    StorageConflict if another writer was first, StorageError; those of a stream's batches end the query.
    """
    require_delta("apply_changes", "it is called")
    storage = open_storage(target, target_options)
    check_delta_target(storage)
    _refuse_mirror(storage)
    given = _Parameters(
        source=source,
        keys=tuple(_names(source, "keys", keys)),
        columns=_chosen(source, "column_list", column_list, except_column_list),
        tracked=_names_or_none(source, "track_history_column_list", track_history_column_list),
        untracked=_names_or_none(
            source, "track_history_except_column_list", track_history_except_column_list
        ),
        scd_type=_scd_type(stored_as_scd_type),
        ignored_nulls=_ignored_nulls(source, ignore_null_updates),
        unchanged=unchanged_column,
    )
    given.check(has_truncates=apply_as_truncates is not None)
    frame = given.frame(where, sequence_by, apply_as_deletes, apply_as_truncates)
    table = ChangedTable(storage, given.rule())
    if not source.isStreaming:
        if checkpoint is not None or trigger is not None:
            raise ConfigError(
                "checkpoint and trigger are for streams", hint="omit these parameters, or pass a stream"
            )
        table.apply(frame.toArrow())
        return None
    return _started(frame, table.apply, checkpoint, trigger or {})


def _refuse_mirror(target: Storage) -> None:
    """Raise ConfigError for the target of a mirror: its next start would remove the files of the table."""
    if has_version(target):
        raise ConfigError(
            "the target of apply_changes is that of a mirror",
            hint="choose an empty target",
            target=target.uri,
        )


Apply = Callable[[pa.Table, tuple[str, int] | None], bool]


def _started(
    frame: DataFrame, apply: Apply, checkpoint: str | None, trigger: Mapping[str, Any]
) -> StreamingQuery:
    """Start the query. The table has its id, so that a later batch finds whether it is still the same table."""
    if checkpoint is None:
        raise ConfigError("a stream needs a checkpoint", hint='add checkpoint="/data/checkpoints/orders"')
    if is_remote(frame.sparkSession):
        raise ConfigError(
            "a stream in a session of Spark Connect would write its batches on the server",
            hint="run apply_changes in a session of Spark's driver, such as by spark-submit",
        )
    identity: Future[str] = Future()

    def write(batch: DataFrame, number: int) -> None:
        name = f"cdcd.apply_changes/{identity.result(_STARTED_WITHIN_S)}"
        apply(batch.toArrow(), (name, number))

    writer = frame.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)
    query = (writer.trigger(**trigger) if trigger else writer).start()
    identity.set_result(str(query.id))
    return query


# --- parameters ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Parameters:
    """The parameters, with columns by name."""

    source: DataFrame
    keys: tuple[str, ...]
    columns: tuple[str, ...]
    tracked: tuple[str, ...] | None
    untracked: tuple[str, ...] | None
    scd_type: int
    ignored_nulls: tuple[str, ...] | None
    unchanged: Expression | None

    def check(self, *, has_truncates: bool) -> None:
        """Raise ConfigError for parameters that exclude each other."""
        if not self.keys:
            raise ConfigError("apply_changes needs keys", hint='name the columns of the key: keys=["id"]')
        if reserved := sorted(name for name in self.source.columns if name.lower() in RESERVED):
            raise ConfigError(
                "columns of the frame have names that apply_changes uses itself",
                hint="rename them in the frame",
                columns=", ".join(reserved),
            )
        if has_truncates and self.scd_type == 2:
            raise ConfigError(
                "apply_as_truncates is for type 1 only: the history of type 2 remains",
                hint="omit it, or set stored_as_scd_type=1",
            )
        if self.scd_type == 1 and (self.tracked is not None or self.untracked is not None):
            raise ConfigError("track_history_... is for type 2 only", hint="set stored_as_scd_type=2")
        if self.tracked is not None and self.untracked is not None:
            raise _exclusive("track_history_column_list", "track_history_except_column_list")
        if missing := [name for name in self.tracked or () if name not in (*self.keys, *self._values)]:
            raise ConfigError(
                "track_history_column_list names columns that the table does not have",
                hint="add these columns to column_list, or remove them from both lists",
                columns=", ".join(missing),
            )

    def frame(
        self,
        where: Expression | None,
        sequence_by: Expression,
        deletes: Expression | None,
        truncates: Expression | None,
    ) -> DataFrame:
        """Return the changes as events: the columns of the table, SEQUENCE, OP and UNSENT."""
        changes = self.source if where is None else self.source.where(where)
        op = F.lit(UPSERT)
        for condition, name in ((deletes, DELETE), (truncates, TRUNCATE)):
            if condition is not None:
                op = F.when(_expression(self.source, condition), name).otherwise(op)
        is_row = op != TRUNCATE
        columns = [F.when(is_row, _column(name)).alias(name) for name in (*self.keys, *self._values)]
        unsent = (
            F.lit(None).cast(_NAMES_TYPE)
            if self.unchanged is None
            else _expression(self.source, self.unchanged)
        )
        sequence = _expression(self.source, sequence_by)
        frame = changes.select(*columns, sequence.alias(SEQUENCE), op.alias(OP), unsent.alias(UNSENT))
        _check_types(frame.schema, self.keys)
        return frame

    @property
    def _values(self) -> list[str]:
        """The columns outside the key; without that of `unchanged`, as a name or as a Column."""
        return [
            name
            for name in self.columns
            if name not in self.keys and str(self.unchanged) not in (name, str(_column(name)))
        ]

    def rule(self) -> TableRule:
        """Return how the table follows from the events."""
        return TableRule(
            keys=self.keys,
            scd_type=self.scd_type,
            tracked=self.tracked,
            untracked=self.untracked or (),
            ignored_nulls=self.ignored_nulls,
            is_partial=self.unchanged is not None,
            names=tuple(self.source.columns),
        )


def _check_types(schema: StructType, keys: Sequence[str]) -> None:
    """Raise ConfigError for a type that Delta, or the comparison of keys, sequences and names, does not have."""
    for field in schema:
        if field.name not in RESERVED and any(map(_is_refused, _parts(field.dataType))):
            raise ConfigError(
                "a column has a type that apply_changes cannot write",
                hint="cast it in the frame, such as by CAST(name AS STRING), or leave it out with except_column_list",
                column=field.name,
                type=field.dataType.simpleString(),
            )
    for name in (*keys, SEQUENCE):
        if any(text != _COLLATION for text in _collations(schema[name].dataType)):
            raise ConfigError(
                f"a key or sequence_by does not have the collation {_COLLATION}, with which apply_changes compares",
                hint=f"cast it in the frame, such as by CAST(name AS STRING COLLATE {_COLLATION})",
                column="sequence_by" if name == SEQUENCE else name,
            )
    of_names = schema[UNSENT].dataType
    if not isinstance(of_names, ArrayType) or not isinstance(of_names.elementType, StringType):
        raise ConfigError(
            "unchanged_column has to be an array of texts",
            hint="name a column such as `unchanged` of decode, or write an expression such as split(names, ',')",
            type=of_names.simpleString(),
        )


def _is_refused(type_: DataType) -> bool:
    """Return whether Arrow has a struct or bytes for a type, which a table would then have, without an error."""
    return isinstance(type_, UserDefinedType) or type_.typeName() in _NOT_OF_ARROW


def _parts(type_: DataType) -> Iterator[DataType]:
    """Yield a type, and those inside it."""
    yield type_
    inside: Iterable[DataType] = ()
    if isinstance(type_, StructType):
        inside = (field.dataType for field in type_)
    elif isinstance(type_, ArrayType):
        inside = (type_.elementType,)
    elif isinstance(type_, MapType):
        inside = (type_.keyType, type_.valueType)
    for one in inside:
        yield from _parts(one)


def _collations(type_: DataType) -> Iterator[str]:
    """Yield the collations of the texts in a type; before Spark 4.0 there is one only."""
    for one in _parts(type_):
        if isinstance(one, StringType):
            yield getattr(one, "collation", _COLLATION)


def _scd_type(given: object) -> int:
    if str(given) not in ("1", "2"):
        raise ConfigError("stored_as_scd_type has an unknown value", hint="use 1 or 2", value=given)
    return int(str(given))


def _ignored_nulls(source: DataFrame, given: bool | Sequence[str]) -> tuple[str, ...] | None:
    """Return the columns, None for all."""
    if isinstance(given, bool):
        return None if given else ()
    return tuple(_names(source, "ignore_null_updates", given))


def _chosen(
    source: DataFrame, parameter: str, chosen: Names | None, excluded: Names | None
) -> tuple[str, ...]:
    if chosen is not None and excluded is not None:
        raise _exclusive(parameter, f"except_{parameter}")
    if chosen is not None:
        return tuple(_names(source, parameter, chosen))
    gone = [] if excluded is None else _names(source, f"except_{parameter}", excluded)
    return tuple(name for name in source.columns if name not in gone)


def _names_or_none(source: DataFrame, parameter: str, given: Names | None) -> tuple[str, ...] | None:
    return None if given is None else tuple(_names(source, parameter, given))


def _names(source: DataFrame, parameter: str, given: Names) -> list[str]:
    """Return the names of columns. Raises ConfigError for one that the frame does not have."""
    if isinstance(given, str | Column):
        raise ConfigError(f"{parameter} has to be a list of columns", hint=f"write {parameter}=[...]")
    names = [one if isinstance(one, str) else source.select(one).columns[0] for one in given]
    for name in names:
        if name not in source.columns:
            raise _unknown(parameter, name, source.columns)
    return list(dict.fromkeys(names))


def _unknown(parameter: str, name: str, known: Sequence[str]) -> ConfigError:
    return ConfigError(
        f"{parameter} names a column that the frame does not have",
        hint=f"correct the name; the columns are {', '.join(known)}",
        name=name,
    )


def _exclusive(one: str, other: str) -> ConfigError:
    return ConfigError(f"{one} and {other} exclude each other", hint="set only one of them")


def _expression(source: DataFrame, given: Expression) -> Column:
    """Return a column by its name, or an expression of SQL."""
    if isinstance(given, Column):
        return given
    return _column(given) if given in source.columns else F.expr(given)


def _column(name: str) -> Column:
    return F.col(f"`{name.replace('`', '``')}`")
