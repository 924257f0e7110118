"""Looking ahead does not change the events or their order, and it is bounded."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cdcd.model import RowBatch
from cdcd.pgoutput import messages as m
from cdcd.pipeline.event_queue import EventQueue
from cdcd.txn.events import Event, Rows
from cdcd.txn.lookahead import MOST_BYTES, MOST_EVENTS
from tests.support.pgoutput_encode import row_batch_of


def batch(relid: int, size_bytes: int = 1) -> RowBatch:
    return row_batch_of([(50, m.Insert(relid, m.TupleData((m.text(b"x" * size_bytes),))))])


def rows(relid: int, size_bytes: int = 1) -> Rows:
    return Rows(batch(relid, size_bytes))


def left(queue: EventQueue) -> list[Event]:
    found = []
    while (event := queue.next()) is not None:
        found.append(event)
    return found


@given(st.lists(st.integers(1, 5)), st.lists(st.booleans()))
def test_what_is_looked_at_comes_at_its_turn(relids: list[int], looks: list[bool]) -> None:
    events: list[Event] = [rows(relid) for relid in relids]
    queue = EventQueue()
    queue.begin(iter(events))
    seen: list[Event] = []
    for is_look in looks:
        if is_look:
            queue.look_ahead(())
        elif (event := queue.next()) is not None:
            seen.append(event)
    assert seen + left(queue) == events


def test_what_follows_is_found_in_the_item_and_in_those_read_with_it() -> None:
    queue = EventQueue()
    queue.reads([batch(1), batch(2), batch(3)], 1)
    queue.begin(iter([rows(4)]))
    assert queue.look_ahead((9,)).relids == {3, 4, 9}, "no earlier items"


def test_a_large_item_is_looked_at_in_part() -> None:
    queue, taken = EventQueue(), 0

    def endless() -> object:
        nonlocal taken
        while True:
            taken += 1
            yield rows(1)

    queue.begin(endless())  # type: ignore[arg-type]
    queue.look_ahead(())
    queue.look_ahead(())
    assert taken == MOST_EVENTS


def test_large_rows_end_the_look_by_their_bytes() -> None:
    queue = EventQueue()
    queue.begin(iter([rows(1, MOST_BYTES), rows(2)]))
    assert queue.look_ahead(()).relids == {1}
    assert len(left(queue)) == 2
