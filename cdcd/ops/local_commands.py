"""The protection of the admin port's commands: they are accepted only from a program on this machine.

In: a request.  Out: whether it may have an effect.
Invariant: the connection comes from this machine, the Host is localhost, and the request has a header of cdcd's own,
which a page in a browser cannot send to another origin. A connection from this machine has the address 127.0.0.1 or
::1, or that of `admin.host` if it is not 0.0.0.0 or ::. The other addresses of the machine are refused: a proxy or a
NAT on it connects from them for clients elsewhere (a service mesh from 127.0.0.6).
Must not: query a name server.
"""

from __future__ import annotations

import ipaddress

from aiohttp import web

__all__ = ["OWN_ADDRESSES", "is_local_command"]

OWN_ADDRESSES: web.AppKey[set[str]] = web.AppKey("own_addresses", set)
"""The addresses that the port listens on, if it does not listen on all of the machine."""
_LOOPBACK = frozenset(map(ipaddress.ip_address, ("127.0.0.1", "::1")))
_LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]", "::1")


def is_local_command(request: web.Request, header: str) -> bool:
    """Return whether the request is from this machine, for localhost (other names may resolve to this machine), and
    has the header."""
    named = request.headers.get(
        "Host", ""
    )  # not `request.host`, which queries a name server without the header
    host = named if named.endswith("]") else named.rsplit(":", 1)[0]
    return (
        host in _LOCAL_NAMES
        and header in request.headers
        and _is_of_this_machine(request.remote or "", request.app.get(OWN_ADDRESSES, set()))
    )


def _is_of_this_machine(peer: str, own: set[str]) -> bool:
    try:
        address = ipaddress.ip_address(peer)
    except ValueError:
        return False
    return address in _LOOPBACK or address in map(ipaddress.ip_address, own)
