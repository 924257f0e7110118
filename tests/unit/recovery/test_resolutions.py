"""The position from which cdcd continues after an accepted halt: a table of cases."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace

import pytest

from cdcd.errors import (
    CdcdError,
    ResumeRefused,
    SlotActive,
    SlotAhead,
    SlotLost,
    SlotMissing,
    SourceSetup,
    SourceTimeline,
)
from cdcd.model import (
    CopyState,
    Gap,
    PartPosition,
    PreparedBefore,
    Progress,
    SourceIdentity,
    TableCopyState,
    Timelines,
)
from cdcd.recovery.resolutions import after_gap, before_snapshot, check_accepts_gap
from cdcd.recovery.start_decision import Resume, StartOptions, verdict
from cdcd.session.gap import after_markers, gap_details, marker_place
from tests.unit.recovery.test_start_decision import Slot

STORED = Progress(SourceIdentity("77", 1, "shop", "slot"), "streaming", 480, 500, 5, {"t": {0: 7}})
NOW = SourceIdentity("77", 2, "shop", "slot", two_phase=False, slot_lsn=600)
HELD_BACK = replace(STORED, commit_lsn=900)
EARLIER = Gap(100, 200, "CDCD-SLOT-LOST", 3)
LOST, AHEAD, MISSING = SlotLost("lost"), SlotAhead("ahead"), SlotMissing("missing")
PARTED = SourceTimeline("parted", switch_lsn=450)
PARTED_LATER = SourceTimeline("parted", switch_lsn=700)
UNKNOWN = SourceTimeline("unknown")
IDLE = replace(STORED, end_lsn=1000)
"""The position of an idle stream, beyond the point where its timeline is left in `PROMOTED`."""
PROMOTED = Timelines(2, {1: 600})
WANTED = StartOptions(slot="slot", create_slot=True, mode="initial")


@dataclass(frozen=True)
class Server:
    system_identifier: str = "77"
    timeline: int = 2
    database: str = "shop"
    wal_lsn: int = 9000
    in_recovery: bool = False


def history_of(halt: CdcdError) -> Timelines:
    """Return the timeline history of the server that caused this halt."""
    if halt is UNKNOWN:
        return Timelines(2, {})
    switch_lsn = halt.context.get("switch_lsn", 9000)
    assert isinstance(switch_lsn, int)
    return Timelines(2, {1: switch_lsn})


@pytest.mark.parametrize(
    ("stored", "halt", "slot_lsn", "position", "gap"),
    [
        (STORED, LOST, 600, (599, 600), (500, 600)),
        (STORED, AHEAD, 501, (500, 501), (500, 501)),
        (HELD_BACK, AHEAD, 600, (900, 600), (500, 600)),  # F33: already written changes are skipped
        (replace(STORED, gap=EARLIER), LOST, 600, (599, 600), (100, 600)),  # no marker of the first gap yet
        # F58: up to the switch point both histories are equal, and all of it is written
        (STORED, PARTED, 400, (449, 450), (500, 450)),
        (STORED, PARTED, 470, (469, 470), (500, 470)),
        (STORED, UNKNOWN, 400, (399, 400), (500, 400)),
        (HELD_BACK, PARTED, 400, (449, 450), (901, 450)),
        # and a later slot lacks all changes since that point
        (STORED, PARTED, 600, (599, 600), (450, 600)),
        (STORED, UNKNOWN, 600, (599, 600), (0, 600)),
        (replace(STORED, gap=EARLIER), PARTED, 600, (599, 600), (100, 600)),
        # F33: changes after the switch point are new, and a PREPARE before it is read again
        (HELD_BACK, PARTED_LATER, 400, (699, 500), (901, 700)),
        (HELD_BACK, PARTED_LATER, 600, (699, 600), (901, 700)),
    ],
)  # fmt: skip
def test_a_gap_is_accepted(
    stored: Progress, halt: CdcdError, slot_lsn: int, position: tuple[int, int], gap: tuple[int, int]
) -> None:
    now = after_gap(stored, halt, slot_lsn, NOW, history_of(halt), PreparedBefore(), 8)
    assert (now.commit_lsn, now.end_lsn) == position
    assert now.gap == Gap(*gap, halt.code, 8)
    assert (now.identity, now.phase, now.offsets, now.part) == (NOW, "streaming", {}, None)


@pytest.mark.parametrize(
    ("timelines", "from_lsn"),
    [
        (Timelines(3, {1: 250}), 250),  # restored to a point before timeline 2
        (Timelines(4, {1: 250, 3: 400}), 250),  # and promoted after that
        (Timelines(3, {1: 350}), 300),
        (Timelines(3, {}), None),  # the server has lost its history
        (Timelines(3, {1: 250, 2: 480}), 250),  # from another timeline 2
        (Timelines(3, {1: 300, 2: 450}), 450),
    ],
)
def test_a_gap_on_another_timeline_begins_where_the_timelines_diverge(
    timelines: Timelines, from_lsn: int | None
) -> None:
    """F58: none of the changes that the new timeline has since then was read."""
    stored = replace(STORED, identity=replace(STORED.identity, timeline=2, timeline_lsn=300))
    identity = replace(NOW, timeline=timelines.now, timeline_lsn=timelines.now_lsn)
    with pytest.raises(SourceTimeline) as caught:
        verdict(stored, None, Server(timeline=timelines.now), WANTED, timelines.left)
    assert caught.value.context["from_lsn"] == from_lsn, "the records in Kafka are correct up to it"
    now = after_gap(stored, caught.value, 600, identity, timelines, PreparedBefore(), 8)
    assert now.gap == Gap(from_lsn or 0, 600, SourceTimeline.code, 8)
    assert marker_place(now, now.gap, timelines) == (timelines.now, 599)
    again = before_snapshot(
        stored, Server(timeline=timelines.now), identity, timelines, [], SourceTimeline.code, 8
    )
    assert again.gap == Gap(from_lsn or 0, None, SourceTimeline.code, 8)


@pytest.mark.parametrize(
    ("part_lsn", "halt", "stays"),
    [(700, AHEAD, True), (600, AHEAD, True), (599, AHEAD, False), (700, PARTED, False)],
)
def test_what_is_written_of_a_transaction_that_still_comes_is_not_written_again(
    part_lsn: int, halt: CdcdError, stays: bool
) -> None:
    slot_lsn = 600 if halt is AHEAD else 400
    part = PartPosition(part_lsn, 3)
    now = after_gap(replace(STORED, part=part), halt, slot_lsn, NOW, history_of(halt), PreparedBefore(), 8)
    assert now.part == (part if stays else None)


@pytest.mark.parametrize("slot_lsn", [400, 540, 560, 690])
@pytest.mark.parametrize("halt", [SourceTimeline("parted", switch_lsn=550), UNKNOWN])
def test_what_was_written_in_part_on_another_timeline_does_not_come_again(
    halt: SourceTimeline, slot_lsn: int
) -> None:
    """F58: a transaction of the new timeline may have the same commit LSN; the markers are on that timeline too."""
    stored = replace(STORED, part=PartPosition(700, 3))
    now = after_gap(stored, halt, slot_lsn, NOW, history_of(halt), PreparedBefore(), 8)
    to_lsn = max(slot_lsn, halt.context.get("switch_lsn", 0))
    assert now.gap is not None
    assert (now.part, now.commit_lsn) == (None, to_lsn - 1)
    assert now.end_lsn == max(slot_lsn, min(stored.end_lsn, to_lsn))
    assert (now.gap.from_lsn, now.gap.to_lsn) == (701, to_lsn)
    assert marker_place(now, now.gap, history_of(halt)) == (2, to_lsn - 1)


@pytest.mark.parametrize("timelines", [PROMOTED, Timelines(3, {1: 600, 2: 650})], ids=["once", "twice"])
@pytest.mark.parametrize(("halt", "slot_lsn"), [(MISSING, 750), (MISSING, 1250), (AHEAD, 601)])
def test_the_gap_of_an_idle_stream_begins_where_its_timeline_was_left(
    halt: CdcdError, slot_lsn: int, timelines: Timelines
) -> None:
    """F58: the WAL of the former timeline had no changes behind that point, and that of the new one was not read."""
    identity = replace(NOW, timeline=timelines.now, timeline_lsn=timelines.now_lsn, slot_lsn=slot_lsn)
    now = after_gap(IDLE, halt, slot_lsn, identity, timelines, PreparedBefore(), 8)
    assert now.gap == Gap(600, slot_lsn, halt.code, 8)
    assert (now.commit_lsn, now.end_lsn) == (slot_lsn - 1, slot_lsn)
    place = marker_place(now, now.gap, timelines)
    assert place == (timelines.at(slot_lsn), slot_lsn - 1), "before all later transactions"
    marked = replace(now, gap=None, copy=after_markers(now.copy, place[1], 1))
    server, slot = Server(timeline=timelines.now, wal_lsn=slot_lsn + 40), Slot(confirmed_flush_lsn=slot_lsn)
    begin = verdict(marked, slot, server, WANTED, timelines.left)
    assert isinstance(begin, Resume)
    assert begin.start_lsn == slot_lsn


def test_the_marker_of_a_gap_that_an_earlier_version_began_behind_its_end_is_before_later_changes() -> None:
    """F58: that version took the idle stream's position of the former timeline."""
    stored = replace(IDLE, identity=NOW, commit_lsn=749, end_lsn=750)
    assert marker_place(stored, Gap(1000, 750, MISSING.code, 8), PROMOTED) == (2, 749)


@pytest.mark.parametrize("halt", [MISSING, AHEAD])
def test_a_gap_that_is_not_marked_yet_remains_that_of_a_promotion(halt: CdcdError) -> None:
    """F58: readers learn by the reason that changes in the topics never happened on this server."""
    first = after_gap(STORED, PARTED, 600, NOW, history_of(PARTED), PreparedBefore(), 8)
    now = after_gap(first, halt, 700, NOW, history_of(PARTED), PreparedBefore(), 9)
    assert now.gap == Gap(450, 700, PARTED.code, 9)
    again = before_snapshot(first, Server(), NOW, history_of(PARTED), ["a"], "requested", 9)
    assert again.gap == Gap(450, None, PARTED.code, 9)


def test_a_gap_is_no_way_round_a_snapshot_that_is_not_complete() -> None:
    with pytest.raises(ResumeRefused, match="resnapshot"):
        after_gap(
            replace(STORED, phase="snapshot"), PARTED, 600, NOW, history_of(PARTED), PreparedBefore(), 8
        )


@pytest.mark.parametrize(
    ("was", "timelines", "slot_lsn", "is_refused"),
    [
        (2, Timelines(1, {}), 600, True),  # a former primary
        (
            2,
            Timelines(3, {1: 600}),
            599,
            True,
        ),  # restored to a point before timeline 2: the server sends timeline 1 first
        (2, Timelines(3, {1: 600}), 600, False),
        (2, Timelines(3, {}), 400, False),
    ],
)
def test_a_gap_that_an_earlier_timeline_follows_is_refused(
    was: int, timelines: Timelines, slot_lsn: int, is_refused: bool
) -> None:
    """F58: readers sort changes by timeline."""
    stored = replace(STORED, identity=replace(STORED.identity, timeline=was))
    with pytest.raises(ResumeRefused, match="name") if is_refused else nullcontext():
        after_gap(stored, UNKNOWN, slot_lsn, NOW, timelines, PreparedBefore(), 8)


@pytest.mark.parametrize("halt", [None, SourceSetup("x"), SlotActive("x")])
def test_a_gap_is_refused_for_a_halt_that_it_does_not_resolve(halt: CdcdError | None) -> None:
    with pytest.raises(ResumeRefused):
        check_accepts_gap(halt)


@pytest.mark.parametrize(
    ("stored", "from_lsn"),
    [
        (STORED, 500),
        (replace(STORED, gap=EARLIER), 100),
        (replace(STORED, end_lsn=9000), 9000),  # an idle server
        (
            replace(STORED, part=PartPosition(490, 3)),
            500,
        ),  # its written part is discarded with all other rows
        (replace(STORED, part=PartPosition(700, 3)), 500),
    ],
)
def test_a_snapshot_is_begun(stored: Progress, from_lsn: int) -> None:
    now = before_snapshot(
        replace(stored, topics_at=7), Server(), NOW, Timelines(2, {1: 9000}), ["b", "a"], "requested", 8
    )
    assert now.topics_at == -1, "the record of the topics is written again in any case"
    assert (now.phase, now.snapshot_tables, now.part) == ("snapshot", ("a", "b"), None)
    assert now.gap == Gap(from_lsn, None, "requested", 8)
    written_lsn = max(stored.commit_lsn, stored.part.commit_lsn if stored.part else 0)
    assert marker_place(now, now.gap, Timelines(2, {1: 9000})) > (2, written_lsn)


@pytest.mark.parametrize(
    "stored",
    [
        replace(STORED, end_lsn=9001),
        replace(STORED, commit_lsn=9000),
        replace(STORED, part=PartPosition(9000, 3)),
        replace(
            STORED, identity=replace(STORED.identity, timeline=3)
        ),  # pg_upgrade starts at timeline 1 again
    ],
)
def test_a_snapshot_that_readers_would_put_before_what_they_have_is_refused(stored: Progress) -> None:
    """F58, F62: a restored or replaced server may have a lower timeline or lower LSNs than the topics."""
    with pytest.raises(ResumeRefused, match="name"):
        before_snapshot(stored, Server(), NOW, Timelines(2, {1: 9500}), [], "requested", 8)


@pytest.mark.parametrize("timelines", [PROMOTED, Timelines(3, {1: 600, 2: 650})], ids=["once", "twice"])
def test_a_snapshot_is_begun_where_the_timeline_of_an_idle_stream_was_left(timelines: Timelines) -> None:
    """F58: the position on the former timeline says nothing about the LSNs of this one."""
    server = Server(timeline=timelines.now, wal_lsn=700)
    identity = replace(NOW, timeline=timelines.now)
    now = before_snapshot(IDLE, server, identity, timelines, ["a"], "requested", 8)
    assert (now.commit_lsn, now.end_lsn) == (480, 600)
    assert now.gap == Gap(600, None, "requested", 8)
    assert marker_place(now, now.gap, timelines) == (timelines.now, 600)


def test_the_position_on_another_server_is_not_compared_with_this_servers_timelines() -> None:
    with pytest.raises(ResumeRefused, match="WAL ends before"):
        before_snapshot(
            IDLE, Server(wal_lsn=700), replace(NOW, system_identifier="78"), PROMOTED, [], "requested", 8
        )


def test_the_gap_before_a_snapshot_begins_where_the_timelines_diverge() -> None:
    now = before_snapshot(STORED, Server(), NOW, history_of(PARTED), ["a"], PARTED.code, 8)
    assert (now.end_lsn, now.gap) == (500, Gap(450, None, PARTED.code, 8))


@pytest.mark.parametrize(
    ("commit_lsn", "gap", "halt", "expected"),
    [
        (599, (500, 600), LOST, (2, 599)),  # the next transaction may begin exactly at the gap's end (F1)
        (349, (300, 350), AHEAD, (1, 349)),
        (900, (500, 600), LOST, (2, 901)),
        (480, (500, None), LOST, (2, 500)),
        (900, (500, None), LOST, (2, 901)),
        (300, (350, None), LOST, (2, 350)),
        # F58: after all records of the other timeline in the topics, before all later records
        (399, (500, 400), PARTED, (2, 399)),
        (449, (500, 450), PARTED, (2, 449)),
        (449, (450, 450), LOST, (2, 450)),
    ],
)
def test_the_marker_sorts_where_the_gap_is(
    commit_lsn: int, gap: tuple[int, int | None], halt: CdcdError, expected: tuple[int, int]
) -> None:
    stored = replace(STORED, commit_lsn=commit_lsn)
    assert marker_place(stored, Gap(*gap, halt.code, 8), Timelines(2, {1: 400})) == expected


def test_a_marker_says_what_was_accepted_and_when() -> None:
    decided_us = 1_700_000_000_123_456
    assert gap_details(Gap(0x1_0000_0010, 0x20, "CDCD-SLOT-LOST", decided_us)) == {
        "from_lsn": b"1/10",
        "to_lsn": b"0/20",
        "reason": b"CDCD-SLOT-LOST",
        "decided": b"2023-11-14T22:13:20.123456+00:00",
    }
    assert "to_lsn" not in gap_details(Gap(1, None, "requested", decided_us))


BY_BLOCKS = TableCopyState("t", ("0/7/100/",), is_by_blocks=True, read_again={b"k": ("1",)}, rows=50)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (TableCopyState("t", ("5",)), TableCopyState("t", ("5",))),
        (BY_BLOCKS, BY_BLOCKS.from_the_first_row()),
        (replace(BY_BLOCKS, is_scanned=True), replace(BY_BLOCKS, is_scanned=True)),
        (TableCopyState("t", ("5",), compared_from=(3,)), TableCopyState("t", compared_from=())),
    ],
    ids=["by key", "by blocks", "all blocks read", "compared"],
)
def test_a_copy_that_a_change_in_the_gap_makes_incomplete_begins_again(
    before: TableCopyState, after: TableCopyState
) -> None:
    """An update in the gap may have moved a row from a block that is still to be read into one that was."""
    stored = replace(STORED, copy=CopyState(tables={7: before}))
    now = after_gap(stored, AHEAD, 600, NOW, history_of(AHEAD), PreparedBefore(), 8)
    assert now.copy == CopyState(tables={7: after})
