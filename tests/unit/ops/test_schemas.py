"""Invalid requests to the schema endpoints give an error of the API, never a failure of the page."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable

import aiohttp
import pytest
import structlog

from cdcd.ops import schemas
from cdcd.ops.admin import AdminServer
from cdcd.ops.health import Verdict
from cdcd.schema.schema_index import RegisteredVersion, SchemaIndex, dump, key_of
from tests.support.bombs import gzip_bomb


class Source:
    """A schema index with one schema."""

    compatibility = "BACKWARD"

    def __init__(self) -> None:
        self.schema_index = SchemaIndex()
        one = RegisteredVersion("shop-value", 1, 7, '"string"', "BACKWARD", "s")
        self.schema_index.take(key_of(one), dump(one))

    async def refresh(self, concerns: Callable[[RegisteredVersion], bool]) -> bool:
        return True


@pytest.fixture
async def url() -> AsyncIterator[str]:
    fine = lambda: Verdict(True, "")  # noqa: E731
    server = AdminServer(
        "127.0.0.1",
        0,
        metrics=lambda: b"",
        livez=fine,
        readyz=fine,
        startupz=fine,
        status=dict,
        schemas=Source(),
    )
    yield f"http://127.0.0.1:{await server.start()}"
    await server.stop()


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/schemas/ids/7", 200),
        ("/schemas/ids/" + "9" * 5_000, 404),
        ("/schemas/ids/-7", 404),
        ("/schemas/ids/%D9%A7", 200),  # 7 in Arabic digits is a number
        ("/subjects/shop-value/versions/1", 200),
        ("/subjects/shop-value/versions/" + "9" * 5_000, 422),
        ("/subjects/%1B%5B2J%E2%80%AE/versions/1", 404),
    ],
)
async def test_a_look_up_of_anything(url: str, path: str, status: int) -> None:
    async with aiohttp.ClientSession() as session, session.get(url + path) as answer:
        assert answer.status == status
        text = await answer.text()
    assert text.isprintable()
    assert text.isascii()


DEEP = "[" * 100_000


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (json.dumps({"schema": '"string"'}).encode(), {}, 200),
        (DEEP.encode(), {}, 422),
        (json.dumps({"schema": DEEP}).encode(), {}, 422),
        (json.dumps({"schema": 7}).encode(), {}, 422),
        (b"\xff\x00", {}, 422),
        (gzip_bomb(100), {"Content-Encoding": "gzip"}, 422),
        (b" " * (schemas.MAX_SCHEMA_BYTES + 1), {}, 413),
    ],
    ids=["right", "deep", "deep inside", "a number", "no text", "compressed", "too large"],
)
async def test_a_body_of_anything(url: str, body: bytes, headers: dict[str, str], status: int) -> None:
    async with (
        aiohttp.ClientSession(auto_decompress=False) as session,
        session.post(f"{url}/subjects/shop-value", data=body, headers=headers) as answer,
    ):
        assert answer.status == status


@pytest.mark.parametrize(
    "rest",
    [b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n", b"Content-Length: 9\r\n\r\n{"],
    ids=["a chunk that is none", "half a body"],
)
async def test_a_body_that_is_cut_or_no_http_is_no_failure_of_the_page(url: str, rest: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]))
    writer.write(b"POST /subjects/shop-value HTTP/1.1\r\nHost: localhost\r\n" + rest)
    with structlog.testing.capture_logs() as log:
        writer.write_eof()
        await reader.read()
        writer.close()
        async with aiohttp.ClientSession() as session, session.get(f"{url}/subjects") as answer:
            assert answer.status == 200
    assert "admin_page_failed" not in {line["event"] for line in log}


async def test_a_body_that_does_not_come_is_not_waited_for(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schemas, "_BODY_S", 0.1)

    async def slow() -> AsyncIterator[bytes]:
        yield b'{"schema": '
        await asked.wait()

    asked = asyncio.Event()
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{url}/subjects/shop-value", data=slow()) as answer,
    ):
        assert answer.status == 408
        asked.set()
