"""A relay between a client and PostgreSQL that records the replication protocol in both directions.

In: the server's port.  Out: a port to connect to instead, and `heard`: the positions in wire order.
It parses the frames by PostgreSQL's documentation (CopyData with w, k and r inside) and shares no code with cdcd.
Connections must be without TLS.
Invariant: no byte is changed; a message of the server is recorded only after it was sent to the client.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

PIECE_BYTES = 8_192


@dataclass(frozen=True, slots=True)
class Heard:
    """One message. `what`: "keepalive" (WAL end), "begin" (final LSN), "commit" (end LSN), "flush" (from cdcd)."""

    what: str
    lsn: int


class WalsenderTap:
    """Use as a context manager. `bytes_per_second` limits the server's output; it may be set at any time.

    `piece_bytes`: the most bytes forwarded at a time.
    """

    def __init__(self, server_port: int, *, piece_bytes: int = PIECE_BYTES) -> None:
        self._server_port = server_port
        self._piece_bytes = piece_bytes
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = [self._listener]
        self.port: int = self._listener.getsockname()[1]
        self.bytes_per_second: float | None = None
        self.heard: list[Heard] = []

    def __enter__(self) -> WalsenderTap:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_exc: object) -> None:
        for one in self._sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with suppress(OSError):  # the listener is closed
            while True:
                client, _ = self._listener.accept()
                server = socket.socket()
                server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, PIECE_BYTES)
                server.connect(("127.0.0.1", self._server_port))
                for one in (client, server):  # small pieces arrive unmerged
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._sockets += [client, server]
                for source, target, frames, is_slowed in (
                    (server, client, _Frames(self._from_server, has_startup=False), True),
                    (client, server, _Frames(self._from_client, has_startup=True), False),
                ):
                    work = (source, target, frames, is_slowed)
                    threading.Thread(target=self._relay, args=work, daemon=True).start()

    def _relay(self, source: socket.socket, target: socket.socket, frames: _Frames, is_slowed: bool) -> None:
        with suppress(OSError):
            while piece := source.recv(self._piece_bytes):
                if is_slowed and self.bytes_per_second:
                    time.sleep(len(piece) / self.bytes_per_second)
                target.sendall(piece)
                frames.take(piece)
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def _from_server(self, kind: bytes, body: bytes) -> None:
        if kind != b"d":
            return
        if body[:1] == b"k":
            self._note("keepalive", body[1:9])
        elif body[25:26] == b"B":
            self._note("begin", body[26:34])
        elif body[25:26] == b"C":
            self._note("commit", body[35:43])

    def _from_client(self, kind: bytes, body: bytes) -> None:
        if kind == b"d" and body[:1] == b"r":
            self._note("flush", body[9:17])

    def _note(self, what: str, lsn: bytes) -> None:
        self.heard.append(Heard(what, int.from_bytes(lsn, "big")))


class _Frames:
    """Divides a byte stream into messages: a type byte (not in the startup message), then the length."""

    def __init__(self, note: Callable[[bytes, bytes], None], *, has_startup: bool) -> None:
        self._note = note
        self._rest = b""
        self._type_bytes = 0 if has_startup else 1

    def take(self, piece: bytes) -> None:
        self._rest += piece
        while len(self._rest) >= self._type_bytes + 4:
            (length,) = struct.unpack_from(">I", self._rest, self._type_bytes)
            end = self._type_bytes + length
            if len(self._rest) < end:
                return
            self._note(self._rest[: self._type_bytes], self._rest[self._type_bytes + 4 : end])
            self._rest = self._rest[end:]
            self._type_bytes = 1
