"""Exclusive access for commands that change a daemon's state: no daemon streams from the slot, and none starts.

Comes in: a configuration.  Goes out: the slot and its server, the start lock, the user's name.
Invariant: while the lock is held no daemon starts (F69). A command does not wait for a daemon: its error names it.
Must not: change anything.
"""

from __future__ import annotations

import contextlib
import getpass
import os
from collections.abc import Iterator

from cdcd.config import Config
from cdcd.errors import CdcdError, ResumeRefused, SlotActive
from cdcd.recovery.start_decision import check_primary
from cdcd.source.connection import connect_sql
from cdcd.source.identity import ServerIdentity, identify
from cdcd.source.slot import SlotState, read_slot
from cdcd.source.start_lock import StartLock


@contextlib.contextmanager
def exclusive(config: Config) -> Iterator[None]:
    """Prevent the start of any daemon meanwhile. Raises ResumeRefused if a daemon starts or runs.

    The start lock is needed because no session uses the slot while the tables are copied for the first time (F69).
    """
    lost: list[CdcdError] = []
    lock = StartLock(config.source_settings(), lost.append)
    try:
        lock.acquire()
    except SlotActive as error:
        raise ResumeRefused(
            "a daemon is starting on the slot now, or copies the tables",
            hint="stop the daemon, or wait some seconds until it has started, then run the command again",
            **error.context,
        ) from error
    try:
        look(config)
        if lost:
            raise lost[0]
        yield
    finally:
        lock.release()


def look(config: Config) -> tuple[SlotState | None, ServerIdentity]:
    """Return slot and server. Raises SourceStandby, and ResumeRefused while a session uses the slot."""
    source = config.source_settings()
    with contextlib.closing(connect_sql(source)) as connection:
        slot = read_slot(connection, source.slot)
        server = identify(connection)
    check_primary(server)
    if slot is not None and slot.active:
        raise ResumeRefused(
            "a daemon streams from the slot now",
            hint="stop the daemon first",
            slot=source.slot,
            active_pid=slot.active_pid,
        )
    return slot, server


def who() -> str:
    """Return the name of the user who runs the command, or the uid: in a container a user often has no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"
