"""A process that dies at one of its changes of a target: of files, or of the logs of Delta tables.

In: the number of a change, and whether it takes effect before the end.
Out: a storage that fails from there on, with all that the process asks for, in all its threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import Any

import pytest

from cdcd.spark.formats.delta_log import DeltaLog
from cdcd.spark.storage.uri import Storage, StoredFile, Version

OF_DELTA = ("create", "_add_columns", "commit", "restore", "remove_old_versions")
"""delta-rs has a storage of its own; Iceberg's metadata are files of the mirror's."""


class Died(BaseException):
    """The process has ended."""


class DyingStorage:
    """A storage whose process dies at its change number `at`, from 0 on: before it, or when it is done.

    Only the threads that ask for something notice it, as there is no other process here.
    """

    def __init__(self, inner: Storage, at: int | None = None, *, is_done: bool = False) -> None:
        self._inner, self._at, self._is_done = inner, at, is_done
        self._lock = threading.RLock()
        self.changes = 0
        self.is_dead = False

    def changing(self, change: Callable[[], Any]) -> Any:
        """Return what a change returns."""
        with self._lock:
            self.check()
            is_last = self.changes == self._at
            self.changes += 1
            self.is_dead = is_last
            if is_last and not self._is_done:
                raise Died
            done = change()  # with the lock: no other thread goes on after the end
            if is_last:
                raise Died
            return done

    def check(self) -> None:
        """Raise Died if the process has ended."""
        if self.is_dead:
            raise Died

    def __getattr__(self, name: str) -> Any:
        self.check()
        return getattr(self._inner, name)

    def put_new(self, path: str, data: bytes) -> Version:
        """See `Storage`."""
        return self.changing(lambda: self._inner.put_new(path, data))

    def replace(self, path: str, data: bytes, version: Version) -> Version:
        """See `Storage`."""
        return self.changing(lambda: self._inner.replace(path, data, version))

    def write(self, path: str, data: bytes | memoryview) -> None:
        """See `Storage`."""
        self.changing(lambda: self._inner.write(path, data))

    def delete(self, paths: Iterable[str]) -> None:
        """See `Storage`."""
        self.changing(lambda: self._inner.delete(paths))

    def read(self, path: str, **limits: int) -> bytes:
        """See `Storage`."""
        self.check()
        return self._inner.read(path, **limits)

    def read_versioned(self, path: str, **limits: int) -> StoredFile | None:
        """See `Storage`."""
        self.check()
        return self._inner.read_versioned(path, **limits)


def with_logs(monkeypatch: pytest.MonkeyPatch, storage: Callable[[], DyingStorage | None]) -> None:
    """Let the changes of Delta tables' logs be changes of `storage()`, too."""
    for name in OF_DELTA:
        monkeypatch.setattr(DeltaLog, name, _changing(getattr(DeltaLog, name), storage))


def _changing(method: Callable[..., Any], storage: Callable[[], DyingStorage | None]) -> Callable[..., Any]:
    @wraps(method)
    def changing(*arguments: Any, **options: Any) -> Any:
        dying = storage()
        change = lambda: method(*arguments, **options)  # noqa: E731
        return change() if dying is None else dying.changing(change)

    return changing


def moments(changes: int) -> Iterator[tuple[int, bool]]:
    """Yield each change, with both ends of it."""
    for at in range(changes):
        yield at, False
        yield at, True
