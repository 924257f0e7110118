"""The artefact cache: an artefact is complete, verified, and fetched once."""

from __future__ import annotations

import multiprocessing
import sys
from pathlib import Path

import pytest

from cdcd.demo.stack.artefacts import Artefact, Cache, user_cache_folder
from cdcd.demo.stack.packages import run
from cdcd.demo.stack.s3 import versitygw_artefact
from cdcd.errors import StackError


class Source:
    """An artefact that counts its fetches in a file, so that fetches by other processes count too."""

    def __init__(self, folder: Path, *, working: bool = True) -> None:
        self.log = folder / "fetches"
        self.log.touch()
        self.working = working
        self.artefact = Artefact("tool-1.0", self._fill, self._probe)

    @property
    def fetches(self) -> int:
        return len(self.log.read_text())

    def _fill(self, folder: Path) -> None:
        with self.log.open("a") as log:
            log.write("x")
        (folder / "bin").mkdir()
        (folder / "bin" / "tool").write_bytes(b"program")
        (folder / "bin" / "alias").symlink_to("tool")

    def _probe(self, folder: Path) -> None:
        assert (folder / "bin" / "tool").exists()
        if not self.working:
            raise StackError("the tool does not run")


def test_an_artefact_is_fetched_once(tmp_path: Path) -> None:
    source = Source(tmp_path)
    first = Cache(tmp_path / "cache").get(source.artefact)
    second = Cache(tmp_path / "cache").get(source.artefact)
    assert first == second
    assert (first / "bin" / "alias").read_bytes() == b"program"
    assert source.fetches == 1


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "bin" / "tool").write_bytes(b"prograM"),
        lambda folder: (folder / "bin" / "tool").unlink(),
        lambda folder: (folder / "bin" / "alias").unlink(),
        lambda folder: (folder / "extra").write_bytes(b""),
        lambda folder: (folder.parent / f"{folder.name}.manifest").write_text("{"),
        lambda folder: (folder.parent / f"{folder.name}.manifest").unlink(),
    ],
    ids=["changed", "missing", "link missing", "added", "manifest broken", "manifest missing"],
)
def test_a_damaged_artefact_is_fetched_again(tmp_path: Path, damage: object) -> None:
    source = Source(tmp_path)
    folder = Cache(tmp_path / "cache").get(source.artefact)
    damage(folder)
    assert (Cache(tmp_path / "cache").get(source.artefact) / "bin" / "tool").read_bytes() == b"program"
    assert source.fetches == 2
    Cache(tmp_path / "cache").get(source.artefact)
    assert source.fetches == 2


def test_an_artefact_that_does_not_run_is_removed(tmp_path: Path) -> None:
    source = Source(tmp_path, working=False)
    with pytest.raises(StackError, match="does not run"):
        Cache(tmp_path / "cache").get(source.artefact)
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["tool-1.0.lock"]
    source.working = True
    Cache(tmp_path / "cache").get(source.artefact)
    assert source.fetches == 2


def test_two_processes_fetch_once(tmp_path: Path) -> None:
    source = Source(tmp_path)
    context = multiprocessing.get_context("fork")
    readers = [
        context.Process(target=Cache(tmp_path / "cache").get, args=(source.artefact,)) for _ in range(4)
    ]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(60)
    assert [reader.exitcode for reader in readers] == [0, 0, 0, 0]
    assert source.fetches == 1


def test_the_cache_is_in_the_users_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert user_cache_folder() == tmp_path / "cdcd"
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert user_cache_folder() == tmp_path / ".cache" / "cdcd"


def test_without_go_the_s3_server_is_refused_with_a_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StackError, match=r"go is not on PATH.*install Go"):
        Cache(tmp_path / "cache").get(versitygw_artefact())


def test_a_tool_that_takes_too_long_is_an_error_of_the_stack() -> None:
    with pytest.raises(StackError, match=r"could not be built within 0.1 s.*start it again"):
        run(
            [sys.executable, "-c", "import signal; signal.pause()"],
            "the tool could not be built",
            timeout_s=0.1,
        )
