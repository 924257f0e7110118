"""The signals of the Kafka topic, in Debezium's format, as snapshot commands.

In: a record's value.  Out: one `SnapshotCommand`, or BadCommand, which says what is wrong.
Invariant: a record is one command. What Debezium understands and cdcd does not is refused, never ignored: a regular
expression for tables, a surrogate key. A message never repeats the content.
Must not: know topics, keys or offsets beyond the command's own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cdcd.snapshot.command_json import (
    BadCommand,
    check_command,
    condition_of,
    flag_of,
    json_object,
    refuse_others,
    tables_of,
)
from cdcd.snapshot.control import Action, SnapshotCommand

__all__ = ["command_of_signal"]

_ACTIONS: Mapping[str, Action] = {
    "execute-snapshot": "start",
    "stop-snapshot": "stop",
    "pause-snapshot": "pause",
    "resume-snapshot": "resume",
}
_REGULAR_EXPRESSION = re.compile(r"[\\^$*+?()\[\]{}|]")


def command_of_signal(value: bytes | None, offset: int) -> SnapshotCommand:
    """Return the command of the record at `offset`. Raises BadCommand."""
    if value is None:
        raise BadCommand("the record has no value")
    fields = json_object(value)
    action = _ACTIONS.get(kind) if isinstance(kind := fields.get("type"), str) else None
    if action is None:
        raise BadCommand(f"type is not one of {', '.join(_ACTIONS)}")
    data = fields.get("data")
    data = {} if data is None else data
    if not isinstance(data, dict):
        raise BadCommand("data is not a JSON object")
    refuse_others(data, {"data-collections", "type", "additional-conditions", "recopy", "compare"}, "data")
    tables = tables_of(data.get("data-collections") or [], "data-collections")
    for at, name in enumerate(tables):
        _refuse_pattern(name, f"data-collections[{at}]")
    condition, recopy = _condition(data, tables), flag_of(data, "recopy")
    is_blocking, compare = _is_blocking(data), flag_of(data, "compare")
    command = check_command(action, tables, condition, recopy, is_blocking=is_blocking, compare=compare)
    return replace(command, signal_offset=offset)


def _is_blocking(data: Mapping[str, Any]) -> bool:
    kind = data.get("type", "incremental")
    if not isinstance(kind, str) or kind.lower() not in ("incremental", "blocking"):
        raise BadCommand("data.type is neither incremental nor blocking")
    return kind.lower() == "blocking"


def _condition(data: Mapping[str, Any], tables: tuple[str, ...]) -> str | None:
    """Return the one condition of all tables. Raises BadCommand if they differ, because a record is one command."""
    given = data.get("additional-conditions")
    if given is None or given == []:
        return None
    if not isinstance(given, list) or len(given) > len(tables):
        raise BadCommand("additional-conditions is not a list with at most one element for each table")
    conditions: dict[str, str | None] = dict.fromkeys(tables)
    for at, one in enumerate(given):
        field = f"additional-conditions[{at}]"
        if not isinstance(one, dict):
            raise BadCommand(f"{field} is not a JSON object")
        refuse_others(one, {"data-collection", "filter"}, field)
        name, where = one.get("data-collection"), condition_of(one.get("filter"), f"{field}.filter")
        if not isinstance(name, str) or name not in conditions or where is None:
            raise BadCommand(f"{field} has no filter, or its data-collection is not in data-collections")
        if conditions[name] is not None:
            raise BadCommand(f"{field} is a second filter for the same table")
        conditions[name] = where
    if len(set(conditions.values())) > 1:
        raise BadCommand("the tables have different filters: send one signal for each")
    return next(iter(conditions.values()))


def _refuse_pattern(name: str, field: str) -> None:
    if _REGULAR_EXPRESSION.search(name):
        raise BadCommand(
            f"{field} has a character of a regular expression: write the name of one table, without escapes"
        )
