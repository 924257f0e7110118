"""The start decision of a session: a table of cases."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from cdcd.errors import (
    CdcdError,
    Retry,
    SlotActive,
    SlotAhead,
    SlotLost,
    SlotMissing,
    SlotUnsynchronised,
    SlotUnusable,
    SourceBehind,
    SourceMismatch,
    SourceSetup,
    SourceStandby,
    SourceTimeline,
)
from cdcd.model import CopyState, PartPosition, PreparedBefore, Progress, SourceIdentity, TableCopyState
from cdcd.recovery.halts import Resolution, resolutions_of
from cdcd.recovery.start_decision import CopyLeft, Resume, Snapshot, StartOptions, verdict


@dataclass(frozen=True)
class Slot:
    plugin: str | None = "pgoutput"
    database: str | None = "shop"
    active: bool = False
    temporary: bool = False
    synced: bool = False
    restart_lsn: int | None = 400
    confirmed_flush_lsn: int | None = 500
    wal_status: str | None = "reserved"
    invalidation_reason: str | None = None
    two_phase: bool = False


@dataclass(frozen=True)
class Server:
    system_identifier: str = "77"
    timeline: int = 1
    database: str = "shop"
    wal_lsn: int = 9000
    in_recovery: bool = False


STORED = Progress(SourceIdentity("77", 1, "shop", "slot"), "streaming", 480, 500, 5)
BEGUN = replace(STORED, phase="snapshot", commit_lsn=0, end_lsn=0, snapshot_tables=("shop.public.a",))
BEGUN_AGAIN = replace(BEGUN, commit_lsn=480, end_lsn=500)
WANTED = StartOptions(slot="slot", create_slot=True, mode="initial")
NO_CREATE = replace(WANTED, create_slot=False)
NO_SNAPSHOT = replace(WANTED, mode="never")
LOST, PHYSICAL, OTHER_DB = Slot(wal_status="lost"), Slot(plugin=None, database=None), Slot(database="other")
OTHER_PLUGIN, IDLE_OUT = Slot(plugin="wal2json"), Slot(invalidation_reason="idle_timeout")
TWO_PHASE = Slot(two_phase=True)
SYNCED_LATE = Slot(synced=True, temporary=True)
MADE = replace(STORED, identity=SourceIdentity("77", 1, "shop", "slot", two_phase=False, slot_lsn=450))
LEFT = CopyState((17,), {16: 600}, 600)
COPYING = replace(
    MADE, phase="snapshot", commit_lsn=0, end_lsn=450, snapshot_tables=("shop.public.a",), copy=LEFT
)
ALL_AGAIN = Snapshot(True, ("shop.public.a",), 0, 450)
CONTINUED = CopyState(
    (), {}, 600, tables={17: TableCopyState("shop.public.a", ("0/9/48/",), is_by_blocks=True)}
)
COPYING_LATER = replace(COPYING, copy=CONTINUED)
"""A version that did not list continued tables as pending has written it."""
ONLY = replace(WANTED, mode="initial_only")
REST = replace(ALL_AGAIN, drop_slot=False, left=CopyLeft(LEFT, 450, 5))
PREPARED = replace(WANTED, two_phase=True)
LOST_ROWS = PreparedBefore(450, frozenset({(7, "lost")}))


@pytest.mark.parametrize(
    ("stored", "slot", "wanted", "expected"),
    [
        # nothing stored
        (None, None, WANTED, Snapshot(drop_slot=False, begun_topics=())),
        (None, None, NO_SNAPSHOT, Snapshot(drop_slot=False, begun_topics=())),
        (None, Slot(), NO_SNAPSHOT, Resume(500, 0, PreparedBefore())),
        (None, Slot(confirmed_flush_lsn=None), NO_SNAPSHOT, Resume(0, 0, PreparedBefore())),
        # another client may have confirmed a PREPARE: the server is queried; the result is stored from then on
        (None, TWO_PHASE, replace(NO_SNAPSHOT, two_phase=True), Resume(500, 0, None)),
        (replace(STORED, prepared_before=LOST_ROWS), TWO_PHASE, PREPARED, Resume(500, 480, LOST_ROWS)),
        # streaming: always from the stored position, whatever the slot has persisted (F3, F4)
        (STORED, Slot(confirmed_flush_lsn=500), WANTED, Resume(500, 480, PreparedBefore())),
        (STORED, Slot(confirmed_flush_lsn=300), WANTED, Resume(500, 480, PreparedBefore())),
        (STORED, Slot(confirmed_flush_lsn=None), WANTED, Resume(500, 480, PreparedBefore())),
        (MADE, Slot(confirmed_flush_lsn=450), WANTED, Resume(500, 480, PreparedBefore())),
        (
            STORED,
            Slot(synced=True),
            WANTED,
            Resume(500, 480, PreparedBefore()),
        ),  # a synchronized slot after a failover (F57)
        (STORED, Slot(wal_status="extended"), WANTED, Resume(500, 480, PreparedBefore())),
        (STORED, Slot(wal_status="unreserved"), WANTED, Resume(500, 480, PreparedBefore())),
        (replace(STORED, end_lsn=9000), Slot(), WANTED, Resume(9000, 480, PreparedBefore())),
        (STORED, Slot(), NO_CREATE, Resume(500, 480, PreparedBefore())),
        # an interrupted snapshot starts again, with a new slot (F37, F40)
        (BEGUN, None, WANTED, Snapshot(drop_slot=False, begun_topics=("shop.public.a",))),
        (BEGUN, Slot(confirmed_flush_lsn=8000), WANTED, Snapshot(True, ("shop.public.a",))),
        (replace(BEGUN, snapshot_tables=()), None, NO_SNAPSHOT, Snapshot(drop_slot=False, begun_topics=())),
        (BEGUN, LOST, WANTED, Snapshot(True, ("shop.public.a",))),
        (BEGUN_AGAIN, None, WANTED, Snapshot(False, ("shop.public.a",), 480, 500)),
        (BEGUN, TWO_PHASE, WANTED, Snapshot(True, ("shop.public.a",))),
        # the slot of the interrupted snapshot is unread: only the rest is copied, at whatever point the WAL is
        (COPYING, Slot(confirmed_flush_lsn=450), WANTED, REST),
        (COPYING, Slot(confirmed_flush_lsn=450, restart_lsn=None), WANTED, REST),
        (COPYING, replace(TWO_PHASE, confirmed_flush_lsn=450), PREPARED, REST),
        (COPYING, Slot(confirmed_flush_lsn=450), PREPARED, REST),
        # a table that was to be continued while the stream runs is not complete, whatever the mode is now
        (COPYING_LATER, Slot(confirmed_flush_lsn=450), ONLY, replace(REST, left=CopyLeft(CONTINUED, 450, 5))),
        (COPYING_LATER, None, ONLY, replace(REST, left=CopyLeft(CONTINUED, 450, 5))),
        # another slot, or none: all tables are copied again
        (COPYING, None, WANTED, replace(ALL_AGAIN, drop_slot=False)),
        (COPYING, Slot(confirmed_flush_lsn=460), WANTED, ALL_AGAIN),
        (COPYING, Slot(confirmed_flush_lsn=449), WANTED, ALL_AGAIN),
        (COPYING, replace(LOST, confirmed_flush_lsn=450), WANTED, ALL_AGAIN),
        (COPYING, replace(IDLE_OUT, confirmed_flush_lsn=450), WANTED, ALL_AGAIN),
        (COPYING, Slot(confirmed_flush_lsn=450, temporary=True), WANTED, ALL_AGAIN),
        (COPYING, replace(TWO_PHASE, confirmed_flush_lsn=450), WANTED, ALL_AGAIN),
        # the floors of the rest apply until the stream has passed them
        (replace(STORED, copy=LEFT), Slot(), WANTED, Resume(500, 480, PreparedBefore(), LEFT)),
        # two_phase: the slot has it, or the server enables it at START_REPLICATION (F35)
        (STORED, TWO_PHASE, PREPARED, Resume(500, 480, PreparedBefore())),
        (STORED, Slot(), PREPARED, Resume(500, 480, PreparedBefore())),
        # the commit LSN is ahead of the end LSN that an undecided PREPARE holds back (F33)
        (replace(STORED, commit_lsn=900), TWO_PHASE, PREPARED, Resume(500, 900, PreparedBefore())),
    ],
)
def test_a_session_begins(
    stored: Progress | None, slot: Slot | None, wanted: StartOptions, expected: Resume | Snapshot
) -> None:
    assert verdict(stored, slot, Server(), wanted) == expected


@pytest.mark.parametrize(
    ("stored", "slot", "server", "wanted", "error"),
    [
        (None, None, Server(), NO_CREATE, SlotMissing),
        (None, Slot(), Server(), WANTED, SlotUnusable),  # a snapshot could not be joined to its stream (F36)
        # F62: the WAL ends before rows that the topics have
        (COPYING, Slot(confirmed_flush_lsn=450), Server(wal_lsn=599), WANTED, SourceBehind),
        (replace(STORED, copy=LEFT), Slot(), Server(wal_lsn=599), WANTED, SourceBehind),
        (replace(COPYING, snapshot_tables=()), Slot(confirmed_flush_lsn=450), Server(), NO_SNAPSHOT, SourceSetup),
        (None, LOST, Server(), NO_SNAPSHOT, SlotUnusable),  # nothing written, so no gap: recreate the slot
        (None, LOST, Server(), WANTED, SlotUnusable),
        (None, SYNCED_LATE, Server(), NO_SNAPSHOT, SlotUnusable),
        (None, OTHER_DB, Server(), WANTED, SlotUnusable),
        (None, TWO_PHASE, Server(), NO_SNAPSHOT, SlotUnusable),  # the slot would send prepared transactions
        (STORED, TWO_PHASE, Server(), WANTED, SlotUnusable),
        (STORED, None, Server(), WANTED, SlotMissing),  # F10
        (STORED, LOST, Server(), WANTED, SlotLost),  # F23
        (STORED, IDLE_OUT, Server(), WANTED, SlotLost),  # F23
        (STORED, PHYSICAL, Server(), WANTED, SlotUnusable),
        (STORED, OTHER_PLUGIN, Server(), WANTED, SlotUnusable),
        (STORED, OTHER_DB, Server(), WANTED, SlotUnusable),
        (STORED, Slot(confirmed_flush_lsn=501), Server(), WANTED, SlotAhead),  # F3, F10
        (STORED, Slot(confirmed_flush_lsn=501, active=True), Server(), WANTED, SlotAhead),  # waiting does not help
        (MADE, Slot(confirmed_flush_lsn=449), Server(), WANTED, SourceBehind),  # a copy from before the slot (F62)
        (STORED, Slot(), Server(wal_lsn=499), WANTED, SourceBehind),  # F62
        (STORED, None, Server(wal_lsn=499), WANTED, SourceBehind),  # F62: a new slot there would not help
        (STORED, LOST, Server(wal_lsn=499), WANTED, SourceBehind),
        (replace(BEGUN, end_lsn=9001), None, Server(), WANTED, SourceBehind),  # F62
        (STORED, SYNCED_LATE, Server(), WANTED, SlotUnsynchronised),  # F57
        (STORED, Slot(temporary=True), Server(), WANTED, SlotUnusable),
        (STORED, Slot(synced=True, invalidation_reason="rows_removed"), Server(), WANTED, SlotLost),  # F57
        (STORED, Slot(invalidation_reason="rows_removed"), Server(), WANTED, SlotLost),  # F23
        (STORED, Slot(invalidation_reason="wal_level_insufficient"), Server(), WANTED, SlotLost),  # F23
        (STORED, Slot(), Server(system_identifier="78"), WANTED, SourceMismatch),  # F58
        (STORED, Slot(), Server(timeline=2), WANTED, SourceTimeline),  # F58: the timeline history is unknown
        (replace(STORED, identity=SourceIdentity("77", 1, "b", "slot")), Slot(), Server(), WANTED, SourceMismatch),
        # the slot of that name may be our own, of the right database: following SlotUnusable would leave it unread
        (STORED, Slot(), Server(database="other"), WANTED, SourceMismatch),
        (STORED, Slot(active=True), Server(database="other"), WANTED, SourceMismatch),
        (STORED, OTHER_PLUGIN, Server(system_identifier="78"), WANTED, SourceMismatch),
        (BEGUN, None, Server(system_identifier="78"), WANTED, SourceMismatch),  # never mix two servers in one topic
        (BEGUN, None, Server(), NO_SNAPSHOT, SourceSetup),  # the copied rows would never get their deletes
        (BEGUN, OTHER_PLUGIN, Server(), WANTED, SlotUnusable),  # never drop a foreign slot
    ],
)  # fmt: skip
def test_a_session_does_not_begin(
    stored: Progress | None, slot: Slot | None, server: Server, wanted: StartOptions, error: type[CdcdError]
) -> None:
    with pytest.raises(error) as caught:
        verdict(stored, slot, server, wanted)
    assert type(caught.value) is error
    assert caught.value.retry is Retry.OPERATOR, "a retry cannot resolve it"
    assert caught.value.advice


@pytest.mark.parametrize(
    ("stored", "slot", "server", "error"),
    [
        (None, None, Server(in_recovery=True), SourceStandby),  # F57, F59
        (STORED, Slot(synced=True), Server(in_recovery=True), SourceStandby),
        (STORED, SYNCED_LATE, Server(in_recovery=True), SourceStandby),
        (STORED, Slot(confirmed_flush_lsn=501), Server(in_recovery=True, wal_lsn=1), SourceStandby),
        (STORED, Slot(), Server(in_recovery=True, timeline=2, system_identifier="78"), SourceStandby),
        (STORED, Slot(active=True), Server(), SlotActive),  # F18, F74
        (COPYING, Slot(confirmed_flush_lsn=450, active=True), Server(), SlotActive),
    ],
)
def test_a_session_waits(
    stored: Progress | None, slot: Slot | None, server: Server, error: type[CdcdError]
) -> None:
    with pytest.raises(error) as caught:
        verdict(stored, slot, server, WANTED)
    assert type(caught.value) is error
    assert caught.value.retry is Retry.AUTO, "a retry resolves it"


def at(commit_lsn: int, end_lsn: int, **over: Any) -> Progress:
    return replace(STORED, commit_lsn=commit_lsn, end_lsn=end_lsn, **over)


@pytest.mark.parametrize(
    ("stored", "history", "start_lsn"),
    [
        (at(480, 490), {1: 490}, 490),  # F58: the last transaction ends at the switch point
        (at(480, 485), {1: 490}, 485),
        (at(480, 485), {1: 490, 2: 800}, 485),
        (
            at(480, 500),
            {1: 490},
            490,
        ),  # only an idle position is past the switch point: no record was written (F11)
        (at(480, 470), {1: 490}, 470),  # F33: the position held back is before the written position
        (at(0, 500, part=PartPosition(489, 7)), {1: 490}, 490),
    ],
)
def test_a_promoted_server_is_followed(stored: Progress, history: dict[int, int], start_lsn: int) -> None:
    """F58: all written records belong to the history of the server's timeline."""
    server, slot = Server(timeline=3), Slot(confirmed_flush_lsn=460, synced=True)
    assert verdict(stored, slot, server, WANTED, history) == Resume(
        start_lsn, stored.commit_lsn, PreparedBefore()
    )


def test_a_snapshot_that_was_cut_off_is_not_begun_anew_where_readers_would_take_it_for_older() -> None:
    """F62: the topics have rows of the new or an earlier snapshot, and the server's WAL ends before them."""
    with pytest.raises(SourceBehind):
        verdict(BEGUN_AGAIN, Slot(), Server(wal_lsn=499), WANTED)


@pytest.mark.parametrize(
    ("stored", "history"),
    [
        (at(490, 500), {1: 490}),  # F58: the commit record begins at the switch point
        (at(495, 500), {1: 490}),
        (at(495, 480), {1: 490}),  # F33: written past the switch point; a PREPARE holds the end LSN back
        (at(480, 485, part=PartPosition(490, 7)), {1: 490}),
        (at(480, 485), {}),
        (at(480, 485), {2: 490}),
        (replace(BEGUN, commit_lsn=495), {1: 490}),
    ],
)
def test_a_server_that_parted_before_is_not_followed(stored: Progress, history: dict[int, int]) -> None:
    """F58: the topics have changes that never happened on this server, which uses their LSNs for others."""
    with pytest.raises(SourceTimeline) as caught:
        verdict(stored, Slot(confirmed_flush_lsn=460), Server(timeline=3), WANTED, history)
    assert caught.value.retry is Retry.OPERATOR


SECOND = replace(STORED, identity=replace(STORED.identity, timeline=2, timeline_lsn=300))


@pytest.mark.parametrize(
    ("timeline", "history", "is_followed"),
    [
        (2, {1: 300}, True),
        (
            2,
            {1: 250},
            False,
        ),  # another promotion with the same timeline number: its changes from 250 on differ
        (2, {1: 310}, False),
        (2, {}, True),  # the server no longer has its history file: nothing contradicts it
        (3, {1: 300, 2: 600}, True),
        (3, {1: 250, 2: 600}, False),  # it descends from the other timeline 2
    ],
)
def test_a_timeline_is_known_by_where_it_began(
    timeline: int, history: dict[int, int], is_followed: bool
) -> None:
    """F58: a standby that does not know of another promotion takes the same timeline number."""
    server, slot = Server(timeline=timeline), Slot(confirmed_flush_lsn=460, synced=True)
    if is_followed:
        assert verdict(SECOND, slot, server, WANTED, history) == Resume(500, 480, PreparedBefore())
        return
    with pytest.raises(SourceTimeline) as caught:
        verdict(SECOND, slot, server, WANTED, history)
    assert (Resolution.ACCEPT_GAP in resolutions_of(caught.value)) == (timeline > 2)
    assert Resolution.RESNAPSHOT in resolutions_of(caught.value)


@pytest.mark.parametrize(
    ("stored", "slot", "how"),
    [
        (STORED, Slot(restart_lsn=499, confirmed_flush_lsn=501), "another consumer has read or advanced it"),
        (STORED, Slot(restart_lsn=500, confirmed_flush_lsn=600), "the slot was recreated, or another"),
        (MADE, Slot(restart_lsn=500, confirmed_flush_lsn=600, two_phase=True), "recreated with another two_phase"),
    ],
)  # fmt: skip
def test_a_slot_ahead_says_how_it_came_there(stored: Progress, slot: Slot, how: str) -> None:
    """F3, F10: as far as the slot's fields show it."""
    with pytest.raises(SlotAhead, match=how) as caught:
        verdict(stored, slot, Server(), replace(WANTED, two_phase=slot.two_phase))
    assert caught.value.context["from_lsn"] == 500
    assert caught.value.context["to_lsn"] == slot.confirmed_flush_lsn


@pytest.mark.parametrize(
    ("stored", "slot", "server", "expected"),
    [
        (STORED, None, Server(), {Resolution.ACCEPT_GAP, Resolution.RESNAPSHOT}),
        (STORED, LOST, Server(), {Resolution.ACCEPT_GAP, Resolution.RESNAPSHOT}),
        (STORED, Slot(confirmed_flush_lsn=501), Server(), {Resolution.ACCEPT_GAP, Resolution.RESNAPSHOT}),
        (STORED, SYNCED_LATE, Server(), {Resolution.ACCEPT_GAP, Resolution.RESNAPSHOT}),
        (STORED, Slot(), Server(timeline=2), {Resolution.ACCEPT_GAP, Resolution.RESNAPSHOT}),
        (STORED, Slot(), Server(system_identifier="78"), {Resolution.RESNAPSHOT}),
        (STORED, Slot(), Server(wal_lsn=499), set()),
        (STORED, OTHER_PLUGIN, Server(), set()),
        (MADE, Slot(confirmed_flush_lsn=449), Server(), set()),
        (None, Slot(), Server(), set()),
        (None, LOST, Server(), set()),  # without written records neither resolution is possible
        (None, SYNCED_LATE, Server(), set()),
    ],
)
def test_a_halt_names_its_resolutions(
    stored: Progress | None, slot: Slot | None, server: Server, expected: set[Resolution]
) -> None:
    with pytest.raises(CdcdError) as caught:
        verdict(stored, slot, server, WANTED)
    assert resolutions_of(caught.value) == expected
    for resolution in expected:
        assert resolution.value in caught.value.advice


@pytest.mark.parametrize(
    ("timeline", "history", "expected"),
    [
        (1, {}, set()),  # a former primary
        (2, {1: 250}, {Resolution.RESNAPSHOT}),  # another timeline 2
        (3, {1: 250}, {Resolution.ACCEPT_GAP, Resolution.RESNAPSHOT}),
        (3, {1: 300, 2: 450}, {Resolution.ACCEPT_GAP, Resolution.RESNAPSHOT}),
        (3, {}, {Resolution.ACCEPT_GAP, Resolution.RESNAPSHOT}),
    ],
)
def test_a_halt_names_no_resolution_that_the_timeline_excludes(
    timeline: int, history: dict[int, int], expected: set[Resolution]
) -> None:
    """F58: readers sort by timeline, so later changes on the same or an earlier one could not be told apart."""
    with pytest.raises(SourceTimeline) as caught:
        verdict(SECOND, Slot(), Server(timeline=timeline), WANTED, history)
    assert resolutions_of(caught.value) == expected
    assert {one for one in Resolution if one.value in caught.value.advice} == expected
    assert ("another `name`" in caught.value.advice) == (timeline < 3)
