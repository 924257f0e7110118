"""A link to a broker that keeps one request back and delivers it later, when its client has long gone on without it.

In: where the broker is; which request to keep.  Out: the request as it was sent, and what the broker says to it when
it comes at last, over the connection on which it was under way.
Invariant: everything else arrives whole and in order. The client whose request is kept loses its connection at once;
the broker's end of it stays open, as behind a middlebox that has forgotten one side. An answer can be held back too:
its client keeps the connection and waits.
"""

from __future__ import annotations

import contextlib
import enum
import queue
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from cdcd.demo.stack.ports import free_port

_RESET_AT_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER of no seconds: close sends RST
_ANSWER_WITHIN_S = 20.0


class Api(enum.IntEnum):
    """Kafka's numbers of the requests that a transactional producer sends."""

    PRODUCE = 0
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS_TO_TXN = 24
    END_TXN = 26


@dataclass
class Kept:
    """A request that is under way, on a connection whose client has lost it."""

    api: Api
    frame: bytes
    to_broker: socket.socket
    answers: queue.Queue[bytes | None]

    def deliver(self) -> bytes:
        """Let it arrive; return the broker's answer behind its length and its correlation id."""
        self.to_broker.sendall(self.frame)
        while (answer := self.answers.get(timeout=_ANSWER_WITHIN_S)) is not None:
            if answer[4:8] == self.frame[8:12]:  # the answers to what came before it are for nobody
                return answer[8:]
        raise ConnectionError("the broker has closed the connection of a request that was kept")


@dataclass
class _Link:
    client: socket.socket
    broker: socket.socket
    answers: queue.Queue[bytes | None] = field(default_factory=queue.Queue)
    is_orphaned: bool = False
    held: bytes | None = None
    """The correlation id of the answer that is held back."""


class LateDoor:
    """A port that leads to a broker. Its methods may be called from any thread."""

    def __init__(self, port: int) -> None:
        self.port = free_port()
        self._target = port
        self._wanted: tuple[Api | None, Callable[[bytes], bool]] = None, _any
        self._lock = threading.Lock()
        self._kept: Kept | None = None
        self._has_kept = threading.Event()
        self._answer_to: Api | None = None
        self._is_answered, self._may_answer = threading.Event(), threading.Event()
        self._sockets: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, name="late door", daemon=True).start()

    def point_to(self, port: int) -> None:
        """New connections go to this port."""
        self._target = port

    def keep(self, api: Api, is_wanted: Callable[[bytes], bool] | None = None) -> None:
        """Keep the next request of this kind back, once."""
        with self._lock:
            self._wanted, self._kept = (api, is_wanted or _any), None
            self._has_kept.clear()

    def kept(self, timeout_s: float = 30.0) -> Kept:
        """Return what was kept back; waits for it."""
        if not self._has_kept.wait(timeout_s):
            raise TimeoutError("no such request has come")
        assert self._kept is not None
        return self._kept

    def kept_now(self) -> Kept | None:
        """Return what was kept back so far, None where nothing was."""
        return self._kept

    def hold_answer(self, api: Api) -> None:
        """Hold the answer to the next request of this kind back, once, until `let_answer_go`."""
        with self._lock:
            self._is_answered.clear()
            self._may_answer.clear()
            self._answer_to = api

    def await_answer(self, timeout_s: float = 30.0) -> None:
        """Wait until the broker has given the answer that is held back."""
        if not self._is_answered.wait(timeout_s):
            raise TimeoutError("no such request was answered")

    def let_answer_go(self) -> None:
        """Give it to its client."""
        self._may_answer.set()

    def let_through(self) -> None:
        """Keep nothing back any more."""
        with self._lock:
            self._wanted = None, _any

    def close(self) -> None:
        """End all of it."""
        self._listener.close()
        for one in list(self._sockets):
            _reset(one)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                try:
                    broker = socket.create_connection(("127.0.0.1", self._target))
                except OSError:
                    _reset(client)
                    continue
                for one in (client, broker):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._sockets |= {client, broker}
                link = _Link(client, broker)
                for carry in (self._up, self._down):
                    threading.Thread(target=carry, args=(link,), name="late door", daemon=True).start()

    def _up(self, link: _Link) -> None:
        with contextlib.suppress(OSError):
            while (frame := _frame(link.client)) is not None:
                if self._is_kept(frame, link):
                    _reset(link.client)
                    return  # the broker's end stays open
                self._note_held(frame, link)
                link.broker.sendall(frame)
        _reset(link.client)
        _reset(link.broker)

    def _is_kept(self, frame: bytes, link: _Link) -> bool:
        """A request has its length (4 bytes), its API key (2), version (2) and correlation id (4) in front."""
        with self._lock:
            api, is_wanted = self._wanted
            if api is None or int.from_bytes(frame[4:6], "big") != api or not is_wanted(frame):
                return False
            self._wanted = None, is_wanted
            link.is_orphaned = True
            self._kept = Kept(api, frame, link.broker, link.answers)
        self._has_kept.set()
        return True

    def _note_held(self, frame: bytes, link: _Link) -> None:
        with self._lock:
            if self._answer_to is not None and int.from_bytes(frame[4:6], "big") == self._answer_to:
                self._answer_to, link.held = None, frame[8:12]

    def _down(self, link: _Link) -> None:
        with contextlib.suppress(OSError):
            while (frame := _frame(link.broker)) is not None:
                if frame[4:8] == link.held:
                    self._is_answered.set()
                    self._may_answer.wait()
                if link.is_orphaned:
                    link.answers.put(frame)
                else:
                    with contextlib.suppress(OSError):  # the client has just lost it
                        link.client.sendall(frame)
        link.answers.put(None)
        _reset(link.client)


def _any(_frame: bytes) -> bool:
    return True


def _frame(connection: socket.socket) -> bytes | None:
    """Read one request or answer with its length, None at the connection's end."""
    head = _exactly(connection, 4)
    if head is None:
        return None
    body = _exactly(connection, int.from_bytes(head, "big"))
    return None if body is None else head + body


def _exactly(connection: socket.socket, size: int) -> bytes | None:
    found = bytearray()
    while len(found) < size:
        piece = connection.recv(size - len(found))
        if not piece:
            return None
        found += piece
    return bytes(found)


def _reset(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
