"""Fault 15: cdcd or its server ends at each point around a PREPARE; the result is equal to test_decoding's output."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import psycopg2
import pytest

from cdcd.demo.stack.postgres import PostgresServer, StopMode
from tests.integration.conftest import NewDaemon
from tests.support.daemon import Daemon
from tests.support.nightly import nightly, nightly_except
from tests.support.proxy import Proxy
from tests.support.reader import BEGINNING, Event, Reader, assert_each_once, fold
from tests.support.stack import PostgresServers, drop_database, new_database_name, prepare
from tests.support.waiting import eventually
from tests.support.witness import Witness, assert_same_changes, changes_of

INSERT = "INSERT INTO t SELECT g, repeat('x', 100) FROM generate_series({}, {}) g"
ROWS = 2000


@dataclass(frozen=True)
class Scene:
    """A daemon that streams, its server, a proxy to the broker, and the open transaction that will be prepared."""

    server: PostgresServer
    dbname: str
    kafka_door: Proxy
    daemon: Daemon
    reader: Reader

    @property
    def topic(self) -> str:
        return f"{self.daemon.name}.public.t"

    def run(self, statement: str) -> None:
        self.server.execute(statement, dbname=self.dbname)

    def arrived(self, at_least: int) -> list[Event]:
        return self.reader.wait([self.topic], lambda events: len(events) >= at_least, 90)

    def killed(self) -> None:
        """Kill the daemon with SIGKILL, and start it again."""
        self.daemon.kill()
        self.daemon.start().wait_state("streaming")


def before_prepare(scene: Scene) -> None:
    """The kill is before PREPARE; with streaming the rows have already been sent."""
    connection = psycopg2.connect(scene.server.dsn(scene.dbname))
    connection.autocommit = True
    with contextlib.closing(connection), connection.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute(INSERT.format(1, ROWS))
        scene.run("INSERT INTO t VALUES (0, 'beside')")
        scene.arrived(1)
        scene.killed()
        cursor.execute("PREPARE TRANSACTION 'g'")
    scene.run("COMMIT PREPARED 'g'")


def prepared(scene: Scene) -> None:
    """The kill is after PREPARE, and after a later transaction has arrived."""
    prepare(scene.server.dsn(scene.dbname), "g", INSERT.format(1, ROWS))
    scene.run("INSERT INTO t VALUES (0, 'beside')")
    scene.arrived(1)
    scene.killed()
    scene.run("COMMIT PREPARED 'g'")


def twice(scene: Scene) -> None:
    """Two kills, and another prepared transaction, which is rolled back."""
    prepare(scene.server.dsn(scene.dbname), "dropped", INSERT.format(5000, 5999))
    prepared(scene)
    scene.killed()
    scene.run("ROLLBACK PREPARED 'dropped'")


def decided_while_away(scene: Scene) -> None:
    """One process receives PREPARE, the next one COMMIT PREPARED."""
    prepare(scene.server.dsn(scene.dbname), "g", INSERT.format(1, ROWS))
    scene.run("INSERT INTO t VALUES (0, 'beside')")
    scene.arrived(1)
    scene.daemon.kill()
    scene.run("COMMIT PREPARED 'g'")
    scene.daemon.start()


def received_and_not_written(scene: Scene) -> None:
    """The kill is after COMMIT PREPARED was received, while Kafka does not answer."""
    prepare(scene.server.dsn(scene.dbname), "g", INSERT.format(1, ROWS))
    scene.run("INSERT INTO t VALUES (0, 'beside')")
    scene.arrived(1)
    scene.kafka_door.hold()
    scene.run("COMMIT PREPARED 'g'")
    end_lsn = scene.server.execute("SELECT pg_current_wal_lsn()")[0][0]
    eventually(lambda: _received(scene, end_lsn), "COMMIT PREPARED has been received")
    scene.daemon.kill()
    scene.kafka_door.heal()
    scene.daemon.start()


def _received(scene: Scene, end_lsn: str) -> bool:
    lsn = scene.daemon.status().get("received_lsn") or "0/0"
    return bool(scene.server.execute("SELECT %s::pg_lsn >= %s::pg_lsn", lsn, end_lsn)[0][0])


def written(scene: Scene) -> None:
    """The kill is directly after the rows became visible; their position may be confirmed or not."""
    prepare(scene.server.dsn(scene.dbname), "g", INSERT.format(1, ROWS))
    scene.run("INSERT INTO t VALUES (0, 'beside')")
    scene.run("COMMIT PREPARED 'g'")
    scene.arrived(ROWS + 1)
    scene.killed()


@pytest.fixture
def place(pg_server: PostgresServers, request: pytest.FixtureRequest) -> Iterator[tuple[PostgresServer, str]]:
    """A server and a new database with the table; transactions above 64 kB are streamed."""
    server, name = pg_server(request.param), new_database_name()
    server.create_database(name)
    server.execute(f"ALTER DATABASE {name} SET logical_decoding_work_mem = '64kB'")
    server.execute("CREATE TABLE t (id int PRIMARY KEY, v text)", dbname=name)
    yield server, name
    drop_database(server, name)


MOMENTS = [before_prepare, prepared, twice, decided_while_away, received_and_not_written, written]


@pytest.mark.parametrize(
    ("place", "two_phase", "streaming"),
    [
        (18, True, "parallel"),
        pytest.param(18, False, "off", marks=pytest.mark.long),
        pytest.param(15, True, "on", marks=pytest.mark.long),
        pytest.param(18, True, "off", marks=pytest.mark.long),
    ],
    indirect=["place"],
)
@pytest.mark.parametrize("moment", nightly_except(MOMENTS, received_and_not_written))
def test_a_kill_at_each_point_loses_and_repeats_nothing(
    moment: Callable[[Scene], None],
    place: tuple[PostgresServer, str],
    two_phase: bool,
    streaming: str,
    kafka_door: Proxy,
    new_daemon: NewDaemon,
    reader: Reader,
) -> None:
    """F4, F27, F33: a kill at each point, with and without two_phase."""
    server, dbname = place
    over = {
        "source": {"protocol": {"two_phase": two_phase, "streaming": streaming}},
        "sink": {"bootstrap_servers": f"127.0.0.1:{kafka_door.port}"},
    }
    with new_daemon(server, dbname, **over) as daemon:
        scene = Scene(server, dbname, kafka_door, daemon, reader)
        daemon.start().wait_state("streaming")
        witness = Witness(server.dsn(dbname))
        moment(scene)
        scene.arrived(ROWS + 1)
        scene.run("INSERT INTO t VALUES (9999, 'last')")
        events = scene.arrived(ROWS + 2)
        assert daemon.stop() == 0
    assert_each_once(events)
    assert_same_changes(witness.read(), changes_of(events, witness.from_lsn, f"{daemon.name}.public", ""))
    rows = fold(events, lambda row: row["id"])
    expected = server.execute("SELECT id, v FROM t", dbname=dbname)
    assert sorted((row["id"], row["v"]) for row in rows.values()) == sorted(expected)


@pytest.mark.parametrize("mode", [nightly("fast"), "immediate"])
def test_a_restart_of_the_server_between_prepare_and_commit(
    mode: StopMode, pg_server: PostgresServers, kafka_door: Proxy, new_daemon: NewDaemon, reader: Reader
) -> None:
    """F13: a fast shutdown does not wait for the confirmation that an undecided PREPARE delays."""
    server = pg_server.fresh(17 if mode == "fast" else 18)
    server.start()
    try:
        server.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
        with new_daemon(server, "postgres", source={"protocol": {"two_phase": True}}) as daemon:
            scene = Scene(server, "postgres", kafka_door, daemon, reader)
            daemon.start().wait_state("streaming")
            prepare(server.dsn(), "g", "INSERT INTO t VALUES (1, 'prepared')")
            scene.run("INSERT INTO t VALUES (2, 'beside')")
            scene.arrived(1)
            assert daemon.status()["prepared"]["transactions"] == 1
            stopping = threading.Thread(target=server.stop, args=(mode,))
            stopping.start()
            stopping.join(15)
            assert not stopping.is_alive(), f"pg_ctl stop -m {mode} waits for cdcd"
            daemon.wait_state("backoff")
            server.start()
            daemon.wait_state("streaming")
            scene.run("INSERT INTO t VALUES (3, 'after')")
            scene.arrived(2)
            scene.run("COMMIT PREPARED 'g'")
            events = scene.arrived(3)
            assert_each_once(events)
            ordered = sorted(events, key=lambda event: event.sequence or BEGINNING)
            assert [event.value["after"]["id"] for event in ordered] == [2, 3, 1]
    finally:
        server.stop("immediate")
