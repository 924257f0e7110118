"""The folder in memory that a run of the tests uses for all temporary files.

In: /dev/shm and the free memory.  Out: `TMPDIR`, which this process and all that it starts use.
Servers of tests create and delete some hundred files for each test (databases, topics). On ext4 the search for an
inode that was not deleted within the last five seconds took a quarter of the processors' time of the whole suite.
Invariant: a `TMPDIR` that the user has set is used. A run removes its folder at its end, and those of runs that have
been killed at its start.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

MOUNT = Path("/dev/shm")
NEEDED_BYTES = 10 << 30
"""Of the mount and of memory: the suite writes up to 6 GB, its servers use the rest."""


def _available_bytes() -> int:
    """Return the memory that the system could give to new processes; 0 where the system does not say."""
    try:
        text = Path("/proc/meminfo").read_text()
    except OSError:
        return 0
    found = re.search(r"^MemAvailable:\s+(\d+) kB", text, re.MULTILINE)
    return int(found[1]) << 10 if found else 0


def is_suitable(mount: Path) -> bool:
    """Return whether a run of the tests has room there, and may execute what it writes."""
    try:
        state = os.statvfs(mount)
    except OSError:
        return False
    is_free = state.f_bavail * state.f_frsize >= NEEDED_BYTES and _available_bytes() >= NEEDED_BYTES
    return is_free and not state.f_flag & os.ST_NOEXEC and os.access(mount, os.W_OK)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def remove_abandoned(mount: Path) -> None:
    """Remove this user's folders of runs whose process is gone."""
    prefix = f"cdcd-tests-{os.geteuid()}-"
    for folder in mount.glob(f"{prefix}*"):
        pid = folder.name.removeprefix(prefix)
        # In a container each run may have the same process id; this one has not made its folder yet.
        is_gone = pid.isdecimal() and (int(pid) == os.getpid() or not _is_running(int(pid)))
        with contextlib.suppress(FileNotFoundError):  # another run removes it, too
            if is_gone and folder.lstat().st_uid == os.geteuid():
                shutil.rmtree(folder, ignore_errors=True)


def use_memory(environment: Mapping[str, str] = os.environ, mount: Path = MOUNT) -> Path | None:
    """Make a folder in memory the one for temporary files; return it, or None if the temporary folder stays."""
    if "TMPDIR" in environment or not is_suitable(mount):
        return None
    remove_abandoned(mount)
    folder = mount / f"cdcd-tests-{os.geteuid()}-{os.getpid()}"
    folder.mkdir(mode=0o711)
    folder.chmod(0o711)  # servers of another account pass through it, whatever the umask is
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    return folder


class MemoryFolder:
    """A plugin of the process that controls the tests. After a failure the folder stays until the next run."""

    def __init__(self) -> None:
        self._folder = use_memory()
        self._has_failed = False

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Remember whether somebody will want to look at the files."""
        self._has_failed = exitstatus != 0

    def release(self) -> None:
        """Use the system's temporary folder again."""
        if self._folder is None:
            return
        del os.environ["TMPDIR"]
        tempfile.tempdir = None
        if not self._has_failed:
            shutil.rmtree(self._folder, ignore_errors=True)
