"""Fault 21: a producer quota of the broker only slows the daemon down."""

from __future__ import annotations

import subprocess

import pytest
from confluent_kafka import Producer

from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.postgres import PostgresServer
from tests.integration.conftest import NewDaemon
from tests.support.daemon import await_confirmed
from tests.support.reader import Reader, assert_each_once
from tests.support.topics import create_topic, new_name
from tests.support.waiting import eventually

QUOTA_BYTES_PER_S = 100_000
ROWS_OF_8_KB = """INSERT INTO t SELECT g, (
    SELECT decode(string_agg(md5(random()::text || g || i), ''), 'hex') FROM generate_series(1, 512) i)
    FROM generate_series(%s, %s) g"""


def setting_a_quota(kafka: KafkaBroker, client_id: str) -> subprocess.Popen[bytes]:
    """Run Kafka's own command, because confluent-kafka cannot set quotas."""
    command = [*kafka._java(), "kafka.admin.ConfigCommand", "--bootstrap-server", kafka.bootstrap, "--alter"]
    quota = ["--add-config", f"producer_byte_rate={QUOTA_BYTES_PER_S}"]
    return subprocess.Popen(
        [*command, *quota, "--entity-type", "clients", "--entity-name", client_id],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def throttled_s(kafka: KafkaBroker, client_id: str, topic: str) -> float:
    """Return the throttle time that the broker reports to a client that writes one byte with this client id."""
    logged_s: list[float] = []
    producer = Producer(
        {
            "bootstrap.servers": kafka.bootstrap,
            "client.id": client_id,
            "log_level": 0,
            "throttle_cb": lambda event: logged_s.append(event.throttle_time),
        }
    )
    producer.produce(topic, b"x")
    assert producer.flush(60) == 0
    producer.poll(0)
    return max(logged_s, default=0)


class Load:
    """Inserts rows of 8 kB, more with each call."""

    def __init__(self, server: PostgresServer, dbname: str) -> None:
        self._server = server
        self._dbname = dbname
        self.rows = 0

    def insert(self, count: int) -> None:
        """Insert `count` rows in one transaction."""
        self._server.execute(ROWS_OF_8_KB, self.rows + 1, self.rows + count, dbname=self._dbname)
        self.rows += count


@pytest.mark.nightly
def test_a_quota_slows_it_down_and_loses_and_repeats_nothing(
    kafka: KafkaBroker, postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    """The quota applies to the client id: another client with this id gets the throttle time."""
    kafka.start()
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY, raw bytea)", dbname=database)
    load = Load(postgres, database)
    with new_daemon(postgres, database) as daemon:
        client_id, both = f"cdcd-{daemon.slot}", new_name("both")
        command = setting_a_quota(kafka, client_id)
        daemon.start().wait_state("streaming")
        create_topic(kafka.bootstrap, both)
        assert command.wait(60) == 0

        def is_throttled() -> bool:
            load.insert(5)
            return throttled_s(kafka, client_id, both) > 0

        assert throttled_s(kafka, client_id, both) == 0
        load.insert(120)
        eventually(is_throttled, "the broker throttles the client id")
        load.insert(1)
        await_confirmed(postgres, daemon)
        events = reader.read(f"{daemon.name}.public.t")
        assert sorted(event.value["after"]["id"] for event in events) == list(range(1, load.rows + 1))
        assert_each_once(events)
        assert not daemon.events("retrying")
        assert not daemon.events("halted")
        assert daemon.stop() == 0
