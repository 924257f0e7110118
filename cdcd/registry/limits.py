"""How much a registry may answer, and how long it may take all in all.

In: a request's time; what its connection gives.  Out: the same, until there is too much of it or the time is over.
Invariant: no answer costs more memory than MAX_ANSWER_BYTES and a fixed share for its head, nor more time than its
request has, however slowly it comes: a time-out of a socket begins again with each byte. Nothing is decompressed.
Must not: know what is asked.
"""

from __future__ import annotations

import http.client
import io
import socket
import time
from collections.abc import Iterator
from typing import Any

__all__ = ["MAX_ANSWER_BYTES", "MAX_ERROR_BYTES", "Deadline", "limit_client", "paced_response", "read_body"]

MAX_ANSWER_BYTES = 4 << 20
"""A schema of 1,600 columns has some 300 kB."""
MAX_ERROR_BYTES = 64 << 10
"""Of an error's body: what is longer is no registry's, and its status says enough."""

_FIRST_ERROR = 400
_TOO_MUCH = f"an answer of more than {MAX_ANSWER_BYTES} bytes"


class Deadline:
    """A moment; `left_s` raises TimeoutError after it."""

    def __init__(self, total_s: float) -> None:
        self._total_s = total_s
        self._end_s = time.monotonic() + total_s

    def renew(self) -> None:
        """Begin again: another request."""
        self._end_s = time.monotonic() + self._total_s

    def left_s(self) -> float:
        """Return how much time there is. Raises TimeoutError when it is over."""
        left_s = self._end_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError(f"no whole answer within {self._total_s:g} s")
        return left_s


# --- the standard library's client ---------------------------------------------------------------------------


class _PacedIO(io.RawIOBase):
    """A socket's bytes, each read within what is left of the time."""

    def __init__(self, sock: socket.socket, deadline: Deadline) -> None:
        self._sock, self._deadline = sock, deadline
        self._raw = sock.makefile("rb", buffering=0)  # it keeps the socket open for as long as it is read

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._sock.settimeout(self._deadline.left_s())
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _PacedSocket:
    """What `HTTPResponse` asks of a socket."""

    def __init__(self, sock: socket.socket, deadline: Deadline) -> None:
        self._sock, self._deadline = sock, deadline

    def makefile(self, *_mode: object) -> io.BufferedReader:
        return io.BufferedReader(_PacedIO(self._sock, self._deadline))


def paced_response(deadline: Deadline) -> Any:
    """Return what a connection makes its response by: one that comes until the deadline."""

    def make(sock: socket.socket, *positional: Any, **named: Any) -> http.client.HTTPResponse:
        return http.client.HTTPResponse(_PacedSocket(sock, deadline), *positional, **named)  # type: ignore[arg-type]

    return make


def read_body(response: http.client.HTTPResponse) -> bytes:
    """Return an answer's body, an error's cut. Raises ValueError where there is too much of it."""
    if response.status >= _FIRST_ERROR:
        return response.read(MAX_ERROR_BYTES)
    content = response.read(MAX_ANSWER_BYTES + 1)
    if len(content) > MAX_ANSWER_BYTES:
        raise ValueError(_TOO_MUCH)
    return content


# --- httpx, which Confluent's client uses --------------------------------------------------------------------


def limit_client(client: Any, total_s: float) -> bool:
    """Limit each answer that an httpx client gets; False where its connections' time cannot be limited.

    A body is limited by httpx's own hooks. The time is limited where its transports make connections, which has no
    name of its own in httpx.
    """
    deadline = Deadline(total_s)

    def begin(_request: Any) -> None:
        deadline.renew()

    def bound(response: Any) -> None:
        response.headers.pop(
            "Content-Encoding", None
        )  # a little may become much: what is compressed is unreadable
        response.stream = _bounded(response.stream, response.status_code)

    client.headers["Accept-Encoding"] = "identity"
    client.event_hooks = {"request": [begin], "response": [bound]}
    transports = (client._transport, *client._mounts.values())
    pools = [pool for one in transports if (pool := getattr(one, "_pool", None)) is not None]
    for pool in pools:
        if not hasattr(pool, "_network_backend"):
            return False
        pool._network_backend = _Backend(pool._network_backend, deadline)
    return bool(pools)


def _bounded(stream: Any, status: int) -> Any:
    """Return a stream of httpx's kind that ends where it is too long."""

    # httpx insists on its own class, and there are two libraries by that name.
    base: Any = next(kind for kind in type(stream).__mro__ if kind.__name__ == "SyncByteStream")

    class Bounded(base):  # type: ignore[misc]
        def __iter__(self) -> Iterator[bytes]:
            is_error = status >= _FIRST_ERROR
            left_bytes = MAX_ERROR_BYTES if is_error else MAX_ANSWER_BYTES
            for piece in stream:
                left_bytes -= len(piece)
                if left_bytes < 0 and is_error:
                    return
                if left_bytes < 0:
                    raise ValueError(_TOO_MUCH)
                yield piece

        def close(self) -> None:
            stream.close()

    return Bounded()


class _Backend:
    """httpcore's NetworkBackend with a deadline."""

    def __init__(self, inner: Any, deadline: Deadline) -> None:
        self._inner, self._deadline = inner, deadline

    def connect_tcp(self, host: str, port: int, timeout: float | None = None, **more: Any) -> Any:
        stream = self._inner.connect_tcp(host, port, timeout=self._deadline.left_s(), **more)
        return _Stream(stream, self._deadline)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _Stream:
    """httpcore's NetworkStream with a deadline."""

    def __init__(self, inner: Any, deadline: Deadline) -> None:
        self._inner, self._deadline = inner, deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> Any:
        return self._inner.read(max_bytes, timeout=self._deadline.left_s())

    def write(self, buffer: bytes, timeout: float | None = None) -> Any:
        return self._inner.write(buffer, timeout=self._deadline.left_s())

    def start_tls(self, *positional: Any, **named: Any) -> Any:
        return _Stream(self._inner.start_tls(*positional, **named), self._deadline)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
