"""Each command in backquotes in a message, a hint or a description is one that cdcd's own parsers accept."""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from cdcd.cli import _parser
from cdcd.errors.commands import typeable
from cdcd.spark.commands import arguments
from tests.support.syntax import syntax_tree

PACKAGE = Path(__file__).parents[2] / "cdcd"
_COMMAND = re.compile(r"`((?:cdcd|python -m cdcd\.spark) [^`]+)`")
_PLACE = re.compile(r"%\([a-z]+\)s|%[sd]|\{[a-z_]*\}|\.\.\.")
_OF_A_PLACE = "a.b"
NAMES = {
    "cdcd capture": "the command whose file is meant",
    "cdcd snapshot": "the command of which only the action is not known",
}
"""Names of commands that nobody is asked to type as they are."""


def _texts(source: str) -> Iterator[str]:
    """Yield each string of a module except docstrings, with a text in each place of an f-string."""
    tree = syntax_tree(source)
    left_out = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            left_out.update(map(id, node.values))
            yield "".join(
                str(one.value) if isinstance(one, ast.Constant) else _OF_A_PLACE for one in node.values
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in left_out:
            yield node.value


def _commands(path: Path) -> Iterator[str]:
    """Yield the commands in backquotes in the texts of a module."""
    source = path.read_text()
    if "`cdcd " in source or "`python -m " in source:
        for text in _texts(source):
            yield from (found[1] for found in _COMMAND.finditer(_PLACE.sub(_OF_A_PLACE, text)))


def _refusal(command: str) -> str:
    """Return why the parser refuses a command, "" if it accepts it with the configuration file that hints add."""
    words = shlex.split(typeable(f"`{command}`").strip("`"))
    parser: argparse.ArgumentParser = _parser()
    if words[0] == "python":
        parser, words = arguments.parser(), words[2:]
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            parser.parse_args(words[1:])
    except SystemExit as ended:
        return said.getvalue().strip().rpartition("\n")[2] if ended.code else ""
    return ""


def test_the_commands_in_texts_are_accepted() -> None:
    found = {
        (str(path.relative_to(PACKAGE)), command)
        for path in PACKAGE.rglob("*.py")
        for command in _commands(path)
    }
    assert len(found) > 100
    named = {command for _, command in found}
    assert NAMES.keys() - named == set(), "entries of NAMES that no module has any more"
    refusals = {command: _refusal(command) for command in named - NAMES.keys()}
    assert {(path, command, refusals[command]) for path, command in found if refusals.get(command)} == set()
