"""An event loop whose clock stands still while anything runs, and jumps to the next moment that anything waits for.

In: a coroutine.  Out: its result; the same steps in the same order each time, and no time that passes in waiting.
Invariant: what waits for nothing that will ever happen is an AssertionError, not a hang.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _NoFiles(selectors.SelectSelector):
    """In place of waiting for a file, the clock is put forward."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        """Nothing ever comes from outside."""
        assert timeout is not None, "everything waits and nothing will wake it"
        self.now_s += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop; its `time()` begins at 0."""

    def __init__(self) -> None:
        self._files = _NoFiles()
        self.left_behind: BaseException | None = None
        super().__init__(self._files)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """What nobody takes is a failure of the run."""
        self.left_behind = context.get("exception") or AssertionError(context["message"])

    def time(self) -> float:
        """Seconds since the loop was made."""
        return self._files.now_s


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run to the end; what was left behind is cancelled."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        result = runner.run(main)
        loop = runner.get_loop()
    if isinstance(loop, VirtualLoop) and loop.left_behind is not None:
        raise loop.left_behind
    return result
