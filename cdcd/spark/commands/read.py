"""`python -m cdcd.spark read`: the changes of tables, on stdout or appended to files.

In: the parsed arguments.  Out: an exit status; with --show lines of JSON on stdout, and the log on stderr.
Invariant: an output has each change once: Spark's checkpoint has the position, the log of its file sink the files.
Must not: put a value into the log.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.streaming import StreamingQuery

from cdcd.errors import EXIT_FAILURE, EXIT_OK, ConfigError
from cdcd.spark.commands.arguments import DEFAULT_SHOWN, FORMATS, connection_options, trigger_of
from cdcd.spark.commands.running import log, log_to, run_query
from cdcd.spark.data_source import register
from cdcd.spark.decoding.exact_json import EXACT_JSON
from cdcd.spark.decoding.schemas import access_of
from cdcd.spark.session import is_shown_in_a_line, reason_of, submitted_or_local
from cdcd.spark.source.source_options import parse_options

_ORDER = ("timeline", "commit_lsn", "not snapshot", "tx_seq")
_PLACE = ("topic", "partition", "offset")
_NO_DELTA = (
    "use spark-submit --packages with the package of Delta Lake, which cdcd.spark.packages() returns; "
    "or choose another format"
)


def run(options: argparse.Namespace) -> int:
    """Show or append the changes; return the exit status."""
    if options.output is None:
        return _show(options)
    return run_query("reader", options, lambda: _prepared(options))


def source_options(options: argparse.Namespace) -> dict[str, str]:
    """Return the options of the data source. Raises ConfigError."""
    chosen = connection_options(options) | {"table": options.table, "before": str(options.before).lower()}
    if options.columns is not None:
        chosen["columns"] = options.columns
    chosen |= dict(one for one in (options.starting, options.ending) if one is not None)
    access_of(parse_options(chosen).connection)  # raises for a missing registry
    return chosen


def _show(options: argparse.Namespace) -> int:
    log_to(sys.stderr)
    try:
        chosen = source_options(options)
        spark = submitted_or_local("cdcd read", options.cores, options.memory)
        try:
            register(spark)
            frame = spark.read.format("cdcd").options(**chosen).load()
            for row in _first(frame, options.show or DEFAULT_SHOWN).collect():
                print(row[0])
        finally:
            spark.stop()
    except Exception as error:
        if not is_shown_in_a_line(error):
            raise
        log.error("the changes cannot be read: %s", reason_of(error))
        return EXIT_FAILURE
    return EXIT_OK


def _first(frame: DataFrame, rows: int) -> DataFrame:
    """Return the first changes, as JSON. Tombstones, which have no position, come after all changes."""
    order = [F.expr(one).asc_nulls_last() for one in _ORDER]
    return frame.orderBy(*order, *_PLACE).limit(rows).select(F.to_json(F.struct("*"), EXACT_JSON))


def _prepared(options: argparse.Namespace) -> Callable[[SparkSession], StreamingQuery]:
    chosen = source_options(options)
    return lambda spark: _start(spark, chosen, options)


def _start(spark: SparkSession, chosen: dict[str, str], options: argparse.Namespace) -> StreamingQuery:
    register(spark)
    written_as = options.format or FORMATS[0]
    writer = (
        spark.readStream.format("cdcd")
        .options(**chosen)
        .load()
        .writeStream.format(written_as)
        .options(**EXACT_JSON if written_as == "json" else {})
        .option("checkpointLocation", options.checkpoint)
        .option("path", options.output)
        .outputMode("append")
    )
    if options.available_now:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=trigger_of(options))
    try:
        return writer.start()
    except Exception as error:  # for a missing class py4j's own, which PySpark does not convert
        if "DATA_SOURCE_NOT_FOUND" in str(error):
            raise ConfigError(f"Spark has no format {written_as}", hint=_NO_DELTA) from error
        raise
