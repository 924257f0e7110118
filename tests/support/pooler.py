"""A connection pooler in front of PostgreSQL that refuses start-up parameters with PgBouncer's texts.

In: the server, the start-up parameters to remove silently.  Out: a port.
Invariant: an accepted connection is forwarded unchanged in both directions, without the removed parameters.
PgBouncer before 1.23 refuses `replication` like any other parameter that it does not track.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import threading
from collections.abc import Collection

from cdcd.demo.stack.postgres import PostgresServer

_SSL_REQUEST, _GSS_REQUEST = 80877103, 80877104
_TRACKED = {"user", "database", "application_name", "client_encoding"}


class Pooler:
    """Use as a context manager."""

    def __init__(self, server: PostgresServer, *, ignores: Collection[str] = ()) -> None:
        self._target = (server.host, server.port)
        self._ignores = set(ignores)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="pooler", daemon=True)
        self.port = 0

    def __enter__(self) -> Pooler:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(30)
        return self

    def __exit__(self, *_exc: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _listen(self) -> None:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            parameters = await _startup(reader, writer)
            refused = self._refusal(parameters)
            if refused:
                writer.write(_error(refused))
                await writer.drain()
            else:
                passed = {name: value for name, value in parameters.items() if name not in self._ignores}
                far_reader, far_writer = await asyncio.open_connection(*self._target)
                far_writer.write(_packet(passed))
                await asyncio.gather(_carry(reader, far_writer), _carry(far_reader, writer))
        writer.close()

    def _refusal(self, parameters: dict[str, str]) -> str:
        for name, value in parameters.items():
            if name in _TRACKED or name in self._ignores:
                continue
            if name == "options":
                first = value.split("-c ")[1].partition("=")[0]
                return f"unsupported startup parameter in options: {first}"
            return f"unsupported startup parameter: {name}"
        return ""


async def _startup(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> dict[str, str]:
    while True:
        (size,) = struct.unpack("!I", await reader.readexactly(4))
        body = await reader.readexactly(size - 4)
        (code,) = struct.unpack("!I", body[:4])
        if code not in (_SSL_REQUEST, _GSS_REQUEST):
            words = [word.decode() for word in body[4:].rstrip(b"\0").split(b"\0")]
            return dict(zip(words[::2], words[1::2], strict=True))
        writer.write(b"N")


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.close()


def _packet(parameters: dict[str, str]) -> bytes:
    words = [word.encode() for pair in parameters.items() for word in pair]
    body = struct.pack("!I", 3 << 16) + b"".join(word + b"\0" for word in words) + b"\0"
    return struct.pack("!I", len(body) + 4) + body


def _error(message: str) -> bytes:
    fields = b"".join(
        name + text.encode() + b"\0"
        for name, text in ((b"S", "FATAL"), (b"V", "FATAL"), (b"C", "08P01"), (b"M", message))
    )
    return b"E" + struct.pack("!I", len(fields) + 5) + fields + b"\0"
