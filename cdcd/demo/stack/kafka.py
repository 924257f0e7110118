"""Kafka brokers (KRaft, no ZooKeeper): usually one node, or three.

In: the jars, an empty folder.  Out: `bootstrap` of a running broker on 127.0.0.1.
A broker has the same ports and data after `stop`, `kill` and `start`, so a restart is the same broker.
Invariant: the broker itself never creates topics (auto.create.topics.enable=false).
Must not: have a session timeout so short that a busy machine causes false timeouts (see below).
"""

from __future__ import annotations

import base64
import signal
import tempfile
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from cdcd.demo.stack.artefacts import Cache
from cdcd.demo.stack.class_archive import TRAINED_WITHIN_S, class_archive_flags
from cdcd.demo.stack.packages import KAFKA_VERSION, java, kafka_artefact, run
from cdcd.demo.stack.ports import accepts_connections, free_port
from cdcd.demo.stack.process import ServerProcess
from cdcd.demo.stack.server import STOP_WITHIN_S, LocalServer

# For short runs: a small heap and only the fast compiler. A benchmark passes its own flags.
SMALL_JVM = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
STARTED = "Kafka Server started"
"""The log line after all listeners are open. The first listener accepts connections some milliseconds before another
one may find its port taken, which ends the broker."""


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
        training: Sequence[str] = (),
    ) -> None:
        """`features`: features with another level than the version's default ("transaction.version=1").

        `training`: flags with which the JVM writes the archive of its classes, in place of those that use it.
        """
        super().__init__()
        self.folder = folder
        self.node_id = node_id
        self.port = free_port()
        self.controller_port = free_port()
        self.voters = f"{node_id}@127.0.0.1:{self.controller_port}"
        self.copies = 1
        self.cluster_id: str | None = None
        self._cache = cache or Cache()
        self._version = version
        self._jars = self._cache.get(kafka_artefact(version))
        self._features = tuple(features)
        self._settings = dict(settings or {})
        self._more_listeners: dict[str, tuple[int, str, int]] = {}
        self._moved: dict[str, Callable[[int], None]] = {}
        self._jvm_flags = tuple(jvm_flags)
        self._training = tuple(training)
        self._outlives_parent = outlives_parent

    @property
    def bootstrap(self) -> str:
        """Return the address for `bootstrap.servers`."""
        return f"127.0.0.1:{self.port}"

    def join(self, voters: str, nodes: int, cluster_id: str) -> None:
        """Join a cluster of several nodes, whose ports are fixed: each node knows them. Call before `start`."""
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
        """Listen at `port` too, and advertise `advertised_port`, the port of a proxy, to its clients.

        Call before the first start. The other brokers and clients of `bootstrap` use the first listener.
        `moved` is called with the new port if the first start finds `port` taken; without it the port is fixed.
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
            [*self._java(), *self._training, "kafka.Kafka", str(properties)],
            log=self.folder / "kafka.log",
            cwd=self.folder,
            outlives_parent=self._outlives_parent,
        )

    def stop(self, timeout_s: float = STOP_WITHIN_S) -> None:
        """Stop in order; kill the broker after `timeout_s`."""
        self._end(signal.SIGTERM, timeout_s)

    def kill(self) -> None:
        """SIGKILL the broker.

        A commit answered a few milliseconds ago may have no markers in its partitions yet. After the restart, a
        *single* broker (seen with 4.3.0) can treat these partitions, which have no leader until its old session times
        out, as deleted and never write the markers: the transaction then hangs and hides later records from
        read_committed readers. Wait until the records can be read, or use `KafkaCluster`.
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
        archive = () if self._training else class_archive_flags(self._jars, java(), self._train)
        return [java(), *self._jvm_flags, *archive, "-cp", f"{self._jars}/*"]

    def _train(self, flags: Sequence[str]) -> None:
        with tempfile.TemporaryDirectory(prefix="cdcd-classes-") as folder:
            broker = KafkaBroker(
                Path(folder) / "kafka", cache=self._cache, version=self._version, training=flags
            )
            with broker:
                broker.stop(TRAINED_WITHIN_S)

    def _serves(self) -> bool:
        if not accepts_connections(self.port):
            return False
        # log_level 0: a refused connection is expected here, and not to be shown on stderr.
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        try:
            is_known = self.node_id in admin.list_topics(timeout=2).brokers
        except KafkaException:
            return False
        # Another broker may answer at a taken port: the node id does not distinguish them, because each is 1.
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
            # The log cleaner's map of keys: with the default of 128 MB, half of a small heap, a broker with many
            # partitions did not start again.
            "log.cleaner.dedupe.buffer.size": str(16 << 20),
            # A killed broker can join again after its old session has timed out: 4 s instead of 9 makes tests
            # shorter and is still long enough for a busy machine.
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
        """Return the addresses of all brokers for `bootstrap.servers`."""
        return ",".join(broker.bootstrap for broker in self.brokers)

    def start(self) -> None:
        """Start all nodes together, because a single node has no quorum and would never be ready."""
        for broker in self.brokers:
            broker.launch()
        for broker in self.brokers:
            broker.wait_ready()

    def stop(self, timeout_s: float = STOP_WITHIN_S) -> None:
        """Stop one after another; the last ones have no quorum and are killed after a short wait."""
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
    """Return a random cluster id in Kafka's format: a UUID in URL-safe Base64 that does not begin with a dash."""
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        pass
    return text
