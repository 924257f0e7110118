"""`python -m cdcd.spark views`: print SQL views of a mirror's tables.

In: the parsed arguments.  Out: statements and comments on stdout; the exit status.
Invariant: what keeps a view from having all rows of its commit is a comment before it.
Must not: start Spark; print a value of a row.
"""

from __future__ import annotations

import argparse
import sys
import time

from cdcd.errors import EXIT_OK, CdcdError
from cdcd.spark.commands.running import EXIT_UNKNOWN, log, log_to
from cdcd.spark.reading.mirror import read_mirror
from cdcd.spark.reading.plain_views import plain_views, script_of
from cdcd.spark.source.table_options import split_names


def run(options: argparse.Namespace) -> int:
    """Print the statements; return the exit status."""
    log_to(sys.stderr)
    now_s = time.time()
    try:
        opened = read_mirror(options.target, dict(options.target_option), at=options.at)
        tables = split_names(options.table)
        views = plain_views(opened, options.dialect, tables=tables, prefix=options.view_prefix)
        lines = [*script_of(opened, views, now_s)]
    except CdcdError as error:
        log.error("the views cannot be created: %s", error)
        return EXIT_UNKNOWN
    print("\n".join(lines))
    return EXIT_OK
