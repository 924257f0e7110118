"""Confluent's producer without a broker: its delivery reports, and the effect of closing it on a waiting thread."""

from __future__ import annotations

import threading

import pytest
from confluent_kafka import Message

from cdcd.errors import SinkFenced, SinkUnavailable
from cdcd.sink.client import Client
from cdcd.sink.limits import Limits
from cdcd.sink.settings import RESENT_AFTER_S, producer_properties
from tests.support.no_exception import raise_no_exception
from tests.support.sinks import sink_settings


def test_a_flush_that_is_closed_under_its_thread_has_delivered_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Records in flight are purged: a waiting thread must not take them for durable."""
    settings = sink_settings("127.0.0.1:1", delivery="at_least_once", properties={"log_level": "0"})
    client = Client(settings, producer_properties(settings), Limits(), {settings.progress_topic})
    client.usable().produce(settings.progress_topic, b"v", b"k", 0)
    is_flushing = threading.Event()
    serve, reported = client._serve, []
    monkeypatch.setattr(client, "_serve", lambda *args: (is_flushing.set(), serve(*args))[1])

    def flush() -> None:
        try:
            client.flush("flushing")
        except SinkUnavailable as error:
            reported.append(error)

    flushing = threading.Thread(target=flush)
    flushing.start()
    assert is_flushing.wait(10)
    client.close()
    flushing.join(10)
    assert len(reported) == 1


def test_a_delivered_record_without_an_offset_is_not_taken_for_durable() -> None:
    """A broker that detects a duplicate may not know its offset: the group's offsets would be unknown."""
    settings = sink_settings("127.0.0.1:1", properties={"log_level": "0"})
    client = Client(settings, producer_properties(settings), Limits(), {settings.progress_topic})
    client.reported(None, Message(topic="t", partition=1, offset=4))
    assert client.next_offsets == {("t", 1): 5}
    client.usable()
    client.reported(None, Message(topic="t", partition=1, offset=-1001))
    with pytest.raises(SinkUnavailable, match="at an unknown offset"):
        client.usable()
    client.close()


class Timed:
    """A producer whose commits take `commit_s`."""

    def __init__(self, commit_s: float) -> None:
        self.commit_s, self.now_s = commit_s, 0.0

    def begin_transaction(self) -> None:
        """Do nothing."""

    def commit_transaction(self, _timeout_s: float) -> None:
        self.now_s += self.commit_s


@pytest.mark.parametrize(
    ("took_s", "is_at_risk"),
    [(0.0, False), (RESENT_AFTER_S - 0.001, False), (RESENT_AFTER_S, True), (3.0, True)],
)
def test_a_commit_that_took_as_long_as_a_second_sending_may_still_arrive(
    monkeypatch: pytest.MonkeyPatch, took_s: float, is_at_risk: bool
) -> None:
    """F77: the client reports the reply to the resent request and nothing of the first one: only time shows it."""
    settings = sink_settings("127.0.0.1:1", properties={"log_level": "0"})
    client = Client(settings, producer_properties(settings), Limits(), {settings.progress_topic})
    producer, timed = client.usable(), Timed(took_s)
    monkeypatch.setattr(client, "_producer", timed)
    monkeypatch.setattr("cdcd.sink.client.time.monotonic", lambda: timed.now_s)
    client.begin()
    client.commit()
    assert bool(client.renewal_reason) == is_at_risk
    if is_at_risk:
        with pytest.raises(SinkUnavailable, match="may still arrive"):
            client.begin()
    else:
        client.begin()
    monkeypatch.undo()
    assert client.usable() is producer
    client.close()


def test_the_time_of_a_resent_request_follows_from_the_clients_properties() -> None:
    """librdkafka waits `retry.backoff.ms` less 20 % before it resends a request, at most `retry.backoff.max.ms`."""
    properties = producer_properties(sink_settings("127.0.0.1:1"))
    backoff_ms, most_ms = properties["retry.backoff.ms"], properties["retry.backoff.max.ms"]
    assert isinstance(backoff_ms, int)
    assert isinstance(most_ms, int)
    assert min(0.8 * backoff_ms, most_ms) >= 1000 * RESENT_AFTER_S


def test_a_fatal_error_that_is_no_exception_is_reported() -> None:
    """The client raises it in the middle of a flush, after another daemon has taken over."""
    settings = sink_settings("127.0.0.1:1", properties={"log_level": "0"})
    client = Client(settings, producer_properties(settings), Limits(), {settings.progress_topic})
    assert client._serve(raise_no_exception) is None
    with pytest.raises(SinkFenced):
        client.raise_pending()
