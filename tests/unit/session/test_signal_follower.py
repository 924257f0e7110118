"""Where a session begins to read signals is recorded, and in the log if signals may have been skipped."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from cdcd.errors import CdcdError, SinkUnavailable, TopicMissing
from cdcd.session import signal_follower
from cdcd.session.signal_follower import SignalFollower, first_signal


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


class Ends:
    """The answers about the end of a topic of signals, the last one again and again."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: int | CdcdError) -> None:
        self.asked = 0
        self._answers = answers
        monkeypatch.setattr(signal_follower, "end_of_signals", self._ask)
        monkeypatch.setattr(signal_follower, "AGAIN_S", 0.0)

    def _ask(self, _settings: Any, _topic: str) -> int:
        answer = self._answers[min(self.asked, len(self._answers) - 1)]
        self.asked += 1
        if isinstance(answer, CdcdError):
            raise answer
        return answer


def config_of(mode: str = "initial", operation_timeout_s: float = 0.0) -> Any:
    snapshot = SimpleNamespace(mode=mode, signals=SimpleNamespace(topic="signals"))
    settings = SimpleNamespace(operation_timeout_s=operation_timeout_s)
    return SimpleNamespace(snapshot=snapshot, sink_settings=lambda: settings)


def first(config: Any, signals_at: int = -1) -> tuple[int, list[str]]:
    """Return the first signal, and the events of the log."""
    stored: Any = SimpleNamespace(next_signal=signals_at)
    with capture_logs() as log:
        found = asyncio.run(first_signal(config, stored))
    return found, [line["event"] for line in log]


def test_a_topic_that_cannot_be_read_delays_a_snapshot_only_for_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Which signals are not executed then is in the log when the stream begins: `snapshot_signals_skipped`."""
    ends = Ends(monkeypatch, SinkUnavailable("the partition has no leader"))
    assert first(config_of()) == (-1, ["signals_not_read"])
    assert ends.asked == 1


def test_a_topic_whose_broker_returns_in_time_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = Ends(monkeypatch, *[SinkUnavailable("the partition has no leader")] * 3, 7)
    assert first(config_of(operation_timeout_s=3600)) == (7, ["snapshot_signals_skipped"])
    assert ends.asked == 4


def test_a_topic_that_does_not_exist_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = Ends(monkeypatch, TopicMissing("the topic of signals does not exist"))
    assert first(config_of(operation_timeout_s=3600)) == (-1, ["signals_not_read"])
    assert ends.asked == 1


@pytest.mark.parametrize(("mode", "signals_at", "found"), [("initial_only", 5, -1), ("initial", 5, 5)])
def test_a_topic_is_not_read_where_its_end_is_not_needed(
    mode: str, signals_at: int, found: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = Ends(monkeypatch, SinkUnavailable("the partition has no leader"))
    assert first(config_of(mode), signals_at) == (found, [])
    assert ends.asked == 0
