"""A real Spark Connect server from the PySpark wheel: a process of this machine with a local Spark.

In: a folder.  Out: the server's URL; `run` runs a module of the tests as a client.
Invariant: the server listens on 127.0.0.1. Its Python workers run the Python of the tests, with the project on their
path. A client has no JVM: PySpark allows one kind of session in a process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType

from cdcd.demo.stack.packages import installed_package
from cdcd.demo.stack.ports import accepts_connections, free_port
from cdcd.demo.stack.process import ServerProcess

ROOT = Path(__file__).parents[2]
START_WITHIN_S = 180.0
SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"


class ConnectServer:
    """A Spark Connect server. Use as a context manager."""

    def __init__(self, folder: Path, *, cores: int = 2, memory: str = "1g") -> None:
        """`cores`, `memory`: of its local Spark."""
        self._folder = folder
        self._home = installed_package("pyspark")
        self._port = free_port()
        self._cores, self._memory = cores, memory
        self._process: ServerProcess | None = None

    @property
    def url(self) -> str:
        """The URL for `SparkSession.builder.remote`."""
        return f"sc://127.0.0.1:{self._port}"

    def __enter__(self) -> ConnectServer:
        self._folder.mkdir(parents=True, exist_ok=True)
        settings = {
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(self._port),
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": self._memory,
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(self._folder / "warehouse"),
        }
        command = [str(self._home / "bin" / "spark-submit"), "--class", SERVER]
        command += ["--master", f"local[{self._cores}]"]
        for name, value in settings.items():
            command += ["--conf", f"{name}={value}"]
        self._process = ServerProcess(
            "Spark Connect",
            [*command, "spark-internal"],
            log=self._folder / "connect.log",
            cwd=self._folder,
            environment=self._environment(),
        )
        self._process.wait_until(lambda: accepts_connections(self._port), START_WITHIN_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.kill()

    def output(self) -> str:
        """Return what the server has printed."""
        assert self._process is not None
        return self._process.output()

    def _environment(self) -> dict[str, str]:
        own = {
            "SPARK_HOME": str(self._home),
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_CONF_DIR": str(self._folder),
            "SPARK_CONNECT_MODE": "0",
        }
        return {**os.environ, **own}

    def run(self, module: str, *arguments: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
        """Run a client: a module, whose first argument is the server's URL."""
        return subprocess.run(
            [sys.executable, "-m", module, self.url, *arguments],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            cwd=ROOT,
        )
