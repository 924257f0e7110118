"""The use of the local host by the commands that resolve a halt."""

from __future__ import annotations

import asyncio
import os
import pwd
from pathlib import Path

import pytest

from cdcd.cli import exclusive, resume
from cdcd.cli.admin_port import here
from cdcd.config import load_config
from cdcd.config.sample import sample_yaml
from cdcd.errors import ResumeRefused
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


@pytest.mark.parametrize(
    ("host", "is_meant"),
    [("127.0.0.1", True), ("0.0.0.0", True), ("127.0.0.3", True), ("127.0.0.1", False)],
)
async def test_the_daemon_on_this_machine_is_found_where_it_listens(
    tmp_path: Path, host: str, is_meant: bool
) -> None:
    reported = asyncio.Event()
    fine = lambda: Verdict(True, "")  # noqa: E731
    admin = AdminServer(
        host,
        0,
        metrics=lambda: b"",
        livez=fine,
        readyz=fine,
        startupz=fine,
        status=lambda: {"name": "shop" if is_meant else "other", "state": "halted"},
        resume=reported.set,
    )
    port = await admin.start()
    try:
        path = tmp_path / "cdcd.yaml"
        path.write_text(sample_yaml())
        config = load_config(
            path, {"CDCD_NAME": "shop", "CDCD_ADMIN__HOST": host, "CDCD_ADMIN__PORT": str(port)}
        )
        if is_meant:
            (answer,) = await asyncio.to_thread(resume.look_again, config)
            assert "halted" in answer
        else:
            with pytest.raises(ResumeRefused):
                await asyncio.to_thread(resume.look_again, config)
        assert reported.is_set() == is_meant
    finally:
        await admin.stop()
