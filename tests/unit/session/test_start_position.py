"""The stored position of a start check: an unknown one is never taken for none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cdcd.errors import SinkUnavailable, TopicMissing
from cdcd.session.start_checks import position

TOPIC = "cdcd.progress"


def known(*listings: list[str]) -> Any:
    """Return a context whose cluster lists these topics, one listing after the other."""
    answers = iter(listings)
    topics = SimpleNamespace(cluster_metadata=lambda: SimpleNamespace(topics=dict.fromkeys(next(answers))))
    return SimpleNamespace(
        sink=object(), topics=topics, config=SimpleNamespace(progress_topic=TOPIC), metadata=None
    )


def test_a_topic_that_one_broker_does_not_know_yet_is_no_first_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def peek(_sink: Any, _timeout_s: float) -> Any:
        raise TopicMissing("looking up the end of a topic", topic=TOPIC)

    monkeypatch.setattr(position, "peek", peek)
    with pytest.raises(SinkUnavailable, match="does not know it yet"):
        position._peeked(known([TOPIC]))


def test_a_topic_that_was_created_since_the_first_reading_is_found_by_the_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(position, "peek", lambda _sink, _timeout_s: ("stored", True))
    context = known([], [TOPIC])
    assert position._peeked(context) == (None, True)
    assert position._peeked(context) == ("stored", True)
