"""Blocking calls in threads, also those whose caller no longer waits."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import Any

import pytest

from cdcd import threads
from cdcd.threads import in_thread
from tests.support.no_exception import raise_no_exception


async def test_the_error_of_an_abandoned_call_is_not_shown() -> None:
    """The event loop would log the error with its text, which may contain a row's value."""
    gc.freeze()  # the collections below need not traverse the objects of other tests
    reported: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: reported.append(context))
    may_end, has_ended = threading.Event(), asyncio.Event()

    def call() -> None:
        may_end.wait()
        loop.call_soon_threadsafe(loop.call_soon, has_ended.set)  # after the delivery of its error
        raise ValueError("a row's value")

    waiting = asyncio.ensure_future(in_thread(call))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    may_end.set()
    await has_ended.wait()
    for _ in range(100):
        await asyncio.sleep(0.001)
        gc.collect()
    assert reported == []


async def test_a_thread_that_dies_before_it_runs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault 17: a thread without memory for its first frame reports nothing."""
    started: list[object] = []
    monkeypatch.setattr("_thread.start_new_thread", lambda *args: started.append(args))
    monkeypatch.setattr(threads, "BEGINS_WITHIN_S", 0.01)
    with pytest.raises(MemoryError):
        await in_thread(gc.collect)
    assert len(started) == 1


async def test_a_thread_that_runs_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "BEGINS_WITHIN_S", 1.0)  # a busy machine begins a thread late
    may_end = threading.Event()
    waiting = asyncio.ensure_future(in_thread(may_end.wait))
    done, _ = await asyncio.wait([waiting], timeout=1.2)
    assert not done
    may_end.set()
    assert await waiting


async def test_an_object_that_is_no_exception_reaches_the_task() -> None:
    """The task would wait for ever, and a fenced daemon would not end."""
    with pytest.raises(SystemError, match="KafkaError was raised"):
        async with asyncio.timeout(30):
            await in_thread(raise_no_exception)
