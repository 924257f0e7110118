"""The reading side: topics of cdcd in PySpark, without a jar.

    Kafka -> source (ends each batch on a PostgreSQL commit) -> decode -> your own DataFrame code
                                                             -> plan, fold -> mirror: a table per topic

In: the topics that `cdcd` wrote and the schema registry.  Out: DataFrames, or Parquet tables equal to the source.
Invariant: nothing here imports what runs a daemon. Both sides share the wire format, the configuration
(`cdcd.config`), the registry's client (`cdcd.registry`) and the records of the schema topic (`cdcd.schema`).
Rooms, each above those before it: `clients` (connections to Kafka), `storage` (the files of a target), `decoding`
(records to columns), `source` (batches that end on a commit), `target` (a mirror's versions), `tables` (their files),
`formats` (Delta, Iceberg), `reading` (a mirror), `data_source` (`format("cdcd")`), `mirroring` (a running mirror),
`applying` (`apply_changes`), `commands` (the command line). `session` is a local Spark, `testing` for users' tests.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cdcd.spark.applying.applying import apply_changes
    from cdcd.spark.applying.change_feed import auto_cdc, row_changes
    from cdcd.spark.data_source import register
    from cdcd.spark.decoding.decode import decode
    from cdcd.spark.mirroring.dropped_tables import drop_table
    from cdcd.spark.mirroring.start import mirror
    from cdcd.spark.reading.mirror import read_mirror, wait
    from cdcd.spark.reading.row_history import history
    from cdcd.spark.reading.target_changes import changes
    from cdcd.spark.reading.views import consistent_view
    from cdcd.spark.source.jvm import offsets, packages

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
    "apply_changes": "cdcd.spark.applying.applying",
    "auto_cdc": "cdcd.spark.applying.change_feed",
    "changes": "cdcd.spark.reading.target_changes",
    "consistent_view": "cdcd.spark.reading.views",
    "decode": "cdcd.spark.decoding.decode",
    "drop_table": "cdcd.spark.mirroring.dropped_tables",
    "history": "cdcd.spark.reading.row_history",
    "mirror": "cdcd.spark.mirroring.start",
    "offsets": "cdcd.spark.source.jvm",
    "packages": "cdcd.spark.source.jvm",
    "read_mirror": "cdcd.spark.reading.mirror",
    "register": "cdcd.spark.data_source",
    "row_changes": "cdcd.spark.applying.change_feed",
    "wait": "cdcd.spark.reading.mirror",
}


def __getattr__(name: str) -> Any:
    """Return a public function; PySpark is imported at its first use, because not every module here needs it."""
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
