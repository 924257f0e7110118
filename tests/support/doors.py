"""Proxies in front of the servers: cdcd is configured with their addresses; the tests themselves connect directly.

In: a PostgreSQL server, a broker or a cluster that is not started yet, a registry.
Out: a proxy for each, and the addresses of the proxies.
Invariant: a client that bootstraps from `KafkaDoors.bootstrap` reaches each broker only through its proxy: the
proxied listener advertises only the proxies, and Kafka clients connect to the advertised addresses.
"""

from __future__ import annotations

from cdcd.demo.stack.kafka import KafkaBroker, KafkaCluster
from cdcd.demo.stack.ports import free_port
from cdcd.demo.stack.postgres import PostgresServer
from cdcd.demo.stack.registry import SchemaRegistry
from tests.support.late import LateDoor
from tests.support.proxy import Proxy


class KafkaDoors:
    """One proxy for each broker, created before the brokers' first start.

    `keeps_requests`: also a `LateDoor` in front of each, which can withhold one request.
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
        """The proxies' addresses for `bootstrap.servers`."""
        return ",".join(f"127.0.0.1:{door.port}" for door in self.late or self.proxies)

    def __enter__(self) -> KafkaDoors:
        return self

    def __exit__(self, *_exc: object) -> None:
        for late in self.late:
            late.close()
        for proxy in self.proxies:
            proxy.close()


def through(dsn: str, server: PostgresServer, proxy: Proxy) -> str:
    """Return the DSN with the proxy's address."""
    return dsn.replace(f"{server.host}:{server.port}/", f"127.0.0.1:{proxy.port}/")


def registry_through(registry: SchemaRegistry, proxy: Proxy) -> str:
    """Return the registry's URL with the proxy's address."""
    return registry.url.replace(f":{registry.port}/", f":{proxy.port}/")
