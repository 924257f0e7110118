"""Those who wait for an LSN are answered when it is durable, and not before."""

from __future__ import annotations

import asyncio
import random

from cdcd.ops.durable_waits import DurableWaits, Unseen


def opened(lsn: int) -> DurableWaits:
    waits = DurableWaits()
    waits.begins_at(lsn, "7", 1)
    return waits


async def test_each_is_answered_with_its_position_and_not_before() -> None:
    waits, dice = opened(0), random.Random(1)
    wanted = [dice.randrange(1, 1000) for _ in range(500)]
    waiters = [(lsn, waits.waiter(lsn)) for lsn in wanted]
    for reached in range(0, 1001, 50):
        waits.advanced(reached)
        await asyncio.sleep(0)
        assert [lsn for lsn, one in waiters if one.done()] == [lsn for lsn in wanted if lsn <= reached]
        assert len(waits) == sum(lsn > reached for lsn in wanted)
    assert all(one.result() == -(-lsn // 50) * 50 for lsn, one in waiters), "the position of that moment"


async def test_a_position_that_was_reached_is_answered_at_once() -> None:
    waits = opened(100)
    assert waits.waiter(100).result() == 100
    assert not waits.waiter(101).done()


async def test_nothing_is_durable_while_the_position_is_unknown() -> None:
    """Before the first position, and after a start during the initial snapshot, whose rows are missing."""
    waits = DurableWaits()
    assert not waits.waiter(0).done()
    waits.begins_at(None, "7", 1)
    assert not waits.waiter(0).done()
    waits.advanced(100)
    assert waits.waiter(50).done()


async def test_nothing_is_durable_while_no_stream_is_open() -> None:
    """The server may be restored, or another one promoted: its LSNs may be below the position of the old one."""
    waits = opened(100)
    waits.ends()
    assert not waits.waiter(50).done()
    waits.advanced(120)  # the last group of the stream that has ended
    assert not waits.waiter(50).done()


async def test_a_source_that_was_restored_has_a_lower_position() -> None:
    waits = opened(100)
    assert (waits.system_identifier, waits.timeline) == ("7", 1)
    waits.ends()
    waits.begins_at(60, "7", 2)
    assert not waits.waiter(100).done()
    assert waits.waiter(60).done()
    assert waits.timeline == 2


async def test_what_readers_may_not_see_yet_is_not_answered() -> None:
    """A broker answers a commit before the markers of the transaction are in its partitions."""
    waits = opened(100)
    waits.written({"shop.public.a": {0: 7, 1: 3}})
    waits.advanced(120)
    assert waits.waiter(100).done()
    early, later = waits.waiter(110), waits.waiter(130)
    unseen = await asyncio.wait_for(waits.unseen(), 5)
    assert unseen == Unseen(120, {("shop.public.a", 0): 7, ("shop.public.a", 1): 3})
    assert (early.done(), waits.lsn) == (False, 100)
    waits.seen(unseen)
    assert (early.result(), later.done(), waits.lsn) == (120, False, 120)


async def test_nothing_is_looked_up_while_nobody_waits_for_what_is_durable() -> None:
    waits = opened(100)
    waits.written({"a": {0: 7}})
    waits.advanced(120)
    waits.waiter(130)
    looking = asyncio.ensure_future(waits.unseen())
    await asyncio.sleep(0)
    assert not looking.done()
    waits.advanced(125)
    waits.waiter(121)
    assert (await asyncio.wait_for(looking, 5)).lsn == 125


async def test_a_group_that_is_written_meanwhile_is_looked_up_next() -> None:
    waits = opened(100)
    waits.written({"a": {0: 7, 1: 1}})
    waits.advanced(120)
    first, second = waits.waiter(120), waits.waiter(140)
    unseen = await waits.unseen()
    waits.written({"a": {0: 9}})
    waits.advanced(140)
    waits.seen(unseen)
    assert (first.result(), second.done()) == (120, False)
    unseen = await asyncio.wait_for(waits.unseen(), 5)
    assert unseen == Unseen(140, {("a", 0): 9})
    waits.seen(unseen)
    assert second.result() == 140


async def test_what_was_written_before_the_stream_has_to_be_seen_too() -> None:
    """The last rows of a snapshot; not those of a producer before, whose markers the next one has waited for."""
    waits = DurableWaits()
    waits.written({"a": {0: 7}})
    waits.begins_at(100, "7", 1)
    waiter = waits.waiter(50)
    assert not waiter.done()
    waits.seen(await asyncio.wait_for(waits.unseen(), 5))
    assert waiter.done()
    waits.written({"a": {0: 9}})
    waits.ends()
    waits.forget_written()
    waits.begins_at(150, "7", 1)
    assert waits.waiter(150).done()


async def test_what_was_seen_of_an_ended_stream_answers_nobody() -> None:
    waits = opened(100)
    waits.written({"a": {0: 7}})
    waits.advanced(120)
    waiter = waits.waiter(120)
    unseen = await waits.unseen()
    waits.ends()
    waits.seen(unseen)
    assert not waiter.done()
    waits.forget_written()
    waits.begins_at(60, "7", 2)
    waits.seen(unseen)
    assert not waiter.done()
    assert waits.lsn == 60


async def test_those_that_have_given_up_take_no_memory() -> None:
    waits = opened(0)
    lasting = waits.waiter(1)
    for _ in range(10):
        for waiter in [waits.waiter(2) for _ in range(100)]:
            waiter.cancel()
        await asyncio.sleep(0)
    assert len(waits) == 1
    assert len(waits._waiting) < 200
    waits.advanced(1)
    assert lasting.result() == 1
