"""A table that joins is in the progress record as one that lacks rows, before anything else is decided about it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection
from typing import Any

import pytest
from structlog.testing import capture_logs

from cdcd.errors import (
    CdcdError,
    SchemaIncompatible,
    SinkAuthorization,
    SinkFenced,
    SnapshotRefused,
    SnapshotStale,
    SourceUnavailable,
)
from cdcd.monitoring.new_tables import NewTables, TableChanges
from cdcd.session.new_table_follower import MOST_AT_ONCE, NewTableFollower
from cdcd.snapshot.chunk_values import NotPublished
from cdcd.snapshot.control import SnapshotCommand
from cdcd.snapshot.selection import CopyRule, Selection
from cdcd.source.publication_diff import Publication, PublicationEntry
from cdcd.source.table_forms import TableForm

FIRST, KEYLESS, BY_COMMAND, EXCLUDED = 1, 2, 3, 4
NAMES = {FIRST: "public.first", KEYLESS: "public.keyless", BY_COMMAND: "public.part", EXCLUDED: "public.out"}


class Copying:
    """The copies of a session: one by a command, and a table that cannot be copied."""

    def __init__(self, events: list[str]) -> None:
        self.relids = [BY_COMMAND]
        self.live: list[int] = []
        self.blocking: list[int] = []
        self.errors: dict[int, CdcdError] = {}
        self.is_filled = False
        self._events = events

    async def note_uncopied(self, relids: Collection[int], published: Collection[int]) -> None:
        self._events.append(f"lack rows: {sorted(relids)} of {sorted(published)}")

    async def execute(self, command: SnapshotCommand) -> None:
        (relid,) = command.relids
        if command.action == "stop":
            self._events.append(f"stop {relid}")
            self.relids = [one for one in self.relids if one != relid]
            self.blocking = [one for one in self.blocking if one != relid]
            return
        if relid in self.errors:
            raise self.errors[relid]
        if relid == KEYLESS and not command.is_blocking:
            raise SnapshotRefused("the table has no key to copy it by")
        words = ["begin", str(relid), *["again"] * command.recopy, *["blocking"] * command.is_blocking]
        self._events.append(" ".join(words))
        if self.is_filled:
            self.live.append(relid)


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


def test_a_copy_at_work_begins_anew_after_a_change_of_rows_that_were_not_sent() -> None:
    events: list[str] = []
    copying: Any = Copying(events)
    copying.relids, copying.blocking = [FIRST, KEYLESS, BY_COMMAND], [KEYLESS]
    publications: Any = Publications(events)
    publications.new_tables.rewritten = {FIRST: False, KEYLESS: False}
    rule = CopyRule(re.compile(r"public\.out"), include=False)
    assert not asyncio.run(NewTableFollower(copying, publications, Selection((rule,)))._begin_some())
    assert sorted(events[1:-1]) == ["begin 1", "begin 2 again blocking", "stop 1", "stop 2"]


def test_readers_do_not_lose_the_rows_that_a_condition_leaves_out() -> None:
    """The stream may have brought them."""
    events: list[str] = []
    copying: Any = Copying(events)
    publications: Any = Publications(events)
    new = publications.new_tables
    new.joined, new.rewritten = {KEYLESS: False}, {FIRST: True, BY_COMMAND: True}
    new.waiting, new.names = new.joined | new.rewritten, {one: NAMES[one] for one in (FIRST, BY_COMMAND)}
    rule = CopyRule(re.compile(r"public\.first"), where="id > 5")
    assert not asyncio.run(NewTableFollower(copying, publications, Selection((rule,)))._begin_some())
    assert events[1:-1] == ["begin 1", f"stop {BY_COMMAND}", f"begin {BY_COMMAND} again"]


def test_a_table_that_is_rewritten_again_while_its_copy_begins_waits_again() -> None:
    events: list[str] = []
    copying: Any = Copying(events)
    publications: Any = Publications(events)
    execute = copying.execute

    async def altered_meanwhile(command: SnapshotCommand) -> None:
        await execute(command)
        publications.new_tables.forms = {FIRST: TableForm("1", 2, 3)}

    copying.execute = altered_meanwhile
    publications.new_tables.rewritten = {FIRST: False}
    follower = NewTableFollower(copying, publications, Selection())
    assert not asyncio.run(follower._begin_some())
    assert events[-1] == f"settled {[KEYLESS, BY_COMMAND, EXCLUDED]}"
    asyncio.run(follower._begin_some())
    assert events.count("begin 1") == 2


def test_a_blocking_copy_that_cannot_begin_again_at_once_remains_blocking() -> None:
    """Its table has no key: an incremental one is refused, and its rows would be missing."""
    events: list[str] = []
    copying: Any = Copying(events)
    copying.relids, copying.blocking = [KEYLESS], [KEYLESS]
    copying.errors = {KEYLESS: SourceUnavailable("locked")}
    publications: Any = Publications(events, is_again=True)
    follower = NewTableFollower(copying, publications, Selection())
    assert asyncio.run(follower._begin_some())
    copying.errors = {}
    asyncio.run(follower._begin_some())
    assert "begin 2 again blocking" in events


def test_a_table_that_cannot_begin_does_not_hold_back_the_others() -> None:
    """A schema that the registry refuses concerns one table, and so do a missing right in Kafka and a lock."""
    events: list[str] = []
    copying: Any = Copying(events)
    copying.errors = {FIRST: SchemaIncompatible("not compatible")}
    publications: Any = Publications(events, is_again=True)
    follower = NewTableFollower(copying, publications, Selection())
    with capture_logs() as log:
        assert asyncio.run(follower._begin_some())
    assert events[-1] == "settled [2, 3, 4]"
    assert [(line["event"], line["table"]) for line in log] == [
        ("new_table_streamed_only", "public.keyless"),
        ("new_table_not_begun", "public.first"),
    ]
    for error in (SinkAuthorization("creating the topic"), SourceUnavailable("locked"), SnapshotStale("a")):
        events.clear()
        copying.errors = {FIRST: error}
        with capture_logs() as log:
            assert asyncio.run(follower._begin_some())
        assert events[-1] == "settled [2, 3, 4]"
        assert ("new_table_not_begun", "public.first") in [(line["event"], line["table"]) for line in log]


def test_a_server_that_does_not_answer_is_one_line_in_the_log() -> None:
    events: list[str] = []
    copying: Any = Copying(events)
    copying.errors = dict.fromkeys(NAMES, SourceUnavailable("no connection"))
    publications: Any = Publications(events, is_again=True)
    follower = NewTableFollower(copying, publications, Selection())
    with capture_logs() as log, pytest.raises(SourceUnavailable):
        asyncio.run(follower._begin_some())
    assert log == []
    copying.errors = {KEYLESS: SinkFenced("another producer")}
    with pytest.raises(SinkFenced):
        asyncio.run(follower._begin_some())


def test_a_table_that_left_again_is_not_settled() -> None:
    """It may be added before the next comparison, to which it is no new table then."""
    events: list[str] = []
    copying: Any = Copying(events)
    copying.errors = {FIRST: NotPublished("the table is not published")}
    publications: Any = Publications(events, is_again=True)
    follower = NewTableFollower(copying, publications, Selection())
    assert asyncio.run(follower._begin_some())
    assert events[-1] == "settled [2, 3, 4]"


def test_failed_copies_hold_no_new_table_back_and_live_ones_do_with_one_line_in_the_log() -> None:
    events: list[str] = []
    copying: Any = Copying(events)
    publications: Any = Publications(events)
    follower = NewTableFollower(copying, publications, Selection())
    copying.relids = list(range(1000, 1000 + MOST_AT_ONCE))
    copying.live = copying.relids[:]
    with capture_logs() as log:
        for _ in range(2):
            assert not asyncio.run(follower._begin_some())
    assert [(line["event"], line["waiting"]) for line in log] == [("new_tables_wait", len(NAMES))]
    assert not [event for event in events if event.startswith("begin")]
    del copying.live[0]
    copying.is_filled = True
    with capture_logs() as log:
        assert not asyncio.run(follower._begin_some())
    assert "begin 1" in events
    assert log == [], "one slot was free: the others wait as before"


def test_a_table_that_is_excluded_does_not_wait_for_the_copies_of_others() -> None:
    """Until it is settled readers take it for a loading one."""
    events: list[str] = []
    copying: Any = Copying(events)
    publications: Any = Publications(events)
    rule = CopyRule(re.compile(r"public\.out"), include=False)
    follower = NewTableFollower(copying, publications, Selection((rule,)))
    copying.relids = list(range(1000, 1000 + MOST_AT_ONCE))
    copying.live = copying.relids[:]
    assert not asyncio.run(follower._begin_some())
    assert events[-1] == f"settled [{EXCLUDED}]"
