"""Use the sink without a daemon, as a session does: settings, topics to write to, positions to commit.

In: a broker's address.  Out: settings and positions of a slot that no other test uses.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from cdcd.errors import SinkUnavailable
from cdcd.model import Progress, SourceIdentity
from cdcd.sink.kafka_sink import KafkaSink
from cdcd.sink.settings import SinkSettings, TopicSettings
from cdcd.sink.topics import Topics
from tests.support.topics import create_topic, new_name


def progress(slot: str, end_lsn: int = 0x200) -> Progress:
    """Return the position after a transaction that ends at `end_lsn`."""
    identity = SourceIdentity("7412345678901234567", 1, "shop", slot)
    return Progress(identity, "streaming", end_lsn - 0x30, end_lsn, 1_700_000_000_000_000)


def sink_settings(bootstrap: str, **changes: Any) -> SinkSettings:
    """Return settings for exactly-once delivery and a new slot; `changes` are fields of the settings."""
    slot = changes.pop("slot", None) or new_name("slot")
    settings = SinkSettings(
        bootstrap_servers=bootstrap,
        delivery="exactly_once",
        transactional_id=f"cdcd-{slot}",
        client_id=f"cdcd-{slot}",
        progress_topic=new_name("progress"),
        slot=slot,
        operation_timeout_s=30.0,
    )
    return dataclasses.replace(settings, **changes)


def make_topics(settings: SinkSettings, copies: int = 1) -> str:
    """Create the progress topic and a topic for rows with one partition; return the name of the latter."""
    topic = new_name("rows")
    create_topic(settings.bootstrap_servers, topic, copies=copies)
    Topics(settings, TopicSettings(True, 1, copies)).ensure_progress(settings.progress_topic)
    return topic


def opened(sink: KafkaSink) -> tuple[Progress | None] | None:
    """Return the result of `open` in a tuple; None while the broker is unreachable."""
    try:
        return (sink.open(),)
    except SinkUnavailable:
        return None
