"""The admin port: /metrics /livez /readyz /startupz /status, for reading; the schemas (`ops.schemas`); and /resume.

In: callables that give the metrics' text, the verdicts and the status.  Out: HTTP answers.
Invariant: a probe answers without asking any server; what goes wrong in a callable is a 500 without details
(they are in the log) and never ends the daemon. Only GET is answered, a look-up of a schema, and POST /resume, which
does what SIGHUP does: from this machine only, and with a header of cdcd's own, which a page in a browser cannot send.
Must not: change anything, show a secret or a row value (the status passes through the logs' redaction).
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import structlog
from aiohttp import web

from cdcd.ops.health import Verdict
from cdcd.ops.log import redact
from cdcd.ops.schemas import MAX_SCHEMA_BYTES, SchemaSource, add_routes
from cdcd.redaction import clean, escape

__all__ = ["RESUME_HEADER", "AdminServer"]

_LOG = structlog.stdlib.get_logger("cdcd.ops.admin")
RESUME_HEADER = "X-Cdcd-Resume"
_LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]", "::1")
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_IDENTITY = ("name", "slot", "state", "version")
_PLAIN = re.compile(rb"[\n\x20-\x7e]*")
_INDEX = "cdcd\n\n/status\n/metrics\n/livez\n/readyz\n/startupz\n"


class AdminServer:
    """An HTTP server on the running event loop. `port` 0 takes a free one; `start` returns the bound one."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        metrics: Callable[[], bytes],
        livez: Callable[[], Verdict],
        readyz: Callable[[], Verdict],
        startupz: Callable[[], Verdict],
        status: Callable[[], Mapping[str, Any]],
        schemas: SchemaSource | None = None,
        resume: Callable[[], None] | None = None,
    ) -> None:
        self._host = host
        self._wanted_port = port
        self._metrics = metrics
        self._status = status
        self._probes = {"/livez": livez, "/readyz": readyz, "/startupz": startupz}
        self._schemas = schemas
        self._resume = resume
        self._runner: web.AppRunner | None = None
        self.port = 0

    async def start(self) -> int:
        """Bind and serve; return the port. Raises OSError when the address cannot be had."""
        app = web.Application(middlewares=[_guarded], client_max_size=MAX_SCHEMA_BYTES)
        router = app.router
        router.add_get("/", self._serve_index, allow_head=False)
        router.add_get("/metrics", self._serve_metrics, allow_head=False)
        router.add_get("/status", self._serve_status, allow_head=False)
        if self._resume is not None:
            router.add_post("/resume", self._serve_resume)
        for path in self._probes:
            router.add_get(path, self._serve_probe, allow_head=False)
        if self._schemas is not None:
            add_routes(router, self._schemas)
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self._host, self._wanted_port).start()
        except OSError:
            await self.stop()
            raise
        self.port = int(self._runner.addresses[0][1])
        return self.port

    async def stop(self) -> None:
        """Stop serving. May be called at any time."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def _serve_index(self, request: web.Request) -> web.Response:
        return web.Response(text=_INDEX)

    async def _serve_metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=_printable(self._metrics()), headers={"Content-Type": _METRICS_TYPE})

    async def _serve_probe(self, request: web.Request) -> web.Response:
        verdict = self._probes[request.path]()
        return web.Response(status=200 if verdict.is_ok else 503, text=clean(verdict.reason) + "\n")

    async def _serve_status(self, request: web.Request) -> web.Response:
        return web.Response(text=_json(self._page(), indent=2) + "\n", content_type="application/json")

    def _page(self) -> dict[str, Any]:
        """Return what is known, redacted, but for names of cdcd's own: other programs compare those."""
        page = dict(self._status())
        return {**redact(None, "", page), **{name: page[name] for name in _IDENTITY if name in page}}

    async def _serve_resume(self, request: web.Request) -> web.Response:
        """Answer with the state that the daemon was told in, and its reason.

        Who means another one tells nobody (409): to go on from a halt may be to accept something.
        """
        if not _is_local(request) or RESUME_HEADER not in request.headers:
            return web.Response(status=403, text="`cdcd resume` on this machine does this\n")
        page = self._page()
        found = {key: page.get(key) for key in ("name", "state", "reason")}
        if request.query.get("name", found["name"]) != found["name"]:
            return web.json_response(found, status=409, dumps=_json)
        if self._resume is not None:
            self._resume()
        return web.json_response(found, dumps=_json)


def _json(page: Any, indent: int | None = None) -> str:
    return json.dumps(page, indent=indent).replace("\x7f", "\\u007f")  # all else is escaped by JSON itself


def _printable(exposition: bytes) -> bytes:
    """Return the metrics with what a terminal acts on escaped: names of tables are values of labels."""
    if _PLAIN.fullmatch(exposition):
        return exposition
    return "\n".join(map(escape, exposition.decode().split("\n"))).encode()


def _is_local(request: web.Request) -> bool:
    """Whether it comes from this machine, under this machine's name (a name of others may be made to lead here)."""
    named = request.headers.get("Host", "")  # not `request.host`: without the header that asks a name server
    host = named if named.endswith("]") else named.rsplit(":", 1)[0]
    try:
        is_loopback = ipaddress.ip_address(request.remote or "").is_loopback
    except ValueError:
        return False
    return is_loopback and host in _LOCAL_NAMES


@web.middleware
async def _guarded(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Answer a failure with 500 and nothing of it; nothing may be cached."""
    try:
        response = await handler(request)
    except web.HTTPException:
        raise
    except Exception:  # noqa: BLE001 - a page that fails must not end the daemon; it is logged
        _LOG.exception("admin_page_failed", path=request.path)
        response = web.Response(status=500, text="internal error, see the log\n")
    response.headers["Cache-Control"] = "no-store"
    return response
