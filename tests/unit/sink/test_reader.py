"""The first and the end offset of a log, which are queried at the same time; the search for a slot's last record."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka.admin import OffsetSpec

from cdcd.errors import SinkUnavailable
from cdcd.sink import reader, topic_ownership
from cdcd.sink.progress import dump, key_of
from tests.support.sinks import progress, sink_settings

SETTINGS = sink_settings("127.0.0.1:1")
TOPIC = "shop.__progress"
VALUE, OF_ANOTHER = dump(progress(SETTINGS.slot)), dump(progress("another"))


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


class SlowLog:
    """A consumer of a log of another slot's records, with our own ones at some offsets: each record takes a second.

    `silent_at`: from this offset on the broker sends nothing.
    """

    def __init__(self, own: dict[int, bytes], end: int, silent_at: int | None = None) -> None:
        self.own, self.end = own, end
        self.silent_at = end if silent_at is None else silent_at
        self.now_s, self.next, self.records = 0.0, 0, 0

    def assign(self, partitions: list[Any]) -> None:
        self.next = partitions[0].offset

    def poll(self, timeout_s: float) -> Any:
        if self.next >= self.silent_at:
            self.now_s += timeout_s
            return None
        self.now_s += 1.0
        self.records += 1
        offset, self.next = self.next, self.next + 1
        key = key_of(SETTINGS.slot if offset in self.own else "another")
        value = self.own.get(offset, OF_ANOTHER)
        return SimpleNamespace(
            error=lambda: None,
            offset=lambda: offset,
            key=lambda: key,
            value=lambda: value,
            topic=lambda: SETTINGS.progress_topic,
        )

    def consume(self, **_limits: object) -> list[Any]:
        return []

    def close(self) -> None:
        pass


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Callable[..., SlowLog]:
    def given(own: dict[int, bytes], end: int, **more: Any) -> SlowLog:
        log = SlowLog(own, end, **more)
        for module in (reader, topic_ownership):
            monkeypatch.setattr(module, "Consumer", lambda *_properties, **_options: log)
        monkeypatch.setattr(reader, "Admin", answering(0, end))
        monkeypatch.setattr(time, "monotonic", lambda: log.now_s)
        return log

    return given


@pytest.mark.parametrize("distance", [1, 999, 5_000, 50_000])
def test_a_record_far_behind_those_of_another_slot_is_found_however_long_it_takes(
    distance: int, slow: Callable[..., SlowLog]
) -> None:
    """F64: an idle slot, or a new one under a name with a busy slot, can start; no deadline limits the whole read."""
    log = slow({60_000 - distance: VALUE}, 60_000)
    found = reader.read_last(SETTINGS)
    assert found is not None
    assert found.offset == 60_000 - distance
    assert log.records <= max(1_000, 5 * distance), "the windows do not go much further than necessary"


def test_a_new_slot_reads_all_of_a_long_log(slow: Callable[..., SlowLog]) -> None:
    log = slow({}, 60_000)
    assert reader.read_last(SETTINGS) is None
    assert log.records == 60_000


@pytest.mark.parametrize(
    ("silent_at", "hint"), [(59_990, "open transaction"), (58_500, "sends no more records")]
)
def test_a_read_that_does_not_get_on_ends_and_says_where(
    silent_at: int, hint: str, slow: Callable[..., SlowLog]
) -> None:
    """In the newest records an open transaction may be in the way, before them it is the broker."""
    log = slow({}, 60_000, silent_at=silent_at)
    if silent_at < 59_000:
        log.silent_at = 60_000
        sent = log.poll

        def poll(timeout_s: float) -> Any:
            log.silent_at = silent_at if log.next < 59_000 else 60_000
            return sent(timeout_s)

        log.poll = poll  # type: ignore[method-assign]
    with pytest.raises(SinkUnavailable, match="could not be read to its end") as caught:
        reader.read_last(SETTINGS)
    assert hint in str(caught.value)
    assert caught.value.context["reached"] == silent_at


def test_the_owners_are_found_however_long_it_takes(
    slow: Callable[..., SlowLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    """F80: our own progress topic is read backwards until our own record, in the same way."""
    slow({100: VALUE}, 60_000)
    own = SETTINGS.progress_topic
    monkeypatch.setattr(topic_ownership, "_spans", lambda _settings, **_options: {own: (0, 60_000)})
    end, owners = topic_ownership.read_owners(SETTINGS, is_own_alone=True)
    assert end == 60_000
    assert SETTINGS.slot in {owner.progress_key.slot for owner in owners}
