"""The first and the end offset of a log, which are queried at the same time."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka.admin import OffsetSpec

from cdcd.errors import SinkUnavailable
from cdcd.sink import reader
from tests.support.sinks import sink_settings

SETTINGS = sink_settings("127.0.0.1:1")
TOPIC = "shop.__progress"


def answering(low: int, end: int) -> type:
    """Return an admin client whose broker reports these offsets."""

    class Admin:
        def __init__(self, _settings: object) -> None:
            self.client = self

        def metadata(self, asked: str, _doing: str, **_context: object) -> Any:
            return SimpleNamespace(topics={asked: SimpleNamespace(error=None)})

        def list_offsets(self, asked: dict[Any, OffsetSpec], **_options: object) -> dict[Any, Future[Any]]:
            answers: dict[Any, Future[Any]] = {}
            for partition, spec in asked.items():
                answers[partition] = Future()
                is_first = type(spec) is type(OffsetSpec.earliest())
                answers[partition].set_result(SimpleNamespace(offset=low if is_first else end))
            return answers

    return Admin


def test_the_first_and_the_end_offset_are_not_confused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "Admin", answering(3, 9))
    assert reader.bounds(SETTINGS, TOPIC) == (3, 9)


def test_a_log_that_begins_behind_its_end_is_two_logs_and_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """F64: otherwise an existing progress record would not be found."""
    monkeypatch.setattr(reader, "Admin", answering(9, 3))
    with pytest.raises(SinkUnavailable, match="the start of its log is after the end"):
        reader.bounds(SETTINGS, TOPIC)
