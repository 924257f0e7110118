"""Fault 5: SIGINT stops like SIGTERM, a second signal exits at once, SIGHUP retries and disturbs no open session."""

from __future__ import annotations

import signal

import pytest

from cdcd.demo.stack.ports import free_port
from cdcd.demo.stack.postgres import PostgresServer
from cdcd.errors import EXIT_FORCED
from tests.faults.inserting import Inserting, assert_all_there
from tests.faults.test_fault_04_stops import is_free
from tests.integration.conftest import NewDaemon
from tests.support.daemon import Daemon, await_confirmed
from tests.support.nightly import nightly
from tests.support.proxy import Proxy
from tests.support.reader import Reader
from tests.support.waiting import eventually

ROWS = "INSERT INTO t SELECT generate_series(%s::int, %s)"


def sent(daemon: Daemon, number: signal.Signals) -> None:
    """Send the daemon a signal."""
    assert daemon.process is not None
    daemon.process.send_signal(number)


@pytest.fixture
def daemon(postgres: PostgresServer, database: str, new_daemon: NewDaemon) -> Daemon:
    """A daemon that streams a table t."""
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY)", dbname=database)
    daemon = new_daemon(postgres, database)
    daemon.start().wait_state("streaming")
    return daemon


def test_an_interrupt_is_an_orderly_stop(
    postgres: PostgresServer, database: str, daemon: Daemon, reader: Reader
) -> None:
    """Under load: status 0, the slot free at once, and the next start continues."""
    with Inserting(postgres.dsn(database)) as rows:
        eventually(lambda: rows.last > 100, "rows are inserted")
        sent(daemon, signal.SIGINT)
        assert daemon.wait_exit() == 0
        assert is_free(postgres, daemon.slot)
        assert [line["signal"] for line in daemon.events("stopping")] == ["SIGINT"]
        daemon.start().wait_state("streaming")
    await_confirmed(postgres, daemon)
    assert_all_there(reader.read(f"{daemon.name}.public.t"), rows)


@pytest.mark.parametrize("first", [nightly(signal.SIGTERM), signal.SIGINT])
def test_a_second_signal_ends_at_once(
    kafka_door: Proxy,
    postgres: PostgresServer,
    database: str,
    new_daemon: NewDaemon,
    reader: Reader,
    first: signal.Signals,
) -> None:
    """The second signal ends the daemon although the first stop still waits; no row is lost or repeated."""
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY)", dbname=database)
    sink = {"bootstrap_servers": f"127.0.0.1:{kafka_door.port}"}
    with new_daemon(postgres, database, sink=sink) as daemon:
        daemon.start().wait_state("streaming")
        kafka_door.hold()
        postgres.execute(ROWS, 1, 10, dbname=database)
        eventually(lambda: daemon.waits_for("kafka"), "the rows wait for Kafka")
        sent(daemon, first)
        eventually(lambda: daemon.events("stopping"), "the first signal has been handled")
        sent(daemon, signal.SIGTERM)
        assert daemon.wait_exit() == EXIT_FORCED
        kafka_door.heal()
        daemon.start().wait_state("streaming")
        await_confirmed(postgres, daemon)
        events = reader.read(f"{daemon.name}.public.t")
        assert sorted(event.value["after"]["id"] for event in events) == list(range(1, 11))


def test_sighup_does_not_disturb_a_streaming_daemon(
    postgres: PostgresServer, database: str, daemon: Daemon, reader: Reader
) -> None:
    """A hundred SIGHUPs under load: one session, each row once."""
    with Inserting(postgres.dsn(database)) as rows:
        for _ in range(100):
            at = rows.last
            sent(daemon, signal.SIGHUP)
            eventually(lambda at=at: rows.last > at, "rows are inserted", pause_s=0.002)
    await_confirmed(postgres, daemon)
    assert daemon.events("retrying") == daemon.events("halted") == []
    assert len(daemon.events("streaming")) == 1
    assert_all_there(reader.read(f"{daemon.name}.public.t"), rows)


def test_sighup_in_a_halt_retries_once(
    postgres: PostgresServer, database: str, daemon: Daemon, reader: Reader
) -> None:
    """With a missing publication each SIGHUP leads to one more halt; with the publication back the daemon streams."""
    assert daemon.stop() == 0
    publication = f"cdcd_{daemon.name}"
    postgres.execute(f"ALTER PUBLICATION {publication} RENAME TO away", dbname=database)
    daemon.start().wait_state("halted")
    for count in (1, 2):
        assert len(daemon.events("halted")) == count
        assert len(daemon.events("resuming")) == count - 1
        sent(daemon, signal.SIGHUP)
        eventually(
            lambda count=count: len(daemon.events("halted")) == count + 1,
            "the daemon has checked and halted again",
        )
    postgres.execute(f"ALTER PUBLICATION away RENAME TO {publication}", dbname=database)
    postgres.execute(ROWS, 1, 10, dbname=database)
    assert daemon.status()["state"] == "halted"
    sent(daemon, signal.SIGHUP)
    daemon.wait_state("streaming")
    await_confirmed(postgres, daemon)
    assert len(reader.read(f"{daemon.name}.public.t")) == 10


def test_sighup_ends_a_pause_between_two_attempts(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon
) -> None:
    """SIGHUP leads to an attempt at once."""
    daemon = new_daemon(postgres, database)
    daemon.config["source"]["dsn"] = f"postgresql://nobody@127.0.0.1:{free_port()}/none"
    daemon.start().wait_state("backoff")
    long = eventually(
        lambda: [line for line in daemon.events("retrying") if line["pause_s"] > 1.9], "pauses have grown"
    )
    tries = long[-1]["tries"]
    for more in (1, 2, 3):
        eventually(lambda: daemon.status().get("state") == "backoff", "the daemon waits", pause_s=0.01)
        sent(daemon, signal.SIGHUP)
        eventually(
            lambda more=more: [line for line in daemon.events("retrying") if line["tries"] == tries + more],
            "the daemon has retried",
            pause_s=0.01,
        )
