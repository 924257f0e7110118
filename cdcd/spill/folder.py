"""A private folder of segment files, and a lock that says whose they are.

In: bytes to append.  Out: bytes to read; the files of daemons that have died are removed on opening.
Invariant: the folder is ours (owner, 0700) and files are made new (0600, O_EXCL, never through a link), all by
the folder's descriptor, so that nobody can put another in its place. A session's files bear a random token and
live while its lock file is locked: whoever gets the lock of a token knows that its owner is dead.
Must not: know what the bytes mean, fsync (after a crash they are of no use, F27), remove a name of another kind.
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
    errno.EIO: "look at the disk's health and at the kernel's log",
    errno.EROFS: "the file system has become read-only: look at the kernel's log, or choose another folder",
    errno.EACCES: "give the folder back to the daemon's user, with mode 0700",
    errno.EPERM: "give the folder back to the daemon's user, with mode 0700",
}
_NEW = os.O_CREAT | os.O_EXCL
_SAFE = os.O_NOFOLLOW | os.O_CLOEXEC
_READ_BUFFER_BYTES = 1 << 18


@dataclass(slots=True)
class Segment:
    """One file: its name in the folder and how many bytes of it count."""

    name: str
    size_bytes: int = 0


def failure(error: OSError, doing: str, *, is_open: bool = True) -> SpillError:
    """Translate: no room, and files that are gone, are errors of their own; no path of a row, no value.

    Before the folder `is_open`, what is not there is a wrong setting.
    """
    number = error.errno or 0
    cause, why = errno.errorcode.get(number, "unknown"), os.strerror(number)
    if number in _NO_ROOM:
        return SpillFull(f"no room for {doing}: {why}", cause=cause)
    if is_open and number in _TAKEN_AWAY:
        return SpillLost(f"{doing} failed: somebody has removed it", cause=cause)
    return SpillError(f"{doing} failed: {why}", hint=_HINTS.get(number), cause=cause)


def places(below: Path | None) -> tuple[Path, Path]:
    """Return the folder around, None being the system's for temporary files, and our own private one in it."""
    around = below or Path(tempfile.gettempdir())
    return around, around / f"cdcd-spill-{os.geteuid()}"


class Folder:
    """The files of one session. Every call may block on the disk; none is made from two threads at once."""

    def __init__(self, below: Path | None) -> None:
        """Open or make the private folder, lock a token, remove what dead daemons left: `removed` segments.

        `below` is the folder around it, None the system's for temporary files. Raises SpillError for a folder
        that is not ours alone or cannot be written.
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
        """Return a segment that the first `append` makes."""
        self._serial += 1
        return Segment(f"cdcd-{self._token}.{self._serial}.spill")

    def append(self, segment: Segment, data: bytes) -> None:
        """Put `data` behind the segment; what fails leaves it as it was. Raises SpillFull, SpillError.

        The file is open only meanwhile, so any number of transactions needs no descriptors.
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
                with contextlib.suppress(SpillError):  # the first error tells more
                    self.remove(segment)
            raise failure(error, "a segment of an open transaction") from error
        segment.size_bytes += len(data)

    def reader(self, segment: Segment) -> BinaryIO:
        """Return the segment's bytes from the beginning; the caller closes it."""
        try:
            return os.fdopen(
                os.open(segment.name, os.O_RDONLY | _SAFE, dir_fd=self._folder), "rb", _READ_BUFFER_BYTES
            )
        except OSError as error:
            raise failure(error, "reading a segment back") from error

    def remove(self, segment: Segment) -> None:
        """Remove the segment's file; one that is not there is removed."""
        try:
            self._unlink(segment.name)
        except OSError as error:
            raise failure(error, "removing a segment") from error

    def close(self) -> None:
        """Remove everything of this session."""
        try:
            with contextlib.suppress(FileNotFoundError):  # the folder is gone, and all in it
                self._remove_all(self._token)
        except OSError as error:
            raise failure(error, f"clearing {self.path}") from error
        finally:
            os.close(self._lock)
            os.close(self._folder)

    # --- whose files ---------------------------------------------------------------------------------------

    def _lock_new_token(self) -> tuple[str, int]:
        while True:
            token = secrets.token_hex(8)
            lock = os.open(f"cdcd-{token}.lock", os.O_RDWR | _NEW | _SAFE, 0o600, dir_fd=self._folder)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)  # another daemon took it for a dead one's, and removes it
                continue
            if os.fstat(lock).st_nlink:
                return token, lock
            os.close(lock)

    def _cleared(self) -> int:
        """Remove what dead daemons left; what fails leaves nothing of ours."""
        try:
            return self._remove_of_the_dead()
        except BaseException:
            with contextlib.suppress(OSError):  # the first error tells more
                self._remove_all(self._token)
            os.close(self._lock)
            raise

    def _remove_of_the_dead(self) -> int:
        """Remove what no living session owns; return the number of segments."""
        matches = [found for name in os.listdir(self._folder) if (found := _NAME.fullmatch(name))]
        return sum(self._remove_if_dead(token) for token in {found["token"] for found in matches})

    def _remove_if_dead(self, token: str) -> int:
        try:
            lock = os.open(f"cdcd-{token}.lock", os.O_RDWR | _SAFE, dir_fd=self._folder)
        except FileNotFoundError:
            return self._remove_all(token)  # a lock is made before and removed after its segments
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
    """Return a descriptor of our own folder."""
    for wanted in (below, path):
        with contextlib.suppress(FileExistsError):
            os.mkdir(wanted, 0o700)
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | _SAFE)
    found = os.fstat(folder)
    if not is_private(found):
        os.close(folder)
        raise SpillError(
            f"{path} is not a folder of this user alone",
            hint=f"chmod 0700 {path}, if it is this user's; or choose another buffer.spill_dir",
        )
    return folder


def is_private(found: os.stat_result) -> bool:
    """Whether this is a folder of this user alone."""
    mode = found.st_mode
    return stat.S_ISDIR(mode) and found.st_uid == os.geteuid() and not stat.S_IMODE(mode) & 0o077


def _cut(file: int, size_bytes: int, refused: OSError) -> None:
    """Cut off what a refused write has left. Raises OSError when it stays, unless the first error ends it anyway."""
    try:
        os.ftruncate(file, size_bytes)
    except OSError:
        if refused.errno in _NO_ROOM:  # which would be tried again, behind what is left
            raise


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
