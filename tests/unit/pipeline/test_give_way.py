"""A copy leaves the processors to a stream that has transactions, and does not wait on an idle one."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from cdcd.pipeline.chunk_emitter import (
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
        (1, 60.0, PAUSED_BYTES_PER_S // 10, 0.1),  # a slow query is no work for these rows
    ],
)
def test_a_copy_pauses_in_proportion_to_its_work(
    monkeypatch: pytest.MonkeyPatch, tables: int, used_s: float, size_bytes: int, pause_s: float
) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr("cdcd.pipeline.chunk_emitter.asyncio.sleep", sleep)
    progress = SimpleNamespace(commit_lsn=100, copies=SimpleNamespace(tables=dict.fromkeys(range(tables))))
    unused: Any = None
    pump: Any = SimpleNamespace(progress=progress)
    emitter = ChunkEmitter(pump, unused, unused, unused)

    async def copy() -> None:
        await emitter.give_way(used_s, size_bytes)
        progress.commit_lsn = 200
        await emitter.give_way(used_s, size_bytes)
        await emitter.give_way(used_s, size_bytes)

    asyncio.run(copy())
    assert pauses == [0, pytest.approx(pause_s), 0], "an idle stream, one with a transaction, an idle one"
