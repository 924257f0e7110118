"""Await one result until a background task fails, or the daemon is stopped.

In: awaitables, a stop event.  Out: the result, or the error of a background task, or `StopRequested`.
Invariant: an awaitable that came too late is cancelled, and has ended before the caller continues.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class StopRequested(Exception):
    """The stop event was set before the work was done."""


async def or_stop(work: Awaitable[T], stop: asyncio.Event) -> T:
    """Await `work`; raise StopRequested, with `work` cancelled, when `stop` is set first."""
    doing = asyncio.ensure_future(work)
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait([doing, stopping], return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            raise StopRequested
        return doing.result()
    finally:
        stopping.cancel()
        await _ended(doing)


class BackgroundTasks:
    """Background tasks; the error of one of them is raised where the session waits."""

    def __init__(self, tasks: list[asyncio.Task[None]]) -> None:
        self._tasks = tasks

    async def or_failure(self, work: Awaitable[T]) -> T:
        """Await `work`, or raise the error of a background task, whichever comes first.

        A task that ends without an error is ignored; the other tasks are still watched.
        """
        doing = asyncio.ensure_future(work)
        try:
            running = self._running()
            while not doing.done():
                await asyncio.wait([doing, *running], return_when=asyncio.FIRST_COMPLETED)
                if not doing.done():
                    running = self._running()
            return doing.result()
        finally:
            await _ended(doing)

    def _running(self) -> list[asyncio.Task[None]]:
        """Return the tasks that have not ended. Raises the error of a task that failed."""
        for task in self._tasks:
            if task.done():
                task.result()
        return [task for task in self._tasks if not task.done()]


@contextlib.asynccontextmanager
async def in_background(*works: Coroutine[Any, Any, None]) -> AsyncIterator[BackgroundTasks]:
    """Run `works` in the background of the body; they are cancelled at its end."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        yield BackgroundTasks(tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled():
                task.exception()  # raised by `or_failure` already, or later than what ended the body


async def _ended(doing: asyncio.Future[T]) -> None:
    if not doing.done():
        doing.cancel()
        await asyncio.wait([doing])
    if not doing.cancelled():
        doing.exception()  # an error during the cancellation is not the error to raise
