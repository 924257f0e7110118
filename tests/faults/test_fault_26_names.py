"""Fault 26: the name of a server does not resolve for a while, and then to another address.

Each server is reached at a name, over a link at that name's first address and then over one at its second. libc's
answer is exchanged for the whole process: libpq, librdkafka and Python ask it as they always do.
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
    """A server that is told by name; it has moved once the name has its second address."""

    def __init__(self, names: Names, stack: ExitStack, port: int, advertised_port: int | None = None) -> None:
        self._names = names
        self.first = stack.enter_context(Proxy(port, at=(FIRST, advertised_port)))
        self.second = stack.enter_context(Proxy(port, at=(SECOND, self.first.port)))
        self.address = f"{NAME}:{self.first.port}"
        self.appear()

    def vanish(self) -> None:
        """The name does not resolve; what is connected is cut, so that somebody asks."""
        self._names.forget(NAME)
        self.first.cut()

    def await_asked(self) -> None:
        """Wait until it was looked up in vain, twice more."""
        before = self._names.asked_in_vain(NAME)
        eventually(lambda: self._names.asked_in_vain(NAME) > before + 1, "the name is looked up")

    def appear(self) -> None:
        """The name has its first address."""
        self._names.point(NAME, FIRST)

    def move(self) -> None:
        """It is at another address, and nobody is at the first."""
        self.first.refuse()
        self._names.point(NAME, SECOND)


NewNamed = Callable[..., Named]


@pytest.fixture
def names(tmp_path: Path) -> Names:
    """What resolves."""
    return Names(tmp_path)


@pytest.fixture
def named(names: Names) -> Iterator[NewNamed]:
    """`named(port)`: the server at this port, by name."""
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
    """A broker that tells its clients a name; the ports of that listener and of who comes by name."""
    broker = KafkaBroker(stack_folder / "named-kafka", cache=artefacts)
    port, advertised_port = free_port(), free_port()
    broker.add_listener("NAMED", port, advertised_port=advertised_port, advertised_host=NAME)
    with broker:
        yield broker, port, advertised_port


def waits_for(daemon: Daemon, server: Named) -> None:
    """A start looks the name up again and again, and halts for it no more than a running daemon does."""
    daemon.start()
    server.await_asked()
    daemon.wait_state("backoff")


def test_the_name_of_kafka(
    postgres: PostgresServer,
    database: str,
    registry: SchemaRegistry,
    daemon: Daemon,
    named: NewNamed,
    named_broker: tuple[KafkaBroker, int, int],
) -> None:
    """F64: nothing is confirmed meanwhile; every connection of a broker is to the name that it tells."""
    broker, port, advertised_port = named_broker
    kafka = named(port, advertised_port)
    daemon.config["sink"]["bootstrap_servers"] = kafka.address
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
        eventually(lambda: rows.last > at + 50, "rows come", pause_s=0.01)
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


def test_the_name_of_the_registry(
    postgres: PostgresServer,
    database: str,
    registry: SchemaRegistry,
    daemon: Daemon,
    reader: Reader,
    named: NewNamed,
) -> None:
    """F55: what is known flows on, what is new waits for the name."""
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
    """The stream, and each connection beside it."""
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
