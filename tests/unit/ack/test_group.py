"""Groups of complete transactions: when a group ends, what waits, and which position may be confirmed."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from cdcd.ack.group import (
    LINGER_MAX_ROWS,
    CommitPosition,
    Group,
    GroupLimits,
    LargeLimits,
    RecordChunk,
    SafeLsn,
)
from cdcd.ack.wait_policy import WaitPolicy
from cdcd.model import PartPosition, Record

RECORD = Record("shop.public.t", 0, b"k", b"v")
WAIT_US = 1000


def rows(count: int = 1, size_bytes: int = 10) -> RecordChunk:
    return RecordChunk([RECORD] * count, size_bytes)


def end(commit_lsn: int, **more: int) -> RecordChunk:
    return RecordChunk((), 0, commit_position(commit_lsn, **more))


def commit_position(commit_lsn: int, transactions: int = 1) -> CommitPosition:
    return CommitPosition(commit_lsn, commit_lsn + 8, 5, transactions)


def group(
    *chunks: RecordChunk, max_rows: int = 100, max_bytes: int = 10_000, max_wait_us: int = WAIT_US
) -> Group:
    one = Group(GroupLimits(max_rows, max_bytes, max_wait_us))
    for chunk in chunks:
        one.add(chunk)
    return one


def take_all(one: Group, now_us: int = 0) -> list[RecordChunk]:
    return list(iter(lambda: one.take(now_us), None))  # type: ignore[arg-type]


def snapshot_rows(count: int) -> RecordChunk:
    position = CommitPosition(10, 18, 5, phase="snapshot")
    return dataclasses.replace(rows(count), commit_position=position)


def test_a_group_of_snapshot_rows_has_a_limit_of_its_own() -> None:
    one = Group(GroupLimits(100, 10_000, WAIT_US, snapshot_rows=200))
    for _ in range(9):
        one.add(snapshot_rows(60))
    assert len(take_all(one)) == 4
    assert one.ready(0)
    one.close()
    assert len(take_all(one)) == 4
    stream = [dataclasses.replace(rows(60), commit_position=commit_position(10))] * 9
    assert len(take_all(group(*stream, max_rows=100))) == 2


# --- a Kafka transaction ends only where a PostgreSQL transaction does (F7) ---


def test_a_partial_transaction_is_never_ready() -> None:
    one = group(rows(100, 10_000), rows(100, 10_000))
    take_all(one)
    one.begin_flush()
    assert not one.ready(10 * WAIT_US)
    assert one.is_partial
    with pytest.raises(AssertionError):
        one.close()


def test_a_partial_transaction_joined_to_complete_ones_is_not_committed_before_its_end() -> None:
    one = group(rows(), end(10), rows())
    assert len(take_all(one)) == 3
    assert not one.ready(10 * WAIT_US)
    one.add(end(20))
    take_all(one)
    assert one.ready(10 * WAIT_US)
    assert one.close() == commit_position(20)


def test_a_transaction_larger_than_every_limit_stays_whole() -> None:
    one = group(*[rows(50, 5000)] * 9, end(10), max_rows=10, max_bytes=10)
    assert len(take_all(one)) == 10
    assert one.ready(0)
    assert one.rows == 450


def test_chunks_are_taken_in_the_order_in_which_they_were_added() -> None:
    chunks = [rows(), end(10), rows(2), rows(3), end(20)]
    assert take_all(group(*chunks)) == chunks


# --- limits ---


@pytest.mark.parametrize("limits", [{"max_rows": 4}, {"max_bytes": 40}])
def test_a_full_group_lets_nothing_more_in_and_is_ready_at_once(limits: dict[str, int]) -> None:
    one = group(rows(2, 20), end(10), rows(2, 20), end(20), rows(), end(30), **limits)
    assert len(take_all(one)) == 4
    assert one.ready(0)
    assert one.close() == commit_position(20)
    assert take_all(one) == [rows(), end(30)]


def test_a_group_below_its_limits_waits_for_more_until_its_time() -> None:
    one = group(rows(), end(10))
    take_all(one, now_us=500)
    assert not one.ready(500 + WAIT_US - 1)
    assert one.wait_us(500 + WAIT_US - 1) == 1
    assert one.ready(500 + WAIT_US)
    assert one.wait_us(500 + 9 * WAIT_US) == 0


def test_without_a_wait_a_group_is_ready_as_soon_as_nothing_waits() -> None:
    one = group(rows(), end(10), max_wait_us=0)
    take_all(one)
    assert one.ready(0)


def test_nothing_is_waited_for_while_a_transaction_is_partial_or_nothing_is_in() -> None:
    one = group(rows())
    assert one.wait_us(0) is None
    take_all(one)
    assert one.wait_us(0) is None


def test_transactions_rows_and_bytes_are_counted_anew_for_each_group() -> None:
    one = group(rows(2), end(10), rows(3), end(20))
    take_all(one)
    assert (one.transactions, one.rows, one.bytes) == (2, 5, 20)
    one.close()
    assert (one.transactions, one.rows, one.bytes, one.opened_us, one.commit_position) == (
        0,
        0,
        0,
        None,
        None,
    )


# --- complete transactions do not wait for a partial one behind them ---


def test_a_partial_transaction_behind_complete_ones_does_not_join_once_they_have_waited() -> None:
    one = group(rows(), end(10))
    take_all(one, now_us=0)
    one.add(rows())
    assert one.take(WAIT_US) is None
    assert one.ready(WAIT_US)
    assert one.close() == commit_position(10)
    assert take_all(one) == [rows()]


def test_a_whole_transaction_behind_complete_ones_joins_them() -> None:
    one = group(rows(), end(10))
    take_all(one)
    one.add(rows())
    one.add(end(20))
    assert len(take_all(one, WAIT_US)) == 2
    assert one.close() == commit_position(20)


# --- idle positions (F11) ---


def test_an_idle_position_needs_no_record_and_is_not_a_group() -> None:
    one = group(end(10, transactions=0))
    take_all(one)
    assert one.idle_position == commit_position(10, 0)
    assert not one.ready(10 * WAIT_US)
    assert one.opened_us is None


def test_the_newest_idle_position_stands() -> None:
    one = group(end(10, transactions=0), end(20, transactions=0))
    take_all(one)
    assert one.idle_position == commit_position(20, 0)


def test_an_idle_position_behind_records_moves_the_groups_position() -> None:
    one = group(rows(), end(10), end(20, transactions=0))
    take_all(one)
    assert one.idle_position is None
    assert one.close() == commit_position(20, 0)


def test_an_idle_position_is_gone_when_a_transaction_has_begun() -> None:
    """F6: a position inside a transaction confirms nothing."""
    one = group(end(10, transactions=0), rows())
    take_all(one)
    assert one.idle_position is None
    assert one.commit_position is None


def test_an_empty_chunk_without_a_commit_position_changes_nothing() -> None:
    one = group(rows(), end(10), RecordChunk((), 0))
    take_all(one)
    assert one.commit_position == commit_position(10)


# --- flush and stop (F69) ---


def test_in_a_hurry_complete_transactions_are_ready_at_once() -> None:
    one = group(rows(), end(10))
    take_all(one)
    assert not one.ready(0)
    one.begin_flush()
    assert one.ready(0)


def test_in_a_hurry_a_partial_transaction_does_not_join_complete_ones() -> None:
    one = group(rows(), end(10), rows())
    one.begin_flush()
    assert len(take_all(one)) == 2
    assert one.ready(0)


def test_drop_partial_tail_keeps_everything_up_to_the_last_commit_position() -> None:
    one = group(rows(), end(10), rows(1, 7), rows(1, 5))
    one.drop_partial_tail()
    assert one.waiting_bytes == 10
    assert take_all(one) == [rows(), end(10)]


def test_drop_partial_tail_of_nothing_but_a_partial_transaction_leaves_nothing() -> None:
    one = group(rows(), rows())
    one.drop_partial_tail()
    assert (one.waiting_bytes, take_all(one)) == (0, [])


def test_reset_forgets_the_open_group_and_keeps_what_waits() -> None:
    one = group(rows(), end(10))
    take_all(one)
    one.add(rows(7))
    one.reset()
    assert (one.rows, one.commit_position) == (0, None)
    assert take_all(one) == [rows(7)]


def test_waiting_bytes_are_those_of_the_chunks_not_yet_taken() -> None:
    one = group(rows(1, 100), rows(1, 30), end(10))
    seen = [one.waiting_bytes]
    while one.take(0) is not None:
        seen.append(one.waiting_bytes)
    assert seen == [130, 30, 0, 0]


# --- the safe LSN (F2, F7) ---


def test_the_safe_lsn_is_exactly_the_positions_end() -> None:
    assert SafeLsn(5).advance(9) == 9


@pytest.mark.parametrize("order", list(itertools.permutations((7, 8, 9))))
def test_the_safe_lsn_never_moves_back(order: tuple[int, ...]) -> None:
    safe = SafeLsn(8)
    seen = [safe.advance(lsn) for lsn in order]
    assert seen == sorted(seen)
    assert safe.lsn == 9


# --- a transaction that is too large for one Kafka transaction ---


def large(**limits: object) -> Group:
    given = {"max_rows": 0, "max_bytes": 0, "max_time_us": 0, "allows_parts": True} | limits
    one = Group(GroupLimits(100, 10_000, WAIT_US, LargeLimits(**given)))  # type: ignore[arg-type]
    one.begin_at(commit_position(10))
    return one


def some(tx_seq: int, count: int = 1, size_bytes: int = 10) -> RecordChunk:
    """Return rows of the transaction at LSN 50, up to this sequence number."""
    return RecordChunk([RECORD] * count, size_bytes, reached=PartPosition(50, tx_seq))


@pytest.mark.parametrize(
    ("limits", "now_us"),
    [({"max_rows": 3}, 0), ({"max_bytes": 30}, 0), ({"max_time_us": 500}, 500)],
    ids=["rows", "bytes", "time"],
)
def test_a_part_is_committed_with_the_position_before_its_transaction(
    limits: dict[str, int], now_us: int
) -> None:
    """The position to confirm does not move; the progress record also names the part."""
    one = large(**limits)
    for chunk in (some(2, 2, 20), some(3), some(4)):
        one.add(chunk)
    assert len(take_all(one)) == (3 if "max_time_us" in limits else 2)
    assert one.ready(now_us)
    assert one.refused(now_us, 0) is None
    closed = one.close()
    assert (closed.commit_lsn, closed.end_lsn, closed.transactions) == (10, 18, 0)
    assert closed.part == PartPosition(50, 4 if "max_time_us" in limits else 3)


def test_complete_transactions_are_committed_along_with_the_part_behind_them() -> None:
    one = large(max_rows=3)
    for chunk in (rows(), end(20), some(1), some(2)):
        one.add(chunk)
    take_all(one)
    closed = one.close()
    assert (closed.commit_lsn, closed.transactions, closed.part) == (20, 1, PartPosition(50, 2))


def test_the_end_of_a_transaction_whose_parts_are_written_is_committed_at_once() -> None:
    """No record is left to write, but readers wait for the progress record that completes the transaction."""
    one = large(max_rows=1)
    one.add(some(1))
    take_all(one)
    one.close()
    assert not one.ready(0)
    one.add(end(50))
    take_all(one)
    assert one.ready(0)
    assert one.close() == commit_position(50)
    assert not one.ready(0)


def test_an_idle_position_while_the_rest_is_awaited_keeps_the_part_and_does_not_end_it() -> None:
    one = large(max_rows=1)
    pending = CommitPosition(10, 18, 5, 0, part=PartPosition(50, 1))
    one.begin_at(pending)
    one.add(RecordChunk((), 0, pending))
    take_all(one)
    assert not one.ready(0)
    one.add(some(2))
    take_all(one)
    assert one.close().part == PartPosition(50, 2)


def test_an_older_idle_position_does_not_move_a_part_back() -> None:
    """F4: a slot may be behind the durable position."""
    one = large(max_rows=1)
    one.begin_at(commit_position(40))
    one.add(end(30))
    one.add(some(1))
    take_all(one)
    assert one.close().end_lsn == 48


@pytest.mark.parametrize(
    ("limits", "stalled_us", "refused"),
    [
        ({"max_rows": 2}, 0, "rows"),
        ({"max_bytes": 20}, 0, "bytes"),
        ({"max_time_us": 500}, 0, "time"),
        ({"max_time_us": 500}, 300, None),  # the outage of Kafka does not count
        ({"max_rows": 3}, 0, None),
        ({}, 0, None),
    ],
)
def test_where_parts_are_not_wanted_it_is_refused(
    limits: dict[str, int], stalled_us: int, refused: str | None
) -> None:
    one = large(allows_parts=False, **limits)
    one.add(some(2, 2, 20))
    take_all(one)
    assert not one.ready(700)
    assert one.refused(700, stalled_us) == refused
    one.add(end(50))
    take_all(one)
    assert one.refused(700, 0) is None, "a complete transaction is not refused"


def test_what_cannot_be_cut_is_refused_also_where_parts_are_wanted() -> None:
    """Rows of a snapshot have no sequence number by which a replay could be recognized."""
    one = large(max_rows=1)
    one.add(rows())
    take_all(one)
    assert one.refused(0, 0) == "rows"


def test_the_wait_ends_where_the_time_of_a_part_does() -> None:
    one = large(max_time_us=500)
    one.add(some(1))
    one.take(100)
    assert one.wait_us(300) == 300


def test_a_part_waits_longer_by_the_time_of_an_outage_of_kafka() -> None:
    """Otherwise the writer would poll without a pause until then."""
    one = large(max_time_us=500, allows_parts=False)
    one.add(some(1))
    one.take(100)
    assert one.refused(700, 300) is None
    assert one.wait_us(700, 300) == 200
    assert one.refused(900, 300) == "time"


@pytest.mark.parametrize("limits", [{"max_rows": 3}, {"max_bytes": 30}], ids=["rows", "bytes"])
def test_a_small_transaction_is_not_refused_for_those_that_are_complete_before_it(
    limits: dict[str, int],
) -> None:
    """Small transactions that exceed the limit together are not one large transaction."""
    one = large(allows_parts=False, **limits)
    one.add(RecordChunk([RECORD] * 4, 40, commit_position(40)))
    one.add(some(1))
    assert one.take(0) is not None
    assert one.take(0) is not None
    assert one.is_partial
    assert one.refused(0, 0) is None
    one.add(some(3, count=2, size_bytes=20))
    assert one.take(0) is not None
    assert one.refused(0, 0) is not None, "the transaction alone reaches the limit"


def test_in_a_backlog_a_group_waits_for_more_and_no_longer_than_that() -> None:
    one = group(rows(), end(10), max_wait_us=0)
    one.wait_by(WaitPolicy(linger_us=50))
    take_all(one)
    assert not one.ready(49)
    assert one.wait_us(10) == 40
    assert one.ready(50)
    one.begin_flush()
    assert one.ready(10)


@pytest.mark.parametrize("max_wait_us", [0, 30])
def test_in_a_backlog_a_group_does_not_wait_for_more_than_enough(max_wait_us: int) -> None:
    """The configured wait still applies."""
    one = group(rows(LINGER_MAX_ROWS - 1), end(10), max_rows=10**9, max_bytes=10**9, max_wait_us=max_wait_us)
    one.wait_by(WaitPolicy(linger_us=50))
    take_all(one)
    assert not one.ready(49)
    one.add(rows(1))
    one.add(end(20))
    take_all(one)
    assert one.ready(max_wait_us)
    assert max_wait_us == 0 or not one.ready(max_wait_us - 1)


def seen_early(*chunks: RecordChunk, **limits: int) -> Group:
    one = group(*chunks, **limits)
    one.wait_by(WaitPolicy(position_us=50))
    return one


def test_a_position_waits_for_more_and_not_longer_although_more_waits() -> None:
    """Visible but unconfirmed records come again after a crash; without a limit they accumulate under load."""
    one = seen_early(rows(), end(10), max_wait_us=0)
    take_all(one, 0)
    assert not one.ready(49)
    assert one.wait_us(10) == 40
    one.add(rows(1))
    one.add(end(20))
    assert one.take(49) is not None
    assert one.take(49) is not None
    one.add(rows(1))
    one.add(end(30))
    assert one.take(50) is None
    assert one.ready(50)
    assert one.close().commit_lsn == 20


@pytest.mark.parametrize("max_wait_us", [0, 1000])
def test_a_position_does_not_wait_while_a_part_of_a_transaction_comes_in(max_wait_us: int) -> None:
    """F7: complete transactions would be confirmed only at the end of a transaction that may take an hour."""
    one = seen_early(rows(), end(10), max_wait_us=max_wait_us)
    take_all(one, 0)
    one.add(rows(1))
    assert one.take(1) is None
    assert one.ready(1)
    assert one.close().commit_lsn == 10


def test_a_flush_gives_one_position_for_all_that_waits() -> None:
    one = seen_early(rows(), end(10), rows(), end(20), rows(), end(30), max_wait_us=0)
    one.begin_flush()
    take_all(one, 0)
    assert one.ready(0)
    assert one.close().commit_lsn == 30


def test_a_position_waits_as_long_as_the_configuration_asks_for() -> None:
    one = seen_early(rows(), end(10), max_wait_us=80)
    take_all(one, 0)
    assert not one.ready(79)
    assert one.ready(80)


def joined_late(*chunks: RecordChunk, **limits: int) -> Group:
    one = group(*chunks, **limits)
    one.wait_by(WaitPolicy(join_us=50))
    return one


def test_what_joins_is_waited_for_and_what_waits_then_is_taken_too() -> None:
    one = joined_late(rows(), end(10), max_wait_us=0)
    take_all(one, 0)
    assert one.is_commit_imminent
    assert not one.ready(49)
    assert one.wait_us(10) == 40
    one.add(rows(1))
    one.add(end(20))
    assert not one.ready(50)
    take_all(one, 50)
    assert one.ready(50)
    assert one.close().commit_lsn == 20


def test_a_part_of_a_transaction_does_not_join_complete_ones_and_they_do_not_wait_for_it() -> None:
    one = joined_late(rows(), end(10), max_wait_us=0)
    take_all(one, 0)
    one.add(rows(1))
    assert one.take(1) is None
    assert one.ready(1)
    assert one.close().commit_lsn == 10
    take_all(one, 1)
    assert not one.is_commit_imminent


@pytest.mark.parametrize("join_wait_us", [0, 50])
def test_what_waits_long_is_not_soon_committed(join_wait_us: int) -> None:
    one = group(rows(), end(10), max_wait_us=51)
    one.wait_by(WaitPolicy(join_us=join_wait_us))
    assert not one.is_commit_imminent
    take_all(one, 0)
    assert not one.is_commit_imminent


def test_a_backlog_that_comes_behind_does_not_let_a_part_into_what_is_expected() -> None:
    """A start that reads the progress topic would wait for the end of a transaction that may take an hour."""
    one = joined_late(rows(), end(10), max_wait_us=0)
    take_all(one, 0)
    one.announce_commit()
    one.wait_by(WaitPolicy(linger_us=1000))
    one.add(rows(1))
    assert one.take(1) is None
    assert one.ready(1)
    assert one.close().commit_lsn == 10
    assert one.take(1) is not None
