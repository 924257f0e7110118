"""The processes of a demo: three or four servers, cdcd, and the Spark mirror, each with its log in the run's folder.

In: a folder, and an ExitStack that gets the stop of each process before its start.  Out: addresses, processes.
Invariant: processes are stopped in the reverse order of starting; `check` detects a process that ends by itself.
Must not: depend on the steps of the demo.
"""

from __future__ import annotations

import os
import secrets
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import yaml

from cdcd.demo import running_processes
from cdcd.demo.load import PUBLICATION, ROLE
from cdcd.demo.stack import KafkaBroker, PostgresServer, SchemaRegistry
from cdcd.demo.stack.packages import java
from cdcd.demo.stack.ports import free_port
from cdcd.demo.stack.postgres import programs_from_wheel
from cdcd.demo.stack.process import ServerProcess
from cdcd.demo.stack.s3 import S3Server

POSTGRES_MAJOR = 18
NAME = "shop"
DATABASE = "shop"
SLOT = "cdcd_shop"
PARTITIONS = 3
MIRROR_TRIGGER_MS = 1_000
CDCD_STOP_S = 40.0
MIRROR_STOP_S = 30.0
LAST_LINES = 15


class DemoFailed(Exception):
    """The demo cannot continue; the message is for its user."""


class World:
    """The servers and processes of one run. With `stays_up` they continue after the end of this process."""

    def __init__(
        self,
        folder: Path,
        undo: ExitStack,
        *,
        stays_up: bool,
        mirror_format: str = "parquet",
        scd_type: int = 1,
    ) -> None:
        self.folder, self._undo, self._stays_up = folder, undo, stays_up
        self._mirror_format, self._scd_type = mirror_format, scd_type
        self.logs = folder / "logs"
        self.logs.mkdir(mode=0o755)
        self.target = str(folder / "mirror")
        self.target_options: Mapping[str, str] = {}
        self.config_file = folder / "cdcd.yaml"
        self.password = secrets.token_urlsafe(16)
        self.registry: SchemaRegistry | None = None
        self.s3: S3Server | None = None
        self.cdcd: ServerProcess | None = None
        self.mirror: ServerProcess | None = None

    # --- the servers

    def start_postgres(self) -> None:
        """Start PostgreSQL and create the shop's database."""
        programs = programs_from_wheel(POSTGRES_MAJOR)
        self.postgres = PostgresServer(
            POSTGRES_MAJOR,
            programs,
            self.folder / "postgres",
            settings={"shared_buffers": "128MB", "max_wal_size": "4GB"},
            authentication="scram-sha-256",
            outlives_parent=self._stays_up,
        )
        self._undo.callback(self.postgres.stop)
        self.postgres.start()
        self.postgres.create_database(DATABASE)

    def start_kafka(self) -> None:
        """Start one broker; its programs are fetched the first time."""
        java()  # raises an error without Java before anything is fetched
        self.kafka = KafkaBroker(self.folder / "kafka", outlives_parent=self._stays_up)
        self._undo.callback(self.kafka.stop)
        self.kafka.start()

    def start_registry(self) -> None:
        """Start the schema registry; its programs are fetched the first time."""
        self.registry = SchemaRegistry(self.folder / "registry", outlives_parent=self._stays_up)
        self._undo.callback(self.registry.stop)
        self.registry.start()

    def start_s3(self) -> None:
        """Start the S3 server, which is built the first time, with a bucket for the mirror."""
        self.s3 = S3Server(self.folder / "s3", outlives_parent=self._stays_up)
        self._undo.callback(self.s3.stop)
        self.s3.start()
        self.target = f"{self.s3.create_bucket('lake')}/{NAME}"
        self.target_options = self.s3.options()

    @property
    def schemas_url(self) -> str:
        """The URL for schemas: the registry's, or without a registry that of cdcd's admin port."""
        return self.registry.url if self.registry else f"http://127.0.0.1:{self.admin_port}"

    @property
    def dsn(self) -> str:
        """The shop's database, as its owner."""
        return self.postgres.dsn(DATABASE)

    # --- cdcd

    def write_config(self) -> None:
        """Write the configuration file and the password's file."""
        self.admin_port = free_port()
        password_file = self.folder / "postgres-password"
        password_file.touch(mode=0o600)
        password_file.write_text(self.password)
        self.config_file.write_text(yaml.safe_dump(self._config(password_file), sort_keys=False))

    def _config(self, password_file: Path) -> dict[str, Any]:
        return {
            "name": NAME,
            "source": {
                "dsn": self.postgres.dsn(DATABASE, user=ROLE),
                "password_file": str(password_file),
                "slot": {"name": SLOT},
                "publication": {"names": [PUBLICATION]},
            },
            "sink": {
                "bootstrap_servers": self.kafka.bootstrap,
                "topics": {"partitions": PARTITIONS, "replication_factor": 1},
            },
            "registry": {"url": self.registry.url} if self.registry else "none",
            "admin": {"host": "127.0.0.1", "port": self.admin_port},
            "log": {"format": "json"},
        }

    def start_cdcd(self) -> None:
        """Start cdcd as a user would: the program, and a configuration file."""
        if self.cdcd is None:
            self._undo.callback(self._stop_cdcd)
        # without CDCD_ variables of the caller, which are not for this daemon
        environment = {key: value for key, value in os.environ.items() if not key.startswith("CDCD_")}
        command = [sys.executable, "-m", "cdcd", "--config", str(self.config_file)]
        self.cdcd = self._start("cdcd", command, environment)

    def kill_cdcd(self) -> None:
        """SIGKILL cdcd, so that it cannot finish, confirm or close connections."""
        assert self.cdcd is not None
        self.cdcd.kill()

    def _stop_cdcd(self) -> None:
        if self.cdcd is not None:
            self.cdcd.stop(signal.SIGTERM, CDCD_STOP_S)

    # --- the mirror

    def start_mirror(self) -> None:
        """Start the Spark job."""
        if self.mirror is None:
            self._undo.callback(self._stop_mirror)
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
        command = [sys.executable, "-m", "cdcd.spark", "mirror", "--brokers", self.kafka.bootstrap]
        command += ["--prefix", NAME, "--target", self.target, "--format", self._mirror_format]
        command += [f"--target-option={name}={value}" for name, value in self.target_options.items()]
        command += ["--scd", str(self._scd_type)]
        command += ["--registry" if self.registry else "--schemas", self.schemas_url]
        command += ["--trigger-ms", str(MIRROR_TRIGGER_MS)]
        self.mirror = self._start("mirror", command, environment)

    def kill_mirror(self) -> None:
        """SIGKILL the mirror and its JVM; a restart continues from its target."""
        assert self.mirror is not None
        self.mirror.kill()

    def _stop_mirror(self) -> None:
        if self.mirror is not None:
            self.mirror.stop(signal.SIGTERM, MIRROR_STOP_S)

    # --- all of them

    def _start(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> ServerProcess:
        place = self.folder / name
        place.mkdir(exist_ok=True)
        log = self.logs / f"{name}.log"
        return ServerProcess(
            name, command, log=log, cwd=place, environment=environment, outlives_parent=self._stays_up
        )

    def check(self) -> None:
        """Raise DemoFailed, with the last lines of the log, if a process has ended by itself."""
        for process in (self.cdcd, self.mirror):
            if process is not None and not process.alive:
                raise DemoFailed(f"{process.name} ended unexpectedly; its last lines:\n{last_lines(process)}")
        pids = {
            "PostgreSQL": self.postgres.pid,
            "Kafka": self.kafka.pid,
        }
        if self.registry is not None:
            pids["the registry"] = self.registry.pid
        if self.s3 is not None:
            pids["the S3 server"] = self.s3.pid
        for name, pid in pids.items():
            if pid is None:
                raise DemoFailed(f"{name} ended unexpectedly; see the logs in {self.folder}")

    def write_down(self) -> None:
        """Write the running processes to a file, in the order of stopping, for `cdcd demo --stop`."""
        processes = [
            ("cdcd", self.cdcd.pid if self.cdcd else None, signal.SIGTERM),
            ("mirror", self.mirror.pid if self.mirror else None, signal.SIGTERM),
            ("S3 server", self.s3.pid if self.s3 else None, signal.SIGTERM),
            ("registry", self.registry.pid if self.registry else None, signal.SIGTERM),
            ("Kafka", self.kafka.pid, signal.SIGTERM),
            ("PostgreSQL", self.postgres.pid, signal.SIGINT),  # a fast shutdown
        ]
        running = [
            running_processes.describe_process(name, pid, number) for name, pid, number in processes if pid
        ]
        running_processes.write(self.folder, running)


def last_lines(process: ServerProcess) -> str:
    """Return the last lines of a process's log, indented."""
    lines = process.output().splitlines()[-LAST_LINES:]
    return "\n".join(f"    {line}" for line in lines) or "    (no output)"
