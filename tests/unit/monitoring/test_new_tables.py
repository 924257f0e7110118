"""Which new tables wait for their copy, and how long: across comparisons, sessions and crashes (F42)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from cdcd.monitoring.new_tables import NewTables
from cdcd.monitoring.publication_monitor import Comparison, PublicationMonitor
from cdcd.ops.metrics import Metrics
from cdcd.sink.topic_identity import TopicIdentities, TopicIdentity
from cdcd.source.publication_diff import (
    Publication,
    PublicationEntry,
    Published,
    StoredTables,
    changes,
    dump,
    load,
    load_new_tables,
)
from cdcd.source.table_forms import NO_FORMS, FoundForms, TableForm


def pub(*relids: int, name: str = "pub") -> Published:
    return {
        name: Publication(
            10,
            "insert",
            tables={relid: PublicationEntry(f"public.t{relid}", entry=relid) for relid in relids},
        )
    }


class Monitored:
    """A monitor of one process; `kafka` is what the last committed record of the topics has."""

    def __init__(
        self,
        policy: Any = "snapshot",
        kafka: bytes | None = None,
        names: tuple[str, ...] = ("pub",),
        rewritten: Any = "stream_only",
    ) -> None:
        self.new = NewTables(policy, rewritten)
        self.watch = PublicationMonitor(
            names,
            Metrics("0", with_process=False),
            halts_at_removal=False,
            topic_of=lambda schema, table: f"{schema}.{table}",
            new_tables=self.new,
        )
        self.kafka = kafka

    def begin(self, *, is_anew: bool = False, has_gap: bool = False) -> None:
        self.identities = TopicIdentities() if self.kafka is None else TopicIdentities.load(self.kafka, 0)
        if is_anew:
            self.identities.reset()
        self.watch.begin(self.identities, is_anew=is_anew, has_gap=has_gap)

    def sees(
        self,
        now: Published,
        seen: dict[int, str] | None = None,
        dropped: Iterable[int] = (),
        forms: FoundForms = NO_FORMS,
    ) -> str | None:
        """Compare; `seen`: the tables that had joined when the publications were read, by default all by now."""
        before = self.watch._accepted
        found = [] if before is None else changes(before, now)
        has_records = self.watch._has_records(self.identities.with_records())
        joined = self.watch.incomplete.joined_now() if seen is None else seen
        new = self.new.compare(None, now, has_records, self.watch.incomplete.begun_now(), forms)
        error = self.watch.judge(
            Comparison(before, now, [], found, new=new, joined=joined, dropped=frozenset(dropped))
        )
        return None if error is None else str(error)

    def commit(self) -> None:
        """A Kafka transaction: the record of the topics is written."""
        self.kafka = self.identities.dump()

    @property
    def waits(self) -> set[int]:
        return set(self.new.waiting)


pytestmark = pytest.mark.usefixtures("complete")


def test_a_table_waits_until_its_copy_is_recorded_whatever_ends_the_process() -> None:
    daemon = Monitored()
    daemon.begin()
    assert daemon.sees(pub(1)) is None
    assert daemon.waits == set()
    daemon.commit()
    daemon.sees(pub(1, 2))
    assert daemon.waits == {2}
    assert daemon.new.names == {2: "public.t2"}
    assert daemon.new.is_any.is_set()

    not_recorded = Monitored(kafka=daemon.kafka)
    not_recorded.begin()
    not_recorded.sees(pub(1, 2))
    assert not_recorded.waits == {2}, "it is found again"

    daemon.commit()
    recorded = Monitored(kafka=daemon.kafka)
    recorded.begin()
    assert recorded.waits == {2}
    recorded.sees(pub(1, 2))
    assert recorded.new.names == {2: "public.t2"}
    recorded.watch.begun([2])
    assert not recorded.new.is_any.is_set()
    recorded.commit()

    last = Monitored(kafka=recorded.kafka)
    last.begin()
    last.sees(pub(1, 2))
    assert last.waits == set()


def test_a_table_that_leaves_again_does_not_wait_and_joins_anew() -> None:
    daemon = Monitored()
    daemon.begin()
    for tables, expected in (((1,), set()), ((1, 2), {2}), ((1,), set()), ((1, 2), {2})):
        daemon.sees(pub(*tables))
        assert daemon.waits == expected


def test_tables_of_a_new_snapshot_are_no_new_tables(complete: set[int]) -> None:
    """Also a table that was created between the start's comparison and the slot."""
    daemon = Monitored()
    daemon.begin(is_anew=True)
    daemon.sees(pub(1))
    daemon.sees(pub(1, 2))
    assert daemon.waits == {2}, "while the snapshot runs, nobody knows whether it has the table"
    daemon.watch.copied([1, 2, 3])
    assert daemon.waits == set()
    daemon.sees(pub(1, 2, 3))
    assert daemon.waits == set()
    daemon.sees(pub(1, 2))
    daemon.sees(pub(1, 2, 3))
    assert daemon.waits == {3}, "it has left and joined since the copy"
    daemon.commit()
    daemon.begin(is_anew=True)
    daemon.sees(pub(1, 2, 3))
    assert daemon.waits == set()


def test_a_table_whose_rows_are_all_in_the_stream_does_not_wait_unless_there_is_a_gap(
    complete: set[int],
) -> None:
    complete |= {2, 3}
    daemon = Monitored()
    daemon.begin()
    daemon.sees(pub(1))
    daemon.sees(pub(1, 2))
    assert daemon.waits == set()
    daemon.commit()
    daemon.begin(has_gap=True)
    daemon.sees(pub(1, 2, 3))
    assert daemon.waits == {3}
    daemon.commit()
    later = Monitored(kafka=daemon.kafka)
    later.begin()  # the gap is marked by now
    later.sees(pub(1, 2, 3))
    assert later.waits == {3}


def test_a_table_that_was_created_before_the_slot_waits_if_no_snapshot_copies_it(complete: set[int]) -> None:
    """The first comparison of a start is before the slot, whose creation may take long."""
    complete |= {2, 3, 4, 5}
    daemon = Monitored()
    daemon.begin(is_anew=True, has_gap=True)
    daemon.sees(pub(1))
    daemon.sees(pub(1, 2))
    daemon.sees(pub(1, 2, 3))
    daemon.new.streams()
    daemon.sees(pub(1, 2, 3, 4))
    assert daemon.waits == {2, 3, 4}
    daemon.sees(pub(1, 2, 3, 4, 5))
    assert daemon.waits == {2, 3, 4}
    copying = Monitored()
    copying.begin(is_anew=True)
    copying.sees(pub(1))
    copying.sees(pub(1, 2))
    assert copying.waits == set()


def test_a_publication_that_the_configuration_adds_brings_only_tables_that_no_other_one_had() -> None:
    daemon = Monitored()
    daemon.begin()
    daemon.sees(pub(1, 2))
    daemon.commit()
    other = Monitored(kafka=daemon.kafka, names=("other",))
    other.begin()
    other.sees(pub(2, 3, name="other"))
    assert other.waits == {3}


def test_other_policies_let_nothing_wait() -> None:
    daemon = Monitored()
    daemon.begin()
    daemon.sees(pub(1))
    daemon.sees(pub(1, 2))
    daemon.commit()
    for policy in ("stream_only", "halt"):
        other = Monitored(policy, kafka=daemon.kafka)
        other.begin()
        other.sees(pub(1, 2))
        assert other.waits == set()


def test_the_policy_halt_halts_once_for_each_table_and_a_resume_streams_it() -> None:
    daemon = Monitored("halt")
    daemon.begin()
    daemon.sees(pub(1))
    message = daemon.sees(pub(1, 2))
    assert message is not None
    assert "table public.t2 was added" in message
    assert "cdcd snapshot start --table" in message
    found = changes(pub(1), pub(1, 2))
    halt = new_halt(found)
    daemon.watch.resumed(halt)
    assert daemon.sees(pub(1, 2)) is None
    assert daemon.sees(pub(1, 2, 3)) is not None


def new_halt(found: Any) -> Any:
    from cdcd.monitoring.publication_monitor import what_halts

    halt = what_halts(found, at_removal=False, at_addition=True)
    assert halt is not None
    return halt


def test_a_table_of_a_name_that_readers_have_rows_of_is_copied_again_from_nothing(complete: set[int]) -> None:
    """Removed and added again, or dropped and created again: readers have rows that may not exist any more."""
    complete |= {1, 2, 3, 4, 5}
    daemon = Monitored()
    daemon.begin()
    for name in ("public.t1", "public.t2"):
        daemon.identities.take(name, TopicIdentity("id", 1))
    daemon.sees(pub(1, 2, 3))
    daemon.sees(pub(1))
    assert daemon.new.gone == {"public.t2"}, "the topic of the other one has no records"
    daemon.commit()
    stopped = Monitored(kafka=daemon.kafka)
    stopped.begin()
    stopped.sees(pub(1, 2, 3))
    assert stopped.new.waiting == {2: True}
    assert stopped.new.gone == frozenset()
    stopped.commit()
    last = Monitored(kafka=stopped.kafka)
    last.begin()
    assert last.new.waiting == {2: True}

    running = Monitored()
    running.begin()
    running.identities.take("public.t1", TopicIdentity("id", 1))
    running.sees(pub(1))
    recreated = {"pub": replace(pub(5)["pub"], tables={5: PublicationEntry("public.t1", entry=5)})}
    running.sees(recreated)
    assert running.new.waiting == {5: True}


def test_a_table_whose_copy_ended_is_copied_when_it_is_published_again() -> None:
    """Also if it was removed and added between two comparisons: to these it is no new table."""
    daemon = Monitored()
    daemon.begin()
    daemon.sees(pub(1, 2))
    daemon.watch.copy_ended(2)
    assert not daemon.new.is_any.is_set(), "the last comparison may be from before its removal"
    daemon.commit()
    halted = Monitored(kafka=daemon.kafka)
    halted.begin()
    assert halted.waits == {2}
    halted.sees(pub(1, 2))
    assert (halted.new.waiting, halted.new.names) == ({2: True}, {2: "public.t2"})
    halted.sees(pub(1))
    assert halted.waits == set()
    halted.sees(pub(1, 2))
    assert halted.waits == {2}
    other = Monitored("stream_only")
    other.begin()
    other.sees(pub(1, 2))
    other.watch.copy_ended(2)
    assert other.waits == set()


def test_an_older_version_reads_the_stored_text() -> None:
    stored = StoredTables({2: False}, frozenset({"public.t3"}), {2: True}, {2: TableForm("9", 8, 7)})
    text = dump(pub(1, 2), stored)
    assert load(text) == pub(1, 2)
    assert load_new_tables(text) == stored
    assert load_new_tables(dump(pub(1))) == StoredTables()


# --- tables whose rows PostgreSQL has changed without sending them ---

FORMS = {1: TableForm("100", 7, 2), 2: TableForm("200", 8, 2)}
DEFAULTED = FORMS | {1: TableForm("100", 9, 3)}
WHOLE = FORMS | {1: TableForm("101", 9, 2)}
EMPTIED = FORMS | {1: TableForm("101", 7, 2)}


def altered(daemon: Monitored, forms: dict[int, TableForm] | None = None) -> None:
    given = {one: (3,) for one, form in (forms or {}).items() if form.highest == 3}
    daemon.sees(pub(1, 2), forms=FoundForms(forms or FORMS, given))


def test_a_table_whose_rows_have_changed_waits_until_its_copy_is_recorded_whatever_ends_the_process() -> None:
    for forms, is_again in ((DEFAULTED, False), (WHOLE, True)):
        daemon = Monitored(rewritten="snapshot")
        daemon.begin()
        altered(daemon)
        assert daemon.waits == set()
        daemon.commit()
        altered(daemon, forms)
        assert daemon.new.waiting == {1: is_again}
        assert daemon.new.rewritten == {1: is_again}
        not_recorded = Monitored(rewritten="snapshot", kafka=daemon.kafka)
        not_recorded.begin()
        altered(not_recorded, forms)
        assert not_recorded.new.waiting == {1: is_again}, "it is found again"
        daemon.commit()
        recorded = Monitored(rewritten="snapshot", kafka=daemon.kafka)
        recorded.begin()
        altered(recorded, forms)
        assert recorded.new.rewritten == {1: is_again}
        recorded.watch.begun([1])
        altered(recorded, forms)
        assert recorded.waits == set()
        assert recorded.new.rewritten == {}


def test_a_snapshot_that_may_not_have_seen_the_change_does_not_replace_the_copy() -> None:
    daemon = Monitored(rewritten="snapshot")
    daemon.begin(is_anew=True)
    altered(daemon)
    altered(daemon, DEFAULTED)
    daemon.watch.copied([1, 2])
    assert daemon.waits == {1}


def test_another_file_alone_is_stored_with_the_next_change_only() -> None:
    """A table that is emptied each minute must not have the state of thousands of tables written each minute."""
    daemon = Monitored(rewritten="snapshot")
    daemon.begin()
    altered(daemon)
    daemon.commit()
    daemon.identities.is_changed = False
    altered(daemon, EMPTIED)
    assert not daemon.identities.is_changed
    altered(daemon, {**EMPTIED, 1: TableForm("101", 9, 2)})
    assert daemon.identities.is_changed
    assert daemon.waits == set(), "the file is that of the last comparison"


def test_a_table_whose_rows_have_changed_is_streamed_only_by_the_policy() -> None:
    daemon = Monitored()
    daemon.begin()
    altered(daemon)
    altered(daemon, WHOLE)
    assert daemon.waits == set()
    daemon = Monitored(rewritten="snapshot")
    daemon.begin()
    altered(daemon)
    altered(daemon, WHOLE)
    daemon.sees(pub(1, 2, 3), forms=FoundForms(WHOLE))
    assert daemon.new.waiting == {1: True, 3: False}
    daemon.commit()
    for policy, rewritten, waits in (("stream_only", "snapshot", 1), ("snapshot", "stream_only", 3)):
        other = Monitored(policy, daemon.kafka, rewritten=rewritten)
        other.begin()
        other.sees(pub(1, 2, 3), forms=FoundForms(WHOLE))
        assert other.waits == {waits}, "each by its own policy"
        assert other.new.is_new(waits)
