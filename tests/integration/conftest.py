"""Fixtures of the daemon's tests: a source with a publication, a daemon for it, a reader."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient

from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.postgres import PostgresServer
from cdcd.demo.stack.registry import SchemaRegistry
from tests.support.changes import Topics
from tests.support.daemon import STREAM_ONLY, Daemon
from tests.support.forked import Forks
from tests.support.reader import Reader

_numbers = itertools.count(1)
NewDaemon = Callable[..., Daemon]
TopicsOf = Callable[[Daemon], Topics]
BothWays = Callable[..., tuple[Daemon, Daemon]]
STREAMED = "options=-c%20debug_logical_replication_streaming%3Dimmediate"


@pytest.fixture
def reader(kafka: KafkaBroker, registry: SchemaRegistry) -> Reader:
    """Return the independent consumer."""
    return Reader(kafka.bootstrap, registry.url)


@pytest.fixture
def new_daemon(
    tmp_path: Path, kafka: KafkaBroker, registry: SchemaRegistry, forks: Forks
) -> Iterator[NewDaemon]:
    """Return `new_daemon(server, dbname, **configuration)`; at the end a daemon that still runs is killed."""
    made: list[Daemon] = []

    def make(server: PostgresServer, dbname: str, **over: Any) -> Daemon:
        name = f"shop{os.getpid()}x{next(_numbers)}"
        server.execute(f"CREATE PUBLICATION cdcd_{name} FOR ALL TABLES", dbname=dbname)
        daemon = Daemon(
            tmp_path / name,
            name,
            dsn=server.dsn(dbname),
            bootstrap=kafka.bootstrap,
            registry_url=registry.url,
            **over,
        )
        daemon.spawn, daemon.run_command = forks.spawn, forks.run
        made.append(daemon)
        return daemon

    yield make
    for daemon in made:
        daemon.__exit__()


@pytest.fixture
def both_ways(new_daemon: NewDaemon, postgres: PostgresServer, database: str) -> BothWays:
    """Return `both_ways(**configuration)`: one daemon that receives complete transactions, and one that receives each
    change before its commit. Both stream, and copy no table that ALTER TABLE has rewritten.
    """

    def make(**over: Any) -> tuple[Daemon, Daemon]:
        over = {**over, "snapshot": {**STREAM_ONLY, **over.get("snapshot", {})}}
        plain, streamed = (new_daemon(postgres, database, **over) for _ in range(2))
        plain.config["source"]["protocol"] = {"streaming": "off"}
        streamed.config["source"]["dsn"] += f"?{STREAMED}"
        for daemon in (plain, streamed):
            daemon.start()
        for daemon in (plain, streamed):
            daemon.wait_state("streaming")
        return plain, streamed

    return make


@pytest.fixture
def topics_of(kafka: KafkaBroker, registry: SchemaRegistry) -> TopicsOf:
    """Return `topics_of(daemon)`, which reads the daemon's topics with the registry's schemas."""
    client = SchemaRegistryClient({"url": registry.url})
    return lambda daemon: Topics(kafka.bootstrap, client, daemon.name)
