"""Records that librdkafka takes directly are the records that confluent-kafka's `produce` would have written."""

from __future__ import annotations

import contextlib
import gc
import logging
import random
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.extensions import extension
from cdcd.model import Record
from cdcd.sink import direct_producer
from cdcd.sink.direct_producer import new_producer
from cdcd.sink.kafka_sink import KafkaSink
from cdcd.sink.produce_batch import produce_batch
from tests.support.running import of_librdkafka
from tests.support.sinks import make_topics, sink_settings
from tests.support.topics import committed_records, create_topic, new_name
from tests.support.waiting import eventually

pytestmark = pytest.mark.skipif(
    extension("cdcd.sink._produce_batch") is None, reason="the Python fallbacks were asked for"
)
PARTITIONS = 3
LOG = logging.getLogger(__name__)
NewProducer = Callable[..., tuple[Producer, Any]]


@pytest.fixture
def begun(kafka: KafkaBroker) -> Iterator[NewProducer]:
    """Make a transactional producer in its first transaction, with its direct one."""
    kafka.start()
    with contextlib.ExitStack() as stack:

        def new(**properties: object) -> tuple[Producer, Any]:
            own = {"bootstrap.servers": kafka.bootstrap, "transactional.id": new_name("direct"), **properties}
            producer, direct = new_producer(own, logger=LOG)
            assert direct is not None, "the installed librdkafka gives its plugins the client's address"
            stack.callback(direct.close)
            producer.init_transactions(60)
            producer.begin_transaction()
            return producer, direct

        yield new


@pytest.fixture
def topic(kafka: KafkaBroker) -> str:
    kafka.start()
    name = new_name("direct")
    create_topic(kafka.bootstrap, name, PARTITIONS)
    return name


def various(topic: str, count: int) -> list[Record]:
    chance = random.Random(count)
    keys = (None, b"", b"k", b"key\0\xff", b"k" * 1000)
    values = (None, b"", b"v", b"value\0\xff", b"v" * 100_000)
    return [
        Record(topic, chance.randrange(PARTITIONS), chance.choice(keys), chance.choice(values))
        for _ in range(count)
    ]


def of_partition(records: Sequence[Record], partition: int) -> list[tuple[bytes | None, bytes | None]]:
    return [(record.key, record.value) for record in records if record.partition == partition]


def found_in(bootstrap: str, topic: str, count: int) -> list[list[tuple[bytes | None, bytes | None]]]:
    messages = committed_records(bootstrap, topic, count)
    return [
        [(one.key(), one.value()) for one in messages if one.partition() == partition]
        for partition in range(PARTITIONS)
    ]


class Reports:
    """The delivery reports, and that `produce` was asked for no other ones."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self.calls = 0
        self.offsets: list[tuple[int, int]] = []

    def produce(self, *arguments: object) -> None:
        self.calls += 1
        self._producer.produce(*arguments)  # type: ignore[arg-type]

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        assert error is None
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        self.offsets.append((partition, offset))


def test_keys_and_values_arrive_as_they_are_in_the_order_of_each_partition(
    begun: NewProducer, topic: str, kafka: KafkaBroker
) -> None:
    producer, direct = begun()
    records = various(topic, 500)
    reports = Reports(producer)
    assert produce_batch(reports.produce, reports, records, 0, direct) == (len(records), None)
    assert reports.calls == 2 * PARTITIONS, "the other records were taken directly"
    producer.commit_transaction(60)
    found = found_in(kafka.bootstrap, topic, len(records))
    assert found == [of_partition(records, partition) for partition in range(PARTITIONS)]
    ends = {(number, place) for number, one in enumerate(found) for place in (0, len(one) - 1)}
    assert set(reports.offsets) == ends


def test_a_full_queue_takes_the_rest_later_without_a_gap(
    begun: NewProducer, topic: str, kafka: KafkaBroker
) -> None:
    producer, direct = begun(**{"queue.buffering.max.messages": 7})
    records = [Record(topic, 0, b"%d" % number, b"v") for number in range(100)]
    reports = Reports(producer)
    at, stops = 0, 0
    while at < len(records):
        at, failure = produce_batch(reports.produce, reports, records, at, direct)
        assert failure is None or isinstance(failure, BufferError)
        stops += failure is not None
        producer.flush(60)
    assert stops >= len(records) // 7 - 1
    producer.commit_transaction(60)
    assert found_in(kafka.bootstrap, topic, len(records))[0] == of_partition(records, 0)


def test_a_refused_record_is_named_with_librdkafkas_reason(begun: NewProducer, topic: str) -> None:
    producer, direct = begun(**{"message.max.bytes": 2000})
    good = [Record(topic, 0, b"k", b"v")] * 5
    eventually(lambda: topic in producer.list_topics(topic, 10).topics, "the client knows the topic")
    refused = {
        KafkaError.MSG_SIZE_TOO_LARGE: Record(topic, 0, b"k", b"v" * 3000),
        KafkaError._UNKNOWN_PARTITION: Record(topic, PARTITIONS, b"k", b"v"),
    }
    producer.produce(topic, b"first")
    producer.flush(60)
    for code, bad in refused.items():
        # Between others of its partition, so that it asks for no report and is taken directly.
        records = [*good, bad, *good] if bad.partition == 0 else [*good, *[bad] * 3, *good]
        at, failure = produce_batch(producer.produce, print, records, 0, direct)
        assert at == len(good)
        assert isinstance(failure, KafkaException)
        assert failure.args[0].code() == code
    producer.abort_transaction(60)
    at, failure = produce_batch(producer.produce, print, good, 0, direct)
    assert at == 0, "no record without a transaction"
    assert isinstance(failure, KafkaException)
    assert failure.args[0].code() == KafkaError._STATE


def test_the_client_of_a_sink_has_a_direct_producer(kafka: KafkaBroker) -> None:
    kafka.start()
    sink = KafkaSink(sink_settings(kafka.bootstrap))
    sink.initialise_only()
    try:
        assert sink._client is not None
        assert sink._client.direct is not None
    finally:
        sink.close()


def in_a_process_of_its_own(function: str, *arguments: str) -> None:
    """Call a function of this file: a client of another test, whose broker has ended, starts threads at any time."""
    code = f"import sys, tests.integration.test_direct_producer as one; one.{function}(*sys.argv[1:])"
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def abandoned(bootstrap: str, topics: Sequence[str], *, closes: bool) -> None:
    producer, direct = new_producer({"bootstrap.servers": bootstrap}, logger=LOG)
    assert direct is not None
    for topic in topics:
        records = [Record(topic, 0, b"k", b"v")] * 10
        assert produce_batch(producer.produce, print, records, 0, direct) == (10, None)
    assert of_librdkafka()
    producer.purge()
    producer.flush(10)
    if closes:
        direct.close()
        direct.close()
        assert produce_batch(producer.produce, print, records, 0, direct) == (10, None)
        producer.purge()
        producer.flush(10)


def abandon(bootstrap: str, closes: str, *topics: str) -> None:
    """Abandon a producer, and wait until no thread of a client is left."""
    abandoned(bootstrap, topics, closes=closes == "True")
    gc.collect()
    eventually(lambda: not of_librdkafka(), "the client's threads have ended")


@pytest.mark.parametrize("closes", [True, False])
def test_a_client_with_handles_of_topics_ends_with_its_producer(kafka: KafkaBroker, closes: bool) -> None:
    kafka.start()
    topics = [make_topics(sink_settings(kafka.bootstrap)), *(new_name("missing") for _ in range(20))]
    in_a_process_of_its_own("abandon", kafka.bootstrap, str(closes), *topics)


def test_only_the_producer_that_was_created_last_in_a_thread_has_a_direct_one(kafka: KafkaBroker) -> None:
    plugin = direct_producer._plugin()
    assert plugin is not None
    properties = {"bootstrap.servers": kafka.bootstrap}
    made: list[Producer] = []

    def create() -> None:
        made.append(Producer(direct_producer._with_plugin(properties, str(plugin.__file__))))

    thread = threading.Thread(target=create)
    thread.start()
    thread.join()
    create()
    create()
    for producer in (*made, Producer(properties)):
        with pytest.raises(LookupError):
            plugin.DirectProducer(producer)
    with pytest.raises(KafkaException):
        new_producer({**properties, "security.protocol": "ssl", "ssl.ca.location": "/missing"}, logger=LOG)
    plugin.forget_created()
    with pytest.raises(LookupError):
        plugin.DirectProducer(Producer(properties))
    assert new_producer(properties, logger=LOG)[1] is not None


def make_cycle(bootstrap: str, topic: str) -> None:
    cycle: list[object] = []
    producer, direct = new_producer(
        {"bootstrap.servers": bootstrap, "error_cb": lambda _: cycle.clear()}, logger=LOG
    )
    cycle += [producer, direct, cycle]
    records = [Record(topic, 0, b"k", b"v")] * 10
    assert produce_batch(producer.produce, print, records, 0, direct) == (10, None)
    assert of_librdkafka()
    producer.flush(10)


def collect_cycle(bootstrap: str, topic: str) -> None:
    """Leave a producer to the garbage collector, and wait until no thread of a client is left."""
    make_cycle(bootstrap, topic)
    gc.collect()
    eventually(lambda: not of_librdkafka(), "the client's threads have ended")


def test_a_client_that_is_not_closed_and_in_a_cycle_lets_go_of_its_topics_first(kafka: KafkaBroker) -> None:
    kafka.start()
    topic = make_topics(sink_settings(kafka.bootstrap))
    in_a_process_of_its_own("collect_cycle", kafka.bootstrap, topic)


PLUGINS = "plugin.library.paths"


@pytest.mark.parametrize("paths", [";", "missing;", "missing"])
def test_what_is_wrong_with_a_users_plugins_is_what_the_producer_says_without_cdcds(paths: str) -> None:
    """librdkafka takes an empty last path, and no empty path in the middle."""
    said = []
    for create in (lambda: Producer({PLUGINS: paths}), lambda: new_producer({PLUGINS: paths}, logger=LOG)):
        try:
            create()
            said.append("")
        except KafkaException as failure:
            said.append(failure.args[0].str())
    assert said[0] == said[1]


def test_a_users_plugins_are_loaded_as_well(tmp_path: Path) -> None:
    plugin = direct_producer._plugin()
    assert plugin is not None
    users = tmp_path / "users_plugin.so"
    shutil.copy(str(plugin.__file__), users)  # its `conf_init` does nothing: its functions are not set
    producer, direct = new_producer({PLUGINS: str(users)}, logger=LOG)
    assert direct is not None
    assert str(users) in Path("/proc/self/maps").read_text()
    assert producer.flush(10) == 0
