"""Connect to PostgreSQL with psycopg2, with the session settings on which output depends; translate errors.

In: `SourceSettings`.  Out: psycopg2 connections in autocommit, or errors of cdcd's tree.
Invariant: the settings are made before any other query, so that defaults of role, database or environment, or a login
event trigger, cannot change the text of a value (F53). The password is read again at each connect, and no message
contains it. The server's notices are logged.
Must not: stream (see `stream`), or let a psycopg2 exception leave this package.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg2
from psycopg2.extensions import connection as Connection  # noqa: N812
from psycopg2.extensions import parse_dsn
from psycopg2.extras import LogicalReplicationConnection

from cdcd.errors import CdcdError, SourceAuthentication, SourceSetup, SourceUnavailable
from cdcd.ops.notices import log_notices
from cdcd.redaction import add_secret, clean
from cdcd.source.connect_errors import connect_failure, refusals
from cdcd.source.deadline import ANSWER_DEADLINE_S, within
from cdcd.source.error_map import (
    MAX_REPORT_CHARACTERS,
    ServerReport,
    failure_for,
    first_line,
)
from cdcd.source.settings import SourceSettings

_AT_CONNECT = {
    "statement_timeout": "0",  # the role's default may be too short for the statement that sets the others
    "lock_timeout": "0",
    "client_min_messages": "warning",  # cdcd needs the warning "skipped loading publication" (F72)
}

_SESSION = {
    **_AT_CONNECT,
    "datestyle": "ISO",
    "intervalstyle": "postgres",
    "timezone": "UTC",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "quote_all_identifiers": "off",
    "search_path": "pg_catalog",  # regclass and similar types print names according to the search path
    "lc_monetary": "C",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    "transaction_timeout": "0",
}
"""The settings on which output depends, and the time-outs of all major versions (F37).

Not as startup options: a login event trigger (PostgreSQL 17) needs the search path that it was written for, and its
own settings must be overridden. Also, the reset value of lc_monetary must remain that of role and database, because
it determines the fraction digits of money (`catalog`).
"""

_KEEPALIVES = {
    "keepalives": "1",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
}

# By name, because major versions have different settings. Every name is qualified: any search path may be set here.
_AFTERWARDS = f"""
    SELECT pg_catalog.set_config(s.name, ours.value, false)
    FROM pg_catalog.pg_settings s
    JOIN (VALUES {", ".join(f"('{name}', '{value}')" for name, value in _SESSION.items())}) ours(name, value)
    ON pg_catalog.lower(s.name) OPERATOR(pg_catalog.=) ours.name
"""  # noqa: S608 - of constants


STARTED = "SELECT (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint"
"""The start of the server: no two servers, and no server after a restart, have the same microsecond."""
MOST_CONNECTIONS = 20
"""How often to connect until a name that leads to several servers leads to the wanted one."""


def connect_sql(settings: SourceSettings) -> Connection:
    """Return a connection for SQL, in autocommit. Raises SourceUnavailable, -Authentication or -Setup."""
    for _ in range(1 if settings.instance is None else MOST_CONNECTIONS):
        connection = _connect(settings, None)
        connection.autocommit = True
        _set_up(connection)
        if settings.instance is None or _is_instance(connection, settings.instance):
            return connection
        connection.close()
    raise SourceUnavailable(
        f"none of {MOST_CONNECTIONS} connections reached the server of the first connection: the server was "
        f"restarted, or {settings.option} leads to several servers",
        hint="no action is needed if the server was restarted: cdcd tries again. Otherwise name a single server",
    )


def _is_instance(connection: Connection, started_us: int) -> bool:
    try:
        return bool(fetch(connection, STARTED)[0][0] == started_us)
    except CdcdError:
        connection.close()
        raise


def connect_replication(settings: SourceSettings) -> LogicalReplicationConnection:
    """Return a walsender connection to the DSN's database (replication=database). Raises as `connect_sql`."""
    connection = _connect(settings, LogicalReplicationConnection)
    if not isinstance(connection, LogicalReplicationConnection):
        raise TypeError("psycopg2 returned an unexpected class of connection")
    _set_up(connection)
    return connection


def translate(error: BaseException) -> CdcdError:
    """Return cdcd's error for a psycopg2 error: by SQLSTATE, or by text if the connection failed.

    Raises MemoryError.
    """
    if isinstance(error, MemoryError):
        raise error
    if isinstance(error, CdcdError):
        return error
    if not isinstance(error, psycopg2.Error):
        return SourceUnavailable(f"unexpected {type(error).__name__} from the driver")
    if error.pgcode is None:
        return connect_failure(refusals(str(error)) or [type(error).__name__])
    text = clean(first_line(str(error)), MAX_REPORT_CHARACTERS)
    diag = error.diag
    primary = clean(first_line(diag.message_primary or text), MAX_REPORT_CHARACTERS)
    return failure_for(
        ServerReport(error.pgcode, primary, diag.severity_nonlocalized or "ERROR", diag.source_function)
    )


@contextmanager
def translated() -> Iterator[None]:
    """Replace psycopg2's exceptions inside the block by cdcd's."""
    try:
        yield
    except psycopg2.Error as error:
        raise translate(error) from None


def fetch(
    connection: Connection, sql: str, parameters: tuple[Any, ...] = (), *, limit_s: float = ANSWER_DEADLINE_S
) -> list[tuple[Any, ...]]:
    """Run one query and return its rows. Raises cdcd's errors. A walsender accepts no parameters.

    Without a result within `limit_s` the connection is shut down (F16).
    """
    try:
        with translated(), within(connection, limit_s), connection.cursor() as cursor:
            cursor.execute(sql, parameters or None)
            return cursor.fetchall()
    finally:
        log_notices(connection.notices)


def connection_parameters(settings: SourceSettings) -> dict[str, str]:
    """Return libpq's parameters of this DSN. Raises SourceSetup, SourceAuthentication.

    The DSN's time-outs and keepalives have priority; the settings on which output depends are overridden.
    """
    parameters = _parsed(settings)
    for secret in (parameters.get("password"), parameters.get("sslpassword"), os.environ.get("PGPASSWORD")):
        add_secret(secret)
    for key, read in (("password", settings.read_password), ("sslpassword", settings.read_ssl_password)):
        secret = _secret(key, read)
        if secret is not None:
            add_secret(secret, renews=f"{settings.option.partition('.')[0]} {key}")
            parameters[key] = secret
    for key, value in _KEEPALIVES.items():
        parameters.setdefault(key, value)
    parameters.setdefault("connect_timeout", str(settings.connect_timeout_s))
    parameters["application_name"] = settings.application_name
    parameters["client_encoding"] = "UTF8"
    ours = " ".join(f"-c {name}={value}" for name, value in _AT_CONNECT.items())
    parameters["options"] = f"{parameters.get('options', '')} {ours}".strip()
    return parameters


def _parsed(settings: SourceSettings) -> dict[str, str]:
    """Parse the DSN. Raises SourceSetup without any part of it: libpq's error messages quote parts of passwords."""
    try:
        parameters = {key: str(value) for key, value in parse_dsn(settings.dsn).items()}
    except psycopg2.Error:
        raise SourceSetup(
            f"{settings.option} is not a connection URL or keyword string that libpq can parse",
            hint="percent-encode special characters, or move the password into source.password_file",
        ) from None
    ports = [port for port in parameters.get("port", "").split(",") if port]
    if "@" in parameters.get("host", "") or not all(port.isdigit() for port in ports):
        raise SourceSetup(
            f"{settings.option} has an invalid host or port",
            hint="percent-encode @ : / ? # in the password, or move it into source.password_file",
        )
    return parameters


def _secret(what: str, read: Callable[[], str | None]) -> str | None:
    try:
        return read()
    except OSError as error:
        raise SourceAuthentication(
            f"the {what} cannot be read: {error.strerror or type(error).__name__}"
        ) from None


def _connect(settings: SourceSettings, factory: type[Connection] | None) -> Connection:
    parameters = connection_parameters(settings)
    given: dict[str, Any] = {**parameters}  # the type stubs lack libpq's keyword parameters
    try:
        opened: Connection = psycopg2.connect(connection_factory=factory, **given)
        return opened
    except psycopg2.Error as error:
        raise translate(error) from None


def _set_up(connection: Connection) -> Connection:
    """Make the settings on which output depends, and disable the time-outs of role and database."""
    try:
        fetch(connection, _AFTERWARDS)
    except CdcdError:
        connection.close()
        raise
    return connection
