"""The expected events of one change, and their comparison with an event. Pure.

In: a change from PostgreSQL's history, its table.  Out: the expected events; the letter of the broken assertion.
Invariant: of an old row, only the values that PostgreSQL logs for the replica identity are expected (F45, F46).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tests.faults.assertions.folds import key_of
from tests.faults.facts import Change, Event, Key, Row, Table


@dataclass(frozen=True)
class Expected:
    """The expected event of a change. `old`: the row before, with which an unchanged value is compared."""

    op: str
    table: str
    key: Key | None
    before: Row | None
    after: Row | None
    old: Row | None = None


def expected_of(change: Change, tables: Mapping[str, Table]) -> list[Expected]:
    """Return the expected events of one change: an update of the key is a delete and a create (F47)."""
    if change.op in ("t", "m"):
        return [Expected(change.op, change.table, None, None, change.after)]
    table = tables[change.table]

    def key(row: Row | None) -> Key | None:
        return key_of(table, row) if table.key and row is not None else None

    def old() -> Row | None:
        if change.before is None or table.is_full:
            return change.before
        return {name: value if name in table.key else None for name, value in change.before.items()}

    if change.op == "u" and key(change.before) != key(change.after):
        return [
            Expected("d", change.table, key(change.before), old(), None),
            Expected("c", change.table, key(change.after), None, change.after, change.before),
        ]
    before = old() if change.op == "d" or table.is_full else None
    row = change.before if change.op == "d" else change.after
    return [Expected(change.op, change.table, key(row), before, change.after, change.before)]


def wrong_images(wanted: Expected, event: Event) -> str:
    """Return the letter of the assertion that the rows before and after break; "" if both are right."""
    for row, image in ((wanted.before, event.before), (wanted.after, event.after)):
        if (row is None) != (image is None):
            return "g"
        if row is None or image is None:
            continue
        if row.keys() != image.keys():
            return "h"
        unchanged = event.unchanged if image is event.after else frozenset()
        for name in row:
            if name in unchanged:
                if image[name] is not None or (wanted.old or {}).get(name) != row[name]:
                    return "g"
            elif image[name] != row[name]:
                return "g"
    return ""
