"""A TCP proxy with faults: it holds, loses, delays, slows or cuts the bytes between a client and a server.

In: the server's address, and the proxy's own port (a free one on 127.0.0.1).  Out: faults for its connections.
Invariant: after lost bytes a connection passes no later bytes: it is reset when the proxy heals, because TCP has no
gaps. Held bytes arrive in order.
Must not: look at the bytes, except through `lose_when`, `hold_when` and `change`.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Literal, TypeVar

from cdcd.demo.stack.ports import free_port

Way = Literal["up", "down"]
"""up: from the client to the server; down: from the server to the client."""
BOTH: tuple[Way, ...] = ("up", "down")
T = TypeVar("T")
_CHUNK_BYTES = 65_536
_QUEUED_CHUNKS = 4  # small, so that a held sender soon has a full window
_RESET_AT_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER of no seconds: close sends RST


class Proxy:
    """One proxy. Its methods may be called from any thread and affect open and new connections."""

    def __init__(
        self, port: int, host: str = "127.0.0.1", *, at: tuple[str, int | None] = ("127.0.0.1", None)
    ) -> None:
        self._target = (host, port)
        self._host, at_port = at
        self._loop = asyncio.new_event_loop()
        self._mode: dict[Way, Literal["open", "held", "lost"]] = {"up": "open", "down": "open"}
        self._changed = asyncio.Event()
        self._delay_s = 0.0
        self._bytes_per_s: float | None = None
        self._lose_when: Callable[[Way, bytes], bool] | None = None
        self._hold_when: Callable[[Way, bytes], bool] | None = None
        self._change: Callable[[Way, bytes], bytes] | None = None
        self._slice_bytes: int | None = None
        self._budget_bytes: dict[Way, int] = {}
        self.passed_bytes: dict[Way, int] = {"up": 0, "down": 0}
        """Bytes forwarded in each direction, of all connections."""
        self._links: set[_Link] = set()
        self._server: asyncio.Server | None = None
        self.port = (
            at_port or free_port()
        )  # not ephemeral: no outgoing connection takes it while this end refuses
        self.accepted = 0
        """Number of connections accepted so far."""
        self.met = 0
        """Number of pieces of bytes and new connections that were held or lost."""
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._do(self._listen())

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    @property
    def open_connections(self) -> int:
        """The number of open connections."""
        return len(self._links)

    # --- faults ---

    def hold(self, *ways: Way) -> None:
        """Hold all bytes in these directions (default: both) until `heal`; then they arrive."""
        self._set("held", ways or BOTH)

    def lose(self, *ways: Way) -> None:
        """Discard all bytes and connection ends in these directions (default: both): a black hole."""
        self._set("lost", ways or BOTH)

    def lose_when(self, is_met: Callable[[Way, bytes], bool] | None) -> None:
        """Lose both directions from the first piece of bytes for which `is_met` is true."""
        self._lose_when = is_met

    def hold_when(self, is_met: Callable[[Way, bytes], bool] | None) -> None:
        """Hold both directions from the first piece of bytes for which `is_met` is true, including that piece."""
        self._hold_when = is_met

    def change(self, changed: Callable[[Way, bytes], bytes] | None) -> None:
        """Forward the result of `changed` for each piece: the same, corrupted bytes, or b"" to discard it."""
        self._change = changed

    def slice(self, size_bytes: int | None) -> None:
        """Forward at most `size_bytes` at a time."""
        self._slice_bytes = size_bytes

    def cut_after(self, way: Way, size_bytes: int) -> None:
        """Forward `size_bytes` more in this direction, of all connections together; then reset one connection."""
        self._budget_bytes[way] = size_bytes

    def has_cut(self, way: Way) -> bool:
        """Return whether `cut_after` has reset a connection."""
        return way not in self._budget_bytes

    @contextlib.contextmanager
    def flapping(self, up_s: float, down_s: float) -> Iterator[None]:
        """Alternately refuse and reset for `down_s` and accept for `up_s`, until the block ends."""
        over = threading.Event()

        def flap() -> None:
            while not over.is_set():
                self.refuse()
                over.wait(down_s)
                self.accept()
                over.wait(up_s)

        thread = threading.Thread(target=flap, name="flapping", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def heal(self) -> None:
        """Forward everything unchanged at full speed again; reset the connections that lost bytes."""
        self._delay_s, self._bytes_per_s, self._lose_when = 0.0, None, None
        self._hold_when = self._change = self._slice_bytes = None
        self._budget_bytes = {}
        self._set("open", BOTH)
        self._do(self._cut(only_torn=True))

    def cut(self) -> None:
        """Reset every connection (RST to both sides); accept new ones."""
        self._do(self._cut(only_torn=False))

    def slow(self, *, delay_s: float = 0.0, bytes_per_s: float | None = None) -> None:
        """Delay each piece, and limit the bytes per second in each direction."""
        self._delay_s, self._bytes_per_s = delay_s, bytes_per_s

    def refuse(self) -> None:
        """Refuse new connections until `accept`, and reset the open ones."""
        self._do(self._unlisten())
        self.cut()

    def accept(self) -> None:
        """Listen again, on the same port."""
        self._do(self._listen())

    @property
    def target(self) -> tuple[str, int]:
        """The server of new connections."""
        return self._target

    def point_to(self, port: int, host: str = "127.0.0.1") -> None:
        """Connect new clients to this server, as after a DNS change."""
        self._target = (host, port)

    def close(self) -> None:
        """Close the port and all connections."""
        if self._loop.is_closed():
            return
        self._do(self._unlisten())
        self._do(self._cut(only_torn=False))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # --- inside, on the loop ---

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def _set(self, mode: Literal["open", "held", "lost"], ways: tuple[Way, ...]) -> None:
        async def change() -> None:
            for way in ways:
                self._mode[way] = mode
            self._changed.set()
            self._changed = asyncio.Event()

        self._do(change())

    async def _listen(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._connected, self._host, self.port)
            self.port = self._server.sockets[0].getsockname()[1]

    async def _unlisten(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()

    async def _cut(self, *, only_torn: bool) -> None:
        doomed = [link for link in self._links if link.torn or not only_torn]
        for link in doomed:
            link.reset()
        await asyncio.gather(*(link.ended.wait() for link in doomed))

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        link = _Link(writer)
        self._links.add(link)
        try:
            link.task = asyncio.ensure_future(self._carry(link, reader, writer))
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await link.task
        finally:
            link.reset()
            self._links.discard(link)
            link.ended.set()

    async def _carry(self, link: _Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.met += self._mode["up"] != "open"
        await self._passable("up")  # a black hole does not reach the server
        if self._mode["up"] == "lost":
            link.torn.add("up")
            await asyncio.Event().wait()
        far_reader, far_writer = await asyncio.open_connection(*self._target)
        link.writers.append(far_writer)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump("up", link, reader, far_writer))
                group.create_task(self._pump("down", link, far_reader, writer))
        except* OSError:
            link.reset()  # a side reset the connection, or `cut_after` did

    async def _pump(
        self, way: Way, link: _Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        queue: asyncio.Queue[tuple[float, bytes | None]] = asyncio.Queue(_QUEUED_CHUNKS)
        receiving = asyncio.ensure_future(self._receive(reader, queue))
        try:
            while True:
                came_s, data = await queue.get()
                if data and self._lose_when is not None and self._lose_when(way, data):
                    self._mode["up"] = self._mode["down"] = "lost"
                if data and self._hold_when is not None and self._hold_when(way, data):
                    self._mode["up"] = self._mode["down"] = "held"
                await asyncio.sleep(max(0.0, came_s + self._delay_s - self._loop.time()))
                self.met += self._mode[way] != "open"
                await self._passable(way)
                if self._mode[way] == "lost" or way in link.torn:
                    link.torn.add(way)
                    if data:
                        continue
                    await (
                        asyncio.Event().wait()
                    )  # the end of the connection is lost too: half-open until a reset
                if data is None:
                    link.reset()
                    return
                if not data:
                    writer.write_eof()
                    return
                if self._bytes_per_s is not None:
                    await asyncio.sleep(len(data) / self._bytes_per_s)
                await self._send(way, data if self._change is None else self._change(way, data), writer)
        finally:
            receiving.cancel()

    async def _send(self, way: Way, data: bytes, writer: asyncio.StreamWriter) -> None:
        size = self._slice_bytes or max(1, len(data))
        for begin in range(0, len(data), size):
            piece = data[begin : begin + size]
            budget = self._budget_bytes.get(way)
            is_last = budget is not None and budget <= len(piece)
            if budget is not None:
                self._budget_bytes[way] = budget - len(piece)
                piece = piece[:budget]
            writer.write(piece)
            await writer.drain()
            self.passed_bytes[way] += len(piece)
            if is_last:
                del self._budget_bytes[way]
                raise ConnectionResetError("the limit of cut_after is reached")
            await asyncio.sleep(0)

    async def _receive(
        self, reader: asyncio.StreamReader, queue: asyncio.Queue[tuple[float, bytes | None]]
    ) -> None:
        """Queue received bytes with their time; b"" for the end of the stream, None for a reset."""
        while True:
            size = _CHUNK_BYTES if self._bytes_per_s is None else max(1, int(self._bytes_per_s / 20))
            try:
                data: bytes | None = await reader.read(min(size, _CHUNK_BYTES))
            except OSError:
                data = None
            await queue.put((self._loop.time(), data))
            if not data:
                return

    async def _passable(self, way: Way) -> None:
        while self._mode[way] == "held":
            await self._changed.wait()


class _Link:
    """A client's connection and the proxy's connection to the server."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.writers = [writer]
        self.task: asyncio.Future[None] | None = None
        self.torn: set[Way] = set()
        """Directions in which bytes were lost, so that no more may pass."""
        self.ended = asyncio.Event()

    def reset(self) -> None:
        """Send RST to both sides."""
        for writer in self.writers:
            connection = writer.get_extra_info("socket")
            with contextlib.suppress(OSError):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
            writer.transport.abort()
        if self.task is not None:
            self.task.cancel()
