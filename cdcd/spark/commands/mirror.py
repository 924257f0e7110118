"""`python -m cdcd.spark mirror`: run the mirror until a signal, with --available-now until it is up to date.

In: the parsed arguments.  Out: an exit status.  Must not: have options that `cdcd.spark.mirror.mirror` does not have.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from cdcd.spark.commands.arguments import connection_options, trigger_of
from cdcd.spark.commands.running import run_query
from cdcd.spark.connection_options import connection_from
from cdcd.spark.mirror import mirror
from cdcd.spark.schemas import access_of


def run(options: argparse.Namespace) -> int:
    """Run the mirror; return the exit status."""
    return run_query("mirror", options, lambda: _prepared(options))


def _prepared(options: argparse.Namespace) -> Callable[[SparkSession], StreamingQuery]:
    connection = connection_from(connection_options(options))
    access_of(connection)  # raises for a missing registry
    return lambda spark: mirror(
        spark,
        connection,
        options.target,
        target_options=dict(options.target_option),
        trigger=trigger_of(options),
        buckets=options.buckets,
        max_rows=options.max_rows,
        accept_gaps=options.accept_gaps,
    )
