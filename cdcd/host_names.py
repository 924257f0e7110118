"""The host names under which the admin port answers, so that a page in a browser cannot read it (DNS rebinding).

In: the Host header of a request.  Out: whether the request is answered.
Invariant: a name that could be registered in public DNS, and could resolve to this machine, is answered only if it is
configured.
The names that probes and Prometheus send need no configuration: the pod's address, a Service's name, a name without a
dot (compose), no header at all (HTTP/1.0: no browser).
Must not: query a name server.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Collection, Sequence

__all__ = ["HostNames", "name_in"]

_HEADER = re.compile(r"(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,255})(?::[0-9]{1,5})?")
_PRIVATE_SUFFIXES = (".localhost", ".svc", ".svc.cluster.local")
"""Reserved, or assigned only inside a cluster."""


class HostNames:
    """The names of one daemon: the configured ones, its machine's, and names that cannot be in public DNS."""

    def __init__(self, configured: Collection[str] = ()) -> None:
        self._names = {_plain(name) for name in (*configured, socket.gethostname())}

    def has(self, headers: Sequence[str]) -> bool:
        """Return whether a request with these Host headers is answered."""
        if not headers:
            return True
        name = name_in(headers[0]) if len(headers) == 1 else None
        if name is None:
            return False
        return name in self._names or "." not in name or _is_address(name) or name.endswith(_PRIVATE_SUFFIXES)


def name_in(header: str) -> str | None:
    """Return the name or address in a Host header, without its port; None if the header is malformed."""
    found = _HEADER.fullmatch(header.strip())
    return None if found is None else _plain(found[1])


def _plain(name: str) -> str:
    return name.lower().strip("[]").removesuffix(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
