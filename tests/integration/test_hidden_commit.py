"""F86: a committed transaction without markers, as a broker leaves it that is killed after it reported the commit.

Kafka 4.3.0 with one node does so at random. Here the coordinator's state is written as Kafka writes it then: the
transaction is complete, and its records have no marker. The broker then starts with this state.
"""

from __future__ import annotations

import dataclasses
import struct
import time
from collections.abc import Callable
from contextlib import closing

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.postgres import PostgresServer
from cdcd.errors import SinkUnavailable
from cdcd.model import CopyState, Gap, Progress, Record
from cdcd.sink.kafka_sink import KafkaSink
from cdcd.sink.progress import dump, key_of, key_of_joining, load
from cdcd.sink.settings import SinkSettings
from tests.integration.conftest import NewDaemon
from tests.support.daemon import await_confirmed
from tests.support.nightly import nightly
from tests.support.reader import Reader
from tests.support.sinks import make_topics, progress, sink_settings
from tests.support.topics import committed_values, transactional_producer

pytestmark = pytest.mark.own_broker

STATES = "__transaction_state"
VERSION, STATUS_AT, COMPLETE_COMMIT, NO_PARTITIONS, NO_TAGS = 1, 16, b"\4", b"\1", b"\0"
MAY_WRITE_STATES = "__admin_client"
"""The client id of which a broker accepts records of its own topics."""
END_LSN = 0x900


@dataclasses.dataclass
class Place:
    """The topics of one slot, in which a transaction is committed and hidden."""

    kafka: KafkaBroker
    settings: SinkSettings
    topic: str

    def commit(self, position: Progress) -> None:
        """Commit a position, as the slot's session does."""
        with closing(self.sink()) as sink:
            sink.open()
            sink.begin()
            sink.commit(position)

    def hide(self, position: Progress | None = None, positions: int = 1) -> Progress:
        """Write a row and so many positions in a transaction; let the coordinator know it as committed."""
        position, _ = self.write(position or progress(self.settings.slot, END_LSN), positions)
        self._complete()
        self.kafka.stop()
        self.kafka.start()
        return position

    def write(self, position: Progress, positions: int = 1) -> tuple[Progress, Producer]:
        """Write a row and so many positions in a transaction that nobody ends; return the position, the producer."""
        slot, progress_topic = self.settings.slot, self.settings.progress_topic
        position = dataclasses.replace(
            position, transactional_id=self.settings.transactional_id, offsets={self.topic: {0: 1}}
        )
        producer = transactional_producer(self.kafka.bootstrap, self.settings.transactional_id)
        producer.begin_transaction()
        producer.produce(self.topic, b"hidden", b"k", 0)
        producer.produce(progress_topic, None, key_of_joining(slot), 0)
        for _ in range(positions):
            producer.produce(progress_topic, dump(position), key_of(slot), 0)
        assert producer.flush(30) == 0
        return position, producer

    def _complete(self) -> None:
        state = self._state()
        assert int.from_bytes(state[:2], "big") == VERSION
        now_ms = int(time.time() * 1000)
        times = struct.pack(">qq", now_ms, now_ms)
        value = state[:STATUS_AT] + COMPLETE_COMMIT + NO_PARTITIONS + times + NO_TAGS
        writer = Producer({"bootstrap.servers": self.kafka.bootstrap, "client.id": MAY_WRITE_STATES})
        writer.produce(STATES, value, self._key(), 0)
        assert writer.flush(30) == 0

    def _key(self) -> bytes:
        name = self.settings.transactional_id.encode()
        return struct.pack(">hh", 0, len(name)) + name

    def _state(self) -> bytes:
        """Return the coordinator's last record of the transactional id."""
        found = [value for key, value in self.read(STATES) if key == self._key() and value is not None]
        return found[-1]

    def read(self, topic: str) -> list[tuple[bytes, bytes | None]]:
        """Return all records of the topic's first partition, undecided ones too."""
        properties = {
            "bootstrap.servers": self.kafka.bootstrap,
            "group.id": "hidden",
            "enable.partition.eof": True,
        }
        with closing(Consumer({**properties, "isolation.level": "read_uncommitted"})) as consumer:
            consumer.assign([TopicPartition(topic, 0, 0)])
            found = []
            while (message := consumer.poll(30)) is not None and message.error() is None:
                found.append((message.key(), message.value()))
            assert message is not None
        return found

    def sink(self) -> KafkaSink:
        """Return a sink that gives up soon."""
        return KafkaSink(dataclasses.replace(self.settings, operation_timeout_s=5.0))


@pytest.fixture
def place(kafka: KafkaBroker) -> Place:
    settings = sink_settings(kafka.bootstrap)
    return Place(kafka, settings, make_topics(settings))


@pytest.mark.nightly  # the same with a daemon is below
def test_a_commit_that_the_slot_proves_is_the_position_and_becomes_visible(place: Place) -> None:
    place.commit(progress(place.settings.slot, END_LSN - 0x100))
    hidden = place.hide()
    with closing(place.sink()) as sink:
        found = sink.open(lambda: END_LSN)
        assert found is not None
        assert (found.commit_lsn, found.end_lsn) == (hidden.commit_lsn, hidden.end_lsn)
        assert committed_values(place.kafka.bootstrap, place.topic) == []
        sink.begin()
        assert sink.produce([Record(place.topic, 0, b"k", b"next")], 0) == 1
        sink.commit(progress(place.settings.slot, END_LSN + 0x100))
    assert committed_values(place.kafka.bootstrap, place.topic, 2) == [b"hidden", b"next"]
    with closing(place.sink()) as sink:
        found = sink.open()
        assert found is not None
        assert found.end_lsn == END_LSN + 0x100


@pytest.mark.parametrize(
    ("positions", "confirmed_lsn"),
    [
        pytest.param(1, lambda: END_LSN - 1, id="not confirmed"),
        nightly(1, lambda: END_LSN + 1, id="confirmed by something else"),
        nightly(2, lambda: END_LSN, id="two positions"),
    ],
)
def test_without_a_proof_nothing_is_written(
    positions: int, confirmed_lsn: Callable[[], int], place: Place
) -> None:
    """The transaction may have been aborted: its rows must not become visible."""
    place.commit(progress(place.settings.slot, END_LSN - 0x100))
    place.hide(positions=positions)
    before = place.read(place.settings.progress_topic)
    with closing(place.sink()) as sink, pytest.raises(SinkUnavailable, match="could not be read to its end"):
        sink.open(confirmed_lsn)
    assert place.read(place.settings.progress_topic) == before
    assert committed_values(place.kafka.bootstrap, place.topic) == []


def same(position: Progress) -> Progress:
    return position


def earlier(position: Progress) -> Progress:
    return dataclasses.replace(position, commit_lsn=END_LSN - 0x200, end_lsn=END_LSN - 0x100)


def of_snapshot(position: Progress) -> Progress:
    return dataclasses.replace(position, phase="snapshot", copy=CopyState((17,), {}, END_LSN))


@pytest.mark.parametrize(
    ("before", "last"),
    [
        pytest.param(of_snapshot, same, id="the end of a snapshot"),
        nightly(of_snapshot, of_snapshot, id="rows of a snapshot"),
        nightly(same, same, id="a part of a transaction, or a chunk"),
        nightly(lambda position: None, same, id="the first position"),
        nightly(lambda position: of_snapshot(earlier(position)), same, id="a whole snapshot"),
        nightly(
            earlier,
            lambda position: dataclasses.replace(position, gap=Gap(0x100, END_LSN, "CDCD-SLOT-AHEAD", 5)),
            id="an accepted gap",
        ),
    ],
)
def test_an_aborted_transaction_at_the_position_of_the_slot_is_no_commit(
    before: Callable[[Progress], Progress | None], last: Callable[[Progress], Progress], place: Place
) -> None:
    """Another slot of the name holds the last stable offset; ours was killed before the end of its transaction.

    The slot was at the position before: it was created there, or has confirmed an earlier record that ends there.
    """
    position = progress(place.settings.slot, END_LSN)
    committed = before(position)
    if committed is not None:
        place.commit(committed)
    other = transactional_producer(place.kafka.bootstrap, "another-slot-of-this-name")
    other.begin_transaction()
    other.produce(place.settings.progress_topic, None, key_of_joining("another"), 0)
    assert other.flush(30) == 0
    place.write(dataclasses.replace(last(position), commit_us=position.commit_us + 1))
    with closing(place.sink()) as sink, pytest.raises(SinkUnavailable, match="could not be read to its end"):
        sink.open(lambda: END_LSN)  # aborts ours: the producer of its transactional id begins anew
    with closing(place.sink()) as sink, pytest.raises(SinkUnavailable, match="could not be read to its end"):
        sink.open(lambda: END_LSN)
    other.abort_transaction(30)
    with closing(place.sink()) as sink:
        found = sink.open(lambda: END_LSN)
    assert (found and found.commit_us) == (committed and committed.commit_us)
    assert committed_values(place.kafka.bootstrap, place.topic) == []


def test_a_daemon_continues_after_the_hidden_transaction(
    kafka: KafkaBroker, postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    """Its row is not written again: PostgreSQL would not send it either."""
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY)", dbname=database)
    with new_daemon(postgres, database) as daemon:
        daemon.entry = ("-m", "tests.faults.impatient")
        daemon.start().wait_state("streaming")
        postgres.execute("INSERT INTO t VALUES (1)", dbname=database)
        await_confirmed(postgres, daemon)
        assert daemon.stop() == 0
        postgres.execute("INSERT INTO t VALUES (2)", dbname=database)
        progress_topic = f"{daemon.name}.__progress"
        last = [
            value
            for key, value in Place(kafka, sink_settings(kafka.bootstrap), "").read(progress_topic)
            if value
        ]
        stored = load(last[-1])
        place = Place(
            kafka,
            sink_settings(
                kafka.bootstrap,
                slot=daemon.slot,
                progress_topic=progress_topic,
                transactional_id=stored.transactional_id,
            ),
            make_topics(sink_settings(kafka.bootstrap)),
        )
        ((end_lsn,),) = postgres.execute(
            "SELECT end_lsn - '0/0'::pg_lsn FROM pg_replication_slot_advance(%s, pg_current_wal_lsn())",
            daemon.slot,
            dbname=database,
        )
        place.hide(dataclasses.replace(stored, commit_lsn=int(end_lsn) - 8, end_lsn=int(end_lsn)))
        daemon.start().wait_state("streaming")
        (found,) = daemon.events("hidden_commit")
        assert found["topics"] == [place.topic]
        postgres.execute("INSERT INTO t VALUES (3)", dbname=database)
        await_confirmed(postgres, daemon)
        events = reader.read(f"{daemon.name}.public.t")
    assert sorted(event.value["after"]["id"] for event in events) == [1, 3]
