"""The ids that Kafka answers: a right that is missing tells nothing, any other refusal is an error."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from cdcd.errors import SinkAuthorization
from cdcd.spark.clients.kafka import Cluster


def answering(errors: dict[str, int]) -> Cluster:
    """Return a cluster that refuses to describe some topics."""

    def describe_topics(topics: Any, **_: Any) -> dict[str, Future[Any]]:
        found: dict[str, Future[Any]] = {}
        for name in topics:
            found[name] = Future()
            if name in errors:
                found[name].set_exception(KafkaException(KafkaError(errors[name])))
            else:
                found[name].set_result(SimpleNamespace(topic_id=f"id of {name}"))
        return found

    cluster = object.__new__(Cluster)
    cluster._reported = deque()
    cluster._admin = SimpleNamespace(poll=lambda _: 0, describe_topics=describe_topics)  # type: ignore[assignment]
    return cluster


@pytest.fixture(autouse=True)
def _topics_are_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cdcd.spark.clients.kafka.TopicCollection", list)


@pytest.mark.parametrize(
    "error", [KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.UNKNOWN_TOPIC_OR_PART], ids=["right", "topic"]
)
def test_a_topic_that_may_not_be_described_has_no_known_id(error: int) -> None:
    assert answering({"t": error}).ids(["t", "u"]) == {"u": "id of u"}


def test_only_a_topic_that_kafka_does_not_know_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its list of all topics lacks those that may not be described."""
    cluster = answering(
        {"hidden": KafkaError.TOPIC_AUTHORIZATION_FAILED, "gone": KafkaError.UNKNOWN_TOPIC_OR_PART}
    )
    monkeypatch.setattr(Cluster, "partitions", lambda _: {"t": [0]})
    assert cluster.missing(["t", "hidden", "gone", "listed later"]) == {"gone"}


def test_another_refusal_is_an_error() -> None:
    with pytest.raises(SinkAuthorization):
        answering({"t": KafkaError.CLUSTER_AUTHORIZATION_FAILED}).ids(["t"])
