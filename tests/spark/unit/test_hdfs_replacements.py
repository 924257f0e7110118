"""Writers of one file of HDFS, one request of one of them at a time, in any order, with crashes and lost answers.

The name node is simulated: each of its requests is atomic, and a listing has one entry at a time.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from cdcd.errors import StorageConflict
from cdcd.spark.storage import hdfs_client
from cdcd.spark.storage.hdfs import HdfsStorage
from tests.support.nightly import nightly

PATH = "_cdcd/latest.json"
FULL = f"/lake/{PATH}"


class Crash(BaseException):
    """The end of a writer's process: it makes no further request."""


@dataclass
class Turns:
    """Lets one thread run at a time, until its next request; `chosen` chooses which one."""

    chosen: random.Random
    waiting: dict[str, threading.Event] = field(default_factory=dict)
    arrived: threading.Condition = field(default_factory=threading.Condition)
    running: int = 0

    def wait(self) -> None:
        """Wait for the turn of this thread."""
        mine = threading.Event()
        with self.arrived:
            self.waiting[threading.current_thread().name] = mine
            self.running -= 1
            self.arrived.notify()
        assert mine.wait(60)

    def run(self, threads: list[threading.Thread]) -> None:
        """Run the threads to their ends."""
        self.running = len(threads)
        for one in threads:
            one.start()
        while True:
            with self.arrived:
                assert self.arrived.wait_for(lambda: self.running == 0, 60)
                if not self.waiting:
                    break
                turn = self.waiting.pop(self.chosen.choice(sorted(self.waiting)))
                self.running += 1
            turn.set()
        for one in threads:
            one.join()

    def end(self) -> None:
        with self.arrived:
            self.running -= 1
            self.arrived.notify()


class NameNode:
    """Files by their paths; a file that is still written has no content. `renames`: the contents, in order."""

    def __init__(self, turn: Callable[[str], None]) -> None:
        self.files: dict[str, bytes | None] = {}
        self.renames: list[bytes | None] = []
        self._turn = turn

    def create(self, path: str) -> Any:
        self._turn("create")
        assert path not in self.files
        self.files[path] = None
        written: list[bytes] = []

        def close() -> None:
            self._turn("close")
            self._must_have(path)
            self.files[path] = b"".join(written)

        return SimpleNamespace(write=written.append, close=close)

    def rename(self, old: str, new: str, overwrite: bool) -> None:
        self._turn("rename")
        self._must_have(old)
        if new in self.files and not overwrite:
            raise FileExistsError
        self.files[new] = self.files.pop(old)
        self.renames.append(self.files[new])
        self._turn("renamed")

    def delete(self, path: str, recursive: bool) -> bool:
        assert not recursive
        self._turn("delete")
        return self.files.pop(path, None) is not None

    def read(self, path: str) -> Any:
        self._turn("read")
        self._must_have(path)
        data = self.files[path]
        assert data is not None, "only complete files have this path"

        class File:
            def __len__(self) -> int:
                return len(data)

            def read_range(self, start: int, length: int) -> bytes:
                return data[start : start + length]

        return File()

    def get_file_info(self, path: str) -> Any:
        self._turn("get")
        return SimpleNamespace(isdir=True)

    def list_status(self, folder: str, recursive: bool) -> Iterator[Any]:
        assert not recursive
        last = ""
        while True:
            self._turn("list")
            names = sorted(one for one in self.files if one > last and one.startswith(f"{folder}/"))
            if not names:
                return
            last = names[0]
            yield SimpleNamespace(path=last, isdir=False)

    def _must_have(self, path: str) -> None:
        if path not in self.files:
            raise FileNotFoundError


def storage_of(name_node: NameNode) -> HdfsStorage:
    storage = HdfsStorage("hdfs://name-node:8020/lake", ())
    storage._client = SimpleNamespace(call=lambda request, _=0: request(name_node))  # type: ignore[assignment]
    return storage


@dataclass
class Played:
    """What became of writers that replaced one version at once."""

    won: list[int] = field(default_factory=list)
    failed: dict[int, type[BaseException]] = field(default_factory=dict)
    loses_answers: bool = False
    name_node: NameNode = field(default_factory=lambda: NameNode(lambda _: None))


def played(seed: int) -> Played:
    """Have two to four writers replace one version at once; some crash, and some answers to renames are lost."""
    chosen = random.Random(seed)
    writers = chosen.randrange(2, 5)
    turns = Turns(chosen)
    ends_in = {
        f"writer-{one}": chosen.randrange(30) if chosen.random() < 0.3 else -1 for one in range(writers)
    }
    outcome = Played(loses_answers=chosen.random() < 0.3)

    def turn(request: str) -> None:
        name = threading.current_thread().name
        if name not in ends_in:
            return
        turns.wait()
        if ends_in[name] == 0:
            raise Crash
        ends_in[name] -= 1
        if request == "renamed" and outcome.loses_answers and chosen.random() < 0.5:
            raise OSError("the answer is lost")

    outcome.name_node = NameNode(turn)
    version = storage_of(outcome.name_node).put_new(PATH, b"first")

    def write(number: int) -> None:
        try:
            storage_of(outcome.name_node).replace(PATH, b"%d" % number, version)
            outcome.won.append(number)
        except BaseException as error:  # noqa: BLE001
            outcome.failed[number] = type(error)
        finally:
            turns.end()

    turns.run([threading.Thread(target=write, args=(n,), name=f"writer-{n}") for n in range(writers)])
    return outcome


@pytest.mark.parametrize(("first", "count"), [(0, 300), nightly(300, 3000)])
def test_of_replacements_of_one_version_one_takes_place(
    first: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hdfs_client, "time", SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: None))
    outcomes = set()
    for seed in range(first, first + count):
        outcome = played(seed)
        node, failed = outcome.name_node, {*outcome.failed.values()}
        replacements = node.renames[1:]
        assert len(replacements) <= 1, seed
        assert [b"%d" % one for one in outcome.won] in ([], replacements), seed
        assert failed <= {StorageConflict, Crash}, seed
        if Crash not in failed and not outcome.loses_answers:
            assert len(outcome.won) == 1, f"{seed}: one succeeds"
            assert [*node.files] == [FULL], f"{seed}: no candidate is left"
        storage = storage_of(node)
        found = storage.read_versioned(PATH)
        assert found is not None
        storage.replace(PATH, b"later", found.version)
        assert node.files == {FULL: b"later"}, f"{seed}: what a crash has left is deleted, and stops nobody"
        outcomes.add((len(outcome.won), Crash in failed, len(node.renames) - 2))
    assert outcomes >= {(1, False, 1), (1, True, 1), (0, True, 0), (0, False, 1)}, (
        "the seeds have all outcomes"
    )
