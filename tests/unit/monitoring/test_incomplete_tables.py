"""Which topics are those of loading tables: from the first row that the stream has, until a copy is complete."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cdcd.model import CopyState, TableCopyState
from cdcd.monitoring import new_tables as new_tables_module
from cdcd.sink.topic_identity import TopicIdentities, TopicIdentity
from tests.unit.monitoring.test_new_tables import Monitored, pub

A, B = "public.t1", "public.t2"


@pytest.fixture(autouse=True)
def complete(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Return the tables of which the stream has every row."""
    tables: set[int] = set()
    monkeypatch.setattr(
        new_tables_module, "with_every_row", lambda _connection, _before, _now, new: tables & set(new)
    )
    return tables


def begun(policy: Any = "snapshot", kafka: bytes | None = None) -> Monitored:
    daemon = Monitored(policy, kafka)
    daemon.begin()
    daemon.sees(pub(1))
    return daemon


def listed(daemon: Monitored) -> list[str]:
    """Return the topics that the next record has."""
    return sorted(TopicIdentities.load(daemon.identities.dump(), 0).incomplete.names())


def copying(topic: str) -> CopyState:
    return CopyState(tables={2: TableCopyState(topic)})


def test_a_table_that_no_comparison_has_found_is_listed_with_its_first_row(complete: set[int]) -> None:
    """And wakes the comparison, whose result says whether it waits, or that the stream has all of its rows."""
    daemon = begun()
    incomplete = daemon.watch.incomplete
    incomplete.written(1, A)
    assert listed(daemon) == []
    incomplete.written(2, B)
    assert listed(daemon) == [B]
    asyncio.run(asyncio.wait_for(incomplete.comparison_wanted(3600), 60))

    daemon.sees(pub(1), seen={})
    assert listed(daemon) == [B], "the publications were read before it joined"
    complete.add(2)
    daemon.sees(pub(1, 2), seen={})
    assert listed(daemon) == [B], "nobody knows whether this comparison has judged it"
    daemon.sees(pub(1, 2))
    assert listed(daemon) == []
    assert incomplete.is_due.is_set(), "readers wait for the record"


def test_a_table_that_waits_is_listed_until_its_copy_is_recorded_as_complete() -> None:
    daemon = begun()
    daemon.sees(pub(1, 2))
    assert listed(daemon) == [], "readers do not have the table"
    daemon.watch.incomplete.written(2, B)
    daemon.identities.take(B, TopicIdentity("id", 1))
    assert listed(daemon) == [B]
    daemon.identities.incomplete.clear()  # an earlier version lists none
    daemon.commit()

    again = begun(kafka=daemon.kafka)
    again.sees(pub(1, 2))
    assert listed(again) == [B]
    assert again.watch.incomplete.page() == [
        {"topic": B, "reason": "the table has joined the publications, and its copy has not begun"}
    ]
    incomplete, topics = again.watch.incomplete, again.identities.incomplete
    incomplete.begins(2, B, is_needed=True)
    topics.recorded(copying(B))
    again.watch.begun([2])
    assert listed(again) == [B]
    incomplete.completes(B)
    topics.recorded(copying(B))
    assert listed(again) == [B], "the record that is being written has the copy"
    topics.recorded(None)
    assert listed(again) == []
    assert topics.is_changed is False


def test_a_table_that_is_streamed_only_is_not_listed() -> None:
    daemon = begun()
    daemon.sees(pub(1, 2))
    daemon.watch.incomplete.written(2, B)
    daemon.watch.begun([2])
    assert listed(daemon) == [], "its rule excludes it, or it has no key"

    daemon.sees(pub(1, 2, 3))
    daemon.watch.incomplete.written(3, "public.t3")
    assert listed(daemon) == ["public.t3"]
    daemon.commit()
    again = begun("stream_only", daemon.kafka)
    again.sees(pub(1, 2, 3))
    assert listed(again) == []
    again.watch.incomplete.written(4, "public.t4")
    assert listed(again) == []


def test_a_table_that_leaves_the_publications_while_it_waits_lacks_its_earlier_rows() -> None:
    """Of one that left before a comparison found it, nobody knows: it was created and dropped, perhaps."""
    daemon = begun()
    daemon.sees(pub(1, 2))
    daemon.watch.incomplete.written(2, B)
    daemon.identities.take(B, TopicIdentity("id", 1))
    daemon.sees(pub(1))
    assert listed(daemon) == [B]
    daemon.watch.incomplete.written(4, "public.t4")
    daemon.sees(pub(1))
    assert listed(daemon) == [B]

    daemon.sees(pub(1, 2))
    assert daemon.new.waiting == {2: True}
    assert listed(daemon) == [B]
    daemon.identities.reset()
    assert listed(daemon) == [], "all tables are copied"


def test_a_copy_by_a_command_of_a_table_that_waits_is_listed() -> None:
    daemon = begun()
    daemon.sees(pub(1, 2))
    daemon.watch.incomplete.begins(2, B, is_needed=False)
    daemon.identities.incomplete.recorded(copying(B))
    assert listed(daemon) == [B]


def test_only_a_copy_that_is_needed_is_listed_and_its_end_removes_it() -> None:
    """With a truncate event it is needed; one of a whole table, or of one that is streamed only, is not."""
    daemon = begun()
    incomplete, topics = daemon.watch.incomplete, daemon.identities.incomplete
    incomplete.begins(1, A, is_needed=False)
    topics.recorded(copying(A))
    incomplete.stops(A)
    assert listed(daemon) == []
    incomplete.begins(1, A, is_needed=True)
    topics.recorded(None)
    assert listed(daemon) == [], "the command is not recorded yet"
    topics.recorded(copying(A))
    assert listed(daemon) == [A]
    incomplete.stops(A)
    topics.recorded(None)
    assert listed(daemon) == [A]
    incomplete.begins(1, A, is_needed=False)
    incomplete.completes(A)
    topics.recorded(None)
    assert listed(daemon) == []


def test_a_copy_that_begins_and_is_stopped_between_two_records_is_listed() -> None:
    daemon = begun()
    daemon.watch.incomplete.begins(1, A, is_needed=True)
    daemon.watch.incomplete.stops(A)
    daemon.identities.incomplete.recorded(None)
    assert listed(daemon) == [A]


def test_a_topic_that_is_accepted_as_it_is_is_not_listed_any_more() -> None:
    identities = TopicIdentities()
    identities.incomplete.begin(A)
    identities.dump()
    identities.forget([A])
    assert identities.is_changed
    assert TopicIdentities.load(identities.dump(), 0).incomplete.names() == ()
