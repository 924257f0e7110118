"""Limits on the size of a registry's reply and on the total time of a request.

In: a request's timeout; the bytes of its connection.  Out: the same bytes, up to the size limit and the deadline.
Invariant: a reply costs at most MAX_ANSWER_BYTES of memory plus a fixed amount for its header, and at most the
request's timeout, however slowly it arrives: a socket's own timeout starts again with each byte. A compressed reply
is not decompressed.
Must not: know the request.
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
"""A schema of 1,600 columns has about 300 kB."""
MAX_ERROR_BYTES = 64 << 10
"""The limit of an error's body: no registry sends a longer one, and the status is sufficient."""

_FIRST_ERROR = 400
_TOO_MUCH = f"an answer of more than {MAX_ANSWER_BYTES} bytes"


class Deadline:
    """A deadline; `left_s` raises TimeoutError after it."""

    def __init__(self, total_s: float) -> None:
        self._total_s = total_s
        self._end_s = time.monotonic() + total_s

    def renew(self) -> None:
        """Restart the time, for another request."""
        self._end_s = time.monotonic() + self._total_s

    def left_s(self) -> float:
        """Return the remaining time in seconds. Raises TimeoutError when it is over."""
        left_s = self._end_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError(f"no complete answer within {self._total_s:g} s")
        return left_s


# --- the standard library's client ---------------------------------------------------------------------------


class _PacedIO(io.RawIOBase):
    """A socket's bytes; each read is limited to the remaining time."""

    def __init__(self, sock: socket.socket, deadline: Deadline) -> None:
        self._sock, self._deadline = sock, deadline
        self._raw = sock.makefile("rb", buffering=0)  # the file object prevents the socket from closing

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._sock.settimeout(self._deadline.left_s())
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _PacedSocket:
    """The method of a socket that `HTTPResponse` uses."""

    def __init__(self, sock: socket.socket, deadline: Deadline) -> None:
        self._sock, self._deadline = sock, deadline

    def makefile(self, *_mode: object) -> io.BufferedReader:
        return io.BufferedReader(_PacedIO(self._sock, self._deadline))


def paced_response(deadline: Deadline) -> Any:
    """Return a `response_class` for a connection, whose responses are limited by the deadline."""

    def make(sock: socket.socket, *positional: Any, **named: Any) -> http.client.HTTPResponse:
        return http.client.HTTPResponse(_PacedSocket(sock, deadline), *positional, **named)  # type: ignore[arg-type]

    return make


def read_body(response: http.client.HTTPResponse) -> bytes:
    """Return a response's body; that of an error is truncated. Raises ValueError where it is too long."""
    if response.status >= _FIRST_ERROR:
        return response.read(MAX_ERROR_BYTES)
    content = response.read(MAX_ANSWER_BYTES + 1)
    if len(content) > MAX_ANSWER_BYTES:
        raise ValueError(_TOO_MUCH)
    return content


# --- httpx, which Confluent's client uses --------------------------------------------------------------------


def limit_client(client: Any, total_s: float) -> bool:
    """Limit each reply that an httpx client gets; return False where the time of connections cannot be limited.

    httpx's own hooks limit the body. The time is limited in the network backend of the transports, for which httpx
    has no public name.
    """
    deadline = Deadline(total_s)

    def begin(_request: Any) -> None:
        deadline.renew()

    def bound(response: Any) -> None:
        response.headers.pop(
            "Content-Encoding", None
        )  # a small compressed body may expand to a large one, so it is not decompressed
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
    """Return an httpx stream that ends at the size limit."""

    # httpx requires its own class, and two libraries have that name.
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
