"""A batch of complete transactions gives the same result as its transactions one by one."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from cdcd.ack.group import CommitPosition
from cdcd.avro.encode import ENCODES_TRANSACTION_BATCHES
from cdcd.errors import MessageOutOfOrder, PartialTransactionMissing, RelationUnknown, UnsafeStreaming
from cdcd.model import (
    Control,
    CopyState,
    Item,
    PartPosition,
    PreparedBefore,
    RowBatch,
    TableCopyState,
    TransactionBatch,
)
from cdcd.pgoutput import messages as m
from cdcd.pipeline.table_copies import TableCopies
from cdcd.txn.transaction_batch import expand, gather
from tests.unit.pipeline.session_items import (
    RELID,
    Flow,
    begin,
    commit,
    commit_prepared,
    control,
    inserts,
    keepalive,
    key_change,
    message,
    prepared,
    relation,
    streamed,
    truncate,
)

DESCRIBED: list[Item] = [begin(100), relation(), inserts("a", "b"), commit(100)]
SMALL: list[Item] = [
    *(begin(200), inserts("c"), commit(200)),
    *(begin(300), key_change("c", "d"), commit(300)),
    *(begin(400), commit(400)),
    *(begin(500), inserts("e", "f"), commit(500)),
]


def put_together(items: list[Item]) -> list[Item]:
    found = gather(items)
    back = [
        one for item in found for one in (expand(item) if isinstance(item, TransactionBatch) else (item,))
    ]
    assert back == items
    return found


@pytest.mark.parametrize(
    ("items", "together"),
    [
        (SMALL, 1),
        ([*SMALL, keepalive(600), *SMALL[:3]], 2),
        ([begin(100), relation(), inserts("a"), commit(100)], 0),
        ([begin(100), inserts("a"), truncate(), commit(100)], 0),
        ([begin(100), inserts("a"), keepalive(100), commit(100)], 0),
        ([begin(100), inserts("a"), commit(108)], 0),
        ([*SMALL, begin(600), inserts("x")], 1),
        ([inserts("x"), commit(600), *SMALL], 1),
        (streamed(7, 100, inserts("a", xid=7)), 0),
        ([*streamed(7, 100, inserts("a", xid=7)), *SMALL], 1),
        (prepared(9, 100, inserts("a")), 0),
        ([begin(100), control(m.Origin(1, "elsewhere")), inserts("a"), commit(100)], 0),
    ],
)
def test_only_begin_rows_and_commit_are_put_together(items: list[Item], together: int) -> None:
    found = put_together(items)
    assert sum(isinstance(one, TransactionBatch) for one in found) == together


def test_a_begin_or_commit_of_another_form_is_left_as_it_is() -> None:
    first, rows, last = begin(200), inserts("c"), commit(200)
    assert isinstance(first, Control)
    assert isinstance(last, Control)
    longer = Control(first.lsn, first.payload + b"\0")
    flagged = Control(last.lsn, last.payload[:1] + b"\1" + last.payload[2:])
    for items in ([longer, rows, last], [first, rows, flagged], [first, rows, Control(last.lsn, b"C")]):
        assert gather(items) == items


def test_a_batch_knows_its_count_and_commit_lsns() -> None:
    (whole,) = gather(SMALL)
    assert isinstance(whole, TransactionBatch)
    assert whole.count == 4
    assert whole.commit_lsns == (200, 500)
    last = SMALL[-1]
    assert isinstance(last, Control)
    assert whole.last_lsn == last.lsn


async def _alike(items: list[Item], **options: Any) -> tuple[Flow, Flow]:
    one = await Flow(**options).feed(*items)
    other = await Flow(**options).feed(*put_together(items))
    assert other.records == one.records
    assert _position(other) == _position(one)
    assert sum(b.transactions for b in other.commit_positions) == sum(
        b.transactions for b in one.commit_positions
    )
    assert other.idles == one.idles
    return one, other


def _position(flow: Flow) -> CommitPosition | None:
    """Return the last commit position, without the number of transactions."""
    return replace(flow.commit_positions[-1], transactions=0) if flow.commit_positions else None


async def test_a_batch_becomes_the_same_records_and_the_same_position() -> None:
    one, other = await _alike([*DESCRIBED, *SMALL])
    if ENCODES_TRANSACTION_BATCHES:
        assert len(other.chunks) < len(one.chunks)
        # one row, a change of a key, nothing, two rows
        assert other.tally.seen[-1] == ("whole", 4, 3, 1)


async def test_what_was_written_is_dropped() -> None:
    """F4."""
    _, other = await _alike([*DESCRIBED, *SMALL], start_lsn=308, written_commit_lsn=300)
    assert Counter(name for name, *_ in other.tally.seen)["duplicates"] >= 1
    assert {commit_lsn for _, commit_lsn, _ in other.changes()} == {500}


OWN_XIDS: list[Item] = [
    *(begin(100, 100), relation(), inserts("a", "b"), commit(100)),
    *(begin(200, 200), inserts("c"), commit(200)),
    *(begin(300, 300), key_change("c", "d"), commit(300)),
    *(begin(400, 400), commit(400)),
    *(begin(500, 500), inserts("e", "f"), commit(500)),
]


async def _watched(items: list[Item], **options: Any) -> TableCopies:
    copies = TableCopies(CopyState(tables={RELID: TableCopyState("topic", after=("a",))}))
    copies.tables[RELID].copy.changed.refuse_until_visible([100, 200, 300, 400, 500, 600])
    await Flow(copies=copies, **options).feed(*items)
    return copies


def _noted(copies: TableCopies) -> tuple[Any, ...]:
    changed = copies.tables[RELID].copy.changed
    by_xid = {xid: (one.keys, one.incomplete, one.is_truncate) for xid, one in changed._by_xid.items()}
    return by_xid, changed._unsettled, changed.size_bytes, copies.tables[RELID].copy.state


@pytest.mark.parametrize("written_lsn", [0, 100, 300, 500])
async def test_the_copies_have_the_changes_of_each_transaction_that_is_not_durable(written_lsn: int) -> None:
    """F36: also those of a transaction that changed no row of the table."""
    options = {"start_lsn": written_lsn + 8, "written_commit_lsn": written_lsn} if written_lsn else {}
    one = await _watched(OWN_XIDS, **options)
    other = await _watched(put_together(OWN_XIDS), **options)
    assert _noted(other) == _noted(one)
    by_xid, unsettled, _, _ = _noted(other)
    later = [lsn for lsn in (100, 200, 300, 400, 500) if lsn > written_lsn]
    assert set(unsettled) == {100, 200, 300, 400, 500, 600} - set(later)
    assert set(by_xid) == set(later) - {400}
    if 300 in later:
        assert len(by_xid[300][0]) == 2, "both keys of a change of a key"


async def test_what_was_written_altogether_leaves_nothing() -> None:
    _, other = await _alike([*DESCRIBED, *SMALL], start_lsn=508, written_commit_lsn=500)
    assert (other.records, other.commit_positions) == ([], [])


async def test_a_relation_that_was_not_described_is_named_with_its_row() -> None:
    """F43: the same error with and without a batch."""
    errors = []
    for items in (SMALL, gather(SMALL)):
        with pytest.raises(RelationUnknown) as caught:
            await Flow().feed(*items)
        errors.append((str(caught.value), caught.value.context))
    assert errors[0] == errors[1]


async def test_a_batch_inside_a_transaction_is_out_of_order() -> None:
    """F31."""
    with pytest.raises(MessageOutOfOrder):
        await Flow().feed(begin(100), relation(), *gather(SMALL))


async def test_what_is_prepared_holds_back_the_position() -> None:
    """F33."""
    items = [*DESCRIBED, *prepared(9, 150, inserts("p")), *SMALL, commit_prepared(9, 600)]
    _, other = await _alike(items)
    assert [commit_position.end_lsn for commit_position in other.commit_positions[:-1]][-1] == 150
    assert other.commit_positions[-1].end_lsn == 608


async def test_a_part_that_is_missing_is_missed() -> None:
    for items in (SMALL, gather(SMALL)):
        with pytest.raises(PartialTransactionMissing):
            await Flow(start_lsn=140, written_commit_lsn=140, part=PartPosition(150, 2)).feed(*items)


async def test_the_rest_of_a_part_is_written_once() -> None:
    items = [
        *DESCRIBED,
        begin(500),
        inserts("e", "f", "g"),
        commit(500),
        begin(600),
        inserts("h"),
        commit(600),
    ]
    _, other = await _alike(items, start_lsn=108, written_commit_lsn=100, part=PartPosition(500, 2))
    assert other.changes() == [("c", 500, 3), ("c", 600, 1)]


async def test_earlier_rollbacks_of_a_batched_transaction_are_forgotten() -> None:
    """After a wraparound another transaction may have their xid, 7; this holds with and without a batch."""
    rolled_back = control(m.StreamAbort(7, 8))
    behind = streamed(7, 600, relation(xid=7), inserts("x", xid=7))
    for items in (SMALL, gather(SMALL)):
        flow = await Flow(refuse_unsafe_streaming=True).feed(*DESCRIBED, rolled_back, *items, *behind)
        assert flow.changes()[-1] == ("c", 600, 1)
    with pytest.raises(UnsafeStreaming):
        await Flow(refuse_unsafe_streaming=True).feed(*DESCRIBED, rolled_back, *behind)


async def test_a_batch_after_a_message_outside_of_transactions() -> None:
    await _alike([*DESCRIBED, message(150, transactional=False), *SMALL, keepalive(700)])


async def test_a_batch_across_a_position_that_another_client_confirmed() -> None:
    await _alike([*DESCRIBED, *SMALL], prepared_before=PreparedBefore(450, frozenset({(5, "gid")})))


def test_a_row_batch_alone_is_no_transaction() -> None:
    rows = inserts("a")
    assert isinstance(rows, RowBatch)
    assert gather([rows]) == [rows]
