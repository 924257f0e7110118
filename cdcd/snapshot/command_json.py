"""A snapshot command in JSON: the checks of its fields, for the admin port and for the topic of signals.

In: bytes of another program.  Out: a `SnapshotCommand`, or BadCommand, which says what is wrong.
Invariant: every value is bounded. A message names fields and positions, and never repeats the content.
Must not: know whether a table exists.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Set
from typing import Any

from cdcd.snapshot.control import Action, SnapshotCommand

__all__ = [
    "MAX_COMMAND_BYTES",
    "MAX_TABLES",
    "BadCommand",
    "command_of",
    "condition_of",
    "flag_of",
    "is_table_name",
    "json_object",
    "refuse_others",
    "tables_of",
]

MAX_COMMAND_BYTES = 64 << 10
MAX_TABLES = 1000
_MAX_NAME_CHARACTERS = 512
_MAX_CONDITION_CHARACTERS = 16 << 10
_ACTIONS: Mapping[str, Action] = {"start": "start", "pause": "pause", "resume": "resume", "stop": "stop"}


class BadCommand(ValueError):
    """The bytes are not a command; the text says why."""


def command_of(body: bytes) -> SnapshotCommand:
    """Return the command of the admin port's JSON object. Raises BadCommand."""
    fields = json_object(body)
    refuse_others(
        fields, {"action", "tables", "all", "where", "recopy", "blocking", "compare"}, "the command"
    )
    action = _ACTIONS.get(text) if isinstance(text := fields.get("action"), str) else None
    if action is None:
        raise BadCommand(f"action is not one of {', '.join(_ACTIONS)}")
    tables = tables_of(fields.get("tables", []), "tables")
    where, recopy = condition_of(fields.get("where"), "where"), flag_of(fields, "recopy")
    is_all, is_blocking = flag_of(fields, "all"), flag_of(fields, "blocking")
    compare = flag_of(fields, "compare")
    return check_command(
        action, tables, where, recopy, is_all=is_all, is_blocking=is_blocking, compare=compare
    )


def check_command(
    action: Action,
    tables: tuple[str, ...],
    where: str | None,
    recopy: bool,
    *,
    is_all: bool = False,
    is_blocking: bool = False,
    compare: bool = False,
) -> SnapshotCommand:
    """Return the command, if its fields are compatible. Raises BadCommand."""
    if is_all and (action != "start" or tables or where is not None):
        raise BadCommand("all is only for a start without table names and without a condition")
    if action == "start" and not tables and not is_all:
        raise BadCommand("a start needs the names of the tables")
    if action != "start" and (where is not None or recopy or is_blocking or compare):
        raise BadCommand("only a start may have a condition, recopy, compare or blocking")
    if compare and (where is not None or recopy or is_blocking):
        raise BadCommand("compare cannot be combined with a condition, recopy or blocking")
    if is_all and is_blocking:
        raise BadCommand("a blocking snapshot needs the names of its tables")
    return SnapshotCommand(action, tables, where, recopy, is_blocking=is_blocking, compare=compare)


def json_object(body: bytes) -> dict[str, Any]:
    """Return the JSON object. Raises BadCommand."""
    if len(body) > MAX_COMMAND_BYTES:
        raise BadCommand(f"it has more than {MAX_COMMAND_BYTES} bytes")
    try:
        fields = json.loads(body.decode())
    except (ValueError, RecursionError):
        raise BadCommand("it is not JSON in UTF-8") from None
    if not isinstance(fields, dict):
        raise BadCommand("it is not a JSON object")
    return fields


def refuse_others(fields: Mapping[str, Any], known: Set[str], what: str) -> None:
    """Raise BadCommand if there are other fields: a field without an effect would mislead."""
    if fields.keys() - known:
        raise BadCommand(f"{what} has a field other than {', '.join(sorted(known))}")


def tables_of(value: object, field: str) -> tuple[str, ...]:
    """Return the names of a list, without duplicates. Raises BadCommand."""
    if not isinstance(value, list):
        raise BadCommand(f"{field} is not a list")
    if len(value) > MAX_TABLES:
        raise BadCommand(f"{field} has more than {MAX_TABLES} names")
    for at, name in enumerate(value):
        if not isinstance(name, str) or not is_table_name(name):
            raise BadCommand(f"{field}[{at}] is not a name SCHEMA.TABLE")
    return tuple(dict.fromkeys(value))


def is_table_name(name: str) -> bool:
    """Return whether this may be the name of a table with its schema."""
    schema, _, table = name.partition(".")
    return bool(schema and table) and len(name) <= _MAX_NAME_CHARACTERS and _is_sendable(name)


def condition_of(value: object, field: str) -> str | None:
    """Return the SQL condition; None if there is none. Raises BadCommand."""
    if value is None:
        return None
    if not isinstance(value, str) or not value.strip() or not _is_sendable(value):
        raise BadCommand(f"{field} is not an SQL condition")
    if len(value) > _MAX_CONDITION_CHARACTERS:
        raise BadCommand(f"{field} has more than {_MAX_CONDITION_CHARACTERS} characters")
    return value


def flag_of(fields: Mapping[str, Any], field: str) -> bool:
    """Return a boolean field, False without it. Raises BadCommand."""
    value = fields.get(field, False)
    if not isinstance(value, bool):
        raise BadCommand(f"{field} is not true or false")
    return value


def _is_sendable(text: str) -> bool:
    """Return whether PostgreSQL can receive the text."""
    if "\0" in text:
        return False
    try:
        text.encode()
    except UnicodeEncodeError:  # JSON can escape half of a pair of surrogates
        return False
    return True
