"""The reading side: topics of cdcd in PySpark, without a jar.

    Kafka -> source (ends each batch on a PostgreSQL commit) -> decode -> your own DataFrame code
                                                             -> plan, fold -> mirror: a table per topic

In: the topics that `cdcd` wrote and the schema registry.  Out: DataFrames, or Parquet tables equal to the source.
Invariant: nothing here imports what runs a daemon. Both sides share the wire format, the configuration
(`cdcd.config`), the registry's client (`cdcd.registry`) and the records of the schema topic (`cdcd.schema`).
How to connect: `connection`, `connection_options`, `secret_reference`, `client_errors`.
The history of rows: `history_rows` of a batch, `history_merges` of its files, `row_history` reads it.
Changes of a user's own frame: `applying`, `change_feed`, `changed_table`, `keyed_table`; pure: `scd`, `event_order`.
Pure: `cuts`, `positions`, `columns`, `frame`, `reader_schema`, `special`, `events`, `shape`, `versions`, `fold`.
I/O: `kafka`, `commits`, `schemas`; of a target `commit_log` (reads), `target_writer`, `left_files`.
Spark: `source`, `read_limits`, `decoding`, `engine`, `jvm_decoding`, `tasks`, `mirror_start`, `mirror_session`;
`metrics_server` serves the mirror's metrics. `reading` and `views` open a mirror, `plain_views` writes SQL views of
it in `sql_dialects`, `catalog` registers it in a catalog of Spark, for which `mirrored_table` is the source, `verify`
compares it with the topics by `sql_fold`, `session` is a local Spark, `jvm` serves Spark's own Kafka source,
`commands` is the command line.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cdcd.spark.applying import apply_changes
    from cdcd.spark.change_feed import auto_cdc, row_changes
    from cdcd.spark.decoding import decode
    from cdcd.spark.dropped_tables import drop_table
    from cdcd.spark.jvm import offsets, packages
    from cdcd.spark.mirror_start import mirror
    from cdcd.spark.reading import read_mirror, wait
    from cdcd.spark.row_history import history
    from cdcd.spark.source import register
    from cdcd.spark.target_changes import changes
    from cdcd.spark.views import consistent_view

__all__ = [
    "apply_changes",
    "auto_cdc",
    "changes",
    "consistent_view",
    "decode",
    "drop_table",
    "history",
    "mirror",
    "offsets",
    "packages",
    "read_mirror",
    "register",
    "row_changes",
    "wait",
]
_MODULES = {
    "apply_changes": "cdcd.spark.applying",
    "auto_cdc": "cdcd.spark.change_feed",
    "changes": "cdcd.spark.target_changes",
    "consistent_view": "cdcd.spark.views",
    "decode": "cdcd.spark.decoding",
    "drop_table": "cdcd.spark.dropped_tables",
    "history": "cdcd.spark.row_history",
    "mirror": "cdcd.spark.mirror_start",
    "offsets": "cdcd.spark.jvm",
    "packages": "cdcd.spark.jvm",
    "read_mirror": "cdcd.spark.reading",
    "register": "cdcd.spark.source",
    "row_changes": "cdcd.spark.change_feed",
    "wait": "cdcd.spark.reading",
}


def __getattr__(name: str) -> Any:
    """Return a public function; PySpark is imported at its first use, because not every module here needs it."""
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
