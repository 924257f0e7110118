"""The servers that the workers of pytest-xdist share: one broker and one registry for the whole run.

In: a worker's request, over a local socket.  Out: the server's address; the first request starts the server.
The broker has a listener for each worker, which advertises the port of a proxy that the worker opens, so a worker
can break only the connections of its own tests.
Invariant: a shared server runs until the session ends. No test stops, pauses or configures it; a test that must is
marked `own_broker` and uses its worker's own broker.
Names isolate the tests: each test has its own topics, subjects and transactional ids.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import threading
from collections.abc import Callable
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from cdcd.demo.stack.kafka import SMALL_JVM, KafkaBroker
from cdcd.demo.stack.ports import free_port
from cdcd.demo.stack.registry import SchemaRegistry

_INPUT = "shared_servers"
BROKER_SETTINGS = {
    # The default interval of the search for timed-out transactions is 10 s.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "300",
    "log.segment.delete.delay.ms": "1000",
}
ROOMY_JVM = ("-Xmx768m", *SMALL_JVM[1:])
"""More memory, because the shared broker has the topics of all workers."""


class Address(NamedTuple):
    """The address of a shared server, and the worker's own listener of the broker."""

    port: int
    proxied_port: int = 0
    """The broker's listener behind the worker's proxy."""
    door_port: int = 0
    """The port that this proxy must use."""


class TopicCleanup:
    """A plugin of a worker that deletes the topics of each file's tests from the shared broker.

    The broker's work for a request that names no topics, and for each new topic, grows with the number of topics.
    """

    def __init__(self, bootstrap: str) -> None:
        self._admin = AdminClient({"bootstrap.servers": bootstrap})
        self._of_this_worker = re.compile(rf"[a-zA-Z]+[-_]?{os.getpid()}(?!\d)")

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_teardown(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        """Delete the topics after the last test of a file, once its fixtures have ended their daemons."""
        if nextitem is not None and nextitem.path == item.path:
            return
        topics = [
            name for name in self._admin.list_topics(timeout=30).topics if self._of_this_worker.match(name)
        ]
        for deleted in self._admin.delete_topics(topics).values() if topics else ():
            with contextlib.suppress(KafkaException):  # its test has deleted the topic
                deleted.result(30)


class SharedServers:
    """A plugin of the process that controls the workers. `folder` creates the servers' folder."""

    def __init__(self, workers: int, folder: Callable[[], Path]) -> None:
        self._key = secrets.token_bytes(16)
        # Each worker asks for two servers, all at once. A connection beyond the backlog may look established to its
        # client, which then waits for ever.
        self._listener = Listener(("127.0.0.1", 0), backlog=2 * workers, authkey=self._key)
        self._starters: dict[str, Callable[[Path], KafkaBroker | SchemaRegistry]] = {
            "kafka": self._start_kafka,
            "registry": self._start_registry,
        }
        self._workers = workers
        self._folder = folder
        self._made: list[Path] = []
        self._doors: list[tuple[int, int]] = []
        self._running: dict[str, KafkaBroker | SchemaRegistry] = {}
        self._lock = threading.Lock()
        self._is_closed = threading.Event()
        threading.Thread(target=self._accept, name="shared servers", daemon=True).start()

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Pass the address of this plugin's socket to a worker."""
        node.workerinput[_INPUT] = (self._listener.address, self._key)

    def pytest_unconfigure(self) -> None:
        """Stop the servers and remove their folders."""
        self._is_closed.set()
        self._listener.close()
        with self._lock:
            for server in self._running.values():
                server.stop()
        for folder in self._made:
            shutil.rmtree(folder, ignore_errors=True)

    def _accept(self) -> None:
        while not self._is_closed.is_set():
            with contextlib.suppress(OSError, EOFError):  # closed, or a worker has ended while it connected
                connection = self._listener.accept()
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: Connection) -> None:
        with connection, contextlib.suppress(OSError, EOFError):
            name = connection.recv()
            try:
                connection.send(self._address_of(name))
            except Exception as failure:  # noqa: BLE001 - the worker raises the error
                connection.send(f"{type(failure).__name__}: {failure}")

    def _address_of(self, name: str) -> Address:
        with self._lock:
            if name not in self._running:
                self._made.append(self._folder())
                self._running[name] = self._starters[name](self._made[-1])
            port = self._running[name].port
            return Address(port, *self._doors.pop()) if name == "kafka" else Address(port)

    def _start_kafka(self, folder: Path) -> KafkaBroker:
        broker = KafkaBroker(folder / "kafka", settings=BROKER_SETTINGS, jvm_flags=ROOMY_JVM)
        # A new worker replaces one that has crashed, and needs a listener of its own.
        self._doors = [(free_port(), free_port()) for _ in range(2 * self._workers)]
        for number, (port, door_port) in enumerate(self._doors):
            broker.add_listener(f"PROXIED{number}", port, advertised_port=door_port)
        broker.start()
        return broker

    def _start_registry(self, folder: Path) -> SchemaRegistry:
        server = SchemaRegistry(folder / "registry")
        server.start()
        return server


def shared_address(config: pytest.Config, name: str) -> Address | None:
    """Return the address of a shared server, None in a session without workers. Call once for each worker."""
    where = getattr(config, "workerinput", {}).get(_INPUT)
    if where is None:
        return None
    address, key = where
    with Client(tuple(address), authkey=key) as connection:
        connection.send(name)
        answer = connection.recv()
    if not isinstance(answer, Address):
        raise RuntimeError(f"the shared {name} could not be started: {answer}")
    return answer


def _refuse(*_args: object, **_options: object) -> NoReturn:
    raise AssertionError("this server is shared by all workers: mark the test `own_broker`")


class SharedBroker(KafkaBroker):
    """The address of the shared broker, where a test expects a broker."""

    def __init__(self, port: int) -> None:
        super().__init__(Path())
        self.port = port

    def start(self) -> None:
        """Do nothing: the broker runs already."""

    launch = stop = kill = wait_ready = add_listener = join = _refuse
    pid = property(_refuse)


class SharedRegistry(SchemaRegistry):
    """The address of the shared registry, where a test expects a registry."""

    def __init__(self, port: int) -> None:
        super().__init__(Path())
        self.port = port

    def start(self) -> None:
        """Do nothing: the registry runs already."""

    launch = stop = kill = wait_ready = _refuse
    pid = property(_refuse)
