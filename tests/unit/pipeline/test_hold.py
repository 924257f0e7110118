"""The stream waits before the first transaction that a snapshot does not see, and nowhere else (F36)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from cdcd.model import BlockingCopyState, CopyState, Item
from cdcd.pipeline.hold import Hold
from cdcd.pipeline.table_copies import TableCopies
from cdcd.txn.transaction_batch import gather
from tests.unit.pipeline.session_items import (
    Flow,
    begin,
    commit,
    commit_prepared,
    inserts,
    keepalive,
    message,
    prepared,
    relation,
    stream_commit,
    streamed,
)


def transaction(commit_lsn: int, *rows: str) -> list[Item]:
    return [begin(commit_lsn), inserts(*rows), commit(commit_lsn)]


@asynccontextmanager
async def held(flow: Flow, lsn: int, *items: Item) -> AsyncIterator[Hold]:
    """Feed the items; yield where the pump waits, and let it go on."""
    hold = flow.pump.hold_before(lsn)
    feeding = asyncio.create_task(flow.feed(*items))
    async with asyncio.timeout(30):
        await hold.reached.wait()
        yield hold
        assert not feeding.done()
        hold.end()
        await feeding


async def begun() -> Flow:
    return await Flow().feed(begin(100), relation(), inserts("a"), commit(100))


async def test_the_stream_waits_between_the_transactions_before_and_behind_the_point() -> None:
    flow = await begun()
    async with held(flow, 300, *transaction(200, "b"), *transaction(300, "c")) as hold:
        assert flow.changes() == [("c", 100, 1), ("c", 200, 1)]
        assert (hold.position.commit_lsn, hold.position.end_lsn, hold.position.covered_lsn) == (200, 208, 208)
        assert not flow.pump.is_between_transactions
    assert flow.changes()[2:] == [("c", 300, 1)]


async def test_a_commit_just_below_the_point_is_passed_on_before() -> None:
    flow = await begun()
    async with held(flow, 300, *transaction(299, "b"), *transaction(307, "c")):
        assert flow.changes()[1:] == [("c", 299, 1)]


async def test_a_batch_of_transactions_is_divided_at_the_point() -> None:
    flow = await begun()
    items = [*transaction(200, "b"), *transaction(300, "c"), *transaction(400, "d")]
    batch = gather(items)
    assert len(batch) == 1
    async with held(flow, 300, *batch):
        assert flow.changes()[1:] == [("c", 200, 1)]
    assert flow.changes()[2:] == [("c", 300, 1), ("c", 400, 1)]


async def test_an_idle_stream_waits_once_the_server_has_sent_all_below_the_point() -> None:
    flow = await begun()
    hold = flow.pump.hold_before(300)
    await flow.feed(keepalive(299))
    assert not hold.reached.is_set()
    async with held(flow, 300, keepalive(300)) as hold:
        assert hold.position.end_lsn == 300
    await flow.feed(*transaction(300, "b"))
    assert flow.changes()[1:] == [("c", 300, 1)]


async def test_a_keepalive_inside_a_transaction_is_no_place_to_wait() -> None:
    flow = await begun()
    items = [begin(200), inserts("b"), keepalive(500), commit(200), *transaction(400, "c")]
    async with held(flow, 300, *items) as hold:
        assert flow.changes()[1:] == [("c", 200, 1)]
        assert hold.position.commit_lsn == 200


async def test_a_streamed_transaction_counts_with_its_commit() -> None:
    """Its rows were received before the point, and the snapshot does not see them."""
    flow = await begun()
    items = [*streamed(9, 400, relation(xid=9), inserts("s", xid=9))[:-1], *transaction(200, "b")]
    async with held(flow, 300, *items, stream_commit(9, 400)) as hold:
        assert flow.changes()[1:] == [("c", 200, 1)]
        assert hold.position.commit_lsn == 200
    assert flow.changes()[2:] == [("c", 400, 1)]


async def test_a_prepared_transaction_that_waits_is_not_confirmed() -> None:
    """F33: after a crash, the server would send only its COMMIT PREPARED."""
    flow = await begun()
    items = [*prepared(9, 150, inserts("p")), *transaction(200, "b"), commit_prepared(9, 400)]
    async with held(flow, 300, *items) as hold:
        assert flow.changes()[1:] == [("c", 200, 1)]
        assert hold.position.end_lsn <= 150
        assert hold.position.covered_lsn == 208
    assert flow.changes()[2:] == [("c", 400, 1)]


async def test_a_hold_that_ends_before_it_is_reached_stops_nothing() -> None:
    flow = await begun()
    hold = flow.pump.hold_before(300)
    hold.end()
    async with asyncio.timeout(30):
        await flow.feed(*transaction(200, "b"), *transaction(300, "c"), message(350, transactional=False))
    assert flow.changes()[1:] == [("c", 200, 1), ("c", 300, 1)]
    assert not hold.reached.is_set()


async def test_a_position_of_the_hold_has_the_state_of_the_copies() -> None:
    copies = TableCopies(CopyState(blocking={7: BlockingCopyState("t")}))
    flow = Flow()
    flow.pump.progress.copies = copies
    await flow.feed(begin(100), relation(), inserts("a"), commit(100))
    async with held(flow, 300, *transaction(300, "b")) as hold:
        copies.set_blocking(7, None)
        at = flow.pump.progress.with_copies(hold.position)
        assert (at.commit_lsn, at.copy) == (100, None)


@pytest.mark.parametrize("seed", range(30))
async def test_whatever_the_stream_has_the_snapshot_divides_it_by_commits(seed: int) -> None:
    """Plain, streamed and prepared transactions and keepalives, in batches or not, in drains of any size."""
    draw = random.Random(seed)
    flow = await Flow().feed(begin(100), relation(), inserts("a"), commit(100))
    items: list[Item] = []
    lsns = list(range(200, 200 + 20 * 40, 20))
    begun: list[int] = []
    for xid, lsn in enumerate(lsns, 50):
        kind = draw.choice(("plain", "plain", "streamed", "prepared", "keepalive"))
        if kind == "plain":
            items += transaction(lsn, f"{lsn}")
        elif kind == "streamed":
            items += streamed(xid, lsn, relation(xid=xid), inserts(f"{lsn}", xid=xid))
        elif kind == "prepared":
            items += prepared(xid, lsn - 10, inserts(f"{lsn}"), gid=f"{xid}")
            items.append(commit_prepared(xid, lsn, gid=f"{xid}"))
        else:
            items.append(keepalive(lsn))
            continue
        begun.append(lsn)
    if draw.random() < 0.5:
        items = gather(items)
    items.append(keepalive(2_000))
    point = draw.choice((*lsns, *(lsn + 1 for lsn in lsns)))
    hold = flow.pump.hold_before(point)

    async def feed() -> None:
        at = 0
        while at < len(items):
            size = draw.randrange(1, 20)
            await flow.feed(*items[at : at + size])
            at += size

    feeding = asyncio.create_task(feed())
    async with asyncio.timeout(30):
        await hold.reached.wait()
        assert [lsn for _, lsn, _ in flow.changes()] == [100, *(lsn for lsn in begun if lsn < point)]
        assert hold.position.commit_lsn < point
        hold.end()
        await feeding
    assert [lsn for _, lsn, _ in flow.changes()] == [100, *begun]
