"""`cdcd drop-slot`: drop the slot when cdcd is no longer used, so that PostgreSQL retains no WAL for it (F24).

Comes in: a configuration.  Goes out: lines with the steps done, an audit line.
Invariant: the slot is dropped only while no daemon streams from it or starts on it, and only if name, plugin and
database are cdcd's. It is not dropped if the progress topics show that a daemon of another name reads it, or that
this configuration's daemon reads another server. The progress record is not deleted, so that a later start halts
because the slot is gone, and skips nothing silently.
Must not: change a topic or a publication.
"""

from __future__ import annotations

import contextlib

import structlog

from cdcd.cli.exclusive import exclusive, look, who
from cdcd.cli.published_topics import command_settings
from cdcd.config import Config
from cdcd.errors import ResumeRefused
from cdcd.lsn import format_lsn
from cdcd.sink.owners import ProgressKey
from cdcd.sink.topic_ownership import read_owners
from cdcd.source.connection import connect_sql
from cdcd.source.identity import ServerIdentity
from cdcd.source.slot import drop_own_slot

_LOG = structlog.stdlib.get_logger("cdcd.audit")


def _refuse_anothers(config: Config, server: ServerIdentity) -> None:
    """Raise ResumeRefused if a daemon of another name reads the slot, or our daemon reads another server (F80).

    Raises Sink errors.
    """
    settings = command_settings(config)
    _, owners = read_owners(settings)
    readers = [one for one in owners if one.reads(settings.slot, server.system_identifier, server.database)]
    own = ProgressKey(settings.progress_topic, settings.slot)
    ours = next((owner for owner in owners if owner.progress_key == own), None)
    if ours is not None and not ours.is_of(server.system_identifier, server.database):
        raise ResumeRefused(
            f"the stored position is that of {ours}, and source.dsn leads to another server or database: the slot of "
            "that name there belongs to another daemon",
            hint="set source.dsn to the server of the stored position",
            slot=settings.slot,
        )
    if readers and all(reader.progress_key != own for reader in readers):
        raise ResumeRefused(
            f"the slot is read by a daemon with another name: {readers[0]}",
            hint="if that daemon is no longer needed, run this command with its configuration",
            slot=settings.slot,
        )


def drop(config: Config, *, is_dry: bool = False) -> list[str]:
    """Drop the slot. Raises ResumeRefused while a daemon runs or if the slot is not cdcd's; Source errors."""
    source = config.source_settings()
    slot, server = look(config)
    if slot is None:
        return [f"there is no slot {source.slot}"]
    if is_dry:
        _refuse_anothers(config, server)
        return [f"would drop the slot {source.slot}"]
    with exclusive(config), contextlib.closing(connect_sql(source)) as connection:
        _refuse_anothers(config, server)
        confirmed_lsn = drop_own_slot(connection, source)
    if confirmed_lsn is None:
        raise ResumeRefused(
            "the slot is not one of cdcd's in this database",
            hint="the slot belongs to another program: pg_replication_slots shows its plugin and database",
            slot=source.slot,
            plugin=slot.plugin,
            database=slot.database,
        )
    by, until = who(), format_lsn(confirmed_lsn)
    _LOG.warning("slot_dropped", who=by, slot=source.slot, confirmed_flush_lsn=until)
    return [
        f"slot_dropped by {by}: {source.slot}, confirmed up to {until}",
        "topics, progress and publication are unchanged; if there is a progress record, the next start halts with "
        "CDCD-SLOT-MISSING, and `cdcd resnapshot` copies the tables again",
    ]
