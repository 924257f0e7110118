"""An HTTP server that answers with arbitrary bytes for as long as the client reads them.

In: for each request the pieces of its answer.  Out: an address; the number of bytes that the client took.
Invariant: the server ends with its `with` block, even during an answer.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterable, Iterator

Answer = Callable[[bytes], Iterable[bytes]]
"""A function from a request (its head and body as bytes) to the pieces of the answer."""


class HostileServer:
    """`answer` may be changed at any time."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.taken_bytes = 0
        self.asked: list[bytes] = []
        self._over = threading.Event()
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._listening.settimeout(0.2)
        self.port = self._listening.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def __enter__(self) -> HostileServer:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._over.set()
        for one in self._threads:
            one.join()
        self._listening.close()

    def pause(self, seconds: float) -> None:
        """Wait, at most until the server ends."""
        self._over.wait(seconds)

    def _accept(self) -> None:
        while not self._over.is_set():
            with contextlib.suppress(TimeoutError):
                accepted, _ = self._listening.accept()
                self._threads.append(threading.Thread(target=self._serve, args=(accepted,)))
                self._threads[-1].start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            client.settimeout(0.2)
            for request in self._requests(client):
                self.asked.append(request)
                for piece in self.answer(request):
                    self._send(client, piece)

    def _requests(self, client: socket.socket) -> Iterator[bytes]:
        data = b""
        while not self._over.is_set():
            head, separator, body = data.partition(b"\r\n\r\n")
            lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
            length = int(lengths[0].split(b":")[1]) if lengths else 0
            if separator and len(body) >= length:
                yield data
                data = body[length:]
                continue
            with contextlib.suppress(TimeoutError):
                more = client.recv(65_536)
                if not more:
                    return
                data += more

    def _send(self, client: socket.socket, piece: bytes) -> None:
        left = memoryview(piece)
        while True:
            if self._over.is_set():
                raise ConnectionError
            if not left:
                return
            with contextlib.suppress(TimeoutError):
                count = client.send(left)
                self.taken_bytes += count
                left = left[count:]


def whole(body: bytes, status: int = 200, headers: bytes = b"") -> bytes:
    """Return an answer in one piece."""
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n%s\r\n" % (status, len(body), headers) + body
