"""How a start would begin: the daemon's own verdict, asked from beside it.

Comes in: a configuration.  Goes out: the verdict of `cdcd.runtime.recovery`, or a finding that says why not.
Invariant: nobody is fenced and nothing is held, so a daemon that runs is not disturbed; its own state is no
complaint, because slot, stored position and server are read in the order in which they move: what a daemon
confirms is stored first (F3), and what it stores the server has written first.
Must not: create, drop or advance anything.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from cdcd.cli.published import asking_settings
from cdcd.config import Config
from cdcd.errors import (
    CdcdError,
    ProgressUnreadable,
    SinkAuthorization,
    SlotAhead,
    SlotLost,
    SlotMissing,
    SlotUnusable,
    SourceMismatch,
    TopicMissing,
)
from cdcd.findings import Finding
from cdcd.lsn import format_lsn
from cdcd.model import Progress
from cdcd.runtime.beginning import timelines_of, wanted_of
from cdcd.runtime.recovery import Resume, Snapshot, verdict
from cdcd.sink.reader import read_last_progress
from cdcd.source.connection import connect_sql
from cdcd.source.identity import identify
from cdcd.source.slot import read_slot

_OF_THE_SLOT = (SlotAhead, SlotLost, SlotMissing, SlotUnusable)
_OF_THE_POSITION = (ProgressUnreadable, SinkAuthorization, SourceMismatch)


@dataclass(frozen=True, slots=True)
class Beginning:
    """What a start would do, None where that is not known or nothing; and the finding that says so."""

    verdict: Resume | Snapshot | None
    finding: Finding


def beginning(config: Config) -> Beginning:
    """Return how a start would begin. Does not raise cdcd's errors."""
    try:
        try:
            begin = ask(config, create_slot=config.source.slot.create)
        except (*_OF_THE_SLOT, *_OF_THE_POSITION):
            # A daemon at its first start makes slot and position one after the other: once more, after it.
            begin = ask(config, create_slot=config.source.slot.create)
    except CdcdError as error:
        return Beginning(None, _refused(error))
    return Beginning(begin, Finding("ok", "start", _told(begin, config)))


def ask(config: Config, *, create_slot: bool) -> Resume | Snapshot:
    """Return the verdict of a start now. Raises what the start would, and what asking met."""
    source = config.source_settings()
    connection = connect_sql(source)
    try:
        slot = read_slot(connection, source.slot)
        stored = stored_position(config)
        server = identify(connection)
    finally:
        connection.close()
    if slot is not None:
        slot = replace(slot, active=False)  # a daemon that runs holds it, which is no complaint
    wanted = replace(wanted_of(config), create_slot=create_slot)
    return verdict(stored, slot, server, wanted, timelines_of(source, server).left)


def stored_position(config: Config) -> Progress | None:
    """Return the slot's last durable progress, read without fencing anybody. Raises Sink errors."""
    try:
        return read_last_progress(asking_settings(config))
    except TopicMissing:
        return None


def _refused(error: CdcdError) -> Finding:
    message = f"{error.code}: {error.message}"
    mend = error.advice or "mend this first, then check again"
    if isinstance(error, _OF_THE_SLOT):
        return Finding("fail", "slot", message, mend)
    if isinstance(error, _OF_THE_POSITION):
        return Finding("fail", "stored position", message, mend)
    return unknown(message, mend)


def unknown(why: str, mend: str = "mend this first, then check again") -> Finding:
    """Return the finding that where a start would begin could not be found out."""
    return Finding("warn", "start", f"where it would begin is not known: {why}", mend)


def _told(begin: Resume | Snapshot, config: Config) -> str:
    if isinstance(begin, Resume):
        return f"goes on from {format_lsn(begin.start_lsn)}"
    if config.snapshot.mode == "never":
        return "makes the slot and begins there, without a snapshot"
    again = " anew: one was cut off" if begin.begun_topics or begin.drop_slot else ""
    return f"makes the slot and takes the snapshot{again}"
