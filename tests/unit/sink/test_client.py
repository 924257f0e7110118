"""One producer of Confluent's without a broker: what closing it tells who still waits."""

from __future__ import annotations

import threading

import pytest

from cdcd.errors import SinkUnavailable
from cdcd.sink.client import Client
from cdcd.sink.limits import Limits
from cdcd.sink.settings import producer_properties
from tests.support.sinks import sink_settings


def test_a_flush_that_is_closed_under_its_thread_has_delivered_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was under way is purged: whoever waits for it must not take that for durable."""
    settings = sink_settings("127.0.0.1:1", delivery="at_least_once", properties={"log_level": "0"})
    client = Client(settings, producer_properties(settings), Limits(), {settings.progress_topic})
    client.usable().produce(settings.progress_topic, b"v", b"k", 0)
    is_flushing = threading.Event()
    serve, told = client._serve, []
    monkeypatch.setattr(client, "_serve", lambda *args: (is_flushing.set(), serve(*args))[1])

    def flush() -> None:
        try:
            client.flush("flushing")
        except SinkUnavailable as error:
            told.append(error)

    flushing = threading.Thread(target=flush)
    flushing.start()
    assert is_flushing.wait(10)
    client.close()
    flushing.join(10)
    assert len(told) == 1
