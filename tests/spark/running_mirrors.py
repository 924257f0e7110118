"""Mirrors that run during a test, and what is compared at its end.

In: a daemon, its servers.  Out: a mirror with a batch each second; differences from PostgreSQL, by PostgreSQL.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import psycopg2
import pyarrow as pa
from pyspark.sql import SparkSession

from cdcd.demo.compare import TableOutcome, compare_table
from cdcd.demo.mirrored import Mirror
from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.registry import SchemaRegistry
from cdcd.spark.clients.connection import Connection, RegistryAccess
from cdcd.spark.mirroring.start import mirror as start_mirror
from cdcd.spark.session import run_to_end
from tests.support.daemon import Daemon
from tests.support.waiting import eventually

DEADLINE_S = 240.0


class MirrorProcess:
    """The mirror as the demo runs it: a separate process, with a batch each second."""

    def __init__(self, folder: Path, daemon: Daemon, kafka: KafkaBroker, registry: SchemaRegistry) -> None:
        self.tables = Mirror(folder / "mirror", daemon.name)
        self._log = folder / "mirror.log"
        command = [sys.executable, "-m", "cdcd.spark", "mirror", "--brokers", kafka.bootstrap]
        command += ["--prefix", daemon.name, "--target", str(folder / "mirror"), "--trigger-ms", "1000"]
        command += ["--registry", registry.url]
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=folder)

    def check(self) -> bool:
        """Return True while the mirror runs; fail the test with the mirror's log when it has ended by itself."""
        if self._process.poll() is None:
            return True
        raise AssertionError(f"the mirror ended:\n{self._log.read_text()[-6000:]}")

    def stop(self) -> None:
        """Kill the mirror."""
        self._process.kill()
        self._process.wait()


class MirrorInSession:
    """The mirror in the tests' Spark, with a batch each second: no other Java starts. `options`: of `mirror`."""

    def __init__(
        self,
        spark: SparkSession,
        folder: Path,
        daemon: Daemon,
        kafka: KafkaBroker,
        registry: SchemaRegistry,
        **options: Any,
    ) -> None:
        self.target = target = folder / "mirror"
        self.tables = Mirror(target, daemon.name)
        connection = Connection(kafka.bootstrap, daemon.name, registry=RegistryAccess(registry.url))
        start = partial(start_mirror, spark, connection, str(target), trigger="1 second", **options)
        self._stopping = threading.Event()
        self._pool = ThreadPoolExecutor(1, "mirror")
        self._ended = self._pool.submit(run_to_end, start, self._stopping)

    def check(self) -> bool:
        """Return True while the mirror runs; fail the test with its error when it has ended by itself."""
        if not self._ended.done():
            return True
        raise AssertionError(f"the mirror ended: {self._ended.result()}")

    def stop(self) -> None:
        """End the query."""
        self._stopping.set()
        self._pool.shutdown()


AnyMirror = MirrorProcess | MirrorInSession


def await_all(mirror: AnyMirror, brokers: str) -> None:
    """Wait until the mirror has everything that cdcd has written so far."""
    end = mirror.tables.end(brokers)
    eventually(
        lambda: mirror.check() and mirror.tables.has_reached(end),
        "the mirror has all changes",
        DEADLINE_S,
        0.2,
    )


def compared(dsn: str, names: list[str], read: Callable[[str], pa.Table | None]) -> list[TableOutcome]:
    """Compare tables with their mirrors, which `read` returns. No session writes."""
    with closing(psycopg2.connect(dsn)) as connection:
        return [compare_table(connection, "public", one, read(one)) for one in names]
