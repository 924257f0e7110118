"""`python -m cdcd.spark mirror`: run the mirror until a signal, with --available-now until it is up to date.

In: the parsed arguments.  Out: an exit status.
Must not: have options that `cdcd.spark.mirroring.start.mirror` does not have.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from pyspark.sql import SparkSession

from cdcd.spark.commands.arguments import trigger_of
from cdcd.spark.commands.register import lasting
from cdcd.spark.commands.running import connection_of, run_query
from cdcd.spark.mirroring.arguments import check_history
from cdcd.spark.mirroring.batch_source import seconds_of
from cdcd.spark.mirroring.query import MirrorQuery
from cdcd.spark.mirroring.start import mirror
from cdcd.spark.source.table_options import split_names
from cdcd.spark.storage.uri import open_storage


def run(options: argparse.Namespace) -> int:
    """Run the mirror; return the exit status."""
    return run_query("mirror", options, lambda: _prepared(options))


def _prepared(options: argparse.Namespace) -> Callable[[SparkSession], MirrorQuery]:
    connection = connection_of(options)
    retain_s = seconds_of(options.retain)
    history_retain_s = None if options.history_retain is None else seconds_of(options.history_retain)
    check_history(history_retain_s, options.scd)
    open_storage(options.target, dict(options.target_option))
    return lambda spark: mirror(
        lasting(spark, options.catalog),
        connection,
        options.target,
        target_options=dict(options.target_option),
        format=options.format,
        stored_as_scd_type=options.scd,
        trigger=trigger_of(options),
        buckets=options.buckets,
        max_rows=options.max_rows,
        driver_bytes=options.driver_mb << 20,
        accept_gaps=options.accept_gaps,
        accept_cluster=options.accept_cluster,
        on_error=options.on_error,
        dropped_columns=options.dropped_columns,
        changed_types=options.changed_types,
        retain_s=retain_s,
        retry_s=options.retry_s,
        metrics_port=options.metrics_port,
        metrics_host=options.metrics_host,
        catalog=options.catalog,
        history_retain_s=history_retain_s,
        tables=split_names(options.table or ""),
    )
