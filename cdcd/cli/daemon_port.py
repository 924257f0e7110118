"""Requests to the daemon of a configuration, at its admin port on this machine.

In: a configuration, a request.  Out: the answer of whatever listens there.
Invariant: the request names the daemon that is meant, because another one may listen at this port. Any process may
listen there, so the time and the size of an answer are bounded.
Must not: interpret the answer, except that it is a refusal (403).
"""

from __future__ import annotations

import http.client
import ipaddress
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from cdcd.cli.admin_port import here
from cdcd.config import Config
from cdcd.registry.limits import Deadline, paced_response

__all__ = ["Answer", "NoAnswer", "NobodyListens", "NotLocal", "PortUnknown", "ask_daemon"]

_CONNECT_TIMEOUT_S = 5.0
_FORBIDDEN = 403
_SERVER = "cdcd"
"""The header `Server` of all answers of `cdcd.ops.admin`, which this module does not import: it takes long."""


class NoAnswer(Exception):
    """The request was sent and may have had an effect, but no complete answer came.

    `problem` and `hint` are what a command says that needs the daemon.
    """

    problem = "no cdcd answers on this machine's admin port"
    hint = "run this command on the daemon's machine, with its configuration, or start the daemon"


class NobodyListens(NoAnswer):
    """The request was not sent."""


class PortUnknown(NobodyListens):
    """The daemon takes any free port."""

    problem = "admin.port is 0, so that a command cannot find the daemon"
    hint = "set admin.port to a fixed port, and start the daemon again"


class NotLocal(NoAnswer):
    """The request was refused, and had no effect."""

    problem = "the admin port has refused the command: cdcd accepts commands only from its own machine"
    hint = "run this command on the daemon's machine (in its container), with its configuration"


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP response."""

    status: int
    body: bytes


def ask_daemon(
    config: Config,
    method: Literal["GET", "POST"],
    path: str,
    *,
    header: str | None = None,
    body: bytes | None = None,
    query: Mapping[str, str] | None = None,
    timeout_s: float = 5.0,
    max_bytes: int = 256 << 10,
) -> Answer:
    """Send a request; `header` is the one that a command needs. Raises NoAnswer, or one of its subclasses."""
    if config.admin.port == 0:
        raise PortUnknown
    host, port = here(config.admin.host), config.admin.port
    connection = http.client.HTTPConnection(
        host, port, timeout=_CONNECT_TIMEOUT_S, source_address=_source_of(host)
    )
    connection.response_class = paced_response(Deadline(timeout_s))
    asked = urllib.parse.urlencode({"name": config.name, **(query or {})})
    headers = {"Host": "localhost"} | ({header: "1"} if header else {})
    try:
        connection.connect()
    except (OSError, ValueError) as error:  # ValueError: a host that is no name
        raise NobodyListens(getattr(error, "strerror", None)) from error
    try:
        connection.request(method, f"{path}?{asked}", body=body, headers=headers)
        answer = connection.getresponse()
        content = answer.read(max_bytes + 1)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise NoAnswer(type(error).__name__) from error
    finally:
        connection.close()
    if len(content) > max_bytes:
        raise NoAnswer(f"more than {max_bytes} bytes")
    if method == "POST" and answer.status == _FORBIDDEN and answer.getheader("Server") == _SERVER:
        raise NotLocal
    return Answer(answer.status, content)


def _source_of(host: str) -> tuple[str, int] | None:
    """Return the address to connect from: the daemon's own, where Linux would take another one of this machine."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return None
    return host, 0
