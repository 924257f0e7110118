"""The net changes of a mirrored table between two versions, for jobs that process what has changed.

In: a target, a table, two positions in the source.
Out: a DataFrame with a row for each row of the table that differs.
Invariant: applied to the table as of the first position, the changes give the table as of the second one. If only
batches of changed rows lie between them, the cost follows the number of changed rows.
Must not: read the topics.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain, pairwise

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from cdcd.errors import ConfigError, SparkReadError
from cdcd.spark.decoding.exact_json import EXACT_JSON
from cdcd.spark.reading.chosen_table import refuse_unfinished, topic_of
from cdcd.spark.reading.mirror import At, Mirror, read_mirror
from cdcd.spark.reading.table_frame import frame_of_rows, table_frame
from cdcd.spark.storage.uri import Target
from cdcd.spark.tables.same_columns import fields_in_former
from cdcd.spark.tables.table_files import look_up, read_keys
from cdcd.spark.target.commit_log import newer_versions
from cdcd.spark.target.shape import KEY
from cdcd.spark.target.versions import BucketFile, TableEntry, TargetVersion

__all__ = ["changes"]

MOST_KEYS = 1_000_000
"""With more changed keys, both versions are compared by Spark's tasks."""


def changes(
    spark: SparkSession,
    target: Target,
    table: str,
    since: At,
    until: At | None = None,
    *,
    target_options: Mapping[str, str] | None = None,
    loading: bool = False,
    parked: bool = False,
) -> DataFrame:
    """Return the rows of a table that differ between two positions: columns `op`, `before`, `after`.

    `op` is c, u or d; `before` is null for c, `after` for d. A row that was changed and changed back is not there.
    In a table without a key an update is a d and a c. `since`, `until`: as `at` of `read_mirror`; None: the newest
    version. `loading`: also of a table that cdcd still copies at `until`, where each row that is not copied yet is a
    d; `parked`: also of one that is not updated any more.

    Raises SparkReadError if a version is not retained any more, or has no such table, or a column has another type
    since, TablesParked; ConfigError if `since` is later than `until`.
    """
    first = read_mirror(target, target_options, at=since)
    last = read_mirror(first.target, at=until)
    if first.version.number > last.version.number:
        raise ConfigError(
            "the position since is later than until",
            hint="exchange them, or omit until for the newest version",
            since=first.at,
            until=last.at,
        )
    topic = topic_of(last, table)
    refuse_unfinished(last, topic, loading=loading, parked=parked)
    both = _Both(spark, first, last, topic)
    keys = both.changed_keys() if both.after.keyed else None
    return both.of_all() if keys is None else both.of_keys(keys)


@dataclass(frozen=True, slots=True)
class _Both:
    """Two versions of a table."""

    spark: SparkSession
    first: Mirror
    last: Mirror
    topic: str

    @property
    def before(self) -> TableEntry:
        """The first version, with the columns of the last one. Raises SparkReadError."""
        entry = self.first.version.tables.get(self.topic, TableEntry(self.topic))
        return replace(entry, fields=fields_in_former(entry, self.after))

    @property
    def after(self) -> TableEntry:
        return self.last.version.tables[self.topic]

    def changed_keys(self) -> pa.Array | None:
        """Return the keys that batches have changed; None if they are too many, or not known."""
        found: list[pa.ChunkedArray] = []
        for then, now in pairwise(chain([self.first.version], self._later())):
            files = _changed_files(then.tables.get(self.topic), now.tables.get(self.topic))
            if files is None:
                return None
            found += [read_keys(self.first.target, one) for one in files]
            if sum(map(len, found)) > MOST_KEYS:
                return None
        chunks = [chunk for keys in found for chunk in keys.chunks]
        return pc.unique(pa.chunked_array(chunks, pa.binary()))

    def _later(self) -> Iterable[TargetVersion]:
        reached = self.first.version.number
        for version in newer_versions(self.first.target, self.first.version):
            if version.number > self.last.version.number:
                break
            reached = version.number
            yield version
        if reached < self.last.version.number:
            raise SparkReadError(
                "the versions between the two positions are not retained any more",
                hint="start at a later position; raise the option retain of the mirror to keep versions for longer",
                target=self.first.target.uri,
            )

    def of_keys(self, keys: pa.Array) -> DataFrame:
        """Return the differences of the rows with these keys."""
        target, sides = self.last.target, []
        for entry in (self.before, self.after):
            rows = look_up(target, entry.shape(), entry.files, entry.deltas, keys)
            sides.append(frame_of_rows(self.spark, entry, rows))
        return _joined(*sides)

    def of_all(self) -> DataFrame:
        """Return the differences of all rows."""
        sides = [
            table_frame(self.spark, self.last.target, entry, with_key=True)
            for entry in (self.before, self.after)
        ]
        return _joined(*sides) if self.after.keyed else _counted(*sides)


def _changed_files(then: TableEntry | None, now: TableEntry | None) -> list[BucketFile] | None:
    """Return the files of the rows that a version has changed; None if others may have changed as well."""
    if then is now:
        return []
    if now is None:  # the table was dropped from the mirror
        return [] if then is None or then.is_empty else None
    before = TableEntry(now.topic) if then is None else then
    if now.table_version is not None:  # the files that were replaced, and those that replace them, have all
        return sorted({*before.files} ^ {*now.files}, key=lambda one: one.path)
    base = set(now.files) - set(before.files)
    added, gone = set(now.deltas) - set(before.deltas), set(before.deltas) - set(now.deltas)
    is_merged = any(one.level for one in (*base, *added))
    if gone and not is_merged:  # a TRUNCATE
        return None
    if any(not one.level for one in base) or (not is_merged and set(before.files) - set(now.files)):
        return None
    return [one for one in now.deltas if not one.level and one not in before.deltas]


def _row_of(frame: DataFrame) -> Column:
    """Return the columns of a row as one, without its key."""
    return F.struct(*(f"`{name.replace('`', '``')}`" for name in frame.columns if name != KEY))


def _joined(before: DataFrame, after: DataFrame) -> DataFrame:
    sides = [
        side.select(F.col(KEY).alias(f"key_{name}"), _row_of(side).alias(name))
        for side, name in ((before, "before"), (after, "after"))
    ]
    joined = sides[0].join(sides[1], F.col("key_before") == F.col("key_after"), "full_outer")
    is_same = F.to_json("before", EXACT_JSON).eqNullSafe(F.to_json("after", EXACT_JSON))
    op = F.when(F.col("before").isNull(), "c").when(F.col("after").isNull(), "d").otherwise("u")
    return joined.where(~is_same).select(op.alias("op"), "before", "after")


def _counted(before: DataFrame, after: DataFrame) -> DataFrame:
    """Return the differences of two multisets of rows; equal rows have equal keys."""
    signed = [
        side.select(KEY, _row_of(side).alias("row"), F.lit(sign).alias("sign"))
        for side, sign in ((before, -1), (after, 1))
    ]
    rows = (
        signed[0].union(signed[1]).groupBy(KEY).agg(F.first("row").alias("row"), F.sum("sign").alias("count"))
    )
    each = rows.where("count <> 0").withColumn("n", F.explode(F.expr("sequence(1, abs(count))")))
    row_if = [
        F.when(F.expr(test), F.col("row")).alias(name)
        for test, name in (("count < 0", "before"), ("count > 0", "after"))
    ]
    return each.select(F.when(F.col("count") < 0, "d").otherwise("c").alias("op"), *row_if)
