"""Which topics are those of loading tables: from the first row that the stream has, until a copy is complete."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cdcd.model import BlockingCopyState, TableCopyState
from cdcd.monitoring.publication_monitor import Comparison
from cdcd.pipeline.table_copies import TableCopies
from cdcd.sink.topic_identity import TopicIdentities, TopicIdentity
from tests.unit.monitoring.test_new_tables import Monitored, pub

A, B = "public.t1", "public.t2"


pytestmark = pytest.mark.usefixtures("complete")


def begun(policy: Any = "snapshot", kafka: bytes | None = None) -> Monitored:
    daemon = Monitored(policy, kafka)
    daemon.begin()
    daemon.sees(pub(1))
    return daemon


def listed(daemon: Monitored) -> list[str]:
    """Return the topics that the next record has."""
    return sorted(TopicIdentities.load(daemon.identities.dump(), 0).incomplete.names())


def record(daemon: Monitored) -> None:
    """Write a progress record with a position that is made now."""
    topics = daemon.identities.incomplete
    topics.recorded(topics.noted)


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
    record(again)
    again.watch.begun([2])
    assert listed(again) == [B]
    before = topics.noted
    incomplete.completes(2, B)
    topics.recorded(before)
    assert listed(again) == [B], "the record that is being written has the copy"
    record(again)
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
    daemon.identities.take("public.t4", TopicIdentity("id", 1))
    daemon.watch.incomplete.written(4, "public.t4")
    daemon.watch.incomplete.written(5, "public.t5")
    daemon.watch.incomplete.is_due.clear()
    daemon.sees(pub(1), seen={4: "public.t4"})
    assert listed(daemon) == [B, "public.t5"]
    assert daemon.watch.incomplete.is_due.is_set()
    daemon.sees(pub(1))
    assert listed(daemon) == [B]

    daemon.sees(pub(1, 2))
    assert daemon.new.waiting == {2: True}
    assert listed(daemon) == [B]
    daemon.identities.reset()
    assert listed(daemon) == [], "all tables are copied"


def test_a_table_whose_copy_was_given_up_is_copied_when_it_is_published_again() -> None:
    daemon = begun()
    daemon.identities.take("public.t4", TopicIdentity("id", 1))
    daemon.watch.incomplete.lacks_rows(4, "public.t4")
    daemon.sees(pub(1, 4))
    assert daemon.new.waiting == {4: True}, "rows may have been deleted meanwhile"
    assert listed(daemon) == ["public.t4"]
    daemon.watch.incomplete.begins(4, "public.t4", is_needed=True)
    daemon.watch.incomplete.completes(4, "public.t4")
    record(daemon)
    assert listed(daemon) == []


@pytest.mark.parametrize("topic", [B, f"{B}.v2"])
@pytest.mark.parametrize("is_again", [False, True], ids=["the same process", "another one"])
def test_a_table_whose_changes_come_after_it_has_left_the_publications_is_complete(
    topic: str, is_again: bool
) -> None:
    """The stream was behind: it was in the publications when these changes were made, as every comparison knew."""
    daemon = Monitored()
    daemon.begin()
    daemon.sees(pub(1, 2))
    daemon.identities.take(B, TopicIdentity("id", 1))
    daemon.sees(pub(1))
    daemon.commit()
    if is_again:
        daemon = begun(kafka=daemon.kafka)
    daemon.watch.incomplete.written(2, topic)
    assert listed(daemon) == [topic]
    daemon.sees(pub(1))
    assert listed(daemon) == []


def test_a_copy_by_a_command_of_a_table_that_waits_is_listed() -> None:
    daemon = begun()
    daemon.sees(pub(1, 2))
    daemon.watch.incomplete.begins(2, B, is_needed=False)
    record(daemon)
    assert listed(daemon) == [B]


def test_only_a_copy_that_is_needed_is_listed_and_its_end_removes_it() -> None:
    """With a truncate event it is needed; one of a whole table, or of one that is streamed only, is not."""
    daemon = begun()
    incomplete, topics = daemon.watch.incomplete, daemon.identities.incomplete
    incomplete.begins(1, A, is_needed=False)
    record(daemon)
    assert listed(daemon) == []
    before = topics.noted
    incomplete.begins(1, A, is_needed=True)
    topics.recorded(before)
    assert listed(daemon) == [], "the command is not recorded yet"
    record(daemon)
    assert listed(daemon) == [A]
    incomplete.begins(1, A, is_needed=False)
    incomplete.completes(1, A)
    record(daemon)
    assert listed(daemon) == []


def test_the_end_of_a_copy_is_not_recorded_with_a_position_from_before_its_begin() -> None:
    """A slow commit writes a position that was made before; begin and end of a small copy wait behind it."""
    daemon = begun()
    incomplete, topics = daemon.watch.incomplete, daemon.identities.incomplete
    positions = [topics.noted]
    incomplete.begins(1, A, is_needed=True)
    positions.append(incomplete.noted)
    incomplete.completes(1, A)
    positions.append(incomplete.noted)
    found = []
    for noted in positions:
        topics.recorded(noted)
        found.append(listed(daemon))
    assert found == [[], [A], []]
    assert incomplete.noted == 0, "later positions need not have it"


def test_a_table_whose_topic_changes_is_listed_with_the_new_one_only() -> None:
    """With an incompatible schema, or under another name: found by the stream or by the copy, at each moment."""
    daemon = begun()
    incomplete = daemon.watch.incomplete
    incomplete.written(2, B)
    incomplete.written(2, "public.t2.v2")
    assert listed(daemon) == ["public.t2.v2"]
    daemon.identities.take(B, TopicIdentity("id", 1))
    daemon.sees(pub(1, 2))
    assert listed(daemon) == ["public.t2.v2"], "a comparison knows only the topic of its name"
    incomplete.begins(2, "public.t2.v2", is_needed=True)
    incomplete.moves(2, "public.t2.v3")  # before the begin is recorded
    record(daemon)
    assert listed(daemon) == ["public.t2.v3"]
    incomplete.written(2, "public.t2.v4")
    assert listed(daemon) == ["public.t2.v4"]
    daemon.commit()

    again = begun(kafka=daemon.kafka)
    again.watch.incomplete.moves(2, "public.t2.v5")
    assert listed(again) == ["public.t2.v5"], "the copy is stopped here"
    again.watch.incomplete.completes(2, "public.t2.v5")
    record(again)
    assert listed(again) == []


def test_a_table_that_was_dropped_is_not_listed_whatever_its_copy_was_doing() -> None:
    """No copy can follow, of a table that waits, is copied, or whose copy was stopped; unless only unpublished."""
    daemon = begun()
    for relid, topic in ((2, B), (3, "public.t3"), (4, "public.t4")):
        daemon.identities.take(topic, TopicIdentity("id", 1))
        daemon.watch.incomplete.written(relid, topic)
    daemon.sees(pub(1, 2, 3, 4))
    daemon.watch.incomplete.begins(3, "public.t3", is_needed=True)
    record(daemon)
    daemon.watch.begun([3])
    daemon.sees(pub(1))
    assert listed(daemon) == [B, "public.t3", "public.t4"], "they can be published again"
    daemon.watch.incomplete.is_due.clear()
    daemon.commit()

    again = begun(kafka=daemon.kafka)
    assert again.watch.incomplete.listed_now() == {2, 3, 4}
    again.sees(pub(1), dropped=[2, 3])
    assert listed(again) == ["public.t4"]
    assert again.watch.incomplete.is_due.is_set(), "readers wait for the record"


def test_a_table_that_was_dropped_while_it_waits_is_not_listed() -> None:
    daemon = begun()
    daemon.identities.take(B, TopicIdentity("id", 1))
    daemon.watch.incomplete.written(2, B)
    daemon.sees(pub(1, 2))
    assert listed(daemon) == [B]
    daemon.sees(pub(1), dropped=[2])
    assert listed(daemon) == []
    daemon.watch.incomplete.written(5, B)
    assert listed(daemon) == [B], "another table of the name"


def test_the_copy_of_a_table_replaces_the_rows_of_a_former_one_of_its_topic() -> None:
    daemon = begun()
    topics = daemon.identities.incomplete
    topics.begin(2, B)
    daemon.watch.incomplete.begins(3, B, is_needed=True)
    daemon.watch.incomplete.completes(3, B)
    record(daemon)
    assert listed(daemon) == []


def test_a_table_that_the_stream_empties_lacks_nothing_from_the_position_after_it_on() -> None:
    daemon = begun()
    incomplete, topics = daemon.watch.incomplete, daemon.identities.incomplete
    topics.begin(1, A)
    incomplete.written(2, B)
    copies = TableCopies(None, incomplete)
    before = topics.noted
    copies.emptied([1, 2, 3])
    topics.recorded(before)
    assert listed(daemon) == [A, B], "a part of the transaction is written, or what was before it"
    record(daemon)
    assert listed(daemon) == [B], "it waits for its copy"


def test_the_truncate_of_a_table_that_is_copied_does_not_complete_it() -> None:
    """The copy goes on, and its end says so; if it is stopped, nobody knows which rows it had still to read."""
    daemon = begun()
    incomplete, topics = daemon.watch.incomplete, daemon.identities.incomplete
    copies = TableCopies(None, incomplete)
    topics.begin(1, A)
    topics.begin(2, B)
    copies.begin(1, TableCopyState(A))
    copies.set_blocking(2, BlockingCopyState(B))
    copies.emptied([1, 2])
    record(daemon)
    assert listed(daemon) == [A, B]


def test_the_truncate_of_one_of_several_tables_of_a_topic_does_not_complete_the_topic() -> None:
    daemon = begun()
    topics = daemon.identities.incomplete
    topics.begin(1, A)
    topics.begin(2, A)
    TableCopies(None, daemon.watch.incomplete).emptied([1])
    record(daemon)
    assert listed(daemon) == [A]


async def test_a_comparison_that_failed_is_repeated_at_once_while_it_matters() -> None:
    """While a published table is locked, nobody knows whether a new one is complete."""
    daemon = begun()
    incomplete = daemon.watch.incomplete

    async def is_wanted() -> bool:
        wanted = asyncio.create_task(incomplete.comparison_wanted(3600))
        for _ in range(5):
            await asyncio.sleep(0)
        is_done = wanted.done()
        wanted.cancel()
        return is_done

    assert not await is_wanted()
    incomplete.written(2, B)
    for _ in range(3):
        assert await is_wanted()
        daemon.watch.judge(Comparison(daemon.watch._accepted, None, [], []))
    daemon.sees(pub(1, 2))
    assert await is_wanted(), "a table joined meanwhile, perhaps"
    assert not await is_wanted(), "it waits, whatever the next comparison finds"
    incomplete.altered()
    assert await is_wanted()
    assert not await is_wanted()


def test_a_copy_that_begins_and_is_stopped_between_two_records_is_listed() -> None:
    daemon = begun()
    daemon.watch.incomplete.begins(1, A, is_needed=True)
    record(daemon)
    assert listed(daemon) == [A]


def test_a_topic_that_is_accepted_as_it_is_is_not_listed_any_more() -> None:
    identities = TopicIdentities()
    identities.incomplete.begin(1, A)
    identities.dump()
    identities.forget([A])
    assert identities.is_changed
    assert TopicIdentities.load(identities.dump(), 0).incomplete.names() == ()
