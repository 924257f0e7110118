"""The protection of the admin port's commands: they are accepted only from a program on this machine.

In: a request.  Out: whether it may have an effect.
Invariant: the connection comes from a loopback address, the Host is localhost, and the request has a header of cdcd's
own, which a page in a browser cannot send to another origin.
Must not: query a name server.
"""

from __future__ import annotations

import ipaddress

from aiohttp import web

__all__ = ["is_local_command"]

_LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]", "::1")


def is_local_command(request: web.Request, header: str) -> bool:
    """Return whether the request is from this machine, for localhost (other names may resolve to this machine), and
    has the header."""
    named = request.headers.get(
        "Host", ""
    )  # not `request.host`, which queries a name server without the header
    host = named if named.endswith("]") else named.rsplit(":", 1)[0]
    try:
        is_loopback = ipaddress.ip_address(request.remote or "").is_loopback
    except ValueError:
        return False
    return is_loopback and host in _LOCAL_NAMES and header in request.headers
