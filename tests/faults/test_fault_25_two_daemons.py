"""Fault 25: two daemons on one slot: one writes, the other waits or exits as fenced (F69). The slot is the lock.

A fencing error may also be the broker's transaction timeout (librdkafka has the same error for both): after a timeout
the daemon does not exit.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.postgres import PostgresServer
from cdcd.errors import CdcdError, SinkFenced, TransactionExpired
from cdcd.model import Record
from cdcd.session.fencing import error_of_fencing
from cdcd.sink.kafka_sink import KafkaSink
from cdcd.source.settings import SourceSettings
from tests.integration.conftest import NewDaemon
from tests.support.daemon import Daemon
from tests.support.reader import Reader, assert_each_once
from tests.support.sinks import make_topics, progress, sink_settings
from tests.support.stack import commit_behind, confirmed_position
from tests.support.topics import committed_values, new_name, transactional_producer
from tests.support.waiting import eventually


class Ends:
    """The end offset and the last stable offset of a partition."""

    def __init__(self, bootstrap: str, topic: str, partition: int = 0) -> None:
        self._admin = AdminClient({"bootstrap.servers": bootstrap})
        self._partition = TopicPartition(topic, partition)

    @property
    def written(self) -> int:
        """The end of the log."""
        return self._end(IsolationLevel.READ_UNCOMMITTED)

    @property
    def stable(self) -> int:
        """The last stable offset, which advances when an open transaction ends."""
        return self._end(IsolationLevel.READ_COMMITTED)

    def _end(self, isolation: IsolationLevel) -> int:
        asked = self._admin.list_offsets({self._partition: OffsetSpec.latest()}, isolation_level=isolation)
        return int(asked[self._partition].result(10).offset)


class Expired:
    """A sink whose Kafka transaction the broker has aborted after its timeout, with the slot of a real server."""

    def __init__(self, kafka: KafkaBroker, source: SourceSettings) -> None:
        self.bootstrap = kafka.bootstrap
        self.source = source
        self.settings = sink_settings(
            self.bootstrap,
            slot=source.slot,
            transactional_id=new_name("cdcd"),
            transaction_timeout_ms=1000,
        )
        self.topic = make_topics(self.settings)
        self.sink = KafkaSink(self.settings)
        self.sink.open()
        self.write(self.sink, b"before", 0x100)

    def write(self, sink: KafkaSink, value: bytes, end_lsn: int) -> None:
        """Write and commit one group."""
        sink.begin()
        sink.produce([Record(self.topic, 0, b"k", value)], 0)
        sink.commit(progress(self.source.slot, end_lsn))

    def expire(self) -> SinkFenced:
        """Leave a transaction open until the broker aborts it; return the sink's error."""
        ends = Ends(self.bootstrap, self.topic)
        self.sink.begin()
        self.sink.produce([Record(self.topic, 0, b"k", b"expired")], 0)
        while self.sink.queued:
            self.sink.poll(0.1)
        written = ends.written
        eventually(lambda: ends.stable > written, "the broker has aborted the transaction", pause_s=0.2)
        with pytest.raises(SinkFenced) as caught:
            self.sink.commit(progress(self.source.slot, 0x200))
        return caught.value

    def error_of_fencing(self, error: SinkFenced) -> CdcdError:
        return error_of_fencing(
            error,
            self.source,
            self.settings,
            age_s=self.sink.age_s,
            own_pid=None,
            own_offset=self.sink.progress_offset,
        )


def new_source(postgres: PostgresServer, database: str) -> SourceSettings:
    """Create a slot; return the settings to find it."""
    slot = new_name("slot").replace("-", "_")
    postgres.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", slot, dbname=database)
    return SourceSettings(
        dsn=postgres.dsn(database),
        read_password=lambda: None,
        slot=slot,
        publications=("none",),
        application_name="cdcd-test",
    )


@pytest.fixture
def expired(kafka: KafkaBroker, postgres: PostgresServer, database: str) -> Iterator[Expired]:
    kafka.start()
    here = Expired(kafka, new_source(postgres, database))
    yield here
    here.sink.close()


def test_a_transaction_that_the_broker_gave_up_is_no_takeover(expired: Expired) -> None:
    """F69: the slot is free, no other producer has written: the next session continues, each record is there once."""
    error = expired.error_of_fencing(expired.expire())
    assert type(error) is TransactionExpired
    following = KafkaSink(expired.settings)
    stored = following.open()
    assert stored is not None
    assert stored.end_lsn == 0x100
    expired.write(following, b"again", 0x200)
    following.close()
    assert committed_values(expired.bootstrap, expired.topic, 2) == [b"before", b"again"]


def test_an_expired_transaction_is_a_takeover_if_another_producer_has_written_since(expired: Expired) -> None:
    """F69: the old producer's transaction has expired, too, but another producer has written since."""
    failure = expired.expire()
    other = KafkaSink(expired.settings)
    other.open()
    expired.write(other, b"other", 0x200)
    other.close()
    assert expired.error_of_fencing(failure) is failure


@pytest.mark.nightly
def test_an_expired_transaction_is_a_takeover_if_another_client_holds_the_slot(
    expired: Expired, postgres: PostgresServer, database: str, new_daemon: NewDaemon
) -> None:
    """F69: an expired transaction is a takeover if another client holds the slot."""
    failure = expired.expire()
    with new_daemon(postgres, database) as daemon:
        daemon.config["source"]["slot"] = {"name": expired.source.slot}
        daemon.config["snapshot"] = {"mode": "never"}
        daemon.start().wait_state("streaming")
        assert expired.error_of_fencing(failure) is failure


def test_a_young_transaction_that_is_fenced_was_taken_over(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, kafka: KafkaBroker, reader: Reader
) -> None:
    """F69: after another producer with the same transactional id, the daemon ends with a special exit status.

    It has neither written nor confirmed anything more; the next start does.
    """
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY)", dbname=database)
    with new_daemon(postgres, database) as daemon:
        daemon.start().wait_state("streaming")
        transactional_producer(kafka.bootstrap, f"cdcd-{daemon.slot}")
        before = commit_behind(postgres, database, "INSERT INTO t VALUES (1)")
        assert daemon.wait_exit() == 75
        assert "CDCD-SINK-FENCED" in daemon.log()
        assert reader.read(f"{daemon.name}.public.t") == []
        assert (confirmed_position(postgres, daemon.slot) or 0) <= before
        daemon.start()
        reader.wait([f"{daemon.name}.public.t"], lambda events: len(events) == 1)


def both(new_daemon: NewDaemon, server: PostgresServer, database: str) -> tuple[Daemon, Daemon]:
    """Return two daemons with one slot; a frozen one loses the slot after two seconds."""
    over = {"sink": {"commit": {"max_wait_ms": 300}}}
    first, second = new_daemon(server, database, **over), new_daemon(server, database, **over)
    for daemon in (first, second):
        daemon.config["name"] = first.name
        daemon.config["source"]["dsn"] += "?options=-c%20wal_sender_timeout%3D2s"
    return first, second


def test_a_second_daemon_waits_and_fences_nobody(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    """F69: the first daemon continues; when it stops, the second one takes over, and each row is there once."""
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY)", dbname=database)
    first, second = both(new_daemon, postgres, database)
    topic = f"{first.name}.public.t"
    first.start().wait_state("streaming")
    second.start().wait_state("waiting_slot")
    postgres.execute("INSERT INTO t VALUES (1)", dbname=database)
    reader.wait([topic], lambda events: len(events) == 1)
    assert first.status()["state"] == "streaming"
    assert first.stop() == 0
    second.wait_state("streaming")
    postgres.execute("INSERT INTO t VALUES (2)", dbname=database)
    events = reader.wait([topic], lambda events: len(events) >= 2)
    assert sorted(event.value["after"]["id"] for event in events) == [1, 2]
    assert_each_once(events)
