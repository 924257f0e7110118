"""The log of a table by the format of its mirror.

In: the name of a format.  Out: what makes a `TableLog` of it.
Must not: import the library of a format that is not asked for.
"""

from __future__ import annotations

from collections.abc import Callable

from cdcd.spark.formats.delta_log import DeltaLog
from cdcd.spark.formats.table_log import TableLog
from cdcd.spark.storage.uri import Storage
from cdcd.spark.target.versions import TableFormat

__all__ = ["log_of"]


def log_of(table_format: TableFormat) -> Callable[[Storage, str, float], TableLog]:
    """Return what makes the log of a table: of a storage, the table's folder, and how long versions last."""
    if table_format == "iceberg":
        from cdcd.spark.formats.iceberg_log import IcebergLog  # its library is optional

        return IcebergLog
    return DeltaLog
