"""The admin port, queried over a real socket."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp
import pytest

from cdcd.ops.admin import RESUME_HEADER, AdminServer
from cdcd.ops.health import Verdict


class Reported:
    """The state that the server shows; tests change it."""

    def __init__(self) -> None:
        self.verdicts = {name: Verdict(True, "fine") for name in ("livez", "readyz", "startupz")}
        self.page: Mapping[str, Any] = {"state": "streaming"}
        self.resumed = False

    async def metrics(self) -> bytes:
        return b"cdcd_up 1\n"

    def resume(self) -> None:
        self.resumed = True

    def status(self) -> Mapping[str, Any]:
        if not self.page:
            raise RuntimeError("canary")
        return self.page


@pytest.fixture
def reported() -> Reported:
    return Reported()


@pytest.fixture
async def url(reported: Reported) -> AsyncIterator[str]:
    server = AdminServer(
        "127.0.0.1",
        0,
        metrics=reported.metrics,
        livez=lambda: reported.verdicts["livez"],
        readyz=lambda: reported.verdicts["readyz"],
        startupz=lambda: reported.verdicts["startupz"],
        status=reported.status,
        resume=reported.resume,
    )
    port = await server.start()
    assert port == server.port != 0
    yield f"http://127.0.0.1:{port}"
    await server.stop()
    await server.stop()


async def _get(url: str, method: str = "GET") -> tuple[int, str, str]:
    async with aiohttp.ClientSession() as session, session.request(method, url) as answer:
        return answer.status, answer.content_type, await answer.text()


@pytest.mark.parametrize("probe", ["livez", "readyz", "startupz"])
async def test_a_probe_answers_its_own_verdict(url: str, reported: Reported, probe: str) -> None:
    assert (await _get(f"{url}/{probe}"))[0] == 200
    reported.verdicts[probe] = Verdict(False, "halted: CDCD-SLOT-LOST")
    status, _, text = await _get(f"{url}/{probe}")
    assert (status, text) == (503, "halted: CDCD-SLOT-LOST\n")


async def test_metrics_and_status(url: str, reported: Reported) -> None:
    assert await _get(f"{url}/metrics") == (200, "text/plain", "cdcd_up 1\n")
    reported.page = {
        "state": "streaming",
        "source": {"dsn": "postgresql://u:canary@h/d", "lsn": 7, "slot": None},
    }
    status, kind, text = await _get(f"{url}/status")
    assert (status, kind) == (200, "application/json")
    assert json.loads(text)["source"] == {"dsn": "postgresql://u:***@h/d", "lsn": 7, "slot": None}


async def test_a_failing_page_is_a_500_that_says_nothing(url: str, reported: Reported) -> None:
    reported.page = {}
    status, _, text = await _get(f"{url}/status")
    assert status == 500
    assert "canary" not in text
    assert (await _get(f"{url}/livez"))[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "HEAD"])
async def test_nothing_but_get_is_answered(url: str, method: str) -> None:
    assert (await _get(f"{url}/status", method))[0] == 405


async def test_an_unknown_page_is_not_found(url: str) -> None:
    assert (await _get(f"{url}/etc/passwd"))[0] == 404


async def test_an_address_that_is_taken_is_an_error(url: str) -> None:
    taken = int(url.rsplit(":", 1)[1])
    fine = lambda: Verdict(True, "")  # noqa: E731
    other = AdminServer(
        "127.0.0.1", taken, metrics=lambda: b"", livez=fine, readyz=fine, startupz=fine, status=dict
    )
    with pytest.raises(OSError, match=str(taken)):
        await other.start()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({RESUME_HEADER: "1"}, 200),
        ({RESUME_HEADER: "1", "Host": "localhost:1"}, 200),
        ({RESUME_HEADER: "1", "Host": "cdcd"}, 403),
        ({}, 403),  # an HTML form cannot send the header
        ({RESUME_HEADER: "1", "Host": "elsewhere.example"}, 421),  # DNS rebinding
    ],
)
async def test_only_a_command_on_this_machine_tells_it_to_look_again(
    url: str, reported: Reported, headers: dict[str, str], status: int
) -> None:
    reported.page = {"name": "shop", "state": "halted", "reason": "CDCD-SLOT-LOST", "rows_written": 7}
    async with aiohttp.ClientSession() as session, session.post(f"{url}/resume", headers=headers) as answer:
        assert answer.status == status
        if status == 200:
            found = {"name": "shop", "state": "halted", "reason": "CDCD-SLOT-LOST"}
            assert await answer.json() == found
    assert reported.resumed == (status == 200)
    assert (await _get(f"{url}/resume"))[0] == 405


@pytest.mark.parametrize(
    ("host", "peer", "status"),
    [
        ("127.0.0.3", "127.0.0.3", 200),
        ("127.0.0.3", "127.0.0.6", 403),
        ("127.0.0.1", "127.0.0.6", 403),
        ("0.0.0.0", "127.0.0.1", 200),
        ("0.0.0.0", "127.0.0.3", 403),  # any address of the machine may be that of a proxy
    ],
)
async def test_a_command_comes_from_loopback_or_the_address_of_the_port(
    host: str, peer: str, status: int
) -> None:
    fine = lambda: Verdict(True, "")  # noqa: E731
    resumed = asyncio.Event()
    admin = AdminServer(
        host, 0, metrics=lambda: b"", livez=fine, readyz=fine, startupz=fine, status=dict, resume=resumed.set
    )
    port = await admin.start()
    try:
        reached = "127.0.0.3" if peer == "127.0.0.3" else "127.0.0.1" if host == "0.0.0.0" else host
        connector = aiohttp.TCPConnector(local_addr=(peer, 0))
        headers = {RESUME_HEADER: "1", "Host": "localhost"}
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.post(f"http://{reached}:{port}/resume", headers=headers) as answer,
        ):
            assert answer.status == status
    finally:
        await admin.stop()
    assert resumed.is_set() == (status == 200)


@pytest.mark.parametrize(("named", "status"), [("shop", 200), ("shop.eu", 409)])
async def test_a_resume_for_another_daemon_is_refused(
    url: str, reported: Reported, named: str, status: int
) -> None:
    """A resume may accept a loss, and another daemon may have the port of the intended one."""
    reported.page = {"name": "shop", "state": "halted"}
    headers = {RESUME_HEADER: "1"}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{url}/resume", params={"name": named}, headers=headers) as answer,
    ):
        assert answer.status == status
    assert reported.resumed == (status == 200)


async def test_a_request_without_a_host_asks_no_name_server(
    url: str, reported: Reported, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F14: a name server that does not answer would delay the status updates to PostgreSQL."""
    monkeypatch.setattr(socket, "getfqdn", lambda: pytest.fail("asked"))
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]))
    writer.write(f"POST /resume HTTP/1.0\r\n{RESUME_HEADER}: 1\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.0 403")
    assert not reported.resumed
