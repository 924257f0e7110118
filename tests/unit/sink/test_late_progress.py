"""Which record is the position where the last one may have arrived late (F77): a table of cases."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdcd.model import Gap, Progress
from cdcd.sink.late_progress import Overtaken, may_be_late
from tests.support.sinks import progress

CONFIRMED_LSN = 0x400
GAP = Gap(0x100, 0x300, "CDCD-SLOT-AHEAD", 1)


def at(end_lsn: int) -> Progress:
    return progress("slot", end_lsn)


LATE = at(0x300)
OF_SNAPSHOT = replace(LATE, phase="snapshot")
OF_OTHER_SERVER = replace(at(0x400), identity=replace(LATE.identity, system_identifier="1"))
OF_OTHER_TIMELINE = replace(at(0x400), identity=replace(LATE.identity, timeline=2))
OF_OTHER_SLOT = replace(at(0x400), identity=replace(LATE.identity, slot_lsn=0x280))
IN_TRANSACTION = replace(at(0x420), transactional_id="cdcd-slot")

FOUND: list[tuple[str, list[Progress | None], Progress, int | None]] = [
    ("nothing else", [], LATE, None),
    ("confirmed last", [at(0x300), at(0x400)], LATE, 1),
    ("stored since", [at(0x300), at(0x400), at(0x420)], LATE, 2),
    ("stored since, with transactions", [at(0x400), IN_TRANSACTION], LATE, 1),
    ("the same position twice", [at(0x400), replace(at(0x400), commit_us=1)], LATE, 1),
    ("two late ones", [at(0x400), at(0x280)], LATE, 0),
    ("a late one above the slot", [at(0x400), at(0x440), at(0x420)], LATE, 1),
    ("a late one of the snapshot", [at(0x400)], OF_SNAPSHOT, 0),
    ("a snapshot at the slot", [replace(at(0x400), phase="snapshot")], LATE, None),
    ("the slot was advanced beyond", [at(0x300), at(0x380)], LATE, None),
    ("the slot was advanced in between", [at(0x3F0), at(0x420)], LATE, None),
    ("another server", [OF_OTHER_SERVER], LATE, None),
    ("another timeline", [OF_OTHER_TIMELINE], LATE, None),
    ("another slot of the name", [OF_OTHER_SLOT], LATE, None),
    ("another server since", [at(0x400), OF_OTHER_SERVER], LATE, None),
    ("the same server again", [OF_OTHER_SERVER, at(0x400)], LATE, 1),
    ("a tombstone since", [at(0x400), None], LATE, None),
    ("a new snapshot was requested", [at(0x400)], replace(OF_SNAPSHOT, gap=GAP), None),
    ("a gap was accepted since", [at(0x400), replace(LATE, gap=GAP)], LATE, None),
]


@pytest.mark.parametrize(
    ("before", "last", "found"), [case[1:] for case in FOUND], ids=[case[0] for case in FOUND]
)
def test_the_record_that_a_late_one_has_overtaken(
    before: list[Progress | None], last: Progress, found: int | None
) -> None:
    overtaken = Overtaken[int](last, CONFIRMED_LSN)
    for number, one in enumerate(before):
        overtaken.take(one, number)
    assert overtaken.found == found


@pytest.mark.parametrize(
    ("last", "is_possible"),
    [
        (None, False),
        (LATE, True),
        (at(CONFIRMED_LSN), False),
        (at(0x500), False),
        (replace(LATE, transactional_id="cdcd-slot"), False),  # its producer is fenced
    ],
)
def test_a_record_may_be_late_if_the_slot_is_ahead_of_it(last: Progress | None, is_possible: bool) -> None:
    assert may_be_late(last, CONFIRMED_LSN) == is_possible
