"""Parse a hint as an operator reads it: the commands to run and the settings to change.

In: an error as cdcd prints it, `... -> hint`.  Out: the commands, SQL and settings of the hint.
Invariant: only parts of the text are returned; a hint that names nothing fails the test.
"""

from __future__ import annotations

import json
import re
from typing import Any

from tests.support.daemon import merge

_COMMAND = re.compile(r"`cdcd ([^`]+)`")
_FILE = re.compile(r" --config ('[^']+'|\S+?)(?=[ `])")
_WITHOUT_FILE = ("config", "capture", "decode")
_SQL = re.compile(r"`((?:SELECT|ALTER|CREATE|DROP|GRANT) [^`]+)`")
_SETTING = re.compile(
    r"(?:[sS]et|[rR]aise|[lL]ower) ((?:source|sink|buffer|registry|format|snapshot)\.[a-z_.]+[a-z])"
    r"(?:: (\[[^]]*\]|[\w-]+))?"
)


def hint_of(reported: str) -> str:
    """Return the hint of a printed error, whose commands all name a configuration file, without that file."""
    _, arrow, hint = reported.partition(" -> ")
    assert arrow, f"no hint: {reported}"
    for command in _COMMAND.findall(hint):
        assert _FILE.search(f" {command}`") or command.split()[0] in _WITHOUT_FILE, (
            f"cannot be typed: {command}"
        )
    return _FILE.sub("", hint)


def commands_in(hint: str) -> list[tuple[str, ...]]:
    """Return the cdcd commands that the hint names, as command-line words."""
    found = [tuple(words.split()) for words in _COMMAND.findall(hint)]
    assert found, f"no command: {hint}"
    return found


def sql_in(hint: str) -> list[str]:
    """Return the SQL statements that the hint names, one by one."""
    found = [one.strip() for text in _SQL.findall(hint) for one in text.split(";")]
    assert found, f"no SQL: {hint}"
    return found


def settings_in(hint: str) -> dict[str, str]:
    """Return the settings that the hint names, with the value in the hint, else ""."""
    found = dict(_SETTING.findall(hint))
    assert found, f"no setting: {hint}"
    return found


def apply(config: dict[str, Any], hint: str, name: str, value: Any = None) -> None:
    """Change the setting as the hint says; `value` is used if the hint names the setting without a value."""
    named = settings_in(hint)
    assert name in named, f"{name} is not in: {hint}"
    assert bool(named[name]) != (value is not None), (
        f"either the hint or the operator gives the value: {hint}"
    )
    changed: Any = _value(named[name]) if value is None else value
    for key in reversed(name.split(".")):
        changed = {key: changed}
    merge(config, changed)


def _value(text: str) -> Any:
    if text.startswith("["):
        return [one.strip() for one in text[1:-1].split(",")]
    return json.loads(text) if text in ("true", "false") or text.isdigit() else text
