"""Which paths of a new target the readers of its format find.

In: the storage of a target, the format of its tables.  Out: ConfigError for a path that readers take for another one.
Must not: connect, write; refuse a target that has tables, because some readers may read them.
"""

from __future__ import annotations

from cdcd.errors import ConfigError
from cdcd.spark.storage.uri import Storage
from cdcd.spark.target.versions import TableFormat

__all__ = ["check_new_target"]


def check_new_target(target: Storage, table_format: TableFormat) -> None:
    """Raise ConfigError for a path that readers of the format would decode, and then not find.

    delta-rs makes a URI of a local path: it decodes `%20`, and a backslash becomes a slash; DuckDB decodes any `%`.
    obstore decodes the URI of a bucket; an Iceberg table has it in its metadata, where its readers do not decode it.
    """
    if table_format == "delta" and target.folder is not None:
        path = str(target.folder.resolve())  # delta-rs follows links
        if "%" in path or "\\" in path:
            raise ConfigError(
                f"the local path of a new target with Delta tables has a % or a backslash: {path}",
                hint="choose a path without these characters, or another format: readers of Delta would decode it",
            )
    is_bucket = target.folder is None and not target.uri.startswith("hdfs:")
    if table_format == "iceberg" and is_bucket and "%" in target.uri:
        raise ConfigError(
            f"the URI of a new target with Iceberg tables has a %: {target.uri}",
            hint="choose a path without it, or another format. Characters such as spaces need no encoding with %",
        )
