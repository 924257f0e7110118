"""Kafka brokers (KRaft, no ZooKeeper): one node for most purposes, three for the rest.

In: the jars, an empty folder.  Out: `bootstrap` of a running broker on 127.0.0.1.
A broker keeps its ports and its data over `stop`, `kill` and `start`, so a restart is the same broker.
Invariant: topics are never created by the broker itself (auto.create.topics.enable=false).
Must not: be tuned for speed of restart at the price of false alarms; see the session timeout below.
"""

from __future__ import annotations

import base64
import signal
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from cdcd.demo.stack.artefacts import Cache
from cdcd.demo.stack.packages import KAFKA_VERSION, java, kafka_artefact, run
from cdcd.demo.stack.ports import accepts_connections, free_port
from cdcd.demo.stack.process import ServerProcess
from cdcd.demo.stack.server import STOP_WITHIN_S, LocalServer

# For short lives: a small heap and only the fast compiler. A benchmark passes its own flags.
SMALL_JVM = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
STARTED = "Kafka Server started"
"""What its log says when all listeners are open: the first one serves some milliseconds before another one finds its
port taken, which ends the broker."""


class KafkaBroker(LocalServer):
    """One node that is broker and controller. Use as a context manager, or `start` and `stop`."""

    def __init__(
        self,
        folder: Path,
        *,
        cache: Cache | None = None,
        settings: Mapping[str, str] | None = None,
        jvm_flags: Sequence[str] = SMALL_JVM,
        node_id: int = 1,
        outlives_parent: bool = False,
        version: str = KAFKA_VERSION,
        features: Sequence[str] = (),
    ) -> None:
        """`features`: those that are formatted at another level than the version's own ("transaction.version=1")."""
        super().__init__()
        self.folder = folder
        self.node_id = node_id
        self.port = free_port()
        self.controller_port = free_port()
        self.voters = f"{node_id}@127.0.0.1:{self.controller_port}"
        self.copies = 1
        self.cluster_id: str | None = None
        self._jars = (cache or Cache()).get(kafka_artefact(version))
        self._features = tuple(features)
        self._settings = dict(settings or {})
        self._more_listeners: dict[str, tuple[int, str, int]] = {}
        self._moved: dict[str, Callable[[int], None]] = {}
        self._jvm_flags = tuple(jvm_flags)
        self._outlives_parent = outlives_parent

    @property
    def bootstrap(self) -> str:
        """The address for `bootstrap.servers`."""
        return f"127.0.0.1:{self.port}"

    def join(self, voters: str, nodes: int, cluster_id: str) -> None:
        """Become one of several nodes; each knows the others' ports, so they stay. Before the first start."""
        self.voters, self.copies, self.cluster_id = voters, nodes, cluster_id
        self._are_ports_known = True

    def add_listener(
        self,
        name: str,
        port: int,
        *,
        advertised_port: int,
        advertised_host: str = "127.0.0.1",
        moved: Callable[[int], None] | None = None,
    ) -> None:
        """Listen at `port` too, and tell who comes there that this broker is at `advertised_port`, where a proxy is.

        Before the first start. The brokers among themselves and who uses `bootstrap` keep the first listener.
        `moved` gets the new port where the first start finds one taken; without it the listener stays where it is.
        """
        self._more_listeners[name] = port, advertised_host, advertised_port
        if moved is not None:
            self._moved[name] = moved

    def launch(self) -> None:
        """Start the process without waiting for it."""
        if self.pid is not None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        properties = self.folder / "server.properties"
        properties.write_text("".join(f"{k}={v}\n" for k, v in self._properties().items()))
        if not self._formatted:
            self._format(properties)
        self._process = ServerProcess(
            f"Kafka node {self.node_id}",
            [*self._java(), "kafka.Kafka", str(properties)],
            log=self.folder / "kafka.log",
            cwd=self.folder,
            outlives_parent=self._outlives_parent,
        )

    def stop(self, timeout_s: float = STOP_WITHIN_S) -> None:
        """Orderly stop; killed when it takes longer than `timeout_s`."""
        self._end(signal.SIGTERM, timeout_s)

    def kill(self) -> None:
        """SIGKILL the broker.

        A commit that was answered less than some milliseconds ago may have no markers in its partitions yet. After
        the restart a *single* broker (seen with 4.3.0) can take these partitions, which have no leader while its old
        session runs out, for deleted ones and never write the markers: the transaction then hangs and hides what
        follows it from read_committed readers. Wait until the records can be read, or use `KafkaCluster`.
        """
        super().kill()

    @property
    def _formatted(self) -> bool:
        return (self.folder / "data" / "meta.properties").exists()

    def _format(self, properties: Path) -> None:
        if self.cluster_id is None:
            self.cluster_id = new_cluster_id()
        command = [*self._java(), "kafka.tools.StorageTool", "format"]
        command += [part for feature in self._features for part in ("--feature", feature)]
        run(
            [*command, "--cluster-id", self.cluster_id, "--config", str(properties)],
            "formatting the log folder failed",
        )

    def _take_other_ports(self) -> None:
        self.port, self.controller_port = free_port(), free_port()
        self.voters = f"{self.node_id}@127.0.0.1:{self.controller_port}"
        for name, moved in self._moved.items():
            port = free_port()
            self._more_listeners[name] = port, *self._more_listeners[name][1:]
            moved(port)

    def _java(self) -> list[str]:
        return [java(), *self._jvm_flags, "-cp", f"{self._jars}/*"]

    def _serves(self) -> bool:
        if not accepts_connections(self.port):
            return False
        # log_level 0: a refused connection is the expected answer here, not news for stderr.
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        try:
            is_known = self.node_id in admin.list_topics(timeout=2).brokers
        except KafkaException:
            return False
        # Who answers may be another broker, which was faster: nodes alone are all number 1.
        return is_known and self._process is not None and STARTED in self._process.output()

    def _properties(self) -> dict[str, str]:
        copies = str(self.copies)
        in_sync = str(max(1, self.copies - 1))
        more = self._more_listeners.items()
        listening = {"PLAINTEXT": self.port} | {name: port for name, (port, _, _) in more}
        reported = {"PLAINTEXT": ("127.0.0.1", self.port)} | {
            name: (host, port) for name, (_, host, port) in more
        }
        return {
            "process.roles": "broker,controller",
            "node.id": str(self.node_id),
            "controller.quorum.voters": self.voters,
            "listeners": _listeners(listening | {"CONTROLLER": self.controller_port}),
            "advertised.listeners": ",".join(
                f"{name}://{host}:{port}" for name, (host, port) in reported.items()
            ),
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "listener.security.protocol.map": ",".join(f"{n}:PLAINTEXT" for n in (*listening, "CONTROLLER")),
            "log.dirs": str(self.folder / "data"),
            "auto.create.topics.enable": "false",
            "default.replication.factor": copies,
            "min.insync.replicas": in_sync,
            "offsets.topic.replication.factor": copies,
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.replication.factor": copies,
            "transaction.state.log.min.isr": in_sync,
            "transaction.state.log.num.partitions": "1",
            "share.coordinator.state.topic.replication.factor": copies,
            "share.coordinator.state.topic.min.isr": in_sync,
            "share.coordinator.state.topic.num.partitions": "1",
            "group.initial.rebalance.delay.ms": "0",
            # The log cleaner's map of keys: with the 128 MB of the default, half of a small heap, a broker with
            # many partitions did not come up again.
            "log.cleaner.dedupe.buffer.size": str(16 << 20),
            # A killed broker is let back in after its old session has timed out: 4 s instead of 9 keeps tests
            # short and is still long enough for a busy machine.
            "broker.session.timeout.ms": "4000",
            "broker.heartbeat.interval.ms": "500",
            **self._settings,
        }


class KafkaCluster:
    """Three brokers that are also the controllers; three copies of each topic, two in sync for acks=all."""

    def __init__(
        self,
        folder: Path,
        *,
        nodes: int = 3,
        cache: Cache | None = None,
        settings: Mapping[str, str] | None = None,
        jvm_flags: Sequence[str] = SMALL_JVM,
    ) -> None:
        shared = cache or Cache()
        self.brokers = [
            KafkaBroker(folder / f"node-{n}", cache=shared, settings=settings, jvm_flags=jvm_flags, node_id=n)
            for n in range(1, nodes + 1)
        ]
        voters = ",".join(broker.voters for broker in self.brokers)
        cluster_id = new_cluster_id()
        for broker in self.brokers:
            broker.join(voters, nodes, cluster_id)

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers for `bootstrap.servers`."""
        return ",".join(broker.bootstrap for broker in self.brokers)

    def start(self) -> None:
        """Start all nodes together: one alone has no quorum and would never be ready."""
        for broker in self.brokers:
            broker.launch()
        for broker in self.brokers:
            broker.wait_ready()

    def stop(self, timeout_s: float = STOP_WITHIN_S) -> None:
        """Stop one after another; the last ones have no quorum left and are killed after a short wait."""
        for position, broker in enumerate(self.brokers):
            broker.stop(timeout_s if position == 0 else 3)

    def kill(self) -> None:
        """SIGKILL all nodes."""
        for broker in self.brokers:
            broker.kill()

    def __enter__(self) -> KafkaCluster:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _listeners(ports: Mapping[str, int]) -> str:
    return ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items())


def new_cluster_id() -> str:
    """A random cluster id in Kafka's own form: a UUID in URL-safe Base64 that does not begin with a dash."""
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        pass
    return text
