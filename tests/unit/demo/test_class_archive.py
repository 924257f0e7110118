"""Archives of classes: built once for all processes, named by what a JVM compares, never the cause of a failure."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from cdcd.demo.stack.class_archive import ARCHIVES_OF_A_NAME, class_archive_flags
from cdcd.errors import StackError


class Server:
    """An artefact with one jar, a Java that it runs on, and a training that counts its runs in a file."""

    def __init__(self, folder: Path, *, has_base: bool = True, working: bool = True) -> None:
        self.artefact = folder / "cache" / "server-1.0"
        self.artefact.mkdir(parents=True)
        self.jar = self.artefact / "server.jar"
        self.jar.write_bytes(b"classes")
        self.home = folder / "jdk"
        for name in ("bin", "lib/server"):
            (self.home / name).mkdir(parents=True)
        (self.home / "release").write_text('JAVA_VERSION="17"')
        (self.home / "lib" / "modules").write_bytes(b"modules")
        if has_base:
            (self.home / "lib" / "server" / "classes.jsa").write_bytes(b"base")
        self.java = self.home / "bin" / "java"
        self.java.write_text('#!/bin/sh\necho "base" > "${2#-XX:SharedArchiveFile=}"\n')
        self.java.chmod(0o755)
        self.working = working
        self.runs = folder / "runs"
        self.runs.touch()
        self.trained_with: list[str] = []

    def flags(self) -> tuple[str, ...]:
        return class_archive_flags(self.artefact, str(self.java), self.train)

    def train(self, flags: Sequence[str]) -> None:
        with self.runs.open("a") as runs:
            runs.write("x")
        self.trained_with = list(flags)
        if not self.working:
            raise StackError("the server does not start")
        Path(flags[-1].removeprefix("-XX:ArchiveClassesAtExit=")).write_bytes(b"archive")

    @property
    def trainings(self) -> int:
        return len(self.runs.read_text())

    def files(self) -> list[str]:
        return sorted(path.name for path in self.artefact.parent.iterdir() if path.suffix != ".lock")


def archive_of(flags: Sequence[str]) -> Path:
    return Path(flags[0].removeprefix("-XX:SharedArchiveFile="))


def test_an_archive_is_built_once(tmp_path: Path) -> None:
    server = Server(tmp_path)
    flags = server.flags()
    assert archive_of(flags).read_bytes() == b"archive"
    assert server.flags() == flags
    assert server.trainings == 1
    assert server.files() == ["server-1.0", archive_of(flags).name], "nothing temporary is left"


@pytest.mark.parametrize(
    "change",
    [
        lambda server: server.jar.write_bytes(b"other classes"),
        lambda server: os.utime(server.jar, (1, 1)),
        lambda server: (server.artefact / "more.jar").write_bytes(b""),
        lambda server: (server.home / "release").write_text('JAVA_VERSION="21"'),
        lambda server: (server.home / "lib" / "modules").write_bytes(b"other modules"),
    ],
    ids=["jar changed", "jar fetched again", "jar added", "other Java", "other modules"],
)
def test_a_change_that_a_jvm_refuses_gets_another_archive(tmp_path: Path, change: object) -> None:
    server = Server(tmp_path)
    first = server.flags()
    change(server)
    assert server.flags() != first
    assert server.trainings == 2


def test_a_java_without_an_archive_of_its_own_classes_gets_one(tmp_path: Path) -> None:
    server = Server(tmp_path, has_base=False)
    archive = archive_of(server.flags())
    base = Path(server.trained_with[0].removeprefix("-XX:SharedArchiveFile="))
    assert base.read_text() == "base\n", "the archive extends it, under the name that it keeps"
    assert server.files() == sorted([base.name, "server-1.0", archive.name])


def test_a_server_whose_archive_cannot_be_built_starts_without(tmp_path: Path) -> None:
    server = Server(tmp_path, working=False)
    assert server.flags() == ()
    assert server.files() == ["server-1.0"]
    server.working = True
    assert server.flags() == (), "each start would be slower than one without an archive"
    assert server.trainings == 1


def test_a_jvm_that_writes_no_archive_is_no_failure(tmp_path: Path) -> None:
    server = Server(tmp_path)
    assert class_archive_flags(server.artefact, str(server.java), lambda _flags: None) == ()


def test_a_java_of_an_unknown_layout_runs_without_an_archive(tmp_path: Path) -> None:
    server = Server(tmp_path)
    (server.home / "release").unlink()
    assert server.flags() == ()
    assert server.trainings == 0


@pytest.mark.parametrize("is_built", [False, True])
def test_a_cache_that_is_read_only_is_used_as_it_is(tmp_path: Path, is_built: bool) -> None:
    server = Server(tmp_path)
    wanted = server.flags() if is_built else ()
    assert in_a_child(server, read_only=True) == [wanted]
    assert server.trainings == is_built


def test_processes_build_an_archive_once(tmp_path: Path) -> None:
    server = Server(tmp_path)
    assert len(set(in_a_child(server, processes=4))) == 1
    assert server.trainings == 1


def test_archives_of_former_versions_are_removed(tmp_path: Path) -> None:
    server = Server(tmp_path)
    used = []
    for second in range(ARCHIVES_OF_A_NAME + 2):
        server.jar.write_bytes(b"x" * second)
        used.append(archive_of(server.flags()))
        os.utime(used[-1], (second, second))
    assert [path.exists() for path in used] == [False, False, *[True] * ARCHIVES_OF_A_NAME]


def in_a_child(server: Server, *, processes: int = 1, read_only: bool = False) -> list[tuple[str, ...]]:
    """Return the flags that each of several processes gets, all at once."""
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()

    def answer() -> None:
        if read_only:
            server.artefact.parent.chmod(0o555)
            if os.geteuid() == 0:  # root may write everywhere
                for folder in (server.artefact, *server.artefact.parents):
                    folder.chmod(folder.stat().st_mode | 0o555) if folder.owner() == "root" else None
                os.seteuid(65534)
        answers.put(server.flags())

    children = [context.Process(target=answer) for _ in range(processes)]
    for child in children:
        child.start()
    found = [answers.get() for _ in children]
    for child in children:
        child.join(60)
    return found
