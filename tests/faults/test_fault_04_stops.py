"""Fault 4: SIGTERM in every state: exit status 0 within the shutdown timeout, a free slot, each row once."""

from __future__ import annotations

import pytest

from cdcd.demo.stack.ports import free_port
from cdcd.demo.stack.postgres import PostgresServer
from tests.integration.conftest import NewDaemon
from tests.support.nightly import nightly
from tests.support.proxy import Proxy
from tests.support.reader import Reader, assert_each_once, fold
from tests.support.stack import PostgresServers
from tests.support.waiting import eventually

ROWS = "INSERT INTO t SELECT g, repeat('p', 500) FROM generate_series(%s::int, %s) g"


def is_free(server: PostgresServer, slot: str) -> bool:
    """Whether no walsender holds the slot."""
    return server.execute("SELECT active FROM pg_replication_slots WHERE slot_name = %s", slot) != [(True,)]


@pytest.mark.nightly
def test_while_no_broker_has_ever_answered(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon
) -> None:
    """The producer's calls block their thread for a minute; the stop does not wait for them."""
    nobody = f"127.0.0.1:{free_port()}"
    with new_daemon(postgres, database, sink={"bootstrap_servers": nobody}) as daemon:
        daemon.start().wait_state("starting")
        assert daemon.stop(deadline_s=15) == 0


def test_while_the_source_is_away(new_daemon: NewDaemon, postgres: PostgresServer, database: str) -> None:
    """SIGTERM during the pause between two attempts ends the daemon."""
    with new_daemon(postgres, database) as daemon:
        daemon.config["source"]["dsn"] = f"postgresql://nobody@127.0.0.1:{free_port()}/none"
        daemon.start().wait_state("backoff")
        assert daemon.stop(deadline_s=15) == 0


@pytest.mark.nightly
def test_in_the_snapshot(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    """After a stop in the snapshot, the next start begins the snapshot again."""
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY, pad text)", dbname=database)
    postgres.execute(ROWS, 1, 15000, dbname=database)
    with new_daemon(postgres, database, sink={"commit": {"max_rows": 500}}) as daemon:
        topic = f"{daemon.name}.public.t"
        daemon.start()
        eventually(
            lambda: daemon.status().get("rows_written", 0) > 500,
            "a part of the snapshot is durable",
            pause_s=0.01,
        )
        assert daemon.stop() == 0
        assert is_free(postgres, daemon.slot)
        daemon.start().wait_state("streaming", deadline_s=120)
        assert daemon.stop() == 0
        events = reader.read(topic)
        assert_each_once(events)
        assert len(fold(events, lambda row: row["id"])) == 15000


@pytest.mark.parametrize(("batches", "timeout_ms"), [(6, 3000), nightly(20, 8000)], ids=["few", "many"])
def test_while_kafka_does_not_answer_under_load(
    kafka_door: Proxy,
    postgres: PostgresServer,
    database: str,
    new_daemon: NewDaemon,
    reader: Reader,
    batches: int,
    timeout_ms: int,
) -> None:
    """F15: reading has stopped by back-pressure; rows that Kafka does not have are not confirmed and sent again."""
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY, pad text)", dbname=database)
    over = {"buffer": {"memory": "1MiB"}, "shutdown_timeout_ms": timeout_ms}
    over["sink"] = {"bootstrap_servers": f"127.0.0.1:{kafka_door.port}"}
    with new_daemon(postgres, database, **over) as daemon:
        topic = f"{daemon.name}.public.t"
        daemon.start().wait_state("streaming")
        postgres.execute(ROWS, 1, 10, dbname=database)
        reader.wait([topic], lambda events: len(events) == 10)
        kafka_door.hold()
        for number in range(1, batches + 1):
            postgres.execute(ROWS, 1000 * number, 1000 * number + 999, dbname=database)
        daemon.wait_state("backpressure")
        assert daemon.stop(deadline_s=15) == 0
        assert is_free(postgres, daemon.slot)
        kafka_door.heal()
        daemon.start()
        rows = 10 + 1000 * batches
        events = reader.wait([topic], lambda events: len(events) >= rows, 120)
        assert len(events) == rows
        assert_each_once(events)


@pytest.mark.nightly
def test_while_kafka_does_not_answer_and_the_source_has_died(
    pg_server: PostgresServers, kafka_door: Proxy, new_daemon: NewDaemon
) -> None:
    """Kafka does not answer a commit, and the session that waits for the commit has already ended."""
    server = pg_server.fresh(17)
    server.start()
    try:
        server.create_database("died")
        server.execute("CREATE TABLE t (id int PRIMARY KEY)", dbname="died")
        with new_daemon(server, "died", sink={"bootstrap_servers": f"127.0.0.1:{kafka_door.port}"}) as daemon:
            daemon.start().wait_state("streaming")
            kafka_door.hold()
            before = daemon.status()["received_lsn"]
            server.execute("INSERT INTO t VALUES (1)", dbname="died")
            eventually(lambda: daemon.status()["received_lsn"] != before, "the row is received")
            server.stop("immediate")
            daemon.wait_state("backoff")
            assert daemon.stop(deadline_s=25) == 0
    finally:
        server.stop("immediate")
