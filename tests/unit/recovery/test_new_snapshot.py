"""When a start takes a new snapshot by itself, and when it halts although the mode allows one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdcd.errors import (
    CdcdError,
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
from cdcd.model import CopyState, Gap, Progress, SourceIdentity, Timelines
from cdcd.recovery.new_snapshot import REASONS, Decision, decide
from cdcd.recovery.resolutions import REQUESTED
from cdcd.recovery.start_decision import CopyLeft, Resume, Snapshot, StartOptions
from tests.unit.recovery.test_start_decision import (
    COPYING,
    IDLE_OUT,
    LOST,
    MADE,
    OTHER_DB,
    OTHER_PLUGIN,
    STORED,
    SYNCED_LATE,
    TWO_PHASE,
    Server,
    Slot,
)

NEEDED = StartOptions(slot="slot", create_slot=True, mode="when_needed")
ALWAYS = replace(NEEDED, mode="always", is_due=True)
NOT_DUE = replace(ALWAYS, is_due=False)
TOPICS = ("shop.public.a", "shop.public.b")
KNOWN_AHEAD = Slot(restart_lsn=499, confirmed_flush_lsn=600)
"""Its restart LSN is below the stored position, so this is the slot that cdcd has read."""


def decided(
    stored: Progress | None, slot: Slot | None, wanted: StartOptions, server: Server | None = None
) -> Decision:
    return decide(stored, slot, server or Server(), wanted, Timelines(1, {}), TOPICS, now_us=8)


@pytest.mark.parametrize("wanted", [NEEDED, ALWAYS, NOT_DUE], ids=["when_needed", "always", "not due"])
@pytest.mark.parametrize(
    ("slot", "error"),
    [
        (None, SlotMissing),
        (LOST, SlotLost),
        (IDLE_OUT, SlotLost),
        (KNOWN_AHEAD, SlotAhead),
        (SYNCED_LATE, SlotUnsynchronised),
    ],
)
def test_a_slot_that_cannot_continue_gives_a_new_snapshot(
    slot: Slot | None, error: type[CdcdError], wanted: StartOptions
) -> None:
    found = decided(STORED, slot, wanted)
    assert found.verdict == Snapshot(slot is not None, TOPICS, 480, 500)
    assert type(found.halt) is error
    assert found.new_snapshot == error.code
    assert found.new_snapshot in REASONS
    requested = found.stored
    assert requested is not None
    assert (requested.phase, requested.snapshot_tables) == ("snapshot", TOPICS)
    assert requested.gap == Gap(500, None, error.code, 8)
    assert requested.topics_at == STORED.topics_at
    # That record is in the progress topic from then on: a later start completes the snapshot.
    assert decided(requested, None, wanted).verdict == Snapshot(False, TOPICS, 480, 500)
    assert decided(requested, None, wanted).new_snapshot is None


@pytest.mark.parametrize("wanted", [NEEDED, ALWAYS], ids=["when_needed", "always"])
@pytest.mark.parametrize(
    ("stored", "slot", "server", "error"),
    [
        # the slot may be another program's
        (STORED, Slot(restart_lsn=500, confirmed_flush_lsn=600), Server(), SlotAhead),
        (STORED, Slot(restart_lsn=None, confirmed_flush_lsn=600), Server(), SlotAhead),
        (STORED, OTHER_PLUGIN, Server(), SlotUnusable),
        (STORED, OTHER_DB, Server(), SlotUnusable),
        (STORED, Slot(temporary=True), Server(), SlotUnusable),
        (None, Slot(), Server(), SlotUnusable),
        (None, LOST, Server(), SlotUnusable),
        # the server may be the wrong one
        (STORED, None, Server(system_identifier="78"), SourceMismatch),
        (STORED, None, Server(database="other"), SourceMismatch),
        (STORED, None, Server(timeline=2), SourceTimeline),
        (STORED, None, Server(wal_lsn=499), SourceBehind),
        (MADE, Slot(confirmed_flush_lsn=449), Server(), SourceBehind),
        # the configuration, not the slot
        (STORED, TWO_PHASE, Server(), SlotUnusable),
        # what passes by itself
        (STORED, KNOWN_AHEAD, Server(in_recovery=True), SourceStandby),
        (STORED, Slot(active=True), Server(), SlotActive),
    ],
)
def test_no_snapshot_is_taken(
    stored: Progress | None, slot: Slot | None, server: Server, error: type[CdcdError], wanted: StartOptions
) -> None:
    with pytest.raises(error) as caught:
        decided(stored, slot, wanted, server)
    assert type(caught.value) is error


@pytest.mark.parametrize("slot", [None, LOST, KNOWN_AHEAD])
def test_the_other_modes_halt(slot: Slot | None) -> None:
    for mode in ("initial", "initial_only", "no_data", "never"):
        with pytest.raises((SlotMissing, SlotLost, SlotAhead)):
            decided(STORED, slot, replace(NEEDED, mode=mode))


def test_always_takes_a_snapshot_that_is_due_and_only_then() -> None:
    found = decided(STORED, Slot(), ALWAYS)
    assert found.verdict == Snapshot(True, TOPICS, 480, 500)
    assert (found.new_snapshot, found.halt) == (REQUESTED, None)
    for wanted in (NOT_DUE, NEEDED):
        assert isinstance(decided(STORED, Slot(), wanted).verdict, Resume)


def test_always_continues_an_interrupted_snapshot() -> None:
    found = decided(COPYING, Slot(confirmed_flush_lsn=450), ALWAYS)
    assert isinstance(found.verdict, Snapshot)
    assert found.verdict.left == CopyLeft(CopyState((17,), {16: 600}, 600), 450, 5)
    assert found.new_snapshot is None
    assert found.stored is COPYING


@pytest.mark.parametrize("wanted", [NEEDED, ALWAYS])
def test_a_first_start_is_that_of_initial(wanted: StartOptions) -> None:
    assert decided(None, None, wanted) == Decision(Snapshot(drop_slot=False, begun_topics=()), None)


@pytest.mark.parametrize("stored", [None, STORED])
@pytest.mark.parametrize("wanted", [NEEDED, ALWAYS])
def test_a_slot_that_cdcd_may_not_create_is_refused_at_once(
    stored: Progress | None, wanted: StartOptions
) -> None:
    with pytest.raises(SourceSetup, match=r"source\.slot\.create"):
        decided(stored, Slot(), replace(wanted, create_slot=False))


def test_a_new_snapshot_after_a_promotion_is_on_the_new_timeline() -> None:
    """F57: up to PostgreSQL 16 a promoted standby does not have the slot."""
    timelines = Timelines(2, {1: 600})
    found = decide(STORED, None, Server(timeline=2), NEEDED, timelines, TOPICS, 8)
    assert found.stored is not None
    assert found.stored.identity == SourceIdentity("77", 2, "shop", "slot", timeline_lsn=600)
    assert found.verdict == Snapshot(False, TOPICS, 480, 500)


IDLE = replace(STORED, end_lsn=1000)
"""The position of an idle stream, beyond the point where its timeline is left in `PROMOTED`."""
PROMOTED = Timelines(2, {1: 600})


def test_a_promoted_server_without_the_slot_gives_a_new_snapshot_before_its_wal_passes_an_idle_position() -> (
    None
):
    """F58: the idle position is on the former timeline, which had no changes after the point where it was left."""
    found = decide(IDLE, None, Server(timeline=2, wal_lsn=700), NEEDED, PROMOTED, TOPICS, now_us=8)
    assert found.verdict == Snapshot(False, TOPICS, 480, 600)
    assert found.stored is not None
    assert found.stored.gap == Gap(600, None, SlotMissing.code, 8)


def test_an_idle_position_on_another_timeline_does_not_prove_whose_slot_it_is() -> None:
    """A slot that was created on the promoted server has a later restart LSN than the point of the promotion."""
    foreign = Slot(restart_lsn=750, confirmed_flush_lsn=800)
    with pytest.raises(SlotAhead):
        decide(IDLE, foreign, Server(timeline=2), NEEDED, PROMOTED, TOPICS, now_us=8)
    own = replace(foreign, restart_lsn=599)
    assert (
        decide(IDLE, own, Server(timeline=2), NEEDED, PROMOTED, TOPICS, now_us=8).new_snapshot
        == SlotAhead.code
    )
