"""Read a mirror: all tables as of one PostgreSQL commit.

In: the folder or URI of a mirror.  Out: Arrow tables (columns under PostgreSQL's names, and `__special`), or
DataFrames.
Invariant: all tables of one `Mirror` are of one version, whose files exist for its `retain_s` after the next
one; then the caller has to open the mirror again. A table in `loading` lacks rows that cdcd still copies; a row is
either complete or absent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from cdcd.errors import SparkReadError
from cdcd.spark.commit_log import read_latest
from cdcd.spark.shape import KEY
from cdcd.spark.storage import Storage, Target, open_storage
from cdcd.spark.table_files import count_rows, read_table
from cdcd.spark.versions import TargetVersion


@dataclass(frozen=True, slots=True)
class Mirror:
    """A mirror as of one version."""

    target: Storage
    version: TargetVersion

    @property
    def commit_lsn(self) -> int:
        """The LSN of the PostgreSQL commit that all tables reflect."""
        return self.version.commit_lsn

    @property
    def loading(self) -> list[str]:
        """The topics of the tables that cdcd still copies at this commit: their tables lack rows."""
        return sorted(self.version.loading)

    @property
    def topics(self) -> list[str]:
        """The topics of the tables."""
        return sorted(self.version.tables)

    def rows(self, topic: str) -> int:
        """Return the number of a table's rows; it reads their keys at most."""
        return count_rows(self.target, self.version.tables[topic])

    def table(self, topic: str) -> pa.Table:
        """Return a table's rows in no order, with `__special`: texts of values outside the types' ranges."""
        entry = self.version.tables.get(topic)
        if entry is None:
            raise SparkReadError("the mirror has no such table", topic=topic, target=self.target.uri)
        return read_table(self.target, entry).drop_columns([KEY])

    def frame(self, spark: SparkSession, topic: str) -> DataFrame:
        """Return a table's rows as a DataFrame; a time of day is Spark's TIME."""
        return spark.createDataFrame(self.table(topic))


def read_mirror(target: Target, options: Mapping[str, str] | None = None) -> Mirror:
    """Open a mirror. `options` are those of the target's storage. Raises SparkReadError if there is none."""
    storage = open_storage(target, options)
    version = read_latest(storage)
    if version is None:
        raise SparkReadError("there is no mirror", target=storage.uri)
    return Mirror(storage, version)
