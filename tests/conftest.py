"""The real servers of the test session, each started when the first test asks for it.

Out: `pg_server(major)`, `postgres` (newest major), `database` (a new one for each test), `kafka`,
`kafka_cluster`, `registry`, `spark`. The servers use one folder, listen on 127.0.0.1, and end with the session, even
if the session is killed. The workers of pytest-xdist share the broker and the registry; a test marked `own_broker`
uses the broker of its worker.
Invariant: a missing artefact is downloaded; an artefact that is unavailable is an error of the test, never a skip.
"""

from __future__ import annotations

import gc
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Literal

import pytest
from hypothesis import settings

from cdcd import redaction
from cdcd.demo.stack.accounts import make_run_folder, server_account
from cdcd.demo.stack.artefacts import Cache
from cdcd.demo.stack.kafka import KafkaBroker, KafkaCluster
from cdcd.demo.stack.postgres import PostgresServer
from cdcd.demo.stack.registry import SchemaRegistry
from cdcd.errors import commands
from tests.support.doors import KafkaDoors
from tests.support.forked import Forks
from tests.support.memory_folder import MemoryFolder
from tests.support.proxy import Proxy
from tests.support.secured_kafka import SecuredKafka
from tests.support.shared import (
    BROKER_SETTINGS,
    SharedBroker,
    SharedRegistry,
    SharedServers,
    TopicCleanup,
    shared_address,
)
from tests.support.spreading import Spreading
from tests.support.stack import NEWEST_POSTGRES, PostgresServers, drop_database, new_database_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pytest_configure(config: pytest.Config) -> None:
    """Set up signals and plugins; pytest calls this in each worker too."""
    # A background job of a shell ignores SIGINT, and child processes would inherit that; tests interrupt them.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # On a busy machine an example takes seconds, whatever it does.
    settings.register_profile("nightly", deadline=None)
    settings.register_profile("at each change", max_examples=30, deadline=None)
    settings.load_profile("at each change" if "not nightly" in config.option.markexpr else "nightly")
    config.pluginmanager.register(Spreading())
    if hasattr(config, "workerinput"):
        return
    memory = MemoryFolder()
    config.pluginmanager.register(memory)
    config.add_cleanup(memory.release)  # after the shared servers, which live there
    if workers := getattr(config.option, "numprocesses", None):
        config.pluginmanager.register(SharedServers(workers, _shared_folder))


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[object]:
    """Exclude the collected tests from garbage collection: thousands of objects live until the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def _shared_folder() -> Path:
    """Return a new folder for the servers that all workers share."""
    return make_run_folder("cdcd-test-", server_account())


@pytest.fixture(scope="session")
def artefacts() -> Cache:
    """The cache of the servers' programs, in the user's cache folder."""
    return Cache()


@pytest.fixture(scope="session")
def stack_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of this session's servers."""
    account = server_account()
    # The server account cannot enter pytest's folder of root, and each new session of pytest restricts it again.
    folder = make_run_folder("cdcd-test-", account) if account else tmp_path_factory.mktemp("stack")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def pg_server(
    request: pytest.FixtureRequest, artefacts: Cache, stack_folder: Path
) -> Iterator[PostgresServers]:
    """`pg_server(16)` is the session's PostgreSQL 16; `pg_server.fresh(16)` is a server for one test."""
    servers = PostgresServers(artefacts, stack_folder)
    request.config.pluginmanager.register(servers)  # removes clusters after each file
    yield servers
    request.config.pluginmanager.unregister(servers)
    servers.stop()


@pytest.fixture(scope="session")
def postgres(pg_server: PostgresServers) -> PostgresServer:
    """The session's PostgreSQL of the newest major version. A test that stops the server starts it again."""
    return pg_server(NEWEST_POSTGRES)


@pytest.fixture
def database(postgres: PostgresServer) -> Iterator[str]:
    """The name of a new, empty database on `postgres`, dropped afterwards with its slots."""
    postgres.start()  # an earlier test may have stopped it
    name = new_database_name()
    postgres.create_database(name)
    yield name
    drop_database(postgres, name)


def _file_with_workers(*, fixture_name: str, config: pytest.Config) -> Literal["module", "session"]:
    """Return the scope of servers that few files use: an idle broker takes 3 % of a processor."""
    return "module" if hasattr(config, "workerinput") else "session"


@pytest.fixture(scope=_file_with_workers)
def own_kafka_and_doors(artefacts: Cache, stack_folder: Path) -> Iterator[tuple[KafkaBroker, KafkaDoors]]:
    """This worker's own broker, and the proxy in front of it."""
    folder = Path(mkdtemp(prefix="kafka-", dir=stack_folder))
    broker = KafkaBroker(folder, cache=artefacts, settings=BROKER_SETTINGS)
    with KafkaDoors(broker) as doors, broker:
        yield broker, doors
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def shared_kafka_and_door(request: pytest.FixtureRequest) -> Iterator[tuple[KafkaBroker, Proxy]]:
    """The broker of all workers and this worker's proxy to it; without workers, the session's own broker."""
    address = shared_address(request.config, "kafka")
    if address is None:
        broker, doors = request.getfixturevalue("own_kafka_and_doors")
        yield broker, doors.proxies[0]
        return
    broker = SharedBroker(address.port)
    request.config.pluginmanager.register(TopicCleanup(broker.bootstrap))
    with Proxy(address.proxied_port, at=("127.0.0.1", address.door_port)) as door:
        yield broker, door


@pytest.fixture
def kafka(request: pytest.FixtureRequest) -> KafkaBroker:
    """A broker. A test that stops, pauses or configures the broker is marked `own_broker` and starts it again."""
    if request.node.get_closest_marker("own_broker") is None:
        broker: KafkaBroker = request.getfixturevalue("shared_kafka_and_door")[0]
    else:
        broker = request.getfixturevalue("own_kafka_and_doors")[0]
    broker.start()  # an earlier test may have stopped it
    return broker


@pytest.fixture
def kafka_door(
    request: pytest.FixtureRequest, shared_kafka_and_door: tuple[KafkaBroker, Proxy]
) -> Iterator[Proxy]:
    """A proxy to the broker that a test may break; afterwards the proxy is healed."""
    assert request.node.get_closest_marker("own_broker") is None, (
        "this proxy leads to the broker of all workers"
    )
    yield shared_kafka_and_door[1]
    shared_kafka_and_door[1].heal()


@pytest.fixture(scope=_file_with_workers)
def kafka_cluster(artefacts: Cache, stack_folder: Path) -> Iterator[KafkaCluster]:
    """Three brokers."""
    folder = Path(mkdtemp(prefix="kafka-cluster-", dir=stack_folder))
    with KafkaCluster(folder, cache=artefacts) as cluster:
        yield cluster
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def cluster(kafka_cluster: KafkaCluster) -> Iterator[KafkaCluster]:
    """`kafka_cluster`, whose three brokers all run before and after the test."""
    for broker in kafka_cluster.brokers:
        broker.launch()
    for broker in kafka_cluster.brokers:
        broker.wait_ready()
    yield kafka_cluster
    for broker in kafka_cluster.brokers:
        broker.launch()


@pytest.fixture(scope="session")
def secured_kafka(artefacts: Cache, stack_folder: Path) -> Iterator[SecuredKafka]:
    """This worker's broker that requires authentication."""
    folder = Path(mkdtemp(prefix="secured-kafka-", dir=stack_folder))
    with SecuredKafka(folder / "broker", artefacts) as secured:
        yield secured


@pytest.fixture(scope="session")
def own_registry(artefacts: Cache, stack_folder: Path) -> Iterator[SchemaRegistry]:
    """This worker's own in-memory schema registry, for tests that pause it."""
    with SchemaRegistry(stack_folder / "registry", cache=artefacts) as server:
        yield server


@pytest.fixture(scope="session")
def registry(request: pytest.FixtureRequest) -> SchemaRegistry:
    """An in-memory schema registry; all workers share one."""
    address = shared_address(request.config, "registry")
    if address is not None:
        return SharedRegistry(address.port)
    server: SchemaRegistry = request.getfixturevalue("own_registry")
    return server


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    """A process that forks daemons, so that a start need not import the modules again."""
    with Forks() as forks:
        yield forks


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The Spark of this process; all its tests share it."""
    from cdcd.spark.session import session  # `make test-quick` runs without PySpark

    running = session("cdcd tests", "2", memory="1g", shuffle_partitions=2)
    yield running
    running.stop()


@pytest.fixture(autouse=True)
def _nothing_of_other_tests() -> Iterator[None]:
    """Forget what a test has set for the whole process: secrets to redact, the configuration file named in hints."""
    yield
    redaction.forget()
    commands.use_file(None)
