"""/snapshots of the admin port, over a real socket: who may send a command, what is refused, what the answer says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import aiohttp
import pytest
import structlog
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from cdcd import redaction
from cdcd.errors import CdcdError, NotStreaming, SourceSetup
from cdcd.ops.local_commands import OWN_ADDRESSES, is_local_command
from cdcd.snapshot.admin_page import SNAPSHOT_HEADER
from cdcd.snapshot.command_json import MAX_COMMAND_BYTES
from cdcd.snapshot.control import SnapshotCommand, TableReport
from tests.support.snapshot_control import FakeControl, admin_port

OURS = {SNAPSHOT_HEADER: "1"}
START = {"action": "start", "tables": ["shop.orders"], "where": "id > 7", "recopy": True}
Answer = tuple[int, Any]


@pytest.fixture
def control() -> FakeControl:
    return FakeControl()


@pytest.fixture
async def url(control: FakeControl) -> AsyncIterator[str]:
    async with admin_port(control) as port:
        yield f"http://127.0.0.1:{port}/snapshots"


async def post(url: str, body: Any = START, headers: dict[str, str] = OURS, **more: Any) -> Answer:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, data=data, headers=headers, **more) as answer,
    ):
        text = await answer.text()
        return answer.status, json.loads(text) if answer.content_type == "application/json" else text


async def get(url: str, **more: Any) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(url, **more) as answer:
        return answer.status, await answer.text()


async def test_a_command_that_is_durable_is_answered_with_its_tables(url: str, control: FakeControl) -> None:
    assert await post(url) == (200, {"tables": ["shop.orders"]})
    assert control.commands == [SnapshotCommand("start", ("shop.orders",), "id > 7", True)]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (OURS, 200),
        ({**OURS, "Host": "localhost:1"}, 200),
        ({**OURS, "Host": "cdcd"}, 403),
        ({}, 403),  # an HTML form cannot send the header
        ({"X-Cdcd-Resume": "1"}, 403),
        ({**OURS, "Host": "elsewhere.example"}, 421),  # DNS rebinding
    ],
)
async def test_only_a_command_on_this_machine_has_an_effect(
    url: str, control: FakeControl, headers: dict[str, str], status: int
) -> None:
    assert (await post(url, headers=headers))[0] == status
    assert bool(control.commands) == (status == 200)


@pytest.mark.parametrize(
    ("peer", "host", "expected"),
    [
        ("127.0.0.1", "localhost", True),
        ("::1", "[::1]:8080", True),
        ("10.0.0.7", "localhost", False),
        ("10.0.0.7", "127.0.0.1", False),
        ("127.0.0.1", "10.0.0.7", False),
        ("nowhere", "localhost", False),
        ("127.0.0.6", "localhost", False),  # the proxy of a service mesh, for a client elsewhere
        ("10.0.0.5", "localhost", True),
        ("fd00::2", "localhost", True),
        ("10.0.0.5", "10.0.0.5", False),
    ],
)
def test_a_command_of_another_machine_is_none(peer: str, host: str, expected: bool) -> None:
    transport = type("Transport", (asyncio.Transport,), {"get_extra_info": lambda *_: (peer, 1)})()
    forwarded = {"Host": host, "X-Forwarded-For": "127.0.0.1", **OURS}
    app = web.Application()
    app[OWN_ADDRESSES] = {"10.0.0.5", "fd00::2"}
    request = make_mocked_request("POST", "/snapshots", headers=forwarded, transport=transport, app=app)
    assert is_local_command(request, SNAPSHOT_HEADER) is expected


async def test_a_command_for_another_daemon_is_refused(url: str, control: FakeControl) -> None:
    status, answer = await post(url, params={"name": "shop.eu"})
    assert (status, answer["code"]) == (409, "CDCD-SNAPSHOT-REFUSED")
    assert "shop" in answer["message"]
    assert (await get(url, params={"name": "shop.eu"}))[0] == 409
    assert control.commands == []
    assert (await post(url, params={"name": "shop"}))[0] == 200


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"action": "erase"}', b"\xff", b"[" * 60_000])
async def test_a_body_that_is_no_command_is_refused(url: str, control: FakeControl, body: bytes) -> None:
    status, answer = await post(url, body)
    assert (status, answer["code"]) == (400, "CDCD-SNAPSHOT-REFUSED")
    assert answer["message"].startswith("the body is not a command: ")
    assert "actions are start" in answer["hint"]
    assert control.commands == []


async def test_a_huge_body_is_refused_before_it_is_stored(url: str, control: FakeControl) -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b" " * 4096

    assert (await post(url, b" " * (MAX_COMMAND_BYTES + 1)))[0] == 400
    async with aiohttp.ClientSession() as session:
        # The answer arrives, or the connection ends, while the client still sends.
        try:
            async with session.post(url, data=endless(), headers=OURS) as answer:
                assert answer.status == 400
        except aiohttp.ClientConnectionError:
            pass
    assert control.commands == []
    assert (await get(url))[0] == 200


@pytest.mark.parametrize(
    "rest",
    [b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n", b"Content-Length: 9\r\n\r\n{"],
    ids=["a chunk that is none", "half a body"],
)
async def test_a_body_that_is_cut_or_no_http_has_no_effect(
    url: str, control: FakeControl, rest: bytes
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.split(":")[2].split("/")[0]))
    writer.write(f"POST /snapshots HTTP/1.1\r\nHost: localhost\r\n{SNAPSHOT_HEADER}: 1\r\n".encode() + rest)
    with structlog.testing.capture_logs() as log:
        writer.write_eof()
        await reader.read()
        writer.close()
        assert (await get(url))[0] == 200
    assert "admin_page_failed" not in {line["event"] for line in log}
    assert control.commands == []
    assert (await get(url))[0] == 200


@pytest.mark.parametrize(
    ("error", "status"),
    [(SourceSetup("no key\x1b[2J", hint="add a key", table="s.t"), 422), (NotStreaming("it starts"), 409)],
)
async def test_a_refusal_has_code_message_and_hint(
    url: str, control: FakeControl, error: CdcdError, status: int
) -> None:
    redaction.add_secret("hunter2-hunter2")

    async def refuse(_: SnapshotCommand) -> Sequence[str]:
        error.message += " hunter2-hunter2"
        raise error

    control.result = refuse
    got, answer = await post(url)
    assert (got, answer["code"], answer["hint"]) == (status, error.code, error.next_step)
    assert answer["message"].startswith(("no key\\x1b[2J ***", "it starts ***"))
    assert "hunter2" not in str(answer)


async def test_a_defect_is_a_500_that_says_nothing(url: str, control: FakeControl) -> None:
    async def fail(_: SnapshotCommand) -> Sequence[str]:
        raise RuntimeError("canary")

    control.result = fail
    assert await post(url) == (500, "internal error, see the log\n")
    assert (await get(url))[0] == 200


async def test_a_command_that_takes_long_goes_on_behind_the_answer(control: FakeControl) -> None:
    go_on = asyncio.Event()

    async def wait(command: SnapshotCommand) -> Sequence[str]:
        await go_on.wait()
        return command.tables

    control.result = wait
    with structlog.testing.capture_logs() as log:
        async with admin_port(control, wait_s=0.05) as port:
            status, answer = await post(f"http://127.0.0.1:{port}/snapshots")
            assert status == 504
            assert "may still take effect" in answer["message"]
            assert log == []
            go_on.set()
            assert (await post(f"http://127.0.0.1:{port}/snapshots"))[0] == 200
    assert [line["event"] for line in log] == ["snapshot_command"] * 2
    assert log[0]["tables"] == ["shop.orders"]
    assert "id > 7" not in str(log), "a condition may have values of rows"


async def test_only_so_many_commands_wait(control: FakeControl) -> None:
    go_on = asyncio.Event()

    async def wait(command: SnapshotCommand) -> Sequence[str]:
        await go_on.wait()
        return command.tables

    control.result = wait
    async with admin_port(control, wait_s=0.0) as port:
        statuses = [(await post(f"http://127.0.0.1:{port}/snapshots"))[0] for _ in range(20)]
        assert statuses == [504] * 16 + [503] * 4
        go_on.set()
        control.result = None
        assert (await get(f"http://127.0.0.1:{port}/snapshots"))[0] == 200
    assert len(control.commands) == 16


async def test_a_client_that_leaves_does_not_cancel_its_command(control: FakeControl) -> None:
    started, go_on, has_ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def wait(command: SnapshotCommand) -> Sequence[str]:
        started.set()
        await go_on.wait()
        has_ended.set()
        return command.tables

    control.result = wait
    async with admin_port(control) as port:
        posting = asyncio.ensure_future(post(f"http://127.0.0.1:{port}/snapshots"))
        await started.wait()
        posting.cancel()
        await asyncio.gather(posting, return_exceptions=True)
        go_on.set()
        await asyncio.wait_for(has_ended.wait(), 30)


async def test_the_list_has_each_report_and_unknown_is_null(url: str, control: FakeControl) -> None:
    redaction.add_secret("hunter2-hunter2")
    control.tables = [
        TableReport("s.a", "copying", 7, 100, 3.5, float("inf")),
        TableReport("s.\x1b[2J\x7f\u202e", "failed", 0, reason="hunter2-hunter2"),
    ]
    status, text = await get(url)
    assert status == 200
    assert text.isascii()
    assert text.isprintable()
    assert json.loads(text) == [
        {
            "table": "s.a",
            "state": "copying",
            "rows": 7,
            "estimated_rows": 100,
            "rows_per_second": 3.5,
            "seconds_left": None,
            "reason": None,
            "kind": "incremental",
        },
        {
            "table": "s.\x1b[2J\x7f\u202e",
            "state": "failed",
            "rows": 0,
            "estimated_rows": None,
            "rows_per_second": None,
            "seconds_left": None,
            "reason": "***",
            "kind": "incremental",
        },
    ]


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "HEAD"])
async def test_nothing_else_is_answered(url: str, method: str) -> None:
    async with aiohttp.ClientSession() as session, session.request(method, url, headers=OURS) as answer:
        assert answer.status == 405
