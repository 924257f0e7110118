"""A real API of Azure's blob storage: Microsoft's Azurite, from npm.

In: a folder; npm and node on the PATH.  Out: containers, and the options of a client.
Invariant: it listens on 127.0.0.1 only.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import socket
import urllib.request
from email.utils import formatdate
from pathlib import Path

from cdcd.demo.stack.artefacts import Artefact, Cache
from cdcd.demo.stack.packages import program, run
from cdcd.demo.stack.ports import free_port
from cdcd.demo.stack.process import ServerProcess
from cdcd.demo.stack.server import LocalServer

VERSION = "3.37.0"
ACCOUNT = "cdcdtest"
KEY = base64.b64encode(b"of the account of the tests, 7c1f").decode()
_API = "2021-08-06"


def azurite_artefact() -> Artefact:
    """Return the artefact of the server and its 230 packages."""

    def fill(folder: Path) -> None:
        npm = program("npm", "install Node.js with npm")
        command = [
            npm,
            "install",
            "--silent",
            "--no-audit",
            "--no-fund",
            "--ignore-scripts",
            f"azurite@{VERSION}",
        ]
        (folder / "package.json").write_text("{}")
        run(command, "npm could not install Azurite", cwd=folder)

    def probe(folder: Path) -> None:
        run([*_command(folder), "--version"], "Azurite does not run")

    return Artefact(f"azurite-{VERSION}", fill, probe)


def _command(folder: Path) -> list[str]:
    return [program("node", "install Node.js"), str(folder / "node_modules" / ".bin" / "azurite-blob")]


class AzureServer(LocalServer):
    """One server with one account. Use as a context manager, or `start` and `stop`."""

    PORT_TAKEN = ("EADDRINUSE",)

    def __init__(self, folder: Path, *, cache: Cache | None = None) -> None:
        super().__init__()
        self.folder = folder
        self.port = free_port()
        self._programs = (cache or Cache()).get(azurite_artefact())

    @property
    def url(self) -> str:
        """The endpoint of the account."""
        return f"http://127.0.0.1:{self.port}/{ACCOUNT}"

    def options(self) -> dict[str, str]:
        """Return the options of a target here; the key is in a file."""
        secret = self.folder / "key"
        secret.write_text(KEY)
        return {"endpoint": self.url, "allow_http": "true", "account_key": f"file:{secret}"}

    def create_container(self, name: str) -> str:
        """Create a container by a signed request, and return its URI."""
        date = formatdate(usegmt=True)
        place = f"/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
        signed = "PUT" + "\n" * 12 + f"x-ms-date:{date}\nx-ms-version:{_API}\n{place}"
        signature = hmac.digest(base64.b64decode(KEY), signed.encode(), hashlib.sha256)
        headers = {
            "x-ms-date": date,
            "x-ms-version": _API,
            "Content-Length": "0",
            "Authorization": f"SharedKey {ACCOUNT}:{base64.b64encode(signature).decode()}",
        }
        request = urllib.request.Request(
            f"{self.url}/{name}?restype=container", method="PUT", headers=headers
        )
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        direct.open(request, timeout=30).close()
        return f"abfss://{name}@{ACCOUNT}.dfs.core.windows.net"

    def launch(self) -> None:
        """Start the process without waiting for it."""
        if self.pid is not None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        options = ["--silent", "--skipApiVersionCheck", "--location", str(self.folder)]
        self._process = ServerProcess(
            "Azurite",
            [*_command(self._programs), "--blobHost", "127.0.0.1", "--blobPort", str(self.port), *options],
            log=self.folder / "server.log",
            cwd=self.folder,
            environment={"AZURITE_ACCOUNTS": f"{ACCOUNT}:{KEY}", "PATH": os.environ["PATH"]},
        )

    def stop(self) -> None:
        """Kill the server, which SIGTERM does not end; nobody needs its data."""
        self.kill()

    def _serves(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), 5).close()
        except OSError:
            return False
        return True

    def _take_other_ports(self) -> None:
        self.port = free_port()
