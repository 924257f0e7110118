"""Fault 23: the result of a Kafka commit is not known: the response to EndTxn never arrives (F76).

The link to the broker becomes a black hole at EndTxn, either before the request (the transaction is not committed) or
after it (the transaction is committed). cdcd reads back the durable position, and each row is there once.
"""

from __future__ import annotations

import threading

import pytest

from cdcd.demo.stack.postgres import PostgresServer
from cdcd.errors import SinkUnavailable
from cdcd.model import Record
from cdcd.sink.kafka_sink import KafkaSink
from tests.integration.conftest import NewDaemon
from tests.support.daemon import await_confirmed
from tests.support.nightly import nightly
from tests.support.proxy import Proxy, Way
from tests.support.reader import Reader, assert_each_once
from tests.support.sinks import make_topics, opened, progress, sink_settings
from tests.support.topics import committed_values
from tests.support.waiting import eventually

API_END_TXN = 26
NAMES = ["request_lost", "answer_lost"]
CASES = pytest.mark.parametrize("is_committed", [False, True], ids=NAMES)
LATE_CASES = pytest.mark.parametrize("is_committed", [nightly(False), True], ids=NAMES)


class LostEndTxn:
    """Loses the next EndTxn request (`is_committed` False) or the broker's response to it."""

    def __init__(self, door: Proxy, *, is_committed: bool) -> None:
        self.struck = threading.Event()
        self._correlation_id = b""
        self._is_committed = is_committed
        door.lose_when(self._strikes)

    def _strikes(self, direction: Way, piece: bytes) -> bool:
        """A request begins with its length (4 bytes), API key (2), version (2) and correlation id (4).

        Once the response arrives, the broker has decided: from then on the link loses all responses.
        """
        if direction == "up" and int.from_bytes(piece[4:6], "big") == API_END_TXN:
            self._correlation_id = piece[8:12]
            if not self._is_committed:
                self.struck.set()
                return True
        elif direction == "down" and self._is_committed and self._correlation_id in correlation_ids(piece):
            self.struck.set()
        return direction == "down" and self._is_committed and self.struck.is_set()


def correlation_ids(piece: bytes) -> list[bytes]:
    """Return the correlation ids of the responses that begin in `piece`; each begins with its length (4 bytes)."""
    found, at = [], 0
    while at + 8 <= len(piece):
        found.append(piece[at + 4 : at + 8])
        at += 4 + int.from_bytes(piece[at : at + 4], "big")
    return found


@pytest.mark.nightly  # a daemon reads it back below
@LATE_CASES
def test_the_progress_topic_decides_what_is_durable(
    kafka_door: Proxy, kafka: object, is_committed: bool
) -> None:
    """F76: after an unknown result the sink is unusable; the next sink reads it back, and the row is there once."""
    bootstrap = f"127.0.0.1:{kafka_door.port}"
    settings = sink_settings(bootstrap, operation_timeout_s=8.0)
    topic = make_topics(settings)
    sink = KafkaSink(settings)
    assert sink.open() is None
    sink.begin()
    sink.produce([Record(topic, 0, b"k", b"row")], 0)
    lost = LostEndTxn(kafka_door, is_committed=is_committed)
    with pytest.raises(SinkUnavailable):
        sink.commit(progress(settings.slot))
    assert lost.struck.is_set()
    with pytest.raises(SinkUnavailable):
        sink.begin()
    sink.close()
    kafka_door.heal()
    following = KafkaSink(settings)
    stored = eventually(lambda: opened(following), "the broker is reachable again")[0]
    assert (stored is not None) == is_committed
    if stored is None:
        following.begin()
        following.produce([Record(topic, 0, b"k", b"row")], 0)
        following.commit(progress(settings.slot))
    following.close()
    assert committed_values(bootstrap, topic, 1) == [b"row"]


@CASES
def test_a_daemon_that_is_killed_before_it_knows_loses_and_repeats_nothing(
    postgres: PostgresServer,
    database: str,
    new_daemon: NewDaemon,
    reader: Reader,
    kafka_door: Proxy,
    is_committed: bool,
) -> None:
    """F76, F4: nothing was confirmed to PostgreSQL, so it sends all rows again; cdcd drops those that Kafka has."""
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY)", dbname=database)
    with new_daemon(postgres, database) as daemon:
        daemon.config["sink"]["bootstrap_servers"] = f"127.0.0.1:{kafka_door.port}"
        topic = f"{daemon.name}.public.t"
        daemon.start().wait_state("streaming")
        postgres.execute("INSERT INTO t SELECT g FROM generate_series(1, 10) g", dbname=database)
        reader.wait([topic], lambda events: len(events) == 10)
        lost = LostEndTxn(kafka_door, is_committed=is_committed)
        postgres.execute("INSERT INTO t SELECT g FROM generate_series(11, 30) g", dbname=database)
        assert lost.struck.wait(30)
        daemon.kill()
        kafka_door.heal()
        daemon.start()
        postgres.execute("INSERT INTO t VALUES (31)", dbname=database)
        events = reader.wait([topic], lambda events: len(events) >= 31)
        assert sorted(event.value["after"]["id"] for event in events) == list(range(1, 32))
        assert_each_once(events)


@LATE_CASES
def test_a_daemon_that_waits_in_vain_reads_back_what_became_of_it(
    postgres: PostgresServer,
    database: str,
    new_daemon: NewDaemon,
    reader: Reader,
    kafka_door: Proxy,
    is_committed: bool,
) -> None:
    """F76: the daemon survives the operation's timeout; a new session asks Kafka, and each row is there once."""
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY)", dbname=database)
    with new_daemon(postgres, database) as daemon:
        daemon.config["sink"]["bootstrap_servers"] = f"127.0.0.1:{kafka_door.port}"
        daemon.entry = ("-m", "tests.faults.impatient")
        topic = f"{daemon.name}.public.t"
        daemon.start().wait_state("streaming")
        process = daemon.process
        postgres.execute("INSERT INTO t SELECT g FROM generate_series(1, 10) g", dbname=database)
        reader.wait([topic], lambda events: len(events) == 10)
        lost = LostEndTxn(kafka_door, is_committed=is_committed)
        postgres.execute("INSERT INTO t SELECT g FROM generate_series(11, 30) g", dbname=database)
        assert lost.struck.wait(30)
        eventually(lambda: daemon.events("retrying"), "the session has ended", 60)
        assert daemon.events("retrying")[0]["code"] == SinkUnavailable.code
        kafka_door.heal()
        daemon.wait_state("streaming")
        postgres.execute("INSERT INTO t VALUES (31)", dbname=database)
        await_confirmed(postgres, daemon)
        assert daemon.process is process
        assert daemon.stop() == 0
        assert len(daemon.events("streaming")) == 2
        events = reader.read(topic)
        assert sorted(event.value["after"]["id"] for event in events) == list(range(1, 32))
        assert_each_once(events)


def test_a_daemon_whose_answer_is_lost_goes_on_when_the_connection_is_made_anew(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader, kafka_door: Proxy
) -> None:
    """F76: the connection is cut after the request; the client asks the coordinator again, which has the result."""
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY)", dbname=database)
    with new_daemon(postgres, database) as daemon:
        daemon.config["sink"]["bootstrap_servers"] = f"127.0.0.1:{kafka_door.port}"
        topic = f"{daemon.name}.public.t"
        daemon.start().wait_state("streaming")
        for turn in range(3):
            lost = LostEndTxn(kafka_door, is_committed=True)
            postgres.execute("INSERT INTO t VALUES (%s)", turn, dbname=database)
            assert lost.struck.wait(30)
            kafka_door.heal()
        events = reader.wait([topic], lambda events: len(events) >= 3)
        assert sorted(event.value["after"]["id"] for event in events) == [0, 1, 2]
        assert_each_once(events)
