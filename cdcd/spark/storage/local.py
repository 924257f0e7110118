"""The files of a target in a local folder, with the guarantees of an object store.

In: a folder.  Out: a `Storage`.
Invariant: a file appears by a link or a rename of a complete and synchronised file; its folder is synchronised
afterwards. A replacement holds the lock of the replaced file (flock) from the comparison to the rename.
Must not: list what belongs to the file system itself (`lost+found`, hidden files).

The version of a file is the hash of its content: a time of modification is too coarse for two changes in a row. A
crash leaves `<name>.<32 hexadecimal digits>`, which `paths` lists.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import stat
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from cdcd.errors import StorageConflict, StorageError, StorageUnavailable
from cdcd.spark.storage.uri import (
    MAX_FILE_BYTES,
    MAX_FILES,
    StoredFile,
    Version,
    check_path,
    version_of_content,
)

LOCKED_WITHIN_S = 10.0
"""Maximum wait for the lock of a file, which another writer holds for one write."""
_LOOK_AGAIN_S = 0.01
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
_HINTS = {
    errno.ENOSPC: "free space on the disk of the target",
    errno.EDQUOT: "raise the quota of the target's disk",
    errno.EROFS: "mount the file system of the target for writing",
    errno.EACCES: "give the user of the process the right to read and write the target",
    errno.EPERM: "give the user of the process the right to read and write the target",
    errno.ENOENT: "correct the path; if a newer version of the mirror has replaced it, open the mirror again",
    errno.EEXIST: "the target has to be a folder: correct its path",
    errno.ENOTDIR: "the target has to be a folder: correct its path",
}
_HEALS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EINTR)
"""What an operator, or the server of the file system, corrects while the mirror runs."""
log = logging.getLogger("cdcd.spark.storage.uri")


class LocalStorage:
    """A `Storage` of a local folder, which is created with the first file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()

    @property
    def uri(self) -> str:
        """The path of the folder."""
        return str(self._folder)

    @property
    def folder(self) -> Path | None:
        """The folder."""
        return self._folder

    def client_options(self) -> Mapping[str, str]:
        """Return the options of another client of these files: none."""
        return {}

    def read(self, path: str, *, max_bytes: int = MAX_FILE_BYTES) -> bytes:
        """Return the content of a file. Raises StorageError also if there is none."""
        with self._errors("read", path), (self._folder / check_path(path)).open("rb") as file:
            return self._content(file.fileno(), path, max_bytes)

    def open(self, path: str) -> BinaryIO:
        """Return an open file."""
        with self._errors("read", path):
            return (self._folder / check_path(path)).open("rb")

    def read_versioned(self, path: str, *, max_bytes: int = MAX_FILE_BYTES) -> StoredFile | None:
        """Return content and version of a file, None if there is none."""
        with self._errors("read", path):
            try:
                with (self._folder / check_path(path)).open("rb") as file:
                    data = self._content(file.fileno(), path, max_bytes)
            except FileNotFoundError:
                return None
        return StoredFile(data, version_of_content(data))

    def exists(self, path: str) -> bool:
        """Return whether there is a file of this path."""
        with self._errors("read", path):
            try:
                return stat.S_ISREG((self._folder / check_path(path)).stat().st_mode)
            except (FileNotFoundError, NotADirectoryError):  # another error says nothing about the file
                return False

    def put_new(self, path: str, data: bytes) -> Version:
        """Create a file. Raises StorageConflict if there is one of this path."""
        with self._errors("create", path), self._complete(path, data) as (temporary, final):
            try:
                os.link(temporary, final)
            except FileExistsError:
                raise self._conflict("another writer has created the file", path) from None
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                self._claim(temporary, final, path)
            sync(final.parent)
        return version_of_content(data)

    def replace(self, path: str, data: bytes, version: Version) -> Version:
        """Replace this version of a file. Raises StorageConflict if the file has another version, or is gone."""
        with self._errors("replace", path), self._complete(path, data) as (temporary, final):
            with self._locked(final, path) as held:
                if version_of_content(self._content(held, path, MAX_FILE_BYTES)) != version:
                    raise self._conflict("another writer has replaced the file", path)
                temporary.replace(final)
            sync(final.parent)
        return version_of_content(data)

    def write(self, path: str, data: bytes | memoryview) -> None:
        """Create or replace a file, whatever its version is."""
        with self._errors("write", path), self._complete(path, data) as (temporary, final):
            temporary.replace(final)
            sync(final.parent)

    def paths(self, prefix: str = "") -> Iterator[str]:
        """Yield the paths of all files, or of those in the folder `prefix`, in no order."""
        start = self._folder / check_path(prefix) if prefix else self._folder
        listed = 0
        with self._errors("list", prefix):
            for folder, folders, files in os.walk(start, onerror=_raise_unless_gone):
                if Path(folder) == self._folder:
                    folders[:] = [one for one in folders if not _is_of_the_file_system(one)]
                    files = [one for one in files if not _is_of_the_file_system(one)]
                listed += len(files)
                if listed > MAX_FILES:
                    raise StorageError("the target has too many files", target=self.uri, limit=MAX_FILES)
                for one in files:
                    yield (Path(folder) / one).relative_to(self._folder).as_posix()

    def delete(self, paths: Iterable[str]) -> None:
        """Delete files; ignore those that do not exist."""
        for path in paths:
            with self._errors("delete", path):
                (self._folder / check_path(path)).unlink(missing_ok=True)

    @contextlib.contextmanager
    def _complete(self, path: str, data: bytes | memoryview) -> Iterator[tuple[Path, Path]]:
        """Yield a synchronised file with the data, removed afterwards, and the path that it shall have."""
        final = self._folder / check_path(path)
        _make_folder(final.parent)
        temporary = final.with_name(f"{final.name}.{uuid.uuid4().hex}")
        try:
            with temporary.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            yield temporary, final
        finally:
            temporary.unlink(missing_ok=True)

    def _claim(self, temporary: Path, final: Path, path: str) -> None:
        """Create the file where the file system has no links: the first to create the empty file writes it.

        A crash in between leaves an empty file, which is not a valid record: an error, never lost data.
        """
        try:
            os.close(os.open(final, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
        except FileExistsError:
            raise self._conflict("another writer has created the file", path) from None
        temporary.replace(final)

    @contextlib.contextmanager
    def _locked(self, final: Path, path: str) -> Iterator[int]:
        """Yield a descriptor of the file that has this path while its lock is held."""
        deadline_s = time.monotonic() + LOCKED_WITHIN_S
        while True:
            try:
                held = os.open(final, os.O_RDWR | os.O_CLOEXEC)
            except FileNotFoundError:
                raise self._conflict("another writer has removed the file", path) from None
            try:
                self._lock(held, deadline_s, path)
                if _is_the_file(held, final):
                    yield held
                    return
            finally:
                os.close(held)

    def _lock(self, held: int, deadline_s: float, path: str) -> None:
        while True:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > deadline_s:
                    raise self._conflict("another writer holds the lock of the file", path) from None
                time.sleep(_LOOK_AGAIN_S)
            except OSError as error:
                log.warning(
                    "the target's file system has no locks (%s): only one mirror may write there", error
                )
                return

    def _content(self, held: int, path: str, max_bytes: int) -> bytes:
        size = os.fstat(held).st_size
        if size > max_bytes:
            raise StorageError("a file is too large", target=self.uri, file=path, bytes=size, limit=max_bytes)
        with open(held, "rb", closefd=False) as file:
            return file.read(max_bytes)

    def _conflict(self, message: str, path: str) -> StorageConflict:
        return StorageConflict(message, target=self.uri, file=path)

    @contextlib.contextmanager
    def _errors(self, action: str, path: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            kind = StorageUnavailable if error.errno in _HEALS else StorageError
            raise kind(
                f"cannot {action} a file of the target ({os.strerror(error.errno or 0)})",
                hint=_HINTS.get(error.errno or 0, "check the target's disk"),
                target=self.uri,
                file=path,
            ) from error


def _is_of_the_file_system(name: str) -> bool:
    return name == "lost+found" or name.startswith(".")


def _is_the_file(held: int, final: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(held), final.stat())
    except FileNotFoundError:
        return False


def _raise_unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def _make_folder(folder: Path) -> None:
    """Create a folder and those above it, each on disk before a file in it is."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    sync(folder.parent)


def sync(path: Path) -> None:
    """Make a file, or the entries of a folder, durable."""
    held = os.open(path, os.O_RDONLY)
    try:
        os.fsync(held)
    finally:
        os.close(held)
