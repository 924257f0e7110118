"""A hint as an operator reads it: the commands and settings that it names, to be run and set.

In: what cdcd prints of an error, `... -> hint`.  Out: what its words say to do.
Invariant: nothing is made up: what is not in the text is not returned, and a text that names nothing fails the test.
"""

from __future__ import annotations

import json
import re
from typing import Any

from tests.support.daemon import merge

_COMMAND = re.compile(r"`cdcd ([^`]+)`")
_SQL = re.compile(r"`((?:SELECT|ALTER|CREATE|DROP|GRANT) [^`]+)`")
_SETTING = re.compile(
    r"(?:[sS]et|[rR]aise|[lL]ower) ((?:source|sink|buffer|registry|format|snapshot)\.[a-z_.]+[a-z])"
    r"(?:: (\[[^]]*\]|[\w-]+))?"
)


def hint_of(reported: str) -> str:
    """What to do about it."""
    _, arrow, hint = reported.partition(" -> ")
    assert arrow, f"no hint: {reported}"
    return hint


def commands_in(hint: str) -> list[tuple[str, ...]]:
    """The commands of cdcd that it names, as words for the command line."""
    found = [tuple(words.split()) for words in _COMMAND.findall(hint)]
    assert found, f"no command: {hint}"
    return found


def sql_in(hint: str) -> list[str]:
    """The statements of SQL that are to be run, one by one."""
    found = [one.strip() for text in _SQL.findall(hint) for one in text.split(";")]
    assert found, f"no SQL: {hint}"
    return found


def settings_in(hint: str) -> dict[str, str]:
    """The settings that are to be changed, with their value where the hint has one, else ""."""
    found = dict(_SETTING.findall(hint))
    assert found, f"no setting: {hint}"
    return found


def apply(config: dict[str, Any], hint: str, name: str, value: Any = None) -> None:
    """Change the setting as the hint says; to `value` where it says only which one, and up or down."""
    said = settings_in(hint)
    assert name in said, f"{name} is not in: {hint}"
    assert bool(said[name]) != (value is not None), f"either the hint or the operator knows the value: {hint}"
    changed: Any = _value(said[name]) if value is None else value
    for key in reversed(name.split(".")):
        changed = {key: changed}
    merge(config, changed)


def _value(text: str) -> Any:
    if text.startswith("["):
        return [one.strip() for one in text[1:-1].split(",")]
    return json.loads(text) if text in ("true", "false") or text.isdigit() else text
