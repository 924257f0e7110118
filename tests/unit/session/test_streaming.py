"""The loop of a stream with simulated parts: reading, feeding, confirming and reporting, in order."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from cdcd.ack.group import CommitPosition
from cdcd.session.streaming import Streaming


class Parts:
    """A stream of given reads; one list records the calls of all parts."""

    def __init__(self, *reads: tuple[str, bool, bool], safe_lsn: int = 0) -> None:
        """Each read: its item, whether more data is available, whether the rate is that of a backlog."""
        self.asked: list[tuple[Any, ...]] = []
        self._reads = list(reads)
        self.more = self.is_at_backlog_rate = False
        self.received_bytes = 0
        self.safe_lsn = safe_lsn
        self.is_connected = True
        self.open_streams, self.in_transaction, self.aborted = 1, True, 0
        self.oldest_prepared = None
        self.prepared_before = SimpleNamespace(undecided=frozenset())
        self.streaming = Streaming(self, self, self, self, _Status(self.asked), asyncio.Lock())  # type: ignore[arg-type]

    async def read(self) -> list[Any]:
        if not self._reads:
            await asyncio.Event().wait()
        item, self.more, self.is_at_backlog_rate = self._reads.pop(0)
        self.received_bytes += 10
        self.aborted += 1
        return [item]

    async def feed(self, items: list[Any]) -> None:
        self.asked.append(("feed", *items))

    async def pause_for_commit(self) -> None:
        self.asked.append(("pause",))

    def note_backlog(self, is_backlog: bool) -> None:
        self.asked.append(("backlog", is_backlog))

    def note_drained(self) -> None:
        self.asked.append(("drained",))

    def confirm_with(self, confirm: Any) -> None:
        self.confirm_by_writer = confirm

    def begin_at(self, commit_position: CommitPosition) -> None:
        self.asked.append(("begin", commit_position.commit_lsn))

    def queue_flush_lsn(self, lsn: int) -> None:
        self.asked.append(("flush_lsn", lsn))

    def send_status(self) -> bool:
        self.asked.append(("send",))
        return self.is_connected

    async def run(self) -> list[tuple[Any, ...]]:
        task = asyncio.create_task(self.streaming.run())
        while self._reads:
            await asyncio.sleep(0)
        for _ in range(3):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return self.asked

    def calls(self, *names: str) -> list[tuple[Any, ...]]:
        return [one for one in self.asked if one[0] in names]


class _Status:
    def __init__(self, asked: list[tuple[Any, ...]]) -> None:
        self._asked = asked

    def confirmed(self, lsn: int) -> None:
        self._asked.append(("confirmed", lsn))

    def received(self, size_bytes: int) -> None:
        self._asked.append(("received", size_bytes))

    def turned(self, items: list[Any], open_transactions: int, **_more: Any) -> None:
        self._asked.append(("turned", open_transactions))

    def aborted(self, count: int) -> None:
        self._asked.append(("aborted", count))


def test_what_is_durable_is_confirmed_at_once_and_sent_to_the_server() -> None:
    parts = Parts(safe_lsn=500)
    parts.streaming.begin(CommitPosition(400, 500, 0))
    assert parts.asked == [("flush_lsn", 500), ("send",), ("confirmed", 500), ("begin", 400)]


def test_nothing_is_confirmed_before_anything_is_durable_and_then_by_the_writer() -> None:
    """F7"""
    parts = Parts()
    parts.streaming.begin(CommitPosition(0, 0, 0))
    assert parts.calls("flush_lsn", "confirmed") == []
    parts.confirm_by_writer(700)
    assert parts.calls("flush_lsn", "send", "confirmed") == [
        ("flush_lsn", 700),
        ("send",),
        ("confirmed", 700),
    ]


def test_a_position_that_the_server_cannot_receive_any_more_is_not_shown_as_confirmed() -> None:
    """With at_least_once, a progress record is committed after the connection is lost."""
    parts = Parts()
    parts.streaming.begin(CommitPosition(0, 0, 0))
    parts.is_connected = False
    parts.confirm_by_writer(700)
    assert parts.calls("confirmed") == []


async def test_what_was_read_is_handed_on_in_its_order_and_counted_once() -> None:
    parts = Parts(("a", True, False), ("b", False, False))
    await parts.run()
    assert parts.calls("feed") == [("feed", "a"), ("feed", "b")]
    assert parts.calls("received") == [("received", 10)] * 2
    assert parts.calls("aborted") == [("aborted", 1)] * 2
    assert parts.calls("turned") == [("turned", 2)] * 2


async def test_the_bytes_are_counted_before_the_pump_may_wait_for_kafka() -> None:
    parts = Parts(("a", False, False))
    asked = await parts.run()
    assert asked.index(("received", 10)) < asked.index(("feed", "a")) < asked.index(("turned", 2))


@pytest.mark.parametrize(
    ("more", "is_backlog", "is_paused", "is_drained"),
    [(False, False, True, True), (True, False, False, False), (False, True, False, True)],
)
async def test_only_an_emptied_stream_waits_for_a_commit_under_way(
    more: bool, is_backlog: bool, is_paused: bool, is_drained: bool
) -> None:
    parts = Parts(("a", more, is_backlog))
    asked = await parts.run()
    after = asked[asked.index(("feed", "a")) :]
    assert (("pause",) in after) is is_paused
    assert (("drained",) in after) is is_drained
    assert ("backlog", is_backlog) in asked
