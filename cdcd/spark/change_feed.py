"""The changes of one table as rows, for `apply_changes` and for Spark's declarative pipelines.

In: a frame of `decode` or `format("cdcd")` with one table.
Out: a frame with the columns of the row, and `__change`, a struct with the rest; the arguments of both functions.
Invariant: a delete has its key; a gap marker ends the query, unless gaps are accepted.
Must not: read anything but the frame's columns.
"""

from __future__ import annotations

from typing import Any, Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import StructType

from cdcd.errors import ConfigError, GapInTopic, SparkReadError

__all__ = ["CHANGE", "auto_cdc", "row_changes"]

CHANGE = "__change"
_FIELDS = ("op", "timeline", "commit_lsn", "tx_seq", "unchanged")
_SEQUENCE = f"struct({CHANGE}.timeline, {CHANGE}.commit_lsn, {CHANGE}.tx_seq)"


def row_changes(
    changes: DataFrame, *, unchanged: Literal["column", "error"] = "column", accept_gaps: bool = False
) -> DataFrame:
    """Return the changes of a table with a key: the columns of the row, then the struct `__change`.

    A delete has its key, and nulls; a TRUNCATE has nulls only. `__change` has `op`, `timeline`, `commit_lsn`, `tx_seq`
    and `unchanged`. Tombstones are left out. `unchanged`: a row whose TOASTed values PostgreSQL did not send has
    nulls and their names ("column"), or ends the query ("error"). `accept_gaps`: leave gap markers out; otherwise one
    ends the query. Raises ConfigError for a frame without these columns, or of a table without a key.
    """
    key, row = (_fields(changes, name) for name in ("key", "after"))
    if missing := [name for name in key if name not in row]:
        raise ConfigError(
            "the frame does not have all columns of the key",
            hint="decode the columns of the key, too",
            columns=", ".join(missing),
        )
    columns = [
        (F.coalesce(_of("after", name), _of("key", name)) if name in key else _of("after", name)).alias(name)
        for name in row
    ]
    whole = changes.where(_wanted(unchanged == "error", accept_gaps))
    return whole.select(*columns, F.struct(*(F.col(name) for name in _FIELDS)).alias(CHANGE))


def _wanted(refuses_unchanged: bool, accept_gaps: bool) -> Column:
    """Return which records are changes. The condition ends the query at others that must not be left out."""
    is_change = F.col("op").isNotNull() & (F.col("op") != "g")
    if not accept_gaps:
        gap = GapInTopic("the topic has a gap marker: changes are missing there")
        is_change = F.when(F.col("op") == "g", F.raise_error(F.lit(str(gap)))).otherwise(is_change)
    if refuses_unchanged:
        lacking = SparkReadError(
            "an update lacks TOASTed values that PostgreSQL did not send",
            hint="set REPLICA IDENTITY FULL on the table, leave the columns out, or use apply_changes",
        )
        is_lacking = F.size(F.coalesce(F.col("unchanged"), F.array())) > 0
        is_change = F.when(is_lacking, F.raise_error(F.lit(str(lacking)))).otherwise(is_change)
    return is_change


def auto_cdc(changes: DataFrame) -> dict[str, Any]:
    """Return the arguments of `create_auto_cdc_flow` that follow from a frame of `row_changes`' input.

    They are `keys`, `sequence_by`, `apply_as_deletes` and `except_column_list`, also for `apply_changes`, where
    `apply_as_truncates` and `unchanged_column` come in addition. Raises ConfigError for a table without a key.
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
