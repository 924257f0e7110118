"""Prepared transactions: no output before COMMIT PREPARED, in its order; the position held back meanwhile."""

from __future__ import annotations

import pytest

from cdcd.errors import MessageOutOfOrder, PreparedMissing, ProtocolError, RelationUnknown, Retry
from cdcd.model import Item, PreparedBefore, Relation, RowBatch, TransactionInfo
from cdcd.txn.assembler import Assembler
from cdcd.txn.events import (
    Event,
    LogicalMessage,
    RelationSeen,
    Rows,
    TransactionBegun,
    TransactionCommitted,
    Truncated,
)
from cdcd.txn.store import MemoryStore

from . import wire
from .wire import prepared, segment


@pytest.fixture
def assembler() -> Assembler:
    return Assembler(4, two_phase=True)


def _info(xid: int, commit_lsn: int, **more: object) -> TransactionInfo:
    return TransactionInfo(xid, commit_lsn, commit_lsn * 1000, **more)  # type: ignore[arg-type]


def _committed(events: list[Event]) -> list[tuple[int, int]]:
    return [(e.info.xid, e.info.commit_lsn) for e in events if isinstance(e, TransactionCommitted)]


def _as_rows_are_read(events: list[Event]) -> list[tuple[RowBatch, Relation | None]]:
    """Return each batch with the relation description that applies to it."""
    read, now = [], None
    for event in events:
        if isinstance(event, RelationSeen):
            now = event.relation
        elif isinstance(event, Rows):
            read.append((event.batch, now))
    return read


def test_nothing_leaves_before_commit_prepared_and_then_all_does(assembler: Assembler) -> None:
    """F33: with the commit's LSN, end and time; only the Relation leaves at once: it applies to the session."""
    batch, described = wire.rows("1", "2"), wire.relation_model("id")
    oldest_prepared = wire.feed(
        assembler,
        *prepared(
            7,
            0x300,
            wire.origin("b", 0x42),
            wire.relation("id"),
            wire.pg_type(),
            batch,
            wire.message(True),
            wire.truncate(wire.ITEMS_RELID, options=1),
        ),
    )
    assert oldest_prepared == [RelationSeen(described, 0)]
    info = _info(7, 0x500, origin="b", origin_lsn=0x42)
    events = wire.feed(assembler, wire.commit_prepared(7, 0x500))
    assert events[0] == TransactionBegun(info)
    assert events[1] == RelationSeen(described, 0)
    assert events[3:] == [  # events[2] is a TypeSeen
        Rows(batch),
        LogicalMessage(True, 0x88, "p", b"c"),
        Truncated((described,), True, False, 0x77),
        TransactionCommitted(info, 0x508),
    ]


def test_what_is_rolled_back_leaves_nothing(assembler: Assembler) -> None:
    events = wire.feed(
        assembler,
        *prepared(7, 0x300, wire.relation("id"), wire.rows("1")),
        wire.rollback_prepared(7, 0x300, 0x500),
    )
    assert [type(event) for event in events] == [RelationSeen]
    assert assembler.oldest_prepared is None


def test_an_empty_prepared_transaction_begins_and_commits(assembler: Assembler) -> None:
    """The server sends transactions that changed no published table."""
    events = wire.feed(assembler, *prepared(7, 0x300), wire.commit_prepared(7, 0x500))
    assert events == [TransactionBegun(_info(7, 0x500)), TransactionCommitted(_info(7, 0x500), 0x508)]


def test_two_leave_in_the_order_of_their_decisions_among_others(assembler: Assembler) -> None:
    events = wire.feed(
        assembler,
        *prepared(7, 0x300, wire.relation("id"), wire.rows("7"), gid="a"),
        *prepared(8, 0x320, wire.rows("8"), gid="b"),
        wire.begin(9, 0x340),
        wire.rows("9"),
        wire.commit(0x340),
        wire.commit_prepared(8, 0x400, "b"),
        wire.commit_prepared(7, 0x420, "a"),
    )
    assert _committed(events) == [(9, 0x340), (8, 0x400), (7, 0x420)]
    assert wire.batches(events) == [wire.rows("9"), wire.rows("8"), wire.rows("7")]


# --- streamed -----------------------------------------------------------------------------------------------


def test_a_streamed_transaction_is_prepared_from_stream_prepare_on(assembler: Assembler) -> None:
    first, second = wire.rows("1", xid=7), wire.rows("2", xid=7)
    oldest_prepared = wire.feed(
        assembler,
        *segment(7, wire.origin("b"), wire.relation("id", xid=7), first),
        *segment(7, wire.rows("aborted", xid=71), second, first=False),
        wire.stream_abort(7, 71),
        wire.stream_prepare(7, 0x300),
    )
    assert (oldest_prepared, assembler.open_streams) == ([], 0)
    assert assembler.oldest_prepared is not None
    info = _info(7, 0x500, origin="b")
    assert wire.feed(assembler, wire.commit_prepared(7, 0x500)) == [
        TransactionBegun(info),
        RelationSeen(wire.relation_model("id"), 0),
        Rows(first),
        Rows(second),
        TransactionCommitted(info, 0x508),
    ]


def test_the_subtransactions_of_a_streamed_one_are_asked_for_at_its_prepare(assembler: Assembler) -> None:
    """The server does not report each rolled back subtransaction."""
    wire.feed(assembler, *segment(7, wire.rows("1", xid=7), wire.rows("2", xid=71)))
    assert assembler.subtransactions_ended_by(wire.stream_prepare(7, 0x300)) == {71}


def test_streams_and_prepared_transactions_interleave(assembler: Assembler) -> None:
    """F28: no stream segment lies between a Begin Prepare and its Prepare."""
    events = wire.feed(
        assembler,
        *segment(7, wire.relation("id", xid=7), wire.rows("7a", xid=7)),
        *prepared(8, 0x200, wire.relation("id"), wire.rows("8"), gid="eight"),
        *segment(7, wire.rows("7b", xid=7), first=False),
        wire.stream_prepare(7, 0x300, "seven"),
        *segment(9, wire.relation("id", xid=9), wire.rows("9", xid=9)),
        wire.commit_prepared(8, 0x400, "eight"),
        wire.stream_commit(9, 0x420),
        wire.commit_prepared(7, 0x440, "seven"),
    )
    assert _committed(events) == [(8, 0x400), (9, 0x420), (7, 0x440)]
    expected = [wire.rows("8"), wire.rows("9", xid=9), *(wire.rows(v, xid=7) for v in ("7a", "7b"))]
    assert wire.batches(events) == expected


def test_a_stream_may_follow_under_the_xid_of_a_prepared_one(assembler: Assembler) -> None:
    """xids may wrap around while a transaction stays prepared."""
    events = wire.feed(
        assembler,
        *segment(7, wire.rows("old", xid=7)),
        wire.stream_prepare(7, 0x300),
        *segment(7, wire.rows("new", xid=7)),
        wire.stream_commit(7, 0x400),
        wire.commit_prepared(7, 0x500),
    )
    assert wire.batches(events) == [wire.rows("new", xid=7), wire.rows("old", xid=7)]


def test_a_stream_prepare_without_a_segment_is_out_of_order(assembler: Assembler) -> None:
    with pytest.raises(MessageOutOfOrder, match="Stream Prepare"):
        wire.feed(assembler, wire.stream_prepare(7, 0x300))


# --- gids ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_gid_is_used_again(assembler: Assembler, is_committed: bool) -> None:
    """F35."""
    wire.feed(assembler, *prepared(7, 0x300, wire.relation("id"), wire.rows("first")))
    end = wire.commit_prepared(7, 0x320) if is_committed else wire.rollback_prepared(7, 0x300, 0x320)
    wire.feed(assembler, end)
    events = wire.feed(assembler, *prepared(8, 0x340, wire.rows("second")), wire.commit_prepared(8, 0x400))
    assert wire.batches(events) == [wire.rows("second")]
    assert _committed(events) == [(8, 0x400)]


def test_a_gid_that_is_prepared_again_undecided_is_an_error(assembler: Assembler) -> None:
    """The server has one prepared transaction per gid, so a COMMIT or ROLLBACK PREPARED is missing."""
    with pytest.raises(ProtocolError, match="undecided_xid=7"):
        wire.feed(assembler, *prepared(7, 0x300), *prepared(8, 0x400))


@pytest.mark.parametrize("known", [(), prepared(7, 0x300), prepared(8, 0x300, gid="other")])
def test_a_commit_of_rows_that_did_not_come_is_a_loss(assembler: Assembler, known: list[RowBatch]) -> None:
    """F34."""
    wire.feed(assembler, *known)
    with pytest.raises(PreparedMissing, match="CDCD-PREPARED-MISSING") as caught:
        wire.feed(assembler, wire.commit_prepared(8, 0x500))
    assert caught.value.retry is Retry.OPERATOR
    assert "commit_lsn=0/500" in str(caught.value)


def test_a_commit_that_was_written_before_the_session_is_no_loss() -> None:
    """F4: the session began after its PREPARE."""
    assembler = Assembler(3, two_phase=True, written_commit_lsn=0x500)
    assert wire.feed(assembler, wire.commit_prepared(7, 0x500)) == []
    with pytest.raises(PreparedMissing):
        wire.feed(assembler, wire.commit_prepared(8, 0x501))


def _before(*undecided: tuple[int, str], until_lsn: int = 0) -> Assembler:
    return Assembler(3, two_phase=True, prepared_before=PreparedBefore(until_lsn, frozenset(undecided)))


def test_a_commit_of_what_had_no_rows_is_nothing() -> None:
    """PostgreSQL 15 to 17 send only Commit Prepared for a transaction that has only locked rows."""
    assembler = _before((8, "gid"))
    assert wire.feed(assembler, wire.commit_prepared(7, 0x500)) == []
    with pytest.raises(PreparedMissing):
        wire.feed(assembler, wire.commit_prepared(8, 0x500))


def test_what_was_decided_before_anybody_looked_may_be_lost() -> None:
    with pytest.raises(PreparedMissing):
        wire.feed(_before(until_lsn=0x501), wire.commit_prepared(7, 0x500))
    assert wire.feed(_before(until_lsn=0x500), wire.commit_prepared(7, 0x500)) == []


@pytest.mark.parametrize(
    "items",
    [
        pytest.param([wire.rollback_prepared(7, 0x300, 0x500)], id="rolled back"),
        pytest.param(prepared(7, 0x300), id="sent whole"),
        pytest.param([wire.prepare(7, 0x300)], id="sent as what changed nothing"),
    ],
)
def test_what_cannot_be_lost_any_more_is_known(items: list[Item]) -> None:
    assembler = _before((7, "gid"), (7, "of an earlier wrap"), (8, "other"))
    wire.feed(assembler, *items)
    assert assembler.prepared_before.undecided == {(7, "of an earlier wrap"), (8, "other")}


def test_a_loss_stays_known_after_the_halt() -> None:
    """A halt must not clear the state: the next session must halt as well."""
    assembler = _before((7, "gid"))
    with pytest.raises(PreparedMissing):
        wire.feed(assembler, wire.commit_prepared(7, 0x500))
    assert assembler.prepared_before.undecided == {(7, "gid")}


def test_a_prepare_without_its_begin_holds_nothing_but_the_position(assembler: Assembler) -> None:
    """PostgreSQL 18 sends only Prepare and Commit Prepared of an empty transaction."""
    wire.feed(assembler, wire.prepare(7, 0x300))
    assert assembler.oldest_prepared is not None
    assert assembler.oldest_prepared.oldest_lsn == 0x300
    assert _committed(wire.feed(assembler, wire.commit_prepared(7, 0x500))) == [(7, 0x500)]
    assert assembler.oldest_prepared is None


def test_a_rollback_of_what_did_not_come_is_nothing(assembler: Assembler) -> None:
    """F34."""
    wire.feed(assembler, *prepared(7, 0x300))
    assert wire.feed(assembler, wire.rollback_prepared(9, 0x200, 0x400, "unknown")) == []
    assert (
        wire.feed(assembler, wire.rollback_prepared(6, 0x100, 0x400)) == []
    )  # an earlier one of the same gid
    assert assembler.oldest_prepared is not None


def test_a_new_session_has_forgotten_what_was_prepared(assembler: Assembler) -> None:
    """F33: the server sends the prepared transaction again."""
    wire.feed(assembler, *prepared(7, 0x300))
    again = Assembler(4, two_phase=True)
    with pytest.raises(PreparedMissing):
        wire.feed(again, wire.commit_prepared(7, 0x500))


def test_a_prepare_ends_the_transaction_of_its_begin(assembler: Assembler) -> None:
    with pytest.raises(ProtocolError, match="begin_xid=7 prepare_xid=8"):
        wire.feed(assembler, wire.begin_prepare(7, 0x300), wire.prepare(8, 0x300))


# --- the position held back ---------------------------------------------------------------------------------


def test_the_oldest_undecided_prepare_is_known(assembler: Assembler) -> None:
    """F33; a transaction prepared before two_phase was enabled arrives after younger ones (F34)."""
    seen = []
    for items in (
        prepared(7, 0x300, gid="a"),
        prepared(8, 0x320, gid="b"),
        prepared(6, 0x100, gid="old"),
        [wire.commit_prepared(6, 0x340, "old")],
        [wire.commit_prepared(7, 0x360, "a")],
        [wire.rollback_prepared(8, 0x320, 0x380, "b")],
    ):
        wire.feed(assembler, *items)
        oldest_prepared = assembler.oldest_prepared
        seen.append(
            None
            if oldest_prepared is None
            else (oldest_prepared.count, oldest_prepared.oldest_lsn, oldest_prepared.oldest_pg_us)
        )
    assert seen == [
        (1, 0x300, 0x300 * 1000),
        (2, 0x300, 0x300 * 1000),
        (3, 0x100, 0x100 * 1000),
        (2, 0x300, 0x300 * 1000),
        (1, 0x320, 0x320 * 1000),
        None,
    ]


def test_a_transaction_is_open_from_begin_prepare_to_prepare_only(assembler: Assembler) -> None:
    """F11: a keepalive in between confirms nothing."""
    seen = []
    for item in (*prepared(7, 0x300, wire.relation("id")), wire.commit_prepared(7, 0x500)):
        wire.feed(assembler, item)
        seen.append(assembler.in_transaction)
    assert seen == [True, True, False, False]


def test_what_is_decided_gives_its_memory_back() -> None:
    stores: list[MemoryStore] = []

    class Noted(MemoryStore):
        __slots__ = ("is_discarded",)

        def __init__(self) -> None:
            super().__init__()
            self.is_discarded = False
            stores.append(self)

        def discard(self) -> None:
            self.is_discarded = True
            super().discard()

    assembler = Assembler(4, two_phase=True, new_store=Noted)
    wire.feed(assembler, *prepared(7, 0x300, gid="a"), *prepared(8, 0x320, gid="b"))
    wire.feed(assembler, *segment(9), wire.stream_prepare(9, 0x330, "c"), *prepared(10, 0x340, gid="d"))
    wire.feed(assembler, wire.commit_prepared(7, 0x400, "a"), wire.rollback_prepared(8, 0x320, 0x420, "b"))
    wire.feed(assembler, wire.commit_prepared(9, 0x440, "c"))
    assert [store.is_discarded for store in stores] == [True, True, True, False]


# --- relations ----------------------------------------------------------------------------------------------


def test_rows_are_read_as_described_when_they_were_sent(assembler: Assembler) -> None:
    """A column list may change between PREPARE and COMMIT PREPARED; later rows use the new one."""
    narrow, wide = wire.relation_model("id"), wire.relation_model("id", "more")
    events = wire.feed(
        assembler,
        wire.begin(5, 0x100),
        wire.relation("id"),
        wire.rows("plain"),
        wire.commit(0x100),
        *prepared(7, 0x300, wire.rows("prepared")),
        wire.begin(8, 0x340),
        wire.relation("id", "more"),
        wire.rows("wide"),
        wire.commit(0x340),
        wire.commit_prepared(7, 0x400),
        wire.begin(9, 0x420),
        wire.rows("wide again"),
        wire.commit(0x420),
    )
    assert _as_rows_are_read(events) == [
        (wire.rows("plain"), narrow),
        (wire.rows("wide"), wide),
        (wire.rows("prepared"), narrow),
        (wire.rows("wide again"), wide),
    ]


def test_a_relation_described_while_preparing_holds_for_others_at_once(assembler: Assembler) -> None:
    """Outside of streams the server sends it once per session, even if the transaction is rolled back."""
    events = wire.feed(
        assembler,
        *prepared(7, 0x300, wire.relation("id"), wire.rows("prepared")),
        wire.begin(8, 0x340),
        wire.rows("other"),
        wire.truncate(wire.ITEMS_RELID),
        wire.commit(0x340),
        wire.rollback_prepared(7, 0x300, 0x400),
        wire.begin(9, 0x420),
        wire.truncate(wire.ITEMS_RELID),
    )
    assert _as_rows_are_read(events) == [(wire.rows("other"), wire.relation_model("id"))]
    assert sum(isinstance(event, Truncated) for event in events) == 2


def test_an_unchanged_description_is_not_repeated_at_the_commit(assembler: Assembler) -> None:
    wire.feed(assembler, wire.begin(5, 1), wire.relation("id"), wire.commit(1))
    events = wire.feed(assembler, *prepared(7, 0x300, wire.rows("1")), wire.commit_prepared(7, 0x400))
    assert wire.relations(events) == []


@pytest.mark.parametrize("item", [wire.rows("1"), wire.truncate(wire.ITEMS_RELID)])
def test_an_undescribed_relation_is_an_error_at_its_place(assembler: Assembler, item: RowBatch) -> None:
    """F43."""
    with pytest.raises(RelationUnknown):
        wire.feed(assembler, wire.begin_prepare(7, 0x300), item)


def test_rows_with_an_xid_do_not_belong_to_a_prepared_transaction(assembler: Assembler) -> None:
    with pytest.raises(MessageOutOfOrder, match="in a prepared transaction: it carries the xid"):
        wire.feed(assembler, wire.begin_prepare(7, 0x300), wire.rows("1", xid=7))
