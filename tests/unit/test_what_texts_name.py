"""What messages, hints and descriptions name exists.

A command in backquotes is one that cdcd's own parsers accept; an option with its path is one of the configuration.
"""

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
from cdcd.config.model import Config
from cdcd.config.shape import options
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


OTHERS = {
    "source.special": "a field of an envelope",
    "source.unchanged": "a field of an envelope",
    "source.md": "a page",
    "registry.md": "a page",
    "registry.token": "the name under which a secret is replaced by its newer form",
    "log.queue": "a property of librdkafka",
}
"""Names that are not options, although they begin like one."""
OF_ITSELF = "demo"
"""A package with the configuration of its own servers."""


def test_the_options_in_texts_exist() -> None:
    paths = {".".join(option.path) for option in options()}
    known = {".".join(option.path[:n]) for option in options() for n in range(1, len(option.path) + 1)}
    sections = "|".join(Config.model_fields)
    named = re.compile(rf"(?<![\w./-])(?:{sections})(?:\.[a-z_]+)+\b")
    found = {
        (str(path.relative_to(PACKAGE)), one)
        for path in PACKAGE.rglob("*.py")
        if path.relative_to(PACKAGE).parts[0] != OF_ITSELF
        for one in _names(path, named)
    }
    unknown = {
        (path, one)
        for path, one in found
        if one not in known
        and one.rpartition(f".{_OF_A_PLACE}")[0] not in known
        and not _is_in_one(one, paths)
    }
    assert len(found) > 100
    assert OTHERS.keys() - {one for _, one in unknown} == set(), (
        "entries of OTHERS that no module has any more"
    )
    assert {(path, one) for path, one in unknown if one not in OTHERS} == set()


def _names(path: Path, named: re.Pattern[str]) -> Iterator[str]:
    source = path.read_text()
    if named.search(source):
        for text in _texts(source):
            yield from named.findall(text)


def _is_in_one(name: str, paths: set[str]) -> bool:
    """Return whether the name continues that of an option, which is a mapping with names of its own."""
    return any(name.startswith(f"{path}.") for path in paths)
