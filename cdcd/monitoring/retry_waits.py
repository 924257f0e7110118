"""The wait that a retried error means: a table.

In: an error that ended a session.  Out: the kind of the wait, None if the next session waits for nothing.
Must not: decide whether cdcd tries again.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from cdcd.config import Config
from cdcd.errors import (
    CdcdError,
    RegistryUnavailable,
    Retry,
    SinkError,
    SlotActive,
    SourceAuthentication,
    SourceStandby,
    SourceUnavailable,
    StandbyUnavailable,
)
from cdcd.waits import Blocker, WaitKind

_BY_ERROR: tuple[tuple[type[CdcdError], WaitKind], ...] = (
    (SlotActive, "slot_held"),
    (SourceStandby, "promotion"),
    (StandbyUnavailable, "snapshot_standby"),
    (SourceUnavailable, "source"),
    (SourceAuthentication, "source"),
    (SinkError, "kafka"),
    (RegistryUnavailable, "registry"),
)


def own_topics(config: Config) -> list[str]:
    """Return the topics that a session needs before it knows any table."""
    own = (config.progress_topic, config.schema_topic, config.dead_letter_topic)
    return [name for name in own if name is not None]


def room_below(folder: Path) -> tuple[Blocker, ...]:
    """Return the file system of a folder with its free space, () if that cannot be read."""
    try:
        usage = shutil.disk_usage(folder)
    except OSError:
        return ()
    return (Blocker(f"the file system of {folder}", f"{usage.free} of {usage.total} bytes are free"),)


def waits_for(error: CdcdError) -> WaitKind | None:
    """Return the kind of wait of the sessions after this error, None without one."""
    if error.retry not in (Retry.AUTO, Retry.LIMITED):
        return None
    return next((kind for cls, kind in _BY_ERROR if isinstance(error, cls)), None)
