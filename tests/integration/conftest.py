"""What the daemon's own tests share: a source with a publication, a daemon for it, a reader."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.postgres import PostgresServer
from cdcd.demo.stack.registry import SchemaRegistry
from tests.support.daemon import Daemon
from tests.support.reader import Reader

_numbers = itertools.count(1)
NewDaemon = Callable[..., Daemon]
STREAMED = "options=-c%20debug_logical_replication_streaming%3Dimmediate"


@pytest.fixture
def reader(kafka: KafkaBroker, registry: SchemaRegistry) -> Reader:
    """The independent consumer."""
    return Reader(kafka.bootstrap, registry.url)


@pytest.fixture
def new_daemon(tmp_path: Path, kafka: KafkaBroker, registry: SchemaRegistry) -> Iterator[NewDaemon]:
    """`new_daemon(server, dbname, **configuration)`; whatever still runs at the end is killed."""
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
        made.append(daemon)
        return daemon

    yield make
    for daemon in made:
        daemon.__exit__()


def two_daemons(
    new_daemon: NewDaemon, server: PostgresServer, database: str, **over: Any
) -> tuple[Daemon, Daemon]:
    """One that receives transactions whole, and one that receives each change before its commit."""
    plain = new_daemon(server, database, **over)
    plain.config["source"]["protocol"] = {"streaming": "off"}
    streamed = new_daemon(server, database, **over)
    streamed.config["source"]["dsn"] += f"?{STREAMED}"
    return plain, streamed
