"""The admin port: /metrics /livez /readyz /startupz /status, for reading; /wait (`ops.wait_page`); the schemas
(`ops.schemas`); and /resume.

Other packages add pages of their own (`Pages`).

In: callables that return the metrics' text, the verdicts and the status.  Out: HTTP responses.
Invariant: a probe does not query any server, and /metrics waits only briefly for one. An error in a callable is a 500
without details (they are in the log) and never ends the daemon. Only these requests are answered: GET, a look-up of a
schema, and commands: POST /resume, which has the effect of SIGHUP, and those of `Pages`. A command is accepted only
from this machine, and with cdcd's own header (`local_commands`).
GET is answered only under a host name that no other party can own (`cdcd.host_names`). The number of connections,
and the duration of each, are limited (`connections`). Refused requests are counted, and cause no traceback.
Must not: change anything, show a secret or a row value: each response passes through `cdcd.redaction`.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

import structlog
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler, Middleware

from cdcd.host_names import HostNames
from cdcd.ops.connections import Connections, Refusals
from cdcd.ops.durable_waits import DurableWaits
from cdcd.ops.health import Verdict
from cdcd.ops.local_commands import OWN_ADDRESSES, is_local_command
from cdcd.ops.log import redact
from cdcd.ops.schemas import MAX_SCHEMA_BYTES, SchemaSource, add_routes
from cdcd.ops.wait_page import WaitPage
from cdcd.redaction import clean, escape

__all__ = ["RESUME_HEADER", "AdminServer", "Pages", "json_text"]

_LOG = structlog.stdlib.get_logger("cdcd.ops.admin")
RESUME_HEADER = "X-Cdcd-Resume"
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_MISDIRECTED = "not a host name of this daemon: use its address, or add the name to admin.host_names\n"
_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Server": "cdcd"}
_LIMITS: dict[str, Any] = {
    "max_line_size": 8190,
    "max_field_size": 4096,
    "max_headers": 64,
    "lingering_time": 2.0,
    "auto_decompress": False,  # our clients do not compress, and a small body may decompress to a huge one
}
_IDENTITY = ("name", "slot", "state", "version")
_PLAIN = re.compile(rb"[\n\x20-\x7e]*")
_INDEX = "cdcd\n\n/status\n/metrics\n/livez\n/readyz\n/startupz\n"


class Pages(Protocol):
    """Pages of another package; each command among them has to check `local_commands.is_local_command`."""

    def add_routes(self, router: web.UrlDispatcher) -> None: ...  # noqa: D102


class AdminServer:
    """An HTTP server on the running event loop. `port` 0 takes a free one; `start` returns the bound one."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        metrics: Callable[[], Awaitable[bytes]],
        livez: Callable[[], Verdict],
        readyz: Callable[[], Verdict],
        startupz: Callable[[], Verdict],
        status: Callable[[], Mapping[str, Any]],
        schemas: SchemaSource | None = None,
        resume: Callable[[], None] | None = None,
        snapshots: Pages | None = None,
        host_names: Sequence[str] = (),
        durable: DurableWaits | None = None,
    ) -> None:
        self._host = host
        self._wanted_port = port
        self._metrics = metrics
        self._status = status
        self._probes = {"/livez": livez, "/readyz": readyz, "/startupz": startupz}
        self._schemas = schemas
        self._resume = resume
        self._snapshots = snapshots
        self._wait = None if durable is None else WaitPage(durable, status)
        self._host_names = HostNames((host, *host_names))
        self._refusals = Refusals()
        self._connections: Connections | None = None
        self._runner: web.AppRunner | None = None
        self.port = 0

    async def start(self) -> int:
        """Bind and serve; return the port. Raises OSError if the address is not available."""
        app = web.Application(middlewares=[self._guarded()], client_max_size=MAX_SCHEMA_BYTES)
        own: set[str] = set()
        app[OWN_ADDRESSES] = own
        router = app.router
        router.add_get("/", self._serve_index, allow_head=False)
        router.add_get("/metrics", self._serve_metrics, allow_head=False)
        router.add_get("/status", self._serve_status, allow_head=False)
        if self._wait is not None:
            router.add_get("/wait", self._wait.serve, allow_head=False)
        if self._resume is not None:
            router.add_post("/resume", self._serve_resume)
        for path in self._probes:
            router.add_get(path, self._serve_probe, allow_head=False)
        if self._schemas is not None:
            add_routes(router, self._schemas)
        if self._snapshots is not None:
            self._snapshots.add_routes(router)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            handle_signals=False,
            shutdown_timeout=1.0,
            logger=_Refused(self._refusals),
            **_LIMITS,
        )
        await self._runner.setup()
        server = self._runner.server
        assert server is not None
        self._connections = Connections(server, self._refusals)
        if self._wait is not None:
            self._wait.connections = self._connections
        try:
            self.port = await self._connections.listen(self._host, self._wanted_port)
        except OSError:
            await self.stop()
            raise
        own.update(self._connections.addresses())
        return self.port

    async def stop(self) -> None:
        """Stop serving. May be called at any time."""
        runner, self._runner = self._runner, None
        connections, self._connections = self._connections, None
        if connections is not None:
            connections.refuse()
        if runner is not None:
            await runner.cleanup()
        if connections is not None:
            connections.close()

    def _guarded(self) -> Middleware:
        @web.middleware
        async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
            connections, transport = self._connections, request.transport
            if connections is not None:
                connections.began(transport)
            try:
                return await self._answer(request, handler)
            finally:
                if connections is not None:
                    connections.ended(transport)

        return guarded

    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Respond to a failure with 500 and no details. Set headers against caching and content sniffing."""
        try:
            if self._host_names.has(request.headers.getall("Host", [])):
                response = await handler(request)
            else:
                self._refusals.note("host", request.remote)
                response = web.Response(status=421, text=_MISDIRECTED)
        except web.HTTPException as refused:
            refused.headers.update(_HEADERS)
            raise
        except Exception:  # noqa: BLE001 - an error in a page is logged, and must not end the daemon
            _LOG.exception("admin_page_failed", path=request.path)
            response = web.Response(status=500, text="internal error, see the log\n")
        response.headers.update(_HEADERS)
        return response

    async def _serve_index(self, request: web.Request) -> web.Response:
        return web.Response(text=_INDEX + ("/snapshots\n" if self._snapshots is not None else ""))

    async def _serve_metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=_printable(await self._metrics()), headers={"Content-Type": _METRICS_TYPE})

    async def _serve_probe(self, request: web.Request) -> web.Response:
        verdict = self._probes[request.path]()
        return web.Response(status=200 if verdict.is_ok else 503, text=clean(verdict.reason) + "\n")

    async def _serve_status(self, request: web.Request) -> web.Response:
        return web.Response(text=json_text(self._page(), indent=2) + "\n", content_type="application/json")

    def _page(self) -> dict[str, Any]:
        """Return the status, redacted, except cdcd's own names: other programs compare these."""
        page = dict(self._status())
        return {**redact(None, "", page), **{name: page[name] for name in _IDENTITY if name in page}}

    async def _serve_resume(self, request: web.Request) -> web.Response:
        """Ask the daemon to retry; respond with its previous state and the reason of that state.

        A request with another daemon's name is refused (409), because a retry may accept a changed topic or gap.
        """
        if not is_local_command(request, RESUME_HEADER):
            return web.Response(status=403, text="run `cdcd resume` on this machine instead\n")
        page = self._page()
        found = {key: page.get(key) for key in ("name", "state", "reason")}
        if request.query.get("name", found["name"]) != found["name"]:
            return web.json_response(found, status=409, dumps=json_text)
        if self._resume is not None:
            self._resume()
        return web.json_response(found, dumps=json_text)


def json_text(page: Any, indent: int | None = None) -> str:
    """Return the page as JSON without control characters."""
    return json.dumps(page, indent=indent).replace(
        "\x7f", "\\u007f"
    )  # JSON itself escapes the other control characters


def _printable(exposition: bytes) -> bytes:
    """Return the metrics with control characters escaped, because table names are values of labels."""
    if _PLAIN.fullmatch(exposition):
        return exposition
    return "\n".join(map(escape, exposition.decode().split("\n"))).encode()


class _Refused(logging.Logger):
    """A logger that counts invalid requests; aiohttp would log a traceback for each of them."""

    def __init__(self, refusals: Refusals) -> None:
        super().__init__("cdcd.ops.admin.http")
        self.parent = logging.getLogger("cdcd.ops.admin")
        self._refusals = refusals

    def exception(self, msg: object, *args: object, exc_info: Any = None, **_more: Any) -> None:
        is_malformed = isinstance(exc_info, HttpProcessingError)
        self._refusals.note("malformed" if is_malformed else type(exc_info).__name__, str(*args[:1]))

    def debug(self, msg: object, *args: object, exc_info: Any = None, **_more: Any) -> None:
        if exc_info is not None:
            self.exception(msg, *args, exc_info=exc_info)
