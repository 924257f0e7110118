"""Run blocking calls outside the event loop, in threads that never delay the end of the process.

In: a function and its arguments.  Out: a future with its result or its exception.
Invariant: the thread is a daemon thread, so that a hanging call (a slot waiting for old transactions, F38; a broker
that does not answer) cannot prevent the process from ending. Cancelling the awaiting task leaves the thread running;
`settled` waits for the thread where the next step must not overlap with it. The exception of a call goes to the
awaiting task only: the event loop would log an exception that nobody retrieved, with its traceback and message.
"""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import sys
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
BEGINS_WITHIN_S = 30.0
"""A thread that has not begun after this time never will."""


def start_in_thread(function: Callable[..., T], *args: Any) -> asyncio.Future[T]:
    """Start `function(*args)` in a daemon thread; the future belongs to the running loop.

    A thread for which there is no memory dies before it runs any code: the future then raises MemoryError.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    future.add_done_callback(_taken_note_of)

    def deliver(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)  # type: ignore[arg-type]
        else:
            future.set_exception(error)

    has_begun = False

    def work() -> None:
        nonlocal has_begun
        has_begun = True
        result: T | None = None
        error: BaseException | None = None
        try:
            result = function(*args)
        except BaseException as caught:  # noqa: BLE001 - passed to the awaiting task
            error = caught
        except:  # noqa: E722 - C code can raise an object that is not an exception: the task would wait for ever
            error = SystemError(f"{type(sys.exc_info()[1]).__name__} was raised, which is not an exception")
        with contextlib.suppress(RuntimeError):  # the loop has ended: no task waits any more
            loop.call_soon_threadsafe(deliver, result, error)

    def look() -> None:
        if not has_begun and not future.done():
            future.set_exception(MemoryError())

    # Not `threading.Thread`: its `start` waits until the thread reports that it runs, for ever if the thread died.
    _thread.start_new_thread(work, ())
    looking = loop.call_later(BEGINS_WITHIN_S, look)
    future.add_done_callback(lambda _future: looking.cancel())
    return future


def _taken_note_of(future: asyncio.Future[T]) -> None:
    """Retrieve the exception, so that the loop does not log it if the awaiting task was cancelled before."""
    if not future.cancelled():
        future.exception()


async def in_thread(function: Callable[..., T], *args: Any) -> T:
    """Await `function(*args)` running in a daemon thread."""
    return await asyncio.shield(start_in_thread(function, *args))


async def settled(future: asyncio.Future[Any] | None) -> None:
    """Wait until a started call has ended, with a result or with an exception."""
    if future is not None and not future.done():
        await asyncio.wait([future])
