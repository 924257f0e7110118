"""Links between the brokers of a cluster: one for each broker, each of its peers, and each kind of connection.

In: a cluster that has not started yet.  Out: faults for the bytes from one broker to another.
A broker advertises a name to its peers, and each peer's JVM has its own file of names: it finds there the address
of a proxy that only this peer uses. So the proxy knows who sent the bytes, which its port does not tell.
Invariant: readers and cdcd use other listeners.  Must not: need privileges; all of 127.0.0.0/8 is this machine.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from dataclasses import dataclass

from cdcd.demo.stack.kafka import SMALL_JVM, KafkaBroker, KafkaCluster, new_cluster_id
from cdcd.demo.stack.ports import free_port
from tests.support.proxy import Proxy, Way

LISTENER = "PEERS"
NAMES = "names"
JVM_FLAGS = (*SMALL_JVM, f"-Djdk.net.hosts.file={NAMES}")
"""The file is in each broker's own folder."""
SETTINGS = {"inter.broker.listener.name": LISTENER, "replica.lag.time.max.ms": "4000"}
"""A follower that is cut off leaves the replicas in sync within seconds, so that writing continues."""


@dataclass(frozen=True, slots=True)
class Link:
    """The connections that one broker opens to another."""

    opened_by: int
    to: int
    proxy: Proxy


class Peers:
    """The links between all brokers."""

    def __init__(self, kafka: KafkaCluster) -> None:
        self.links: list[Link] = []
        ports = {broker.node_id: free_port() for broker in kafka.brokers}
        voters = ",".join(
            f"{one.node_id}@{name_of(one.node_id)}:{one.controller_port}" for one in kafka.brokers
        )
        cluster_id = new_cluster_id()
        for broker in kafka.brokers:
            broker.join(voters, len(kafka.brokers), cluster_id)
            port = ports[broker.node_id]
            broker.add_listener(LISTENER, port, advertised_port=port, advertised_host=name_of(broker.node_id))
            self._write_names(broker, [one.node_id for one in kafka.brokers])
            for other in kafka.brokers:
                if other is not broker:
                    self._link(other.node_id, broker.node_id, (port, broker.controller_port))

    def _link(self, opened_by: int, to: int, ports: Iterable[int]) -> None:
        for port in ports:
            self.links.append(Link(opened_by, to, Proxy(port, at=(address(opened_by, to), port))))

    @staticmethod
    def _write_names(broker: KafkaBroker, nodes: Iterable[int]) -> None:
        broker.folder.mkdir(parents=True, exist_ok=True)
        lines = [f"{address(broker.node_id, node)} {name_of(node)}" for node in nodes]
        (broker.folder / NAMES).write_text(
            "\n".join([*lines, f"127.0.0.1 localhost {socket.gethostname()}", ""])
        )

    def of(self, node: int, *ways: Way) -> list[tuple[Proxy, tuple[Way, ...]]]:
        """Return the proxies with the directions of the bytes from (up) or to (down) a node; default: both."""
        wanted = ways or ("up", "down")
        opposite: dict[Way, Way] = {"up": "down", "down": "up"}
        return [
            (link.proxy, tuple(wanted if link.opened_by == node else (opposite[way] for way in wanted)))
            for link in self.links
            if node in (link.opened_by, link.to)
        ]

    def heal(self) -> None:
        """Let everything through."""
        for link in self.links:
            link.proxy.heal()

    def __enter__(self) -> Peers:
        return self

    def __exit__(self, *_exc: object) -> None:
        for link in self.links:
            link.proxy.close()


def name_of(node: int) -> str:
    """Return the name that a broker advertises to its peers."""
    return f"broker-{node}.test"


def address(opened_by: int, to: int) -> str:
    """Return where one broker finds another: itself without a proxy."""
    return "127.0.0.1" if opened_by == to else f"127.77.{opened_by}.{to}"
