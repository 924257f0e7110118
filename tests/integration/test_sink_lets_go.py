"""A sink that was given up in the middle leaves nothing behind: no threads, no connections (fault 35)."""

from __future__ import annotations

import gc
import os
import weakref

import pytest

from cdcd.errors import SinkUnavailable
from cdcd.model import Progress, Record, SourceIdentity
from cdcd.sink.producer import KafkaSink
from cdcd.sink.settings import SinkSettings, TopicSettings
from cdcd.sink.topics import Topics
from tests.support.proxy import Proxy
from tests.support.topics import create_topic, new_name
from tests.support.waiting import eventually


def given_up(settings: SinkSettings, topic: str, door: Proxy) -> weakref.ref[KafkaSink]:
    """Records under way that nobody answers, a commit that failed for it, and the sink closed."""
    sink = KafkaSink(settings)
    eventually(lambda: is_opened(sink), "the broker can be reached")
    sink.begin()
    sink.produce([Record(topic, 0, b"k", b"before")], 0)
    sink.poll(0.5)
    door.hold()
    sink.produce([Record(topic, 0, b"k", b"row")] * 100, 0)
    sink.poll(0.5)
    identity = SourceIdentity("7412345678901234567", 1, "shop", settings.slot)
    with pytest.raises(SinkUnavailable):
        sink.commit(Progress(identity, "streaming", 0x1FF, 0x200, 1_700_000_000_000_000))
    sink.close()
    door.heal()
    return weakref.ref(sink)


def is_opened(sink: KafkaSink) -> bool:
    try:
        sink.open()
    except SinkUnavailable:
        return False
    return True


def test_the_client_ends_with_the_sink(kafka_door: Proxy) -> None:
    bootstrap = f"127.0.0.1:{kafka_door.port}"
    slot, topic = new_name("slot"), new_name("rows")
    settings = SinkSettings(
        bootstrap_servers=bootstrap,
        delivery="exactly_once",
        transactional_id=slot,
        client_id=slot,
        progress_topic=new_name("progress"),
        slot=slot,
        operation_timeout_s=2.0,
    )
    create_topic(bootstrap, topic)
    Topics(settings, TopicSettings(True, 1, 1)).ensure_progress(settings.progress_topic)
    gc.collect()
    before = len(os.listdir("/proc/self/task"))
    gone = given_up(settings, topic, kafka_door)
    gc.collect()
    assert gone() is None
    eventually(lambda: len(os.listdir("/proc/self/task")) <= before, "its threads have ended")
