"""What a reader reports of a gap, by the marker that the daemon writes."""

from __future__ import annotations

import pytest

from cdcd.errors import GapInTopic, SlotLost, SourceMismatch, SourceTimeline
from cdcd.model import Gap
from cdcd.session.gap import gap_details
from cdcd.spark.decoding.events import BEGINNING, Event, check_gap


def _marker(gap: Gap) -> Event:
    special = {f"gap.{name}": text.decode() for name, text in gap_details(gap).items()}
    return Event(BEGINNING, "g", None, None, None, (), special, 1)


@pytest.mark.parametrize(
    ("gap", "has_happened"),
    [
        (Gap(500, 600, SlotLost.code, 8), True),
        (Gap(500, 450, SourceTimeline.code, 8), False),
        # F58: a slot that was created later than the last change in the topics, by this version and by earlier ones
        (Gap(450, 600, SourceTimeline.code, 8), False),
        (Gap(500, 600, SourceTimeline.code, 8), False),
        (Gap(0, 600, SourceTimeline.code, 8), False),
        (Gap(500, 450, SlotLost.code, 8), False),
        # of a table that the new snapshot excludes: the end is after the start, whatever the new server's WAL is
        (Gap(500, 501, SourceMismatch.code, 8), False),
    ],
)
def test_a_reader_learns_that_its_last_changes_never_happened_on_the_server(
    gap: Gap, has_happened: bool
) -> None:
    with pytest.raises(GapInTopic) as caught:
        check_gap(_marker(gap), "t", is_accepted=False)
    assert ("never happened" in caught.value.message) == (not has_happened)
    assert "resnapshot" in caught.value.advice
    assert "cdcd snapshot start --table SCHEMA.TABLE --recopy" in caught.value.advice
    check_gap(_marker(gap), "t", is_accepted=True)


def test_a_gap_before_a_new_snapshot_is_passed() -> None:
    check_gap(_marker(Gap(450, None, SourceTimeline.code, 8)), "t", is_accepted=False)
