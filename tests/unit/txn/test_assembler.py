"""Transactions that are not streamed pass through; messages out of order or with an unknown relid are errors."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdcd.errors import FeatureUnsupported, MessageOutOfOrder, MessageUnknown, ProtocolError, RelationUnknown
from cdcd.model import Control, Keepalive, RowBatch, TransactionInfo
from cdcd.pgoutput import messages as m
from cdcd.pgoutput.messages import MESSAGES, ROWS, MessageFormat
from cdcd.txn.assembler import Assembler
from cdcd.txn.events import (
    LogicalMessage,
    RelationSeen,
    Rows,
    TransactionBegun,
    TransactionCommitted,
    Truncated,
    TypeSeen,
)
from cdcd.txn.states import STEPS, State
from tests.support.pgoutput_encode import encode

from . import wire


@pytest.fixture
def assembler() -> Assembler:
    return Assembler(4, two_phase=True)


def _info(xid: int, commit_lsn: int, **more: object) -> TransactionInfo:
    return TransactionInfo(xid, commit_lsn, commit_lsn * 1000, **more)  # type: ignore[arg-type]


def test_a_transaction_flows_through_in_the_order_of_the_wire(assembler: Assembler) -> None:
    first, second = wire.rows("1", "2"), wire.rows("3")
    events = wire.feed(
        assembler,
        wire.begin(7, 0x500),
        wire.pg_type(),
        wire.relation("id", namespace="app"),
        first,
        wire.message(True),
        wire.truncate(wire.ITEMS_RELID, options=3),
        second,
        wire.commit(0x500),
    )
    described = wire.relation_model("id", schema="app")
    assert events == [
        TransactionBegun(_info(7, 0x500)),
        TypeSeen(16500, "app", "mood"),
        RelationSeen(described, 0),
        Rows(first),
        LogicalMessage(True, 0x88, "p", b"c"),
        Truncated((described,), True, True, 0x77),
        Rows(second),
        TransactionCommitted(_info(7, 0x500), 0x508),
    ]


def test_rows_leave_before_the_commit_arrives(assembler: Assembler) -> None:
    wire.feed(assembler, wire.begin(7, 0x500), wire.relation("id"))
    assert wire.feed(assembler, batch := wire.rows("1")) == [Rows(batch)]


def test_an_empty_transaction_begins_and_commits(assembler: Assembler) -> None:
    """F7: an empty transaction counts too: its end may be confirmed."""
    events = wire.feed(assembler, wire.begin(7, 0x500), wire.commit(0x500))
    assert events == [TransactionBegun(_info(7, 0x500)), TransactionCommitted(_info(7, 0x500), 0x508)]


def test_the_empty_namespace_is_pg_catalog(assembler: Assembler) -> None:
    events = wire.feed(assembler, wire.begin(7, 1), wire.relation("id"), wire.pg_type())
    assert wire.relations(events) == [wire.relation_model("id", schema="pg_catalog")]


def test_each_relation_message_is_seen(assembler: Assembler) -> None:
    events = wire.feed(assembler, wire.begin(7, 1), wire.relation("id"), wire.relation("id"))
    assert len(wire.relations(events)) == 2


def test_a_keepalive_yields_nothing_anywhere(assembler: Assembler) -> None:
    keepalive = Keepalive(1, 1, True)
    for item in (wire.begin(7, 1), wire.commit(1), wire.stream_start(8), wire.stream_stop()):
        assert wire.feed(assembler, keepalive) == []
        wire.feed(assembler, item)


# --- origin -------------------------------------------------------------------------------------------------


def test_begun_carries_the_origin_that_follows_begin(assembler: Assembler) -> None:
    """F52."""
    assert wire.feed(assembler, wire.begin(7, 1), wire.origin("b", 0x42)) == []
    events = wire.feed(assembler, wire.rows("1"), wire.commit(1))
    info = _info(7, 1, origin="b", origin_lsn=0x42)
    assert events[0] == TransactionBegun(info)
    assert events[-1] == TransactionCommitted(info, 9)


def test_an_origin_without_an_lsn_has_none(assembler: Assembler) -> None:
    events = wire.feed(assembler, wire.begin(7, 1), wire.origin("b"), wire.commit(1))
    assert events[0] == TransactionBegun(_info(7, 1, origin="b"))


@pytest.mark.parametrize("between", [[], [wire.rows("1")]])
def test_later_origins_are_legal_and_change_nothing(assembler: Assembler, between: list[RowBatch]) -> None:
    items = [wire.begin(7, 1), wire.origin("b", 5), *between, wire.origin("c", 6), wire.commit(1)]
    events = wire.feed(assembler, *items)
    info = _info(7, 1, origin="b", origin_lsn=5)
    assert (events[0], events[-1]) == (TransactionBegun(info), TransactionCommitted(info, 9))


def test_an_origin_after_begun_has_left_changes_nothing(assembler: Assembler) -> None:
    events = wire.feed(assembler, wire.begin(7, 1), wire.rows("1"), wire.origin("late"), wire.commit(1))
    assert (events[0], events[-1]) == (TransactionBegun(_info(7, 1)), TransactionCommitted(_info(7, 1), 9))


def test_an_origin_does_not_reach_the_next_transaction(assembler: Assembler) -> None:
    wire.feed(assembler, wire.begin(7, 1), wire.origin("b"), wire.commit(1))
    events = wire.feed(assembler, wire.begin(8, 20), wire.commit(20))
    assert events[0] == TransactionBegun(_info(8, 20))


# --- logical messages ---------------------------------------------------------------------------------------


def test_a_non_transactional_message_comes_between_transactions(assembler: Assembler) -> None:
    events = wire.feed(assembler, wire.message(False))
    assert events == [LogicalMessage(False, 0x88, "p", b"c")]
    assert not assembler.in_transaction


def test_a_transactional_message_outside_is_out_of_order(assembler: Assembler) -> None:
    with pytest.raises(MessageOutOfOrder, match="a transactional Message outside a transaction"):
        wire.feed(assembler, wire.message(True))


@pytest.mark.parametrize(
    ("opening", "xid", "state"),
    [(wire.begin(7, 1), None, "in a transaction"), (wire.stream_start(7), 7, "in a stream segment")],
)
def test_a_non_transactional_message_inside_is_out_of_order(
    assembler: Assembler, opening: Control, xid: int | None, state: str
) -> None:
    with pytest.raises(MessageOutOfOrder, match=f"a non-transactional Message {state}"):
        wire.feed(assembler, opening, wire.message(False, xid))


# --- relations ----------------------------------------------------------------------------------------------


def test_a_truncate_of_an_undescribed_relation_is_an_error(assembler: Assembler) -> None:
    """F43."""
    wire.feed(assembler, wire.begin(7, 1), wire.relation("id"))
    with pytest.raises(RelationUnknown, match="relation 99 "):
        wire.feed(assembler, wire.truncate(wire.ITEMS_RELID, 99))


def test_a_relation_stays_known_to_later_transactions_but_not_to_a_new_session(assembler: Assembler) -> None:
    wire.feed(assembler, wire.begin(7, 1), wire.relation("id"), wire.commit(1))
    later = [wire.begin(8, 20), wire.truncate(wire.ITEMS_RELID)]
    assert isinstance(wire.feed(assembler, *later)[-1], Truncated)
    with pytest.raises(RelationUnknown):
        wire.feed(Assembler(4), *later)


# --- order --------------------------------------------------------------------------------------------------

_OPENINGS: dict[State, list[Control]] = {
    State.OUTSIDE: [],
    State.IN_TRANSACTION: [wire.begin(7, 1)],
    State.IN_STREAM: [wire.stream_start(7)],
    State.IN_PREPARED: [wire.begin_prepare(7, 1)],
}
_ILLEGAL = [(state, row) for state in _OPENINGS for row in ROWS if (state, row.type_byte) not in STEPS]


@pytest.mark.parametrize(("state", "row"), _ILLEGAL, ids=lambda one: getattr(one, "name", None))
def test_an_unlisted_pair_of_state_and_message_names_both(
    assembler: Assembler, state: State, row: MessageFormat
) -> None:
    """F31."""
    wire.feed(assembler, *_OPENINGS[state])
    with pytest.raises(MessageOutOfOrder) as caught:
        wire.feed(assembler, Control(0xABC, bytes((row.type_byte,))))
    assert row.name in str(caught.value)
    assert "0/ABC" in str(caught.value)
    if chr(row.type_byte) not in "IUD":
        assert state.value in str(caught.value)


def test_rows_outside_a_transaction_are_out_of_order(assembler: Assembler) -> None:
    with pytest.raises(MessageOutOfOrder, match="a batch of rows outside a transaction"):
        wire.feed(assembler, wire.rows("1"))


def test_rows_with_an_xid_do_not_belong_to_a_plain_transaction(assembler: Assembler) -> None:
    with pytest.raises(MessageOutOfOrder, match="in a transaction: it carries the xid"):
        wire.feed(assembler, wire.begin(7, 1), wire.rows("1", xid=7))


def test_rows_without_an_xid_do_not_belong_to_a_stream(assembler: Assembler) -> None:
    with pytest.raises(MessageOutOfOrder, match="in a stream segment: it carries no xid"):
        wire.feed(assembler, wire.stream_start(7), wire.rows("1"))


@pytest.mark.parametrize("letter", b"IUD")
@pytest.mark.parametrize("state", _OPENINGS)
def test_a_row_outside_a_run_is_an_error_everywhere(assembler: Assembler, state: State, letter: int) -> None:
    wire.feed(assembler, *_OPENINGS[state])
    with pytest.raises(MessageOutOfOrder):
        wire.feed(assembler, Control(0, bytes((letter, 0))))


def test_a_commit_ends_the_transaction_of_its_begin(assembler: Assembler) -> None:
    with pytest.raises(ProtocolError, match="begin_commit_lsn=0/500 commit_commit_lsn=0/501"):
        wire.feed(assembler, wire.begin(7, 0x500), wire.commit(0x501))


@pytest.mark.parametrize("letter", b"bKrp")
@pytest.mark.parametrize("protocol_version", [1, 4])
def test_prepared_transactions_are_refused_by_name(letter: int, protocol_version: int) -> None:
    """F33, F35: a slot with two_phase sends them even to a session that did not request them, in any version."""
    with pytest.raises(FeatureUnsupported, match=MESSAGES[letter].name):
        wire.feed(Assembler(protocol_version), Control(1, bytes((letter,)) + bytes(30)))


def test_an_unknown_protocol_version_is_refused() -> None:
    with pytest.raises(ValueError):
        Assembler(5)


def test_a_message_of_a_later_version_is_unknown_to_the_session() -> None:
    with pytest.raises(MessageUnknown, match="Stream Start does not exist in protocol version 1"):
        wire.feed(Assembler(1), wire.stream_start(7))


def test_an_error_of_a_message_says_its_lsn(assembler: Assembler) -> None:
    with pytest.raises(ProtocolError, match="lsn=0/77"):
        wire.feed(assembler, wire.begin(7, 1), wire.truncate(99))


# --- in_transaction -----------------------------------------------------------------------------------------


def test_a_transaction_is_open_from_begin_to_commit(assembler: Assembler) -> None:
    """F11: only in this state a keepalive confirms nothing; an open stream does not prevent it."""
    seen = []
    for item in (wire.begin(7, 1), wire.rows("1"), wire.commit(1), wire.stream_start(8), wire.stream_stop()):
        wire.feed(assembler, item)
        seen.append(assembler.in_transaction)
    assert seen == [True, True, False, False, False]


@given(
    st.lists(
        st.one_of(
            st.binary(max_size=40).map(lambda raw: Control(1, raw)),
            st.sampled_from(
                [
                    wire.begin(7, 1),
                    wire.commit(1),
                    wire.stream_start(8),
                    wire.stream_stop(),
                    wire.stream_commit(8, 5),
                    *wire.prepared(8, 5),
                    wire.stream_prepare(8, 5),
                    wire.commit_prepared(8, 9),
                    wire.rollback_prepared(8, 5, 9),
                    wire.rows("1"),
                    wire.rows("1", xid=8),
                    wire.relation("id"),
                    Control(1, encode(m.Origin(1, "o"), in_stream=False)),
                ]
            ),
        ),
        max_size=12,
    )
)
def test_any_items_raise_nothing_but_protocol_errors_or_unsupported(items: list[Control]) -> None:
    assembler = Assembler(4, two_phase=True)
    with contextlib.suppress(ProtocolError, FeatureUnsupported):
        wire.feed(assembler, *items)
