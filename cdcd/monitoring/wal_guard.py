"""The WAL guard: report how much WAL the slot retains, and drop the slot at a configured size (F21).

In: readings of the slot, at intervals.  Out: a line in the log at each change of level, a metric, a part of /status;
beyond `drop_slot` an error that ends the session, and then the slot is dropped.
Invariant: the slot is dropped only beyond the size configured for it, only if it is cdcd's by name, plugin and
database, and only while no session holds it. Before that the loss is logged and the daemon halts with the reason. No
session begins before the drop: the next one would hold the slot again.
The guard only reports while another daemon has the slot or copies for it (F69), if the last start found that the slot
belongs to another daemon (F80), and before the first start has checked that.
Must not: confirm anything, or drop a slot because it is old, slow or lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import structlog

from cdcd.errors import CdcdError
from cdcd.lsn import INVALID_LSN, Lsn, format_lsn
from cdcd.monitoring.status import Status
from cdcd.monitoring.wal_levels import GuardVerdict, Level, Oldest, Sizes, holder, judge_wal
from cdcd.ops.slot_metrics import SlotReading
from cdcd.recovery import halts
from cdcd.source.oldest_transaction import oldest_writer
from cdcd.source.settings import SourceSettings
from cdcd.source.slot import drop_own_slot, read_slot
from cdcd.source.start_lock import owner_of

_LOG = structlog.stdlib.get_logger("cdcd.wal_guard")


class WalGuard:
    """One for the process. `assess` and `drop_slot` are called in the monitor's thread, the others on the loop."""

    def __init__(
        self,
        settings: SourceSettings,
        sizes: Sizes,
        status: Status,
        fail_session: Callable[[CdcdError], None],
    ) -> None:
        self._settings = settings
        self._sizes = sizes
        self._status = status
        self._fail_session = fail_session
        self._level = Level.OK
        self._not_dropped = ""

    @property
    def drops_slot(self) -> bool:
        """Whether the slot is to be dropped as soon as no session holds it."""
        return not self._status.may_begin.is_set()

    def assess(self, connection: Any, reading: SlotReading | None) -> GuardVerdict | None:
        """Return the verdict on a reading, with the WAL's holder unless it is OK. Blocking; raises Source errors."""
        if reading is None:
            return None
        verdict = judge_wal(reading, self._sizes)
        if verdict.level is Level.OK:
            return verdict
        oldest, other = oldest_writer(connection), self._other(connection)
        health = self._status.health
        state = f"{health.state}: {health.reason}" if health.reason else health.state
        if self._status.is_slot_anothers:
            state = f"not this one ({state})"
        elif other is not None:
            state = f"not this one, but that of pid {other}"
        held_by = holder(reading, Oldest(*oldest) if oldest else None, state)
        is_anothers = other is not None or self._status.is_slot_anothers is not False
        return GuardVerdict(verdict.level, verdict.why, held_by, is_anothers=is_anothers)

    def _other(self, connection: Any) -> int | None:
        """Return the pid of another daemon that has the slot or its start lock, else None."""
        slot = read_slot(connection, self._settings.slot)
        holding = {slot.active_pid if slot is not None else None, owner_of(connection, self._settings.slot)}
        return next((pid for pid in holding if pid is not None and pid not in self._status.own_pids), None)

    def report(self, verdict: GuardVerdict | None, reading: SlotReading | None, wal_lsn: Lsn) -> bool:
        """Log a new level; return whether to drop the slot now: the halt was reported, and no session holds it."""
        if verdict is None or reading is None:
            self._status.wal_guard(None)
            self._level = Level.OK  # once the slot can be read again, its level is reported again
            self._status.may_begin.set()
            return False
        self._status.wal_guard(verdict)
        if verdict.level is not self._level:
            self._say(verdict)
            self._level = verdict.level
        if verdict.level is not Level.DROP_SLOT or verdict.is_anothers:
            self._status.may_begin.set()
            return False
        if self.drops_slot:  # the session was ended, and no other one has begun
            return not reading.is_active
        self._status.may_begin.clear()
        self._fail_session(
            halts.slot_dropped_by_wal_guard(
                self._settings.slot, verdict.why, verdict.holder, reading.confirmed_flush_lsn or 0, wal_lsn
            )
        )
        return False

    def drop_slot(self, connection: Any) -> None:
        """Drop the slot, if it is cdcd's and nobody holds it. Blocking; raises Source errors."""
        confirmed_lsn = drop_own_slot(connection, self._settings)
        if confirmed_lsn is None:
            return
        self._status.metrics.source.slot_dropped_by_wal_guard()
        _LOG.error(
            "slot_dropped_by_wal_guard",
            slot=self._settings.slot,
            confirmed_lsn=format_lsn(confirmed_lsn),
            reason="source.wal_guard.drop_slot",
            hint="changes committed after confirmed_lsn are not in Kafka; the server frees the WAL at its next "
            "checkpoint; the halt's reason has the commands that resolve the halt",
        )

    def not_dropped(self, error: CdcdError) -> None:
        """Log, once for each reason, that the slot could not be dropped; the next turn tries again."""
        if error.message != self._not_dropped:
            self._not_dropped = error.message
            _LOG.error("slot_not_dropped", slot=self._settings.slot, reason=error.message, hint=error.advice)

    def dropped(self) -> None:
        """Note that the slot was dropped: the next session may begin."""
        self._not_dropped = ""
        self.report(None, None, INVALID_LSN)

    def _say(self, verdict: GuardVerdict) -> None:
        say = {Level.OK: _LOG.info, Level.WARN: _LOG.warning}.get(verdict.level, _LOG.error)
        say(
            "wal_guard",
            now=verdict.level.name.lower(),
            was=self._level.name.lower(),
            reason=verdict.why or "less than any limit",
            held_by=verdict.holder,
        )
