"""Fault 26: the links to Kafka and the registry hold, lose or delay bytes, throttle, flap and break.

Rows wait during the fault, cdcd continues by itself, and each row is there once. The link to PostgreSQL is tested in
`test_proxy` and in `test_fault_07_black_holes`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from cdcd.demo.stack.postgres import PostgresServer
from cdcd.demo.stack.registry import SchemaRegistry
from tests.faults.inserting import Inserting, assert_all_there
from tests.integration.conftest import NewDaemon
from tests.support.daemon import Daemon, await_confirmed
from tests.support.doors import registry_through
from tests.support.nightly import nightly
from tests.support.proxy import Proxy, Way
from tests.support.reader import Reader, assert_each_once
from tests.support.stack import confirmed_position
from tests.support.waiting import eventually

Fault = Callable[[Proxy], None]
SILENT: dict[str, tuple[str, tuple[Way, ...]]] = {
    "held": ("hold", ()),
    "requests held": ("hold", ("up",)),
    "answers held": ("hold", ("down",)),
    "lost": ("lose", ()),
    "requests lost": ("lose", ("up",)),
    "answers lost": ("lose", ("down",)),
}
"""Nothing passes in at least one direction: held bytes arrive later, lost bytes never."""
LASTS_S = 1.0


@contextmanager
def silent(link: Proxy, name: str) -> Iterator[None]:
    """Give the link this fault until the context manager exits."""
    method, ways = SILENT[name]
    getattr(link, method)(*ways)
    try:
        yield
    finally:
        link.heal()


@pytest.fixture
def daemon(postgres: PostgresServer, database: str, new_daemon: NewDaemon) -> Daemon:
    """A daemon with a table t, not started."""
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY)", dbname=database)
    return new_daemon(postgres, database)


def to_kafka(daemon: Daemon, door: Proxy) -> Daemon:
    """Start the daemon, with Kafka behind the proxy."""
    daemon.config["sink"]["bootstrap_servers"] = f"127.0.0.1:{door.port}"
    daemon.start().wait_state("streaming")
    return daemon


def is_the_same(daemon: Daemon) -> None:
    """Assert that the process neither ended nor halted."""
    assert daemon.process is not None
    assert daemon.process.poll() is None
    assert daemon.events("halted") == []


@pytest.mark.parametrize("names", [("held", "answers lost"), nightly(tuple(SILENT))], ids=["two", "all"])
def test_a_link_to_kafka_that_says_nothing(
    postgres: PostgresServer,
    database: str,
    daemon: Daemon,
    reader: Reader,
    kafka_door: Proxy,
    names: tuple[str, ...],
) -> None:
    """F64: nothing is confirmed before a response of Kafka shows that it is durable."""
    to_kafka(daemon, kafka_door)
    with Inserting(postgres.dsn(database)) as rows:
        for name in names:
            with silent(kafka_door, name):
                known_lsn = settled_position(postgres, daemon)
                at = rows.last
                eventually(lambda at=at: rows.last > at + 50, "rows are inserted", pause_s=0.01)
                assert confirmed_position(postgres, daemon.slot) == known_lsn, name
            await_confirmed(postgres, daemon)
    await_confirmed(postgres, daemon)
    is_the_same(daemon)
    assert_all_there(reader.read(f"{daemon.name}.public.t"), rows)


def settled_position(server: PostgresServer, daemon: Daemon) -> int:
    """Return the confirmed position, once the responses that arrived before the fault have had their effect."""
    seen: list[int] = [-1]

    def is_settled() -> bool:
        seen.append(confirmed_position(server, daemon.slot) or 0)
        return seen[-1] == seen[-2]

    eventually(is_settled, "nothing more is confirmed", pause_s=LASTS_S / 2)
    return seen[-1]


def test_a_link_to_kafka_that_is_slow_narrow_flapping_or_cut(
    postgres: PostgresServer, database: str, daemon: Daemon, reader: Reader, kafka_door: Proxy
) -> None:
    """With a round trip of two seconds, or 64 kB/s, rows become durable during the fault."""
    to_kafka(daemon, kafka_door)
    with Inserting(postgres.dsn(database)) as rows:
        for delay_s, bytes_per_s in ((1.0, None), (0.0, 64_000)):
            kafka_door.slow(delay_s=delay_s, bytes_per_s=bytes_per_s)
            await_confirmed(postgres, daemon)
            kafka_door.heal()
        accepted = kafka_door.accepted
        with kafka_door.flapping(up_s=0.3, down_s=0.3):
            time.sleep(2 * LASTS_S)
        await_confirmed(postgres, daemon)
        assert kafka_door.accepted > accepted, "a connection was made again"
        for _ in range(5):
            kafka_door.cut()
            at = rows.last
            eventually(lambda at=at: rows.last > at + 10, "rows are inserted", pause_s=0.01)
    await_confirmed(postgres, daemon)
    is_the_same(daemon)
    assert_all_there(reader.read(f"{daemon.name}.public.t"), rows)


@pytest.fixture
def registry_link(registry: SchemaRegistry, daemon: Daemon) -> Iterator[Proxy]:
    """The link to the registry, whose address the daemon has."""
    with Proxy(registry.port) as link:
        daemon.config["registry"]["url"] = registry_through(registry, link)
        yield link


def slow(link: Proxy) -> None:
    link.slow(delay_s=1.0)


def narrow(link: Proxy) -> None:
    link.slow(bytes_per_s=64_000)


@pytest.mark.nightly  # fault 24 has a registry that is away
def test_a_link_to_the_registry_that_breaks(
    postgres: PostgresServer, database: str, daemon: Daemon, reader: Reader, registry_link: Proxy
) -> None:
    """F55: rows with known schemas flow; a new schema waits for the link, and is registered without any action."""
    daemon.start().wait_state("streaming")
    known, tables = f"{daemon.name}.public.t", []
    postgres.execute("INSERT INTO t VALUES (0)", dbname=database)
    reader.wait([known], lambda events: len(events) == 1)

    def insert_rows(name: str) -> None:
        """Insert a row into a known table, and then one into a new table."""
        tables.append(name)
        number = len(tables)
        postgres.execute(f"INSERT INTO t VALUES ({number})", dbname=database)
        postgres.execute(f"CREATE TABLE {name} (id int PRIMARY KEY)", dbname=database)
        postgres.execute(f"INSERT INTO {name} VALUES (1)", dbname=database)

    for number, name in enumerate(SILENT):
        with silent(registry_link, name):
            insert_rows(f"silent{number}")
            reader.wait([known], lambda events: len(events) == len(tables) + 1)
        await_confirmed(postgres, daemon)
    for fault in (slow, narrow):
        fault(registry_link)
        insert_rows(fault.__name__)
        await_confirmed(postgres, daemon)
        registry_link.heal()
    accepted = registry_link.accepted
    with registry_link.flapping(up_s=0.2, down_s=0.4):
        insert_rows("flapped")
        time.sleep(2 * LASTS_S)
    await_confirmed(postgres, daemon)
    assert registry_link.accepted > accepted, "a connection was made again"
    is_the_same(daemon)
    for name in tables:
        events = reader.read(f"{daemon.name}.public.{name}")
        assert_each_once(events)
        assert [event.value["after"]["id"] for event in events] == [1], name
