"""A proxy of a broker that withholds one request and delivers it late, after its client has given it up.

In: the broker's port; the kind of request to withhold.  Out: the request as it was sent, and the broker's answer to
the late request over its original connection.
Invariant: all other bytes arrive complete and in order. The client of the withheld request loses its connection at
once; the connection to the broker stays open, as behind a middlebox that has forgotten one side. An answer can be
withheld too: its client stays connected and waits.
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
    """Kafka's API keys of the requests that a transactional producer sends."""

    PRODUCE = 0
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS_TO_TXN = 24
    END_TXN = 26


@dataclass
class WithheldRequest:
    """A withheld request; its client has lost the connection."""

    api: Api
    frame: bytes
    to_broker: socket.socket
    answers: queue.Queue[bytes | None]

    def deliver(self) -> bytes:
        """Send the request; return the broker's answer without its length and correlation id."""
        self.to_broker.sendall(self.frame)
        while (answer := self.answers.get(timeout=_ANSWER_WITHIN_S)) is not None:
            if answer[4:8] == self.frame[8:12]:  # answers to earlier requests have no reader
                return answer[8:]
        raise ConnectionError("the broker has closed the connection of a withheld request")


@dataclass
class _Link:
    client: socket.socket
    broker: socket.socket
    answers: queue.Queue[bytes | None] = field(default_factory=queue.Queue)
    is_orphaned: bool = False
    held: bytes | None = None
    """The correlation id of the withheld answer."""


class LateDoor:
    """A proxy port of a broker. Its methods may be called from any thread."""

    def __init__(self, port: int) -> None:
        self.port = free_port()
        self._target = port
        self._wanted: tuple[Api | None, Callable[[bytes], bool]] = None, _any
        self._lock = threading.Lock()
        self._withheld: WithheldRequest | None = None
        self._has_withheld = threading.Event()
        self._answer_to: Api | None = None
        self._is_answered, self._may_answer = threading.Event(), threading.Event()
        self._sockets: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, name="late door", daemon=True).start()

    def point_to(self, port: int) -> None:
        """Connect new clients to this port."""
        self._target = port

    def keep(self, api: Api, is_wanted: Callable[[bytes], bool] | None = None) -> None:
        """Withhold the next request of this kind, once."""
        with self._lock:
            self._wanted, self._withheld = (api, is_wanted or _any), None
            self._has_withheld.clear()

    def withheld(self, timeout_s: float = 30.0) -> WithheldRequest:
        """Wait for the withheld request and return it."""
        if not self._has_withheld.wait(timeout_s):
            raise TimeoutError("no request to withhold has arrived")
        assert self._withheld is not None
        return self._withheld

    def withheld_now(self) -> WithheldRequest | None:
        """Return the withheld request, None if there is none yet."""
        return self._withheld

    def hold_answer(self, api: Api) -> None:
        """Withhold the answer to the next request of this kind, once, until `let_answer_go`."""
        with self._lock:
            self._is_answered.clear()
            self._may_answer.clear()
            self._answer_to = api

    def await_answer(self, timeout_s: float = 30.0) -> None:
        """Wait until the broker has sent the answer to withhold."""
        if not self._is_answered.wait(timeout_s):
            raise TimeoutError("the broker has not sent the answer to withhold")

    def let_answer_go(self) -> None:
        """Send the withheld answer to its client."""
        self._may_answer.set()

    def let_through(self) -> None:
        """Stop withholding requests."""
        with self._lock:
            self._wanted = None, _any

    def close(self) -> None:
        """Close the port and all connections."""
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
                if self._is_withheld(frame, link):
                    _reset(link.client)
                    return  # the connection to the broker stays open
                self._note_sent_before(frame, link)
                link.broker.sendall(frame)
        _reset(link.client)
        _reset(link.broker)

    def _is_withheld(self, frame: bytes, link: _Link) -> bool:
        """A request begins with its length (4 bytes), API key (2), version (2) and correlation id (4)."""
        with self._lock:
            api, is_wanted = self._wanted
            if api is None or int.from_bytes(frame[4:6], "big") != api or not is_wanted(frame):
                return False
            self._wanted = None, is_wanted
            link.is_orphaned = True
            self._withheld = WithheldRequest(api, frame, link.broker, link.answers)
        self._has_withheld.set()
        return True

    def _note_sent_before(self, frame: bytes, link: _Link) -> None:
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
                    with contextlib.suppress(OSError):  # the client has just closed the connection
                        link.client.sendall(frame)
        link.answers.put(None)
        _reset(link.client)


def _any(_frame: bytes) -> bool:
    return True


def _frame(connection: socket.socket) -> bytes | None:
    """Read one request or answer with its length; return None at the end of the connection."""
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
