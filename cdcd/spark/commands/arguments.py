"""The command line of `python -m cdcd.spark`.

In: words.  Out: the parsed arguments, and the options of the connection in them.
Must not: import PySpark, because `--help` and the generated page of the commands need none; show a value in an error,
because it may be a secret.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from cdcd.spark.mirror_sizes import DEFAULT_BUCKETS, DEFAULT_MAX_ROWS

PROGRAM = "python -m cdcd.spark"
_NAMED = ("config", "brokers", "prefix", "registry")


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    whole = argparse.ArgumentParser(
        prog=PROGRAM, description="Read the topics of cdcd with Spark, locally or on a cluster."
    )
    commands = whole.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_mirror(commands)
    return whole


def connection_options(options: argparse.Namespace) -> dict[str, str]:
    """Return the options of the connection, and the others that `--option` has."""
    named = {name: getattr(options, name) for name in _NAMED}
    return {name: value for name, value in named.items() if value is not None} | dict(options.option)


def trigger_of(options: argparse.Namespace) -> str:
    """Return the trigger of a query, as `cdcd.spark.mirror.mirror` takes it."""
    return "available_now" if options.available_now else f"{options.trigger_ms} milliseconds"


def _add_mirror(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "mirror",
        help="maintain a Parquet mirror of every table",
        description="Maintain a Parquet mirror of every table, exactly once, until SIGTERM or SIGINT.",
    )
    _add_connection(command)
    _add_target(command)
    _add_trigger(command)
    command.add_argument(
        "--buckets", type=_number, default=DEFAULT_BUCKETS, metavar="N", help="hash buckets of a new target"
    )
    command.add_argument(
        "--max-rows", type=_number, default=DEFAULT_MAX_ROWS, metavar="N", help="maximum rows of a batch"
    )
    command.add_argument("--accept-gaps", action="store_true", help="continue at a marker of missing changes")
    _add_spark(command)


# --- arguments of several commands -----------------------------------------------------------------------------


def _add_connection(command: argparse.ArgumentParser) -> None:
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
    command.add_argument(
        "--option",
        metavar="NAME=VALUE",
        type=_pair,
        action="append",
        default=[],
        help="an option of the connection, as kafka.security.protocol=SASL_SSL; may be repeated",
    )


def _add_target(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--target", metavar="URI", required=True, help="the mirror's folder, or its URI in a bucket"
    )
    command.add_argument(
        "--target-option",
        metavar="NAME=VALUE",
        type=_pair,
        action="append",
        default=[],
        help="an option of the bucket's storage, as endpoint=https://s3.example.com; may be repeated",
    )


def _add_trigger(command: argparse.ArgumentParser) -> None:
    when = command.add_mutually_exclusive_group()
    when.add_argument(
        "--trigger-ms", type=_number, default=2000, metavar="MS", help="time between batches, 2000 by default"
    )
    when.add_argument("--available-now", action="store_true", help="stop at the newest commit at the start")


def _add_spark(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--cores", default="2", metavar="N", help="cores of a local Spark; a cluster has its own"
    )
    command.add_argument("--memory", default="1g", metavar="SIZE", help="memory of a local Spark")


# --- values ----------------------------------------------------------------------------------------------------


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError("has to be NAME=VALUE")
    return name, value


def _number(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError("has to be a whole number from 1")
    return int(text)


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Return the arguments; ends the process with status 2 for a wrong one."""
    return parser().parse_args(words)
