"""The histories of the mirror's tables, for the demo with `--scd 2`.

In: the mirror's target.  Out: by table the number of versions, and the valid rows as Arrow tables.
Must not: import PySpark before it is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import Any

import pyarrow as pa

from cdcd.spark.reading.mirror import read_mirror
from cdcd.spark.storage.uri import Target


@dataclass(frozen=True, slots=True)
class TableHistory:
    """The history of one table: `versions` of rows, and the `valid` ones with the columns of the mirror."""

    versions: int
    valid: pa.Table


class Histories:
    """The histories of everything under one prefix, read by a Spark session of its own."""

    def __init__(self, target: Target, prefix: str) -> None:
        self._mirror, self._prefix = read_mirror(target), prefix

    def __enter__(self) -> Histories:
        from cdcd.spark.session import (
            session,
        )

        self._spark: Any = session("cdcd demo", "2")
        return self

    def read(self, schema: str, table: str) -> TableHistory | None:
        """Return the history of a table; None if it has none."""
        from cdcd.spark.reading.row_history import history

        entry = self._mirror.version.tables.get(f"{self._prefix}.{schema}.{table}")
        if entry is None or entry.keyed is False:
            return None
        found = history(self._spark, self._mirror.target, f"{schema}.{table}", at=self._mirror.at)
        versions = found.toArrow()
        valid = versions.filter(versions["__end_at"].is_null())
        mirror = self._mirror.table(entry.topic)
        columns = [valid[one.name].cast(one.type) for one in mirror.schema]
        return TableHistory(versions.num_rows, pa.Table.from_arrays(columns, schema=mirror.schema))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._spark.stop()
