"""Connection failures are classified by their text; each has a fitting hint."""

from __future__ import annotations

import pytest

from cdcd.errors import Retry, SourceAuthentication, SourceError, SourceSetup, SourceUnavailable
from cdcd.source.connect_errors import connect_failure, refusals

AT = 'connection to server at "db" (10.0.0.1), port 5432 failed: '
CASES: list[tuple[str, type[SourceError], str]] = [
    # PgBouncer's own texts: without options, with ignore_startup_parameters = options, before 1.20
    (
        AT + "FATAL:  unsupported startup parameter in options: statement_timeout",
        SourceSetup,
        "PostgreSQL itself",
    ),
    (AT + "FATAL:  unsupported startup parameter: replication", SourceSetup, "PostgreSQL itself"),
    (AT + "FATAL:  unsupported startup parameter: options", SourceSetup, "PostgreSQL itself"),
    # Amazon RDS Proxy
    (
        AT + "FATAL:  Feature not supported: RDS Proxy currently doesn’t support command-line options.",
        SourceSetup,
        "PostgreSQL itself",
    ),
    (
        AT + "FATAL:  Feature not supported: RDS Proxy currently doesn't support streaming replication mode.",
        SourceSetup,
        "PostgreSQL itself",
    ),
    (
        AT + 'FATAL:  password authentication failed for user "u"',
        SourceAuthentication,
        "source.password_file",
    ),
    ("fe_sendauth: no password supplied", SourceAuthentication, "source.password_file"),
    (AT + "FATAL:  no pg_hba.conf entry for host", SourceAuthentication, "pg_reload_conf"),
    (AT + "FATAL:  pg_hba.conf rejects connection for host", SourceAuthentication, "pg_reload_conf"),
    (AT + 'FATAL:  role "u" does not exist', SourceAuthentication, "CREATE ROLE"),
    (AT + 'FATAL:  role "u" is not permitted to log in', SourceAuthentication, "LOGIN"),
    (AT + "server does not support SSL, but SSL was required", SourceAuthentication, "sslmode"),
    (
        AT + 'root certificate file "/x" does not exist',
        SourceAuthentication,
        "sslrootcert",
    ),
    (AT + "SSL error: certificate verify failed", SourceAuthentication, "sslrootcert"),
    (AT + 'FATAL:  database "d" does not exist', SourceSetup, "psql -l"),
    (AT + 'FATAL:  database "d" is not currently accepting connections', SourceSetup, "ALLOW_CONNECTIONS"),
    (AT + "FATAL:  permission denied to start WAL sender", SourceSetup, "REPLICATION"),
    (AT + 'FATAL:  permission denied for database "d"', SourceSetup, "GRANT CONNECT"),
    (AT + 'FATAL:  unrecognized configuration parameter "x"', SourceSetup, "options"),
    (AT + "received invalid response to SSL negotiation: H", SourceSetup, "not PostgreSQL"),
    ("expected authentication request from server, but received H", SourceSetup, "not PostgreSQL"),
    ('invalid sslmode value: "x"', SourceSetup, "source.dsn"),
    ('invalid port number: "99999"', SourceSetup, "source.dsn"),
    ('invalid target_session_attrs value: "x"', SourceSetup, "source.dsn"),
    (AT + "Connection refused", SourceUnavailable, "start PostgreSQL"),
    (
        'connection to server on socket "/tmp/.s.PGSQL.1" failed: No such file or directory',
        SourceUnavailable,
        "start PostgreSQL",
    ),
    ('could not translate host name "h" to address: Name', SourceUnavailable, "name service"),
    (AT + "timeout expired", SourceUnavailable, "network"),
    (AT + "FATAL:  the database system is starting up", SourceUnavailable, "no action"),
    (AT + "FATAL:  sorry, too many clients already", SourceUnavailable, "max_connections"),
    (AT + 'FATAL:  too many connections for role "u"', SourceUnavailable, "CONNECTION LIMIT"),
    (
        AT + "FATAL:  number of requested standby connections exceeds max_wal_senders (currently 0)",
        SourceUnavailable,
        "max_wal_senders",
    ),
    (AT + "session is read-only", SourceUnavailable, "primary"),
    (AT + "FATAL:  closed on Sundays", SourceUnavailable, "login event trigger"),
    (AT + "SCHWERWIEGEND:  etwas ganz anderes", SourceUnavailable, "connects again by itself"),
    ("server closed the connection unexpectedly", SourceUnavailable, "connects again by itself"),
]


@pytest.mark.parametrize(("text", "expected", "hint"), CASES)
def test_each_failure_to_connect_has_its_class_and_hint(
    text: str, expected: type[SourceError], hint: str
) -> None:
    failure = connect_failure(refusals(text))
    assert type(failure) is expected
    assert hint in failure.advice
    is_of_the_server = "FATAL:" in text
    assert not (is_of_the_server and "start PostgreSQL" in failure.advice), "the server runs: it has answered"


def test_of_several_hosts_all_are_shown_and_one_that_may_come_back_decides() -> None:
    pooler = AT + "FATAL:  unsupported startup parameter: replication"
    text = f"{pooler}\n{AT}Connection refused\n\tIs the server running on that host?\n"
    failure = connect_failure(refusals(text))
    assert failure.retry is Retry.AUTO
    assert failure.message == f"{pooler}; {AT}Connection refused"


def test_what_the_server_appends_is_not_shown() -> None:
    text = f"{AT}FATAL:  closed\nDETAIL:  Key (mail)=(jane@example.org)\nHINT:  jane\n"
    assert "jane" not in str(connect_failure(refusals(text)))
