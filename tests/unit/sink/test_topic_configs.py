"""Warnings about the effect of a topic's configuration on records."""

from __future__ import annotations

import pytest

from cdcd.sink.topic_configs import refuses_age


@pytest.mark.parametrize(
    ("configuration", "is_refused"),
    [
        ({}, False),
        ({"message.timestamp.before.max.ms": "9223372036854775807"}, False),
        ({"message.timestamp.before.max.ms": "60000"}, False),
        ({"message.timestamp.before.max.ms": "59999"}, True),
        ({"message.timestamp.before.max.ms": "1", "message.timestamp.type": "LogAppendTime"}, False),
        ({"message.timestamp.before.max.ms": "1", "message.timestamp.type": "CreateTime"}, True),
    ],
)
def test_a_topic_that_refuses_records_of_a_minute_ago_is_reported(
    configuration: dict[str, str], is_refused: bool
) -> None:
    assert bool(refuses_age(configuration)) is is_refused
