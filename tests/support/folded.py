"""The rows that a reader has after all records of a topic, as a mirror folds them."""

from __future__ import annotations

from typing import Any

from tests.support.reader import BEGINNING, Event


def folded(events: list[Event]) -> dict[Any, dict[str, Any]]:
    """Return the rows after all records. A value that a reader does not have is missing in its row."""
    rows: dict[Any, dict[str, Any]] = {}
    deleted: dict[str, Any] = {}
    for event in sorted((one for one in events if one.sequence), key=lambda one: one.sequence or BEGINNING):
        if event.op == "t":
            rows.clear()
            continue
        key = tuple(event.key.values())
        if event.op == "d":
            deleted = rows.pop(key, {})
            continue
        row, old = dict(event.value["after"]), deleted if event.op == "c" else rows.get(key, {})
        for column in event.source["unchanged"]:
            del row[column]
            if column in old:
                row[column] = old[column]
        rows[key] = row
    return rows
