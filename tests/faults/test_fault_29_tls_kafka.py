"""Fault 29, for Kafka: authorities, certificates and keys are changed under load."""

from __future__ import annotations

import shutil
import ssl
from pathlib import Path

import pytest

from tests.faults.access import Access, Authorities
from tests.support.certificates import install
from tests.support.secured_kafka import SecuredKafka
from tests.support.waiting import eventually


def await_shown(secured: SecuredKafka, made: Path) -> None:
    """Wait until the broker presents this certificate."""
    wanted = (made / "server.crt").read_text().strip()
    eventually(
        lambda: ssl.get_server_certificate(("127.0.0.1", secured.tls.port)).strip() == wanted,
        "the broker presents it",
    )


@pytest.mark.nightly
def test_authority_certificate_and_key_are_changed_under_load(
    by_certificate: Access, authorities: Authorities
) -> None:
    """In the usual order: each side trusts both authorities before the other side presents a new certificate."""
    secured, daemon = by_certificate.secured, by_certificate.daemon
    first, second, ours = authorities.first, authorities.second, authorities.ours
    daemon.start().wait_state("streaming")
    with by_certificate.inserting() as rows:
        by_certificate.await_more_rows()
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
        by_certificate.await_more_rows()
    by_certificate.assert_all_there(rows)
    assert len(daemon.events("streaming")) == 1
    assert not daemon.events("retrying")
    secured.trust(first, second)
    secured.show(first)
    await_shown(secured, first)


@pytest.mark.nightly  # fault 31 waits for a password
def test_a_certificate_without_its_key_is_named_and_heals_with_the_file(
    by_certificate: Access, authorities: Authorities
) -> None:
    """After only the certificate was replaced, the daemon reports it, and continues once the key is replaced, too."""
    daemon, second, ours = by_certificate.daemon, authorities.second, authorities.ours
    by_certificate.secured.trust(authorities.first, second)
    daemon.start().wait_state("streaming")
    with by_certificate.inserting() as rows:
        by_certificate.await_more_rows()
        install(second, ours, "client.crt")
        eventually(
            lambda: "ssl.key.location" in daemon.status()["reason"], "the daemon reports the wrong key"
        )
        install(second, ours, "client.key")
        daemon.wait_state("streaming")
        by_certificate.await_more_rows()
    by_certificate.assert_all_there(rows)
    assert {event["code"] for event in daemon.events("retrying")} == {"CDCD-SINK-AUTH"}
