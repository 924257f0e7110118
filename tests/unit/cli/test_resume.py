"""The use of the local host by the commands that resolve a halt."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import os
import pwd
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from cdcd.cli import exclusive, resume, snapshot
from cdcd.cli.admin_port import here
from cdcd.cli.wait import wait_durable
from cdcd.config import Config, load_config
from cdcd.config.sample import sample_yaml
from cdcd.errors import CdcdError, NotDurableYet, ResumeRefused, SnapshotRefused
from cdcd.ops.admin import AdminServer
from cdcd.ops.health import Verdict


@pytest.mark.parametrize("error", [KeyError, OSError])  # before Python 3.13, and from 3.13 on
def test_who_decides_has_a_name_also_where_the_user_is_a_number(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    """A container's user is often not in the passwd file, as in cdcd's own image."""

    def nobody(uid: int) -> object:
        raise error

    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    assert exclusive.who() == f"uid {os.getuid()}"


def test_a_daemon_that_listens_on_every_address_is_queried_on_loopback() -> None:
    """A socket that listens on :: need not listen on 127.0.0.1."""
    assert [here(host) for host in ("::", "::1", "0.0.0.0")] == ["::1", "::1", "127.0.0.1"]


def own_address() -> str:
    """Return an address of this machine that is not a loopback address, if it has one. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as unsent:
        try:
            unsent.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.3"
        return str(unsent.getsockname()[0])


@contextlib.asynccontextmanager
async def daemon(host: str, resumed: Callable[[], None], name: str = "shop") -> AsyncIterator[int]:
    """Serve the admin port of a halted daemon, on a free port."""
    fine = lambda: Verdict(True, "")  # noqa: E731
    admin = AdminServer(
        host,
        0,
        metrics=lambda: b"",
        livez=fine,
        readyz=fine,
        startupz=fine,
        status=lambda: {"name": name, "state": "halted"},
        resume=resumed,
    )
    try:
        yield await admin.start()
    finally:
        await admin.stop()


def config_of(folder: Path, host: str, port: int) -> Config:
    path = folder / "cdcd.yaml"
    path.write_text(sample_yaml())
    return load_config(path, {"CDCD_NAME": "shop", "CDCD_ADMIN__HOST": host, "CDCD_ADMIN__PORT": str(port)})


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("127.0.0.1", "shop"),
        ("0.0.0.0", "shop"),
        ("127.0.0.3", "shop"),
        (own_address(), "shop"),
        ("127.0.0.1", "other"),
    ],
)
async def test_the_daemon_on_this_machine_is_found_where_it_listens(
    tmp_path: Path, host: str, name: str
) -> None:
    resumed = asyncio.Event()
    is_meant = name == "shop"
    async with daemon(host, resumed.set, name) as port:
        config = config_of(tmp_path, host, port)
        if is_meant:
            (answer,) = await asyncio.to_thread(resume.look_again, config)
            assert "halted" in answer
        else:
            with pytest.raises(ResumeRefused):
                await asyncio.to_thread(resume.look_again, config)
        assert resumed.is_set() == is_meant


async def test_a_refused_request_is_not_reported_as_a_daemon_that_does_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resume, "RESUME_HEADER", "X-Other")  # as from another machine
    resumed = asyncio.Event()
    async with daemon("127.0.0.1", resumed.set) as port:
        config = config_of(tmp_path, "127.0.0.1", port)
        with pytest.raises(ResumeRefused, match="only from its own machine") as refused:
            await asyncio.to_thread(resume.look_again, config)
        reported = await asyncio.to_thread(resume._reported, config)
    assert "start the daemon" not in str(refused.value)
    assert reported.endswith("if the daemon runs, send it SIGHUP to continue, otherwise start it")
    assert not resumed.is_set()


def test_a_port_that_no_command_can_know_is_named(tmp_path: Path) -> None:
    config = config_of(tmp_path, "127.0.0.1", 0)
    with pytest.raises(ResumeRefused, match=r"admin\.port is 0.*set admin\.port to a fixed port"):
        resume.look_again(config)
    assert resume._reported(config).startswith("admin.port is 0")
    with pytest.raises(SnapshotRefused, match=r"admin\.port is 0"):
        snapshot.execute(config, "pause", [])
    with pytest.raises(NotDurableYet, match=r"admin\.port is 0"):
        wait_durable(config, 1, 60.0)


@contextlib.contextmanager
def other_program() -> Iterator[int]:
    """Serve a program that is not cdcd, and refuses each request."""

    class Refusal(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(403)

        do_POST = do_GET  # noqa: N815 - the names that the library calls

        def log_message(self, *_: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refusal) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield server.server_address[1]
        server.shutdown()
        serving.join()


def test_the_refusal_of_another_program_is_not_taken_for_that_of_cdcd(tmp_path: Path) -> None:
    with other_program() as port:
        config = config_of(tmp_path, "127.0.0.1", port)
        with pytest.raises(ResumeRefused, match="no cdcd answers"):
            resume.look_again(config)
        with pytest.raises(CdcdError, match="403"):  # at once: no later answer would be another one
            wait_durable(config, 1, 60.0)


def test_a_host_that_is_no_name_is_a_daemon_that_does_not_answer(tmp_path: Path) -> None:
    config = config_of(tmp_path, "127.0.0.1", 1)
    admin = config.admin.model_copy(update={"host": "a..b"})
    with pytest.raises(ResumeRefused, match="no cdcd answers"):
        resume.look_again(config.model_copy(update={"admin": admin}))
