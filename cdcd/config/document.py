"""A YAML file as a tree of plain values, with the line of each key.

Comes in: a path.  Goes out: `Document(tree, lines)`, or ConfigError with one clear line for each problem.
Invariant: a key given twice is a problem, never a silent choice; only `true` and `false` are booleans, so
that `on` and `off` are text; quoted text is removed from a parser's message, because it could be a secret.
Must not: know any option, resolve aliases or tags (a configuration needs neither).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from cdcd.errors import ConfigError

KeyPath = tuple[str | int, ...]

MAX_FILE_BYTES = 1 << 20
_MOST_PROBLEMS = 100
_QUOTED = re.compile(r"'.{2,}'|\".{2,}\"")
_SCALARS = {
    "tag:yaml.org,2002:null": r"~|null|Null|NULL|",
    "tag:yaml.org,2002:bool": r"true|True|TRUE|false|False|FALSE",
    "tag:yaml.org,2002:int": r"[-+]?(?:0|[1-9][0-9]*)",
    "tag:yaml.org,2002:float": r"[-+]?[0-9]+\.[0-9]*(?:[eE][-+]?[0-9]+)?",
}


class _Loader(yaml.SafeLoader):
    """SafeLoader with the few scalar types of YAML 1.2's core that options use."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, Any]]] = {}  # noqa: RUF012


for _tag, _pattern in _SCALARS.items():
    _Loader.add_implicit_resolver(_tag, re.compile(f"^(?:{_pattern})$"), None)


@dataclass(frozen=True, slots=True)
class Document:
    """One file: its name as given, its values, and the 1-based line of every key and list item."""

    name: str
    tree: dict[str, Any]
    lines: dict[KeyPath, int]


def read_document(path: Path) -> Document:
    """Read and parse `path`. Raises ConfigError when it cannot be read or is not one mapping of keys."""
    name = str(path)
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
        text = data.decode("utf-8-sig")
    except OSError as error:
        is_relative = isinstance(error, FileNotFoundError) and not path.is_absolute()
        where = f" in {Path.cwd()}" if is_relative else ""
        raise _unusable(f"{name}: cannot be read: {error.strerror}{where}") from None
    except UnicodeDecodeError:
        raise _unusable(f"{name}: is not UTF-8 text") from None
    if len(data) > MAX_FILE_BYTES:
        raise _unusable(f"{name}: has more than {MAX_FILE_BYTES} bytes, the limit of a configuration")
    return parse_document(text, name)


def parse_document(text: str, name: str) -> Document:
    """Parse YAML `text`; `name` is its name in problems."""
    loader = None
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None or (isinstance(node, yaml.ScalarNode) and node.value == ""):
            raise _unusable(f"{name}: is empty")
        if not isinstance(node, yaml.MappingNode):
            raise _unusable(f"{name}: must be a mapping of keys, found {_kind(node)}")
        lines: dict[KeyPath, int] = {}
        problems: list[str] = []
        _survey(node, (), name, lines, problems, set())
        if problems:
            raise _unusable(*problems)
        return Document(name, loader.construct_document(node), lines)
    except yaml.MarkedYAMLError as error:
        raise _unusable(_syntax_problem(error, name)) from None
    except yaml.YAMLError:
        raise _unusable(f"{name}: has a character that YAML does not allow") from None
    except (
        ValueError,
        LookupError,
        AttributeError,
        TypeError,
        RecursionError,
    ):  # of an explicit tag: `!!bool x`
        raise _unusable(f"{name}: has a value that YAML cannot construct") from None
    finally:
        if loader is not None:
            loader.dispose()


def _unusable(*problems: str) -> ConfigError:
    return ConfigError("the configuration cannot be used", first_of(problems))


def first_of(problems: tuple[str, ...]) -> tuple[str, ...]:
    """Return the first problems, and the number of the others."""
    shown = problems[:_MOST_PROBLEMS]
    return shown if len(problems) == len(shown) else (*shown, f"and {len(problems) - len(shown)} more")


def _kind(node: yaml.Node) -> str:
    return "a list" if isinstance(node, yaml.SequenceNode) else "a single value"


def _syntax_problem(error: yaml.MarkedYAMLError, name: str) -> str:
    mark = error.problem_mark or error.context_mark
    where = f"{name}:{mark.line + 1}" if mark else name
    problem = error.problem or "cannot be parsed"
    if r"'\t'" in problem:
        problem = "a tab cannot indent; use spaces"
    elif not problem.startswith("expected"):  # other messages quote the file's text, these only token names
        problem = _QUOTED.sub("...", problem)
    return f"{where}: is not YAML: {problem}"


def _survey(
    node: yaml.Node,
    path: KeyPath,
    name: str,
    lines: dict[KeyPath, int],
    problems: list[str],
    seen: set[int],
) -> None:
    """Note the line of every key below `node`; collect keys given twice, keys that are not text, aliases."""
    line = node.start_mark.line + 1
    if id(node) in seen:
        problems.append(f"{path_text(path)}: aliases are not supported in this file (from {name}:{line})")
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            lines[(*path, index)] = item.start_mark.line + 1
            _survey(item, (*path, index), name, lines, problems, seen)
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode) or key.tag != "tag:yaml.org,2002:str":
                problems.append(
                    f"{path_text(path)}: a key is not text (from {name}:{line})".removeprefix(": ")
                )
                continue
            inner = (*path, key.value)
            if inner in lines:
                problems.append(
                    f"{path_text(inner)}: set twice (from {name}:{line}, first at line {lines[inner]})"
                )
                continue
            lines[inner] = line
            _survey(value, inner, name, lines, problems, seen)


def path_text(path: KeyPath) -> str:
    """Return a key's path as text: `source.publication.tables[1]`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text
