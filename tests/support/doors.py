"""Proxies in front of the servers: what cdcd is told are their addresses, while the tests themselves go directly.

In: a PostgreSQL server, a broker or a cluster that was not started yet, a registry.
Out: a proxy each, and the addresses that lead through them.
Invariant: a client that begins at `KafkaDoors.bootstrap` never reaches a broker but through its proxy: the proxied
listener advertises the proxies alone (Kafka's clients connect to what is advertised, not to what they were given).
"""

from __future__ import annotations

from cdcd.demo.stack.kafka import KafkaBroker, KafkaCluster
from cdcd.demo.stack.ports import free_port
from cdcd.demo.stack.postgres import PostgresServer
from cdcd.demo.stack.registry import SchemaRegistry
from tests.support.late import LateDoor
from tests.support.proxy import Proxy


class KafkaDoors:
    """One proxy for each broker. Made before the brokers' first start.

    `keeps_requests`: and a `LateDoor` in front of each, which can keep one request back.
    """

    def __init__(self, kafka: KafkaBroker | KafkaCluster, *, keeps_requests: bool = False) -> None:
        brokers = kafka.brokers if isinstance(kafka, KafkaCluster) else [kafka]
        self.proxies: list[Proxy] = []
        self.late: list[LateDoor] = []
        for broker in brokers:
            port = free_port()
            proxy = Proxy(port)
            door: Proxy | LateDoor = proxy
            if keeps_requests:
                self.late.append(door := LateDoor(proxy.port))
            broker.add_listener("PROXIED", port, advertised_port=door.port, moved=proxy.point_to)
            self.proxies.append(proxy)

    @property
    def bootstrap(self) -> str:
        """The addresses for `bootstrap.servers`."""
        return ",".join(f"127.0.0.1:{door.port}" for door in self.late or self.proxies)

    def __enter__(self) -> KafkaDoors:
        return self

    def __exit__(self, *_exc: object) -> None:
        for late in self.late:
            late.close()
        for proxy in self.proxies:
            proxy.close()


def through(dsn: str, server: PostgresServer, proxy: Proxy) -> str:
    """The same DSN by way of the proxy."""
    return dsn.replace(f"{server.host}:{server.port}/", f"127.0.0.1:{proxy.port}/")


def registry_through(registry: SchemaRegistry, proxy: Proxy) -> str:
    """The registry's URL by way of the proxy."""
    return registry.url.replace(f":{registry.port}/", f":{proxy.port}/")
