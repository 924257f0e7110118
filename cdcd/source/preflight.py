"""All of `cdcd check` on PostgreSQL's side: what would fail, at once, each with what mends it. Blocking.

In: settings.  Out: findings, the good ones too.
Invariant: one problem never hides another that could still be seen; nothing is changed on the server.
Must not: raise for what it finds, or hold a slot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from psycopg2.extensions import connection as Connection  # noqa: N812

from cdcd.errors import CdcdError, SourceAuthentication
from cdcd.findings import Finding
from cdcd.lsn import format_lsn
from cdcd.model import ReplicaIdentity
from cdcd.schema.policy import DEFAULT_POLICY, Policy
from cdcd.source.connection import connect_replication, connect_sql, fetch
from cdcd.source.heartbeat import may_write_heartbeat
from cdcd.source.identity import ServerIdentity, identify
from cdcd.source.key_check import key_findings, record_key
from cdcd.source.partitions import Root
from cdcd.source.partitions import shortfalls as shortfalls_of_partitions
from cdcd.source.publication import (
    CONFLICT_MEND,
    PublishedTable,
    create_publication_sql,
    missing_publications,
    published_tables,
)
from cdcd.source.settings import FAILOVER_SINCE_MAJOR, SourceSettings, StreamOptions, shortfalls
from cdcd.source.slot import SlotState, read_slot
from cdcd.source.start import quote_identifier

_FACTS = """
    SELECT current_setting('wal_level'), current_setting('max_replication_slots')::int,
           current_setting('max_wal_senders')::int,
           (SELECT count(*) FROM pg_replication_slots)::int,
           (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'walsender')::int,
           r.rolname::text, r.rolsuper, r.rolreplication,
           EXISTS (SELECT FROM pg_roles m WHERE m.rolname IN ('rds_replication', 'rds_superuser')
                   AND pg_has_role(r.oid, m.oid, 'member')),
           getdatabaseencoding()::text, current_setting('output_plugin_libraries', true),
           current_setting('synchronized_standby_slots', true)
    FROM pg_roles r WHERE r.rolname = current_user
"""


# `unreadable`: columns that neither a grant on the table nor one on the column lets the role read.
_PRIVILEGES = """
    SELECT c.oid, has_schema_privilege(c.relnamespace, 'USAGE'), has_table_privilege(c.oid, 'SELECT'),
           ARRAY(SELECT a.attname::text FROM pg_attribute a
                 WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
                   AND NOT has_column_privilege(c.oid, a.attnum, 'SELECT')) AS unreadable
    FROM pg_class c WHERE c.oid = ANY(%s::oid[])
"""


def _default_policy(_table: str) -> Policy:
    return DEFAULT_POLICY


def preflight(
    settings: SourceSettings,
    *,
    slot_create: bool = True,
    publication_create: bool = False,
    snapshot: bool = True,
    wanted: Callable[[int], StreamOptions] | None = None,
    policy_of: Callable[[str], Policy] = _default_policy,
    heartbeat: bool = False,
) -> list[Finding]:
    """Return what a start would meet. Does not raise.

    `slot_create`: a start makes a missing slot. `publication_create`: `cdcd init` makes a missing publication;
    a start never does. `snapshot`: a start copies the tables, so the role has to be able to read them.
    `wanted`: the options that the configuration wants of a server of this version number. `policy_of`: what the
    configuration says of `schema.table`, also the key that it gives where the database gives none. `heartbeat`: the
    daemon shall write heartbeats.
    """
    try:
        connection = connect_sql(settings)
    except CdcdError as error:
        return [_connect_failed(error)]
    try:
        return [
            *_server_findings(settings, connection, slot_create, wanted),
            *(_heartbeat(connection) if heartbeat else ()),
            *_table_findings(settings, connection, publication_create, snapshot, policy_of),
        ]
    except CdcdError as error:
        return [Finding("fail", "source", error.message, "mend this first, then check again")]
    finally:
        connection.close()


def _server_findings(
    settings: SourceSettings,
    connection: Connection,
    slot_create: bool,
    wanted: Callable[[int], StreamOptions] | None,
) -> Iterator[Finding]:
    server = identify(connection)
    facts = fetch(connection, _FACTS)[0]
    slot = read_slot(connection, settings.slot)
    yield from _server(server)
    yield from _wal(*facts[:5], has_slot=slot is not None)
    yield from _role(facts[5], may_replicate=facts[6] or facts[7] or facts[8])
    yield from _walsender(settings)
    yield from _decoding(facts[9], facts[10])
    if wanted is not None:
        yield from _options(settings, server, wanted(server.version_num))
    if settings.failover and server.version_num >= FAILOVER_SINCE_MAJOR * 10_000:
        yield from _failover(slot, facts[11])
    yield from _slot(settings, slot, server, slot_create)


def _table_findings(
    settings: SourceSettings,
    connection: Connection,
    publication_create: bool,
    snapshot: bool,
    policy_of: Callable[[str], Policy],
) -> Iterator[Finding]:
    missing = missing_publications(connection, settings.publications)
    yield from _publications(settings, missing, publication_create)
    tables = published_tables(connection, settings.publications)
    if not tables and not missing:
        name = quote_identifier(settings.publications[0])
        message = "the publications have no tables"
        yield Finding("warn", "publication", message, f"ALTER PUBLICATION {name} ADD TABLE schema.table")
    for table in tables:
        yield from _table(table, policy_of)
    roots = [
        _root(table, policy_of) for table in tables if table.comes_from_partitions and table.needs_identity
    ]
    for one in shortfalls_of_partitions(connection, roots):
        yield Finding("warn", f"table {one.table}", one.message, one.mend)
    if snapshot:
        yield from _readable(connection, tables)


def _connect_failed(error: CdcdError) -> Finding:
    mend = error.advice or "start the server, or mend host, port and network in source.dsn"
    subject = "password" if isinstance(error, SourceAuthentication) else "connection"
    return Finding("fail", f"source {subject}", error.message, mend)


def _server(server: ServerIdentity) -> Iterator[Finding]:
    major = server.version_num // 10_000
    said = f"PostgreSQL {major}, database {server.database}, WAL at {format_lsn(server.wal_lsn)}"
    if major < 12:
        yield Finding("fail", "server", f"{said}: too old", "use PostgreSQL 14 or later")
    elif major < 14:
        yield Finding("warn", "server", f"{said}: no longer supported", "use PostgreSQL 14 or later")
    else:
        yield Finding("ok", "server", said)
    if server.in_recovery:
        mend = (
            "point source.dsn at the primary (target_session_attrs=read-write finds it among several hosts)"
        )
        yield Finding("fail", "standby", "the server is a standby; cdcd reads from a primary only", mend)


def _wal(
    wal_level: str, max_slots: int, max_senders: int, slots: int, senders: int, *, has_slot: bool
) -> Iterator[Finding]:
    if wal_level != "logical":
        mend = "ALTER SYSTEM SET wal_level = 'logical'; then restart the server"
        yield Finding("fail", "wal_level", f"wal_level is {wal_level}, not logical", mend)
    else:
        yield Finding("ok", "wal_level", "wal_level is logical")
    if not has_slot and slots >= max_slots:
        mend = f"drop an unused slot, or ALTER SYSTEM SET max_replication_slots = {max_slots + 5}; restart"
        yield Finding("fail", "replication slots", f"all {max_slots} replication slots are in use", mend)
    else:
        yield Finding("ok", "replication slots", f"{slots} of {max_slots} in use")
    if senders >= max_senders:
        mend = f"ALTER SYSTEM SET max_wal_senders = {max_senders + 5}; then restart the server"
        yield Finding("fail", "wal senders", f"all {max_senders} WAL senders are in use", mend)
    else:
        yield Finding("ok", "wal senders", f"{senders} of {max_senders} in use")


def _role(role: str, *, may_replicate: bool) -> Iterator[Finding]:
    if may_replicate:
        yield Finding("ok", "role", f"role {role} may replicate")
        return
    quoted = quote_identifier(role)
    mend = f"ALTER ROLE {quoted} REPLICATION (on Amazon RDS: GRANT rds_replication TO {quoted})"
    yield Finding("fail", "role", f"role {role} lacks REPLICATION", mend)


def _walsender(settings: SourceSettings) -> Iterator[Finding]:
    """Try the other kind of connection: a pooler or pg_hba.conf may allow SQL alone (F62)."""
    try:
        connect_replication(settings).close()
    except CdcdError as error:
        mend = error.advice or "connect to PostgreSQL itself, not to a pooler, and mend what is named above"
        yield Finding("fail", "replication connection", error.message, mend)
    else:
        yield Finding("ok", "replication connection", "a replication connection is accepted")


def _heartbeat(connection: Connection) -> Iterator[Finding]:
    subject = "source.heartbeat_interval_ms"
    if may_write_heartbeat(connection):
        yield Finding("ok", subject, "the role may write heartbeats")
        return
    role = quote_identifier(fetch(connection, "SELECT current_user::text")[0][0])
    mend = f"GRANT EXECUTE ON FUNCTION pg_logical_emit_message(boolean, text, text{{}}) TO {role}, or set it to 0"
    more = ", boolean" if connection.server_version >= 170_000 else ""
    yield Finding("fail", subject, "the role may not call pg_logical_emit_message", mend.format(more))


def _decoding(encoding: str, plugins: str | None) -> Iterator[Finding]:
    if encoding == "SQL_ASCII":
        mend = "convert the database to UTF8; until then text that is not UTF-8 halts the stream"
        yield Finding("warn", "encoding", "the database's encoding is SQL_ASCII", mend)
    if plugins is not None and "pgoutput" not in [name.strip() for name in plugins.split(",")]:
        mend = f"ALTER SYSTEM SET output_plugin_libraries = '{plugins}, pgoutput'; SELECT pg_reload_conf()"
        yield Finding("fail", "output plugin", "output_plugin_libraries does not allow pgoutput", mend)


def _options(settings: SourceSettings, server: ServerIdentity, options: StreamOptions) -> Iterator[Finding]:
    """What of the configured options this server cannot do, with the version that can."""
    missing = shortfalls(server.version_num, options, failover=settings.failover)
    for one in missing:
        if one.is_left_out:
            message = f"{one.wish} are left out: {one.why}"
            yield Finding("warn", one.option, message, f"{one.option}: false says that this is known")
        else:
            yield Finding("fail", one.option, f"{one.wish} is not possible: {one.why}", one.mend)
    if not missing:
        shown = f"version {options.protocol_version}, streaming {options.streaming}"
        more = [name for name in ("binary", "messages", "two_phase") if getattr(options, name)]
        said = ", ".join([shown, *more, f"origin {options.origin}"])
        yield Finding("ok", "protocol", f"pgoutput {said}")


def _failover(slot: SlotState | None, standby_slots: str | None) -> Iterator[Finding]:
    """What a slot that shall outlive its server needs beside its own flag (PostgreSQL 17+)."""
    subject = "source.slot.failover"
    if slot is not None and not slot.failover:
        mend = f'ALTER_REPLICATION_SLOT "{slot.name}" (FAILOVER true), on a replication connection'
        message = f"slot {slot.name} exists and is not synchronised to standbys"
        yield Finding("warn", subject, message, mend)
    elif standby_slots:
        yield Finding("ok", subject, "the slot is synchronised to standbys")
    if not standby_slots:
        message = "synchronized_standby_slots is empty: rows may reach Kafka before a standby has them"
        mend = "ALTER SYSTEM SET synchronized_standby_slots = 'the standby''s physical slot'; reload"
        yield Finding("warn", "synchronized_standby_slots", message, mend)


def _slot(
    settings: SourceSettings, slot: SlotState | None, server: ServerIdentity, may_create: bool
) -> Iterator[Finding]:
    name = settings.slot
    if slot is None:
        if may_create:
            yield Finding("ok", "slot", f"slot {name} does not exist yet and will be created")
        else:
            mend = "run `cdcd init`, or set source.slot.create: true"
            yield Finding("fail", "slot", f"slot {name} does not exist", mend)
        return
    again = f"SELECT pg_drop_replication_slot('{name}'); a new slot needs a new snapshot"
    if slot.slot_type != "logical" or slot.plugin != "pgoutput":
        kind = f"{slot.slot_type} slot of {slot.plugin or 'no plugin'}"
        yield Finding("fail", "slot", f"{name} is a {kind}", "choose another source.slot.name")
    elif slot.database != server.database:
        message = f"slot {name} belongs to database {slot.database}"
        yield Finding("fail", "slot", message, "choose another source.slot.name or database")
    elif slot.two_phase and not settings.two_phase:
        message = f"slot {name} has two_phase, so it sends transactions at PREPARE, and the configuration has it off"
        yield Finding("fail", "slot", message, f"set source.protocol.two_phase: true; or {again}")
    elif slot.is_lost:
        reason = slot.invalidation_reason or "its WAL was removed"
        yield Finding("fail", "slot", f"slot {name} was invalidated: {reason}", again)
    elif slot.active:
        mend = f"stop the cdcd that holds it, or SELECT pg_terminate_backend({slot.active_pid})"
        yield Finding("warn", "slot", f"slot {name} is in use by process {slot.active_pid}", mend)
    else:
        yield Finding("ok", "slot", f"slot {name} is free, confirmed to {_lsn(slot)}")


def _lsn(slot: SlotState) -> str:
    return "nothing" if slot.confirmed_flush_lsn is None else format_lsn(slot.confirmed_flush_lsn)


def _publications(settings: SourceSettings, missing: list[str], may_create: bool) -> Iterator[Finding]:
    if not settings.publications:
        yield Finding("fail", "publication", "no publication is configured", "set source.publication.names")
    for name in settings.publications:
        if name not in missing:
            yield Finding("ok", "publication", f"publication {name} exists")
        elif may_create:
            # Only `cdcd init` makes it: a daemon without its publication halts (F39).
            message = f"publication {name} does not exist; a start does not create it"
            yield Finding("fail", "publication", message, "run `cdcd init`, which does")
        else:
            mend = f"{create_publication_sql(name)}; or name its tables"
            yield Finding("fail", "publication", f"publication {name} does not exist", mend)


def _root(table: PublishedTable, policy_of: Callable[[str], Policy]) -> Root:
    name = f"{table.schema}.{table.name}"
    return Root(table.relid, name, table.identity, record_key(table, policy_of(name)))


def _table(table: PublishedTable, policy_of: Callable[[str], Policy]) -> Iterator[Finding]:
    name = f"{table.schema}.{table.name}"
    subject = f"table {name}"
    yield from key_findings(table, policy_of(name))
    if table.row_filter and table.needs_identity and table.identity is not ReplicaIdentity.FULL:
        message = "an UPDATE that brings a row into the row filter comes without its unchanged TOASTed values"
        yield Finding("warn", subject, message, f"ALTER TABLE {_quoted(table)} REPLICA IDENTITY FULL")
    if table.conflict:
        yield Finding("fail", subject, table.conflict, CONFLICT_MEND)


def _readable(connection: Connection, tables: list[PublishedTable]) -> Iterator[Finding]:
    """What the role lacks to copy these tables; one finding for a schema, not one for each of its tables."""
    role = quote_identifier(fetch(connection, "SELECT current_user::text")[0][0])
    rows = fetch(connection, _PRIVILEGES, ([table.relid for table in tables],))
    privileges = {row[0]: row[1:] for row in rows}
    closed: set[str] = set()
    for table in tables:
        if table.relid not in privileges:
            continue  # dropped since it was listed
        may_use, may_select, unreadable = privileges[table.relid]
        if not may_use and table.schema not in closed:
            closed.add(table.schema)
            mend = f"GRANT USAGE ON SCHEMA {quote_identifier(table.schema)} TO {role}"
            message = f"role {role} may not use it, so no snapshot of its tables"
            yield Finding("fail", f"schema {table.schema}", message, mend)
        subject = f"table {table.schema}.{table.name}"
        hidden = [column for column in table.columns if column in unreadable]
        if hidden or not (table.columns or may_select):
            yield _unreadable(table, subject, role, hidden)
        if table.has_row_security:
            mend = f"ALTER ROLE {role} BYPASSRLS"
            yield Finding("fail", subject, "row-level security would hide rows from the snapshot", mend)


def _unreadable(table: PublishedTable, subject: str, role: str, hidden: list[str]) -> Finding:
    if len(hidden) == len(table.columns):
        mend = f"GRANT SELECT ON {_quoted(table)} TO {role}"
        return Finding("fail", subject, f"role {role} may not read it, so no snapshot", mend)
    columns = ", ".join(map(quote_identifier, hidden))
    message = f"role {role} may not read its columns {columns}, so no snapshot"
    return Finding("fail", subject, message, f"GRANT SELECT ({columns}) ON {_quoted(table)} TO {role}")


def _quoted(table: PublishedTable) -> str:
    return f"{quote_identifier(table.schema)}.{quote_identifier(table.name)}"
