"""Check whether `admin.port` is free on this machine, and which process listens on it.

Comes in: a configuration.  Goes out: one finding; none with `admin.port: 0`, which takes any free port.
Invariant: the daemon of this configuration on the port is ok. Another process there is only a warning, because a
check often runs on another machine than the daemon.
Must not: leave the port bound.
"""

from __future__ import annotations

import errno
import http.client
import json
import socket

from cdcd.config import Config
from cdcd.findings import Finding
from cdcd.registry.limits import Deadline, paced_response

_ANSWER_TIMEOUT_S = 2.0
_LARGEST_PAGE_BYTES = 1 << 20


def check_admin_port(config: Config) -> list[Finding]:
    """Return whether a daemon on this machine could listen, as a finding. Does not raise."""
    host, port = config.admin.host, config.admin.port
    if port == 0:
        return []
    failed = _bind_failure(host, port)
    if failed is None:
        return [Finding("ok", "admin.port", f"{host}:{port} is free")]
    if failed.errno == errno.EADDRINUSE and _name_there(host, port) == config.name:
        return [Finding("ok", "admin.port", f"the daemon of this configuration answers at {host}:{port}")]
    why = failed.strerror or type(failed).__name__
    message = f"{host}:{port} is not available on this machine: {why}; a daemon would end with status 78 here"
    hint = "stop the process that listens there, or choose another admin.port or admin.host"
    return [Finding("warn", "admin.port", message, hint)]


def here(host: str) -> str:
    """Return the address at which this machine reaches a process that listens on `host`."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - nothing listens here


def _bind_failure(host: str, port: int) -> OSError | None:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        return error
    return None


def _name_there(host: str, port: int) -> str | None:
    """Return the name of the cdcd that answers, None if none does."""
    connection = http.client.HTTPConnection(here(host), port, timeout=_ANSWER_TIMEOUT_S)
    connection.response_class = paced_response(Deadline(_ANSWER_TIMEOUT_S))  # any process may listen there
    try:
        connection.request("GET", "/status", headers={"Host": "localhost"})
        page = json.loads(connection.getresponse().read(_LARGEST_PAGE_BYTES))
        return str(page.get("name")) if isinstance(page, dict) else None
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()
