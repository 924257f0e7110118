"""A private folder of segment files, and a lock that identifies their owner.

In: bytes to append.  Out: bytes to read; files of daemons that have died are removed on opening.
Invariant: the folder belongs to cdcd's user (0700), and files are created with O_EXCL (0600, never through a link).
All calls use the folder's descriptor, so that no other user can replace the folder. The names of a session's files
contain a random token, and its lock file stays locked while the session lives: a process that gets the lock of a
token knows that its owner is dead.
Must not: know what the bytes mean, fsync (the files are of no use after a crash, F27), remove files with other names.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from cdcd.errors import SpillError, SpillFull, SpillLost

_NAME = re.compile(r"cdcd-(?P<token>[0-9a-f]{16})\.(lock|[0-9]{1,18}\.spill)")
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_TAKEN_AWAY = {errno.ENOENT, errno.ESTALE}
_HINTS = {
    errno.EIO: "check the disk and the kernel log",
    errno.EROFS: "the file system has become read-only: check the kernel log, or use another buffer.spill_dir",
    errno.EACCES: "restore the daemon's user as the owner of the folder, with mode 0700",
    errno.EPERM: "restore the daemon's user as the owner of the folder, with mode 0700",
}
_NEW = os.O_CREAT | os.O_EXCL
_SAFE = os.O_NOFOLLOW | os.O_CLOEXEC
_READ_BUFFER_BYTES = 1 << 18


@dataclass(slots=True)
class Segment:
    """One file: its name in the folder, and the number of its valid bytes."""

    name: str
    size_bytes: int = 0


def failure(error: OSError, doing: str, *, is_open: bool = True) -> SpillError:
    """Return the SpillError for an operating system error: SpillFull without disk space, SpillLost for missing files.

    Before the folder `is_open`, a missing file means a wrong setting. The error contains no row values.
    """
    number = error.errno or 0
    cause, why = errno.errorcode.get(number, "unknown"), os.strerror(number)
    if number in _NO_ROOM:
        return SpillFull(f"no disk space for {doing}: {why}", cause=cause)
    if is_open and number in _TAKEN_AWAY:
        return SpillLost(f"{doing} failed: another process removed the file", cause=cause)
    return SpillError(f"{doing} failed: {why}", hint=_HINTS.get(number), cause=cause)


def places(below: Path | None) -> tuple[Path, Path]:
    """Return the parent folder (the system's folder for temporary files if None) and cdcd's private folder in it."""
    around = below or Path(tempfile.gettempdir())
    return around, around / f"cdcd-spill-{os.geteuid()}"


class Folder:
    """The files of one session. Every call may block on the disk. Not for two threads at once."""

    def __init__(self, below: Path | None) -> None:
        """Open or create the private folder, lock a token, and remove the files of dead daemons.

        `removed` is the number of segments removed. `below` is the parent folder, None the system's folder for
        temporary files. Raises SpillError for a folder that is not private or not writable.
        """
        self._serial = 0
        self.path = Path("cdcd-spill")
        try:
            below, self.path = places(below)
            self._folder = _open_private(below, self.path)
            try:
                self._token, self._lock = self._lock_new_token()
                self.removed = self._cleared()
            except BaseException:
                os.close(self._folder)
                raise
        except OSError as error:
            raise failure(error, f"opening {self.path}", is_open=False) from error

    def new_segment(self) -> Segment:
        """Return a segment whose file the first `append` creates."""
        self._serial += 1
        return Segment(f"cdcd-{self._token}.{self._serial}.spill")

    def append(self, segment: Segment, data: bytes) -> None:
        """Append `data` to the segment; after a failure the segment is unchanged. Raises SpillFull, SpillError.

        The file is open only during the call, so that many transactions do not need many descriptors.
        """
        flags = os.O_WRONLY | os.O_APPEND | _SAFE | (0 if segment.size_bytes else _NEW)
        try:
            file = os.open(segment.name, flags, 0o600, dir_fd=self._folder)
            try:
                _write_all(file, data)
            except OSError as error:
                _cut(file, segment.size_bytes, error)
                raise
            finally:
                os.close(file)
        except OSError as error:
            if not segment.size_bytes:
                with contextlib.suppress(SpillError):  # the first error is the cause
                    self.remove(segment)
            raise failure(error, "writing a segment of an open transaction") from error
        segment.size_bytes += len(data)

    def reader(self, segment: Segment) -> BinaryIO:
        """Return a file that reads the segment from the beginning; the caller closes it. Raises SpillError."""
        try:
            return os.fdopen(
                os.open(segment.name, os.O_RDONLY | _SAFE, dir_fd=self._folder), "rb", _READ_BUFFER_BYTES
            )
        except OSError as error:
            raise failure(error, "reading a segment back") from error

    def remove(self, segment: Segment) -> None:
        """Remove the segment's file; a missing file is no error. Raises SpillError."""
        try:
            self._unlink(segment.name)
        except OSError as error:
            raise failure(error, "removing a segment") from error

    def close(self) -> None:
        """Remove all files of this session. Raises SpillError."""
        try:
            with contextlib.suppress(FileNotFoundError):  # the folder was removed with all its files
                self._remove_all(self._token)
        except OSError as error:
            raise failure(error, f"clearing {self.path}") from error
        finally:
            os.close(self._lock)
            os.close(self._folder)

    # --- owners of files -----------------------------------------------------------------------------------

    def _lock_new_token(self) -> tuple[str, int]:
        while True:
            token = secrets.token_hex(8)
            lock = os.open(f"cdcd-{token}.lock", os.O_RDWR | _NEW | _SAFE, 0o600, dir_fd=self._folder)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)  # another daemon considers its owner dead, and removes the file
                continue
            if os.fstat(lock).st_nlink:
                return token, lock
            os.close(lock)

    def _cleared(self) -> int:
        """Remove the files of dead daemons; after a failure also the files of this session."""
        try:
            return self._remove_of_the_dead()
        except BaseException:
            with contextlib.suppress(OSError):  # the first error is the cause
                self._remove_all(self._token)
            os.close(self._lock)
            raise

    def _remove_of_the_dead(self) -> int:
        """Remove the files that no living session owns; return the number of segments removed."""
        matches = [found for name in os.listdir(self._folder) if (found := _NAME.fullmatch(name))]
        return sum(self._remove_if_dead(token) for token in {found["token"] for found in matches})

    def _remove_if_dead(self, token: str) -> int:
        try:
            lock = os.open(f"cdcd-{token}.lock", os.O_RDWR | _SAFE, dir_fd=self._folder)
        except FileNotFoundError:
            return self._remove_all(token)  # a lock file outlives its segments: it is the last one removed
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return self._remove_all(token)
        except BlockingIOError:
            return 0
        finally:
            os.close(lock)

    def _remove_all(self, token: str) -> int:
        names = [name for name in os.listdir(self._folder) if _is_of(name, token)]
        for name in sorted(names, key=lambda name: name.endswith(".lock")):
            self._unlink(name)
        return sum(name.endswith(".spill") for name in names)

    def _unlink(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._folder)


def _is_of(name: str, token: str) -> bool:
    found = _NAME.fullmatch(name)
    return found is not None and found["token"] == token


def _open_private(below: Path, path: Path) -> int:
    """Return a descriptor of the private folder, which is created if missing."""
    for wanted in (below, path):
        with contextlib.suppress(FileExistsError):
            os.mkdir(wanted, 0o700)
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | _SAFE)
    found = os.fstat(folder)
    if not is_private(found):
        os.close(folder)
        raise SpillError(
            f"{path} is not a private folder of this user",
            hint=f"run `chmod 0700 {path}` if it belongs to this user; or use another buffer.spill_dir",
        )
    return folder


def is_private(found: os.stat_result) -> bool:
    """Return whether this is a folder that belongs to this user, and that only this user can access."""
    mode = found.st_mode
    return stat.S_ISDIR(mode) and found.st_uid == os.geteuid() and not stat.S_IMODE(mode) & 0o077


def _cut(file: int, size_bytes: int, refused: OSError) -> None:
    """Truncate the file to its size before a failed write. Raises OSError if that fails and a retry would follow."""
    try:
        os.ftruncate(file, size_bytes)
    except OSError:
        if refused.errno in _NO_ROOM:  # the write would be retried, after the remains of the failed one
            raise


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
