"""A sink that is abandoned in the middle leaves no threads and no connections (fault 35)."""

from __future__ import annotations

import gc
import weakref

import pytest

from cdcd.errors import SinkUnavailable
from cdcd.model import Record
from cdcd.sink.kafka_sink import KafkaSink
from cdcd.sink.settings import SinkSettings
from tests.support.proxy import Proxy
from tests.support.running import of_librdkafka
from tests.support.sinks import make_topics, opened, progress, sink_settings
from tests.support.waiting import eventually


def given_up(settings: SinkSettings, topic: str, door: Proxy) -> list[weakref.ref[object]]:
    """Close a sink whose commit no broker answered; return weak references to the sink and its client."""
    sink = KafkaSink(settings)
    eventually(lambda: opened(sink), "the broker can be reached")
    sink.begin()
    sink.produce([Record(topic, 0, b"k", b"before")], 0)
    sink.poll(0.5)
    door.hold()
    sink.produce([Record(topic, 0, b"k", b"row")] * 100, 0)
    sink.poll(0.5)
    with pytest.raises(SinkUnavailable):
        sink.commit(progress(settings.slot))
    left: list[weakref.ref[object]] = [weakref.ref(sink), weakref.ref(sink._client)]
    sink.close()
    door.heal()
    return left


def test_the_client_ends_with_the_sink(kafka_door: Proxy) -> None:
    settings = sink_settings(f"127.0.0.1:{kafka_door.port}", operation_timeout_s=2.0)
    topic = make_topics(settings)
    gc.collect()
    before = of_librdkafka()
    left = given_up(settings, topic, kafka_door)
    gc.collect()
    assert [one() for one in left] == [None, None]
    eventually(lambda: of_librdkafka() <= before, "the client's threads have ended")
