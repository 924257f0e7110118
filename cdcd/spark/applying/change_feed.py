"""The changes of one table as rows, for `apply_changes` and for Spark's declarative pipelines.

In: a frame of `decode` or `format("cdcd")` with one table.
Out: a frame with the columns of the row, and `__change`, a struct with the rest; the arguments of both functions.
Invariant: a delete has its key. A broken record ends the query; so does a marker of a gap behind which changes are
missing, unless gaps are accepted, and a row whose key has changed and that lacks a value: this value is of another
key, where neither function looks for it.
Must not: read anything but the frame's columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import StructType

from cdcd.errors import CdcdError, ChangesInvalid, ConfigError, GapInTopic, SparkReadError

__all__ = ["CHANGE", "auto_cdc", "row_changes"]

CHANGE = "__change"
_FIELDS = ("op", "timeline", "commit_lsn", "tx_seq", "unchanged")
_COPIED_HINT = (
    'apply_changes has the stored value, or null: unchanged="column"; for a flow of a pipeline leave the columns out '
    "of the frame, too, or copy the table with them"
)
_SEQUENCE = f"struct({CHANGE}.timeline, {CHANGE}.commit_lsn, {CHANGE}.tx_seq)"


def row_changes(
    changes: DataFrame,
    *,
    unchanged: Literal["error", "column"] = "error",
    truncates: Literal["error", "row"] = "error",
    accept_gaps: bool = False,
) -> DataFrame:
    """Return the changes of a table with a key: the columns of the row, then the struct `__change`.

    A delete has its key, and nulls. `__change` has `op`, `timeline`, `commit_lsn`, `tx_seq` and `unchanged`.
    Tombstones are left out; a broken record, which `decode` has put in quarantine, ends the query. `unchanged`: an
    update without the TOASTed values that PostgreSQL did not send, and a copied row without some columns
    (`snapshot.overrides`), ends the query ("error"), or has nulls, and their columns in `__change.unchanged`
    ("column"); if an update changed the key, it always ends the query. `truncates`: a
    TRUNCATE ends the query ("error"), or is a row of nulls ("row"). `accept_gaps`: leave gap markers out; otherwise
    one ends the query, unless a TRUNCATE and all rows follow it. Raises ConfigError for an unknown value, a frame
    without these columns, or a table without a key.
    """
    _check("unchanged", unchanged, ("error", "column"))
    _check("truncates", truncates, ("error", "row"))
    key, row = (_fields(changes, name) for name in ("key", "after"))
    if missing := [name for name in key if name not in row]:
        raise ConfigError(
            "the frame does not have all columns of the key",
            hint="decode the key columns, too",
            columns=", ".join(missing),
        )
    columns = [
        (F.coalesce(_of("after", name), _of("key", name)) if name in key else _of("after", name)).alias(name)
        for name in row
    ]
    lacks = F.array_intersect("unchanged", F.array(*map(F.lit, row)))  # of the columns of the frame
    refused = _refused(F.size(F.coalesce(lacks, F.array())) > 0, unchanged == "error", truncates == "error")
    fields = [lacks.alias(name) if name == "unchanged" else F.col(name) for name in _FIELDS]
    whole = changes.where(_is_change([*_broken(changes), *_gaps(changes, accept_gaps), *refused]))
    return whole.select(*columns, F.struct(*fields).alias(CHANGE))


def _broken(changes: DataFrame) -> Iterator[tuple[Column, CdcdError]]:
    """Yield the records that `decode` has put in quarantine: without an `op`, as tombstones are."""
    if "error" in changes.columns:
        hint = (
            'write the records with `error is not null` elsewhere, and pass those of where("error is null"); a row '
            "in quarantine is then missing from the table"
        )
        yield F.col("error").isNotNull(), SparkReadError("a record is broken: it is in quarantine", hint=hint)


def _gaps(changes: DataFrame, accepted: bool) -> Iterator[tuple[Column, CdcdError]]:
    """Yield the markers of gaps with an end: a TRUNCATE and all rows follow one that has none."""
    if not accepted:
        hint = (
            "copy the table again (`cdcd resnapshot`; a table with `include: false`: `cdcd snapshot start --table "
            "SCHEMA.TABLE --recopy`), then start with an empty target, a new checkpoint and accept_gaps=True: the "
            "copied rows follow the marker. Without a copy, accept_gaps=True leaves the table without these changes"
        )
        has_end = F.col("special")["gap.to_lsn"].isNotNull() if "special" in changes.columns else F.lit(True)
        missing = GapInTopic("the topic has a gap marker: changes are missing there", hint=hint)
        yield (F.col("op") == "g") & has_end, missing


def _refused(is_partial: Column, unchanged: bool, truncates: bool) -> Iterator[tuple[Column, CdcdError]]:
    """Yield the records that end the query, each kind with its error."""
    if truncates:
        hint = 'apply_changes of type 1 applies it: truncates="row"; a flow of a pipeline cannot: refresh its table'
        yield F.col("op") == "t", SparkReadError("the table was truncated", hint=hint)
    if unchanged:
        hint = (
            'apply_changes has the stored value: unchanged="column"; for a flow of a pipeline set REPLICA IDENTITY '
            "FULL on the table, or leave the columns out"
        )
        lacking = SparkReadError("an update lacks TOASTed values, which PostgreSQL did not send", hint=hint)
        copied = SparkReadError(
            "a copied row lacks columns that snapshot.overrides leaves out (`columns`)", hint=_COPIED_HINT
        )
        yield (F.col("op") == "r") & is_partial, copied
        yield (F.col("op") != "r") & is_partial, lacking
    else:
        hint = "set REPLICA IDENTITY FULL on the table, or leave the columns with such values out (`columns`)"
        moved = ChangesInvalid(
            "an update of a key lacks TOASTed values, which PostgreSQL did not send and only the former key has",
            hint=hint,
        )
        yield (F.col("op") == "c") & is_partial, moved


def _is_change(refused: Iterable[tuple[Column, CdcdError]]) -> Column:
    """Return the condition of changes. It ends the query itself: Spark does not compute unused columns."""
    found = F.col("op").isNotNull() & (F.col("op") != "g")
    for condition, error in refused:
        found = F.when(condition, F.raise_error(F.lit(str(error)))).otherwise(found)
    return found


def _check(parameter: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise ConfigError(
            f"{parameter} has an unknown value", hint=f"choose {' or '.join(known)}", value=value
        )


def auto_cdc(changes: DataFrame) -> dict[str, Any]:
    """Return arguments of `create_auto_cdc_flow` or `apply_changes` whose source is `row_changes(changes)`.

    They are `keys`, `sequence_by`, `apply_as_deletes` and `except_column_list`. Raises ConfigError as `row_changes`.
    """
    return {
        "keys": _fields(changes, "key"),
        "sequence_by": _SEQUENCE,
        "apply_as_deletes": f"{CHANGE}.op = 'd'",
        "except_column_list": [CHANGE],
    }


def _fields(changes: DataFrame, name: str) -> list[str]:
    found = {one.name: one.dataType for one in changes.schema}
    if missing := [one for one in ("key", "after", *_FIELDS) if one not in found]:
        raise ConfigError(
            "the frame does not have the changes of a table with a key",
            hint='use the frame of decode, or of format("cdcd") with the option table; a table without a key has no '
            "identity of its rows: create a primary key, or set format.key_columns of the daemon",
            missing=", ".join(missing),
        )
    type_ = found[name]
    assert isinstance(type_, StructType)
    return list(type_.names)


def _of(image: str, name: str) -> Column:
    return F.col(f"{image}.`{name.replace('`', '``')}`")
