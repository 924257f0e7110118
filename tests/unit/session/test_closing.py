"""An error while one part closes does not prevent the others from being closed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from cdcd.errors import SpillError
from cdcd.session.closing import Closing


class PartPosition:
    """A part that raises this error when it is closed."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error, self.closed = error, 0

    def close(self) -> None:
        self.closed += 1
        if self.error is not None:
            raise self.error


class Aborting(PartPosition):
    """A writer, whose `close` is a coroutine."""

    async def close(self) -> None:  # type: ignore[override]
        super().close()


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("can't start new thread"), SpillError("the folder is gone")]
)
async def test_a_part_that_fails_keeps_no_other_from_being_closed(error: Exception) -> None:
    closing = Closing(asyncio.Event(), stop_timeout_s=1.0)
    writer: Any = Aborting(error)
    spill: Any = PartPosition(error)
    sink, catalog = PartPosition(error), PartPosition()
    with capture_logs() as logged:
        await closing.abort_transaction(writer)
        await closing.clear(None, spill)
        await closing.close(sink=sink, catalog=catalog)
    assert [part.closed for part in (writer, spill, sink, catalog)] == [1, 1, 1, 1]
    assert [line["event"] for line in logged] == ["abort_failed", "spill_not_cleared", "close_failed"]
    reported = {line["error"] for line in logged}
    assert reported == {str(error) if isinstance(error, SpillError) else type(error).__name__}
