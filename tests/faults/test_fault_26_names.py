"""Fault 26: the name of a server does not resolve for a while, and then resolves to another address.

Each server has a name, a proxy at the name's first address and another proxy at its second address. The results of
libc's resolver are replaced in the whole process; libpq, librdkafka and Python use the resolver as usual.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from cdcd.demo.stack.artefacts import Cache
from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.ports import free_port
from cdcd.demo.stack.postgres import PostgresServer
from cdcd.demo.stack.registry import SchemaRegistry
from tests.faults.inserting import Inserting, assert_all_there, await_more_rows
from tests.integration.conftest import NewDaemon
from tests.support.daemon import Daemon, await_confirmed
from tests.support.names import Names
from tests.support.proxy import Proxy
from tests.support.reader import Reader
from tests.support.stack import confirmed_position, wal_position
from tests.support.waiting import eventually

NAME = "server.test"
FIRST, SECOND = "127.0.0.1", "127.0.0.2"


class Named:
    """A server with a name; `move` gives the name its second address."""

    def __init__(self, names: Names, stack: ExitStack, port: int, advertised_port: int | None = None) -> None:
        self._names = names
        self.first = stack.enter_context(Proxy(port, at=(FIRST, advertised_port)))
        self.second = stack.enter_context(Proxy(port, at=(SECOND, self.first.port)))
        self.address = f"{NAME}:{self.first.port}"
        self.appear()

    def vanish(self) -> None:
        """Let the name not resolve, and cut all connections, so that clients look the name up."""
        self._names.forget(NAME)
        self.first.cut()

    def await_asked(self) -> None:
        """Wait for two more lookups that fail."""
        before = self._names.asked_in_vain(NAME)
        eventually(lambda: self._names.asked_in_vain(NAME) > before + 1, "the name is looked up")

    def appear(self) -> None:
        """Let the name resolve to its first address."""
        self._names.point(NAME, FIRST)

    def move(self) -> None:
        """Let the name resolve to its second address; the first one refuses connections."""
        self.first.refuse()
        self._names.point(NAME, SECOND)


NewNamed = Callable[..., Named]


@pytest.fixture
def names(tmp_path: Path) -> Names:
    """The names that resolve."""
    return Names(tmp_path)


@pytest.fixture
def named(names: Names) -> Iterator[NewNamed]:
    """`named(port)`: the server at this port, with a name."""
    with ExitStack() as stack:
        yield functools.partial(Named, names, stack)


@pytest.fixture
def daemon(postgres: PostgresServer, database: str, new_daemon: NewDaemon, names: Names) -> Daemon:
    """A daemon with a table t, not started."""
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY)", dbname=database)
    daemon = new_daemon(postgres, database)
    daemon.environment.update(names.environment)
    return daemon


@pytest.fixture(scope="module")
def named_broker(artefacts: Cache, stack_folder: Path) -> Iterator[tuple[KafkaBroker, int, int]]:
    """A broker that advertises a name; the port of that listener, and the port that clients of the name use."""
    broker = KafkaBroker(stack_folder / "named-kafka", cache=artefacts)
    port, advertised_port = free_port(), free_port()
    broker.add_listener("NAMED", port, advertised_port=advertised_port, advertised_host=NAME)
    with broker:
        yield broker, port, advertised_port


def waits_for(daemon: Daemon, server: Named) -> None:
    """Assert that a start looks the name up repeatedly, and does not halt."""
    daemon.start()
    server.await_asked()
    daemon.wait_state("backoff")


@pytest.mark.nightly
def test_the_name_of_kafka(
    postgres: PostgresServer,
    database: str,
    registry: SchemaRegistry,
    daemon: Daemon,
    named: NewNamed,
    named_broker: tuple[KafkaBroker, int, int],
) -> None:
    """F64: nothing is confirmed meanwhile; every connection to a broker uses its advertised name."""
    broker, port, advertised_port = named_broker
    kafka = named(port, advertised_port)
    daemon.config["sink"]["bootstrap_servers"] = kafka.address
    daemon.entry = ("-m", "tests.faults.impatient")
    kafka.vanish()
    waits_for(daemon, kafka)
    kafka.appear()
    daemon.wait_state("streaming")
    with Inserting(postgres.dsn(database)) as rows:
        await_more_rows(daemon)
        kafka.vanish()
        kafka.await_asked()
        known_lsn = confirmed_position(postgres, daemon.slot)
        at = rows.last
        eventually(lambda: rows.last > at + 50, "rows are inserted", pause_s=0.01)
        kafka.await_asked()
        assert confirmed_position(postgres, daemon.slot) == known_lsn
        kafka.move()
        await_more_rows(daemon)
    await_confirmed(postgres, daemon)
    assert kafka.second.accepted > 0
    assert daemon.events("halted") == []
    assert daemon.stop() == 0
    reader = Reader(broker.bootstrap, registry.url)
    assert_all_there(reader.read(f"{daemon.name}.public.t"), rows)


@pytest.mark.nightly
def test_the_name_of_the_registry(
    postgres: PostgresServer,
    database: str,
    registry: SchemaRegistry,
    daemon: Daemon,
    reader: Reader,
    named: NewNamed,
) -> None:
    """F55: rows with known schemas flow, a new schema waits for the name."""
    server = named(registry.port)
    daemon.config["registry"]["url"] = registry.url.replace(f"127.0.0.1:{registry.port}", server.address)
    server.vanish()
    waits_for(daemon, server)
    server.appear()
    daemon.wait_state("streaming")
    with Inserting(postgres.dsn(database)) as rows:
        await_more_rows(daemon)
        server.vanish()
        await_more_rows(daemon)
        before = wal_position(postgres)
        postgres.execute("CREATE TABLE u (id int PRIMARY KEY)", dbname=database)
        postgres.execute("INSERT INTO u VALUES (1)", dbname=database)
        server.await_asked()
        assert reader.read(f"{daemon.name}.public.u") == []
        server.move()
        await_more_rows(daemon)
    await_confirmed(postgres, daemon)
    assert (confirmed_position(postgres, daemon.slot) or 0) > before
    assert server.second.accepted > 0
    assert daemon.events("halted") == []
    assert [event.key["id"] for event in reader.read(f"{daemon.name}.public.u")] == [1]
    assert_all_there(reader.read(f"{daemon.name}.public.t"), rows)


def test_the_name_of_postgresql(
    postgres: PostgresServer, database: str, daemon: Daemon, reader: Reader, named: NewNamed
) -> None:
    """The stream and all other connections look the name up again."""
    server = named(postgres.port)
    dsn = daemon.config["source"]["dsn"]
    daemon.config["source"]["dsn"] = dsn.replace(f"{postgres.host}:{postgres.port}", server.address)
    server.vanish()
    waits_for(daemon, server)
    server.appear()
    daemon.wait_state("streaming")
    with Inserting(postgres.dsn(database)) as rows:
        await_more_rows(daemon)
        server.vanish()
        server.await_asked()
        server.move()
        await_more_rows(daemon)
    await_confirmed(postgres, daemon)
    assert server.second.accepted > 0
    assert daemon.events("halted") == []
    assert_all_there(reader.read(f"{daemon.name}.public.t"), rows)
