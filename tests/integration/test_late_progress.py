"""F77: with at_least_once, the progress record of an ended session arrives after later ones."""

from __future__ import annotations

import dataclasses
from contextlib import closing

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.postgres import PostgresServer
from cdcd.errors import SinkUnavailable
from cdcd.model import Progress
from cdcd.sink.kafka_sink import KafkaSink
from cdcd.sink.progress import load
from cdcd.sink.reader import peek, read_last
from cdcd.sink.settings import Delivery, SinkSettings
from tests.integration.conftest import NewDaemon
from tests.support.daemon import Daemon, await_confirmed
from tests.support.folded import folded
from tests.support.proxy import Proxy
from tests.support.reader import Reader
from tests.support.resolutions import ACCEPT_GAP, command
from tests.support.sinks import make_topics, progress, sink_settings
from tests.support.waiting import eventually

CONFIRMED_LSN = 0x400


def end_of(settings: SinkSettings) -> int:
    last = read_last(settings)
    assert last is not None
    assert last.progress is not None
    return last.progress.end_lsn


@pytest.fixture
def late(kafka: KafkaBroker, kafka_door: Proxy) -> SinkSettings:
    """The settings of a slot, confirmed up to CONFIRMED_LSN, whose last record is a late one that ends before."""
    settings = sink_settings(kafka.bootstrap, delivery="at_least_once")
    make_topics(settings)
    slow = dataclasses.replace(
        settings, bootstrap_servers=f"127.0.0.1:{kafka_door.port}", operation_timeout_s=3.0
    )
    with closing(KafkaSink(slow)) as first:
        first.open()
        first.begin()
        first.commit(progress(settings.slot, 0x200))
        kafka_door.hold("up")
        first.begin()
        with pytest.raises(SinkUnavailable):
            first.commit(progress(settings.slot, 0x300))
    with closing(KafkaSink(settings)) as second:
        second.open()
        for end_lsn in (0x300, CONFIRMED_LSN, 0x420):
            second.begin()
            second.commit(progress(settings.slot, end_lsn))
    kafka_door.heal()
    eventually(lambda: end_of(settings) == 0x300, "the late record has arrived")
    return settings


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_the_record_that_was_overtaken_is_the_position_and_the_last_one_again(
    late: SinkSettings, delivery: Delivery
) -> None:
    settings = dataclasses.replace(late, delivery=delivery)
    assert peek(settings, 5.0, confirmed_lsn=CONFIRMED_LSN)[0] == progress(settings.slot, 0x420)
    with closing(KafkaSink(settings)) as sink:
        found = sink.open(lambda: CONFIRMED_LSN)
        assert found is not None
        assert found.end_lsn == end_of(settings) == 0x420
        sink.begin()
        sink.commit(progress(settings.slot, 0x500))
        if delivery == "exactly_once":
            sink.renew_epoch()  # the last record is this sink's own
    assert end_of(settings) == 0x500


def test_without_the_proof_the_last_record_is_the_position(late: SinkSettings) -> None:
    """F3: the slot was advanced: changes may be missing, and the start has to halt."""
    with closing(KafkaSink(late)) as sink:
        found = sink.open(lambda: 0x410)
        assert found is not None
        assert found.end_lsn == 0x300
    assert peek(late, 5.0, confirmed_lsn=0x410)[0] == progress(late.slot, 0x300)


def progress_records(daemon: Daemon, bootstrap: str) -> list[bytes]:
    """Return the progress records of the daemon's slot."""
    properties = {"bootstrap.servers": bootstrap, "group.id": "late", "enable.partition.eof": True}
    with closing(Consumer(properties)) as consumer:
        consumer.assign([TopicPartition(f"{daemon.name}.__progress", 0, 0)])
        found = []
        while (message := consumer.poll(30)) is not None and message.error() is None:
            if message.key() == daemon.slot.encode() and message.value() is not None:
                found.append(message.value() or b"")
    return found


def append_late_record(daemon: Daemon, bootstrap: str) -> Progress:
    """Write a former progress record once more, as a late request does; return the newest one."""
    records = progress_records(daemon, bootstrap)
    newest = load(records[-1])
    late = next(one for one in reversed(records) if load(one).end_lsn < newest.end_lsn)
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(f"{daemon.name}.__progress", late, daemon.slot, 0)
    assert producer.flush(30) == 0
    return newest


@pytest.mark.parametrize("mode", ["initial", "when_needed"])
def test_a_daemon_goes_on_after_a_late_record_and_copies_nothing(
    mode: str,
    postgres: PostgresServer,
    database: str,
    new_daemon: NewDaemon,
    kafka: KafkaBroker,
    reader: Reader,
) -> None:
    """Nothing is missing, so the start does not halt, and no snapshot is taken again."""
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY)", dbname=database)
    with new_daemon(
        postgres, database, sink={"delivery": "at_least_once"}, snapshot={"mode": mode}
    ) as daemon:
        daemon.start().wait_state("streaming")
        for number in range(3):
            postgres.execute("INSERT INTO t VALUES (%s)", number, dbname=database)
            await_confirmed(postgres, daemon)
        assert daemon.stop() == 0
        newest = append_late_record(daemon, kafka.bootstrap)
        daemon.start().wait_state("streaming")
        postgres.execute("INSERT INTO t VALUES (3)", dbname=database)
        await_confirmed(postgres, daemon)
        assert len(daemon.events("late_progress")) == 1
        assert daemon.events("new_snapshot") == []
        assert daemon.stop() == 0
        events = reader.read(f"{daemon.name}.public.t")
        assert sorted(row["id"] for row in folded(events).values()) == [0, 1, 2, 3]
        assert load(progress_records(daemon, kafka.bootstrap)[-1]).end_lsn > newest.end_lsn


def test_no_gap_is_accepted_where_only_the_record_is_late(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, kafka: KafkaBroker
) -> None:
    """Nothing is missing: `cdcd resume --accept-gap` refuses, and the overtaken record is the last one again."""
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY)", dbname=database)
    with new_daemon(postgres, database, sink={"delivery": "at_least_once"}) as daemon:
        daemon.start().wait_state("streaming")
        for number in range(2):
            postgres.execute("INSERT INTO t VALUES (%s)", number, dbname=database)
            await_confirmed(postgres, daemon)
        assert daemon.stop() == 0
        newest = append_late_record(daemon, kafka.bootstrap)
        ran = command(daemon, *ACCEPT_GAP)
        assert ran.returncode != 0
        assert "nothing is missing" in ran.stderr
        assert load(progress_records(daemon, kafka.bootstrap)[-1]).gap is None
        daemon.start().wait_state("streaming")
        assert load(progress_records(daemon, kafka.bootstrap)[-1]).end_lsn >= newest.end_lsn
