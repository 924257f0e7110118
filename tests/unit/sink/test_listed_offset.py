"""An answer about offsets that has none is an error, for the daemon and for a reader."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import ListOffsetsResultInfo, OffsetSpec

from cdcd.errors import SinkAuthorization, SinkError, SinkUnavailable, TopicMissing
from cdcd.sink.listed_offset import listed_offset
from cdcd.sink.reader import bounds
from cdcd.sink.settings import SinkSettings
from cdcd.sink.topic_records import bounds_of
from cdcd.sink.topics import Topics
from cdcd.spark.clients import kafka
from cdcd.spark.clients.kafka import Cluster


def answer(offset: int) -> Future[ListOffsetsResultInfo]:
    future: Future[ListOffsetsResultInfo] = Future()
    future.set_result(ListOffsetsResultInfo(offset, 0, -1))
    return future


def refusal(code: int) -> Future[ListOffsetsResultInfo]:
    future: Future[ListOffsetsResultInfo] = Future()
    future.set_exception(KafkaException(KafkaError(code)))
    return future


def test_an_answer_has_an_offset() -> None:
    assert [listed_offset(answer(offset), "asking", "t") for offset in (0, 7)] == [0, 7]


@pytest.mark.parametrize(
    ("lost", "error"),
    [
        (answer(-1001), SinkUnavailable),
        (refusal(KafkaError._NOENT), SinkUnavailable),
        (refusal(KafkaError._TRANSPORT), SinkUnavailable),
        (refusal(KafkaError.TOPIC_AUTHORIZATION_FAILED), SinkAuthorization),
        (refusal(KafkaError.UNKNOWN_TOPIC_OR_PART), TopicMissing),
    ],
)
def test_a_leader_that_is_lost_meanwhile_is_an_outage(
    lost: Future[ListOffsetsResultInfo], error: type[SinkError]
) -> None:
    """A broker that restarts: cdcd tries again, and does not halt."""
    with pytest.raises(error, match=r"asking.*topic=t"):
        listed_offset(lost, "asking", "t")


class Cut:
    """A client of Kafka whose connection to the leader is lost when it asks for offsets."""

    timeout_s = 1.0

    def __init__(self) -> None:
        self.client = self

    def metadata(self, *_: object, **__: object) -> Any:
        return SimpleNamespace(topics={"t": SimpleNamespace(error=None, partitions={0: None})})

    def partitions(self, names: Sequence[str]) -> dict[str, int]:
        return dict.fromkeys(names, 1)

    def list_offsets(
        self, asked: Mapping[TopicPartition, OffsetSpec], **_: object
    ) -> dict[TopicPartition, Future[ListOffsetsResultInfo]]:
        return dict.fromkeys(asked, answer(-1001))


def test_who_asks_for_the_end_of_a_topic_while_a_broker_restarts_tries_again() -> None:
    cut: Any = Cut()
    topics = Topics.__new__(Topics)
    topics._cluster = cut
    asks: tuple[Callable[[], object], ...] = (
        lambda: topics.has_records("t"),
        lambda: bounds_of(cut, ["t"]),
        lambda: bounds(SinkSettings("k:9092", "exactly_once", "id", "id", "p", "s"), "t", admin=cut),
    )
    for ask in asks:
        with pytest.raises(SinkUnavailable):
            ask()


def test_a_reader_takes_an_answer_without_an_offset_for_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks again, and does not take it for the offset of an empty topic."""
    cluster, place = Cluster("127.0.0.1:1", {}), TopicPartition("t", 0)
    monkeypatch.setattr(cluster, "_listed", lambda: None)
    answers = [answer(-1001), answer(7)]
    monkeypatch.setattr(cluster, "_requested", lambda *_: {place: answers.pop(0)})
    assert cluster.ends([("t", 0)]) == {("t", 0): 7}
    monkeypatch.setattr(cluster, "_requested", lambda *_: {place: answer(-1001)})
    monkeypatch.setattr(kafka, "REQUEST_TIMEOUT_S", 0.0)
    with pytest.raises(SinkUnavailable, match="Kafka does not list offsets"):
        cluster.ends([("t", 0)])
