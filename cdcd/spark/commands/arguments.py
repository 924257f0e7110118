"""The command line of `python -m cdcd.spark`.

In: words.  Out: the parsed arguments, and the options of the connection in them.
Must not: import PySpark, because `--help` and the generated page of the commands need none; show a value in an error,
because it may be a secret.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from cdcd.spark.commands.option_pairs import add_pairs, add_target_options
from cdcd.spark.source.positions import POSITION_OPTIONS, position_of
from cdcd.spark.target.mirror_sizes import (
    DEFAULT_BUCKETS,
    DEFAULT_DRIVER_MB,
    DEFAULT_MAX_ROWS,
    DEFAULT_RETAIN_S,
    DEFAULT_RETRY_S,
    LOCAL_HOST,
)

PROGRAM = "python -m cdcd.spark"
FORMATS = ("parquet", "json", "orc", "delta")
MIRROR_FORMATS = ("parquet", "delta", "iceberg")
OUTPUTS = ("text", "json")
VIEW_DIALECTS = ("duckdb", "spark")
DEFAULT_SHOWN = 20
DEFAULT_TRIGGER_MS = 2000
_ENDS = (
    "latest, snapshot_end, an LSN such as 16/B374D848, a time in ISO 8601 with its zone, milliseconds since 1970, or "
    "Kafka's offsets as JSON"
)
_POSITIONS = f"earliest, {_ENDS}"
_NAMED = ("config", "brokers", "prefix", "registry")


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    whole = argparse.ArgumentParser(
        prog=PROGRAM, description="Read the topics of cdcd with Spark, locally or on a cluster."
    )
    commands = whole.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_read(commands)
    _add_mirror(commands)
    _add_drop_table(commands)
    _add_register(commands)
    _add_status(commands)
    _add_verify(commands)
    _add_views(commands)
    _add_wait(commands)
    return whole


def connection_options(options: argparse.Namespace) -> dict[str, str]:
    """Return the options of the connection, and all others that `--option` has."""
    named = {name: getattr(options, name) for name in _NAMED}
    return {name: value for name, value in named.items() if value is not None} | dict(options.option)


def trigger_of(options: argparse.Namespace) -> str:
    """Return the trigger of a query, as `cdcd.spark.mirroring.start.mirror` takes it."""
    if options.available_now:
        return "available_now"
    return f"{options.trigger_ms or DEFAULT_TRIGGER_MS} milliseconds"


def _add_read(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "read",
        help="show the changes of tables, or append them to files",
        description="Read the changes of tables as typed columns: show the first ones as lines of JSON, or append "
        "all of them to files, each exactly once, until SIGTERM or SIGINT.",
    )
    _add_connection(command, "data source", "kafka.security.protocol=SASL_SSL or special=string")
    command.add_argument(
        "--table",
        metavar="NAMES",
        required=True,
        help="tables as SCHEMA.TABLE, with commas, or patterns such as 'public.*'",
    )
    command.add_argument("--columns", metavar="NAMES", help="columns of the rows, with commas; default: all")
    command.add_argument("--before", action="store_true", help="also read the old rows")
    command.add_argument(
        "--starting",
        metavar="POSITION",
        type=partial(_position, "starting"),
        help=f"the start without a checkpoint, earliest by default: {_POSITIONS}",
    )
    command.add_argument(
        "--ending",
        metavar="POSITION",
        type=partial(_position, "ending"),
        help="with --show: the end, the newest commit by default",
    )
    output = command.add_mutually_exclusive_group()
    output.add_argument(
        "--show",
        type=_number,
        metavar="N",
        help=f"print the first N changes in the order of the commits, {DEFAULT_SHOWN} by default",
    )
    output.add_argument("--output", metavar="URI", help="append the changes to files in this folder")
    command.add_argument(
        "--format",
        choices=FORMATS,
        help=f"format of the output, {FORMATS[0]} by default; delta needs its package in Spark",
    )
    command.add_argument("--checkpoint", metavar="URI", help="folder of the position of the output")
    _add_trigger(command)
    _add_spark(command)


def misuse(options: argparse.Namespace) -> str | None:
    """Return what is wrong with the combination of the arguments of `read`, None if nothing is."""
    if options.output is None:
        given = {
            name: getattr(options, name) for name in ("format", "checkpoint", "available_now", "trigger_ms")
        }
        wrong = [f"--{name.replace('_', '-')}" for name, value in given.items() if value]
        return f"{wrong[0]} needs --output" if wrong else None
    if options.checkpoint is None:
        return "--output needs --checkpoint, which has the position, so that each change is written once"
    if options.ending is not None:
        return "--ending is for --show: an output has no end; --available-now stops it at the newest commit"
    return None


def _add_mirror(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "mirror",
        help="maintain a mirror of every table, in Parquet, Delta or Iceberg",
        description="Maintain a mirror of every table, exactly once, until SIGTERM or SIGINT.",
    )
    _add_connection(command)
    _add_target(command)
    command.add_argument(
        "--table",
        metavar="NAMES",
        help="mirror these tables only: SCHEMA.TABLE, with commas, or patterns such as 'public.*' of the tables that "
        "have a topic at the start; default: all, also later ones",
    )
    _add_trigger(command)
    command.add_argument(
        "--format",
        choices=MIRROR_FORMATS,
        default=MIRROR_FORMATS[0],
        help="format of the tables of a new target: Parquet files, which cdcd reads, or Delta or Iceberg "
        "tables, which any reader of that format reads (default: %(default)s)",
    )
    command.add_argument(
        "--scd",
        type=int,
        choices=(1, 2),
        default=1,
        help="the SCD type of a new target: 1 has the current rows of its tables, 2 also their history (default: "
        "%(default)s)",
    )
    command.add_argument(
        "--buckets",
        type=_number,
        default=DEFAULT_BUCKETS,
        metavar="N",
        help="hash buckets in which a new target folds the changes of a batch",
    )
    command.add_argument(
        "--max-rows", type=_number, default=DEFAULT_MAX_ROWS, metavar="N", help="maximum rows of a batch"
    )
    command.add_argument(
        "--driver-mb",
        type=_number_from_zero,
        default=DEFAULT_DRIVER_MB,
        metavar="MB",
        help="Spark's tasks fold a batch with more MB of records than this, and the driver folds a smaller one",
    )
    command.add_argument("--accept-gaps", action="store_true", help="continue at a marker of missing changes")
    command.add_argument(
        "--accept-cluster",
        action="store_true",
        help="continue if the topics are in another Kafka cluster, with the same offsets as before",
    )
    command.add_argument(
        "--on-error",
        choices=("park", "fail"),
        default="park",
        help="what to do with a table whose records are not a consistent history: park leaves the table unchanged "
        "and updates the others, fail ends the mirror (default: %(default)s)",
    )
    _add_policies(command)
    command.add_argument(
        "--retain",
        default=f"{DEFAULT_RETAIN_S:g} seconds",
        metavar="TIME",
        help="how long an earlier version of the target can be read (default: %(default)s)",
    )
    command.add_argument(
        "--history-retain",
        metavar="TIME",
        help="with --scd 2: how long a version of a row remains in the history after its end, such as '90 "
        "days'; default: for ever",
    )
    _add_catalog(command)
    _add_operation(command)
    _add_spark(command)


def _add_policies(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--dropped-columns",
        choices=("drop", "keep"),
        default="drop",
        help="what to do with a column that was dropped in PostgreSQL: drop removes it from the mirror's table, keep "
        "leaves it there, null in rows that are written later (default: %(default)s)",
    )
    command.add_argument(
        "--changed-types",
        choices=("park", "new_column", "fail"),
        default="park",
        help="what to do if a column gets an incompatible type: park does what --on-error says, new_column leaves "
        "the former values in a column of their own (not of a column in the key), fail ends the mirror (default: "
        "%(default)s)",
    )


def _add_operation(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--retry-s",
        type=_number_from_zero,
        default=int(DEFAULT_RETRY_S),
        metavar="SECONDS",
        help="the time without progress for which the mirror retries after a temporary error, such as an "
        "unavailable Kafka; 0: never (default: %(default)s)",
    )
    command.add_argument(
        "--metrics-port", type=_number, metavar="PORT", help="serve /metrics for Prometheus, and /healthz"
    )
    command.add_argument(
        "--metrics-host",
        default=LOCAL_HOST,
        metavar="HOST",
        help="the address of that port (default: %(default)s)",
    )


def _add_drop_table(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "drop-table",
        help="drop a table from a mirror",
        description="Drop a table from a mirror, also while the mirror runs. The table comes back "
        "after `cdcd snapshot start --table SCHEMA.TABLE --recopy`, or after a TRUNCATE.",
        epilog="Exit status: 0, or 2 if there is no such mirror or table.",
    )
    _add_target(command)
    command.add_argument("--table", metavar="NAME", required=True, help="the table, as SCHEMA.TABLE")


def _add_register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "register",
        help="register the tables of a mirror in a catalog of Spark",
        description="Register the tables of a mirror in a catalog of Spark, so that SQL finds them by name.",
        epilog="Exit status: 0, 1 if a table could not be registered, 2 if there is no mirror to read.",
    )
    _add_target(command)
    _add_catalog(command, required=True)
    _add_spark(command)


def _add_status(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "status",
        help="show the state of a mirror",
        description="Show the position of a mirror, its age, and the state of its tables, without Spark.",
        epilog="Exit status: 0 if all tables are updated, 1 if one is parked, 2 if there is no mirror to read.",
    )
    _add_target(command)
    command.add_argument(
        "--output", choices=OUTPUTS, default="text", help="output format (default: %(default)s)"
    )


def _add_wait(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "wait",
        help="wait until a mirror has a commit",
        description="Wait until a mirror has all commits up to an LSN, without Spark.",
        epilog="Exit status: 0 if all tables have them; 1 after --timeout-s, and at once if the mirror has them "
        "except in tables that are parked or lack rows; 2 for a target that cannot be read.",
    )
    _add_target(command)
    command.add_argument(
        "--lsn",
        required=True,
        metavar="LSN",
        help="what pg_current_wal_insert_lsn() returns after the COMMIT",
    )
    command.add_argument(
        "--timeline",
        type=_number,
        metavar="NUMBER",
        help="the server's timeline of the LSN (default: that which the mirror has reached last)",
    )
    command.add_argument(
        "--slot",
        metavar="NAME",
        help="the slot that sends the commit (default: the mirror waits for each slot)",
    )
    command.add_argument(
        "--timeout-s",
        type=_number,
        default=60,
        metavar="SECONDS",
        help="time-out in seconds (default: %(default)s)",
    )


def _add_views(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "views",
        help="print SQL views of a mirror's tables",
        description="Print statements that create a view of each table of a mirror, all as of one commit, for "
        "DuckDB or Spark without cdcd. The views name the files of one version, and can be read while the "
        "version is retained.",
        epilog="Exit status: 0, or 2 if there is no such mirror or version.",
    )
    _add_target(command)
    command.add_argument(
        "--dialect",
        choices=VIEW_DIALECTS,
        default=VIEW_DIALECTS[0],
        help="the SQL of the reader (default: %(default)s)",
    )
    command.add_argument(
        "--at",
        metavar="POSITION",
        help="an earlier commit: an LSN such as 16/B374D848, a time in ISO 8601 with its zone, or v and the "
        "number of a "
        "version; default: the newest one",
    )
    _add_tables(command)
    command.add_argument("--view-prefix", metavar="TEXT", default="", help="prefix of the names of the views")


def _add_verify(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "verify",
        help="compare a mirror with the topics",
        description="Compare a mirror with the rows that follow from the topics up to the mirror's position; the "
        "rows are computed without the mirror's code. The exit status is 0 if all tables are equal, 1 if one "
        "differs, 2 if one cannot be compared.",
    )
    _add_connection(command)
    _add_target(command)
    _add_tables(command)
    command.add_argument(
        "--output", choices=OUTPUTS, default=OUTPUTS[0], help=f"output format, {OUTPUTS[0]} by default"
    )
    command.add_argument(
        "--show-keys", action="store_true", help="print keys of rows that differ, instead of their digests"
    )
    _add_spark(command)


# --- arguments of several commands -----------------------------------------------------------------------------


def _add_connection(
    command: argparse.ArgumentParser,
    of: str = "connection",
    example: str = "kafka.security.protocol=SASL_SSL",
) -> None:
    command.add_argument(
        "--config", metavar="FILE", help="cdcd's own configuration, which the other arguments override"
    )
    command.add_argument("--brokers", metavar="HOST:PORT", help="Kafka's bootstrap servers, with commas")
    command.add_argument("--prefix", metavar="NAME", help="the topic prefix, `name` in cdcd's configuration")
    schemas = command.add_mutually_exclusive_group()
    schemas.add_argument(
        "--registry",
        metavar="URL",
        help="the schema registry's Confluent API, or several URLs with commas; none: read the schemas from Kafka",
    )
    schemas.add_argument(
        "--schemas",
        metavar="URL",
        dest="registry",
        help="without a registry: cdcd's admin port, which serves the same API",
    )
    add_pairs(command, "--option", of, example)


def _add_target(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--target", metavar="URI", required=True, help="the mirror's folder, or its URI in a bucket"
    )
    add_target_options(command)


def _add_catalog(command: argparse.ArgumentParser, *, required: bool = False) -> None:
    command.add_argument(
        "--catalog",
        metavar="NAMESPACE",
        required=required,
        help="the database of a catalog of Spark in which the tables are registered, such as spark_catalog.shop",
    )


def _add_tables(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--table",
        metavar="NAMES",
        default="*",
        help="tables as SCHEMA.TABLE, with commas, or patterns such as 'public.*'; default: all",
    )


def _add_trigger(command: argparse.ArgumentParser) -> None:
    when = command.add_mutually_exclusive_group()
    when.add_argument(
        "--trigger-ms",
        type=_number,
        metavar="MS",
        help=f"time between batches, {DEFAULT_TRIGGER_MS} by default",
    )
    when.add_argument(
        "--available-now", action="store_true", help="stop at the commit that is the newest one at the start"
    )


def _add_spark(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--cores", default="2", metavar="N", help="cores of a local Spark; a cluster has its own"
    )
    command.add_argument("--memory", default="1g", metavar="SIZE", help="memory of a local Spark")


# --- values ----------------------------------------------------------------------------------------------------


def _number(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError("has to be a whole number from 1")
    return int(text)


def _number_from_zero(text: str) -> int:
    return 0 if text == "0" else _number(text)


def _position(side: str, text: str) -> tuple[str, str]:
    """Return the data source's option of a position, and its value."""
    for option in (one for one in POSITION_OPTIONS if one.startswith(side)):
        with suppress(ValueError):
            position_of({option.lower(): text}, side)
            return option, text
    raise argparse.ArgumentTypeError(f"has to be {_POSITIONS if side == 'starting' else _ENDS}")


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Return the arguments; ends the process with status 2 for a wrong one."""
    whole = parser()
    options = whole.parse_args(words)
    if options.command == "read" and (wrong := misuse(options)):
        whole.error(f"read: {wrong}")
    return options
