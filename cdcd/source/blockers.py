"""Find the blockers of a session in PostgreSQL: lock holders, open and prepared transactions, standbys. Blocking.

In: a SQL connection, the pid of a session that may be waiting.  Out: `WaitCause`, None if the session does not wait.
Invariant: each result is from the current pg_locks and pg_stat_activity, for blockers in any database. If a blocker
itself waits, its own blockers are included. Values that this role may not see are None: the start of another role's
transaction, without pg_read_all_stats.
Must not: report the text of a query, terminate a session.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from psycopg2.extensions import connection as Connection  # noqa: N812

from cdcd.source.connection import fetch
from cdcd.waits import Blocker, WaitCause

_STANDBY_EVENT = "WaitForStandbyConfirmation"
_DEEPEST = 8
"""The most levels of a lock queue that are followed: each session waits for the one before it."""

AGAINST_READING = ("AccessExclusiveLock",)
AGAINST_ALTERING = (
    "ShareUpdateExclusiveLock",
    "ShareLock",
    "ShareRowExclusiveLock",
    "ExclusiveLock",
    "AccessExclusiveLock",
)
"""The modes that conflict with the lock that adds a table to a publication."""

_SESSION = "SELECT backend_type, wait_event_type, wait_event, query FROM pg_stat_activity WHERE pid = %s"

_WAITED_FOR = """
    SELECT w.locktype, w.mode, coalesce(w.relation, 0)::bigint,
           CASE WHEN w.database = (SELECT oid FROM pg_database WHERE datname = current_database())
                THEN (SELECT format('%%I.%%I', n.nspname, c.relname)
                      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = w.relation) END
    FROM pg_locks w WHERE w.pid = %s AND NOT w.granted
"""

# Pid 0 is a prepared transaction, whose locks have no pid; it is found by the lock on its own transaction id.
_BLOCKING = """
    WITH RECURSIVE chain (waiting, pid, depth) AS (
        SELECT %s::int, b, 1 FROM unnest(pg_blocking_pids(%s)) b
        UNION
        SELECT c.pid, b, c.depth + 1 FROM chain c, unnest(pg_blocking_pids(c.pid)) b
        WHERE c.pid <> 0 AND c.depth < %s)
    SELECT c.pid, a.datname::text, a.usename::text, a.application_name, a.state, NULL::text,
           extract(epoch FROM a.xact_start)::float8, min(c.depth),
           (SELECT min(f.pid) FROM chain f WHERE f.waiting = c.pid AND f.pid <> 0)
    FROM chain c JOIN pg_stat_activity a ON a.pid = c.pid WHERE c.pid <> 0
    GROUP BY 1, 2, 3, 4, 5, 6, 7
    UNION ALL
    SELECT NULL::int, p.database::text, p.owner::text, NULL::text, NULL::text, p.gid,
           extract(epoch FROM p.prepared)::float8,
           min(c.depth), NULL::int
    FROM chain c
    JOIN pg_locks w ON w.pid = c.waiting AND NOT w.granted
    JOIN pg_locks h ON h.pid IS NULL AND h.granted AND h.locktype = w.locktype
         AND (h.database, h.relation, h.transactionid) IS NOT DISTINCT FROM (w.database, w.relation, w.transactionid)
    JOIN pg_locks x ON x.pid IS NULL AND x.locktype = 'transactionid'
         AND x.virtualtransaction = h.virtualtransaction
    JOIN pg_prepared_xacts p ON p.transaction = x.transactionid
    WHERE c.pid = 0
    GROUP BY 1, 2, 3, 4, 5, 6, 7
    ORDER BY 8, 1
"""

# The creation of a slot waits, one after the other, for the transactions that were open when a phase of it began.
_WRITING = """
    SELECT a.pid, a.datname::text, a.usename::text, a.application_name, a.state, NULL::text,
           extract(epoch FROM a.xact_start)::float8, age(a.backend_xid)
    FROM pg_stat_activity a WHERE a.backend_xid IS NOT NULL AND a.pid NOT IN (%s, pg_backend_pid())
    UNION ALL
    SELECT NULL::int, p.database::text, p.owner::text, NULL::text, NULL::text, p.gid,
           extract(epoch FROM p.prepared)::float8,
           age(p.transaction)
    FROM pg_prepared_xacts p
    ORDER BY 8 DESC
"""

_HOLDER = """
    SELECT pid, datname::text, usename::text, application_name, extract(epoch FROM backend_start)::float8
    FROM pg_stat_activity WHERE pid = ANY(%s)
"""

_TABLE_LOCKS = """
    SELECT h.pid, a.datname::text, a.usename::text, a.application_name, a.state, p.gid,
           extract(epoch FROM coalesce(a.xact_start, p.prepared))::float8, h.granted, h.mode,
           string_agg(DISTINCT format('%%I.%%I', n.nspname, c.relname), ', ')
    FROM pg_locks h
    JOIN pg_class c ON c.oid = h.relation AND c.relkind IN ('r', 'p')
    JOIN pg_namespace n ON n.oid = c.relnamespace
    LEFT JOIN pg_stat_activity a ON a.pid = h.pid
    LEFT JOIN pg_locks x ON h.pid IS NULL AND x.pid IS NULL AND x.locktype = 'transactionid'
         AND x.virtualtransaction = h.virtualtransaction
    LEFT JOIN pg_prepared_xacts p ON p.transaction = x.transactionid
    WHERE h.locktype = 'relation' AND h.mode = ANY(%s)
          AND h.database = (SELECT oid FROM pg_database WHERE datname = current_database())
          AND h.relation >= 16384 AND h.pid IS DISTINCT FROM pg_backend_pid()
    GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9 ORDER BY 8 DESC, 7
"""

_STANDBYS = """
    SELECT trim(n.name), s.slot_name IS NOT NULL, s.active, s.wal_status,
           pg_wal_lsn_diff(pg_current_wal_flush_lsn(), s.restart_lsn)::bigint
    FROM unnest(string_to_array(current_setting('synchronized_standby_slots', true), ',')) n (name)
    LEFT JOIN pg_replication_slots s ON s.slot_name = trim(n.name)
    WHERE s.slot_name IS NULL OR NOT s.active OR s.restart_lsn IS DISTINCT FROM pg_current_wal_flush_lsn()
"""


class BackendGone(Exception):
    """The session does not exist any more."""


def blockers_of(connection: Connection, pid: int) -> WaitCause | None:
    """Return the wait of the session with this pid, with its blockers; None if the session does not wait.

    Raises BackendGone, and Source errors.
    """
    sessions = fetch(connection, _SESSION, (pid,))
    if not sessions:
        raise BackendGone
    backend_type, event_type, event, query = sessions[0]
    if event == _STANDBY_EVENT:
        return WaitCause("standby", blockers=standbys_behind(connection))
    waited_for = fetch(connection, _WAITED_FOR, (pid,)) if event_type == "Lock" else []
    if not waited_for:
        return None
    locktype, mode, relid, table = waited_for[0]
    blocking = _blocking(connection, pid)
    # The query text is that of cdcd's own session.
    is_creation = backend_type == "walsender" and (query or "").startswith("CREATE_REPLICATION_SLOT")
    if is_creation and locktype == "transactionid":
        return WaitCause("slot_creation", blockers=(*blocking, *_open_too(connection, pid, blocking)))
    on = f"{mode} on " + (table or (f"relation {relid}" if relid else f"a {locktype}"))
    return WaitCause("lock", on, blocking)


def sessions_holding(connection: Connection, pids: list[int]) -> tuple[Blocker, ...]:
    """Return the sessions with these pids, with the start times of their connections. Raises Source errors."""
    return tuple(
        Blocker(f"pid {pid}", "is connected", pid, database, user, application, since_s)
        for pid, database, user, application, since_s in fetch(connection, _HOLDER, (pids,))
    )


def table_lockers(connection: Connection, modes: Sequence[str] = AGAINST_READING) -> tuple[Blocker, ...]:
    """Return the sessions that hold or await locks of these modes on tables of this database, with their blockers.

    A waiting session also blocks later requests. Raises Source errors.
    """
    found: dict[str, Blocker] = {}
    for *session, is_granted, mode, tables in fetch(connection, _TABLE_LOCKS, (list(modes),)):
        one = _of_session(*session)
        doing = f"{one.doing}, {'holds' if is_granted else 'waits for'} {mode} on {tables}".removeprefix(", ")
        found.setdefault(one.who, replace(one, doing=doing))
        if not is_granted and one.pid is not None:
            for other in _blocking(connection, one.pid):
                found.setdefault(other.who, other)
    return tuple(found.values())


def standbys_behind(connection: Connection) -> tuple[Blocker, ...]:
    """Return the slots of synchronized_standby_slots (17 or later) whose standbys lag. Raises Source errors."""
    if connection.server_version < 170_000:
        return ()
    return tuple(
        Blocker(f"slot {name}", _of_standby(is_there, is_active, wal_status, behind_bytes))
        for name, is_there, is_active, wal_status, behind_bytes in fetch(connection, _STANDBYS)
    )


def _of_standby(is_there: bool, is_active: bool, wal_status: str | None, behind_bytes: int | None) -> str:
    if not is_there:
        return "does not exist"
    state = "no standby is connected to it" if not is_active else "its standby is connected"
    if wal_status == "lost":
        return f"was invalidated, {state}"
    return (
        f"{state}, its position is unknown"
        if behind_bytes is None
        else f"{state}, {behind_bytes} bytes behind"
    )


def _blocking(connection: Connection, pid: int) -> tuple[Blocker, ...]:
    rows = fetch(connection, _BLOCKING, (pid, pid, _DEEPEST))
    found = []
    for *session, _depth, waits_for in rows:
        one = _of_session(*session)
        if waits_for is not None:
            one = replace(one, doing=f"{one.doing}, itself waits for pid {waits_for}".removeprefix(", "))
        found.append(one)
    return tuple(found)


def open_transactions(connection: Connection) -> tuple[Blocker, ...]:
    """Return the transactions of the server that have written, the oldest first. Raises Source errors."""
    return tuple(_of_session(*row[:7]) for row in fetch(connection, _WRITING, (0,)))


def _open_too(connection: Connection, pid: int, blocking: tuple[Blocker, ...]) -> list[Blocker]:
    known = {blocker.who for blocker in blocking}
    found = [_of_session(*row[:7]) for row in fetch(connection, _WRITING, (pid,))]
    doing = "is open, too, and may have to end first"
    return [replace(one, doing=doing) for one in found if one.who not in known]


def _of_session(
    pid: int | None,
    database: str | None,
    user: str | None,
    application: str | None,
    state: str | None,
    gid: str | None,
    since_s: float | None,
) -> Blocker:
    if gid is not None:
        return Blocker(f"prepared transaction '{gid}'", "", None, database, user, None, since_s)
    return Blocker(f"pid {pid}", state or "", pid, database, user, application or None, since_s)
