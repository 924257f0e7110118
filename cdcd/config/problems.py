"""Validation errors as lines for people: path, problem, origin, correction.

Comes in: pydantic's errors and the origin of every value.  Goes out: one line each, in the order of the file.
Invariant: the value of an option that can be a secret (or of an unknown key) is never in a line; another value is,
if it is short, because it shows the mistake.
Must not: validate anything.
"""

from __future__ import annotations

import difflib
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic_core import ErrorDetails

from cdcd.config.document import KeyPath, path_text
from cdcd.config.shape import field_at, model_at, nested_model

_LONGEST_SHOWN = 40
_NEVER_SHOWN = (
    "dsn",
    "from",
    "password",
    "username",
    "url",
    "properties",
    "secret_files",
    "bootstrap_servers",
)


@dataclass(frozen=True, slots=True)
class Origins:
    """The origins of values: the file's name and lines, and variables, which override the file."""

    file: str
    lines: Mapping[KeyPath, int]
    variables: Mapping[KeyPath, str]

    def exactly(self, path: KeyPath) -> str | None:
        """Return the origin of the value at `path` itself, None for a default."""
        if path in self.variables:
            return self.variables[path]
        return f"{self.file}:{self.lines[path]}" if path in self.lines else None

    def of(self, path: KeyPath) -> str | None:
        """Return `prod.yaml:12` or `CDCD_SINK__DELIVERY`, of the nearest enclosing key that was given."""
        for length in range(len(path), 0, -1):
            origin = self.exactly(path[:length])
            if origin is not None:
                return origin
        return None

    def order(self, path: KeyPath) -> tuple[float, tuple[str, ...]]:
        """Return a key that sorts problems in the order of the file."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.lines and path[:length] not in self.variables:
                return self.lines[path[:length]], tuple(map(str, path))
        return float("inf"), tuple(map(str, path))


def lines_of(errors: Iterable[ErrorDetails], origins: Origins) -> tuple[str, ...]:
    """Return one line for each error, without repetitions."""
    placed = sorted(((_place(error), error) for error in errors), key=lambda pair: origins.order(pair[0]))
    return tuple(dict.fromkeys(_line(path, error, origins) for path, error in placed))


def _place(error: ErrorDetails) -> KeyPath:
    return tuple(part for part in error["loc"] if part != "[key]")


def _line(path: KeyPath, error: ErrorDetails, origins: Origins) -> str:
    message, advice = _explained(path, error, origins)
    origin = None if error["type"] == "missing" else origins.of(path)
    where = path_text(path) or origins.file
    return (
        f"{where}: {message}" + (f" (from {origin})" if origin else "") + (f" - {advice}" if advice else "")
    )


def _explained(path: KeyPath, error: ErrorDetails, origins: Origins) -> tuple[str, str]:
    """Return the problem and its correction, from pydantic's type of error."""
    kind, context = error["type"], error.get("ctx", {})
    if kind == "cdcd":
        return context["message"], context["advice"]
    if kind == "missing":
        return "required, but not set", _where_to_set(path, origins)
    if kind == "extra_forbidden":
        return "unknown key", _nearest_key(path)
    if kind == "string_too_short":  # each limit is one character
        return "expected a text, found an empty one", "leave the key out, or write its value"
    expected = _expected(path, kind, context)
    found = _found(path, error["input"])
    if expected is None:
        return error["msg"].lower(), ""
    advice = "quote it" if kind == "string_type" and isinstance(error["input"], int | float) else ""
    return f"{expected}, found {found}", advice or _nearest_word(path, kind, error["input"])


def _expected(path: KeyPath, kind: str, context: Mapping[str, Any]) -> str | None:
    if kind == "literal_error":
        return f"expected {_choices(path) or context['expected']}"
    if kind in _LIMITS:
        word, name = _LIMITS[kind]
        return f"must be {word} {context[name]}"
    return _TYPES.get(kind)


_LIMITS = {
    "greater_than_equal": ("at least", "ge"),
    "less_than_equal": ("at most", "le"),
}
_TYPES = {
    "int_type": "expected a whole number",
    "int_parsing": "expected a whole number",
    "int_from_float": "expected a whole number",
    "int_parsing_size": "expected a smaller number",
    "bool_type": "expected true or false",
    "bool_parsing": "expected true or false",
    "string_type": "expected text",
    "path_type": "expected a path",
    "model_type": "expected a mapping of keys",
    "model_attributes_type": "expected a mapping of keys",
    "dict_type": "expected a mapping of keys",
    "tuple_type": "expected a list",
    "list_type": "expected a list",
}


def _choices(path: KeyPath) -> str:
    """Return the values that the option at `path` accepts: `any or none`, `off, on or parallel`."""
    words = words_of(path)
    return f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else "".join(words)


def words_of(path: KeyPath) -> list[str]:
    """Return the values of an option that accepts one of a fixed set, else an empty list."""
    field = field_at(path)
    if field is None or typing.get_origin(field.annotation) is not typing.Literal:
        return []
    return [str(word) for word in typing.get_args(field.annotation)]


def _found(path: KeyPath, value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    if any(part in _NEVER_SHOWN for part in path):
        return (
            "true or false"
            if isinstance(value, bool)
            else "a number"
            if isinstance(value, int | float)
            else "text"
        )
    field = field_at(path)
    if field is None or nested_model(field) is not None:
        return "a single value"
    if isinstance(value, bool):
        return "true" if value else "false"
    text = repr(value)
    return text if len(text) <= _LONGEST_SHOWN else "a long text"


def _where_to_set(path: KeyPath, origins: Origins) -> str:
    if model_at(path) is not None:
        return f"add it to {origins.file}"
    variable = "CDCD_" + "__".join(str(part) for part in path).upper()
    return f"set it in {origins.file} or as {variable}"


def _nearest_key(path: KeyPath) -> str:
    model = model_at(path[:-1])
    known = list(model.model_fields) if model is not None else []
    close = difflib.get_close_matches(str(path[-1])[:_LONGEST_SHOWN].lower(), known, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]}?"
    return f"the keys here are {', '.join(known)}" if known else ""


def _nearest_word(path: KeyPath, kind: str, value: Any) -> str:
    if kind != "literal_error" or not isinstance(value, str):
        return ""
    words = words_of(path)
    close = difflib.get_close_matches(
        value[:_LONGEST_SHOWN].lower().replace("-", "_"), [word.lower() for word in words], n=1
    )
    return "did you mean " + next(word for word in words if word.lower() == close[0]) + "?" if close else ""
