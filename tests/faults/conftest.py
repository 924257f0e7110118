"""Fixtures: daemons as in the integration tests, links with faults, and a Kafka broker with authentication."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cdcd.demo.stack.postgres import PostgresServer
from cdcd.demo.stack.registry import SchemaRegistry
from tests.faults.access import TABLE, Access, Authorities, ByPassword, sink_by_certificate, sink_by_password
from tests.faults.link import NewLinked, linked_by
from tests.integration.conftest import NewDaemon, new_daemon, reader
from tests.support.secured_kafka import SecuredKafka

__all__ = ["new_daemon", "reader"]


@pytest.fixture
def new_linked(new_daemon: NewDaemon) -> NewLinked:
    """`new_linked(server, database, **configuration)`: a daemon and its link to PostgreSQL."""
    return linked_by(new_daemon)


@pytest.fixture
def entitled(
    secured_kafka: SecuredKafka,
    registry: SchemaRegistry,
    postgres: PostgresServer,
    database: str,
    new_daemon: NewDaemon,
    tmp_path: Path,
) -> Callable[[str, dict[str, object]], Access]:
    """`entitled(principal, sink)`: a daemon for a table t whose principal has all permissions on the broker."""

    def make(principal: str, sink: dict[str, object]) -> Access:
        secured_kafka.allow(principal)
        postgres.execute(TABLE, dbname=database)
        daemon = new_daemon(postgres, database, sink=sink)
        return Access(secured_kafka, registry, postgres, database, daemon, tmp_path / "password")

    return make


@pytest.fixture
def by_password(
    secured_kafka: SecuredKafka, entitled: Callable[[str, dict[str, object]], Access], tmp_path: Path
) -> ByPassword:
    """See `ByPassword`."""

    def make(user: str, password: str, written: str | None = None) -> Access:
        secured_kafka.set_password(user, password)
        secret = tmp_path / "password"
        secret.write_text(written or password)
        return entitled(f"User:{user}", sink_by_password(secured_kafka, user, secret))

    return make


@pytest.fixture
def authorities(secured_kafka: SecuredKafka, tmp_path: Path) -> Authorities:
    """The authority of the broker's certificates, and one that neither side trusts yet."""
    return Authorities(secured_kafka, tmp_path)


@pytest.fixture
def by_certificate(
    secured_kafka: SecuredKafka,
    authorities: Authorities,
    entitled: Callable[[str, dict[str, object]], Access],
) -> Access:
    """A daemon that has a certificate of the first authority, and checks its files often."""
    return entitled("User:CN=cdcd", sink_by_certificate(secured_kafka, authorities.ours)).hasty()
