"""Free TCP ports on 127.0.0.1 for servers that need the same port after a restart.

Out: a port number below the kernel's ephemeral range. In that range an outgoing connection may take the port while
its server is down, and a client that retries can even connect to itself.
Invariant: a port is given once. The process that asked keeps a socket bound to it, which does not listen: another
process that asks finds the port taken, also while its server is down; a server, which binds with SO_REUSEADDR, does
not. A process that does not ask may still take the port first, so a server's first start is retried with new ports.
"""

from __future__ import annotations

import random
import socket
from pathlib import Path

from cdcd.errors import StackError

LOWEST_PORT = 15000
_given: list[socket.socket] = []
"""The sockets that hold the ports of this process, until it ends."""


def free_port() -> int:
    """Return a port that was free on 127.0.0.1 at the check."""
    first_ephemeral = _first_ephemeral_port()
    for _ in range(200):
        port = random.randrange(LOWEST_PORT, first_ephemeral)  # noqa: S311 - not a secret
        if _holds(port):
            return port
    raise StackError("no free port found on 127.0.0.1")


def accepts_connections(port: int) -> bool:
    """Return whether a process listens on this port of 127.0.0.1."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _first_ephemeral_port() -> int:
    try:
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:
        return 32768
    return first if first > LOWEST_PORT + 1000 else 65536


def _holds(port: int) -> bool:
    holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        holder.bind(("127.0.0.1", port))
    except OSError:
        holder.close()
        return False
    # Only after bind: another holder of the port is refused, and its server is not.
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    _given.append(holder)
    return True
