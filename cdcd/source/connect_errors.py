"""What a failed connection means: libpq's texts, which come without a SQLSTATE, and what can be done about each.

In: libpq's text.  Out: an error of cdcd's tree with a hint of its own.
Invariant: what waiting cannot mend halts: who answers is a connection pooler, or no PostgreSQL, or the database or an
option does not exist. What is not recognised (the server's words may be in any language) is tried again, and so is
whatever a secret or a file that is read again can mend.
Must not: pass on what libpq appends below a line: DETAIL, or advice of its own.
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
    "what answers there is a connection pooler (PgBouncer, RDS Proxy, Supavisor), which does not carry logical "
    "replication: name host and port of PostgreSQL itself in source.dsn"
)
_NO_POSTGRES_HINT = "what answers there is not PostgreSQL: correct host and port in source.dsn"
_OPTIONS_HINT = "correct `options` in source.dsn"
_WRONG_HINT = (
    "correct the role's password where it is given (source.password_file, source.dsn, PGPASSWORD or a pgpass file); "
    "files are read again at each try"
)
_NONE_GIVEN_HINT = "give the role's password in source.password_file, source.dsn or a pgpass file"
_CERTIFICATE_HINT = (
    "correct the certificate that is named, or sslmode, sslrootcert, sslcert and sslkey in source.dsn; the files are "
    "read again at each try"
)
_HBA_HINT = (
    "add the role, this machine's address and the database to pg_hba.conf, then `SELECT pg_reload_conf()`; for "
    "replication=database a line with the database's own name counts, not one with `replication`"
)
_STARTING_HINT = "no action is needed: cdcd tries again until the server takes connections"
_CONNECTIONS_HINT = "end sessions that nobody needs, or raise max_connections and restart the server"


@dataclass(frozen=True, slots=True)
class _Refusal:
    """A failure to connect: what its text has, in lower case (all of one of `phrases`), and what it means."""

    phrases: tuple[tuple[str, ...], ...]
    cls: type[SourceError]
    hint: str


def _any(cls: type[SourceError], hint: str, *phrases: str | tuple[str, ...]) -> _Refusal:
    return _Refusal(tuple((one,) if isinstance(one, str) else one for one in phrases), cls, hint)


_REFUSALS = (
    # A pooler's own words: PgBouncer, Amazon RDS Proxy, Odyssey, Supavisor.
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
        "turn on ssl in the server's configuration, or ask for less with sslmode in source.dsn",
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
        "end replication connections that nobody needs, or raise max_wal_senders and restart the server",
        "exceeds max_wal_senders",
    ),
    _any(
        SourceUnavailable,
        "none of the hosts in source.dsn is a primary that can be written to; cdcd tries again until one is",
        "session is read-only",
        "server is in hot standby mode",
        "session is not",
    ),
    _any(
        SourceUnavailable,
        "correct the host in source.dsn, or see to the name service; cdcd tries again",
        "could not translate host name",
    ),
    _any(
        SourceUnavailable,
        "start PostgreSQL, or correct host and port in source.dsn, or the server's listen_addresses; it is tried "
        "again",
        "connection refused",
        "no such file or directory",
    ),
    _any(
        SourceUnavailable,
        "see to the network between here and the server (a firewall, a wrong address in source.dsn); it is tried "
        "again",
        "timeout expired",
        "timed out",
        "no route to host",
        "network is unreachable",
    ),
    # The server's or a pooler's own words, of a kind that nobody has thought of: it is there, and says no.
    _any(
        SourceUnavailable,
        "the server answers and refuses the connection: its message says why (a login event trigger can raise one); "
        "cdcd tries again",
        "fatal:  ",
        "error:  ",
    ),
)
"""The first that fits decides."""


def refusals(text: str) -> list[str]:
    """Return what libpq says of each host that it has tried; below is detail, or advice of its own."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    tried = [line for line in lines[1:] if line.startswith(_OF_A_HOST)]
    return [clean(line, MAX_REPORT_CHARACTERS) for line in [*lines[:1], *tried[: MOST_HOSTS - 1]]]


def connect_failure(texts: Sequence[str]) -> SourceError:
    """Return the error for libpq's texts of a failed connection, one a host; they come without a SQLSTATE.

    What is not recognised is SourceUnavailable: a connection is always tried again. Of several hosts one that may
    come back decides: nobody is needed for the others before that. Raises MemoryError.
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
