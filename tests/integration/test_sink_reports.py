"""After a client's first group only the last record of each partition has a delivery report; nothing is
lost by that.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.errors import BatchTooLarge, RecordTooLarge, Retry, SinkError, SinkUnavailable
from cdcd.model import Record
from cdcd.sink.kafka_sink import KafkaSink
from cdcd.sink.settings import TopicSettings
from cdcd.sink.topics import Topics
from tests.integration.test_sink_exactly_once import Place, produce_all, records, write
from tests.support.sinks import progress
from tests.support.topics import committed_records, new_name


@pytest.fixture
def place(kafka: KafkaBroker) -> Iterator[Place]:
    kafka.start()
    here = Place(kafka.bootstrap)
    yield here
    here.close()


def test_the_offsets_of_every_group_are_the_real_ones(place: Place) -> None:
    """A reader cuts the topics at these offsets."""
    sink = place.opened()
    for group in range(4):
        sink.begin()
        produce_all(sink, records(place.topic, 500, start=1000 * group))
        produce_all(sink, records(place.topic, 1 + group, start=1000 * group + 500))
        written = sink.commit(progress(place.slot, 0x200 + group))
        last: dict[int, int] = {}
        for message in committed_records(place.bootstrap, place.topic, 0):
            last[message.partition()] = message.offset() + 1
        assert written.offsets == {place.topic: last}


def test_a_record_that_a_broker_refuses_in_a_later_group_leaves_nothing_and_is_named_by_the_next_client(
    place: Place,
) -> None:
    """F63, F65: the commit reports an undelivered record; a client that has it in its first group reports
    which one.
    """
    topic = new_name("small")
    settings = TopicSettings(True, 1, 1, {"max.message.bytes": "1000"})
    Topics(place.settings(), settings).ensure([topic])
    small, large = Record(topic, 0, b"k", b"v"), Record(topic, 0, b"k", b"canary" * 40_000)
    more = {"message.max.bytes": "10000000", "batch.num.messages": "1"}
    sink = place.opened(properties=more)
    sink.begin()
    first = write(sink, records(place.topic, 5), progress(place.slot))
    sink.begin()
    with pytest.raises((SinkUnavailable, BatchTooLarge)) as caught:
        write(sink, [*records(place.topic, 5, start=5), large, small], progress(place.slot, 0x300))
    assert caught.value.retry is not Retry.OPERATOR
    assert "canary" not in str(caught.value)
    sink.abort()
    sink.close()
    again = place.sink(properties=more)
    assert again.open() == first
    assert len(place.committed(5)) == 5
    again.begin()
    with pytest.raises(RecordTooLarge) as named:
        write(again, [*records(place.topic, 5, start=5), large, small], progress(place.slot, 0x300))
    assert named.value.context["topic"] == topic
    again.abort()
    assert len(place.committed(5)) == 5


def test_without_transactions_every_record_has_a_delivery_report(place: Place) -> None:
    """F63: without the report, an undelivered record would go unnoticed."""
    topic = new_name("small")
    settings = TopicSettings(True, 1, 1, {"max.message.bytes": "1000"})
    Topics(place.settings(), settings).ensure([topic])
    more = {"message.max.bytes": "10000000", "batch.num.messages": "1"}
    sink = place.opened(properties=more, delivery="at_least_once")
    for _ in range(2):
        sink.begin()
        write(sink, records(place.topic, 5), progress(place.slot))
    sink.begin()
    large, small = Record(topic, 0, b"k", b"x" * 240_000), Record(topic, 0, b"k", b"v")
    with pytest.raises(SinkError) as caught:
        write(sink, [large, small], progress(place.slot))
    assert caught.value.context["topic"] == topic


class _LookedAtLate(list[Record]):
    """Records, of which the second is read when the transaction has to be aborted because of the first one."""

    def __init__(self, sink: KafkaSink, records: list[Record]) -> None:
        super().__init__(records)
        self._sink = sink

    def __getitem__(self, at: Any) -> Any:
        if at == 1:
            deadline_s = time.monotonic() + 30
            while not self._is_refused():
                assert time.monotonic() < deadline_s, "the broker has not refused the first record"
        return super().__getitem__(at)

    def _is_refused(self) -> bool:
        """Return whether the transaction has failed: every request of such a transaction is refused with
        the reason.
        """
        assert self._sink._client is not None
        assert self._sink._client._producer is not None
        with pytest.raises(KafkaException) as caught:
            self._sink._client._producer.begin_transaction()
        return caught.value.args[0].code() != KafkaError._STATE


@pytest.mark.parametrize("is_first_group", [True, False])
def test_a_record_after_a_refused_one_raises_the_error_of_that_one(
    place: Place, is_first_group: bool
) -> None:
    """F63: the client then accepts no record and gives no reason; the first record's failure is not yet reported."""
    topic = new_name("small")
    settings = TopicSettings(True, 1, 1, {"max.message.bytes": "1000"})
    Topics(place.settings(), settings).ensure([topic])
    sink = place.opened(properties={"message.max.bytes": "10000000", "batch.num.messages": "1"})
    if not is_first_group:
        sink.begin()
        write(sink, records(place.topic, 5), progress(place.slot))
    large, small = Record(topic, 0, b"k", b"canary" * 40_000), Record(place.topic, 0, b"k", b"v")
    sink.begin()
    with pytest.raises((RecordTooLarge, BatchTooLarge)) as caught:
        sink.produce(_LookedAtLate(sink, [large, small]), 0)
    if is_first_group:
        assert caught.value.context["topic"] == topic
    else:
        assert caught.value.retry is not Retry.OPERATOR, "the next client reports which record failed"
    assert "canary" not in str(caught.value)
    sink.abort()
