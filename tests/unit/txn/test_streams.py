"""Streamed transactions: no output before the commit, no aborted changes, no leaked relations."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import pytest

from cdcd.errors import MessageOutOfOrder, RelationUnknown, UnsafeStreaming
from cdcd.model import Control, Item, RowBatch, TransactionBatch, TransactionInfo
from cdcd.pgoutput import messages as m
from cdcd.txn.assembler import Assembler
from cdcd.txn.events import (
    LogicalMessage,
    RelationSeen,
    Rows,
    TransactionBegun,
    TransactionCommitted,
    Truncated,
)
from cdcd.txn.store import MemoryStore
from cdcd.txn.transaction_batch import gather
from cdcd.txn.unsafe_streaming import SUBTRANSACTIONS_LIMIT
from tests.support.pgoutput_encode import encode

from . import wire
from .wire import segment


@pytest.fixture
def assembler() -> Assembler:
    return Assembler(2)


def test_nothing_leaves_before_stream_commit_and_then_all_does(assembler: Assembler) -> None:
    """F28."""
    first, second = wire.rows("1", xid=7), wire.rows("2", xid=7)
    oldest_prepared = wire.feed(
        assembler,
        *segment(7, wire.origin("b"), wire.relation("id", xid=7), first),
        *segment(7, wire.truncate(wire.ITEMS_RELID, xid=7), second, first=False),
    )
    assert (oldest_prepared, assembler.open_streams) == ([], 1)
    info = TransactionInfo(7, 0x500, 0x500 * 1000, origin="b")
    assert wire.feed(assembler, wire.stream_commit(7, 0x500)) == [
        TransactionBegun(info),
        RelationSeen(wire.relation_model("id"), 0),
        Rows(first),
        Truncated((wire.relation_model("id"),), False, False, 0x77),
        Rows(second),
        TransactionCommitted(info, 0x508),
    ]
    assert assembler.open_streams == 0


def test_interleaved_streams_and_transactions_leave_in_commit_order(assembler: Assembler) -> None:
    """F5, F28."""
    events = wire.feed(
        assembler,
        *segment(7, wire.relation("id", xid=7), wire.rows("7a", xid=7)),
        *segment(8, wire.relation("id", xid=8), wire.rows("8a", xid=8)),
        wire.begin(9, 0x300),
        wire.relation("id"),
        wire.rows("9"),
        wire.commit(0x300),
        *segment(7, wire.rows("7b", xid=7), first=False),
        wire.stream_commit(8, 0x400),
        *segment(7, wire.rows("7c", xid=7), first=False),
        wire.stream_commit(7, 0x500),
    )
    assert wire.batches(events) == [
        wire.rows("9"),
        wire.rows("8a", xid=8),
        *(wire.rows(value, xid=7) for value in ("7a", "7b", "7c")),
    ]
    committed = [event.info for event in events if isinstance(event, TransactionCommitted)]
    assert [(info.xid, info.commit_lsn) for info in committed] == [(9, 0x300), (8, 0x400), (7, 0x500)]


def test_an_empty_stream_begins_and_commits(assembler: Assembler) -> None:
    events = wire.feed(assembler, *segment(7), wire.stream_commit(7, 0x500))
    assert [type(event) for event in events] == [TransactionBegun, TransactionCommitted]


# --- aborts -------------------------------------------------------------------------------------------------


def test_an_aborted_stream_leaves_nothing(assembler: Assembler) -> None:
    """F26."""
    events = wire.feed(assembler, *segment(7, wire.rows("1", xid=7)), wire.stream_abort(7))
    assert (events, assembler.open_streams) == ([], 0)
    with pytest.raises(MessageOutOfOrder, match="Stream Commit"):
        wire.feed(assembler, wire.stream_commit(7, 0x500))


def test_a_subtransactions_abort_drops_its_changes_in_all_segments_and_no_others(
    assembler: Assembler,
) -> None:
    """F26: the server aborts nested subtransactions innermost first, with a message each."""
    events = wire.feed(
        assembler,
        *segment(
            7,
            wire.relation("id", xid=7),
            wire.rows("kept 1", xid=7),
            wire.rows("outer", xid=71),
            wire.rows("inner", xid=72),
            wire.rows("released", xid=73),
        ),
        *segment(
            7,
            wire.rows("inner", xid=72),
            wire.truncate(wire.ITEMS_RELID, xid=71),
            wire.rows("outer", xid=71),
            wire.rows("kept 2", xid=7),
            first=False,
        ),
        wire.stream_abort(7, 72),
        wire.stream_abort(7, 71),
        wire.stream_abort(7, 79),  # a subtransaction without changes
        *segment(7, wire.rows("kept 3", xid=74), first=False),
        wire.stream_commit(7, 0x500),
    )
    remaining = [("kept 1", 7), ("released", 73), ("kept 2", 7), ("kept 3", 74)]
    assert wire.batches(events) == [wire.rows(value, xid=xid) for value, xid in remaining]
    assert not [event for event in events if isinstance(event, Truncated)]


def test_a_logical_message_is_not_taken_from_a_stream(assembler: Assembler) -> None:
    """F26: the server sends it with the top-level xid, so it would survive a rollback of its subtransaction."""
    rows = segment(7, wire.relation("id", xid=7), wire.rows("1", xid=71))
    with pytest.raises(UnsafeStreaming, match="xid=7"):
        wire.feed(assembler, *rows, *segment(7, wire.message(True, 7), first=False))


def test_a_streamed_message_that_is_no_data_is_left_out(assembler: Assembler) -> None:
    """The message by which cdcd has the server write its WAL. With a content or another prefix, it is a user's."""
    flush = wire.message(True, 7, b"", "cdcd.flush")
    rows = segment(7, wire.relation("id", xid=7), wire.rows("1", xid=71))
    events = wire.feed(assembler, *rows, *segment(7, flush, first=False), wire.stream_commit(7, 0x500))
    assert wire.batches(events) == [wire.rows("1", xid=71)]
    assert not [event for event in events if isinstance(event, LogicalMessage)]
    for data in (wire.message(True, 8, b"c", "cdcd.flush"), wire.message(True, 8, b"", "cdcd.flush.mine")):
        with pytest.raises(UnsafeStreaming, match="xid=8"):
            wire.feed(Assembler(4), *segment(8, data))


def test_a_relation_described_in_an_aborted_subtransaction_stays(assembler: Assembler) -> None:
    """F29: for the server the relation is described for the whole transaction, so it is not sent again."""
    events = wire.feed(
        assembler,
        *segment(7, wire.relation("id", xid=71), wire.rows("gone", xid=71)),
        wire.stream_abort(7, 71),
        *segment(7, wire.rows("kept", xid=7), wire.truncate(wire.ITEMS_RELID, xid=7), first=False),
        wire.stream_commit(7, 0x500),
    )
    assert wire.relations(events) == [wire.relation_model("id")]
    assert wire.batches(events) == [wire.rows("kept", xid=7)]


def test_a_parallel_abort_carries_lsn_and_time() -> None:
    assembler = Assembler(4, streaming_parallel=True)
    abort = Control(1, encode(m.StreamAbort(7, 7, 5, 6), in_stream=False, streaming_parallel=True))
    wire.feed(assembler, *segment(7, wire.rows("1", xid=7)), abort)
    assert assembler.open_streams == 0


@pytest.mark.parametrize(
    ("item", "name"),
    [
        (wire.stream_start(7, first=False), "Stream Start"),
        (wire.stream_commit(7, 1), "Stream Commit"),
    ],
)
def test_a_stream_that_was_not_begun_is_an_error(assembler: Assembler, item: Control, name: str) -> None:
    with pytest.raises(MessageOutOfOrder, match=f"{name} outside a transaction: transaction 7 has no first"):
        wire.feed(assembler, item)


def test_what_was_received_and_rolled_back_is_counted_once() -> None:
    assembler = Assembler(3, two_phase=True)
    wire.feed(
        assembler,
        *segment(7, wire.rows("1", xid=7), wire.rows("2", xid=71)),
        wire.stream_abort(7, 71),
        *segment(7, wire.rows("1", xid=7)),  # sent again from its beginning
        wire.stream_abort(7),
        wire.stream_abort(8),
        *segment(9, wire.rows("3", xid=9)),
        wire.stream_prepare(9, 0x300),
        wire.rollback_prepared(9, 0x300, 0x400),
        wire.rollback_prepared(9, 0x300, 0x400),
    )
    assert assembler.aborted == 2


@pytest.mark.parametrize("item", [wire.stream_abort(7), wire.stream_abort(7, 8)])
def test_an_abort_of_what_was_never_sent_drops_nothing(assembler: Assembler, item: Control) -> None:
    """PostgreSQL 18 reports subtransactions that were rolled back before it sent a segment."""
    assert wire.feed(assembler, item) == []
    events = wire.feed(assembler, *segment(7, wire.relation("id", xid=7), wire.rows("1", xid=7)), item)
    assert events == []
    assert assembler.open_streams == (0 if item == wire.stream_abort(7) else 1)


# --- first segment ------------------------------------------------------------------------------------------


def test_a_first_segment_forgets_what_was_streamed_of_the_xid(assembler: Assembler) -> None:
    """F27: the server sends the transaction again from its beginning."""
    events = wire.feed(
        assembler,
        *segment(7, wire.origin("old"), wire.relation("id", "old", xid=7), wire.rows("old", xid=7)),
        *segment(7, wire.relation("id", xid=7), wire.rows("new", xid=7)),
        wire.stream_commit(7, 0x500),
    )
    assert events[0] == TransactionBegun(TransactionInfo(7, 0x500, 0x500 * 1000))
    assert wire.relations(events) == [wire.relation_model("id")]
    assert wire.batches(events) == [wire.rows("new", xid=7)]


def test_a_first_segment_forgets_the_relations_too(assembler: Assembler) -> None:
    wire.feed(assembler, *segment(7, wire.relation("id", xid=7)), wire.stream_start(7))
    with pytest.raises(RelationUnknown):
        wire.feed(assembler, wire.truncate(wire.ITEMS_RELID, xid=7))


# --- relations ----------------------------------------------------------------------------------------------


def _described(assembler: Assembler, *columns: str, commit_lsn: int) -> None:
    wire.feed(assembler, wire.begin(5, commit_lsn), wire.relation(*columns), wire.commit(commit_lsn))


def _in_force(assembler: Assembler, commit_lsn: int) -> list[str]:
    """Return the columns that a TRUNCATE of a transaction without a Relation message uses."""
    opened = wire.feed(assembler, wire.begin(6, commit_lsn), wire.truncate(wire.ITEMS_RELID))
    wire.feed(assembler, wire.commit(commit_lsn))
    truncated = opened[-1]
    assert isinstance(truncated, Truncated)
    return [column.name for column in truncated.relations[0].columns]


def test_an_alter_in_an_aborted_stream_changes_how_nothing_else_is_read(assembler: Assembler) -> None:
    """F29."""
    _described(assembler, "id", commit_lsn=0x10)
    wire.feed(assembler, *segment(7, wire.relation("id", "extra", xid=7)))
    assert _in_force(assembler, 0x20) == ["id"]
    wire.feed(assembler, wire.stream_abort(7))
    assert _in_force(assembler, 0x30) == ["id"]


def test_an_alter_in_a_stream_is_in_force_after_its_commit(assembler: Assembler) -> None:
    _described(assembler, "id", commit_lsn=0x10)
    wire.feed(assembler, *segment(7, wire.relation("id", "extra", xid=7)), wire.stream_commit(7, 0x20))
    assert _in_force(assembler, 0x30) == ["id", "extra"]


def test_two_descriptions_in_one_stream_stay_at_their_places(assembler: Assembler) -> None:
    """F29: ALTER TABLE inside a streamed transaction."""
    truncate = wire.truncate(wire.ITEMS_RELID, xid=7)
    events = wire.feed(
        assembler,
        *segment(7, wire.relation("id", xid=7), truncate, wire.relation("id", "extra", xid=7), truncate),
        wire.stream_commit(7, 0x20),
    )
    before, after = wire.relation_model("id"), wire.relation_model("id", "extra")
    assert wire.relations(events) == [before, after]
    assert [event.relations for event in events if isinstance(event, Truncated)] == [(before,), (after,)]


def test_streams_do_not_see_each_others_relations_nor_the_sessions(assembler: Assembler) -> None:
    _described(assembler, "id", commit_lsn=0x10)
    wire.feed(assembler, *segment(7, wire.relation("id", xid=7)), wire.stream_start(8))
    with pytest.raises(RelationUnknown):
        wire.feed(assembler, wire.truncate(wire.ITEMS_RELID, xid=8))


def test_a_later_description_outside_outlives_a_streams_older_one(assembler: Assembler) -> None:
    """The server does not send the later one again, so the assembler emits it again after the replay."""
    wire.feed(assembler, *segment(7, wire.relation("id", "old", xid=7), wire.rows("1", xid=7)))
    _described(assembler, "id", commit_lsn=0x10)
    events = wire.feed(assembler, wire.stream_commit(7, 0x20))
    assert wire.relations(events) == [wire.relation_model("id", "old"), wire.relation_model("id")]
    assert isinstance(events[-1], TransactionCommitted)
    assert _in_force(assembler, 0x30) == ["id"]


def test_an_equal_description_is_not_said_again(assembler: Assembler) -> None:
    wire.feed(assembler, *segment(7, wire.relation("id", xid=7)))
    _described(assembler, "id", commit_lsn=0x10)
    assert len(wire.relations(wire.feed(assembler, wire.stream_commit(7, 0x20)))) == 1


# --- replay -------------------------------------------------------------------------------------------------


def test_a_replay_counts_as_an_open_transaction_until_its_commit(assembler: Assembler) -> None:
    """F6, F11."""
    wire.feed(assembler, *segment(7, wire.rows("1", xid=7)))
    replay = assembler.feed(wire.stream_commit(7, 0x500))
    seen = [assembler.in_transaction, *(assembler.in_transaction for _ in replay)]
    assert seen == [True, True, True, False]


def test_a_replay_that_was_left_unfinished_is_not_passed_over(assembler: Assembler) -> None:
    wire.feed(assembler, *segment(7, wire.rows("1", xid=7)))
    replay = assembler.feed(wire.stream_commit(7, 0x500))
    next(replay)
    with pytest.raises(RuntimeError, match="not consumed"):
        assembler.feed(wire.begin(8, 0x600))


def _segment(xid: int, *, first: bool, sent_at_pg_us: int) -> list[Item]:
    stop = replace(wire.stream_stop(), sent_at_pg_us=sent_at_pg_us)
    return [wire.stream_start(xid, first=first), stop]


def _aborted(xid: int, subxid: int, at_pg_us: int) -> Control:
    message = m.StreamAbort(xid, subxid, 5, at_pg_us)
    return Control(1, encode(message, in_stream=False, streaming_parallel=True), sent_at_pg_us=200)


@pytest.mark.parametrize(
    ("aborted_at_pg_us", "is_unsafe"), [(99, True), (100, True), (101, False), (200, False), (201, True)]
)
def test_a_rollback_is_unsafe_unless_it_came_after_what_was_sent(
    aborted_at_pg_us: int, is_unsafe: bool
) -> None:
    """When the server decodes rows that are already rolled back, it may miss catalog changes of others."""
    assembler = Assembler(4, streaming_parallel=True, refuse_unsafe_streaming=True)
    wire.feed(assembler, *_segment(7, first=True, sent_at_pg_us=100), _aborted(7, 8, aborted_at_pg_us))
    wire.feed(assembler, *_segment(9, first=True, sent_at_pg_us=200))  # another transaction is not affected
    if is_unsafe:
        with pytest.raises(UnsafeStreaming, match="CDCD-UNSAFE-STREAMING"):
            wire.feed(assembler, wire.stream_start(7, first=False))
    else:
        wire.feed(assembler, *_segment(7, first=False, sent_at_pg_us=300), wire.stream_commit(7, 0x500))


def test_the_time_of_a_rollback_under_an_origin_is_the_origins() -> None:
    """`pg_replication_origin_xact_setup` sets it, from another server's clock."""
    assembler = Assembler(4, streaming_parallel=True, refuse_unsafe_streaming=True)
    start, stop = _segment(7, first=True, sent_at_pg_us=100)
    wire.feed(assembler, start, wire.origin("elsewhere"), stop, _aborted(7, 8, 150))
    with pytest.raises(UnsafeStreaming):
        wire.feed(assembler, wire.stream_start(7, first=False))


def test_without_the_time_of_a_rollback_each_is_unsafe() -> None:
    """Protocol versions 2 and 3."""
    assembler = Assembler(2, refuse_unsafe_streaming=True)
    wire.feed(assembler, *_segment(7, first=True, sent_at_pg_us=100), wire.stream_abort(7, 8))
    with pytest.raises(UnsafeStreaming):
        wire.feed(assembler, wire.stream_start(7, first=False))


def test_a_transaction_that_ends_with_its_rollback_is_not_unsafe() -> None:
    assembler = Assembler(2, refuse_unsafe_streaming=True)
    wire.feed(assembler, *_segment(7, first=True, sent_at_pg_us=100), wire.stream_abort(7, 8))
    wire.feed(assembler, wire.stream_commit(7, 0x500))


def test_a_rollback_before_the_first_segment_is_unsafe() -> None:
    """PostgreSQL 18 reports such a rollback."""
    assembler = Assembler(4, streaming_parallel=True, refuse_unsafe_streaming=True)
    wire.feed(assembler, _aborted(7, 8, 50))
    with pytest.raises(UnsafeStreaming):
        wire.feed(assembler, wire.stream_start(7, first=True))


@pytest.mark.parametrize("is_whole", [False, True], ids=["one by one", "batch"])
def test_what_was_rolled_back_of_a_transaction_that_came_whole_is_forgotten(is_whole: bool) -> None:
    """After a wraparound another transaction may have its xid."""
    assembler = Assembler(4, streaming_parallel=True, refuse_unsafe_streaming=True)
    wire.feed(assembler, _aborted(7, 8, 50))
    items = [wire.begin(6, 0x80), wire.commit(0x80), wire.begin(7, 0x100), wire.commit(0x100)]
    if is_whole:
        (whole,) = gather(items)
        assert isinstance(whole, TransactionBatch)
        assembler.passed_whole(whole)
    else:
        wire.feed(assembler, *items)
    wire.feed(assembler, wire.stream_start(7, first=True))


def test_what_was_rolled_back_before_its_transaction_was_streamed_holds_nothing_up() -> None:
    """The transaction may never arrive, because it is rolled back as well or changes no published table."""
    assembler = Assembler(4, streaming_parallel=True, refuse_unsafe_streaming=True)
    wire.feed(assembler, _aborted(7, 8, 50))
    assert assembler.takes_whole
    wire.feed(assembler, *(_aborted(xid, 6, 50) for xid in range(8, SUBTRANSACTIONS_LIMIT + 7)))
    with pytest.raises(UnsafeStreaming, match="too many"):
        wire.feed(assembler, _aborted(SUBTRANSACTIONS_LIMIT + 7, 6, 50))


def test_the_subtransactions_that_end_with_a_stream_are_known() -> None:
    """The server may have rolled one back without a Stream Abort, so cdcd must query their status."""
    assembler = Assembler(2, written_commit_lsn=0x100)
    wire.feed(
        assembler,
        *segment(7, wire.relation("id", xid=7), wire.rows("1", xid=7), wire.rows("2", xid=71)),
        *segment(7, wire.truncate(wire.ITEMS_RELID, xid=72), wire.rows("3", xid=73), first=False),
        wire.stream_abort(7, 73),
        *segment(8, wire.rows("4", xid=81)),
    )
    asked = {
        name: assembler.subtransactions_ended_by(item)
        for name, item in {
            "its end": wire.stream_commit(7, 0x500),
            "its end, written": wire.stream_commit(7, 0x100),
            "nobody's end": wire.stream_commit(9, 0x500),
            "its prepare, which was not asked for": wire.stream_prepare(7, 0x500),
            "its rollback": wire.stream_abort(7),
            "a row": wire.rows("5"),
        }.items()
    }
    assert asked.pop("its end") == {71, 72}
    assert set(asked.values()) == {frozenset()}


def _subtransactions(xid: int, first: int, count: int) -> list[RowBatch]:
    return [RowBatch(b"", 0, xid * 1_000_000 + number) for number in range(first, first + count)]


def test_more_subtransactions_than_can_be_asked_for_are_not_streamed() -> None:
    assembler = Assembler(2, refuse_unsafe_streaming=True)
    wire.feed(assembler, wire.stream_start(7), *_subtransactions(7, 0, SUBTRANSACTIONS_LIMIT))
    wire.feed(assembler, *_subtransactions(7, 0, 2))
    with pytest.raises(UnsafeStreaming, match="more subtransactions"):
        wire.feed(assembler, *_subtransactions(7, SUBTRANSACTIONS_LIMIT, 1))


def test_the_subtransactions_of_all_that_is_open_count_together() -> None:
    """Those of an ended transaction do not count: committed, aborted, prepared or sent again."""
    assembler = Assembler(3, two_phase=True, refuse_unsafe_streaming=True)
    each = 999
    for xid in (1, 2, 3, 4):
        wire.feed(assembler, *segment(xid, *_subtransactions(xid, 0, each)))
        wire.feed(assembler, *(wire.stream_abort(xid, batch.xid) for batch in _subtransactions(xid, 0, 9)))
    wire.feed(assembler, wire.stream_commit(1, 0x100), wire.stream_abort(2), wire.stream_prepare(3, 0x200))
    streams = SUBTRANSACTIONS_LIMIT // each
    for xid in range(4, 4 + streams):
        wire.feed(assembler, *segment(xid, *_subtransactions(xid, 0, each)))
    rest = SUBTRANSACTIONS_LIMIT - each * streams
    wire.feed(assembler, wire.stream_start(900), *_subtransactions(900, 0, rest))
    with pytest.raises(UnsafeStreaming, match="more subtransactions"):
        wire.feed(assembler, *_subtransactions(900, rest, 1))


def test_a_subtransaction_counts_when_its_abort_was_received() -> None:
    """A store on disk must remember the rollback, and only this limit bounds their number."""
    assembler = Assembler(2, refuse_unsafe_streaming=True)
    wire.feed(assembler, *segment(7, *_subtransactions(7, 0, SUBTRANSACTIONS_LIMIT)))
    wire.feed(assembler, *(wire.stream_abort(7, batch.xid) for batch in _subtransactions(7, 0, 1000)))
    wire.feed(assembler, wire.stream_start(8))
    with pytest.raises(UnsafeStreaming, match="more subtransactions"):
        wire.feed(assembler, *_subtransactions(8, 0, 1))


def test_a_store_without_changes_of_a_transaction_gets_no_call_for_its_rollback() -> None:
    """PostgreSQL reports each EXCEPTION block of a transaction that it has partly streamed."""
    reported: list[int] = []

    class Store(MemoryStore):
        def abort_subtransaction(self, xid: int) -> None:
            reported.append(xid)
            super().abort_subtransaction(xid)

    assembler = Assembler(2, new_store=Store)
    wire.feed(assembler, *segment(7, wire.rows("1", xid=71), wire.pg_type(72)))
    wire.feed(assembler, *(wire.stream_abort(7, subxid) for subxid in (71, 72, 73, 71)))
    assert reported == [71]


def test_open_streams_share_what_they_describe_alike() -> None:
    """A description stays in memory while its rows are on disk, so many streams must share equal descriptions."""

    class Nothing(MemoryStore):
        def append(self, item: RowBatch | Control) -> None:
            """Store nothing, as if the item were on disk."""

    assembler = Assembler(2, new_store=Nothing)
    columns = [f"column_{number}" for number in range(200)]
    streams = 60
    wire.feed(assembler, *segment(1, wire.relation(*columns, xid=1)))
    tracemalloc.start()
    for xid in range(2, 2 + streams):
        wire.feed(assembler, *segment(xid, wire.relation(*columns, xid=xid)))
    used_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert assembler.open_streams == 1 + streams
    assert used_bytes < streams * 4_000
