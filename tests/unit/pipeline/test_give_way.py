"""A copy leaves the processors to a stream that has transactions, and does not wait on an idle one."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from cdcd.pipeline.chunk_emitter import (
    BUSY_S,
    GIVE_WAY,
    LONGEST_PAUSE_S,
    MOST_AT_ONCE,
    PAUSED_BYTES_PER_S,
    ChunkEmitter,
)

LARGE_BYTES = 1 << 40
MOST_AT_WORK = MOST_AT_ONCE + 3


@pytest.mark.parametrize(
    ("tables", "used_s", "size_bytes", "pause_s"),
    [
        (1, 0.01, LARGE_BYTES, 0.01 * GIVE_WAY),
        (2, 0.01, LARGE_BYTES, 0.02 * GIVE_WAY),
        (MOST_AT_WORK, 0.01, LARGE_BYTES, 0.01 * GIVE_WAY * MOST_AT_ONCE),
        (1, 60.0, LARGE_BYTES, LONGEST_PAUSE_S),
        (1, 60.0, PAUSED_BYTES_PER_S // 8, 0.125),  # a slow query is no work for these rows
    ],
)
def test_a_copy_pauses_in_proportion_to_its_work(
    monkeypatch: pytest.MonkeyPatch, tables: int, used_s: float, size_bytes: int, pause_s: float
) -> None:
    now = SimpleNamespace(s=1000.0)
    monkeypatch.setattr("cdcd.pipeline.chunk_emitter.time", SimpleNamespace(monotonic=lambda: now.s))
    progress = SimpleNamespace(commit_lsn=100, copies=SimpleNamespace(tables=dict.fromkeys(range(tables))))
    unused: Any = None
    pump: Any = SimpleNamespace(progress=progress)
    emitter = ChunkEmitter(pump, unused, unused, unused)

    def after_work() -> float:
        now.s += used_s
        return emitter.pause_s(used_s, size_bytes)

    assert after_work() == 0, "no transaction has come"
    progress.commit_lsn = 200
    assert after_work() == pytest.approx(pause_s)
    assert after_work() == pytest.approx(pause_s), "the next transaction has not come yet"
    now.s += BUSY_S
    assert after_work() == 0, "an idle stream"


async def test_the_stream_is_read_between_two_slices_of_a_copy_that_does_not_pause() -> None:
    pump: Any = SimpleNamespace(progress=SimpleNamespace(commit_lsn=100, copies=SimpleNamespace(tables={})))
    unused: Any = None
    emitter = ChunkEmitter(pump, unused, unused, unused)
    order: list[str] = []

    async def copy() -> None:
        for _ in range(2):
            order.append("slice")
            await emitter.give_way(0.01, 1000)

    async def stream() -> None:
        order.append("stream")

    await asyncio.gather(copy(), stream())
    assert order == ["slice", "stream", "slice"]
