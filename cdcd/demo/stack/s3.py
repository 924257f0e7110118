"""A real S3 API: VersityGW over a folder, built from its Go module.

In: a folder; Go on the PATH, at the first use on a host.  Out: `url`, buckets, and the options of a client.
Its user has a new password, unless one is given; it is in a file of the folder that only the owner may read.
Invariant: it listens on 127.0.0.1 only; its conditional writes are atomic between all its clients. The file system of
the folder has extended attributes: with `--sidecar`, which needs none, two clients replaced one version.
"""

from __future__ import annotations

import os
import secrets
import socket
from pathlib import Path

from cdcd.demo.stack.artefacts import Artefact, Cache
from cdcd.demo.stack.packages import program, run
from cdcd.demo.stack.ports import free_port
from cdcd.demo.stack.process import ServerProcess
from cdcd.demo.stack.server import LocalServer

VERSION = "v1.8.0"
_MODULE = "github.com/versity/versitygw/cmd/versitygw"
USER = "cdcd-demo"
BUILD_TIMEOUT_S = 3600
"""A machine with many other programs has taken 20 minutes."""


def versitygw_artefact() -> Artefact:
    """Return the artefact of the server, one program; its build takes two processors a minute."""

    def fill(folder: Path) -> None:
        go = program("go", "install Go, which builds the S3 server at its first use")
        environment = {**os.environ, "GOBIN": str(folder), "CGO_ENABLED": "0"}
        command = [go, "install", "-trimpath", "-ldflags=-s -w", f"{_MODULE}@{VERSION}"]
        run(
            command,
            f"{_MODULE} could not be built",
            cwd=folder,
            environment=environment,
            timeout_s=BUILD_TIMEOUT_S,
        )

    def probe(folder: Path) -> None:
        run([str(folder / "versitygw"), "--version"], "the S3 server does not run")

    return Artefact(f"versitygw-{VERSION}", fill, probe)


class S3Server(LocalServer):
    """One server with one user. Use as a context manager, or `start` and `stop`."""

    PORT_TAKEN = ("address already in use",)

    def __init__(
        self,
        folder: Path,
        *,
        cache: Cache | None = None,
        password: str | None = None,
        outlives_parent: bool = False,
    ) -> None:
        super().__init__()
        self.folder = folder
        self.user, self.password = USER, password or secrets.token_urlsafe(16)
        self.port = free_port()
        self._outlives_parent = outlives_parent
        self._program = (cache or Cache()).get(versitygw_artefact()) / "versitygw"

    @property
    def url(self) -> str:
        """The endpoint."""
        return f"http://127.0.0.1:{self.port}"

    def options(self, **others: str) -> dict[str, str]:
        """Return the options of a target here; the password is in a file, which executors can read, too."""
        secret = self.folder / "password"
        secret.touch(mode=0o600)
        secret.write_text(self.password)
        usual = {
            "endpoint": self.url,
            "region": "us-east-1",
            "allow_http": "true",
            "access_key_id": self.user,
            "secret_access_key": f"file:{secret}",
        }
        return usual | others

    def create_bucket(self, name: str) -> str:
        """Create a bucket and return its URI."""
        (self.folder / "buckets" / name).mkdir(parents=True)
        return f"s3://{name}"

    def launch(self) -> None:
        """Start the process without waiting for it."""
        if self.pid is not None:
            return
        (self.folder / "buckets").mkdir(parents=True, exist_ok=True)
        self._process = ServerProcess(
            "the S3 server",
            [
                *(str(self._program), "--port", f"127.0.0.1:{self.port}", "--quiet"),
                *("posix", str(self.folder / "buckets")),
            ],
            log=self.folder / "server.log",
            cwd=self.folder,
            environment={
                "ROOT_ACCESS_KEY": self.user,
                "ROOT_SECRET_KEY": self.password,
                "PATH": os.environ["PATH"],
            },
            outlives_parent=self._outlives_parent,
        )

    def _serves(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), 5).close()
        except OSError:
            return False
        return True

    def _take_other_ports(self) -> None:
        self.port = free_port()
