"""`cdcd drop-slot`: the last step of an end with cdcd, so that PostgreSQL keeps no WAL for it (F24).

Comes in: a configuration.  Goes out: lines that say what was done, an audit line.
Invariant: the slot goes only when nobody streams from it or begins on it, and only when it is cdcd's by name, plugin
and database. The progress record stays, so that a later start says that the slot is gone and skips nothing silently.
Must not: touch a topic or a publication.
"""

from __future__ import annotations

import contextlib

import structlog

from cdcd.cli.alone import alone, look, who
from cdcd.config import Config
from cdcd.errors import ResumeRefused
from cdcd.lsn import format_lsn
from cdcd.source.connection import connect_sql
from cdcd.source.slot import drop_own_slot

_LOG = structlog.stdlib.get_logger("cdcd.audit")


def drop(config: Config, *, is_dry: bool = False) -> list[str]:
    """Drop the slot. Raises ResumeRefused while a daemon is there or where the slot is not cdcd's, Source errors."""
    source = config.source_settings()
    slot, _ = look(config)
    if slot is None:
        return [f"there is no slot {source.slot}"]
    if is_dry:
        return [f"would drop the slot {source.slot}"]
    with alone(config), contextlib.closing(connect_sql(source)) as connection:
        confirmed_lsn = drop_own_slot(connection, source)
    if confirmed_lsn is None:
        raise ResumeRefused(
            "the slot is not one of cdcd's in this database",
            hint="look at it in pg_replication_slots, and drop it there if nobody needs it",
            slot=source.slot,
            plugin=slot.plugin,
            database=slot.database,
        )
    by, until = who(), format_lsn(confirmed_lsn)
    _LOG.warning("slot_dropped", who=by, slot=source.slot, confirmed_flush_lsn=until)
    return [
        f"slot_dropped by {by}: {source.slot}, confirmed up to {until}",
        "topics, progress and publication are as they were; where there is progress, a start from here on halts with "
        "CDCD-SLOT-MISSING, and `cdcd resnapshot` begins anew",
    ]
