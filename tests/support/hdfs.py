"""A real HDFS: one or two name nodes and a data node of Hadoop's own MiniDFSCluster, in one JVM.

In: a folder; Java.  Out: URIs, and the options of a client.
Invariant: it listens on 127.0.0.1 only. A restart has the files.
"""

from __future__ import annotations

import socket
import uuid
from pathlib import Path

from cdcd.demo.stack.artefacts import Artefact, Cache
from cdcd.demo.stack.packages import ivy_retrieve, java, run
from cdcd.demo.stack.ports import free_port
from cdcd.demo.stack.process import ServerProcess
from cdcd.demo.stack.server import LocalServer
from cdcd.errors import StackError

VERSION = "3.5.0"
NAME_SERVICE = "shop"
_PROGRAM = Path(__file__).with_name("HdfsCluster.java")
_MODULES = (
    f'<dependency org="org.apache.hadoop" name="hadoop-client-minicluster" rev="{VERSION}" conf="default->default"/>'
    '<dependency org="org.slf4j" name="slf4j-simple" rev="1.7.36" conf="default->default"/>'
)


def hdfs_artefact() -> Artefact:
    """Return the artefact of the servers: jars of 110 MB."""

    def fill(folder: Path) -> None:
        ivy_retrieve(_MODULES, folder, types=("jar", "bundle"))

    def probe(folder: Path) -> None:
        version = [java(), "-cp", f"{folder}/*", "org.apache.hadoop.util.VersionInfo"]
        run(version, "the jars of HDFS do not run")

    return Artefact(f"hdfs-{VERSION}", fill, probe)


class HdfsServer(LocalServer):
    """A cluster with one name node, or with two, of which the first one is active at the start."""

    PORT_TAKEN = ("BindException",)

    def __init__(self, folder: Path, *, name_nodes: int = 1, cache: Cache | None = None) -> None:
        super().__init__()
        self.folder = folder
        self._jars = (cache or Cache()).get(hdfs_artefact())
        self._name_nodes = name_nodes
        self._take_other_ports()

    @property
    def uri(self) -> str:
        """The URI of a new folder."""
        host = f"127.0.0.1:{self.ports[0]}" if self._name_nodes == 1 else NAME_SERVICE
        return f"hdfs://{host}/{uuid.uuid4().hex[:12]}/a folder"

    def options(self) -> dict[str, str]:
        """Return the options of a target here."""
        if self._name_nodes == 1:
            return {}
        return {"name_nodes": ",".join(f"127.0.0.1:{port}" for port in self.ports)}

    def launch(self) -> None:
        """Start the process without waiting for it."""
        if self.pid is not None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        flags = ["-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", f"-Djava.io.tmpdir={self.folder}"]
        ports = [str(port) for port in (self.control, *self.ports)]
        self._process = ServerProcess(
            "HDFS",
            [java(), *flags, "-cp", f"{self._jars}/*", str(_PROGRAM), str(self.folder / "dfs"), *ports],
            log=self.folder / "server.log",
            cwd=self.folder,
        )

    def tell(self, command: str) -> None:
        """Have the cluster do something. Raises StackError.

        Commands: standby N, active N (a name node), safe, unsafe, data-node stop, data-node start.
        """
        with socket.create_connection(("127.0.0.1", self.control), 60) as control:
            control.sendall(f"{command}\n".encode())
            answer = control.makefile().readline()
        if answer != "ok\n":
            raise StackError("HDFS refuses a command", command=command, answer=answer)

    def stop(self) -> None:
        """Kill the servers: what they have acknowledged is on the disk."""
        self.kill()

    def _serves(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.control), 5).close()
        except OSError:
            return False
        return True

    def _take_other_ports(self) -> None:
        self.control = free_port()
        self.ports = [free_port() for _ in range(self._name_nodes)]
