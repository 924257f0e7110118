"""Failures of a drain, by extension and fallback: it returns the items read before, and the next call raises."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from cdcd.errors import MessageUnknown, PublicationMissing, SlotLost, SourceError, SourceUnavailable
from cdcd.model import Control, RowBatch
from cdcd.source import drain as draining
from cdcd.source.drain import drain
from cdcd.source.error_map import ServerReport
from tests.support.copydata import begin, xlog
from tests.support.implementations import READING, implementations, loaded
from tests.support.played import Played

ROW, BEGIN = xlog(b"I\0\0\0\1N"), xlog(begin(9))
GONE = ServerReport("55000", 'skipped loading publication "pub"', "WARNING", "LoadPublications")


class Connection:
    """The parts of a CopyConnection that a drain uses besides libpq."""

    pgconn = 1

    def __init__(self, *notices: ServerReport) -> None:
        self.in_stream = False
        self.failure: SourceError | None = None
        self.notices = list(notices)

    def error_message(self) -> str:
        return "the connection broke"

    def end_of_copy(self) -> SourceError:
        return SlotLost("the server's last word")


@pytest.fixture(params=implementations(*READING))
def play(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`play(*answers)` makes libpq return these answers."""
    reading: ModuleType = loaded(request.param)
    monkeypatch.setattr(draining, "reading", reading)

    def play(*answers: bytes | int, broken_at: int = 0) -> Played:
        played = Played(*answers, broken_at=broken_at)
        monkeypatch.setattr(draining, "LIBPQ", reading.Libpq(*played.functions))
        return played

    return play


@pytest.mark.parametrize(
    ("answers", "broken_at", "failure"),
    [
        ([ROW, -1], 0, SlotLost),
        ([ROW, -2], 0, SourceUnavailable),
        ([0, ROW, -1], 1, SlotLost),
        ([0, ROW, 0], 1, SourceUnavailable),
        ([0, ROW, -2], 1, SourceUnavailable),
    ],
)
def test_what_came_before_a_failure_is_returned_and_the_next_call_raises_it(
    play: Any, answers: list[bytes | int], broken_at: int, failure: type[SourceError]
) -> None:
    play(*answers, broken_at=broken_at)
    connection: Any = Connection()
    drained = drain(connection, 1_000_000)
    assert (drained.messages, drained.bytes, drained.more) == (1, len(ROW), False)
    assert [type(item) for item in drained.items] == [RowBatch]
    for _ in range(2):
        with pytest.raises(failure):
            drain(connection, 1_000_000)


def test_a_failure_with_nothing_before_it_is_raised_at_once(play: Any) -> None:
    play(-1)
    with pytest.raises(SlotLost):
        drain(Connection(), 1_000_000)  # type: ignore[arg-type]


def test_a_batch_in_which_a_publication_was_dropped_is_not_returned_whatever_else_is_wrong_with_it(
    play: Any,
) -> None:
    """F72."""
    played = play(ROW, b"x")
    connection: Any = Connection(GONE)
    with pytest.raises(PublicationMissing):
        drain(connection, 1_000_000)
    assert isinstance(connection.failure, PublicationMissing)
    assert not played.given


def test_a_message_that_the_protocol_does_not_know_is_raised(play: Any) -> None:
    play(ROW, b"x")
    with pytest.raises(MessageUnknown):
        drain(Connection(), 1_000_000)  # type: ignore[arg-type]


def test_at_the_limit_there_is_more_and_the_stream_state_continues(play: Any) -> None:
    play(BEGIN, xlog(b"S"), xlog(b"D\0\0\1\0...."), xlog(b"D\0\0\1\0...."))
    connection: Any = Connection()
    drained = drain(connection, len(BEGIN) + 1)
    assert drained.more
    assert [type(item) for item in drained.items] == [Control, Control]
    assert [item.xid for item in drain(connection, 1_000_000).items if isinstance(item, RowBatch)] == [256]
