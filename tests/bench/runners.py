"""The runners that drain a backlog: pg_recvlogical to a null device, and cdcd with each kind of delivery.

In: servers, a backlog, a slot.  Out: a `Running` that reports its progress, and its number of records at the end.
Invariant: a runner that ends early, or writes another number of records than the case has, is an error and has no
result.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlencode

import yaml

from cdcd.errors import ConfigError, StackError
from cdcd.lsn import format_lsn
from tests.bench.backlog import END_TOLERANCE_BYTES, PUBLICATION, Backlog
from tests.bench.kafka import ProgressReader, count_committed, delete_topics
from tests.bench.servers import Servers
from tests.support.daemon import Daemon, merge

PROTOCOL_VERSION = 4
LOOK_AT_LOG_S = 1.0


class RunProgress(Enum):
    """The progress of a run."""

    NOTHING = 0
    SOME = 1
    """Some rows are durable; for a runner that writes nothing: it runs."""
    WARM = 2
    """The rate may start."""
    ALL = 3


class Running(Protocol):
    """A process that drains."""

    @property
    def pid(self) -> int:
        """Its process id."""

    @property
    def topics(self) -> list[str]:
        """The topics of the tables that get rows."""

    def look(self, timeout_s: float) -> RunProgress:
        """Wait at most `timeout_s` for progress and return it. Raises StackError when the process has failed."""

    def records(self) -> int | None:
        """Return the number of records written, after ALL; None for a runner that writes none."""


class Runner(Protocol):
    """A receiver that drains backlogs."""

    @property
    def name(self) -> str:
        """The name for --runners and in the tables."""

    @property
    def about(self) -> str:
        """A description in one line."""

    @property
    def settings(self) -> Mapping[str, str]:
        """The settings that differ from the defaults."""

    def run(
        self, servers: Servers, backlog: Backlog, slot: str
    ) -> contextlib.AbstractContextManager[Running]:
        """Start the runner; at the end of the block it has ended and its output is deleted."""


# --- pg_recvlogical ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RecvLogical:
    """PostgreSQL's own client, which discards everything: the server's maximum send rate."""

    name: str
    about: str
    is_unix: bool
    settings: Mapping[str, str] = field(default_factory=dict)

    @contextlib.contextmanager
    def run(self, servers: Servers, backlog: Backlog, slot: str) -> Iterator[Running]:
        """Start pg_recvlogical; it ends by itself at the backlog's end."""
        host = str(servers.socket_folder) if self.is_unix else servers.postgres.host
        options = protocol_options(backlog)
        command = [
            str(servers.program("pg_recvlogical")), "--start", "--slot", slot, "--file", os.devnull, "--no-loop",
            "--endpos", format_lsn(backlog.end_lsn), "--fsync-interval", "0",
            "--host", host, "--port", str(servers.postgres.port),
            "--username", servers.postgres.superuser, "--dbname", backlog.database,
            *(part for key, value in options.items() for part in ("--option", f"{key}={value}")),
        ]  # fmt: skip
        log = servers.folder / "recvlogical.log"
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            with contextlib.closing(_RunningRecvLogical(process, log)) as running:
                yield running
        finally:
            process.kill()
            process.wait()


class _RunningRecvLogical:
    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self._log = log
        self._end = os.pidfd_open(process.pid)
        self.topics: list[str] = []

    @property
    def pid(self) -> int:
        return self._process.pid

    def look(self, timeout_s: float) -> RunProgress:
        # Check without reaping the process, so that its usage can be read once more.
        if not select.select([self._end], [], [], timeout_s)[0]:
            return RunProgress.WARM
        ended = os.waitid(os.P_PIDFD, self._end, os.WEXITED | os.WNOWAIT)
        if ended is not None and ended.si_status:
            raise StackError(f"pg_recvlogical ended with {ended.si_status}:\n{self._log.read_text()}")
        return RunProgress.ALL

    def records(self) -> int | None:
        return None

    def close(self) -> None:
        os.close(self._end)


def protocol_options(backlog: Backlog) -> dict[str, str]:
    """Return pgoutput's options as cdcd requests them."""
    options = {
        "proto_version": str(PROTOCOL_VERSION),
        "publication_names": f'"{PUBLICATION}"',
        "messages": "true",
    }
    if backlog.case.streaming != "off":
        options["streaming"] = backlog.case.streaming
    if backlog.case.binary:
        options["binary"] = "true"
    return options


# --- cdcd ----------------------------------------------------------------------------------------------------

AS_INSTALLED = {"PYTHONDONTWRITEBYTECODE": ""}
"""Python compiles cdcd's modules once, as pip does for an installation, and not at every start."""


@dataclass(frozen=True, slots=True)
class Cdcd:
    """The daemon, as a plain installation runs it. `over`: the configuration beyond the defaults."""

    name: str
    about: str
    over: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    is_unix: bool = False
    module: str = "tests.bench.plain"
    """The module that Python runs."""

    @property
    def settings(self) -> Mapping[str, str]:
        """The options of the configuration, and of the environment."""
        reported = {
            key: yaml.safe_dump(value, default_flow_style=True).strip() for key, value in self.over.items()
        }
        return reported | dict(self.environment)

    @contextlib.contextmanager
    def run(self, servers: Servers, backlog: Backlog, slot: str) -> Iterator[Running]:
        """Start the daemon on this slot."""
        with self.daemon(servers, backlog, slot) as daemon:
            topic = f"{daemon.name}.__progress"
            reader = ProgressReader(servers.kafka.bootstrap, topic, slot)
            try:
                daemon.start()
                yield _RunningCdcd(daemon, reader, servers, backlog)
            finally:
                reader.close()

    @contextlib.contextmanager
    def daemon(self, servers: Servers, backlog: Backlog, slot: str) -> Iterator[Daemon]:
        """Yield a daemon configured for this slot, not yet started; delete its topics afterwards."""
        case, name = backlog.case, slot.replace("_", "-")
        config = {
            "source": {
                "slot": {"name": slot, "create": False},
                "publication": {"names": [PUBLICATION]},
                "protocol": {"streaming": case.streaming, "binary": case.binary},
            },
            "snapshot": {"mode": "never"},
            "sink": {"topics": {"partitions": case.partitions}},
            "buffer": {"spill_dir": str(servers.folder / name / "spill")},
        }
        daemon = Daemon(
            servers.folder / name,
            name,
            dsn=self._dsn(servers, backlog),
            bootstrap=servers.kafka.bootstrap,
            registry_url=servers.registry.url,
            **config,
        )
        daemon.slot = slot
        merge(daemon.config, dict(self.over))
        daemon.environment = {**AS_INSTALLED, **self.environment}
        daemon.entry = ("-m", self.module)
        try:
            with daemon:
                yield daemon
        finally:
            delete_topics(servers.kafka.bootstrap, f"{name}.")
            shutil.rmtree(daemon.folder, ignore_errors=True)

    def _dsn(self, servers: Servers, backlog: Backlog) -> str:
        if not self.is_unix:
            return backlog.dsn
        where = urlencode({"host": servers.socket_folder, "port": servers.postgres.port})
        return f"postgresql://{servers.postgres.superuser}@/{backlog.database}?{where}"


class _RunningCdcd:
    def __init__(self, daemon: Daemon, reader: ProgressReader, servers: Servers, backlog: Backlog) -> None:
        self.daemon = daemon
        self._reader = reader
        self._servers = servers
        self._backlog = backlog
        self.topics = [f"{daemon.name}.{suffix}" for suffix in backlog.topic_suffixes()]
        self._look_at_log_s = time.monotonic() + LOOK_AT_LOG_S

    @property
    def pid(self) -> int:
        assert self.daemon.process is not None
        return self.daemon.process.pid

    def look(self, timeout_s: float) -> RunProgress:
        end_lsn = self._reader.look(timeout_s)
        if end_lsn >= self._backlog.end_lsn - END_TOLERANCE_BYTES:
            return RunProgress.ALL
        self._check_alive()
        if end_lsn <= self._backlog.start_lsn:
            return RunProgress.NOTHING
        return RunProgress.WARM if end_lsn >= self._backlog.warm_lsn else RunProgress.SOME

    def _check_alive(self) -> None:
        """Raise StackError when the daemon has ended; a halted daemon reports the halt only in its log."""
        assert self.daemon.process is not None
        has_failed = self.daemon.process.poll() is not None
        if time.monotonic() >= self._look_at_log_s:
            self._look_at_log_s = time.monotonic() + LOOK_AT_LOG_S
            has_failed = has_failed or bool(self.daemon.events("halted"))
        if has_failed:
            raise StackError(f"cdcd has ended or halted:\n{self.daemon.log()[-4000:]}")

    def records(self) -> int | None:
        return count_committed(self._servers.kafka.bootstrap, self.topics, self._backlog.records)


OWN: tuple[Runner, ...] = (
    RecvLogical("unix", "pg_recvlogical to a null device, Unix socket: the limit", is_unix=True),
    RecvLogical("tcp", "pg_recvlogical to a null device, TCP", is_unix=False),
    Cdcd("cdcd", "cdcd, exactly once, acks=all, Avro, registry, TCP"),
    Cdcd("cdcd_eager", "cdcd, exactly once, reading without a pause", module="tests.bench.eager"),
    Cdcd("cdcd_unix", "cdcd, exactly once, over the Unix socket", is_unix=True),
    Cdcd("at_least_once", "cdcd, at least once", {"sink": {"delivery": "at_least_once"}}),
    Cdcd("python", "cdcd, exactly once, without C extensions", environment={"CDCD_EXTENSIONS": "python"}),
)
DEFAULT_RUNNERS = ("unix", "tcp", "cdcd", "cdcd_eager", "at_least_once", "debezium", "debezium_tuned")
BEFORE = "before"
LIMIT = "unix"
"""The runner that the others are compared with."""


def of_checkout(folder: Path) -> Cdcd:
    """Return the `cdcd` of another commit, for comparison in the same run. Raises ConfigError."""
    path = folder.resolve()
    if not list(path.glob("cdcd/avro/rows*.so")):
        raise ConfigError(
            f"{path} holds no checkout of cdcd with its C extensions; pip install -e builds them"
        )
    # PYTHONSAFEPATH: Python does not import files of the working directory before those of PYTHONPATH.
    environment = {"PYTHONPATH": str(path), "PYTHONSAFEPATH": "1"}
    return Cdcd(BEFORE, f"cdcd of {path}, exactly once", environment=environment)
