"""`python -m cdcd.spark wait`: wait until a mirror has a commit.

In: the parsed arguments.  Out: a line, and the exit status: 0 only if all tables have the commit.
Must not: start Spark.
"""

from __future__ import annotations

import argparse
import sys

from cdcd.errors import EXIT_FAILURE, EXIT_OK, CdcdError, MirrorBehind, TablesParked
from cdcd.lsn import format_lsn, parse_lsn
from cdcd.spark.commands.running import EXIT_UNKNOWN, log, log_to
from cdcd.spark.reading.mirror import wait


def run(options: argparse.Namespace) -> int:
    """Wait; return the exit status."""
    log_to(sys.stderr)
    try:
        lsn = parse_lsn(options.lsn)
    except ValueError as error:
        log.error("--lsn: %s; write it as PostgreSQL prints it, such as 16/B374D848", error)
        return EXIT_UNKNOWN
    try:
        opened = wait(
            options.target,
            lsn,
            timeout_s=options.timeout_s,
            target_options=dict(options.target_option),
            timeline=options.timeline,
            slot=options.slot,
        )
    except (MirrorBehind, TablesParked) as error:
        log.error("%s", error)
        return EXIT_FAILURE
    except CdcdError as error:
        log.error("the mirror cannot be read: %s", error)
        return EXIT_UNKNOWN
    print(f"the mirror has all commits up to {format_lsn(opened.reached_lsn(options.slot))}")
    return EXIT_OK
