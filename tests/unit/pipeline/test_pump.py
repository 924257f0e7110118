"""Items become chunks: order, commit positions, sequence numbers, replays. With real assembler and plans."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from cdcd.errors import MessageOutOfOrder, RelationUnknown, SourceUnavailable
from cdcd.model import Item, PreparedBefore
from cdcd.pipeline import pump
from tests.unit.pipeline.session_items import (
    RELID,
    Flow,
    begin,
    commit,
    commit_prepared,
    inserts,
    keepalive,
    key_change,
    message,
    prepared,
    relation,
    rollback_prepared,
    stream_commit,
    streamed,
    truncate,
)

TRANSACTION: list[Item] = [
    begin(100),
    relation(),
    inserts("a", "b"),
    key_change("a", "c"),
    truncate(),
    message(90, transactional=True),
    inserts("d"),
    commit(100),
]


async def test_a_transaction_becomes_chunks_of_which_the_last_holds_its_commit_position() -> None:
    flow = await Flow().feed(begin(100), relation(), inserts("a", "b"), inserts("c"), commit(100))
    assert [len(chunk.records) for chunk in flow.chunks] == [2, 1, 0]
    assert [chunk.commit_position is not None for chunk in flow.chunks] == [False, False, True]
    (commit_position,) = flow.commit_positions
    # F2: exactly the end LSN of the Commit message
    assert (commit_position.commit_lsn, commit_position.end_lsn, commit_position.transactions) == (
        100,
        108,
        1,
    )
    assert flow.tally.seen == [
        ("began",),
        ("relation", "public.items"),
        ("run", 2),
        ("run", 1),
        ("ended", 108, False),
    ]


async def test_rows_are_handed_on_before_their_commit_arrives() -> None:
    flow = await Flow().feed(begin(100), relation(), inserts("a"))
    assert len(flow.records) == 1
    assert flow.commit_positions == []


async def test_an_empty_transaction_is_a_commit_position_without_records() -> None:
    """F7: if all its changes were filtered out, its end counts as written."""
    flow = await Flow().feed(begin(100), commit(100))
    assert flow.records == []
    assert [(one.commit_lsn, one.end_lsn) for one in flow.commit_positions] == [(100, 108)]
    assert flow.tally.seen[-1] == ("ended", 108, True)


async def test_adjacent_transactions_are_two() -> None:
    """F1: the next commit may begin exactly where the last one ended."""
    flow = await Flow().feed(begin(100), relation(), inserts("a"), commit(100))
    await flow.feed(begin(108), inserts("b"), commit(108))
    assert flow.changes() == [("c", 100, 1), ("c", 108, 1)]


# --- numbering ---


async def test_every_change_has_its_number_and_a_replay_gives_the_same() -> None:
    """F5, F64: row, row, delete and create of a key change, truncate (3 partitions), message, row."""
    first, again = await Flow().feed(*TRANSACTION), await Flow().feed(*TRANSACTION)
    assert [change[0] + str(change[2]) for change in first.changes()] == [
        "c1", "c2", "d3", "c4", "t5", "t5", "t5", "c7",
    ]  # fmt: skip
    (in_between,) = [first.value(r) for r in first.records if r.topic == "shop.message"]
    assert (in_between["tx_seq"], in_between["commit_lsn"]) == (6, 100)
    assert first.records == again.records


async def test_the_numbers_do_not_depend_on_how_rows_were_cut_into_runs() -> None:
    one = await Flow().feed(begin(100), relation(), inserts("a", "b", "c"), commit(100))
    cut = await Flow().feed(begin(100), relation(), inserts("a"), inserts("b", "c"), commit(100))
    assert one.records == cut.records


async def test_a_streamed_transaction_has_the_numbers_of_a_plain_one() -> None:
    """F27: the same transaction may come either way."""
    plain = await Flow().feed(begin(100), relation(), inserts("a", "b"), commit(100))
    in_stream = [relation(xid=7), inserts("a", "b", xid=7)]
    stream = await Flow().feed(*streamed(7, 100, *in_stream))
    assert stream.records == plain.records
    assert stream.commit_positions == plain.commit_positions


# --- replays (F4) ---


async def test_a_written_transaction_is_dropped_and_its_relations_are_read() -> None:
    """F4, F43: the server describes a relation once; the next transaction relies on it."""
    flow = Flow(start_lsn=108, written_commit_lsn=100)
    await flow.feed(begin(100), relation("id", "note"), inserts(("a", "x")), commit(100))
    assert (flow.records, flow.commit_positions) == ([], [])
    assert flow.tally.seen == [("relation", "public.items"), ("duplicates", 1)]
    await flow.feed(begin(108), inserts(("b", "y")), commit(108))
    assert flow.changes() == [("c", 108, 1)]


async def test_a_written_streamed_transaction_is_dropped_and_its_relations_are_read() -> None:
    flow = Flow(start_lsn=108, written_commit_lsn=100)
    await flow.feed(*streamed(7, 100, relation(xid=7), inserts("a", xid=7)))
    assert flow.records == []
    await flow.feed(begin(108), inserts("b"), commit(108))
    assert flow.changes() == [("c", 108, 1)]


@pytest.mark.parametrize("inside", [truncate(), message(90, transactional=True)])
async def test_nothing_else_of_a_written_transaction_comes_again(inside: Item) -> None:
    flow = Flow(start_lsn=108, written_commit_lsn=100)
    await flow.feed(begin(100), relation(), inside, commit(100))
    assert flow.chunks == []


async def test_a_keepalive_after_a_dropped_transaction_does_not_move_the_position_back() -> None:
    flow = Flow(start_lsn=500, written_commit_lsn=400)
    await flow.feed(begin(100), commit(100), keepalive(108))
    assert [(one.commit_lsn, one.end_lsn) for one, _ in flow.idles] == [(400, 500)]


# --- keepalives (F6, F11) ---


async def test_a_keepalive_between_transactions_is_an_idle_position() -> None:
    flow = await Flow().feed(begin(100), commit(100), keepalive(900), keepalive(950, reply_requested=True))
    assert [(one.commit_lsn, one.end_lsn, one.transactions, urgent) for one, urgent in flow.idles] == [
        (100, 900, 0, False),
        (100, 950, 0, True),
    ]


async def test_before_any_transaction_a_position_has_the_time_of_the_last_that_was_written() -> None:
    """A server that decodes WAL from an hour ago sends keepalives from there: cdcd is not up to date."""
    flow = await Flow(written_commit_lsn=10, written_commit_us=1_234).feed(keepalive(500))
    assert [commit_position.commit_us for commit_position, _ in flow.idles] == [1_234]


async def test_a_keepalive_inside_a_transaction_moves_nothing() -> None:
    """F6, F71."""
    flow = await Flow().feed(
        begin(100), relation(), keepalive(900), inserts("a"), keepalive(950), commit(100)
    )
    assert flow.idles == []
    assert [one.end_lsn for one in flow.commit_positions] == [108]


async def test_a_keepalive_inside_a_dropped_transaction_moves_nothing() -> None:
    flow = Flow(start_lsn=108, written_commit_lsn=100)
    await flow.feed(begin(100), keepalive(900), commit(100))
    assert flow.idles == []


async def test_open_streams_do_not_forbid_a_keepalives_position() -> None:
    """F11: the server retains the WAL of a running transaction."""
    first, *rest = streamed(7, 1000, relation(xid=7), inserts("a", xid=7))
    flow = await Flow().feed(first, *rest[:-1], keepalive(900))
    assert [one.end_lsn for one, _ in flow.idles] == [900]
    assert flow.records == []
    await flow.feed(stream_commit(7, 1000))
    assert [one.end_lsn for one in flow.commit_positions] == [1008]


# --- logical messages ---


async def test_a_message_outside_a_transaction_is_durable_by_itself() -> None:
    flow = await Flow().feed(message(300, transactional=False))
    (chunk,) = flow.chunks
    assert chunk.commit_position is not None
    assert (chunk.commit_position.end_lsn, chunk.commit_position.transactions) == (300, 0)
    value = flow.value(chunk.records[0])
    assert (value["lsn"], value["transactional"], value["tx_seq"]) == (300, False, None)


async def test_a_commit_that_begins_where_a_message_ends_is_not_a_duplicate() -> None:
    """F1: `pg_logical_emit_message(false, ...)` as the last statement of a transaction that changed rows."""
    flow = await Flow().feed(
        message(300, transactional=False), begin(300), relation(), inserts("a"), commit(300)
    )
    assert flow.changes() == [("c", 300, 1)]
    (message_position, row_position) = flow.commit_positions
    resumed = Flow(start_lsn=message_position.end_lsn, written_commit_lsn=message_position.commit_lsn)
    await resumed.feed(begin(300), relation(), inserts("a"), commit(300))
    assert resumed.changes() == [("c", 300, 1)]
    assert row_position.end_lsn == 308


async def test_a_message_that_was_written_is_dropped_on_replay() -> None:
    flow = await Flow().feed(message(300, transactional=False))
    (commit_position,) = flow.commit_positions
    again = Flow(start_lsn=commit_position.end_lsn, written_commit_lsn=commit_position.commit_lsn)
    await again.feed(message(300, transactional=False))
    assert again.chunks == []
    await again.feed(message(316, transactional=False))
    assert len(again.chunks) == 1


@pytest.mark.parametrize("prefix", ["cdcd.heartbeat", "cdcd-verify"])
async def test_an_own_message_is_no_record_and_the_next_keepalive_passes_it(prefix: str) -> None:
    """F12: it needs no topic of messages, which may not exist."""
    own = message(300, transactional=False, prefix=prefix, content=b"")
    flow = await Flow().feed(own, keepalive(308))
    assert flow.chunks == []
    assert flow.idles[-1][0].end_lsn == 308


async def test_the_position_after_a_message_of_a_comparison_is_confirmed_at_once() -> None:
    """The command waits for it at each table; an idle position is written every ten seconds otherwise."""
    comparing = message(300, transactional=False, prefix="cdcd-verify", content=b"")
    beating = message(400, transactional=False, prefix="cdcd.heartbeat", content=b"")
    flow = await Flow().feed(comparing, keepalive(350), beating, keepalive(450))
    assert [(one.end_lsn, is_urgent) for one, is_urgent in flow.idles] == [
        (300, True),
        (350, False),
        (450, False),
    ]


async def test_an_own_message_in_a_transaction_is_no_record() -> None:
    own = message(90, transactional=True, prefix="cdcd.flush", content=b"")
    flow = await Flow().feed(begin(100), own, commit(100))
    assert [len(chunk.records) for chunk in flow.chunks] == [0]


@pytest.mark.parametrize(
    ("prefix", "content", "transactional"),
    [("cdcd-verify", b"text", False), ("cdcd-verify", b"", True), ("cdcd.flush", b"", False)],
)
async def test_a_message_of_a_user_is_a_record_also_with_a_prefix_of_cdcd(
    prefix: str, content: bytes, transactional: bool
) -> None:
    one = message(90, transactional=transactional, prefix=prefix, content=content)
    flow = await Flow().feed(*([begin(100), one, commit(100)] if transactional else [one]))
    (record,) = [record for chunk in flow.chunks for record in chunk.records]
    assert flow.value(record)["prefix"] == prefix


# --- prepared transactions: the written and the confirmed position differ (F33) ---

OTHER: list[Item] = [begin(200), inserts("o"), commit(200)]


def _positions(flow: Flow) -> list[tuple[int, int, int]]:
    return [(one.commit_lsn, one.end_lsn, one.covered_lsn) for one in flow.commit_positions]


async def test_nothing_behind_an_undecided_prepare_is_confirmed() -> None:
    flow = await Flow().feed(begin(100), relation(), inserts("a"), commit(100))
    await flow.feed(*prepared(7, 150, inserts("p")), *OTHER, keepalive(250))
    assert flow.changes() == [("c", 100, 1), ("c", 200, 1)]
    assert _positions(flow) == [(100, 108, 108), (200, 150, 208)]
    assert [(one.commit_lsn, one.end_lsn) for one, _ in flow.idles] == [(200, 150)]
    await flow.feed(commit_prepared(7, 300))
    assert flow.changes()[2:] == [("c", 300, 1)]
    assert _positions(flow)[2:] == [(300, 308, 308)]


async def test_a_rollback_lets_the_next_keepalive_go_on() -> None:
    flow = await Flow().feed(*prepared(7, 150, relation(), inserts("p")), keepalive(250))
    await flow.feed(rollback_prepared(7, 150, 300), keepalive(350))
    assert flow.records == []
    assert [one.end_lsn for one, _ in flow.idles] == [150, 350]


async def test_of_two_the_older_holds_until_it_is_decided() -> None:
    flow = await Flow().feed(
        *prepared(7, 150, relation(), inserts("old"), gid="a"), *prepared(8, 170, inserts("young"), gid="b")
    )
    await flow.feed(commit_prepared(8, 300, "b"), commit_prepared(7, 320, "a"))
    assert _positions(flow) == [(300, 150, 308), (320, 328, 328)]


async def test_each_commit_position_says_what_may_be_lost_still() -> None:
    """F33: transactions whose decision is passed, or that were sent completely, are no longer listed."""
    before = PreparedBefore(205, frozenset({(6, "rolled back"), (7, "gid"), (8, "lost")}))
    flow = Flow(prepared_before=before)
    await flow.feed(begin(100), relation(), inserts("a"), commit(100), *prepared(7, 150))
    await flow.feed(rollback_prepared(6, 50, 190, "rolled back"), *OTHER)
    await flow.feed(commit_prepared(7, 300), keepalive(400))
    last = PreparedBefore(0, frozenset({(8, "lost")}))
    listed = [one.prepared_before for one in flow.commit_positions]
    assert listed == [before, PreparedBefore(205, last.undecided), last]
    assert [one.prepared_before for one, _ in flow.idles] == [last]


async def test_a_restart_below_what_was_written_repeats_nothing_and_loses_nothing() -> None:
    """F4, F33: everything from the PREPARE on is sent again; transactions up to the commit LSN are dropped."""
    wire = [
        *prepared(7, 150, relation(), inserts("p")),
        *prepared(8, 170, inserts("done"), gid="done"),
        *OTHER,
        commit_prepared(8, 220, "done"),
    ]
    flow = await Flow().feed(*wire)
    last = flow.commit_positions[-1]
    assert (last.commit_lsn, last.end_lsn) == (220, 150)
    again = Flow(start_lsn=last.end_lsn, written_commit_lsn=last.commit_lsn)
    await again.feed(*wire, keepalive(260))
    assert again.records == []
    assert [(one.commit_lsn, one.end_lsn) for one, _ in again.idles] == [(220, 150)]
    await again.feed(commit_prepared(7, 300), begin(400), inserts("next"), commit(400))
    assert again.changes() == [("c", 300, 1), ("c", 400, 1)]
    assert _positions(again) == [(300, 308, 308), (400, 408, 408)]


async def test_what_was_prepared_before_two_phase_takes_no_position_back() -> None:
    """F34: the server sends all of it before its commit, with a PREPARE below the confirmed position."""
    flow = await Flow(start_lsn=150).feed(
        *prepared(7, 90, relation(), inserts("p")), keepalive(160), commit_prepared(7, 300)
    )
    assert [one.end_lsn for one, _ in flow.idles] == [150]
    assert _positions(flow) == [(300, 308, 308)]


async def test_a_server_that_shuts_down_is_left_when_a_prepare_holds_its_last_position_back() -> None:
    """F13: the server requests a reply after each reply and would wait forever."""
    questions = [keepalive(250, reply_requested=True)] * 100
    await Flow().feed(*questions)  # without a PREPARE the reply will confirm the last position
    flow = await Flow().feed(*prepared(7, 150, relation(), inserts("p")))
    with pytest.raises(SourceUnavailable, match="shutting down"):
        await flow.feed(*questions)


# --- illegal messages stay errors (F31) ---


async def test_rows_of_an_undescribed_relation_are_an_error() -> None:
    with pytest.raises(RelationUnknown):
        await Flow().feed(begin(100), inserts("a"))


async def test_rows_outside_a_transaction_are_an_error() -> None:
    with pytest.raises(MessageOutOfOrder):
        await Flow().feed(inserts("a"))


@pytest.mark.parametrize("what", ["rows", "descriptions", "rows that were written before"])
async def test_a_replay_gives_way_to_the_loop(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """F14: status updates share the event loop, and a replayed transaction of any size is one item."""
    monkeypatch.setattr(pump, "TURN_US", -1)
    turns = 0

    async def other_task() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    flow = Flow(written_commit_lsn=100 if "before" in what else 0)
    one = relation(xid=7) if what == "descriptions" else inserts("a", xid=7)
    *items, commit = streamed(7, 100, relation(xid=7), *[one] * 50)
    await flow.feed(*items)
    task = asyncio.create_task(other_task())
    await flow.feed(commit)
    task.cancel()
    assert len(flow.records) == (50 if what == "rows" else 0)
    assert turns >= 50


def test_a_replay_gives_way_no_more_often_than_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock_us = iter(range(0, 10_000_000, pump.TURN_US // 4))
    monkeypatch.setattr(pump.Pump, "_clock_us", staticmethod(lambda: next(clock_us)))
    flow = Flow()
    one = relation(xid=7)
    feeding = flow.pump.feed(streamed(7, 100, *[one] * 50))
    turns = 0
    with contextlib.suppress(StopIteration):
        while True:
            feeding.send(None)
            turns += 1
    assert 50 // 6 <= turns <= 50 // 4


async def test_buffers_are_relieved_before_the_next_item() -> None:
    """F30: the budget is exceeded by one item at most, also within one read."""
    fed: list[str] = []

    class Tight:
        is_over = True

        async def relieve(self) -> None:
            fed.append("relieved")

    items: list[Item] = streamed(7, 100, relation(xid=7), inserts("a", xid=7))
    await Flow(buffers=Tight()).feed(*items)
    assert len(fed) == len(items)


@pytest.mark.parametrize("is_streamed", [False, True], ids=["plain", "streamed"])
async def test_at_the_first_row_without_a_plan_all_that_follows_is_looked_at_once(is_streamed: bool) -> None:
    """One request creates all topics; rows and descriptions are still processed in order."""
    xid = 7 if is_streamed else None
    contents: list[Item] = [
        relation("id", xid=xid),
        inserts("a", xid=xid),
        inserts("b", xid=xid),
        relation("id", "v", xid=xid),
        inserts(("c", "d"), xid=xid),
    ]
    items = streamed(7, 100, *contents) if is_streamed else [begin(100), *contents, commit(100)]
    flow = await Flow().feed(*items)
    (ahead,) = flow.plans.ahead  # no second lookahead at the second description
    assert ahead.relids == {RELID}
    assert len(ahead.described[RELID].columns) == 2
    assert [len(schemas.columns) for schemas in flow.plans.schemas] == [1, 2]
    assert len(flow.records) == 3
    assert [commit_position.end_lsn for commit_position in flow.commit_positions] == [108]
