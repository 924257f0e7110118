"""The oracle's assertion about complete tables: an attempt after an interruption neither copies nor empties them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.faults.assertions.snapshots import complete_at, copied_once
from tests.faults.facts import Block, Event, Progress

NAMES = {1: "a", 2: "b", 3: "c"}
BEGUN = Progress(0, "snapshot", 0, 0, {})
FIRST, LATER, LAST = 500, 600, 700


def copying(point: int, *pending: int) -> Progress:
    return replace(BEGUN, pending=frozenset(pending), copy_lsn=point)


def row(table: str, point: int, op: str = "r") -> Event:
    return Event(table, 0, 0, table, op, commit_lsn=point - 1, is_snapshot=True)


RECORDS = (BEGUN, copying(FIRST, 1, 2, 3), copying(FIRST, 2, 3), copying(LATER, 2, 3), copying(LATER, 3))
GOOD = (
    row("a", FIRST),
    row("b", FIRST),
    row("b", LATER, "t"),
    row("b", LATER),
    row("c", LATER),
    row("c", LAST),
)


def judge(records: tuple[Progress, ...], events: tuple[Event, ...]) -> list[str]:
    block = Block((), events, records, (), {}, {}, names=NAMES)
    return [one.what for one in copied_once(block)]


def test_tables_that_were_left_are_copied_again() -> None:
    assert judge((*RECORDS, copying(LAST, 3)), GOOD) == []
    assert list(complete_at(RECORDS, NAMES)) == [({"a": FIRST, "b": LATER}, LATER)]


@pytest.mark.parametrize(
    ("again", "table"), [(row("a", LATER), "a"), (row("b", LAST), "b"), (row("a", LAST, "t"), "a")]
)
def test_a_complete_table_that_is_copied_or_emptied_again_is_named(again: Event, table: str) -> None:
    (finding,) = judge((*RECORDS, copying(LAST, 3)), (*GOOD, again))
    assert finding.startswith(f"{table} was complete")


def test_a_snapshot_that_begins_anew_copies_all_tables() -> None:
    assert judge((*RECORDS, BEGUN, copying(LAST, 1, 2, 3)), (*GOOD, row("a", LAST), row("b", LAST))) == []
