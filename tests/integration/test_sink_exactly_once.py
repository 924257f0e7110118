"""The sink on a real broker: a group is visible completely or not at all, and a restart finds its end.

F63 (no hole), F64 (progress inside the transaction), F65, F69 (fencing), F76 (an unknown result).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.errors import (
    ProgressUnreadable,
    RecordTooLarge,
    SinkError,
    SinkFenced,
    SinkUnavailable,
    TopicMismatch,
    TopicMissing,
)
from cdcd.model import Progress, Record
from cdcd.sink.kafka_sink import KafkaSink
from cdcd.sink.settings import SinkSettings, TopicSettings
from cdcd.sink.topic_identity import TopicIdentities, TopicIdentity
from cdcd.sink.topics import Topics
from cdcd.sink.transactional_id import check_by_another_id, check_transactional_id
from tests.support.sinks import progress, sink_settings
from tests.support.topics import (
    committed_records,
    committed_values,
    create_topic,
    new_name,
    transactional_producer,
)

OpenSink = Callable[..., KafkaSink]


def records(topic: str, values: int, partitions: int = 2, start: int = 0) -> list[Record]:
    return [
        Record(topic, number % partitions, f"k{number}".encode(), f"v{number}".encode())
        for number in range(start, start + values)
    ]


class Place:
    """One test's own topics and slot on the session's broker."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.slot = new_name("slot")
        self.topic = new_name("rows")
        self.progress_topic = new_name("progress")
        self._sinks: list[KafkaSink] = []
        topics = Topics(self.settings(), TopicSettings(create=True, partitions=2, replication_factor=1))
        topics.ensure([self.topic])
        topics.ensure_progress(self.progress_topic)

    def settings(self, **changes: object) -> SinkSettings:
        return sink_settings(
            self.bootstrap, **{"slot": self.slot, "progress_topic": self.progress_topic, **changes}
        )

    def sink(self, **changes: object) -> KafkaSink:
        sink = KafkaSink(self.settings(**changes))
        self._sinks.append(sink)
        return sink

    def opened(self, **changes: object) -> KafkaSink:
        sink = self.sink(**changes)
        sink.open()
        return sink

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()

    def committed(self, at_least: int = 0) -> list[bytes | None]:
        return committed_values(self.bootstrap, self.topic, at_least)


@pytest.fixture
def place(kafka: KafkaBroker) -> Iterator[Place]:
    kafka.start()
    here = Place(kafka.bootstrap)
    yield here
    here.close()


def produce_all(sink: KafkaSink, batch: list[Record]) -> None:
    at = 0
    while (at := sink.produce(batch, at)) < len(batch):
        sink.poll(0.1)


def wait_delivered(sink: KafkaSink) -> None:
    """Wait until all produced records are written, but not committed."""
    while sink.queued:
        sink.send_now(0.1)


def write(sink: KafkaSink, batch: list[Record], position: Progress) -> Progress:
    """Produce into the open group and commit it; a delivery may fail in either call."""
    produce_all(sink, batch)
    return sink.commit(position)


def test_a_group_is_visible_only_after_its_commit(place: Place) -> None:
    """F64."""
    sink = place.opened()
    sink.begin()
    produce_all(sink, records(place.topic, 10))
    wait_delivered(sink)
    assert place.committed() == []
    sink.commit(progress(place.slot))
    assert sorted(filter(None, place.committed(10))) == sorted(f"v{n}".encode() for n in range(10))


def test_an_aborted_group_leaves_nothing_and_the_next_one_is_whole(place: Place) -> None:
    sink = place.opened()
    sink.begin()
    produce_all(sink, records(place.topic, 10))
    sink.abort()
    sink.renew_epoch()
    sink.begin()
    produce_all(sink, records(place.topic, 2, start=100))
    sink.commit(progress(place.slot))
    assert sorted(filter(None, place.committed(2))) == [b"v100", b"v101"]


def test_progress_names_the_real_offsets(place: Place) -> None:
    """Readers cut topics at these offsets, so the test compares them with a consumer's."""
    sink = place.opened()
    for start in (0, 7):
        sink.begin()
        produce_all(sink, records(place.topic, 7, start=start))
        written = sink.commit(progress(place.slot, 0x200 + start))
    last = {}
    for message in committed_records(place.bootstrap, place.topic, 14):
        last[message.partition()] = message.offset() + 1
    assert written.offsets == {place.topic: last}
    assert place.opened().open() == written


def test_progress_names_only_the_partitions_of_its_group(place: Place) -> None:
    sink = place.opened()
    sink.begin()
    produce_all(sink, records(place.topic, 4))
    sink.commit(progress(place.slot))
    sink.begin()
    sink.produce([Record(place.topic, 1, b"k", None)], 0)
    written = sink.commit(progress(place.slot, 0x300))
    assert list(written.offsets[place.topic]) == [1]


def test_a_group_may_be_only_progress(place: Place) -> None:
    """An idle stream lets the slot advance (F11)."""
    sink = place.opened()
    sink.begin()
    written = sink.commit(progress(place.slot, 0x999))
    assert written.offsets == {}
    assert place.opened().open() == written


def test_a_tombstone_is_a_null_value(place: Place) -> None:
    sink = place.opened()
    sink.begin()
    sink.produce([Record(place.topic, 0, b"k", None), Record(place.topic, 0, None, b"no key")], 0)
    sink.commit(progress(place.slot))
    seen = [
        (message.key(), message.value()) for message in committed_records(place.bootstrap, place.topic, 2)
    ]
    assert seen == [(b"k", None), (None, b"no key")]


def test_a_first_start_has_no_progress(place: Place) -> None:
    assert place.sink().open() is None


def test_a_restart_reads_the_last_committed_progress_of_its_own_slot(place: Place) -> None:
    first = place.opened()
    for end_lsn in (0x200, 0x300):
        first.begin()
        produce_all(first, records(place.topic, 3))
        last = first.commit(progress(place.slot, end_lsn))
    first.begin()
    produce_all(first, records(place.topic, 3))  # never committed: the process dies here
    other = place.opened(slot="other", transactional_id="other" + place.slot)
    other.begin()
    other.commit(progress("other", 0xFFFF))
    assert place.sink().open() == last


def test_progress_is_found_far_behind_other_slots_records(place: Place) -> None:
    """The topic is read from its end in windows; the slot's record may be many windows back."""
    sink = place.opened()
    sink.begin()
    mine = sink.commit(progress(place.slot))
    producer = transactional_producer(place.bootstrap, new_name("bulk"))
    producer.begin_transaction()
    for _ in range(25_000):
        producer.produce(place.progress_topic, b"not read", b"another slot", 0)
        producer.poll(0)
    producer.commit_transaction(30)
    assert place.sink().open() == mine


def test_another_slots_open_transaction_is_waited_out(place: Place) -> None:
    """It hides the slot's own later record from a read_committed reader; the result None would be a gap."""
    blocker = transactional_producer(place.bootstrap, new_name("blocker"))
    blocker.begin_transaction()
    blocker.produce(place.progress_topic, b"not read", b"another slot", 0)
    assert blocker.flush(30) == 0
    sink = place.sink()
    sink.initialise_only()
    sink.begin()
    mine = sink.commit(progress(place.slot))
    with pytest.raises(SinkUnavailable, match="could not be read to its end"):
        place.sink(operation_timeout_s=3.0).open()
    blocker.abort_transaction(30)
    assert place.sink().open() == mine


def test_a_zombie_is_fenced(place: Place) -> None:
    """F69: a newer process with the slot's id ends the older one's transaction."""
    zombie = place.opened()
    zombie.begin()
    produce_all(zombie, records(place.topic, 5))
    newer = place.opened()
    with pytest.raises(SinkFenced):
        zombie.commit(progress(place.slot, 0x900))
    with pytest.raises(SinkFenced):
        zombie.begin()
    newer.begin()
    produce_all(newer, records(place.topic, 1, start=50))
    newer.commit(progress(place.slot, 0x500))
    assert place.committed(1) == [b"v50"]
    restarted = place.sink().open()
    assert restarted is not None
    assert restarted.end_lsn == 0x500


def goes_on(newer: KafkaSink, place: Place) -> None:
    """Open the sink, check that it finds 0x300, and commit one record at 0x500."""
    stored = newer.open()
    assert stored is not None
    assert stored.end_lsn == 0x300
    newer.begin()
    produce_all(newer, records(place.topic, 1, start=50))
    newer.commit(progress(place.slot, 0x500))


def test_a_zombie_with_another_id_is_fenced_too(place: Place) -> None:
    """F69: the id is a setting; a sink with a new id ends the transaction of the old one."""
    zombie = place.opened()
    zombie.begin()
    zombie.commit(progress(place.slot, 0x300))
    zombie.begin()
    produce_all(zombie, records(place.topic, 5))
    newer = place.sink(transactional_id=f"{place.slot}-renamed")
    goes_on(newer, place)
    with pytest.raises(SinkFenced):
        zombie.commit(progress(place.slot, 0x900))
    assert place.committed(1) == [b"v50"]
    again = place.sink().open()
    assert again is not None
    assert again.end_lsn == 0x500
    newer.begin()
    with pytest.raises(SinkFenced):  # the newer sink is fenced in turn
        newer.commit(progress(place.slot, 0x600))


def test_a_zombie_that_has_committed_nothing_yet_is_fenced_by_who_goes_on_under_the_former_id(
    place: Place,
) -> None:
    """F69: the id is changed, and changed back before the first commit under the new one."""
    first = place.opened()
    first.begin()
    first.commit(progress(place.slot, 0x300))
    zombie = place.sink(transactional_id=f"{place.slot}-renamed")
    zombie.open()
    zombie.begin()
    produce_all(zombie, records(place.topic, 5))
    goes_on(place.sink(), place)
    with pytest.raises(SinkFenced):
        zombie.commit(progress(place.slot, 0x400))
    assert place.committed(1) == [b"v50"]


@pytest.mark.parametrize("limit", ["client", "topic", "queue"])
def test_a_record_too_large_leaves_nothing(place: Place, limit: str) -> None:
    """F65: the client's limit, the topic's, or the client's queue refuses it, and the group fails."""
    topic = place.topic
    large = Record(topic, 0, b"k", b"canary" * 400_000)
    properties = {}
    if limit == "topic":
        topic = new_name("small")
        settings = TopicSettings(True, 1, 1, {"max.message.bytes": "1000"})
        Topics(place.settings(), settings).ensure([topic])
        large = Record(topic, 0, b"k", b"canary" * 40_000)
        properties = {"message.max.bytes": "10000000"}
    if limit == "queue":
        properties = {"message.max.bytes": "10000000", "queue.buffering.max.kbytes": "2048"}
    sink = place.opened(properties=properties)
    sink.begin()
    produce_all(sink, records(place.topic, 5))
    with pytest.raises(RecordTooLarge) as caught:
        write(sink, [large], progress(place.slot))
    assert caught.value.context["topic"] == topic
    assert int(str(caught.value.context["size_bytes"])) == 1 + len(large.value or b"")
    named = {"client": "message.max.bytes", "topic": "topic's max.message.bytes", "queue": "whole queue"}
    assert named[limit] in caught.value.message
    assert "canary" not in str(caught.value)
    sink.abort()
    assert place.committed() == []
    assert place.sink().open() is None


@pytest.mark.parametrize("limit", ["client", "topic"])
def test_an_internal_record_that_is_too_large_names_the_resolution(place: Place, limit: str) -> None:
    """F65: it contains no row, so `sink.too_large: dead_letter` would have no effect."""
    properties = {"message.max.bytes": "1000"}
    if limit == "topic":
        properties = {"message.max.bytes": "10000000"}
        place.progress_topic = new_name("small")
        create_topic(place.bootstrap, place.progress_topic, config={"max.message.bytes": "1000"})
    sink = place.opened(properties=properties)
    sink.identities = TopicIdentities({f"topic-{n}": TopicIdentity(new_name("id"), 6) for n in range(1000)})
    sink.identities.is_changed = True
    sink.begin()
    with pytest.raises(RecordTooLarge) as caught:
        write(sink, records(place.topic, 5), progress(place.slot))
    assert caught.value.context["topic"] == place.progress_topic
    if limit == "client":
        assert "the record of the topics" in caught.value.message
    assert "dead_letter does not help" in caught.value.advice
    assert "sink.properties.message.max.bytes" in caught.value.advice
    sink.abort()
    assert place.committed() == []


def test_a_partition_that_is_not_there_stops_the_group(place: Place) -> None:
    """F66: the record is not written to another partition."""
    sink = place.opened()
    sink.begin()
    with pytest.raises(TopicMismatch):
        write(sink, [*records(place.topic, 1), Record(place.topic, 7, b"k", b"v")], progress(place.slot))
    sink.abort()
    assert place.committed() == []


def test_no_transaction_begins_in_the_epoch_of_an_aborted_one(place: Place) -> None:
    """F77: an abort that arrives late, or twice, would also end a new transaction in that epoch."""
    sink = place.opened()
    sink.begin()
    produce_all(sink, records(place.topic, 1))
    sink.abort()
    with pytest.raises(SinkUnavailable, match="may still arrive"):
        sink.begin()
    sink.renew_epoch()
    sink.begin()


def test_a_full_queue_takes_a_part_and_loses_nothing(place: Place) -> None:
    sink = place.opened(properties={"queue.buffering.max.messages": "10"})
    batch = records(place.topic, 100)
    sink.begin()
    assert 0 < sink.produce(batch, 0) < 100
    sink.abort()
    sink.renew_epoch()
    sink.begin()
    produce_all(sink, batch)
    wait_delivered(sink)
    sink.commit(progress(place.slot))
    assert len(place.committed(100)) == 100


def test_a_missing_progress_topic_is_not_a_first_start(place: Place) -> None:
    with pytest.raises(TopicMissing):
        place.sink(progress_topic=new_name("absent")).open()


def test_foreign_data_under_the_slots_key_is_not_guessed(place: Place) -> None:
    producer = transactional_producer(place.bootstrap, new_name("foreign"))
    producer.begin_transaction()
    producer.produce(place.progress_topic, b'{"format": 99}', place.slot.encode(), 0)
    producer.commit_transaction(30)
    with pytest.raises(ProgressUnreadable):
        place.sink().open()


def test_properties_that_the_client_refuses_are_an_error_of_cdcd(place: Place) -> None:
    with pytest.raises(SinkError, match=r"no\.such\.property"):
        place.sink(properties={"no.such.property": "1"}).open()


def test_at_least_once_is_visible_at_commit_and_has_progress(place: Place) -> None:
    sink = place.opened(delivery="at_least_once")
    sink.begin()
    produce_all(sink, records(place.topic, 10))
    written = sink.commit(progress(place.slot))
    assert len(place.committed(10)) == 10
    assert sum(written.offsets[place.topic].values()) == 10
    assert place.sink(delivery="at_least_once").open() == written


def test_at_least_once_a_failed_delivery_makes_commit_raise(place: Place) -> None:
    """F63: no progress beyond a hole."""
    topic = new_name("small")
    Topics(place.settings(), TopicSettings(True, 1, 1, {"max.message.bytes": "1000"})).ensure([topic])
    sink = place.opened(delivery="at_least_once")
    sink.begin()
    with pytest.raises(RecordTooLarge):
        write(sink, [Record(topic, 0, b"k", b"x" * 5000)], progress(place.slot))
    assert place.sink(delivery="at_least_once").open() is None


def test_the_probe_of_the_transactional_id_fences_nobody(place: Place) -> None:
    sink = place.opened()
    sink.begin()
    produce_all(sink, records(place.topic, 2))
    found = check_transactional_id(place.settings(), 900_000)
    assert found is not None
    assert found.level == "ok"
    slow = place.settings(
        properties={"socket.timeout.ms": "10000"}
    )  # librdkafka compares it with the time-out
    found = check_transactional_id(slow, 900_000)
    assert found is not None
    assert found.level == "ok"
    assert check_by_another_id(place.settings()).level == "ok"
    assert check_transactional_id(place.settings(), None) is None, (
        "without the limit the probe would take over the id"
    )
    assert check_transactional_id(place.settings(), 2**31 - 1) is None
    too_long = check_transactional_id(place.settings(transaction_timeout_ms=900_000), 600_000)
    assert too_long is not None
    assert too_long.level == "fail"
    assert "600000" in too_long.hint
    sink.commit(progress(place.slot))
    assert len(place.committed(2)) == 2


# --- a broker that goes away ---------------------------------------------------------------------------------


@pytest.mark.own_broker
@pytest.mark.nightly  # a broken set-up and fault 4 have this broker
def test_a_stopped_broker_is_unavailable_within_the_timeout(place: Place, kafka: KafkaBroker) -> None:
    """Open, commit and close are all bounded; after the broker's return nothing of the group is visible (F76)."""
    sink = place.opened(operation_timeout_s=3.0)
    sink.begin()
    kafka.stop()
    try:
        produce_all(sink, records(place.topic, 5))
        started = time.monotonic()
        with pytest.raises(SinkUnavailable):
            sink.commit(progress(place.slot))
        with pytest.raises(SinkUnavailable):
            place.sink(operation_timeout_s=2.0).open()
        found = check_transactional_id(place.settings(operation_timeout_s=2.0), 900_000)
        assert found is not None
        assert (found.level, found.code) == ("fail", "CDCD-SINK-UNAVAILABLE")
        sink.close()
        assert time.monotonic() - started < 25
    finally:
        kafka.start()
    assert place.sink(operation_timeout_s=60.0).open() is None
    assert place.committed() == []


@pytest.mark.nightly  # fault 23 has it
@pytest.mark.own_broker
def test_a_commit_with_an_unknown_result_tears_the_sink(place: Place, kafka: KafkaBroker) -> None:
    """F76: the broker dies between the last delivery and the response to the commit."""
    sink = place.opened(operation_timeout_s=3.0)
    sink.begin()
    produce_all(sink, records(place.topic, 5))
    wait_delivered(sink)
    kafka.kill()
    try:
        with pytest.raises(SinkUnavailable):
            sink.commit(progress(place.slot))
        sink.close()
    finally:
        kafka.start()
    after = place.sink(operation_timeout_s=60.0).open()
    visible = len(place.committed(0 if after is None else 5))
    assert (after is None, visible) in {(True, 0), (False, 5)}


def test_the_progress_topic_holds_what_readers_expect(place: Place) -> None:
    """Key: the slot. One record a group, on partition 0, inside its transaction; before it the joining record.

    A group whose records are all delivered has nothing to wait for, and writes no joining record.
    """
    sink = place.opened(properties={"linger.ms": "60000"})
    for end_lsn, rows in ((0x200, 3), (0x300, 0), (0x400, 1)):
        sink.begin()
        produce_all(sink, records(place.topic, rows))
        sink.commit(progress(place.slot, end_lsn))
    found = committed_records(place.bootstrap, place.progress_topic, 5)
    joining, reported = (f"{place.slot}/joining".encode(), True), (place.slot.encode(), False)
    assert [(message.key(), message.value() is None) for message in found] == [
        joining,
        reported,
        reported,
        joining,
        reported,
    ]
    assert {message.partition() for message in found} == {0}
    # The first transaction's marker is between the two, so offsets are not consecutive.
    assert [message.offset() - found[0].offset() for message in found] == [0, 1, 3, 5, 6]


def test_a_commit_announced_before_is_a_single_commit(place: Place) -> None:
    """Rows produced after the joining record belong to the same commit; `commit_soon` may be called repeatedly."""
    sink = place.opened(properties={"linger.ms": "60000"})
    for end_lsn in (0x200, 0x300):
        sink.begin()
        produce_all(sink, records(place.topic, 2))
        sink.commit_soon()
        produce_all(sink, records(place.topic, 2))
        sink.commit_soon()
        reported = sink.commit(progress(place.slot, end_lsn))
        assert set(reported.offsets) == {place.topic}
    assert len(place.committed(8)) == 8
    found = committed_records(place.bootstrap, place.progress_topic, 4)
    assert [message.value() is None for message in found] == [True, False] * 2


def test_delivered_records_need_no_joining_record(place: Place) -> None:
    sink = place.opened()
    sink.begin()
    produce_all(sink, records(place.topic, 2))
    wait_delivered(sink)
    sink.commit_soon()
    sink.commit(progress(place.slot))
    assert [message.key() for message in committed_records(place.bootstrap, place.progress_topic, 1)] == [
        place.slot.encode()
    ]


def test_an_announced_and_aborted_group_is_not_visible(place: Place) -> None:
    sink = place.opened()
    sink.begin()
    produce_all(sink, records(place.topic, 2))
    sink.commit_soon()
    sink.abort()
    sink.renew_epoch()
    sink.begin()
    write(sink, records(place.topic, 1), progress(place.slot, 0x300))
    assert len(place.committed(1)) == 1
    found = committed_records(place.bootstrap, place.progress_topic, 2)
    assert [message.value() is None for message in found] == [True, False]


def test_a_group_that_fills_the_queue_is_committed(place: Place) -> None:
    """The queue has no space for the joining record, which is optional."""
    sink = place.opened(properties={"queue.buffering.max.messages": "5"})
    sink.begin()
    assert sink.produce(records(place.topic, 6), 0) == 5
    sink.commit(progress(place.slot))
    assert len(place.committed(5)) == 5
    assert place.sink().open() is not None


def test_order_within_a_partition_is_the_order_of_produce(place: Place) -> None:
    sink = place.opened()
    sink.begin()
    produce_all(sink, [Record(place.topic, 0, b"k", str(n).encode()) for n in range(5_000)])
    sink.commit(progress(place.slot))
    assert place.committed(5_000) == [str(n).encode() for n in range(5_000)]


def test_what_a_reader_sees_uncommitted_is_marked_aborted(place: Place) -> None:
    """This shows that the other tests' consumer could see aborted rows: read_uncommitted returns them."""
    sink = place.opened()
    sink.begin()
    sink.produce([Record(place.topic, 0, b"k", b"aborted")], 0)
    wait_delivered(sink)
    sink.abort()
    consumer = Consumer(
        {
            "bootstrap.servers": place.bootstrap,
            "group.id": new_name("dirty"),
            "isolation.level": "read_uncommitted",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(place.topic, 0, OFFSET_BEGINNING)])
    values = []
    while True:
        message = consumer.poll(10)
        assert message is not None
        if message.error() is not None:
            assert message.error().code() == KafkaError._PARTITION_EOF
            break
        values.append(message.value())
    consumer.close()
    assert values == [b"aborted"]
    assert place.committed() == []
