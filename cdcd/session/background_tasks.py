"""Await one thing while others may end it: a failure beside it, or the order to stop.

In: awaitables, a stop event.  Out: the result, or the error of what failed beside it, or `Stopped`.
Invariant: what was overtaken is cancelled and has ended before control goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Stopped(Exception):
    """The order to stop came first."""


async def or_stop(work: Awaitable[T], stop: asyncio.Event) -> T:
    """Await `work`; raise Stopped, with `work` cancelled, when `stop` is set first."""
    doing = asyncio.ensure_future(work)
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait([doing, stopping], return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            raise Stopped
        return doing.result()
    finally:
        stopping.cancel()
        await _ended(doing)


class BackgroundTasks:
    """Tasks that run beside the main way and whose failure ends it."""

    def __init__(self, tasks: list[asyncio.Task[None]]) -> None:
        self._tasks = tasks

    async def or_failure(self, work: Awaitable[T]) -> T:
        """Await `work`, or raise what a task beside it failed with, whichever comes first.

        A task that ends without a failure leaves the others to be heeded.
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
        """Return those that have not ended. Raises what one has failed with."""
        for task in self._tasks:
            if task.done():
                task.result()
        return [task for task in self._tasks if not task.done()]


@contextlib.asynccontextmanager
async def in_background(*works: Coroutine[Any, Any, None]) -> AsyncIterator[BackgroundTasks]:
    """Run `works` beside the body; they are cancelled at its end."""
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
        doing.exception()  # what it met while being overtaken is not what ended the way
