"""A schema registry with the Confluent API: Apicurio Registry, in memory.

In: its unpacked archive and a Java 21 from a wheel.  Out: `url` of the Confluent-compatible API, version 7.
Invariant: both its ports listen on 127.0.0.1 (left alone, the management port opens on every interface).
Must not: be relied on for compatibility rules nobody set: its global rule starts as NONE.
A stop forgets every schema: it is a registry for demos and tests.
"""

from __future__ import annotations

import signal
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType

from cdcd.demo.stack.artefacts import Cache
from cdcd.demo.stack.packages import registry_artefact, registry_jar, registry_java
from cdcd.demo.stack.ports import free_port
from cdcd.demo.stack.process import ServerProcess
from cdcd.errors import StackError

START_DEADLINE_S = 120
START_ATTEMPTS = 5


class SchemaRegistry:
    """One registry process. Use as a context manager, or `start` and `stop`."""

    def __init__(self, folder: Path, *, cache: Cache | None = None, outlives_parent: bool = False) -> None:
        self.folder = folder
        self.port = free_port()
        self.management_port = free_port()
        self._archive = (cache or Cache()).get(registry_artefact())
        self._outlives_parent = outlives_parent
        self._process: ServerProcess | None = None

    @property
    def url(self) -> str:
        """The base of the Confluent-compatible API."""
        return f"http://127.0.0.1:{self.port}/apis/ccompat/v7"

    @property
    def pid(self) -> int | None:
        """The process id, or None when it is not running."""
        return self._process.pid if self._process and self._process.alive else None

    def start(self) -> None:
        """Start and wait until the API answers; other ports are tried when these are taken."""
        for attempt in range(1, START_ATTEMPTS + 1):
            try:
                self.launch()
                self.wait_ready()
                return
            except StackError:
                taken = self._process is not None and "already bound" in self._process.output()
                self.kill()
                if not taken or attempt == START_ATTEMPTS:
                    raise
                self.port, self.management_port = free_port(), free_port()

    def launch(self) -> None:
        """Start the process without waiting for it."""
        if self.pid is not None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        settings = {
            "quarkus.http.host": "127.0.0.1",
            "quarkus.http.port": str(self.port),
            "quarkus.management.host": "127.0.0.1",
            "quarkus.management.port": str(self.management_port),
            "java.io.tmpdir": str(self.folder),
        }
        flags = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        flags += [f"-D{key}={value}" for key, value in settings.items()]
        self._process = ServerProcess(
            "the schema registry",
            [registry_java(), *flags, "-jar", str(registry_jar(self._archive))],
            log=self.folder / "registry.log",
            cwd=self.folder,
            outlives_parent=self._outlives_parent,
        )

    def wait_ready(self) -> None:
        """Wait until the API lists its subjects."""
        if self._process is None:
            raise StackError("the registry was not launched")
        self._process.wait_until(self._serves, START_DEADLINE_S)

    def stop(self, timeout_s: float = 20) -> None:
        """Orderly stop; killed when it takes longer than `timeout_s`."""
        if self._process is not None:
            self._process.stop(signal.SIGTERM, timeout_s)
            self._process = None

    def kill(self) -> None:
        """SIGKILL it."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    def __enter__(self) -> SchemaRegistry:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _serves(self) -> bool:
        direct = urllib.request.build_opener(
            urllib.request.ProxyHandler({})
        )  # a proxy cannot see this loopback
        try:
            with direct.open(f"{self.url}/subjects", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False
