"""Commands that change what a daemon relies on run alone: nobody streams from the slot, and nobody begins.

Comes in: a configuration.  Goes out: the slot and its server, the lock of the start, who decides.
Invariant: while the lock is held no daemon begins (F69); nobody is waited for: who is there is named.
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
    """Keep every daemon from beginning meanwhile; raises ResumeRefused where one has begun.

    Nobody holds the slot while the tables are copied for the first time: the lock of the start is held then (F69).
    """
    lost: list[CdcdError] = []
    lock = StartLock(config.source_settings(), lost.append)
    try:
        lock.acquire()
    except SlotActive as error:
        raise ResumeRefused(
            "a daemon is starting on the slot now, or copies the tables",
            hint="let it go on, or stop it first; a start is over in seconds, so try again",
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
    """Return slot and server. Raises SourceStandby, and ResumeRefused while somebody holds the slot."""
    source = config.source_settings()
    with contextlib.closing(connect_sql(source)) as connection:
        slot = read_slot(connection, source.slot)
        server = identify(connection)
    check_primary(server)
    if slot is not None and slot.active:
        raise ResumeRefused(
            "a daemon streams from the slot now",
            hint="stop it first, if this is wanted all the same",
            slot=source.slot,
            active_pid=slot.active_pid,
        )
    return slot, server


def who() -> str:
    """Return who decides; in a container the user often has a number alone."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"
