"""The memory budget: what is spilled, when reading stops, and when the budget is exceeded. Real files on disk."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdcd.errors import SpillFull
from cdcd.pipeline.buffers import Buffers
from cdcd.spill.pool import SpillPool
from tests.unit.spill.test_store import new_pool
from tests.unit.txn import wire

BUDGET = 10_000


async def flushed() -> None:
    """Complete transactions are in Kafka."""


async def no_flush() -> None:
    raise AssertionError("unexpected flush")


def fill(pool: SpillPool, size_bytes: int) -> None:
    store = pool.new_store()
    while store.memory_bytes < size_bytes:
        store.append(wire.rows("x" * 100, xid=1))


@pytest.fixture
def roomy(tmp_path: Path) -> Iterator[SpillPool]:
    pool, _ = new_pool(tmp_path)
    yield pool
    pool.close()


def test_open_transactions_have_half_of_the_budget(roomy: SpillPool) -> None:
    buffers = Buffers(roomy, no_flush, BUDGET, lambda _: None)
    fill(roomy, BUDGET // 3)
    assert not buffers.is_over
    fill(roomy, BUDGET // 3)
    assert buffers.is_over


async def test_the_largest_go_to_disk_until_the_rest_fits(roomy: SpillPool) -> None:
    buffers = Buffers(roomy, no_flush, BUDGET, lambda _: None)
    for share in (3, 4, 5):
        fill(roomy, BUDGET // share)
    await buffers.relieve()
    assert 0 < roomy.usage.memory_bytes <= BUDGET // 2
    assert roomy.usage.disk_bytes > 0


async def test_at_the_disk_limit_complete_transactions_are_written_first_and_then_it_is_over(
    tmp_path: Path,
) -> None:
    pool, _ = new_pool(tmp_path, disk_bytes=100)
    blocked: list[bool] = []
    fill(pool, BUDGET * 2)

    async def flush() -> None:
        blocked.append(blocked == [True])

    with pytest.raises(SpillFull):
        await Buffers(pool, flush, BUDGET, blocked.append).relieve()
    assert blocked == [True, True, False]
    pool.close()


async def test_a_full_disk_that_gets_room_in_time_is_no_error(tmp_path: Path) -> None:
    pool, _ = new_pool(tmp_path)
    fill(pool, BUDGET * 2)
    private = next(tmp_path.glob("cdcd-spill-*"))
    write, refusals = pool.write, []

    def refuse_twice(segments: list[object], data: bytes) -> None:
        if len(refusals) < 2:
            refusals.append(len(data))
            raise SpillFull("no room", cause="ENOSPC")
        write(segments, data)  # type: ignore[arg-type]

    pool.write = refuse_twice  # type: ignore[method-assign, assignment]
    await asyncio.wait_for(Buffers(pool, flushed, BUDGET, lambda _: None).relieve(), 10)
    assert len(refusals) == 2
    assert len(list(private.glob("*.spill"))) == 1
    pool.close()


async def test_a_disk_that_stays_full_ends_the_session_after_its_time(tmp_path: Path) -> None:
    pool, _ = new_pool(tmp_path)
    fill(pool, BUDGET * 2)

    def refuse(segments: list[object], data: bytes) -> None:
        raise SpillFull("no room", cause="ENOSPC")

    pool.write = refuse  # type: ignore[method-assign, assignment]
    with pytest.raises(SpillFull):
        await Buffers(pool, flushed, BUDGET, lambda _: None, disk_timeout_s=0.1).relieve()
    pool.close()
