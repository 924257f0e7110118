"""/snapshots on the admin port: GET lists the tables that are being copied, POST executes a command.

In: HTTP requests, the daemon's `SnapshotControl`.  Out: JSON; a refusal is {"code", "message", "hint"}.
Invariant: a command is accepted only from this machine and with cdcd's own header, as POST /resume is; for another
daemon's name it is refused (409). 200 means that the command is durable. Bodies, running commands and the wait for
each of them are bounded; a command that takes longer is not cancelled (504).
Must not: show a secret or a row value; log a condition.
"""

from __future__ import annotations

import asyncio
import functools
from typing import Any

import structlog
from aiohttp import web

from cdcd.errors import CdcdError, NotStreaming, SnapshotRefused
from cdcd.ops.admin import json_text
from cdcd.ops.local_commands import is_local_command
from cdcd.ops.log import redact
from cdcd.ops.request_body import reading_body
from cdcd.snapshot.command_json import MAX_COMMAND_BYTES, BadCommand, command_of
from cdcd.snapshot.control import CommandResult, SnapshotCommand, SnapshotControl, fields_of

__all__ = ["SNAPSHOT_HEADER", "SnapshotPages"]

_LOG = structlog.stdlib.get_logger("cdcd.snapshot.commands")
SNAPSHOT_HEADER = "X-Cdcd-Snapshot"
WAIT_S = 30.0
_BODY_S = 10.0
_MOST_RUNNING = 16
_FORM = 'send {"action": "start", "tables": ["SCHEMA.TABLE"]}; actions are start, pause, resume and stop'
_LOOK = "`cdcd snapshot status` shows the tables that are being copied"


class SnapshotPages:
    """The pages of the daemon `name`; `wait_s`: how long a request waits for its command."""

    def __init__(self, control: SnapshotControl, name: str, *, wait_s: float = WAIT_S) -> None:
        self._control = control
        self._name = name
        self._wait_s = wait_s
        self._running: set[asyncio.Future[CommandResult]] = set()

    def add_routes(self, router: web.UrlDispatcher) -> None:
        """Add /snapshots."""
        router.add_get("/snapshots", self._list, allow_head=False)
        router.add_post("/snapshots", self._command)

    async def _list(self, request: web.Request) -> web.Response:
        if not self._is_meant(request):
            return self._of_another()
        try:
            reports = self._control.reports()
        except NotStreaming as unknown:
            return _error(409, unknown)
        return _json([fields_of(report) for report in reports])

    async def _command(self, request: web.Request) -> web.Response:
        if not is_local_command(request, SNAPSHOT_HEADER):
            return web.Response(status=403, text="run `cdcd snapshot` on this machine instead\n")
        if not self._is_meant(request):
            return self._of_another()
        try:
            body = await _body(request)
            command = command_of(body)
        except TimeoutError:
            return _refusal(408, "the request's body was not received in time")
        except BadCommand as bad:
            return _refusal(400, f"the body is not a command: {bad}", _FORM)
        if len(self._running) >= _MOST_RUNNING:
            return _refusal(
                503, f"{_MOST_RUNNING} commands wait for their results already", "repeat the command later"
            )
        return await self._executed(command)

    async def _executed(self, command: SnapshotCommand) -> web.Response:
        running = asyncio.ensure_future(self._control.execute(command))
        self._running.add(running)
        running.add_done_callback(functools.partial(self._ended, command))
        # `wait` does not cancel the command, neither at the timeout nor with this request.
        await asyncio.wait([running], timeout=self._wait_s)
        if not running.done() or running.cancelled():
            message = f"the command has no result after {self._wait_s:g} s; it may still take effect"
            return _refusal(504, message, _LOOK)
        error = running.exception()
        if error is None:
            result = running.result()
            left_out = {"left_out": dict(result.left_out)} if result.left_out else {}
            return _json({"tables": list(result.tables), **left_out})
        if isinstance(error, CdcdError):
            return _error(409 if isinstance(error, NotStreaming) else 422, error)
        return web.Response(status=500, text="internal error, see the log\n")

    def _ended(self, command: SnapshotCommand, running: asyncio.Future[CommandResult]) -> None:
        """Log the result, which no request may be waiting for any more."""
        self._running.discard(running)
        error = None if running.cancelled() else running.exception()
        of = {"action": command.action, "tables": command.tables}
        if running.cancelled():
            _LOG.warning("snapshot_command_interrupted", **of)
        elif error is None:
            _LOG.info("snapshot_command", action=command.action, tables=list(running.result().tables))
        elif isinstance(error, CdcdError):
            _LOG.warning("snapshot_command_refused", **of, code=error.code, error=str(error))
        else:
            _LOG.error("snapshot_command_failed", **of, exc_info=error)

    def _is_meant(self, request: web.Request) -> bool:
        return request.query.get("name", self._name) == self._name

    def _of_another(self) -> web.Response:
        message = f"the daemon at this port has another name: {self._name}"
        return _refusal(409, message, "use the configuration of the daemon, or its admin.port")


async def _body(request: web.Request) -> bytes:
    """Return the body. Raises BadCommand where it is too long, TimeoutError."""
    body = bytearray()
    with reading_body():
        async with asyncio.timeout(_BODY_S):
            async for piece in request.content.iter_any():
                body += piece
                if len(body) > MAX_COMMAND_BYTES:
                    raise BadCommand(f"it has more than {MAX_COMMAND_BYTES} bytes")
    return bytes(body)


def _refusal(status: int, message: str, hint: str | None = None) -> web.Response:
    return _error(status, SnapshotRefused(message, hint=hint))


def _error(status: int, error: CdcdError) -> web.Response:
    message = error.without_hint.removeprefix(f"{error.code}: ")
    return _json({"code": error.code, "message": message, "hint": error.next_step}, status)


def _json(page: Any, status: int = 200) -> web.Response:
    return web.json_response(redact(None, "", {"page": page})["page"], status=status, dumps=json_text)
