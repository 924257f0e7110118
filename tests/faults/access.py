"""A daemon on a Kafka broker that requires authentication: its credentials and its permissions.

In: the broker, a PostgreSQL database.  Out: a daemon, its credential files, and rows that show whether it writes.
Invariant: a change on the broker and a change of the daemon's files are separate steps, as with separate owners.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cdcd.demo.stack.postgres import PostgresServer
from cdcd.demo.stack.registry import SchemaRegistry
from tests.faults.inserting import Inserting, assert_all_there, await_more_rows
from tests.support.certificates import authority, install
from tests.support.daemon import Daemon, await_confirmed
from tests.support.reader import Reader
from tests.support.secured_kafka import SecuredKafka

TABLE = "CREATE TABLE t (id int PRIMARY KEY)"


@dataclass
class Access:
    """One daemon on the broker; `secret` is the daemon's password file, where there is one."""

    secured: SecuredKafka
    registry: SchemaRegistry
    postgres: PostgresServer
    database: str
    daemon: Daemon
    secret: Path

    @property
    def topic(self) -> str:
        """The topic of the daemon's table."""
        return f"{self.daemon.name}.public.t"

    def hasty(self) -> Access:
        """Make the daemon check its files often; return the same access."""
        self.daemon.entry = ("-m", "tests.faults.hasty")
        return self

    def inserting(self, after: int = 0) -> Inserting:
        """Return a context manager that inserts rows all the time."""
        return Inserting(self.postgres.dsn(self.database), after)

    def await_more_rows(self) -> None:
        """Wait until the daemon has written more rows."""
        await_more_rows(self.daemon)

    def assert_all_there(self, rows: Inserting) -> None:
        """Assert that each row is in the topic once and confirmed, and that the daemon has never halted."""
        await_confirmed(self.postgres, self.daemon)
        assert not self.daemon.events("halted")
        reader = Reader(self.secured.broker.bootstrap, self.registry.url)
        assert_all_there(reader.read(self.topic), rows)


ByPassword = Callable[..., Access]
"""`by_password(user, password, written=password)`: a user with all permissions; `written` is in its password file."""


def sink_by_password(secured: SecuredKafka, user: str, secret: Path) -> dict[str, object]:
    """Return the configuration of a sink whose password is in a file."""
    return {
        "bootstrap_servers": f"127.0.0.1:{secured.sasl.port}",
        "properties": {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": user,
        },
        "secret_files": {"sasl.password": str(secret)},
    }


def sink_by_token(secured: SecuredKafka, url: str, secret: Path) -> dict[str, object]:
    """Return the configuration of a sink that fetches its token."""
    return {
        "bootstrap_servers": f"127.0.0.1:{secured.bearer.port}",
        "properties": {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": "bearer",
            "sasl.oauthbearer.token.endpoint.url": url,
        },
        "secret_files": {"sasl.oauthbearer.client.secret": str(secret)},
    }


def sink_by_certificate(secured: SecuredKafka, files: Path) -> dict[str, object]:
    """Return the configuration of a sink that has a client certificate and verifies the broker's."""
    return {
        "bootstrap_servers": f"127.0.0.1:{secured.tls.port}",
        "properties": {
            "security.protocol": "SSL",
            "ssl.ca.location": str(files / "ca.crt"),
            "ssl.certificate.location": str(files / "client.crt"),
            "ssl.key.location": str(files / "client.key"),
        },
    }


class Authorities:
    """Two authorities. Broker and daemon start with certificates of the first one. `ours`: the daemon's files."""

    def __init__(self, secured: SecuredKafka, folder: Path) -> None:
        self.first, self.second, self.ours = secured.folder / "first", folder / "two", folder / "ours"
        authority(self.second)
        self.ours.mkdir()
        install(self.first, self.ours, "ca.crt", "client.crt", "client.key")
