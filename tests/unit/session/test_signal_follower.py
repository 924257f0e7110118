"""Where a session begins to read signals is recorded, and in the log if signals may have been skipped."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from cdcd.errors import (
    CdcdError,
    KeyChanged,
    RegistryUnavailable,
    SchemaIncompatible,
    SinkAuthorization,
    SinkFenced,
    SinkUnavailable,
    SnapshotRefused,
    SnapshotStale,
    SourceSetup,
    SourceUnavailable,
    TopicMismatch,
    TopicMissing,
)
from cdcd.session import signal_follower
from cdcd.session.signal_follower import SignalFollower, first_signal
from cdcd.session.stale_tables import TRIES
from cdcd.snapshot.control import SnapshotCommand
from cdcd.snapshot.signal_reader import Moved


class Copying:
    """The copies of a session, with what the last progress record has of the signals.

    `errors`: those of the next commands.
    """

    def __init__(self, signals_at: int, *errors: CdcdError) -> None:
        self.signals_at = signals_at
        self.passed: list[int] = []
        self.executed: list[int | None] = []
        self._errors = list(errors)

    async def pass_signals(self, next_offset: int) -> None:
        self.passed.append(next_offset)

    async def execute(self, command: SnapshotCommand) -> None:
        if self._errors:
            raise self._errors.pop(0)
        self.executed.append(command.signal_offset)


class Reader:
    """A topic whose end is at an offset, with one signal at each offset of `signals`."""

    def __init__(self, begins_at: int | None, end: int, moved: Moved, signals: Sequence[int] = ()) -> None:
        self._begins_at, self._end, self._moved = begins_at, end, moved
        self._signals = iter(signals)

    async def open(self) -> int:
        if self._begins_at is None:
            await self._moved(self._end)
            return self._end
        return self._begins_at

    def __aiter__(self) -> Reader:
        return self

    async def __anext__(self) -> SnapshotCommand:
        for offset in self._signals:
            return SnapshotCommand("stop", signal_offset=offset)
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
    new_reader: Any = lambda at, moved: Reader(at, end, moved)  # noqa: E731
    with capture_logs() as log:
        asyncio.run(SignalFollower(copying, new_reader)._follow())
    assert copying.passed == passed
    assert [line["to_offset"] for line in log if line["event"] == "snapshot_signals_skipped"] == skipped


LOCKED = SourceUnavailable("the table is locked; locks on tables are held by pid 7")


@pytest.mark.parametrize(
    ("errors", "executed", "passed", "events"),
    [
        ([LOCKED, LOCKED], [5, 6], [], ["snapshot_signal_waits"] * 2),
        ([SnapshotStale("a partition was attached")], [5, 6], [], ["snapshot_signal_waits"]),
        (
            [SnapshotStale("a partition was attached")] * TRIES,
            [6],
            [6],
            [*["snapshot_signal_waits"] * (TRIES - 1), "snapshot_signal_refused"],
        ),
        ([SinkAuthorization("creating the topic")], [5, 6], [], ["snapshot_signal_waits"]),
        (
            [SinkAuthorization("creating the topic")] * TRIES,
            [6],
            [6],
            [*["snapshot_signal_waits"] * (TRIES - 1), "snapshot_signal_refused"],
        ),
        ([RegistryUnavailable("no answer")], [5, 6], [], ["snapshot_signal_waits"]),
        ([SnapshotRefused("the table does not exist")], [6], [6], ["snapshot_signal_refused"]),
        ([SourceSetup("no privilege")], [6], [6], ["snapshot_signal_refused"]),
        ([SchemaIncompatible("not compatible")], [6], [6], ["snapshot_signal_refused"]),
        ([KeyChanged("another key")], [6], [6], ["snapshot_signal_refused"]),
        ([TopicMismatch("of the table")], [6], [6], ["snapshot_signal_refused"]),
    ],
)
def test_a_signal_waits_for_what_passes_and_is_refused_for_other_reasons(
    errors: list[CdcdError],
    executed: list[int],
    passed: list[int],
    events: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A refused signal does not stop the later ones, and one that can be executed later is not lost."""
    monkeypatch.setattr(signal_follower, "RETRY_S", 0.0)
    copying: Any = Copying(5, *errors)
    new_reader: Any = lambda at, moved: Reader(at, 7, moved, (5, 6))  # noqa: E731
    with capture_logs() as log:
        asyncio.run(SignalFollower(copying, new_reader)._follow())
    assert (copying.executed, copying.passed) == (executed, passed)
    assert [line["event"] for line in log] == events


def test_a_fenced_daemon_refuses_no_signal() -> None:
    """The daemon that has fenced it executes the signal."""
    copying: Any = Copying(5, SinkFenced("another producer"))
    new_reader: Any = lambda at, moved: Reader(at, 7, moved, (5,))  # noqa: E731
    with pytest.raises(SinkFenced):
        asyncio.run(SignalFollower(copying, new_reader)._follow())
    assert (copying.executed, copying.passed) == ([], [])


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
