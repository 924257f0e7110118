"""The connections of the admin port: limit their number and the duration of each.

In: a listening address, the factory of the HTTP protocol.  Out: connections, passed to such protocols.
Invariant: an idle connection, an incomplete request and a client that does not read its response are closed after a
timeout. At the maximum number, a new connection closes the longest idle connection of the client that has most of
them, so that a probe is always answered. A connection that waits (`let_wait`) does not count: these have a maximum of
their own, and none of them is closed for another one. If descriptors are exhausted, a spare descriptor serves one
connection at a time.
Must not: interpret requests, or write a line for each error (`Refusals` counts them).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import socket
from collections import Counter
from collections.abc import Callable

import structlog

__all__ = ["Connections", "Refusals"]

_LOG = structlog.stdlib.get_logger("cdcd.ops.admin")
MAX_CONNECTIONS = 128
MAX_WAITING = 4096
_FEWEST = 4
FIRST_REQUEST_S = 5.0
NEXT_REQUEST_S = 15.0
"""From the start of a response, which has to be read in this time, to the end of the next request's head."""
ANSWER_S = 60.0
"""From the end of a request's head to the response: a read of the schema topic may take half of this time."""
_HEAD_BYTES = 1 << 20
"""The parser has lower limits for each line and their number."""
_BACKLOG = 1024
"""Connections that the kernel keeps until they are accepted. A client of one more connects again after a second, and
a thousand may begin to wait for an LSN at the same time."""
_AT_A_TIME = 16
_ACCEPT_AGAIN_S = 0.2
_ROOM_SOON_S = 0.005
_SETTLED_S = 0.25
"""A connection may be evicted only this long after its accept or its last data, so that a busy event loop reads and
starts a request first."""
_LOG_EVERY_S = 10.0
_SHORT = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Refusals:
    """Unanswered requests and connections, counted by reason: one log line at once, then one each ten seconds."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._last_from: str | None = None
        self._timer: asyncio.TimerHandle | None = None

    def note(self, reason: str, remote: str | None = None) -> None:
        """Count one refusal."""
        self._counts[reason] += 1
        self._last_from = remote or self._last_from
        if self._timer is None:
            self._log_counts()

    def close(self) -> None:
        """Log the counts not logged yet."""
        if self._timer is not None:
            self._timer.cancel()
        if self._counts:
            self._log_counts()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _log_counts(self) -> None:
        self._timer = None
        if not self._counts:
            return
        _LOG.warning("admin_requests_refused", **dict(self._counts), last_from=self._last_from)
        self._counts.clear()
        self._timer = asyncio.get_running_loop().call_later(_LOG_EVERY_S, self._log_counts)


class Connections:
    """The listening socket and all open connections."""

    def __init__(self, make: Callable[[], asyncio.Protocol], refusals: Refusals) -> None:
        self._make = make
        self.refusals = refusals
        self.open: dict[asyncio.BaseTransport, _Connection] = {}
        """By transport, the oldest first."""
        self._listening: list[socket.socket] = []
        self._spare: int | None = None
        self._accepting: set[asyncio.Task[tuple[asyncio.Transport, _Connection]]] = set()
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        has_limit = descriptors != resource.RLIM_INFINITY
        self.most = min(MAX_CONNECTIONS, max(_FEWEST, descriptors // 4)) if has_limit else MAX_CONNECTIONS
        self.most_waiting = min(MAX_WAITING, descriptors // 2) if has_limit else MAX_WAITING
        self._waiting: dict[asyncio.BaseTransport, Callable[[], object]] = {}
        """What ends the wait of each connection that waits."""

    async def listen(self, host: str, port: int) -> int:
        """Bind and accept; return the port. Raises OSError if the address is not available."""
        loop = asyncio.get_running_loop()
        # asyncio binds the sockets, because it resolves names and families; this class accepts connections.
        server = await loop.create_server(self._make, host, port, start_serving=False)
        try:
            self._listening = [one.dup() for one in server.sockets]
        finally:
            server.close()
        self._keep_spare()
        for one in self._listening:
            one.setblocking(False)
            one.listen(_BACKLOG)
            loop.add_reader(one, self._accept, one)
        return int(self._listening[0].getsockname()[1])

    def addresses(self) -> set[str]:
        """Return the addresses that are listened on, without those that stand for all of the machine."""
        bound = {str(one.getsockname()[0]) for one in self._listening}
        return bound - {"0.0.0.0", "::"}  # noqa: S104 - nothing listens here

    def refuse(self) -> None:
        """Stop accepting connections."""
        loop = asyncio.get_running_loop()
        for one in self._listening:
            loop.remove_reader(one)
            one.close()
        self._listening.clear()

    def close(self) -> None:
        """Stop accepting connections, and close all of them."""
        self.refuse()
        for connection in list(self.open.values()):
            connection.abort()
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None
        self.refusals.close()

    def began(self, transport: asyncio.BaseTransport | None) -> None:
        """Note that a request's head was received, and that its response is being prepared."""
        connection = self.open.get(transport) if transport is not None else None
        if connection is not None:
            connection.wait(ANSWER_S, "unanswered")
            connection.is_answering = True

    def let_wait(
        self, transport: asyncio.BaseTransport | None, limit_s: float, give_up: Callable[[], object]
    ) -> bool:
        """Note that the response comes when something happens, in `limit_s`. Return False if too many wait.

        `give_up` is called when the client has closed the connection.
        """
        connection = self.open.get(transport) if transport is not None else None
        if transport is None or connection is None or len(self._waiting) >= self.most_waiting:
            return False
        self._waiting[transport] = give_up
        connection.wait(limit_s + ANSWER_S, "unanswered")
        return True

    def ended(self, transport: asyncio.BaseTransport | None) -> None:
        """Note that the response is complete."""
        connection = self.open.get(transport) if transport is not None else None
        if transport is not None:
            self._waiting.pop(transport, None)
        if connection is not None:
            connection.is_answering, connection.head_bytes = False, 0
            connection.wait(NEXT_REQUEST_S, None)  # a persistent connection is no error

    # --- inside ---

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_AT_A_TIME):
            counted = len(self.open) + len(self._accepting) - len(self._waiting)
            if counted >= self.most and not self._evict("too_many"):
                self._pause(listening, _ROOM_SOON_S)
                return
            try:
                accepted, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _SHORT or not self._make_room(listening):
                    return
                continue
            accepted.setblocking(False)
            loop = asyncio.get_running_loop()
            task = loop.create_task(loop.connect_accepted_socket(lambda: _Connection(self), accepted))
            self._accepting.add(task)
            task.add_done_callback(self._accepted)

    def _accepted(self, task: asyncio.Task[tuple[asyncio.Transport, _Connection]]) -> None:
        self._accepting.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.refusals.note("lost")

    def _make_room(self, listening: socket.socket) -> bool:
        """Use the spare descriptor for the next connection; return False if it is in use."""
        if self._spare is not None:
            self.refusals.note("no_descriptor")
            os.close(self._spare)
            self._spare = None
            return True
        is_soon = self._evict("no_descriptor") or bool(self.open or self._accepting)
        self._pause(listening, _ROOM_SOON_S if is_soon else _ACCEPT_AGAIN_S)
        return False

    def _pause(self, listening: socket.socket, pause_s: float) -> None:
        """Accept nothing for `pause_s`; new connections wait in the kernel's queue."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(listening)
        loop.call_later(pause_s, self._accept_again, listening)

    def _accept_again(self, listening: socket.socket) -> None:
        if listening in self._listening:
            asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def _keep_spare(self) -> None:
        if self._spare is None and self._listening:
            with contextlib.suppress(OSError):
                self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def lost(self, transport: asyncio.Transport) -> None:
        """Remove a closed connection."""
        self.forget(transport)
        self._keep_spare()

    def forget(self, transport: asyncio.Transport) -> None:
        """Count a connection no more."""
        self.open.pop(transport, None)
        if (give_up := self._waiting.pop(transport, None)) is not None:
            give_up()

    def _evict(self, reason: str) -> bool:
        """Close the oldest idle connection of the client that has most, or its oldest one if none is idle.

        Return False if all of them are too new: a request that was sent has to be read before an eviction.
        """
        idle = [one for one in self.open.values() if not one.is_answering]
        if idle:
            most = Counter(one.remote for one in idle).most_common(1)[0][0]
            found = next((one for one in idle if one.remote == most and one.is_settled), None)
        else:
            answering = (one for transport, one in self.open.items() if transport not in self._waiting)
            found = None if self._accepting else next(answering, None)
        if found is None:
            return False
        self.refusals.note(reason, found.remote)
        found.abort()
        return True


class _Connection(asyncio.Protocol):
    """One connection: passes every event of asyncio to the HTTP protocol, and limits its duration."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._inner = connections._make()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.remote: str | None = None
        self.is_answering = False
        self.is_settled = False
        self._settling: asyncio.TimerHandle | None = None
        self._has_spoken = False
        self.head_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        peer = transport.get_extra_info("peername")
        self.remote = str(peer[0]) if peer else None
        self._transport = transport
        self._connections.open[transport] = self
        self._settle()
        self.wait(FIRST_REQUEST_S, "no_request")
        self._inner.connection_made(transport)

    def _settle(self) -> None:
        if self._settling is not None:
            self._settling.cancel()
        self._settling = asyncio.get_running_loop().call_later(_SETTLED_S, self._settled)
        self.is_settled = False

    def _settled(self) -> None:
        self.is_settled = True

    def data_received(self, data: bytes) -> None:
        if not self._has_spoken:
            self._has_spoken = True
            self._settle()
        if not self.is_answering:
            self.head_bytes += len(data)
            if self.head_bytes > _HEAD_BYTES:
                self._give_up("too_large")
                return
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._timer, self._settling):
            if timer is not None:
                timer.cancel()
        if self._transport is not None:
            self._connections.lost(self._transport)
        self._inner.connection_lost(exc)

    def wait(self, limit_s: float, reason: str | None) -> None:
        """Close the connection after `limit_s`, unless a later call replaces the limit."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(limit_s, self._give_up, reason)

    def abort(self) -> None:
        """Close the connection now."""
        if self._transport is not None:
            self._connections.forget(self._transport)
            self._transport.abort()

    def _give_up(self, reason: str | None) -> None:
        if reason is not None:
            self._connections.refusals.note(reason, self.remote)
        self.abort()
