"""A durable position counts for those who wait when the last stable offsets have passed its records.

The broker is a function here: a real one writes its markers within a millisecond or two, and cannot be asked to wait.
tests/integration/test_wait.py has a broker that cannot reach the leader of a partition.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Collection
from typing import Any

import pytest
import structlog

from cdcd.errors import SinkUnavailable
from cdcd.ops.durable_waits import DurableWaits
from cdcd.session import visible_commits
from cdcd.session.visible_commits import Place, watch_visible_commits

DEADLINE_S = 20


class Broker:
    """The last stable offsets; `asked` has the partitions of each query."""

    def __init__(self) -> None:
        self.offsets: dict[Place, int] = {}
        self.asked: list[set[Place]] = []
        self.failure: SinkUnavailable | None = None
        self.was_asked = threading.Event()

    def stable_offsets(self, places: Collection[Place]) -> dict[Place, int]:
        self.asked.append(set(places))
        self.was_asked.set()
        if self.failure is not None:
            raise self.failure
        return {place: self.offsets[place] for place in places if place in self.offsets}

    async def next_query(self) -> None:
        """Wait until a query has begun from now on."""
        self.was_asked.clear()
        assert await asyncio.to_thread(self.was_asked.wait, DEADLINE_S)


@contextlib.asynccontextmanager
async def watched(broker: Broker) -> AsyncIterator[DurableWaits]:
    waits = DurableWaits()
    waits.begins_at(100, "7", 1)
    task = asyncio.ensure_future(watch_visible_commits(waits, broker.stable_offsets))
    try:
        yield waits
        assert not task.done()
    finally:
        task.cancel()


async def test_the_answer_comes_when_every_partition_has_its_marker() -> None:
    broker = Broker()
    async with watched(broker) as waits:
        waits.written({"a": {0: 7}, "b": {2: 4}})
        waits.advanced(120)
        assert broker.asked == []
        waiter = waits.waiter(120)
        broker.offsets = {("a", 0): 8, ("b", 2): 3}
        await broker.next_query()
        await broker.next_query()
        await broker.next_query()
        assert not waiter.done()
        assert broker.asked[0] == {("a", 0), ("b", 2)}
        assert broker.asked[-1] == {("b", 2)}, "only of those that are left"
        broker.offsets["b", 2] = 5
        assert await asyncio.wait_for(waiter, DEADLINE_S) == 120


async def test_an_outage_of_kafka_is_waited_for_and_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visible_commits, "REPORTED_AFTER_S", 0.0)
    broker = Broker()
    broker.failure = SinkUnavailable("no broker answers")
    with structlog.testing.capture_logs() as lines:
        async with watched(broker) as waits:
            waits.written({"b": {1: 4}, "a": {0: 7}})
            waits.advanced(120)
            waiter = waits.waiter(110)
            for _ in range(3):
                await broker.next_query()
            assert not waiter.done()
            broker.failure, broker.offsets = None, {("a", 0): 8, ("b", 1): 4}
            assert await asyncio.wait_for(waiter, DEADLINE_S) == 120
    reported: list[Any] = [line for line in lines if line["event"] == "commit_not_visible"]
    assert [(line["topic"], line["partition"]) for line in reported] == [("a", 0)]
    assert "no broker answers" in reported[0]["error"]
