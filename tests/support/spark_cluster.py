"""A real Spark cluster from the PySpark wheel: a standalone master, and workers that are processes of this machine.

In: a folder, a number of workers.  Out: the master's URL; `submit` runs a program as spark-submit does; `workers`.
Invariant: all of it listens on 127.0.0.1. The executors run the Python of the tests, with the project on their path.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from cdcd.demo.stack.packages import installed_package
from cdcd.demo.stack.ports import accepts_connections, free_port
from cdcd.demo.stack.process import ServerProcess

ROOT = Path(__file__).parents[2]
START_WITHIN_S = 60.0
_REGISTERED = "Successfully registered with master"


class SparkCluster:
    """A master and its workers. Use as a context manager."""

    def __init__(self, folder: Path, *, workers: int = 2, cores: int = 1, memory: str = "1g") -> None:
        """`cores`, `memory`: of each worker."""
        self._folder = folder
        self._home = installed_package("pyspark")
        self._port = free_port()
        self._count, self._cores, self._memory = workers, cores, memory
        self._master: ServerProcess | None = None
        self.workers: list[ServerProcess] = []

    @property
    def url(self) -> str:
        """The master's URL."""
        return f"spark://127.0.0.1:{self._port}"

    def __enter__(self) -> SparkCluster:
        arguments = ["--host", "127.0.0.1", "--port", str(self._port), "--webui-port", str(free_port())]
        self._master = self._launch("master", "master.Master", arguments)
        self._master.wait_until(lambda: accepts_connections(self._port), START_WITHIN_S)
        for number in range(self._count):
            self.workers.append(self._worker(number))
        for worker in self.workers:
            worker.wait_until(lambda one=worker: _REGISTERED in one.output(), START_WITHIN_S)  # type: ignore[misc]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in (*self.workers, self._master):
            if process is not None:
                process.kill()

    def _worker(self, number: int) -> ServerProcess:
        arguments = ["--host", "127.0.0.1", "--webui-port", str(free_port())]
        arguments += ["--cores", str(self._cores), "--memory", self._memory]
        arguments += ["--work-dir", str(self._folder / f"work-{number}"), self.url]
        return self._launch(f"worker-{number}", "worker.Worker", arguments)

    def _launch(self, name: str, part: str, arguments: Sequence[str]) -> ServerProcess:
        self._folder.mkdir(parents=True, exist_ok=True)
        return ServerProcess(
            f"Spark's {name}",
            [str(self._home / "bin" / "spark-class"), f"org.apache.spark.deploy.{part}", *arguments],
            log=self._folder / f"{name}.log",
            cwd=self._folder,
            environment=self.environment(),
        )

    def environment(self) -> dict[str, str]:
        """Return the variables of all processes of the cluster, and of its drivers."""
        own = {
            "SPARK_HOME": str(self._home),
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(ROOT),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_CONF_DIR": str(self._folder),
        }
        return {**os.environ, **own}

    def submit(self, program: Path, arguments: Sequence[str], *options: str) -> subprocess.Popen[str]:
        """Start a program by spark-submit, the driver on this machine. Its output is piped."""
        settings = ["spark.driver.host=127.0.0.1", "spark.ui.enabled=false", "spark.driver.memory=512m"]
        settings += [f"spark.executor.memory={self._memory}", "spark.executorEnv.PYTHONPATH=" + str(ROOT)]
        command = [str(self._home / "bin" / "spark-submit"), "--master", self.url]
        for setting in settings:
            command += ["--conf", setting]
        return subprocess.Popen(
            [*command, *options, str(program), *arguments],
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
