"""The command line: parse the arguments, call one package, turn an error into an exit status.

Comes in: arguments.  Goes out: an exit status; a command's results on stdout, errors on stderr.
Invariant: a wrong configuration ends with status 78 and one line for each problem; an error of cdcd's tree is
one line, never a traceback.
Must not: take a decision that belongs to another package; import a client library before a command needs it.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from cdcd.cli.arguments import (
    add_capture,
    add_decode,
    add_recovery_commands,
    add_snapshot,
    add_verify,
    add_wait,
)
from cdcd.cli.commands import COMMANDS, run_daemon
from cdcd.cli.output import say, show_uncaught
from cdcd.cli.suggestions import Parser, complaint
from cdcd.errors import CdcdError, ConfigError
from cdcd.errors.commands import use_file
from cdcd.extensions import implementation
from cdcd.version import __version__

__all__ = ["main"]

_DESCRIPTION = "Change data capture from PostgreSQL to Kafka, exactly once."
_EPILOG = "`cdcd --config FILE` runs the daemon. `cdcd config sample` prints a sample configuration."
_USAGE = 2  # argparse's status for a usage error
_BROKEN_PIPE = 141  # a shell's status for a process that SIGPIPE has ended


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    sys.excepthook = show_uncaught
    words = list(sys.argv[1:] if arguments is None else arguments)
    parser = _parser()
    wrong = complaint(words, COMMANDS)
    if wrong or not words:
        say([*parser.format_help().splitlines(), *wrong], sys.stderr)
        return _USAGE
    if words[:1] == ["demo"]:  # the demo reads its own arguments
        options = parser.parse_args(words[:1], argparse.Namespace(arguments=words[1:]))
    else:
        options = parser.parse_args(words)
    if options.command is None and options.config is None:
        parser.error("--config FILE is required")
    if (check := getattr(options, "check", None)) is not None:
        check(options)
    if options.config is not None:
        use_file(str(options.config.absolute()))
    try:
        return (COMMANDS[options.command] if options.command else run_daemon)(options)
    except ConfigError as error:
        say(error.problems or (str(error),), sys.stderr)
        return error.exit_status
    except CdcdError as error:
        say([f"cdcd: {error}"], sys.stderr)
        return error.exit_status
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE


class _Version(argparse.Action):
    """Print the version. The C extensions are loaded only for this option, because loading takes time."""

    def __call__(self, parser: argparse.ArgumentParser, *_args: object) -> None:
        print(f"cdcd {__version__} ({implementation()})")
        parser.exit()


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="cdcd", description=_DESCRIPTION, epilog=_EPILOG, allow_abbrev=False)
    parser.add_argument(
        "--version", action=_Version, nargs=0, help="print the version and whether the C extensions run"
    )
    _add_config(parser, is_command=False)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")

    check = commands.add_parser(
        "check", help="connect to all servers and report each problem", allow_abbrev=False
    )
    _add_config(check)
    check.add_argument("--json", action="store_true", help="print the findings as JSON")

    init = commands.add_parser("init", help="create the publication, topics and slot", allow_abbrev=False)
    _add_config(init)
    init.add_argument("--dry-run", action="store_true", help="print the SQL and commands, change nothing")

    config = commands.add_parser("config", help="print a sample, the schema, or the effective configuration")
    actions = config.add_subparsers(dest="action", metavar="ACTION", required=True)
    actions.add_parser("sample", help="print every option with its default")
    actions.add_parser("schema", help="print the JSON Schema")
    _add_config(
        actions.add_parser(
            "show", help="print the effective configuration and the source of each value, secrets hidden"
        )
    )

    add_recovery_commands(commands, _add_config)
    add_snapshot(commands, _add_config)
    add_wait(commands, _add_config)
    add_verify(commands, _add_config)
    add_capture(commands, _add_config)
    add_decode(commands)
    commands.add_parser("demo", help="run the whole pipeline on temporary servers", add_help=False)
    return parser


def _add_config(parser: argparse.ArgumentParser, *, is_command: bool = True) -> None:
    # a subcommand's default would overwrite the option before the command: `cdcd --config FILE check`
    default = argparse.SUPPRESS if is_command else None
    parser.add_argument("--config", metavar="FILE", type=Path, default=default, help="the configuration file")
