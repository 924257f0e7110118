"""Where a session begins to read signals is recorded, and in the log if signals may have been skipped."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from cdcd.session.signal_follower import SignalFollower


class Copying:
    """The copies of a session, with what the last progress record has of the signals."""

    def __init__(self, signals_at: int) -> None:
        self.signals_at = signals_at
        self.passed: list[int] = []

    async def pass_signals(self, next_offset: int) -> None:
        self.passed.append(next_offset)


class Reader:
    """A topic without further records, whose end is at an offset."""

    def __init__(self, begins_at: int | None, end: int) -> None:
        self._begins_at, self._end = begins_at, end

    async def open(self) -> int:
        return self._end if self._begins_at is None else self._begins_at

    def __aiter__(self) -> Reader:
        return self

    async def __anext__(self) -> Any:
        raise StopAsyncIteration

    async def close(self) -> None: ...


@pytest.mark.parametrize(
    ("signals_at", "end", "passed", "skipped"),
    [
        (-1, 0, [0], []),
        (-1, 3, [3], [3]),  # they may have been meant for this daemon
        (2, 3, [], []),
    ],
)
def test_signals_before_the_first_position_are_skipped_with_a_line_in_the_log(
    signals_at: int, end: int, passed: list[int], skipped: list[int]
) -> None:
    copying: Any = Copying(signals_at)
    new_reader: Any = lambda at: Reader(at, end)  # noqa: E731
    with capture_logs() as log:
        asyncio.run(SignalFollower(copying, new_reader)._follow())
    assert copying.passed == passed
    assert [line["to_offset"] for line in log if line["event"] == "snapshot_signals_skipped"] == skipped
