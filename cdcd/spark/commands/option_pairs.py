"""Arguments NAME=VALUE, which a command has any number of times: those of a mirror's storage, of a connection.

In: a parser.  Out: the parser with such an argument, whose value is a list of pairs.
Invariant: an error does not show the value, because it may be a secret.
Must not: import PySpark, because `cdcd wait` has such an argument, too.
"""

from __future__ import annotations

import argparse

__all__ = ["add_pairs", "add_target_options"]


def add_target_options(command: argparse.ArgumentParser) -> None:
    """Add the options of a mirror's storage."""
    add_pairs(command, "--target-option", "mirror's storage", "endpoint=https://s3.example.com")


def add_pairs(command: argparse.ArgumentParser, name: str, of: str, example: str) -> None:
    """Add an argument of this name. `of`: whose options they are; `example`: one of them."""
    command.add_argument(
        name,
        metavar="NAME=VALUE",
        type=_pair,
        action="append",
        default=[],
        help=f"an option of the {of}, such as {example}; a secret is file:PATH or env:NAME; repeat the option "
        "for several",
    )


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError("has to be NAME=VALUE")
    return name, value
