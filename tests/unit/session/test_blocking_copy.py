"""What is left of a blocking snapshot, as each position of its rows has it."""

from __future__ import annotations

from cdcd.ack.group import CommitPosition
from cdcd.model import BlockingCopyState, CopyState
from cdcd.pipeline.table_copies import TableCopies
from cdcd.session.blocking_copy import BlockingPositions

KEYLESS, KEYED = 7, 8


def positions_of(copies: TableCopies) -> BlockingPositions:
    def at() -> CommitPosition:
        return CommitPosition(100, 108, 0, 0, copy=copies.state_at(108))

    positions = BlockingPositions(copies, {KEYLESS}, 300, at)
    positions.set_topic(KEYLESS, "log")
    positions.set_topic(KEYED, "orders")
    return positions


def left(positions: BlockingPositions) -> dict[int, BlockingCopyState]:
    copy = positions.so_far().copy
    return {} if copy is None else dict(copy.blocking)


def test_a_table_is_left_until_it_is_complete() -> None:
    copies = TableCopies(CopyState(blocking={KEYLESS: BlockingCopyState(), KEYED: BlockingCopyState()}))
    positions = positions_of(copies)
    assert left(positions).keys() == {KEYLESS, KEYED}
    positions.complete(KEYED)
    assert left(positions).keys() == {KEYLESS}
    positions.complete(KEYLESS)
    assert left(positions) == {}


def test_an_attempt_after_rows_without_a_key_empties_their_table_first() -> None:
    states = {KEYLESS: BlockingCopyState(where="n > 1"), KEYED: BlockingCopyState()}
    positions = positions_of(TableCopies(CopyState(blocking=states)))
    assert not positions.is_begun("log")
    positions.begin(KEYLESS, "log")
    positions.begin(KEYED, "orders")
    assert left(positions) == {
        KEYLESS: BlockingCopyState("log", "n > 1", empties=True),
        KEYED: BlockingCopyState("orders"),
    }
    again = positions_of(TableCopies(positions.so_far().copy))
    assert (again.is_begun("log"), again.is_begun("orders")) == (True, False)


def test_rows_at_one_position_are_numbered_on_across_attempts() -> None:
    copies = TableCopies(CopyState(blocking={KEYLESS: BlockingCopyState(), KEYED: BlockingCopyState()}))
    positions = positions_of(copies)
    assert positions.tx_seq == 0
    positions.tx_seq = 5
    copy = positions.so_far().copy
    assert copy is not None
    assert (copy.point_lsn, copy.tx_seq) == (300, 5)
    assert positions_of(TableCopies(copy)).tx_seq == 5


def test_a_table_that_is_emptied_first_lacks_rows_until_it_is_complete() -> None:
    copies = TableCopies(CopyState(blocking={KEYLESS: BlockingCopyState(), KEYED: BlockingCopyState()}))
    positions = positions_of(copies)
    positions.empty_first(KEYLESS)
    assert positions.is_begun("log")
    assert copies.partial == {KEYLESS}
    positions.complete(KEYLESS)
    assert not copies.partial
