"""Replication slots: read one, create one with its exported snapshot, drop one. Blocking.

In: settings or a SQL connection.  Out: `SlotState`, `CreatedSlot`.
Invariant: a created slot's exported snapshot exists exactly as long as `CreatedSlot` is open (F37): no other command
is ever sent on that connection.
Must not: advance a slot, or drop one that the caller did not ask to drop.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
from dataclasses import dataclass
from typing import Any

import psycopg2
from psycopg2.extensions import connection as Connection  # noqa: N812

from cdcd.errors import CdcdError, SlotUnusable, SourceSetup, SourceUnavailable
from cdcd.lsn import Lsn, parse_lsn
from cdcd.source.blockers import BackendGone, blockers_of
from cdcd.source.connection import connect_replication, connect_sql, fetch
from cdcd.source.deadline import hang_up
from cdcd.source.identity import ServerIdentity, check_same_server
from cdcd.source.lock_watch import Report, fetch_watched, unreported
from cdcd.source.settings import FAILOVER_SINCE_MAJOR, SourceSettings
from cdcd.waits import held_by

CANCEL_TIMEOUT_S = 10.0
"""How long a cancelled creation may take to end before its connection is shut down."""
HELD_BY_A_LOST_SESSION = "a session of an earlier attempt held the slot, and was ended"
_WATCH_INTERVAL_S = 0.1
_MOST_CHARACTERS = 63
_OF_A_COPY = "_copy_"
_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_")

# The whole row as JSON: the view has different columns in each major version.
_READ = "SELECT row_to_json(s), age(s.catalog_xmin) FROM pg_catalog.pg_replication_slots s WHERE slot_name = '{name}'"

_END_TEMPORARY = """
    SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots
    WHERE slot_name = %s AND temporary AND active_pid IS NOT NULL
"""

_DECODED = "SELECT spill_bytes, stream_bytes FROM pg_stat_replication_slots WHERE slot_name = %s"


@dataclass(frozen=True, slots=True)
class SlotState:
    """One row of pg_replication_slots; a field is None if the server's major version lacks the column."""

    name: str
    plugin: str | None
    slot_type: str
    database: str | None
    temporary: bool
    active: bool
    active_pid: int | None
    restart_lsn: Lsn | None
    confirmed_flush_lsn: Lsn | None
    catalog_xmin: int | None
    catalog_xmin_age: int | None
    wal_status: str | None
    safe_wal_size_bytes: int | None
    invalidation_reason: str | None
    two_phase: bool
    failover: bool
    synced: bool

    @property
    def is_lost(self) -> bool:
        """Whether the slot can never be read again (F23)."""
        return self.wal_status == "lost" or self.invalidation_reason is not None


@dataclass(frozen=True, slots=True)
class SlotStatistics:
    """The server's statistics of transactions larger than logical_decoding_work_mem (F25).

    None if the server has none: before PostgreSQL 14, or before anything was decoded.
    """

    spilled_bytes: int | None = None
    streamed_bytes: int | None = None


class CreatedSlot:
    """A newly created slot, with the connection that holds its exported snapshot (F37)."""

    def __init__(self, connection: Connection, consistent_point: Lsn, snapshot_name: str | None) -> None:
        self._connection = connection
        self.consistent_point = consistent_point
        self.snapshot_name = snapshot_name

    def close(self) -> None:
        """Close the connection and with it the exported snapshot; the slot remains."""
        self._connection.close()

    def __enter__(self) -> CreatedSlot:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


def read_slot(connection: Connection, name: str) -> SlotState | None:
    """Return the slot's state, None if the slot does not exist. Raises Source errors."""
    return read_slot_over_walsender(connection, name)


def read_slot_over_walsender(connection: Connection, name: str) -> SlotState | None:
    """Return the slot's state by a statement without parameters, which a walsender also accepts."""
    rows = fetch(connection, _READ.format(name=name.replace("'", "''")))
    return _slot_state(*rows[0]) if rows else None


def read_decoded(connection: Connection, name: str) -> SlotStatistics:
    """Return the server's decoding statistics of this slot. Raises Source errors."""
    rows = fetch(connection, _DECODED, (name,)) if connection.server_version >= 140_000 else []
    return SlotStatistics(*rows[0]) if rows else SlotStatistics()


def create_slot(
    settings: SourceSettings,
    *,
    export_snapshot: bool,
    timeout_s: float | None = None,
    given_up: threading.Event | None = None,
    expected: ServerIdentity | None = None,
    report: Report = unreported,
    is_temporary: bool = False,
) -> CreatedSlot:
    """Create the slot with pgoutput. The publication has to exist already (F39).

    PostgreSQL creates the slot when every open transaction has ended (F38). There is no limit by default, because
    each new attempt would wait as long again; `report` is called with the transactions.
    Raises SlotUnusable if the slot exists, SourceUnavailable with the open transactions after `timeout_s`, or another
    Source error. Set from another thread, `given_up` cancels the creation: a waiting walsender does not notice that
    its client has disconnected, and would hold the slot until the creation ends.
    `expected`: the server that is known to lack the slot; no slot is created on another server (F59).
    """
    check_slot_name(settings.slot)
    connection = connect_replication(settings)
    try:
        if expected is not None:
            check_same_server(connection, expected)
        return create_slot_on(
            settings,
            connection,
            export_snapshot=export_snapshot,
            timeout_s=timeout_s,
            given_up=given_up,
            report=report,
            is_temporary=is_temporary,
        )
    except BaseException:
        connection.close()
        raise


def create_slot_on(
    settings: SourceSettings,
    connection: Connection,
    *,
    export_snapshot: bool,
    timeout_s: float | None = None,
    given_up: threading.Event | None = None,
    report: Report = unreported,
    is_temporary: bool = False,
) -> CreatedSlot:
    """Create the slot on this walsender connection, which the caller closes after an error. As `create_slot`."""
    version = connection.server_version
    command = create_slot_command(settings, version, export_snapshot, temporary=is_temporary)
    row = _create(settings, connection, command, timeout_s, given_up or threading.Event(), report)
    return CreatedSlot(connection, parse_lsn(row[1]), row[2])


def create_temporary_slot(
    settings: SourceSettings, connection: Connection, report: Report = unreported
) -> Lsn:
    """Create a temporary slot on this walsender connection; return its consistent point. Raises as `create_slot`."""
    check_slot_name(settings.slot)
    command = create_slot_command(settings, connection.server_version, False, temporary=True)
    return parse_lsn(_create(settings, connection, command, None, threading.Event(), report)[1])


def drop_slot(connection: Connection, name: str) -> None:
    """Drop the slot. Raises SlotMissing, or SlotActive while a walsender uses it."""
    fetch(connection, "SELECT pg_drop_replication_slot(%s)", (name,))


def end_temporary(connection: Connection, name: str) -> None:
    """End the session that still holds a temporary slot of cdcd: one whose client has disconnected without a notice.

    PostgreSQL does not notice that for hours: such a session is idle. Only for a name of `temporary_name`: the start
    lock and the slot exclude other users of it. Raises Source errors.
    """
    fetch(connection, _END_TEMPORARY, (name,))


def drop_own_slot(connection: Connection, settings: SourceSettings) -> Lsn | None:
    """Drop the slot of these settings if it is a pgoutput slot of this database; return its confirmed LSN, or None.

    Raises SlotActive while a walsender uses it.
    """
    slot = read_slot(connection, settings.slot)
    ((database, is_standby),) = fetch(connection, "SELECT current_database()::text, pg_is_in_recovery()")
    # The server itself manages a synchronized copy on a standby; after a promotion `synced` only shows its origin.
    if slot is None or (slot.synced and is_standby) or (slot.plugin, slot.database) != ("pgoutput", database):
        return None
    drop_slot(connection, settings.slot)
    return slot.confirmed_flush_lsn or 0


def temporary_name(slot: str) -> str:
    """Return the name of the temporary slot that belongs to a slot: unlike any other, and a legal name."""
    digest = hashlib.sha256(slot.encode()).hexdigest()[:8]
    return f"{slot[: _MOST_CHARACTERS - len(_OF_A_COPY) - len(digest)]}{_OF_A_COPY}{digest}"


def check_slot_name(name: str) -> None:
    """Raise SourceSetup for a name that PostgreSQL does not accept for a slot."""
    if not 1 <= len(name) <= _MOST_CHARACTERS or not set(name) <= _NAME_CHARACTERS:
        raise SourceSetup(
            f"{name!r} is not a valid name for a slot",
            hint="use 1 to 63 lower-case letters, digits and underscores",
        )


def create_slot_command(
    settings: SourceSettings, server_version: int, export_snapshot: bool, *, temporary: bool = False
) -> str:
    """Return the CREATE_REPLICATION_SLOT command in the syntax of this server's version. Raises SourceSetup."""
    if settings.failover and server_version < FAILOVER_SINCE_MAJOR * 10_000:
        raise SourceSetup(
            f"a failover slot needs PostgreSQL {FAILOVER_SINCE_MAJOR}, the server is {server_version // 10_000}",
            hint="set source.slot.failover: false",
        )
    create = f'CREATE_REPLICATION_SLOT "{settings.slot}"{" TEMPORARY" if temporary else ""}'
    if server_version >= 150_000:
        options = [f"SNAPSHOT '{'export' if export_snapshot else 'nothing'}'"]
        if settings.failover:
            options.append("FAILOVER true")
        if settings.two_phase:
            options.append("TWO_PHASE true")
        return f"{create} LOGICAL pgoutput ({', '.join(options)})"
    if settings.two_phase:
        raise SourceSetup(
            f"two_phase needs PostgreSQL 15, the server is {server_version // 10_000}",
            hint="set source.protocol.two_phase: false",
        )
    word = "EXPORT_SNAPSHOT" if export_snapshot else "NOEXPORT_SNAPSHOT"
    return f"{create} LOGICAL pgoutput {word}"


def _create(
    settings: SourceSettings,
    connection: Connection,
    command: str,
    timeout_s: float | None,
    given_up: threading.Event,
    report: Report,
) -> tuple[Any, ...]:
    over = threading.Event()
    cancelling = _Cancelling(settings, connection, timeout_s, given_up, over)
    threading.Thread(target=cancelling.run, name="cdcd-create-slot", daemon=True).start()
    try:
        return fetch_watched(settings, connection, command, (), report)[0]
    except CdcdError as error:
        if error.context.get("sqlstate") == "42710":
            raise SlotUnusable(
                f"slot {settings.slot} already exists", hint="choose another source.slot.name"
            ) from None
        if cancelling.expired is not None:
            raise cancelling.expired from None
        raise
    finally:
        over.set()


class _Cancelling:
    """Cancels a slot creation on request or after a time limit. `expired`: the error for the time limit."""

    def __init__(
        self,
        settings: SourceSettings,
        connection: Connection,
        timeout_s: float | None,
        given_up: threading.Event,
        over: threading.Event,
    ) -> None:
        self._settings = settings
        self._connection = connection
        self._timeout_s = timeout_s
        self._given_up = given_up
        self._over = over
        self.expired: SourceUnavailable | None = None

    def run(self) -> None:
        """Cancel the creation when it is due; shut down the connection if the server does not react."""
        started_s = time.monotonic()
        hang_up_s: float | None = None
        while not self._over.wait(_WATCH_INTERVAL_S):
            now_s = time.monotonic()
            if self._timeout_s is not None and self.expired is None and now_s - started_s > self._timeout_s:
                self.expired = _blocked(self._settings, self._connection, self._timeout_s)
            if self.expired is None and not self._given_up.is_set():
                continue
            hang_up_s = hang_up_s or now_s + CANCEL_TIMEOUT_S
            with contextlib.suppress(psycopg2.Error):
                self._connection.cancel()
            if now_s > hang_up_s:
                hang_up(self._connection)
                return


def _blocked(settings: SourceSettings, waiting: Connection, timeout_s: float) -> SourceUnavailable:
    """Return the error that names the transactions for which the creation waits (F38)."""
    names = "unknown"
    with contextlib.suppress(CdcdError, BackendGone), contextlib.closing(connect_sql(settings)) as connection:
        seen = blockers_of(connection, waiting.info.backend_pid)
        names = names if seen is None else held_by(seen.blockers)
    return SourceUnavailable(
        f"slot {settings.slot} was not created within {timeout_s:g} s; open transactions: {names}",
        hint="end these transactions: PostgreSQL creates a slot only after all transactions open at that time have "
        "ended",
    )


def _slot_state(row: dict[str, Any], catalog_xmin_age: int | None) -> SlotState:
    return SlotState(
        name=row["slot_name"],
        plugin=row["plugin"],
        slot_type=row["slot_type"],
        database=row["database"],
        temporary=row["temporary"],
        active=row["active"],
        active_pid=row["active_pid"],
        restart_lsn=_lsn(row["restart_lsn"]),
        confirmed_flush_lsn=_lsn(row["confirmed_flush_lsn"]),
        catalog_xmin=_number(row.get("catalog_xmin")),
        catalog_xmin_age=catalog_xmin_age,
        wal_status=row.get("wal_status"),
        safe_wal_size_bytes=row.get("safe_wal_size"),
        invalidation_reason=row.get("invalidation_reason") or _conflict(row),
        two_phase=bool(row.get("two_phase")),
        failover=bool(row.get("failover")),
        synced=bool(row.get("synced")),
    )


def _conflict(row: dict[str, Any]) -> str | None:
    """Return the invalidation reason for PostgreSQL 16, which only reports a conflict with recovery."""
    return "conflict with recovery" if row.get("conflicting") else None


def _lsn(text: str | None) -> Lsn | None:
    return None if text is None else parse_lsn(text)


def _number(value: str | int | None) -> int | None:
    return None if value is None else int(value)
