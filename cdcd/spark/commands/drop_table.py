"""`python -m cdcd.spark drop-table`: drop a table from a mirror, also while the mirror runs.

In: the parsed arguments.  Out: a line; the exit status.
Must not: start Spark.
"""

from __future__ import annotations

import argparse
import sys

from cdcd.errors import EXIT_OK, CdcdError
from cdcd.spark.commands.running import EXIT_UNKNOWN, log, log_to
from cdcd.spark.mirroring.dropped_tables import drop_table


def run(options: argparse.Namespace) -> int:
    """Drop the table; return the exit status."""
    log_to(sys.stderr)
    try:
        number = drop_table(options.target, options.table, target_options=dict(options.target_option))
    except CdcdError as error:
        log.error("the table is not dropped: %s", error)
        return EXIT_UNKNOWN
    print(
        f"{options.table} is not in the mirror from version {number} on; its files are removed after the "
        "retention time"
    )
    return EXIT_OK
