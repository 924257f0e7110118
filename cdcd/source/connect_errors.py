"""Classify failed connections by libpq's texts, which have no SQLSTATE, and give a hint for each.

In: libpq's text.  Out: an error of cdcd's tree with its hint.
Invariant: a failure that waiting cannot resolve halts: the peer is a connection pooler or not PostgreSQL, or the
database or an option does not exist. An unknown text (server messages may be in any language) is retried, and so is a
failure that a changed secret or file may resolve.
Must not: pass on the text that libpq appends below a line: DETAIL, or a hint of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cdcd.errors import Retry, SourceAuthentication, SourceError, SourceSetup, SourceUnavailable
from cdcd.redaction import clean
from cdcd.source.error_map import MAX_REPORT_CHARACTERS, refuse_want_of_memory

__all__ = ["connect_failure", "refusals"]

MOST_HOSTS = 8
_OF_A_HOST = ("connection to server ", "could not translate host name ")

_POOLER_HINT = (
    "source.dsn names a connection pooler (PgBouncer, RDS Proxy, Supavisor), which does not support logical "
    "replication: name host and port of PostgreSQL itself in source.dsn"
)
_NO_POSTGRES_HINT = "the server at this address is not PostgreSQL: correct host and port in source.dsn"
_OPTIONS_HINT = "correct `options` in source.dsn"
_WRONG_HINT = (
    "correct the role's password in the place where it is set (source.password_file, source.dsn, PGPASSWORD or a "
    "pgpass file); cdcd reads files again at each attempt"
)
_NONE_GIVEN_HINT = "set the role's password in source.password_file, source.dsn or a pgpass file"
_CERTIFICATE_HINT = (
    "correct the certificate that the message names, or sslmode, sslrootcert, sslcert and sslkey in source.dsn; cdcd "
    "reads the files again at each attempt"
)
_HBA_HINT = (
    "add the role, this machine's address and the database to pg_hba.conf, then `SELECT pg_reload_conf()`; for "
    "replication=database the line must have the database's own name, not `replication`"
)
_STARTING_HINT = "no action is needed: cdcd tries again until the server accepts connections"
_CONNECTIONS_HINT = "end unused sessions, or raise max_connections and restart the server"


@dataclass(frozen=True, slots=True)
class _Refusal:
    """A kind of connection failure: its text contains, in lower case, all parts of one of `phrases`."""

    phrases: tuple[tuple[str, ...], ...]
    cls: type[SourceError]
    hint: str


def _any(cls: type[SourceError], hint: str, *phrases: str | tuple[str, ...]) -> _Refusal:
    return _Refusal(tuple((one,) if isinstance(one, str) else one for one in phrases), cls, hint)


_REFUSALS = (
    # Messages of poolers: PgBouncer, Amazon RDS Proxy, Odyssey, Supavisor.
    _any(
        SourceSetup,
        _POOLER_HINT,
        "unsupported startup parameter",
        "unsupported options startup parameter",
        "rds proxy currently",
        "odyssey",
        "replication connections are not supported",
    ),
    _any(SourceAuthentication, _HBA_HINT, "no pg_hba.conf entry", "pg_hba.conf rejects"),
    _any(SourceAuthentication, _WRONG_HINT, "password authentication failed"),
    _any(SourceAuthentication, _NONE_GIVEN_HINT, "no password supplied"),
    _any(
        SourceAuthentication,
        "ALTER ROLE ... LOGIN, or name another role in source.dsn",
        "is not permitted to log in",
    ),
    _any(
        SourceAuthentication,
        "CREATE ROLE ... LOGIN REPLICATION, or name another role in source.dsn",
        ("role ", "does not exist"),
    ),
    _any(
        SourceAuthentication,
        "turn on ssl in the server's configuration, or set a lower sslmode in source.dsn",
        "does not support ssl",
    ),
    _any(SourceAuthentication, _CERTIFICATE_HINT, "certificate"),
    _any(
        SourceAuthentication,
        "correct role, password and sslmode in source.dsn, or the line of pg_hba.conf",
        "authentication failed",
        "authentication method",
    ),
    _any(
        SourceSetup,
        "ALTER ROLE ... REPLICATION (on Amazon RDS: GRANT rds_replication TO ...)",
        "permission denied to start wal sender",
        "must be superuser or replication role",
    ),
    _any(SourceSetup, "GRANT CONNECT ON DATABASE ... TO the role", "permission denied for database"),
    _any(
        SourceSetup,
        "name a database of this server in source.dsn; `psql -l` lists them",
        ("database ", "does not exist"),
        "no such database",
    ),
    _any(
        SourceSetup,
        "ALTER DATABASE ... ALLOW_CONNECTIONS true, or name another database in source.dsn",
        "is not currently accepting connections",
    ),
    _any(
        SourceSetup,
        _OPTIONS_HINT,
        "unrecognized configuration parameter",
        "invalid value for parameter",
        "permission denied to set parameter",
        "invalid command-line argument",
    ),
    _any(
        SourceSetup,
        "correct source.dsn",
        "invalid connection option",
        "invalid sslmode",
        "invalid port number",
        "could not match",
        ("invalid", " value:"),
    ),
    _any(
        SourceSetup,
        _NO_POSTGRES_HINT,
        "received invalid response to ssl negotiation",
        "expected authentication request from server",
        "unsupported frontend protocol",
    ),
    _any(
        SourceUnavailable,
        _STARTING_HINT,
        "is starting up",
        "is shutting down",
        "is in recovery mode",
        "is not yet accepting connections",
    ),
    _any(
        SourceUnavailable,
        "ALTER ROLE ... CONNECTION LIMIT, or end its sessions",
        "too many connections for role",
    ),
    _any(
        SourceUnavailable,
        "ALTER DATABASE ... CONNECTION LIMIT, or end its sessions",
        "too many connections for database",
    ),
    _any(
        SourceUnavailable,
        _CONNECTIONS_HINT,
        "too many clients already",
        "remaining connection slots are reserved",
    ),
    _any(
        SourceUnavailable,
        "end unused replication connections, or raise max_wal_senders and restart the server",
        "exceeds max_wal_senders",
    ),
    _any(
        SourceUnavailable,
        "none of the hosts in source.dsn is a writable primary; cdcd tries again until one is",
        "session is read-only",
        "server is in hot standby mode",
        "session is not",
    ),
    _any(
        SourceUnavailable,
        "correct the host in source.dsn, or repair the name service; cdcd tries again",
        "could not translate host name",
    ),
    _any(
        SourceUnavailable,
        "start PostgreSQL, or correct host and port in source.dsn, or the server's listen_addresses; cdcd tries "
        "again",
        "connection refused",
        "no such file or directory",
    ),
    _any(
        SourceUnavailable,
        "check the network between this machine and the server (a firewall, a wrong address in source.dsn); cdcd "
        "tries again",
        "timeout expired",
        "timed out",
        "no route to host",
        "network is unreachable",
    ),
    # Any other message of a server or a pooler: it is reachable and refuses the connection.
    _any(
        SourceUnavailable,
        "the server refuses the connection, for the reason in its message (a login event trigger can raise such an "
        "error); cdcd tries again",
        "fatal:  ",
        "error:  ",
    ),
)
"""The first match applies."""


def refusals(text: str) -> list[str]:
    """Return libpq's message for each host that it tried, without the details and hints below the messages."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    tried = [line for line in lines[1:] if line.startswith(_OF_A_HOST)]
    return [clean(line, MAX_REPORT_CHARACTERS) for line in [*lines[:1], *tried[: MOST_HOSTS - 1]]]


def connect_failure(texts: Sequence[str]) -> SourceError:
    """Return the error for libpq's texts of a failed connection, one per host; they have no SQLSTATE.

    An unknown text is SourceUnavailable, which is retried. Of several hosts, one whose failure is retried decides: no
    operator is needed for the others before that. Raises MemoryError.
    """
    refuse_want_of_memory(texts[0])
    found = [_refused(text) for text in texts]
    cls, hint = next((one for one in found if one[0].retry is Retry.AUTO), found[0])
    return cls("; ".join(texts), hint=hint)


def _refused(text: str) -> tuple[type[SourceError], str | None]:
    lowered = text.lower()
    for refusal in _REFUSALS:
        if any(all(part in lowered for part in phrase) for phrase in refusal.phrases):
            return refusal.cls, refusal.hint
    return SourceUnavailable, None
