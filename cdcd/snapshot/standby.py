"""A standby from which the initial snapshot is read in place of the primary (PostgreSQL 16 and later). Blocking.

In: the settings of both servers, the identity of the primary.  Out: an exported snapshot of the standby with its
consistent point.
Invariant: the consistent point is one of the primary's WAL, as that of a slot of the primary (F36): both servers have
the same history, and the standby decodes the same records. The snapshot is exported by a temporary slot, because the
snapshots of other sessions of a standby have no known point. It is only created when the standby has replayed all WAL
that was written after the connection was opened. Before that, a standby that has crashed may have pages that are
marked as visible to all (PD_ALL_VISIBLE) beyond its own position, and a decoded snapshot trusts these marks, unlike
other snapshots of a standby. From then on the replay of such a mark cancels every session that may not see the rows.
Must not: read a table, or return to the primary.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import structlog

from cdcd.errors import (
    CdcdError,
    SlotLost,
    SlotUnusable,
    SourceAuthentication,
    SourceSetup,
    SourceUnavailable,
    StandbyUnavailable,
    StandbyUnusable,
)
from cdcd.lsn import Lsn, end_of_commits, format_lsn, parse_lsn
from cdcd.model import FLUSH_PREFIX
from cdcd.snapshot.chunk_reader import FLUSH_WAL
from cdcd.source.blockers import open_transactions
from cdcd.source.connection import STARTED, connect_replication, connect_sql, fetch, translate
from cdcd.source.identity import ServerIdentity, check_same_server
from cdcd.source.lock_watch import Report
from cdcd.source.settings import SourceSettings
from cdcd.source.slot import (
    HELD_BY_A_LOST_SESSION,
    CreatedSlot,
    create_slot_on,
    end_temporary,
    temporary_name,
)
from cdcd.source.timeline import read_history
from cdcd.waits import Blocker, WaitCause

_LOG = structlog.stdlib.get_logger("cdcd.snapshot")
SINCE_MAJOR = 16
POLL_S = 0.2
LOG_AGAIN_S = 1.0
"""The interval at which the primary is made to log its running transactions, until the slot of the standby exists."""
_CONFLICT = "40001"
_CONFLICT_HINT = (
    "the replay of the primary's WAL on the standby has cancelled the copy; cdcd tries again, and copies only "
    "the tables that are not complete. If this repeats, set hot_standby_feedback = on on the standby, or raise "
    "max_standby_streaming_delay there"
)
_LOG_HINT = (
    "the primary logs its running transactions only once in 15 s, and not at all while it is idle: grant EXECUTE on "
    "function pg_log_standby_snapshot() on the primary, or raise its max_replication_slots"
)

# A walsender accepts it, too. The pause state is an error on a server that is not in recovery.
_STATE = f"""
    SELECT pg_is_in_recovery(), coalesce(pg_last_wal_replay_lsn(), '0/0')::text,
           CASE WHEN pg_is_in_recovery() THEN pg_get_wal_replay_pause_state() <> 'not paused' ELSE false END,
           current_database()::text, current_setting('wal_level'),
           current_setting('hot_standby_feedback') = 'on', ({STARTED})
"""
_END = """
    SELECT pg_current_wal_insert_lsn()::text, current_setting('wal_block_size')::int,
           pg_size_bytes(current_setting('wal_segment_size'))
"""
_MAY_LOG = "SELECT has_function_privilege('pg_log_standby_snapshot()', 'EXECUTE')"
_SLOT_QUERY_TIMEOUT = "SELECT set_config('statement_timeout', '1000', false)"
# The creation of a logical slot also logs the running transactions, before it waits for their end.
_CREATE_SLOT = "SELECT slot_name FROM pg_create_logical_replication_slot(%s, 'pgoutput', true)"
_CANCELLED = "57014"


@dataclass(frozen=True, slots=True)
class StandbyState:
    """A server of which a snapshot is wanted, at one moment. `timeline`: of the WAL that was replayed last.

    `started_us`: the start of the server, see `SourceSettings.instance`.
    """

    system_identifier: str
    timeline: int
    version_num: int
    in_recovery: bool
    replayed_lsn: Lsn
    is_paused: bool
    database: str
    wal_level: str
    has_feedback: bool
    started_us: int


@dataclass(frozen=True, slots=True)
class StandbySnapshot:
    """An exported snapshot of a standby, and the settings that lead to the same server."""

    created: CreatedSlot
    settings: SourceSettings


def of_standby(error: BaseException) -> CdcdError:
    """Return cdcd's error for an error on a connection to the standby. Raises MemoryError."""
    found = translate(error)
    is_temporary = isinstance(found, (SourceUnavailable, SourceAuthentication, SlotLost))
    if is_temporary and not isinstance(found, StandbyUnavailable):
        is_conflict = found.context.get("sqlstate") == _CONFLICT
        advice = _CONFLICT_HINT if is_conflict else found.advice.replace("source.dsn", "snapshot.from")
        # A hint about a lost slot is about that of the primary.
        is_general = found.advice == found.hint or isinstance(found, SlotLost)
        hint = None if is_general and not is_conflict else advice
        return StandbyUnavailable(f"snapshot.from: {found.message}", hint=hint, **found.context)
    if isinstance(found, SourceSetup) and "table" not in found.context:
        advice = found.advice.replace("source.dsn", "snapshot.from")
        return SourceSetup(f"snapshot.from: {found.message}", hint=advice, **found.context)
    return found


@contextlib.contextmanager
def on_standby() -> Iterator[None]:
    """Replace the errors inside the block by those of a standby."""
    try:
        yield
    except CdcdError as error:
        raise of_standby(error) from None


def connect_standby(settings: SourceSettings) -> Any:
    """Return a SQL connection to the standby. Raises StandbyUnavailable, SourceSetup."""
    with on_standby():
        return connect_sql(settings)


def open_standby(settings: SourceSettings, primary: ServerIdentity) -> tuple[Any, StandbyState]:
    """Return a walsender connection to the standby of this primary, and its state.

    Raises StandbyUnusable, StandbyUnavailable, SourceSetup.
    """
    with on_standby():
        connection = connect_replication(settings)
    try:
        check_version(connection.server_version)
        state = read_state(connection)
        check_state(state, primary)
    except BaseException:
        connection.close()
        raise
    return connection, state


def read_state(connection: Any) -> StandbyState:
    """Return the state of the server on this walsender connection. Raises StandbyUnavailable."""
    with on_standby():
        ((system, timeline, *_),) = fetch(connection, "IDENTIFY_SYSTEM")
        ((in_recovery, replayed, *more),) = fetch(connection, _STATE)
    return StandbyState(
        system, int(timeline), connection.server_version, in_recovery, parse_lsn(replayed), *more
    )


def check_version(version_num: int) -> None:
    """Raise StandbyUnusable for a server that cannot decode while it is in recovery."""
    major = version_num // 10_000
    if major < SINCE_MAJOR:
        raise StandbyUnusable(
            f"snapshot.from: a standby of PostgreSQL {major} cannot export a snapshot with a known position; "
            f"PostgreSQL {SINCE_MAJOR} or later is needed",
            hint="remove snapshot.from, and restart cdcd: the tables are then copied from the primary",
        )


def check_state(state: StandbyState, primary: ServerIdentity) -> None:
    """Raise StandbyUnusable for a server that is not a standby of this primary, or cannot decode."""
    if state.system_identifier != primary.system_identifier:
        raise StandbyUnusable(
            "the server of snapshot.from belongs to another cluster: its system identifier is "
            f"{state.system_identifier}, that of source.dsn {primary.system_identifier}"
        )
    if not state.in_recovery:
        raise StandbyUnusable(
            "the server of snapshot.from is not a standby: it was promoted, or it is the primary itself"
        )
    if state.timeline > primary.timeline:
        raise StandbyUnusable(
            f"snapshot.from is on another timeline than source.dsn: {state.timeline}, not {primary.timeline}: it "
            "follows another primary"
        )
    if state.database != primary.database:
        raise StandbyUnusable(
            f"snapshot.from names database {state.database}, source.dsn {primary.database}",
            hint="name the same database in snapshot.from, and restart cdcd",
        )
    if state.wal_level != "logical":
        raise StandbyUnusable(
            f"wal_level of the standby of snapshot.from is {state.wal_level}, not logical",
            hint="set wal_level = 'logical' on the standby, restart it, then `cdcd resume`",
        )


def check_history(of_standby: Mapping[int, Lsn], of_primary: Mapping[int, Lsn]) -> None:
    """Raise StandbyUnusable if the servers are on timelines of the same number that began at different positions.

    A promoted server takes the next number that it knows, which another server may have taken as well (F58). A server
    that lacks its timeline history file, so that its history is empty, proves nothing.
    """
    if of_standby and of_primary and of_standby != of_primary:
        raise StandbyUnusable(
            "snapshot.from has another history than source.dsn: it follows another server, which was promoted to a "
            "timeline of the same number"
        )


def await_standby(
    standby: SourceSettings,
    source: SourceSettings,
    primary: ServerIdentity,
    given_up: threading.Event,
    report: Report,
) -> None:
    """Wait until the standby has replayed all WAL that the primary has now. Raises as `export_snapshot`."""
    connection, _ = open_standby(standby, primary)
    with contextlib.closing(connection):
        _await_replay(connection, primary, _end_of_wal(source, primary), given_up, report)
        _compare_histories(connection, source, primary)


def export_snapshot(
    standby: SourceSettings,
    source: SourceSettings,
    primary: ServerIdentity,
    not_before: Lsn,
    given_up: threading.Event,
    report: Report,
) -> StandbySnapshot:
    """Return a snapshot of the standby whose consistent point is not below `not_before`.

    Waits without a limit until the standby has replayed the WAL up to there; `report` is called with the reason.
    Raises StandbyUnusable, StandbyUnavailable, Source errors; StandbyUnavailable also when `given_up` is set.
    """
    connection, state = open_standby(standby, primary)
    try:
        end_lsn = max(not_before, _end_of_wal(source, primary))  # after the connection was opened: see above
        _await_replay(connection, primary, end_lsn, given_up, report)
        _compare_histories(connection, source, primary)
        temporary = replace(standby, slot=temporary_name(standby.slot), instance=state.started_us)
        with _logging(source, primary, temporary.slot, report), on_standby():
            created = _create(temporary, connection, given_up)
        _check_point(created, end_lsn)
    except BaseException:
        connection.close()
        raise
    _LOG.info("snapshot_exported_by_standby", consistent_point=format_lsn(created.consistent_point))
    return StandbySnapshot(created, temporary)


def _create(settings: SourceSettings, connection: Any, given_up: threading.Event) -> CreatedSlot:
    try:
        return create_slot_on(
            settings, connection, export_snapshot=True, is_temporary=True, given_up=given_up
        )
    except SlotUnusable as error:
        with contextlib.closing(connect_sql(settings)) as another:
            end_temporary(another, settings.slot)
        raise SourceUnavailable(f"{error.message}: {HELD_BY_A_LOST_SESSION}") from error


def _check_point(created: CreatedSlot, end_lsn: Lsn) -> None:
    """Raise StandbyUnavailable for a snapshot that does not have all transactions up to this LSN."""
    if created.consistent_point < end_lsn:
        raise StandbyUnavailable(
            f"snapshot.from: the standby has exported a snapshot of {format_lsn(created.consistent_point)}, before "
            f"{format_lsn(end_lsn)}"
        )


def await_catalog(
    standby: SourceSettings,
    source: SourceSettings,
    primary: ServerIdentity,
    given_up: threading.Event,
    report: Report,
) -> None:
    """Wait until the standby has replayed every change of the catalog that the primary has now.

    The list of the tables is the primary's; the standby may not know a new column yet. Raises as `export_snapshot`.
    """
    end_lsn = _end_of_wal(source, primary)
    with contextlib.closing(connect_standby(standby)) as connection:
        while True:
            with on_standby():
                ((in_recovery, replayed, is_paused, *_),) = fetch(connection, _STATE)
            if not in_recovery:
                raise StandbyUnusable(
                    "the server of snapshot.from is not a standby any more: it was promoted"
                )
            if parse_lsn(replayed) >= end_lsn:
                return
            _report_lag(report, parse_lsn(replayed), end_lsn, is_paused=is_paused)
            _pause(given_up)


def _await_replay(
    connection: Any, primary: ServerIdentity, end_lsn: Lsn, given_up: threading.Event, report: Report
) -> None:
    while True:
        state = read_state(connection)
        check_state(state, primary)
        if state.timeline == primary.timeline and state.replayed_lsn >= end_lsn:
            report(None)
            return
        on = "" if state.timeline == primary.timeline else f" on timeline {state.timeline}"
        _report_lag(report, state.replayed_lsn, end_lsn, is_paused=state.is_paused, on=on)
        _pause(given_up)


def _compare_histories(connection: Any, source: SourceSettings, primary: ServerIdentity) -> None:
    """Raise StandbyUnusable if the standby on this walsender connection has another history than the primary."""
    if primary.timeline == 1:
        return
    with on_standby():
        of_standby = read_history(connection, primary.timeline)
    with contextlib.closing(connect_replication(source)) as own:
        check_same_server(own, primary)
        check_history(of_standby, read_history(own, primary.timeline))


def _report_lag(report: Report, replayed_lsn: Lsn, end_lsn: Lsn, *, is_paused: bool, on: str = "") -> None:
    who = "the standby, whose replay is paused" if is_paused else "the standby"
    doing = f"has replayed the WAL to {format_lsn(replayed_lsn)}{on}, not yet to {format_lsn(end_lsn)}"
    report(WaitCause("snapshot_standby", blockers=(Blocker(who, doing),)))


def _pause(given_up: threading.Event) -> None:
    if given_up.wait(POLL_S):
        raise StandbyUnavailable("snapshot.from: the wait for the standby was cancelled")


def _end_of_wal(source: SourceSettings, primary: ServerIdentity) -> Lsn:
    """Return the LSN up to which the standby has to replay to have everything that the primary has committed."""
    with contextlib.closing(connect_sql(source)) as connection:
        check_same_server(connection, primary)
        # An idle server leaves its last WAL in memory, where no standby gets it, for seconds.
        with contextlib.suppress(CdcdError):
            fetch(connection, FLUSH_WAL, (FLUSH_PREFIX,))
        ((insert_lsn, block_bytes, segment_bytes),) = fetch(connection, _END)
    return end_of_commits(parse_lsn(insert_lsn), block_bytes=block_bytes, segment_bytes=segment_bytes)


@contextlib.contextmanager
def _logging(source: SourceSettings, primary: ServerIdentity, slot: str, report: Report) -> Iterator[None]:
    """Have the primary log its running transactions during the block: a standby cannot create a slot before."""
    over = threading.Event()
    logger = _RunningLogger(source, primary, slot, report, over)
    thread = threading.Thread(target=logger.run, name="cdcd-log-running", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()


class _RunningLogger:
    """Makes the primary log its running transactions, and reports those that the standby's slot waits for."""

    def __init__(
        self,
        source: SourceSettings,
        primary: ServerIdentity,
        slot: str,
        report: Report,
        over: threading.Event,
    ) -> None:
        self._source = source
        self._primary = primary
        self._slot = slot
        self._report = report
        self._over = over

    def run(self) -> None:
        wait_s = POLL_S / 4
        while not self._over.wait(wait_s):
            wait_s = LOG_AGAIN_S
            seen: tuple[Blocker, ...]
            try:
                with contextlib.closing(connect_sql(self._source)) as connection:
                    check_same_server(connection, self._primary)
                    log_running(connection, self._slot)
                    seen = open_transactions(connection)
            except CdcdError as error:
                seen = (Blocker("the primary", f"{error.message}; {_LOG_HINT}"),)
            if not self._over.is_set():
                self._report(WaitCause("snapshot_standby", blockers=seen))


def log_running(connection: Any, slot: str) -> None:
    """Have the primary write a record of its running transactions. Raises Source errors.

    `slot`: the name of a temporary slot, for a role that may not call the function.
    """
    if fetch(connection, _MAY_LOG)[0][0]:
        fetch(connection, "SELECT pg_log_standby_snapshot()")
        return
    fetch(connection, _SLOT_QUERY_TIMEOUT)
    try:
        fetch(connection, _CREATE_SLOT, (slot,))
    except CdcdError as error:
        if error.context.get("sqlstate") != _CANCELLED:
            raise
