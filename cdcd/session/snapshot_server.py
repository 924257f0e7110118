"""The server whose exported snapshot is copied: the primary, or the standby of `snapshot.from`.

In: a created slot, or the settings of the standby.  Out: `ExportedSnapshot`, with connections to its server.
Invariant: with a standby, no row is read from the primary: while the standby is away or behind, the copy waits or is
tried again (StandbyUnavailable).
Must not: copy a row, or decide at which point the stream begins.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from cdcd.lsn import Lsn
from cdcd.monitoring.waits import Waits
from cdcd.session.slot_creation import run_cancellable
from cdcd.snapshot.standby import (
    StandbySnapshot,
    await_catalog,
    await_standby,
    connect_standby,
    export_snapshot,
    of_standby,
)
from cdcd.snapshot.table import Connect, Translate
from cdcd.source.connection import connect_sql, translate
from cdcd.source.identity import ServerIdentity
from cdcd.source.settings import SourceSettings
from cdcd.source.slot import CreatedSlot


@dataclass(frozen=True, slots=True)
class ExportedSnapshot:
    """An exported snapshot, and how to connect to the server that has it. `settings` lead to that server."""

    point_lsn: Lsn
    snapshot_name: str
    settings: SourceSettings
    connect: Connect
    translate: Translate
    close: Callable[[], None]
    is_standby: bool = False


def of_primary(created: CreatedSlot, source: SourceSettings) -> ExportedSnapshot:
    """Return the snapshot that a slot of the primary has exported."""
    assert created.snapshot_name is not None
    return ExportedSnapshot(
        created.consistent_point,
        created.snapshot_name,
        source,
        partial(connect_sql, source),
        translate,
        created.close,
    )


class Standby:
    """The standby of `snapshot.from`, whose tables are copied instead of the primary's."""

    def __init__(self, settings: SourceSettings, source: SourceSettings, waits: Waits) -> None:
        self._settings = settings
        self._source = source
        self._waits = waits

    async def ready(self, primary: ServerIdentity) -> None:
        """Wait until the standby follows the primary: no slot of the primary retains WAL before that.

        Raises StandbyUnusable, StandbyUnavailable, Source errors.
        """
        with self._waits.watching("snapshot_standby", is_waiting=True) as report:
            await run_cancellable(
                lambda given_up: await_standby(self._settings, self._source, primary, given_up, report)
            )

    async def export(self, primary: ServerIdentity, not_before: Lsn) -> ExportedSnapshot:
        """Return a snapshot with a consistent point that is not below `not_before`. Raises as `ready`."""

        def closed(late: StandbySnapshot) -> None:
            late.created.close()

        with self._waits.watching("snapshot_standby", is_waiting=True) as report:
            found = await run_cancellable(
                lambda given_up: export_snapshot(
                    self._settings, self._source, primary, not_before, given_up, report
                ),
                closed,
            )
        assert found.created.snapshot_name is not None
        return ExportedSnapshot(
            found.created.consistent_point,
            found.created.snapshot_name,
            found.settings,
            partial(connect_standby, found.settings),
            of_standby,
            found.created.close,
            is_standby=True,
        )

    async def knows_tables(self, exported: ExportedSnapshot, primary: ServerIdentity) -> None:
        """Wait until the standby knows the tables as the primary has described them. Raises as `ready`."""
        with self._waits.watching("snapshot_standby", is_waiting=True) as report:
            await run_cancellable(
                lambda given_up: await_catalog(exported.settings, self._source, primary, given_up, report)
            )
