"""The start checks on PostgreSQL's side: findings, each with a hint. Blocking.

In: a SQL connection, results of earlier queries.  Out: findings, the good ones too. `cdcd check` prints them, the
daemon's start raises the error of the first that fails.
Invariant: one problem never hides another that can still be detected; the checks change nothing on the server.
Must not: hold a slot, or wait for a lock longer than the connection's lock_timeout.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

from psycopg2.extensions import connection as Connection  # noqa: N812

from cdcd.errors import (
    CdcdError,
    PublicationMissing,
    SlotActive,
    SourceAuthentication,
    SourceSetup,
    SourceStandby,
)
from cdcd.findings import Finding
from cdcd.lsn import format_lsn
from cdcd.model import ReplicaIdentity
from cdcd.schema.policy import DEFAULT_POLICY, Policy
from cdcd.source.connection import connect_replication, fetch
from cdcd.source.heartbeat import may_write_heartbeat
from cdcd.source.identity import ServerIdentity
from cdcd.source.key_check import key_findings, record_key
from cdcd.source.partitions import Root
from cdcd.source.partitions import shortfalls as shortfalls_of_partitions
from cdcd.source.publication_catalog import CONFLICT_HINT, PublishedTable, create_publication_sql
from cdcd.source.settings import FAILOVER_SINCE_MAJOR, SourceSettings, StreamOptions, shortfalls
from cdcd.source.slot import SlotState
from cdcd.source.start import quote_identifier

__all__ = [
    "connection_failure",
    "holder_findings",
    "publication_findings",
    "readable_findings",
    "server_findings",
    "setup_findings",
    "table_findings",
]

_FACTS = """
    SELECT current_setting('wal_level'), current_setting('max_replication_slots')::int,
           current_setting('max_wal_senders')::int,
           (SELECT count(*) FROM pg_replication_slots)::int,
           (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'walsender')::int,
           getdatabaseencoding()::text, current_setting('output_plugin_libraries', true),
           current_setting('synchronized_standby_slots', true), current_setting('max_slot_wal_keep_size', true)
"""

# A walsender needs the privilege of session_user; SQL, with its slot functions, needs that of current_user.
_ROLES = """
    SELECT r.rolname::text, r.rolname = session_user,
           r.rolsuper OR r.rolreplication
           OR EXISTS (SELECT FROM pg_roles m WHERE m.rolname IN ('rds_replication', 'rds_superuser')
                      AND pg_has_role(r.oid, m.oid, 'member'))
    FROM pg_roles r WHERE r.rolname IN (session_user, current_user)
"""


_HOLDER = """
    SELECT coalesce(application_name, ''), to_char(backend_start, 'YYYY-MM-DD HH24:MI:SS')
    FROM pg_stat_activity WHERE pid = %s
"""

_CREATE_HINT = "create it, or run `cdcd init`, then `cdcd resume`; cdcd reads nothing without it"

# `unreadable`: columns that the role may read neither by a grant on the table nor by one on the column.
_PRIVILEGES = """
    SELECT c.oid, has_schema_privilege(c.relnamespace, 'USAGE'), has_table_privilege(c.oid, 'SELECT'),
           ARRAY(SELECT a.attname::text FROM pg_attribute a
                 WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
                   AND NOT has_column_privilege(c.oid, a.attnum, 'SELECT')) AS unreadable
    FROM pg_class c WHERE c.oid = ANY(%s::oid[])
"""
_UNSENT = """
    WITH RECURSIVE part(root, relid) AS (
        SELECT c.oid, c.oid FROM pg_class c WHERE c.oid = ANY(%s::oid[])
        UNION ALL
        SELECT part.root, i.inhrelid FROM part JOIN pg_class p ON p.oid = part.relid AND p.relkind = 'p'
        JOIN pg_inherits i ON i.inhparent = part.relid)
    SELECT part.root, n.nspname::text, c.relname::text, c.relkind = 'f'
    FROM part JOIN pg_class c ON c.oid = part.relid JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind = 'f' OR c.relpersistence = 'u'
    ORDER BY 1, 2, 3
"""
# A row filter depends on its columns (PostgreSQL 15 and later).
_FILTERED = """
    SELECT pr.prrelid, array_agg(DISTINCT a.attname::text)
    FROM pg_publication_rel pr JOIN pg_publication p ON p.oid = pr.prpubid
    JOIN pg_depend d ON d.classid = 'pg_publication_rel'::regclass AND d.objid = pr.oid
        AND d.refclassid = 'pg_class'::regclass AND d.refobjid = pr.prrelid AND d.refobjsubid > 0
    JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
    WHERE pr.prrelid = ANY(%s::oid[]) AND p.pubname = ANY(%s) AND pr.prqual IS NOT NULL
    GROUP BY pr.prrelid
"""


def _default_policy(_table: str) -> Policy:
    return DEFAULT_POLICY


def setup_findings(
    settings: SourceSettings,
    connection: Connection,
    server: ServerIdentity,
    slot: SlotState | None,
    *,
    drops_slot: bool = False,
    wanted: Callable[[int], StreamOptions] | None = None,
    heartbeat: bool = False,
    limits_wal: bool = False,
) -> Iterator[Finding]:
    """Yield the findings about the setup of the server and the role. Raises Source errors.

    `drops_slot`: a start would recreate the slot. `wanted`: the configured options for a server of this version
    number. `heartbeat`: the daemon writes heartbeats. `limits_wal`: the WAL guard may drop the slot.
    """
    wal_level, max_slots, max_senders, slots, senders, *more = fetch(connection, _FACTS)[0]
    encoding, plugins, standby_slots, keep_size = more
    yield from _wal(wal_level, max_slots, max_senders, slots, senders, has_slot=slot is not None)
    if slot is not None and slot.active and senders >= max_senders:
        message = "the daemon of this slot has one, and no other is free for a test"
        yield Finding("ok", "replication connection", message)
    else:
        yield from _walsender(settings, connection, drops_slot=drops_slot)
    yield from _decoding(encoding, plugins)
    if wanted is not None:
        yield from _options(settings, server, wanted(server.version_num))
    if settings.failover and server.version_num >= FAILOVER_SINCE_MAJOR * 10_000:
        yield from _failover(slot, standby_slots)
    yield from _wal_limits(keep_size, limits_wal=limits_wal)
    if heartbeat:
        yield from _heartbeat(connection)


def publication_findings(
    settings: SourceSettings, missing: list[str], *, may_create: bool = False
) -> Iterator[Finding]:
    """Yield the findings about the publications. `may_create`: `cdcd init` creates a missing one; no start does."""
    for name in settings.publications:
        if name not in missing:
            yield Finding("ok", "publication", f"publication {name} exists")
            continue
        if may_create:
            # Only `cdcd init` creates it: a daemon without its publication halts (F39).
            message = f"publication {name} does not exist; a start does not create it"
            hint = "run `cdcd init` to create the publication"
        else:
            message = f"publication {name} does not exist"
            hint = f"{create_publication_sql(name)}; or list the tables in that statement"
        yield Finding("fail", "publication", message, hint, PublicationMissing(message, hint=_CREATE_HINT))


def table_findings(
    connection: Connection,
    tables: list[PublishedTable],
    *,
    snapshot: bool = True,
    policy_of: Callable[[str], Policy] = _default_policy,
    copied_columns: Mapping[int, Collection[str]] | None = None,
) -> Iterator[Finding]:
    """Yield the problems of the published tables. Raises Source errors.

    `snapshot`: a start copies the tables, so the role needs the privilege to read them. `copied_columns`: by relid,
    the columns that are read of each table to copy; None: all columns of all tables. `policy_of`: the options of
    `schema.table`, including a key for a table without one in the database.
    """
    for table in tables:
        yield from _table(table, policy_of)
    roots = [
        _root(table, policy_of) for table in tables if table.comes_from_partitions and table.needs_identity
    ]
    for one in shortfalls_of_partitions(connection, roots):
        yield Finding("warn", f"table {one.table}", one.message, one.hint)
    yield from _unsent(connection, tables)
    if snapshot:
        if copied_columns is None:
            copied_columns = {table.relid: table.columns for table in tables}
        yield from readable_findings(connection, tables, copied_columns)


def connection_failure(error: CdcdError) -> Finding:
    """Return the finding for a failed connection to the server."""
    hint = error.advice or "start the server, or correct host, port and network in source.dsn"
    subject = "password" if isinstance(error, SourceAuthentication) else "connection"
    return Finding("fail", f"source {subject}", error.message, hint, error)


def server_findings(server: ServerIdentity) -> Iterator[Finding]:
    """Yield the findings about the server's version and role."""
    major = server.version_num // 10_000
    text = f"PostgreSQL {major}, database {server.database}, WAL at {format_lsn(server.wal_lsn)}"
    if major < 12:
        yield Finding("fail", "server", f"{text}: too old", "use PostgreSQL 14 or later")
    elif major < 14:
        yield Finding("warn", "server", f"{text}: no longer supported", "use PostgreSQL 14 or later")
    else:
        yield Finding("ok", "server", text)
    if server.in_recovery:
        hint = (
            "point source.dsn at the primary (target_session_attrs=read-write finds it among several hosts)"
        )
        message = "the server is a standby; cdcd reads from a primary only"
        yield Finding("fail", "standby", message, hint, SourceStandby(message))


def _wal(
    wal_level: str, max_slots: int, max_senders: int, slots: int, senders: int, *, has_slot: bool
) -> Iterator[Finding]:
    if wal_level != "logical":
        hint = "ALTER SYSTEM SET wal_level = 'logical'; then restart the server"
        yield Finding("fail", "wal_level", f"wal_level is {wal_level}, not logical", hint)
    else:
        yield Finding("ok", "wal_level", "wal_level is logical")
    if not has_slot and slots >= max_slots:
        hint = (
            f"raise max_replication_slots (ALTER SYSTEM SET max_replication_slots = {max_slots + 5}) and restart the "
            "server; or ask the owner of an unused slot to drop that slot"
        )
        yield Finding("fail", "replication slots", f"all {max_slots} replication slots are in use", hint)
    else:
        yield Finding("ok", "replication slots", f"{slots} of {max_slots} in use")
    yield Finding("ok", "wal senders", f"{senders} of {max_senders} in use")


def _walsender(settings: SourceSettings, connection: Connection, *, drops_slot: bool) -> Iterator[Finding]:
    """Try a replication connection: a pooler, pg_hba.conf or the role may allow SQL connections only (F62)."""
    roles = {is_login: (name, may) for name, is_login, may in fetch(connection, _ROLES)}
    login, may_login = roles.get(True, ("", False))
    try:
        connect_replication(settings).close()
    except CdcdError as error:
        hint = (
            error.advice
            or "connect to PostgreSQL itself, not to a pooler, and correct the cause in the message"
        )
        message = error.message
        if login and not may_login:
            quoted = quote_identifier(login)
            hint = f"ALTER ROLE {quoted} REPLICATION (on Amazon RDS: GRANT rds_replication TO {quoted})"
            message = f"role {login} lacks REPLICATION: {message}"
            error = SourceSetup(message, hint=hint)
        yield Finding("fail", "replication connection", message, hint, error)
        return
    yield Finding("ok", "replication connection", f"role {login} may replicate and can connect")
    current, may_current = roles.get(False, (login, True))
    if not may_current:
        # Only pg_drop_replication_slot needs the privilege of current_user.
        message = f"role {login} becomes {current}, which lacks REPLICATION and so may not drop a slot"
        hint = f"ALTER ROLE {quote_identifier(login)} RESET role; or give {quote_identifier(current)} REPLICATION"
        yield Finding("fail" if drops_slot else "warn", "role", message, hint)


def _wal_limits(keep_size: str | None, *, limits_wal: bool) -> Iterator[Finding]:
    if keep_size == "-1" and not limits_wal:
        message = "it is -1: while Kafka or cdcd is down, the server retains WAL until its disk is full"
        hint = "ALTER SYSTEM SET max_slot_wal_keep_size to what the disk can hold; or set source.wal_guard.drop_slot"
        yield Finding("warn", "max_slot_wal_keep_size", message, hint)


def _heartbeat(connection: Connection) -> Iterator[Finding]:
    subject = "source.heartbeat_interval_ms"
    if may_write_heartbeat(connection):
        yield Finding("ok", subject, "the role may write heartbeats")
        return
    role = quote_identifier(fetch(connection, "SELECT current_user::text")[0][0])
    hint = f"GRANT EXECUTE ON FUNCTION pg_logical_emit_message(boolean, text, text{{}}) TO {role}, or set it to 0"
    more = ", boolean" if connection.server_version >= 170_000 else ""
    message = "the role lacks EXECUTE on pg_logical_emit_message, so cdcd writes no heartbeats"
    yield Finding("warn", subject, message, hint.format(more))


def _decoding(encoding: str, plugins: str | None) -> Iterator[Finding]:
    if encoding == "SQL_ASCII":
        hint = "convert the database to UTF8; until then text that is not UTF-8 halts the stream"
        yield Finding("warn", "encoding", "the database's encoding is SQL_ASCII", hint)
    if plugins is not None and "pgoutput" not in [name.strip() for name in plugins.split(",")]:
        hint = f"ALTER SYSTEM SET output_plugin_libraries = '{plugins}, pgoutput'; SELECT pg_reload_conf()"
        yield Finding("fail", "output plugin", "output_plugin_libraries does not allow pgoutput", hint)


def _options(settings: SourceSettings, server: ServerIdentity, options: StreamOptions) -> Iterator[Finding]:
    """Yield the configured options that this server does not support, with the version that does."""
    missing = shortfalls(server.version_num, options, failover=settings.failover)
    for one in missing:
        if one.is_left_out:
            message = f"{one.wish} are not possible: {one.why}"
            yield Finding("warn", one.option, message, f"set {one.option}: false to accept this")
        else:
            yield Finding("fail", one.option, f"{one.wish} is not possible: {one.why}", one.hint)
    if not missing:
        shown = f"version {options.protocol_version}, streaming {options.streaming}"
        more = [name for name in ("binary", "messages", "two_phase") if getattr(options, name)]
        text = ", ".join([shown, *more, f"origin {options.origin}"])
        yield Finding("ok", "protocol", f"pgoutput {text}")


def _failover(slot: SlotState | None, standby_slots: str | None) -> Iterator[Finding]:
    """Yield the findings about a failover slot and its standbys (PostgreSQL 17+)."""
    subject = "source.slot.failover"
    if slot is not None and not slot.failover:
        hint = f'ALTER_REPLICATION_SLOT "{slot.name}" (FAILOVER true), on a replication connection'
        message = f"slot {slot.name} exists and is not synchronized to standbys"
        yield Finding("warn", subject, message, hint)
    elif standby_slots:
        yield Finding("ok", subject, "the slot is synchronized to standbys")
    if not standby_slots:
        message = "synchronized_standby_slots is empty: rows may reach Kafka before a standby has them"
        hint = "ALTER SYSTEM SET synchronized_standby_slots = 'the standby''s physical slot'; reload"
        yield Finding("warn", "synchronized_standby_slots", message, hint)


def holder_findings(connection: Connection, settings: SourceSettings, slot: SlotState) -> Iterator[Finding]:
    """Yield the finding about the session that streams from the slot; cdcd's own is ok. Raises Source errors."""
    if not slot.active:
        yield Finding("ok", "slot", f"slot {slot.name} is free, confirmed to {_lsn(slot)}")
        return
    rows = fetch(connection, _HOLDER, (slot.active_pid,))
    application, since = rows[0] if rows else ("", None)
    if application == settings.application_name:
        message = f"slot {slot.name} is in use by process {slot.active_pid}, a daemon of this name"
        yield Finding("ok", "slot", message)
        return
    who = (
        f"application {application!r}"
        if application
        else "whose application the role has no privilege to see"
    )
    message = (
        f"slot {slot.name} is in use by process {slot.active_pid}, {who}, since {since or 'an unknown time'}"
    )
    hint = (
        "a start waits until this process releases the slot; if the process is not a cdcd of this "
        "configuration, choose another source.slot.name"
    )
    yield Finding("fail", "slot", message, hint, SlotActive(message, hint=hint))


def _lsn(slot: SlotState) -> str:
    return "nothing" if slot.confirmed_flush_lsn is None else format_lsn(slot.confirmed_flush_lsn)


def _root(table: PublishedTable, policy_of: Callable[[str], Policy]) -> Root:
    name = f"{table.schema}.{table.name}"
    return Root(table.relid, name, table.identity, record_key(table, policy_of(name)))


def _table(table: PublishedTable, policy_of: Callable[[str], Policy]) -> Iterator[Finding]:
    name = f"{table.schema}.{table.name}"
    subject = f"table {name}"
    yield from key_findings(table, policy_of(name))
    if table.row_filter and table.needs_identity and table.identity is not ReplicaIdentity.FULL:
        message = (
            "an UPDATE after which a row matches the row filter lacks the row's unchanged TOASTed values"
        )
        yield Finding("warn", subject, message, f"ALTER TABLE {_quoted(table)} REPLICA IDENTITY FULL")
    if table.conflict:
        yield Finding("fail", subject, table.conflict, CONFLICT_HINT)


def readable_findings(
    connection: Connection, tables: list[PublishedTable], copied_columns: Mapping[int, Collection[str]]
) -> Iterator[Finding]:
    """Yield the privileges that the role lacks to copy these columns; one finding per schema, not per table."""
    role = quote_identifier(fetch(connection, "SELECT current_user::text")[0][0])
    rows = fetch(connection, _PRIVILEGES, ([table.relid for table in tables],))
    privileges = {row[0]: row[1:] for row in rows}
    filtered = _filter_columns(connection, tables)
    closed: set[str] = set()
    for table in tables:
        if table.relid not in privileges or table.relid not in copied_columns:
            continue  # dropped in the meantime, or not copied
        may_use, may_select, unreadable = privileges[table.relid]
        if not may_use and table.schema not in closed:
            closed.add(table.schema)
            hint = f"GRANT USAGE ON SCHEMA {quote_identifier(table.schema)} TO {role}"
            message = f"role {role} lacks USAGE on the schema, so a snapshot cannot copy its tables"
            yield Finding("fail", f"schema {table.schema}", message, hint)
        subject = f"table {table.schema}.{table.name}"
        selected = copied_columns[table.relid]
        read = dict.fromkeys([*selected, *filtered.get(table.relid, ())])
        hidden = [column for column in read if column in unreadable]
        if hidden or not (selected or may_select):
            yield _unreadable(table, subject, role, hidden)
        if table.has_row_security:
            hint = f"ALTER ROLE {role} BYPASSRLS"
            yield Finding("fail", subject, "row-level security would hide rows from the snapshot", hint)


def _unsent(connection: Connection, tables: list[PublishedTable]) -> Iterator[Finding]:
    """Yield the partitions of which PostgreSQL sends no changes, although it lets the table be published."""
    named = {table.relid: f"table {table.schema}.{table.name}" for table in tables}
    for root, schema, name, is_foreign in fetch(connection, _UNSENT, (list(named),)):
        kind = "a foreign table" if is_foreign else "UNLOGGED"
        quoted = f"{quote_identifier(schema)}.{quote_identifier(name)}"
        yield Finding(
            "warn",
            named[root],
            f"{schema}.{name} is {kind}: PostgreSQL sends none of its changes, so its rows stay as they were copied",
            "detach the partition, or publish the other partitions one by one"
            if is_foreign
            else f"ALTER TABLE {quoted} SET LOGGED",
        )


def _filter_columns(connection: Connection, tables: list[PublishedTable]) -> dict[int, list[str]]:
    """Return the columns of the row filters by relid: a copy reads them, also where they are not published."""
    filtered = [table for table in tables if table.row_filter is not None]
    if not filtered:
        return {}
    publications = sorted({name for table in filtered for name in table.publications})
    rows = fetch(connection, _FILTERED, ([table.relid for table in filtered], publications))
    return {row[0]: row[1] for row in rows}


def _unreadable(table: PublishedTable, subject: str, role: str, hidden: list[str]) -> Finding:
    if len(hidden) == len(table.columns):
        hint = f"GRANT SELECT ON {_quoted(table)} TO {role}"
        return Finding(
            "fail", subject, f"role {role} lacks SELECT on the table, so a snapshot cannot copy it", hint
        )
    columns = ", ".join(map(quote_identifier, hidden))
    message = f"role {role} lacks SELECT on the columns {columns}, so a snapshot cannot copy the table"
    return Finding("fail", subject, message, f"GRANT SELECT ({columns}) ON {_quoted(table)} TO {role}")


def _quoted(table: PublishedTable) -> str:
    return f"{quote_identifier(table.schema)}.{quote_identifier(table.name)}"
