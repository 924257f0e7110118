"""The proxy itself: which bytes pass, wait or are lost."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.support.proxy import Proxy
from tests.support.waiting import eventually


@pytest.fixture
def echo() -> Iterator[int]:
    """The port of a server that sends back all bytes that it receives."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve(connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(65536):
                    connection.sendall(data)
            except OSError:
                return

    def accept() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield server.getsockname()[1]
    server.close()


def connected(proxy: Proxy, timeout_s: float = 5) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout_s)


def echoed(client: socket.socket, data: bytes) -> bytes:
    client.sendall(data)
    got = b""
    while len(got) < len(data):
        piece = client.recv(65536)
        if not piece:
            break
        got += piece
    return got


def is_silent(client: socket.socket) -> bool:
    client.settimeout(0.2)
    try:
        client.recv(1)
        return False
    except TimeoutError:
        return True
    finally:
        client.settimeout(5)


def test_what_is_let_through_arrives_whole(echo: int) -> None:
    data = bytes(range(256)) * 4096
    with Proxy(echo) as proxy, connected(proxy) as client:
        sender = threading.Thread(target=client.sendall, args=(data,))
        sender.start()
        got = b""
        while len(got) < len(data):
            got += client.recv(65536)
        sender.join()
        assert got == data


def test_the_end_of_a_connection_is_passed_on(echo: int) -> None:
    with Proxy(echo) as proxy, connected(proxy) as client:
        assert echoed(client, b"one") == b"one"
        client.shutdown(socket.SHUT_WR)
        assert client.recv(1) == b""
        eventually(lambda: proxy.open_connections == 0, "the connection is closed")


@pytest.mark.parametrize("way", ["up", "down"])
def test_delayed_bytes_arrive_later(echo: int, way: str) -> None:
    with Proxy(echo) as proxy, connected(proxy) as client:
        assert echoed(client, b"one") == b"one"
        proxy.hold(way)  # type: ignore[arg-type]
        client.sendall(b"two")
        assert is_silent(client)
        proxy.heal()
        assert client.recv(3) == b"two"


@pytest.mark.parametrize("way", ["up", "down"])
def test_what_is_lost_never_arrives_and_the_connection_is_cut_when_the_link_heals(
    echo: int, way: str
) -> None:
    with Proxy(echo) as proxy, connected(proxy) as client:
        assert echoed(client, b"one") == b"one"
        proxy.lose(way)  # type: ignore[arg-type]
        client.sendall(b"two")
        assert is_silent(client)
        proxy.heal()
        with pytest.raises(ConnectionError):
            client.recv(1)
        with connected(proxy) as again:
            assert echoed(again, b"three") == b"three"


def test_a_new_connection_into_a_black_hole_is_taken_and_never_answered(echo: int) -> None:
    with Proxy(echo) as proxy:
        proxy.lose()
        with connected(proxy) as client:
            client.sendall(b"one")
            assert is_silent(client)


def test_a_chosen_piece_is_lost_and_all_that_follows(echo: int) -> None:
    with Proxy(echo) as proxy, connected(proxy) as client:
        proxy.lose_when(lambda way, data: way == "down" and b"two" in data)
        assert echoed(client, b"one") == b"one"
        client.sendall(b"two")
        assert is_silent(client)


def test_cut_and_refused(echo: int) -> None:
    with Proxy(echo) as proxy:
        with connected(proxy) as client:
            assert echoed(client, b"one") == b"one"
            proxy.refuse()
            with pytest.raises(ConnectionError):
                client.recv(1)
        with pytest.raises(ConnectionRefusedError):
            connected(proxy)
        proxy.accept()
        with connected(proxy) as client:
            assert echoed(client, b"two") == b"two"


def test_a_slow_link_takes_its_time(echo: int) -> None:
    with Proxy(echo) as proxy, connected(proxy) as client:
        proxy.slow(delay_s=0.1, bytes_per_s=10_000)
        started_s = time.monotonic()
        assert echoed(client, b"x" * 2000) == b"x" * 2000
        assert time.monotonic() - started_s >= 0.4  # both directions: the delay, and the time for the bytes
