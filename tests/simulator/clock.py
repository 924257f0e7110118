"""An event loop with a virtual clock: it stops while code runs, and advances to the next timer when all tasks wait.

In: a coroutine.  Out: its result; each run has the same steps in the same order, and waiting takes no real time.
Invariant: a wait for an event that never happens is an AssertionError, not a hang.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _NoFiles(selectors.SelectSelector):
    """A selector that advances the clock instead of waiting for a file."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        """Advance the clock by the timeout; there are never any file events."""
        assert timeout is not None, "all tasks wait, and there is no timer"
        self.now_s += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop; its `time()` begins at 0."""

    def __init__(self) -> None:
        self._files = _NoFiles()
        self.left_behind: BaseException | None = None
        super().__init__(self._files)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Let an unhandled exception fail the run."""
        self.left_behind = context.get("exception") or AssertionError(context["message"])

    def time(self) -> float:
        """Seconds since the loop was made."""
        return self._files.now_s


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run the coroutine to its end, and cancel the remaining tasks."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        result = runner.run(main)
        loop = runner.get_loop()
    if isinstance(loop, VirtualLoop) and loop.left_behind is not None:
        raise loop.left_behind
    return result
