"""Options from environment variables: `CDCD_SOURCE__DSN` is `source.dsn`.

Comes in: an environment.  Goes out: `Variables`, with one line for each variable that names no option.
Invariant: a variable that begins with CDCD_ is an option, a known variable of another program, or a problem: a
misspelt one is never ignored.
Must not: read `os.environ` itself, show a value.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from cdcd.config.document import KeyPath, path_text
from cdcd.config.shape import Option, options

PREFIX = "CDCD_"
DELIMITER = "__"
FOREIGN_PREFIXES = ("CDCD_CACHE", "CDCD_DEMO", "CDCD_TEST", "CDCD_EXTENSIONS")
"""Variables of the demo, the tests and the build; no option may begin like this."""

_SERVICE_LINK = re.compile(
    r"CDCD(_[A-Z0-9]+)*_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_\d+_(TCP|UDP).*)?)"
)
"""The variables that Kubernetes sets in every pod for a Service whose name begins with cdcd."""


@dataclass(slots=True)
class Variables:
    """The options in the environment: a tree like the file's, and the variable of each path."""

    tree: dict[str, Any] = field(default_factory=dict)
    names: dict[KeyPath, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def read_variables(environ: Mapping[str, str]) -> Variables:
    """Return the options in `environ`; variables without the prefix are ignored."""
    known = {PREFIX + DELIMITER.join(option.path).upper(): option for option in options()}
    variables = Variables()
    for name, text in sorted(environ.items()):
        if not name.startswith(PREFIX) or name.startswith(FOREIGN_PREFIXES):
            continue
        option = known.get(name)
        if option is not None:
            _set(variables, option, name, text)
        elif not _SERVICE_LINK.fullmatch(name):
            variables.problems.append(_unknown(name, list(known)))
    return variables


def _set(variables: Variables, option: Option, name: str, text: str) -> None:
    value: Any = text
    try:
        if option.is_mapping:
            value = json.loads(text)
        elif option.is_list:
            value = _list(text)
        elif option.is_optional and not text:
            value = None
    except (ValueError, RecursionError):
        kind, example = ("list", '["a", "b"]') if option.is_list else ("object", '{"key": "value"}')
        variables.problems.append(
            f"{path_text(option.path)}: expected a JSON {kind} (from {name}) - write {example}"
        )
        return
    branch = variables.tree
    for key in option.path[:-1]:
        branch = branch.setdefault(key, {})
    branch[option.path[-1]] = value
    for path in _paths(option.path, value):
        variables.names[path] = name


def _list(text: str) -> list[Any]:
    """Return the names of a JSON list, or of text with commas; only the list can contain names with commas."""
    if not text.lstrip().startswith("["):
        return [part.strip() for part in text.split(",") if part.strip()]
    value: list[Any] = json.loads(text)
    return value


def _paths(path: KeyPath, value: Any) -> Iterator[KeyPath]:
    yield path
    if isinstance(value, dict):
        for key in value:
            yield (*path, key)


def _unknown(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
    return f"{name}: unknown variable" + (f" - did you mean {close[0]}?" if close else "")
