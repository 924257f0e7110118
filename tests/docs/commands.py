"""Generate the page of all commands from the command-line parsers.

In: the parsers.  Out: Markdown, the same from every version of Python.
Must not: add text that the help of a command does not have.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from cdcd.cli import _parser
from cdcd.demo.options import parser as demo_parser
from cdcd.spark.commands.arguments import parser as spark_parser

INTRODUCTION = """\
# Commands

<!-- Made by `python -m tests.docs`. -->

`cdcd --config FILE` runs the daemon. `cdcd COMMAND --help` prints the same text. A configuration with a mistake ends
each command that reads it with exit status 78; [Operate](operate.md) lists the exit statuses of the daemon.
"""
_NOT_HERE = {"help"}


def commands_page() -> str:
    """Return the page of all commands."""
    return "\n".join([INTRODUCTION, *_sections(_parser(), ""), *_sections(spark_parser(), "")])


def _sections(parser: argparse.ArgumentParser, what: str) -> Iterator[str]:
    described = parser.description or f"{what[:1].upper()}{what[1:]}."
    yield "\n".join([f"## {parser.prog}", "", _text(described), *_arguments(parser)]) + "\n"
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            reported = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for name, command in action.choices.items():
                own = demo_parser() if name == "demo" else command  # the demo reads its own arguments
                yield from _sections(own, reported[name])


def _arguments(parser: argparse.ArgumentParser) -> list[str]:
    shown = [action for action in parser._actions if action.dest not in _NOT_HERE]
    rows = [_row(action) for action in shown if not isinstance(action, argparse._SubParsersAction)]
    return ["", "| argument | what it does |", "|---|---|", *rows] if rows else []


def _row(action: argparse.Action) -> str:
    value = str(action.metavar or "") or ",".join(map(str, action.choices or ()))
    words = [*action.option_strings] or [value]
    takes_value = bool(action.option_strings) and action.nargs != 0
    name = ", ".join(f"`{word} {value}`" if takes_value else f"`{word}`" for word in words)
    more = " (required)" if action.required and action.option_strings else ""
    return f"| {name} | {_text(_help(action))}{more} |"


def _help(action: argparse.Action) -> str:
    """Return the help with the values that argparse puts into it, such as the default."""
    return (action.help or "") % vars(action)


def _text(words: str) -> str:
    return words.replace("|", "\\|").replace("<", "&lt;")
