"""Run a command's query to its end, in the session of spark-submit or in a local one.

In: the parsed arguments, a function that starts the query.  Out: an exit status; the connection of the arguments.
Invariant: SIGTERM and SIGINT end the query after its batch; an error is one line of the log.
Must not: change the resources of a cluster.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import signal
import sys
import threading
from collections.abc import Callable
from typing import TextIO

from pyspark.sql import SparkSession

from cdcd.errors import EXIT_FAILURE, EXIT_OK
from cdcd.spark.clients.connection import Connection
from cdcd.spark.clients.connection_options import connection_from
from cdcd.spark.commands.arguments import connection_options
from cdcd.spark.decoding.schemas import access_of
from cdcd.spark.session import Query, is_shown_in_a_line, reason_of, run_to_end, submitted_or_local

EXIT_UNKNOWN = 2
"""The exit status of a command that could not find out what it was asked for."""
log = logging.getLogger("cdcd.spark")


def log_to(stream: TextIO) -> None:
    """Write the log to a stream, without py4j's lines."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=stream)
    logging.getLogger("py4j").setLevel(logging.CRITICAL)


def connection_of(options: argparse.Namespace) -> Connection:
    """Return the connection of the arguments. Raises ConfigError, before Spark starts also for a missing registry."""
    connection = connection_from(connection_options(options))
    access_of(connection)
    return connection


def run_query(
    what: str, options: argparse.Namespace, prepared: Callable[[], Callable[[SparkSession], Query]]
) -> int:
    """Run a streaming query until it ends, or SIGTERM or SIGINT.

    `prepared` is called before Spark starts, and raises what is wrong with the arguments; it returns what starts the
    query.
    """
    log_to(sys.stdout)
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    failure: Exception | None
    try:
        failure = _run(what, options, prepared(), stopping)
    except Exception as error:
        if not is_shown_in_a_line(error):
            raise
        failure = error
    if failure is not None:
        log.error("the %s stopped: %s", what, reason_of(failure))
        return EXIT_FAILURE
    return EXIT_OK


def _run(
    what: str,
    options: argparse.Namespace,
    start: Callable[[SparkSession], Query],
    stopping: threading.Event,
) -> Exception | None:
    spark = submitted_or_local(f"cdcd {what}", options.cores, options.memory)
    try:
        return run_to_end(lambda: start(spark), stopping)
    finally:
        with contextlib.suppress(Exception):  # a signal to all processes of a command ends the JVM, too
            spark.stop()
