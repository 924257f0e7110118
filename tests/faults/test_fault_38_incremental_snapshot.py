"""Fault 38: a fault in the middle of an incremental snapshot, under writers: the topic folds to the table's rows.

The faults: lost connections to the source and to Kafka, a crash of the source, another daemon that takes over, a
pause that lasts over a crash of the daemon, and a table that is altered. Each hits while a chunk is being read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from cdcd.demo.stack.postgres import PostgresServer
from tests.integration.conftest import NewDaemon
from tests.integration.test_incremental_snapshot import TABLES, assert_equal, change
from tests.support.daemon import Daemon
from tests.support.doors import through
from tests.support.gate import GATE, Gate, gate
from tests.support.nightly import nightly
from tests.support.proxy import Proxy
from tests.support.random_changes import RandomChanges
from tests.support.reader import Reader
from tests.support.snapshot_commands import await_copied, command, reports, start
from tests.support.stack import PostgresServers, run_script
from tests.support.waiting import eventually

DATABASE = "copied"


@dataclass(slots=True)
class Scene:
    """A daemon in the middle of the copy of `orders`, and one with the same slot that has not been started."""

    server: PostgresServer
    daemon: Daemon
    other: Daemon
    gate: Gate
    load: RandomChanges
    source_door: Proxy
    kafka_door: Proxy


def lost_source(scene: Scene) -> None:
    """Every connection to the source is reset, twice, that of the stream and those of the chunks."""
    for times in (2, 3):
        scene.source_door.cut()
        eventually(lambda times=times: len(scene.daemon.events("streaming")) == times, "the stream is back")
        scene.gate.wait()
    scene.gate.open()


def lost_kafka(scene: Scene) -> None:
    """Kafka does not answer while chunks are read."""
    scene.kafka_door.hold()
    scene.gate.pass_()
    eventually(lambda: scene.daemon.waits_for("kafka"), "the rows wait for Kafka")
    scene.kafka_door.heal()
    scene.gate.open()


def crashed_source(scene: Scene) -> None:
    """The server crashes with its sessions, and recovers."""
    scene.load.stop()
    scene.server.stop("immediate")  # with the session that holds the lock of the gate
    scene.daemon.wait_state("backoff")
    scene.server.start()
    scene.load = RandomChanges(scene.server, DATABASE, 39, change)


def taken_over(scene: Scene) -> None:
    """A second daemon waits for the slot, the first one is killed, and the second one continues the copy."""
    scene.other.start().wait_state("waiting_slot")
    scene.daemon.kill()
    scene.daemon = scene.other
    scene.gate.open()
    scene.other.wait_state("streaming")


def paused(scene: Scene) -> None:
    """A crash of the daemon ends no pause."""
    assert command(scene.daemon, "pause", "public.orders")[0] == 200
    scene.daemon.kill()
    scene.gate.open()
    scene.daemon.start().wait_state("streaming")
    eventually(lambda: [one["state"] for one in reports(scene.daemon)] == ["paused"], "it is paused")
    assert command(scene.daemon, "resume", "public.orders")[0] == 200


def altered(scene: Scene) -> None:
    """The change of two types writes the table anew."""
    scene.gate.pass_()
    scene.server.execute("ALTER TABLE orders ALTER n TYPE bigint, ALTER body TYPE varchar", dbname=DATABASE)
    scene.gate.open()


FAULTS = [
    nightly(lost_source),
    nightly(lost_kafka),
    crashed_source,
    nightly(taken_over),
    nightly(paused),
    nightly(altered),
]


@pytest.fixture(params=[nightly(13), 18])
def server(request: pytest.FixtureRequest, pg_server: PostgresServers) -> Iterator[PostgresServer]:
    server = pg_server.fresh(request.param)
    server.start()
    server.create_database(DATABASE)
    run_script(server.dsn(DATABASE), *TABLES)
    yield server
    server.stop("immediate")


@pytest.mark.parametrize("fault", FAULTS)
def test_the_copy_continues_and_the_rows_are_equal(
    fault: Callable[[Scene], None],
    server: PostgresServer,
    new_daemon: NewDaemon,
    reader: Reader,
    kafka_door: Proxy,
) -> None:
    over = {"snapshot": {"mode": "never"}, "sink": {"bootstrap_servers": f"127.0.0.1:{kafka_door.port}"}}
    first, second = new_daemon(server, DATABASE, **over), new_daemon(server, DATABASE, **over)
    second.name, second.slot = first.name, first.slot
    second.config["name"], second.config["source"] = first.name, first.config["source"]
    with Proxy(server.port) as source_door, first, second:
        first.config["source"]["dsn"] = through(first.config["source"]["dsn"], server, source_door)
        first.start().wait_state("streaming")
        with gate(server, DATABASE) as closed:
            scene = Scene(
                server,
                first,
                second,
                closed,
                RandomChanges(server, DATABASE, 38, change),
                source_door,
                kafka_door,
            )
            try:
                start(first, "public.orders", where=GATE)
                closed.wait()
                fault(scene)
                await_copied(scene.daemon)
            finally:
                scene.load.stop()
        assert scene.load.transactions > 0
        events = assert_equal(server, DATABASE, scene.daemon, reader, "orders")
        assert any(event.op == "r" for event in events)
