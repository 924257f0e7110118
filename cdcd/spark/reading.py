"""Read a mirror: all tables as of one PostgreSQL commit.

In: the folder or URI of a mirror.  Out: Arrow tables (columns under PostgreSQL's names, and `__special`), or
DataFrames.
Invariant: all tables of one `Mirror` are from one manifest, whose files exist for `manifest.GRACE_S` after a later
one; then the caller has to open the mirror again. A table in `loading` lacks rows that cdcd still copies; a row is
either complete or absent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from cdcd.errors import SparkReadError
from cdcd.spark.manifest import Manifest, read_manifest
from cdcd.spark.shape import KEY
from cdcd.spark.storage import Storage, Target, open_storage
from cdcd.spark.table_files import count_rows, read_table


@dataclass(frozen=True, slots=True)
class Mirror:
    """A mirror as of one manifest."""

    target: Storage
    manifest: Manifest

    @property
    def commit_lsn(self) -> int:
        """The LSN of the PostgreSQL commit that all tables reflect."""
        return self.manifest.commit_lsn

    @property
    def loading(self) -> list[str]:
        """The topics of the tables that cdcd still copies at this commit: their tables lack rows."""
        return sorted(self.manifest.loading)

    @property
    def topics(self) -> list[str]:
        """The topics of the tables."""
        return sorted(self.manifest.tables)

    def rows(self, topic: str) -> int:
        """Return the number of a table's rows; it reads their keys at most."""
        return count_rows(self.target, self.manifest.tables[topic])

    def table(self, topic: str) -> pa.Table:
        """Return a table's rows in no order, with `__special`: texts of values outside the types' ranges."""
        entry = self.manifest.tables.get(topic)
        if entry is None:
            raise SparkReadError("the mirror has no such table", topic=topic, target=self.target.uri)
        return read_table(self.target, entry).drop_columns([KEY])

    def frame(self, spark: SparkSession, topic: str) -> DataFrame:
        """Return a table's rows as a DataFrame; a time of day is Spark's TIME."""
        return spark.createDataFrame(self.table(topic))


def read_mirror(target: Target, options: Mapping[str, str] | None = None) -> Mirror:
    """Open a mirror. `options` are those of the target's storage. Raises SparkReadError if there is none."""
    storage = open_storage(target, options)
    manifest = read_manifest(storage)
    if manifest is None:
        raise SparkReadError("there is no mirror", target=storage.uri)
    return Mirror(storage, manifest)
