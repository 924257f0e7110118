"""An answer about offsets that has none is an error, for the daemon and for a reader."""

from __future__ import annotations

from concurrent.futures import Future

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import ListOffsetsResultInfo

from cdcd.errors import SinkUnavailable
from cdcd.sink.listed_offset import listed_offset
from cdcd.spark.clients.kafka import Cluster


def answer(offset: int) -> Future[ListOffsetsResultInfo]:
    future: Future[ListOffsetsResultInfo] = Future()
    future.set_result(ListOffsetsResultInfo(offset, 0, -1))
    return future


def test_an_answer_has_an_offset() -> None:
    assert [listed_offset(answer(offset)) for offset in (0, 7)] == [0, 7]
    with pytest.raises(KafkaException) as raised:
        listed_offset(answer(-1001))
    assert raised.value.args[0].code() == KafkaError._NOENT


def test_a_reader_takes_an_answer_without_an_offset_for_an_outage() -> None:
    cluster, place = Cluster("127.0.0.1:1", {}), TopicPartition("t", 0)
    assert cluster._answered({place: answer(7)}) == {("t", 0): 7}
    with pytest.raises(SinkUnavailable, match="Kafka does not list offsets"):
        cluster._answered({place: answer(-1001)})
