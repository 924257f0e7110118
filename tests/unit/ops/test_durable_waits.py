"""Those who wait for an LSN are answered when it is durable, and not before."""

from __future__ import annotations

import asyncio
import random

from cdcd.ops.durable_waits import DurableWaits


async def test_each_is_answered_with_its_position_and_not_before() -> None:
    waits, dice = opened(0), random.Random(1)
    wanted = [dice.randrange(1, 1000) for _ in range(500)]
    tasks = {asyncio.ensure_future(waits.wait(lsn, 60)): lsn for lsn in wanted}
    await asyncio.sleep(0)
    for reached in range(0, 1001, 50):
        waits.advanced(reached)
        await _turns()
        assert {lsn for task, lsn in tasks.items() if task.done()} == {
            lsn for lsn in wanted if lsn <= reached
        }
        assert len(waits) == sum(lsn > reached for lsn in wanted)
    assert all(task.result() for task in tasks)


async def test_a_position_that_was_reached_is_answered_at_once() -> None:
    waits = opened(100)
    assert await waits.wait(100, 0.001)
    assert not await waits.wait(101, 0.001)


async def test_nothing_is_durable_while_the_position_is_unknown() -> None:
    """Before the first position, and after a start during the initial snapshot, whose rows are missing."""
    waits = DurableWaits()
    assert not await waits.wait(0, 0.001)
    waits.begins_at(None)
    assert not await waits.wait(0, 0.001)
    waits.advanced(100)
    assert await waits.wait(50, 0.001)


async def test_nothing_is_durable_while_no_stream_is_open() -> None:
    """The server may be restored, or another one promoted: its LSNs may be below the position of the old one."""
    waits = opened(100)
    waits.ends()
    assert not await waits.wait(50, 0.001)
    waits.advanced(120)  # the last group of the stream that has ended
    assert not await waits.wait(50, 0.001)


async def test_a_source_that_was_restored_has_a_lower_position() -> None:
    waits = opened(100)
    waits.ends()
    waits.begins_at(60)
    assert not await waits.wait(100, 0.001)
    assert await waits.wait(60, 0.001)


async def test_those_that_have_given_up_take_no_memory() -> None:
    waits = opened(0)
    lasting = asyncio.ensure_future(waits.wait(1, 60))
    for _ in range(10):
        assert not any(await asyncio.gather(*(waits.wait(2, 0.001) for _ in range(50))))
    assert len(waits) == 1
    assert len(waits._waiting) < 10
    waits.advanced(1)
    assert await lasting


def opened(lsn: int) -> DurableWaits:
    waits = DurableWaits()
    waits.begins_at(lsn)
    return waits


async def _turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)
