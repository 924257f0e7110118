"""The rows that follow from the changes of one keyed table, in Spark SQL: a mirror is verified against them.

In: the columns of `decode`.  Out: for each key that exists the newest value of each column.
Invariant: shares no code with the mirror's fold, so that an error of one of them shows as a difference. The decoder
of records is the same: `cdcd verify` compares the topics with PostgreSQL by another one.
Must not: do I/O of its own, log values.

The changes of a key up to a delete are a life of the key. A value that PostgreSQL did not send (`unchanged`) is the
newest one in its life, or null if the life has only the row of a snapshot that does not copy the column; a change of
the key begins a life under the new key, one step after the delete of the old one, whose values it continues. Only
changes after the last TRUNCATE count. A column that some schema lacks begins after the last change under that schema.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the usual name

_AT = "struct(timeline, commit_lsn, int(not (coalesce(snapshot, false) or op = 'r')) as phase, tx_seq)"
"""The position in the order of the changes: the rows of a snapshot are before the changes of its commit."""
At = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class History:
    """The summary of a table's changes, without their rows.

    `emptied`: the last TRUNCATE, None without one; `emptied_in`: the partitions that have it. `gap`: the last marker
    of missing changes. `moved`: whether a change of a key has unchanged columns. `keyless`: whether a row has no key.
    `last`: the last change under each schema.
    """

    emptied: At | None
    emptied_in: frozenset[int]
    gap: At | None
    moved: bool
    keyless: bool
    last: Mapping[int, At]


def order_changes(changes: DataFrame) -> DataFrame:
    """Return the changes, without tombstones, with their position `at`."""
    return changes.where("op is not null").withColumn("at", F.expr(_AT))


def history_of(changes: DataFrame) -> History:
    """Return the summary of ordered changes. One pass."""
    key = "key" if "key" in changes.columns else "cast(null as string)"
    rows = (
        changes.groupBy("partition", "schema_id")
        .agg(
            F.max("at").alias("last"),
            F.expr("max(at) filter (where op = 't')").alias("emptied"),
            F.expr("max(at) filter (where op = 'g' and special['gap.to_lsn'] is not null)").alias("gap"),
            F.expr("coalesce(bool_or(op = 'c' and size(unchanged) > 0), false)").alias("moved"),
            F.expr(f"coalesce(bool_or(op in ('c', 'u', 'd', 'r') and {key} is null), false)").alias(
                "keyless"
            ),
        )
        .collect()
    )
    emptied = _newest(row["emptied"] for row in rows)
    last: dict[int, At] = {}
    for row in rows:
        at = _newest([row["last"]])
        if at is not None:
            last[row["schema_id"]] = max(at, last.get(row["schema_id"], at))
    return History(
        emptied=emptied,
        emptied_in=frozenset(
            row["partition"] for row in rows if row["emptied"] and _at(row["emptied"]) == emptied
        ),
        gap=_newest(row["gap"] for row in rows),
        moved=any(row["moved"] for row in rows),
        keyless=any(row["keyless"] for row in rows),
        last=last,
    )


def _at(found: Any) -> At | None:
    return None if found is None else (found[0], found[1], found[2], found[3])


def _newest(found: Iterable[Any]) -> At | None:
    return max((at for one in found if (at := _at(one)) is not None), default=None)


def value_of(value: Column, special: Column, type_: str) -> Column:
    """Return the compared form of a column: its value, and the text of a value outside its type.

    Of floating-point numbers also the text, where one is -0.0: PostgreSQL shows the sign, and Spark ignores it.
    """
    value = value.cast(type_)
    compared = [value.alias("value"), special.alias("special")]
    if "map<" in type_:  # Spark compares no maps
        compared[0] = F.to_json(F.struct(value.alias("map")), {"ignoreNullFields": "false"}).alias("value")
    elif "float" in type_ or "double" in type_:
        text = value.cast("string")
        compared.append(F.when(text.contains("-0.0"), text).alias("signed"))
    return F.struct(*compared)


def fold(
    changes: DataFrame, columns: Sequence[tuple[str, str]], history: History, began: Mapping[str, At]
) -> DataFrame:
    """Return the rows: `key`, and for each column `c0`, `c1`, ... what `value_of` returns, null if no change has it.

    `columns`: names and Spark's types. `began`: columns with the last change before them.
    """
    if history.emptied is not None:
        changes = changes.where(F.col("at") > _literal(history.emptied))
    lives = _lives(changes.where("op in ('c', 'u', 'd', 'r')"), columns, began)
    numbered = [f"c{n}" for n in range(len(columns))]
    if not history.moved:
        return lives.where("ended is null and begun is not null").select("key", *numbered)
    return _continued(lives, numbered).select("key", *numbered)


def _literal(at: At) -> Column:
    timeline, commit_lsn, phase, tx_seq = at
    return F.expr(
        f"struct({timeline}L as timeline, {commit_lsn}L as commit_lsn, {phase} as phase, {tx_seq}L as tx_seq)"
    )


def _lives(changes: DataFrame, columns: Sequence[tuple[str, str]], began: Mapping[str, At]) -> DataFrame:
    """Return for each life of each key its values, `begun` and `ended`."""
    before = Window.partitionBy("key").orderBy("at").rowsBetween(Window.unboundedPreceding, -1)
    deletes = F.coalesce(F.sum(F.expr("int(op = 'd')")).over(before), F.lit(0))
    values = []
    for number, (name, type_) in enumerate(columns):
        after, special = F.col("after").getField(name), F.col("special")[f"after.{name}"]
        has = ~F.coalesce(F.array_contains("unchanged", F.lit(name)), F.lit(False))
        if name in began:  # a null, whatever the change has: its value is of another column
            is_own = F.col("at") > _literal(began[name])
            after, special, has = F.when(is_own, after), F.when(is_own, special), has | ~is_own
        at = F.when((F.col("op") != "d") & has, F.col("at"))
        newest = F.max_by(value_of(after, special, type_), at)
        is_omitted = F.bool_or((F.col("op") == "r") & ~has)
        values.append(F.coalesce(newest, F.when(is_omitted, _nothing(type_))).alias(f"c{number}"))
    return (
        changes.withColumn("life", deletes)
        .groupBy("key", "life")
        .agg(
            *values,
            F.expr("min(at) filter (where op != 'd')").alias("begun"),
            F.expr("max(at) filter (where op = 'd')").alias("ended"),
        )
    )


def _nothing(type_: str) -> Column:
    return value_of(F.lit(None), F.lit(None).cast("string"), type_)


def _continued(lives: DataFrame, numbered: Sequence[str]) -> DataFrame:
    """Return the last lives, with the values of the lives that they continue under a new key.

    `before` is the end of the life that one continues, as far as it lacks values. Each round takes the values of that
    life and continues with its `before`, so a chain of n lives needs log2(n) rounds. Each round is computed once:
    without the checkpoint it would be part of every later one.
    """
    lacks = F.expr(" or ".join(f"{one} is null" for one in numbered))
    lives = lives.withColumn("before", F.when(lacks, _step_before("begun"))).localCheckpoint()
    while lives.where("before is not null").limit(1).count():
        theirs = lives.where("begun is not null and ended is not null").select(
            F.col("ended").alias("before"),
            F.col("before").alias("their_before"),
            *(F.col(one).alias(f"their_{one}") for one in numbered),
        )
        lives = (
            lives.join(
                theirs.dropDuplicates(["before"]), "before", "left"
            )  # a position is that of one change
            .select(
                "key",
                "begun",
                "ended",
                *(F.coalesce(one, f"their_{one}").alias(one) for one in numbered),
                "their_before",
            )
            .select("*", F.when(lacks, F.col("their_before")).alias("before"))
            .drop("their_before")
            .localCheckpoint()
        )
    return lives.where("ended is null and begun is not null")


def _step_before(at: str) -> Column:
    return F.col(at).withField("tx_seq", F.col(at)["tx_seq"] - 1)
