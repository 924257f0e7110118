"""A schema registry with the Confluent API: Apicurio Registry, in memory.

In: its unpacked archive and a Java 21 from a wheel.  Out: `url` of the Confluent-compatible API, version 7.
Invariant: both ports listen on 127.0.0.1 (by default, the management port listens on every interface).
Must not: be used for default compatibility rules: its global level starts as NONE.
A stop loses every schema: the registry is only for demos and tests.
"""

from __future__ import annotations

import signal
import tempfile
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from cdcd.demo.stack.artefacts import Cache
from cdcd.demo.stack.class_archive import TRAINED_WITHIN_S, class_archive_flags
from cdcd.demo.stack.packages import registry_artefact, registry_jar, registry_java
from cdcd.demo.stack.ports import free_port
from cdcd.demo.stack.process import ServerProcess
from cdcd.demo.stack.server import LocalServer


class SchemaRegistry(LocalServer):
    """One registry process. Use as a context manager, or `start` and `stop`."""

    PORT_TAKEN = ("already bound", "seems to be in use")

    def __init__(
        self,
        folder: Path,
        *,
        cache: Cache | None = None,
        outlives_parent: bool = False,
        training: Sequence[str] = (),
    ) -> None:
        """`training`: flags with which the JVM writes the archive of its classes, in place of those that use it."""
        super().__init__()
        self.folder = folder
        self.port = free_port()
        self.management_port = free_port()
        self._cache = cache or Cache()
        self._archive = self._cache.get(registry_artefact())
        self._training = tuple(training)
        self._outlives_parent = outlives_parent

    @property
    def url(self) -> str:
        """The base URL of the Confluent-compatible API."""
        return f"http://127.0.0.1:{self.port}/apis/ccompat/v7"

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
            "apicurio.ccompat.max-subjects": "100000",  # the default cuts the list of subjects after 1000
        }
        flags = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        flags += self._training or class_archive_flags(self._archive, registry_java(), self._train)
        flags += [f"-D{key}={value}" for key, value in settings.items()]
        self._process = ServerProcess(
            "the schema registry",
            [registry_java(), *flags, "-jar", str(registry_jar(self._archive))],
            log=self.folder / "registry.log",
            cwd=self.folder,
            outlives_parent=self._outlives_parent,
        )

    def _train(self, flags: Sequence[str]) -> None:
        with tempfile.TemporaryDirectory(prefix="cdcd-classes-") as folder:
            registry = SchemaRegistry(Path(folder) / "registry", cache=self._cache, training=flags)
            with registry:
                registry._end(signal.SIGTERM, TRAINED_WITHIN_S)

    def _serves(self) -> bool:
        direct = urllib.request.build_opener(
            urllib.request.ProxyHandler({})
        )  # a proxy cannot reach this machine's loopback
        try:
            with direct.open(f"{self.url}/subjects", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def _take_other_ports(self) -> None:
        self.port, self.management_port = free_port(), free_port()
