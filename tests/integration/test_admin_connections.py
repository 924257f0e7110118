"""The admin port and clients that send half a request, nothing or too much, or do not read the answer."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import logging
import resource
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import structlog

from cdcd.ops import connections
from cdcd.ops.admin import AdminServer
from cdcd.ops.health import Verdict
from cdcd.ops.log import configure
from tests.support.nightly import nightly, nightly_except

WITHIN_S = 20.0


@pytest.fixture
def log() -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """The logged lines, without those of Kafka clients that other tests in this process have."""
    root = logging.getLogger()
    handlers, level, stream = root.handlers[:], root.level, io.StringIO()
    configure("info", "json", stream)

    def lines() -> list[dict[str, Any]]:
        found = [json.loads(line) for line in stream.getvalue().splitlines()]
        return [line for line in found if line["event"] != "kafka_client"]

    yield lines
    root.handlers[:], root.level = handlers, level
    structlog.reset_defaults()


def refused(lines: list[dict[str, Any]]) -> dict[str, int]:
    """Return the sum of the counts in all lines; assert that nothing else was logged."""
    assert {line["event"] for line in lines} <= {"admin_requests_refused"}, lines
    found: dict[str, int] = {}
    for line in lines:
        for name, value in line.items():
            if isinstance(value, int):
                found[name] = found.get(name, 0) + value
    return found


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Divide all time limits by 100."""
    for name in ("FIRST_REQUEST_S", "NEXT_REQUEST_S", "ANSWER_S", "_LOG_EVERY_S"):
        monkeypatch.setattr(connections, name, getattr(connections, name) / 20)


def new_server(metrics: bytes = b"cdcd_up 1\n") -> AdminServer:
    fine = lambda: Verdict(True, "fine")  # noqa: E731
    return AdminServer(
        "127.0.0.1",
        0,
        metrics=lambda: metrics,
        livez=fine,
        readyz=fine,
        startupz=fine,
        status=dict,
        resume=lambda: None,
    )


@pytest.fixture
async def server() -> AsyncIterator[AdminServer]:
    one = new_server()
    await one.start()
    yield one
    await one.stop()


async def livez(port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    answer = await asyncio.wait_for(reader.read(), WITHIN_S)
    writer.close()
    return answer


async def drip(writer: asyncio.StreamWriter, text: bytes) -> bool:
    """Write the bytes one after another; return whether the server took all of them."""
    with contextlib.suppress(ConnectionError):
        for byte in text:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0.01)
        return True
    return False


HEAD = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n"
HALVES = {
    "nothing": b"",
    "half a line": b"GET /livez HT",
    "half a head": HEAD,
    "half a body": b"POST /resume HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{",
    "a chunk that does not come": b"POST /resume HTTP/1.1\r\nHost: localhost\r\n"
    b"Transfer-Encoding: chunked\r\n\r\nffff\r\n",
    "a whole one, and no more": HEAD + b"\r\n",
    "a whole one, and half of another": HEAD + b"\r\n" + HEAD,
}


@pytest.mark.parametrize("kind", HALVES)
async def test_a_connection_that_says_half_of_something_ends(
    kind: str, server: AdminServer, hasty: None
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(HALVES[kind])
    await asyncio.wait_for(reader.read(), WITHIN_S)
    writer.close()


@pytest.mark.parametrize("sent", [b"", HEAD + b"\r\n"], ids=["the first request", "the second"])
async def test_a_request_that_drips_ends(sent: bytes, server: AdminServer, hasty: None) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(sent)
    dripping = asyncio.ensure_future(drip(writer, HEAD + b"X-Long: " + b"x" * 100_000))
    with contextlib.suppress(ConnectionError):
        await asyncio.wait_for(reader.read(), WITHIN_S)
    assert not (
        dripping.done() and dripping.result()
    )  # it is done, too, if it sees the end before the reader
    dripping.cancel()
    writer.close()


async def test_an_answer_that_is_not_taken_ends(hasty: None) -> None:
    server = new_server(metrics=b"#\n" * 5_000_000)
    port = await server.start()
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.setblocking(False)
        client.send(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert server._connections is not None
        async with asyncio.timeout(WITHIN_S):
            while not server._connections.open:
                await asyncio.sleep(0.01)
            while server._connections.open:
                await asyncio.sleep(0.01)
    await server.stop()


MALFORMED = {
    "no HTTP": b"hello\r\n\r\n",
    "TLS": bytes.fromhex("16030100c8010000c40303") + bytes(range(189)),
    "bytes": bytes(range(256)),
    "a line without end": b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n",
    "a header without end": HEAD + b"X-Long: " + b"x" * 100_000 + b"\r\n\r\n",
    "many headers": HEAD + b"".join(b"X-%d: x\r\n" % number for number in range(10_000)) + b"\r\n",
    "a length that is none": HEAD + b"Content-Length: -1\r\n\r\n",
    "two lengths": b"POST /resume HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    "a line in a header": HEAD + b"X: a\x00\x1b[2Jb\r\n\r\n",
    "another version": b"GET /livez HTTP/9.9\r\n\r\n",
    "a method of its own": b"\x1b[2J /livez HTTP/1.1\r\nHost: localhost\r\n\r\n",
}


@pytest.mark.parametrize("kind", nightly_except(MALFORMED, "TLS", "a line without end", "two lengths"))
async def test_what_is_no_request_is_counted(
    kind: str, server: AdminServer, log: Callable[[], list[dict[str, Any]]]
) -> None:
    """A hundred invalid requests give two log lines without a traceback, and the probe is answered."""
    for _ in range(100):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(MALFORMED[kind])
        with contextlib.suppress(ConnectionError):
            answer = await asyncio.wait_for(reader.read(), WITHIN_S)
            assert answer.startswith((b"HTTP/1.0 400", b"HTTP/1.1 400", b"HTTP/1.1 413", b""))
        writer.close()
    assert (await livez(server.port)).startswith(b"HTTP/1.1 200")
    await server.stop()
    assert len(log()) <= 2, log()
    assert sum(refused(log()).values()) >= 100


async def test_a_name_of_others_reads_nothing(
    server: AdminServer, log: Callable[[], list[dict[str, Any]]]
) -> None:
    for page in ("/livez", "/metrics", "/status", "/", "/nothing"):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(f"GET {page} HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n".encode())
        answer = await asyncio.wait_for(reader.read(), WITHIN_S)
        assert answer.startswith(b"HTTP/1.1 421")
        assert b"cdcd_up" not in answer
        writer.close()
    await server.stop()
    assert refused(log()) == {"host": 5}


async def test_a_probe_is_answered_whoever_else_has_connections(
    server: AdminServer, log: Callable[[], list[dict[str, Any]]]
) -> None:
    """1,500 half requests: the oldest connections are closed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(8_192, hard), hard))
    try:
        others = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(1_500)]
        for _, writer in others:
            with contextlib.suppress(ConnectionError):
                writer.write(HEAD)
        assert (await livez(server.port)).startswith(b"HTTP/1.1 200")
        assert server._connections is not None
        assert len(server._connections.open) <= connections.MAX_CONNECTIONS
        for _, writer in others:
            writer.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    await server.stop()
    assert len(log()) <= 5
    assert refused(log())["too_many"] >= 1_300


SERVING = """
import asyncio, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]),) * 2)
from cdcd.ops.log import configure
from tests.integration.test_admin_connections import new_server
configure("info", "json")
async def serve():
    server = new_server()
    print(await server.start(), flush=True)
    held = []
    while sys.argv[2] == "all":  # what others of the process have open
        try:
            held.append(open("/dev/null"))
        except OSError:
            break
    await asyncio.sleep(600)
asyncio.run(serve())
"""


@pytest.mark.parametrize(("descriptors", "held"), [(40, "none"), nightly(120, "all")])
def test_a_probe_is_answered_where_descriptors_are_short(descriptors: int, held: str) -> None:
    words = [sys.executable, "-c", SERVING, str(descriptors), held]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        began_s = time.monotonic()
        with contextlib.ExitStack() as others:
            others.callback(process.terminate)
            port = int(process.stdout.readline())
            for number in range(300):
                one = others.enter_context(socket.socket())
                one.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    one.connect(("127.0.0.1", port))
                if number % 100 == 99:
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}/livez", timeout=WITHIN_S) as answer:
                        assert answer.status == 200
        lines = process.stderr.read().splitlines()
    assert len(lines) <= 2 + (time.monotonic() - began_s) // connections._LOG_EVERY_S
    assert sum(refused([json.loads(line) for line in lines]).values()) >= 1
