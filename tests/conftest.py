"""The real servers of the test session, each started when the first test asks for it.

Out: `pg_server(major)`, `postgres` (newest major), `database` (a new one for each test), `kafka`,
`kafka_cluster`, `registry`. They live in one folder, on 127.0.0.1, and end with the session, also a killed one.
Invariant: a missing artefact is fetched; one that cannot be had is an error of the test, never a skip.
"""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

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
from tests.support.spreading import Spreading
from tests.support.stack import NEWEST_POSTGRES, PostgresServers, drop_database, new_database_name


def pytest_configure(config: pytest.Config) -> None:
    """Also in each of pytest's workers."""
    # A shell's job in the background ignores it, and so would what is started here and is to be interrupted.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    config.pluginmanager.register(Spreading())


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
def kafka_and_doors(artefacts: Cache, stack_folder: Path) -> Iterator[tuple[KafkaBroker, KafkaDoors]]:
    """The session's broker, and the proxy that leads to it for who asks for `kafka_door`."""
    # A transaction that is over its time is looked for every 10 s otherwise.
    settings = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "300"}
    broker = KafkaBroker(stack_folder / "kafka", cache=artefacts, settings=settings)
    with KafkaDoors(broker) as doors, broker:
        yield broker, doors


@pytest.fixture(scope="session")
def kafka(kafka_and_doors: tuple[KafkaBroker, KafkaDoors]) -> KafkaBroker:
    """The session's broker. A test that stops it starts it again."""
    return kafka_and_doors[0]


@pytest.fixture
def kafka_door(kafka_and_doors: tuple[KafkaBroker, KafkaDoors]) -> Iterator[Proxy]:
    """A link to the session's broker that a test may break; it is healed afterwards."""
    (door,) = kafka_and_doors[1].proxies
    yield door
    door.heal()


@pytest.fixture(scope="session")
def kafka_cluster(artefacts: Cache, stack_folder: Path) -> Iterator[KafkaCluster]:
    """Three brokers."""
    with KafkaCluster(stack_folder / "kafka-cluster", cache=artefacts) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def registry(artefacts: Cache, stack_folder: Path) -> Iterator[SchemaRegistry]:
    """A schema registry in memory."""
    with SchemaRegistry(stack_folder / "registry", cache=artefacts) as server:
        yield server


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
