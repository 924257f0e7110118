"""The servers of the campaign, which stay up over its seeds, with a link in front of each.

In: PostgreSQL's major version.  Out: `Servers`, all running.
Invariant: readers and sessions connect directly; cdcd connects only through the links, and the brokers to each other
through `Peers`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import AdminClient

from cdcd.demo.stack.accounts import make_run_folder, server_account
from cdcd.demo.stack.artefacts import Cache
from cdcd.demo.stack.kafka import KafkaBroker, KafkaCluster
from cdcd.demo.stack.postgres import PostgresServer, programs_from_npm
from cdcd.demo.stack.registry import SchemaRegistry
from cdcd.errors import StackError
from tests.campaign.peers import JVM_FLAGS, SETTINGS, Peers
from tests.support.doors import KafkaDoors
from tests.support.forked import Forks
from tests.support.proxy import Proxy

WAL_SENDER_TIMEOUT_S = 10
START_ATTEMPTS = 20


@dataclass
class Servers:
    """Servers and links. `clock`: the file with the seconds that cdcd's clock is ahead."""

    kafka: KafkaCluster
    postgres: PostgresServer
    registry: SchemaRegistry
    doors: KafkaDoors
    peers: Peers
    to_postgres: Proxy
    to_registry: Proxy
    forks: Forks
    folder: Path
    clock: Path

    def heal(self) -> None:
        """Open every link, and start every server that is down."""
        for door in self.doors.late:
            door.let_through()
        for link in (self.to_postgres, self.to_registry, *self.doors.proxies):
            link.heal()
            link.accept()
        self.peers.heal()
        self.clock.write_text("0")
        start_postgres(self.postgres)
        for broker in self.kafka.brokers:
            broker.launch()
        for broker in self.kafka.brokers:
            broker.wait_ready()

    def leader(self, topic: str) -> KafkaBroker | None:
        """Return the leader of a topic's first partition; None while no broker knows it."""
        metadata = self.admin().list_topics(topic, timeout=5)
        partitions = metadata.topics[topic].partitions
        found = [one for one in self.kafka.brokers if partitions and one.node_id == partitions[0].leader]
        return found[0] if found else None

    def admin(self) -> AdminClient:
        """Return a client that connects directly."""
        return AdminClient({"bootstrap.servers": self.kafka.bootstrap, "log_level": 0})

    def delete_topics(self, name: str) -> None:
        """Delete the topics of a daemon."""
        admin = self.admin()
        names = [topic for topic in admin.list_topics(timeout=30).topics if topic.startswith(f"{name}.")]
        for future in admin.delete_topics(names, operation_timeout=30).values() if names else ():
            future.result()


def start_postgres(server: PostgresServer) -> None:
    """Start the server; after a SIGKILL its orphaned processes may still hold its memory for a moment."""
    for attempt in range(START_ATTEMPTS):
        try:
            server.launch()
            server.wait_ready()
            return
        except StackError:
            if attempt == START_ATTEMPTS - 1:
                raise
            server.kill()
            time.sleep(0.2)


@contextlib.contextmanager
def running(major: int) -> Iterator[Servers]:
    """Yield running servers, in a folder that is removed afterwards."""
    cache, folder = Cache(), make_run_folder("cdcd-campaign-", server_account())
    clock = folder / "ahead"
    clock.write_text("0")
    settings = {"logical_decoding_work_mem": "64kB", "wal_sender_timeout": f"{WAL_SENDER_TIMEOUT_S}s"}
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        kafka = KafkaCluster(folder / "kafka", cache=cache, settings=SETTINGS, jvm_flags=JVM_FLAGS)
        doors = stack.enter_context(KafkaDoors(kafka, keeps_requests=True))
        peers = stack.enter_context(Peers(kafka))
        postgres = PostgresServer(
            major, programs_from_npm(major, cache), folder / "postgres", settings=settings
        )
        registry = SchemaRegistry(folder / "registry", cache=cache)
        for server in (kafka, registry, postgres):
            stack.enter_context(server)
        to_postgres = stack.enter_context(Proxy(postgres.port))
        to_registry = stack.enter_context(Proxy(registry.port))
        os.environ["CDCD_TEST_CLOCK"] = str(
            clock
        )  # of the processes that are forked as `tests.faults.clocked`
        forks = stack.enter_context(Forks())
        yield Servers(kafka, postgres, registry, doors, peers, to_postgres, to_registry, forks, folder, clock)
