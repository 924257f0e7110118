"""One producer of Confluent's without a broker: what it is told of records, and what closing it tells who waits."""

from __future__ import annotations

import threading

import pytest
from confluent_kafka import Message

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


def test_a_record_that_was_taken_nobody_knows_where_is_not_taken_for_durable() -> None:
    """A broker that has it already may have forgotten where: the group's offsets could not be told."""
    settings = sink_settings("127.0.0.1:1", properties={"log_level": "0"})
    client = Client(settings, producer_properties(settings), Limits(), {settings.progress_topic})
    client.reported(None, Message(topic="t", partition=1, offset=4))
    assert client.next_offsets == {("t", 1): 5}
    client.usable()
    client.reported(None, Message(topic="t", partition=1, offset=-1001))
    with pytest.raises(SinkUnavailable, match="where is not known"):
        client.usable()
    client.close()
