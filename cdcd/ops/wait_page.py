"""GET /wait?lsn=16/B374D848&timeout_ms=30000: answers when all commits below the LSN are durable in Kafka, and
consumers with read_committed can read them.

In: an LSN, as `SELECT pg_current_wal_insert_lsn()` returns it after a COMMIT.
Out: 200 with the durable LSN, its timeline and its server; 504 after the time-out, with the LSN that is durable and
the daemon's state; 400 for an argument that is none, 409 for the name of another daemon, 503 if too many wait.
Invariant: a waiter takes no connection from the probes, and cannot be closed by a later one of them.
Must not: wait without a limit.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import web

from cdcd.lsn import INVALID_LSN, format_lsn, parse_lsn
from cdcd.ops.connections import Connections
from cdcd.ops.durable_waits import DurableWaits
from cdcd.redaction import clean

__all__ = ["DEFAULT_TIMEOUT_MS", "MAX_TIMEOUT_MS", "WaitPage"]

DEFAULT_TIMEOUT_MS = 30_000
MAX_TIMEOUT_MS = 600_000
_ARGUMENTS = ("lsn", "timeout_ms", "name")
_HIDDEN = (
    "all commits below the LSN are durable in Kafka, but an open transaction in a topic still hides them"
)


class _Wrong(Exception):
    """An argument that cannot be used."""


class WaitPage:
    """The page of one daemon. `status` returns its name, its state and the reason of that."""

    def __init__(self, waits: DurableWaits, status: Callable[[], Mapping[str, Any]]) -> None:
        self._waits, self._status = waits, status
        self.connections: Connections | None = None

    async def serve(self, request: web.Request) -> web.Response:
        """Wait, and answer."""
        try:
            lsn, timeout_ms = _arguments(request)
        except _Wrong as error:
            return _answered(400, message=str(error))
        named = request.query.get("name")
        if named is not None and named != self._status().get("name"):
            return _answered(409, message="the daemon at this port has another name")
        limit_s = timeout_ms / 1000
        ends_s = asyncio.get_running_loop().time() + limit_s
        waiter, readers = self._waits.waiter(lsn), self._waits.readers
        if not waiter.done() or not (readers is None or readers.is_reached):
            connections = self.connections
            if connections is None or not connections.let_wait(request.transport, limit_s, waiter.cancel):
                waiter.cancel()
                return _answered(
                    503,
                    message="too many requests wait: repeat the request later; to wait for several LSNs, "
                    "ask for the highest one",
                )
            await asyncio.wait([waiter], timeout=limit_s)
        is_durable = waiter.done() and not waiter.cancelled()
        if is_durable and await self._is_visible(ends_s):
            # at the start of a page the LSN is after a page header, and the commits' ends are before it
            durable_lsn = format_lsn(max(lsn, waiter.result()))
            return _answered(200, lsn=format_lsn(lsn), durable_lsn=durable_lsn, **self._source())
        waiter.cancel()
        durable = None if self._waits.lsn == INVALID_LSN else format_lsn(self._waits.lsn)
        status = self._status()
        shown = {name: clean(str(status.get(name) or "")) for name in ("state", "reason")}
        message = _HIDDEN if is_durable else "not all commits below the LSN are durable in Kafka"
        return _answered(504, message=message, lsn=format_lsn(lsn), durable_lsn=durable, **shown)

    async def _is_visible(self, ends_s: float) -> bool:
        """Wait until readers see what is durable, to the end of the time; return whether they do."""
        readers = self._waits.readers
        if readers is None or readers.is_reached:
            return True
        try:
            async with asyncio.timeout_at(ends_s):
                await readers.reached()
        except TimeoutError:
            return False
        return True

    def _source(self) -> dict[str, object]:
        """Return what the LSN belongs to. A stream that has begun since is of that timeline or of a later one."""
        return {
            "timeline": self._waits.timeline,
            "system_identifier": self._waits.system_identifier,
        }


def _arguments(request: web.Request) -> tuple[int, int]:
    if unknown := sorted(set(request.query) - set(_ARGUMENTS)):
        raise _Wrong(f"unknown argument {clean(unknown[0], 40)}; the arguments are {', '.join(_ARGUMENTS)}")
    try:
        lsn = parse_lsn(request.query.get("lsn", ""))
    except ValueError:
        raise _Wrong("lsn: write it as PostgreSQL prints it, such as 16/B374D848") from None
    text = request.query.get("timeout_ms", str(DEFAULT_TIMEOUT_MS))
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 0 < int(text) <= MAX_TIMEOUT_MS):
        raise _Wrong(f"timeout_ms: a whole number from 1 to {MAX_TIMEOUT_MS}")
    return lsn, int(text)


def _answered(status: int, **fields: object) -> web.Response:
    return web.Response(status=status, text=json.dumps(fields) + "\n", content_type="application/json")
