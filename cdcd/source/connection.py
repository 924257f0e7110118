"""Connect to PostgreSQL with psycopg2, with the session settings that output depends on; translate errors.

In: `SourceSettings`.  Out: psycopg2 connections in autocommit, or errors of cdcd's tree.
Invariant: the settings are made before anything else is asked, so defaults of role, database or environment, or a
login event trigger, cannot change the text of a value (F53); the password is read again at each connect, and no
message carries it; what the server says beside its answers goes into the log.
Must not: stream (see `stream`), or let a psycopg2 exception leave this room.
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
    "statement_timeout": "0",  # as a default of the role it may be shorter than the statement that sets the others
    "lock_timeout": "0",
    "client_min_messages": "warning",  # "skipped loading publication" has to reach us (F72)
}

_SESSION = {
    **_AT_CONNECT,
    "datestyle": "ISO",
    "intervalstyle": "postgres",
    "timezone": "UTC",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "quote_all_identifiers": "off",
    "search_path": "pg_catalog",  # regclass and its kin print a name as the search path demands
    "lc_monetary": "C",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    "transaction_timeout": "0",
}
"""What output depends on, and the time-outs of all majors (F37).

Not as start-up options: a login event trigger (PostgreSQL 17) finds its names by the search path that it was written
for, and what it sets itself must not stand. And lc_monetary as it would be without cdcd has to stay to be asked for,
because it is what gives money its fraction digits (`catalog`).
"""

_KEEPALIVES = {
    "keepalives": "1",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
}

# By name, because each major has others; nothing of it is found by the search path that it begins with.
_AFTERWARDS = f"""
    SELECT pg_catalog.set_config(s.name, ours.value, false)
    FROM pg_catalog.pg_settings s
    JOIN (VALUES {", ".join(f"('{name}', '{value}')" for name, value in _SESSION.items())}) ours(name, value)
    ON pg_catalog.lower(s.name) OPERATOR(pg_catalog.=) ours.name
"""  # noqa: S608 - of constants


def connect_sql(settings: SourceSettings) -> Connection:
    """Return a connection for SQL, in autocommit. Raises SourceUnavailable, -Authentication or -Setup."""
    connection = _connect(settings, None)
    connection.autocommit = True
    return _set_up(connection)


def connect_replication(settings: SourceSettings) -> LogicalReplicationConnection:
    """Return a walsender connection to the DSN's database (replication=database). Raises as `connect_sql`."""
    connection = _connect(settings, LogicalReplicationConnection)
    if not isinstance(connection, LogicalReplicationConnection):
        raise TypeError("psycopg2 returned another class of connection")
    _set_up(connection)
    return connection


def translate(error: BaseException) -> CdcdError:
    """Return cdcd's error for one of psycopg2's: by SQLSTATE, or by text when it failed to connect.

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
    """Turn psycopg2's exceptions inside the block into cdcd's."""
    try:
        yield
    except psycopg2.Error as error:
        raise translate(error) from None


def fetch(
    connection: Connection, sql: str, parameters: tuple[Any, ...] = (), *, limit_s: float = ANSWER_DEADLINE_S
) -> list[tuple[Any, ...]]:
    """Run one query and return its rows. Raises cdcd's errors. A walsender takes no parameters.

    Without an answer in `limit_s` the connection is given up (F16).
    """
    try:
        with translated(), within(connection, limit_s), connection.cursor() as cursor:
            cursor.execute(sql, parameters or None)
            return cursor.fetchall()
    finally:
        log_notices(connection.notices)


def connection_parameters(settings: SourceSettings) -> dict[str, str]:
    """Return libpq's parameters of this DSN. Raises SourceSetup, SourceAuthentication.

    What the DSN says about time-outs and keepalives stands; what output depends on is overridden.
    """
    parameters = _parsed(settings.dsn)
    for secret in (parameters.get("password"), parameters.get("sslpassword"), os.environ.get("PGPASSWORD")):
        add_secret(secret)
    for key, read in (("password", settings.read_password), ("sslpassword", settings.read_ssl_password)):
        secret = _secret(key, read)
        if secret is not None:
            add_secret(secret, renews=f"source {key}")
            parameters[key] = secret
    for key, value in _KEEPALIVES.items():
        parameters.setdefault(key, value)
    parameters.setdefault("connect_timeout", str(settings.connect_timeout_s))
    parameters["application_name"] = settings.application_name
    parameters["client_encoding"] = "UTF8"
    ours = " ".join(f"-c {name}={value}" for name, value in _AT_CONNECT.items())
    parameters["options"] = f"{parameters.get('options', '')} {ours}".strip()
    return parameters


def _parsed(dsn: str) -> dict[str, str]:
    """Parse the DSN without ever repeating a part of it: libpq's complaints quote pieces of passwords."""
    try:
        parameters = {key: str(value) for key, value in parse_dsn(dsn).items()}
    except psycopg2.Error:
        raise SourceSetup(
            "source.dsn is not a connection URL or keyword string that libpq can parse",
            hint="percent-encode special characters, or move the password into source.password_file",
        ) from None
    ports = [port for port in parameters.get("port", "").split(",") if port]
    if "@" in parameters.get("host", "") or not all(port.isdigit() for port in ports):
        raise SourceSetup(
            "source.dsn has a host or port that cannot be one",
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
    given: dict[str, Any] = {**parameters}  # the stubs do not know keyword parameters of libpq by name
    try:
        opened: Connection = psycopg2.connect(connection_factory=factory, **given)
        return opened
    except psycopg2.Error as error:
        raise translate(error) from None


def _set_up(connection: Connection) -> Connection:
    """Set what output depends on, and lift the time-outs of role and database."""
    try:
        fetch(connection, _AFTERWARDS)
    except CdcdError:
        connection.close()
        raise
    return connection
