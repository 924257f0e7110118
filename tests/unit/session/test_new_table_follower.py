"""A table that joins is in the progress record as one that lacks rows, before anything else is decided about it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection
from typing import Any

from cdcd.errors import SnapshotRefused
from cdcd.monitoring.new_tables import NewTables, TableChanges
from cdcd.session.new_table_follower import NewTableFollower
from cdcd.snapshot.control import SnapshotCommand
from cdcd.snapshot.selection import CopyRule, Selection
from cdcd.source.publication_diff import Publication, PublicationEntry

FIRST, KEYLESS, BY_COMMAND, EXCLUDED = 1, 2, 3, 4
NAMES = {FIRST: "public.first", KEYLESS: "public.keyless", BY_COMMAND: "public.part", EXCLUDED: "public.out"}


class Copying:
    """The copies of a session: one by a command, and a table that cannot be copied."""

    def __init__(self, events: list[str]) -> None:
        self.relids = [BY_COMMAND]
        self.blocking: list[int] = []
        self._events = events

    async def note_uncopied(self, relids: Collection[int], published: Collection[int]) -> None:
        self._events.append(f"lack rows: {sorted(relids)} of {sorted(published)}")

    async def execute(self, command: SnapshotCommand) -> None:
        (relid,) = command.relids
        if command.action == "stop":
            self._events.append(f"stop {relid}")
            return
        if relid == KEYLESS and not command.is_blocking:
            raise SnapshotRefused("the table has no key to copy it by")
        words = ["begin", str(relid), *["again"] * command.recopy, *["blocking"] * command.is_blocking]
        self._events.append(" ".join(words))


class Publications:
    """The tables that have joined."""

    def __init__(self, events: list[str], *, is_again: bool = False) -> None:
        entries = {relid: PublicationEntry(name) for relid, name in NAMES.items()}
        self.new_tables = NewTables("snapshot")
        published = {"p": Publication(1, "insert", tables=entries)}
        self.new_tables.accept(published, TableChanges(dict.fromkeys(NAMES, is_again)))
        self._events = events

    def begun(self, relids: Collection[int]) -> None:
        self._events.append(f"settled {sorted(relids)}")


def test_a_table_lacks_rows_from_its_joining_on_whatever_is_decided_about_it() -> None:
    """One that cannot be copied, and one that a command copies by a condition, have no whole copy after that.

    A table that the configuration excludes is known by the configuration.
    """
    events: list[str] = []
    copying: Any = Copying(events)
    publications: Any = Publications(events)
    rule = CopyRule(re.compile(r"public\.out"), include=False)
    follower = NewTableFollower(copying, publications, Selection((rule,)))
    assert not asyncio.run(follower._begin_some())
    assert events == ["lack rows: [1, 2, 3] of [1, 2, 3, 4]", "begin 1", "settled [1, 2, 3, 4]"]


def test_a_copy_that_is_left_of_a_table_that_joins_again_is_not_continued() -> None:
    """Its rows up to the key where it is lack the changes that were made while the table was not published."""
    events: list[str] = []
    copying: Any = Copying(events)
    copying.relids, copying.blocking = list(NAMES), [KEYLESS]
    publications: Any = Publications(events, is_again=True)
    rule = CopyRule(re.compile(r"public\.out"), include=False)
    follower = NewTableFollower(copying, publications, Selection((rule,)))
    assert not asyncio.run(follower._begin_some())
    begun = ["stop 1", "begin 1 again", "stop 2", "begin 2 again blocking", "stop 3", "begin 3 again"]
    assert sorted(events[1:-1]) == sorted([*begun, "stop 4"])
