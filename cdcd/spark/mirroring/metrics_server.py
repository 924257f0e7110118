"""The HTTP port of a mirror: /metrics for Prometheus, /healthz for a probe.

In: an address; functions that return the pages.  Out: HTTP responses, from threads.
Invariant: only GET is answered, and only under a host name that no other party can own (`cdcd.host_names`). A
connection has one request, with a time limit for all of its head, and for each write; the number of connections is
limited. An error in a page is a 500 without details and never ends the mirror.
Must not: ask a server, show a secret or a row value.
"""

from __future__ import annotations

import io
import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import Any, NamedTuple

from cdcd.errors import ConfigError
from cdcd.host_names import HostNames

__all__ = ["MetricsServer", "Page"]

REQUEST_TIMEOUT_S = 5.0
"""For the head of a request, and again for each part of the response."""
ROOM_WITHIN_S = 1.0
"""A thread on a busy machine ends some time after its answer."""
MOST_CONNECTIONS = 16
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_MISDIRECTED = b"not a host name of this mirror: use its address\n"
log = logging.getLogger("cdcd.spark.mirror")


class Page(NamedTuple):
    """The content of a response."""

    status: int
    content: bytes


class MetricsServer:
    """A server that answers from its creation on until `close`. `port` 0 takes a free one."""

    def __init__(self, host: str, port: int, pages: Mapping[str, Callable[[], Page]]) -> None:
        names = HostNames((host,))

        class Handler(_Handler):
            pass

        Handler.pages, Handler.names = pages, names
        try:
            self._server = _server(host, port, Handler)
        except (OSError, OverflowError) as error:
            raise ConfigError(
                "the port of the metrics cannot be opened",
                hint="choose another port",
                address=f"{host}:{port}",
            ) from error
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.2,), name="cdcd-metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop answering, and free the port."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _server(host: str, port: int, handler: type[_Handler]) -> _Server:
    family, _, _, _, _ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]

    class Server(_Server):
        address_family = family

    return Server((host, port), handler)


class _Server(ThreadingTCPServer):
    """Not that of `http.server`, which asks a name server for the name of its address."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 64
    block_on_close = False

    def __init__(self, *given: Any) -> None:
        self._free = threading.BoundedSemaphore(MOST_CONNECTIONS)
        super().__init__(*given)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread of its own; refuse the connection if there are many, and none ends soon."""
        if self._free.acquire(timeout=ROOM_WITHIN_S):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer one request."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Do nothing: a client that ends its connection is not an error of the mirror."""


class _Head(io.RawIOBase):
    """What a client sends in a time: also a client that sends a byte now and then does not hold its connection."""

    def __init__(self, connection: socket.socket, within_s: float) -> None:
        self._connection = connection
        self._until_s = time.monotonic() + within_s

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Receive some bytes. Raises TimeoutError."""
        left_s = self._until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self._connection.settimeout(left_s)
        return self._connection.recv_into(buffer)


class _Handler(BaseHTTPRequestHandler):
    timeout = REQUEST_TIMEOUT_S
    server_version, sys_version = "cdcd", ""
    pages: Mapping[str, Callable[[], Page]] = {}
    names = HostNames()

    def setup(self) -> None:
        """Read the request within the time limit of its head."""
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(_Head(self.connection, self.timeout))

    def do_GET(self) -> None:
        """Answer with a page."""
        page = self.pages.get(self.path.partition("?")[0])
        if not self.names.has(self.headers.get_all("Host", [])):
            self._answer(Page(421, _MISDIRECTED))
        elif page is None:
            self._answer(Page(404, b"/metrics\n/healthz\n"))
        else:
            self._answer(self._made(page))

    def _made(self, page: Callable[[], Page]) -> Page:
        try:
            return page()
        except Exception:
            log.exception("a page of the mirror's port failed")
            return Page(500, b"internal error, see the log\n")

    def _answer(self, page: Page) -> None:
        self.connection.settimeout(self.timeout)
        self.send_response(page.status)
        self.send_header("Content-Type", _METRICS_TYPE)
        self.send_header("Content-Length", str(len(page.content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(page.content)

    def log_message(self, format: str, *args: Any) -> None:
        """Do nothing: a log line for each scrape would hide the others."""
