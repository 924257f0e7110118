"""Fault 29, Kafka's side: authorities, certificates and keys that are changed under load."""

from __future__ import annotations

import shutil
import ssl
from pathlib import Path

from cdcd.demo.stack.postgres import PostgresServer
from cdcd.demo.stack.registry import SchemaRegistry
from tests.faults.inserting import Inserting, assert_all_there
from tests.faults.test_fault_31_secrets_kafka import TABLE, await_more_rows, hasty
from tests.integration.conftest import NewDaemon
from tests.support.certificates import authority, install
from tests.support.daemon import await_confirmed
from tests.support.reader import Reader
from tests.support.secured_kafka import SecuredKafka
from tests.support.waiting import eventually


def by_certificate(secured: SecuredKafka, files: Path) -> dict[str, object]:
    """A sink that shows a certificate, and looks at the broker's."""
    return {
        "bootstrap_servers": f"127.0.0.1:{secured.tls.port}",
        "properties": {
            "security.protocol": "SSL",
            "ssl.ca.location": str(files / "ca.crt"),
            "ssl.certificate.location": str(files / "client.crt"),
            "ssl.key.location": str(files / "client.key"),
        },
    }


def await_shown(secured: SecuredKafka, made: Path) -> None:
    """Wait until the broker shows this certificate."""
    wanted = (made / "server.crt").read_text().strip()
    eventually(
        lambda: ssl.get_server_certificate(("127.0.0.1", secured.tls.port)).strip() == wanted, "it is shown"
    )


def test_authority_certificate_and_key_are_changed_under_load(
    secured_kafka: SecuredKafka,
    registry: SchemaRegistry,
    postgres: PostgresServer,
    database: str,
    new_daemon: NewDaemon,
    tmp_path: Path,
) -> None:
    """As operators do it: each side trusts both authorities before the other side shows a certificate of the new."""
    secured, first, second, ours = (
        secured_kafka,
        secured_kafka.folder / "first",
        tmp_path / "two",
        tmp_path / "ours",
    )
    authority(second)
    ours.mkdir()
    install(first, ours, "ca.crt", "client.crt", "client.key")
    secured.allow("User:CN=cdcd")
    postgres.execute(TABLE, dbname=database)
    with hasty(new_daemon(postgres, database, sink=by_certificate(secured, ours))) as daemon:
        daemon.start().wait_state("streaming")
        with Inserting(postgres.dsn(database)) as rows:
            await_more_rows(daemon)
            both = (first / "ca.crt").read_text() + (second / "ca.crt").read_text()
            (ours / "ca.crt.new").write_text(both)
            shutil.move(ours / "ca.crt.new", ours / "ca.crt")
            eventually(lambda: len(daemon.events("producer_rebuilt")) == 1, "both authorities are trusted")
            secured.trust(first, second)
            secured.show(second)
            await_shown(secured, second)
            install(second, ours, "client.key", "client.crt")
            eventually(lambda: len(daemon.events("producer_rebuilt")) >= 2, "the new certificate is used")
            secured.trust(second)
            secured.tls.cut()
            await_more_rows(daemon)
        await_confirmed(postgres, daemon)
        assert len(daemon.events("streaming")) == 1
        assert not daemon.events("retrying")
        reader = Reader(secured.broker.bootstrap, registry.url)
        assert_all_there(reader.read(f"{daemon.name}.public.t"), rows)
    secured.trust(first, second)
    secured.show(first)
    await_shown(secured, first)


def test_a_certificate_without_its_key_is_named_and_heals_with_the_file(
    secured_kafka: SecuredKafka,
    registry: SchemaRegistry,
    postgres: PostgresServer,
    database: str,
    new_daemon: NewDaemon,
    tmp_path: Path,
) -> None:
    """Half of a pair that somebody has left so: nobody has to do more than bring the other half."""
    secured, first, second, ours = (
        secured_kafka,
        secured_kafka.folder / "first",
        tmp_path / "two",
        tmp_path / "ours",
    )
    authority(second)
    ours.mkdir()
    install(first, ours, "ca.crt", "client.crt", "client.key")
    secured.trust(first, second)
    secured.allow("User:CN=cdcd")
    postgres.execute(TABLE, dbname=database)
    with hasty(new_daemon(postgres, database, sink=by_certificate(secured, ours))) as daemon:
        daemon.start().wait_state("streaming")
        with Inserting(postgres.dsn(database)) as rows:
            await_more_rows(daemon)
            install(second, ours, "client.crt")
            eventually(lambda: "ssl.key.location" in daemon.status()["reason"], "the key does not fit")
            install(second, ours, "client.key")
            daemon.wait_state("streaming")
            await_more_rows(daemon)
        await_confirmed(postgres, daemon)
        assert not daemon.events("halted")
        assert {event["code"] for event in daemon.events("retrying")} == {"CDCD-SINK-AUTH"}
        reader = Reader(secured.broker.bootstrap, registry.url)
        assert_all_there(reader.read(f"{daemon.name}.public.t"), rows)
