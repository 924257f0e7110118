"""Check whether open transactions can be written to disk on this machine.

In: settings.  Out: one finding.
Must not: create or change anything.
"""

from __future__ import annotations

import os
import shutil

from cdcd.errors import SpillError
from cdcd.findings import Finding
from cdcd.spill.folder import is_private, places
from cdcd.spill.settings import SpillSettings

_SUBJECT = "buffer.spill_dir"
_GIB = 1 << 30
_ANOTHER = "set buffer.spill_dir to another folder, and restart cdcd"


def check_folder(settings: SpillSettings) -> Finding:
    """Return the result that a session would get when it opens its folder. Does not raise."""
    around, own = places(settings.below)
    base = around if around.exists() else around.parent  # a session creates one level
    try:
        if not os.access(base, os.W_OK | os.X_OK):
            message = f"{base} is not a folder that this user can write to"
            return _refused(message, f"create the folder, writable for uid {os.geteuid()}; or {_ANOTHER}")
        if own.is_symlink() or (own.exists() and not is_private(own.lstat())):
            message = f"{own} is not a private folder of this user"
            return _refused(message, f"run `chmod 0700 {own}` if it belongs to this user; or {_ANOTHER}")
        free_bytes = shutil.disk_usage(base).free
    except OSError as error:
        return _refused(f"{around}: {error.strerror}", _ANOTHER)
    room = (
        f"{around} has {free_bytes / _GIB:.1f} GiB free, buffer.spill is {settings.disk_bytes / _GIB:.1f} GiB"
    )
    if free_bytes < settings.disk_bytes:
        return Finding("warn", _SUBJECT, room, "lower buffer.spill, or use a larger disk")
    return Finding("ok", _SUBJECT, room)


def _refused(message: str, hint: str) -> Finding:
    return Finding("fail", _SUBJECT, message, hint, SpillError(message, hint=hint))
