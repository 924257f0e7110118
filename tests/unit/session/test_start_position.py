"""The stored position of a start check: an unknown one is never taken for none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cdcd.cli import start_inspection
from cdcd.errors import SinkUnavailable, TopicMissing
from cdcd.session.start_checks import position

TOPIC = "cdcd.progress"


def known(*listings: list[str]) -> Any:
    """Return a context whose cluster lists these topics, one listing after the other."""
    answers = iter(listings)
    topics = SimpleNamespace(exists=lambda name: name in next(answers))
    return SimpleNamespace(sink=SimpleNamespace(progress_topic=TOPIC), topics=topics)


def test_a_topic_that_one_broker_does_not_know_yet_is_no_first_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(position, "peek", missing)
    with pytest.raises(SinkUnavailable, match="does not know it yet"):
        position._peeked(known([TOPIC]), None)


def test_a_topic_that_was_created_since_the_first_reading_is_found_by_the_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(position, "peek", lambda _sink, _timeout_s, **_known: ("stored", True))
    context = known([], [TOPIC])
    assert position._peeked(context, None) == (None, True)
    assert position._peeked(context, None) == ("stored", True)


def missing(_sink: Any, _timeout_s: float, **_known: Any) -> Any:
    raise TopicMissing("looking up the end of a topic", topic=TOPIC)


@pytest.mark.parametrize("is_listed", [True, False])
def test_a_command_does_not_take_a_topic_that_one_broker_does_not_know_for_none(
    is_listed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`cdcd resume` would say that nothing was written for the slot."""
    context = known([TOPIC] if is_listed else [])
    monkeypatch.setattr(position, "peek", missing)
    monkeypatch.setattr(start_inspection, "command_settings", lambda _config: context.sink)
    monkeypatch.setattr(start_inspection, "Topics", lambda _settings, _options: context.topics)
    config: Any = SimpleNamespace(topic_settings=lambda: None)
    if not is_listed:
        assert start_inspection.peek_progress(config) == (None, True)
        return
    with pytest.raises(SinkUnavailable, match="does not know it yet"):
        start_inspection.peek_progress(config)
