"""The real servers of the test session, each started when the first test asks for it.

Out: `pg_server(major)`, `postgres` (newest major), `database` (a new one for each test), `kafka`,
`kafka_cluster`, `registry`. They live in one folder, on 127.0.0.1, and end with the session, also a killed one.
Where pytest has workers, they share the broker and the registry; a test marked `own_broker` has its worker's own.
Invariant: a missing artefact is fetched; one that cannot be had is an error of the test, never a skip.
"""

from __future__ import annotations

import gc
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp

import pytest

from cdcd import redaction
from cdcd.demo.stack.accounts import make_run_folder, server_account
from cdcd.demo.stack.artefacts import Cache
from cdcd.demo.stack.kafka import KafkaBroker, KafkaCluster
from cdcd.demo.stack.postgres import PostgresServer
from cdcd.demo.stack.registry import SchemaRegistry
from tests.support.doors import KafkaDoors
from tests.support.forked import Forks
from tests.support.proxy import Proxy
from tests.support.shared import (
    BROKER_SETTINGS,
    SharedBroker,
    SharedRegistry,
    SharedServers,
    shared_address,
)
from tests.support.spreading import Spreading
from tests.support.stack import NEWEST_POSTGRES, PostgresServers, drop_database, new_database_name


def pytest_configure(config: pytest.Config) -> None:
    """Also in each of pytest's workers."""
    # A shell's job in the background ignores it, and so would what is started here and is to be interrupted.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    config.pluginmanager.register(Spreading())
    if not hasattr(config, "workerinput") and (workers := getattr(config.option, "numprocesses", None)):
        config.pluginmanager.register(SharedServers(workers, _shared_folder))


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[object]:
    """Thousands of tests live until the end: no garbage collection looks through them again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def _shared_folder() -> Path:
    """A folder for what all workers use."""
    account = server_account()
    return make_run_folder("cdcd-test-", account) if account else Path(mkdtemp(prefix="cdcd-test-"))


@pytest.fixture(scope="session")
def artefacts() -> Cache:
    """The cache of the servers' programs, in the user's cache folder."""
    return Cache()


@pytest.fixture(scope="session")
def stack_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where this session's servers live."""
    account = server_account()
    # As root not in pytest's own folder: it is closed to others, and closed again when another session starts.
    folder = make_run_folder("cdcd-test-", account) if account else tmp_path_factory.mktemp("stack")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def pg_server(artefacts: Cache, stack_folder: Path) -> Iterator[PostgresServers]:
    """`pg_server(16)` is the session's PostgreSQL 16; `pg_server.fresh(16)` one of the test's own."""
    servers = PostgresServers(artefacts, stack_folder)
    yield servers
    servers.stop()


@pytest.fixture(scope="session")
def postgres(pg_server: PostgresServers) -> PostgresServer:
    """The session's PostgreSQL of the newest major. A test that stops it starts it again."""
    return pg_server(NEWEST_POSTGRES)


@pytest.fixture
def database(postgres: PostgresServer) -> Iterator[str]:
    """The name of a new, empty database on `postgres`, dropped afterwards with its slots."""
    postgres.start()  # whatever an earlier test did to it
    name = new_database_name()
    postgres.create_database(name)
    yield name
    drop_database(postgres, name)


@pytest.fixture(scope="session")
def own_kafka_and_doors(artefacts: Cache, stack_folder: Path) -> Iterator[tuple[KafkaBroker, KafkaDoors]]:
    """This worker's own broker, and the proxy that leads to it."""
    broker = KafkaBroker(stack_folder / "kafka", cache=artefacts, settings=BROKER_SETTINGS)
    with KafkaDoors(broker) as doors, broker:
        yield broker, doors


@pytest.fixture(scope="session")
def shared_kafka_and_door(request: pytest.FixtureRequest) -> Iterator[tuple[KafkaBroker, Proxy]]:
    """The broker of all workers, and this one's link to it; this session's own broker where there are no workers."""
    address = shared_address(request.config, "kafka")
    if address is None:
        broker, doors = request.getfixturevalue("own_kafka_and_doors")
        yield broker, doors.proxies[0]
        return
    with Proxy(address.proxied_port, at=("127.0.0.1", address.door_port)) as door:
        yield SharedBroker(address.port), door


@pytest.fixture
def kafka(request: pytest.FixtureRequest) -> KafkaBroker:
    """A broker. A test that stops, pauses or configures it is marked `own_broker`, and starts it again."""
    if request.node.get_closest_marker("own_broker") is None:
        broker: KafkaBroker = request.getfixturevalue("shared_kafka_and_door")[0]
    else:
        broker = request.getfixturevalue("own_kafka_and_doors")[0]
    broker.start()  # whatever an earlier test did to it
    return broker


@pytest.fixture
def kafka_door(
    request: pytest.FixtureRequest, shared_kafka_and_door: tuple[KafkaBroker, Proxy]
) -> Iterator[Proxy]:
    """A link to the broker that a test may break; it is healed afterwards."""
    assert request.node.get_closest_marker("own_broker") is None, "it leads to the broker of all workers"
    yield shared_kafka_and_door[1]
    shared_kafka_and_door[1].heal()


@pytest.fixture(scope="session")
def kafka_cluster(artefacts: Cache, stack_folder: Path) -> Iterator[KafkaCluster]:
    """Three brokers."""
    with KafkaCluster(stack_folder / "kafka-cluster", cache=artefacts) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def own_registry(artefacts: Cache, stack_folder: Path) -> Iterator[SchemaRegistry]:
    """This worker's schema registry in memory, for who pauses it."""
    with SchemaRegistry(stack_folder / "registry", cache=artefacts) as server:
        yield server


@pytest.fixture(scope="session")
def registry(request: pytest.FixtureRequest) -> SchemaRegistry:
    """A schema registry in memory, of all workers where there are any."""
    address = shared_address(request.config, "registry")
    if address is not None:
        return SharedRegistry(address.port)
    server: SchemaRegistry = request.getfixturevalue("own_registry")
    return server


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    """What starts a daemon without Python's imports each time."""
    with Forks() as forks:
        yield forks


@pytest.fixture(autouse=True)
def _no_secrets_of_other_tests() -> Iterator[None]:
    """What one test has read as a secret is struck out of texts in this process, and of no other test's."""
    yield
    redaction.forget()
