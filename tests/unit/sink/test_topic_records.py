"""Which topics a table has: one that is hidden from the list of all topics is asked about by its name."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from cdcd.errors import SinkAuthorization, SinkUnavailable
from cdcd.sink.topic_records import topics_with_records

TOPIC = "shop.public.t"
MISSING = KafkaError.UNKNOWN_TOPIC_OR_PART
HIDDEN = KafkaError.TOPIC_AUTHORIZATION_FAILED


class Cluster:
    """A cluster that lists some topics, and answers about others by their names."""

    timeout_s = 1.0

    def __init__(self, listed: Iterable[str], answers: dict[str, int | None]) -> None:
        self.listed, self.answers, self.client = set(listed), answers, self

    def metadata(self, asked: str | None, *_: object, **__: object) -> Any:
        assert asked is None, "a broker may create a topic that its metadata is asked for"
        return SimpleNamespace(topics=dict.fromkeys(self.listed))

    def describe_topics(self, asked: Any, **_: object) -> dict[str, Future[Any]]:
        found: dict[str, Future[Any]] = {}
        for name in asked.topic_names:
            found[name] = Future()
            code = self.answers.get(name, MISSING)
            if code is None:
                found[name].set_result(SimpleNamespace(topic_id="1"))
            else:
                found[name].set_exception(KafkaException(KafkaError(code)))
        return found


def topics_of(listed: Iterable[str], **answers: int | None) -> list[str]:
    """Return the topics of the table; `answers`: by version, such as v2."""
    named = {TOPIC if version == "v1" else f"{TOPIC}.{version}": code for version, code in answers.items()}
    cluster: Any = Cluster(listed, named)
    return topics_with_records(cluster, TOPIC)


def test_the_topics_of_a_table_are_in_the_order_of_their_versions() -> None:
    listed = {
        TOPIC,
        f"{TOPIC}.v10",
        f"{TOPIC}.v2",
        f"{TOPIC}.vx",
        f"{TOPIC}.v1",
        f"{TOPIC}.v02",
        f"{TOPIC}s",
        "other",
    }
    assert topics_of(listed) == [TOPIC, f"{TOPIC}.v2", f"{TOPIC}.v10"]
    assert topics_of({"other"}) == []
    assert topics_of({f"{TOPIC}.v2"}) == [f"{TOPIC}.v2"]
    far = f"{TOPIC}.v99999999999"
    assert topics_of({far}) == [far]


def test_a_topic_that_is_not_listed_yet_is_found_by_its_name() -> None:
    assert topics_of({TOPIC}, v2=None) == [TOPIC, f"{TOPIC}.v2"]
    assert topics_of({TOPIC, f"{TOPIC}.v3"}, v2=None, v4=None) == [
        TOPIC, f"{TOPIC}.v2", f"{TOPIC}.v3", f"{TOPIC}.v4",
    ]  # fmt: skip
    assert topics_of(set(), v1=None) == [TOPIC]


@pytest.mark.parametrize("listed", [set(), {TOPIC}, {TOPIC, f"{TOPIC}.v3"}])
def test_a_topic_that_may_not_be_described_is_no_missing_one(listed: set[str]) -> None:
    hidden = "v2" if listed else "v1"
    with pytest.raises(SinkAuthorization, match=r"topic=shop\.public\.t"):
        topics_of(listed, **{hidden: HIDDEN})


def test_the_version_after_the_last_one_may_be_hidden_too() -> None:
    with pytest.raises(SinkAuthorization, match=r"\.v4"):
        topics_of({TOPIC, f"{TOPIC}.v2", f"{TOPIC}.v3"}, v4=HIDDEN)


@pytest.mark.parametrize("characters", [246, 247, 249])
def test_no_name_is_asked_about_that_is_longer_than_kafka_allows(characters: int) -> None:
    """A broker answers such a request with an error of its own."""
    topic = "t" * characters
    longer = {f"{topic}.v2": KafkaError.TOPIC_EXCEPTION} if characters > 246 else {}
    cluster: Any = Cluster({topic}, dict(longer))
    assert topics_with_records(cluster, topic) == [topic]


def test_a_broker_that_does_not_answer_is_no_missing_topic() -> None:
    with pytest.raises(SinkUnavailable):
        topics_of({TOPIC}, v2=KafkaError._TRANSPORT)
