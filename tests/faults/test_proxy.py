"""Proxies in front of real servers, and their effects on bytes in addition to delay and loss."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg2
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from cdcd.demo.stack.artefacts import Cache
from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.postgres import PostgresServer
from tests.support.doors import KafkaDoors, through
from tests.support.proxy import Proxy, Way
from tests.support.waiting import eventually


@pytest.fixture
def echo() -> Iterator[int]:
    """The port of a server that echoes all bytes."""
    listener = socket.create_server(("127.0.0.1", 0))

    def answer(connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            while data := connection.recv(65536):
                connection.sendall(data)

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    yield listener.getsockname()[1]
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


@pytest.fixture
def proxy(echo: int) -> Iterator[Proxy]:
    with Proxy(echo) as made:
        yield made


def connect(proxy: Proxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=20)


def receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size and (more := connection.recv(size - len(data))):
        data += more
    return data


def test_slices_of_one_byte_are_the_same_bytes(proxy: Proxy) -> None:
    proxy.slice(1)
    sent = bytes(range(256)) * 4
    with connect(proxy) as connection:
        connection.sendall(sent)
        assert receive(connection, len(sent)) == sent
        assert proxy.passed_bytes["up"] == len(sent)


def test_a_connection_is_cut_after_so_many_bytes_once(proxy: Proxy) -> None:
    proxy.cut_after("down", 5)
    with connect(proxy) as connection:
        connection.sendall(b"abcdefgh")
        with pytest.raises(ConnectionResetError):
            receive(connection, 8)  # bytes received before the reset may be read first, or are lost
    assert proxy.passed_bytes["down"] == 5
    with connect(proxy) as connection:
        connection.sendall(b"abcdefgh")
        assert receive(connection, 8) == b"abcdefgh"


def test_a_given_function_sees_and_changes_bytes(proxy: Proxy) -> None:
    seen: list[tuple[Way, bytes]] = []

    def change(direction: Way, data: bytes) -> bytes:
        seen.append((direction, data))
        if direction == "up":
            return data
        return data.replace(b"c", b"X") if b"a" in data else b""

    proxy.change(change)
    with connect(proxy) as connection:
        connection.sendall(b"abcd")
        assert receive(connection, 4) == b"abXd"
        connection.sendall(b"efgh")  # the proxy drops the echo
        eventually(lambda: ("down", b"efgh") in seen, "the proxy has seen the echo")
        proxy.heal()
        connection.sendall(b"ijkl")
        assert receive(connection, 4) == b"ijkl"
    assert b"".join(data for direction, data in seen if direction == "up") == b"abcdefgh"


def test_flapping_cuts_and_comes_back_and_ends(proxy: Proxy) -> None:
    with proxy.flapping(up_s=0.05, down_s=0.05):
        taken, refused = [], []

        def both_were_seen() -> bool:
            try:
                connect(proxy).close()
                taken.append(True)
            except OSError:
                refused.append(True)
            return bool(taken and refused)

        eventually(both_were_seen, "open and refused connections were seen")
    with connect(proxy) as connection:
        connection.sendall(b"a")
        assert receive(connection, 1) == b"a"


def test_postgresql_through_a_proxy(postgres: PostgresServer) -> None:
    with (
        Proxy(postgres.port) as proxy,
        contextlib.closing(psycopg2.connect(through(postgres.dsn(), postgres, proxy))) as connection,
        connection.cursor() as cursor,
    ):
        proxy.slice(7)
        cursor.execute("SELECT repeat('x', 10000)")
        assert cursor.fetchone() == ("x" * 10000,)
        proxy.cut()
        with pytest.raises(psycopg2.OperationalError):
            cursor.execute("SELECT 1")


@pytest.mark.nightly
def test_a_client_of_a_brokers_proxy_stays_on_the_proxy(artefacts: Cache, stack_folder: Path) -> None:
    broker = KafkaBroker(stack_folder / "kafka-proxied", cache=artefacts)
    with KafkaDoors(broker) as doors, broker:
        (door,) = doors.proxies
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic("t", 1)])["t"].result(30)
        assert door.accepted == 0  # a client of the direct address does not use the proxy
        producer = Producer({"bootstrap.servers": doors.bootstrap})
        producer.produce("t", b"through")
        assert producer.flush(30) == 0
        assert door.passed_bytes["up"] > 0
        door.refuse()
        producer.produce("t", b"waits")
        assert producer.flush(1) == 1
        door.accept()
        assert producer.flush(30) == 0
        settings = {"bootstrap.servers": broker.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
        reader = Consumer(settings)
        reader.subscribe(["t"])
        assert [message.value() for message in reader.consume(2, 30)] == [b"through", b"waits"]
        reader.close()
