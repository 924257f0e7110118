"""The tests' folder in memory: used where there is room, removed after its run or after a killed one."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import memory_folder


@pytest.fixture(autouse=True)
def restored_temporary_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test may change the process's temporary folder."""
    monkeypatch.delenv("TMPDIR", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(memory_folder, "is_suitable", lambda _mount: True)
    yield
    monkeypatch.undo()


def test_child_processes_use_the_folder_too(tmp_path: Path) -> None:
    folder = memory_folder.use_memory({}, tmp_path)
    command = [sys.executable, "-c", "import tempfile; print(tempfile.gettempdir())"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == str(folder)


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_servers_of_another_account_can_pass_through_the_folder(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        folder = memory_folder.use_memory({}, tmp_path)
    finally:
        os.umask(before)
    assert folder is not None
    assert folder.stat().st_mode & 0o777 == 0o711


def test_a_folder_that_the_user_has_chosen_is_used(tmp_path: Path) -> None:
    assert memory_folder.use_memory({"TMPDIR": "/var/tmp"}, tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_without_room_the_temporary_folder_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(memory_folder, "_available_bytes", lambda: memory_folder.NEEDED_BYTES - 1)
    assert not memory_folder.is_suitable(tmp_path)
    assert not memory_folder.is_suitable(tmp_path / "no mount")


def test_the_folder_of_a_killed_run_is_removed_and_that_of_a_running_one_stays(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    mine = f"cdcd-tests-{os.geteuid()}-"
    for name in (f"{mine}{ended.pid}", f"{mine}{os.getpid()}", f"{mine}{os.getppid()}", f"{mine}x", "other"):
        (tmp_path / name).mkdir()
    memory_folder.remove_abandoned(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {f"{mine}{os.getppid()}", f"{mine}x", "other"}


@pytest.mark.parametrize(("exit_status", "stays"), [(0, False), (1, True)])
def test_the_folder_stays_after_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exit_status: int, stays: bool
) -> None:
    folder = memory_folder.use_memory({}, tmp_path)
    assert folder is not None
    monkeypatch.setattr(memory_folder, "use_memory", lambda: folder)
    plugin = memory_folder.MemoryFolder()
    plugin.pytest_sessionfinish(exit_status)
    plugin.release()
    assert (folder.exists(), "TMPDIR" in os.environ) == (stays, False)
