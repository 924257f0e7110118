"""Connection parameters: cdcd's settings win where the output depends on them, and secrets are never shown."""

from __future__ import annotations

import contextlib
import socket
import threading
from dataclasses import replace

import psycopg2
import pytest

from cdcd.errors import CdcdError, SourceAuthentication, SourceError, SourceSetup, SourceUnavailable
from cdcd.redaction import strike
from cdcd.source.connection import connect_sql, connection_parameters, translate
from cdcd.source.settings import SourceSettings


def settings(dsn: str, password: str | None = None) -> SourceSettings:
    return SourceSettings(dsn, lambda: password, "s", ("p",), "cdcd test", connect_timeout_s=3)


def test_only_what_the_first_statement_needs_is_a_startup_option_and_wins_over_the_dsn() -> None:
    """The last -c wins. Settings of the output (F53) are set later, because login event triggers would see them."""
    parameters = connection_parameters(settings("host=h options='-c datestyle=German -c work_mem=64MB'"))
    assert parameters["options"] == (
        "-c datestyle=German -c work_mem=64MB -c statement_timeout=0 -c lock_timeout=0 -c client_min_messages=warning"
    )


def test_the_dsn_keeps_its_own_timeouts_and_not_its_application_name() -> None:
    parameters = connection_parameters(
        settings("host=h connect_timeout=7 keepalives_idle=99 application_name=x client_encoding=latin1")
    )
    assert parameters["connect_timeout"] == "7"
    assert parameters["keepalives_idle"] == "99"
    assert parameters["keepalives_interval"] == "5"
    assert parameters["application_name"] == "cdcd test"
    assert parameters["client_encoding"] == "UTF8"


def test_the_password_read_at_connect_wins_over_the_one_in_the_dsn() -> None:
    assert connection_parameters(settings("postgresql://u:old@h/d", "new"))["password"] == "new"
    assert connection_parameters(settings("postgresql://u:old@h/d"))["password"] == "old"


def test_the_passphrase_of_a_key_is_read_at_each_connect_and_counts_as_a_secret() -> None:
    passphrases = ["first", "rotated"]
    given = replace(settings("postgresql://u@h/d"), read_ssl_password=lambda: passphrases.pop(0))
    assert connection_parameters(given)["sslpassword"] == "first"
    parameters = connection_parameters(given)
    assert parameters["sslpassword"] == "rotated"
    assert strike("first, then rotated") == "***, then ***"


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://u:hunter2@x@h/d",
        "postgresql://u:hunter2/x@h/d",
        "postgresql://u:hunter2%zz@h/d",
        "postgresql://u:h#unter2@h:port/d",
        "host=h password=hunter2 nonsense",
        "host=h passwort=hunter2",
    ],
)
def test_a_dsn_that_cannot_be_used_is_never_quoted(dsn: str) -> None:
    with pytest.raises(CdcdError) as caught:
        connect_sql(settings(dsn))
    assert "unter2" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_refused_connection_does_not_show_the_password() -> None:
    with pytest.raises(SourceUnavailable) as caught:
        connect_sql(settings("postgresql://u:hunter2@127.0.0.1:1/d"))
    assert "hunter2" not in str(caught.value)


def test_an_unreadable_password_is_an_authentication_error() -> None:
    def unreadable() -> str:
        raise FileNotFoundError(2, "No such file or directory", "/etc/secret")

    broken = SourceSettings("host=h", unreadable, "s", ("p",), "a")
    with pytest.raises(SourceAuthentication, match="No such file"):
        connection_parameters(broken)


def test_a_dsn_that_does_not_parse_is_a_setup_error() -> None:
    with pytest.raises(SourceSetup):
        connection_parameters(settings("host=h nonsense"))


@pytest.mark.parametrize("piece", [b"R", b"N\0\0\0\x0fSWARNING\0\0"], ids=["half a message", "notices"])
def test_a_server_that_drips_is_not_waited_for(piece: bytes) -> None:
    """`connect_timeout` covers the complete login; invalid data may end it at once."""
    is_over, ended = threading.Event(), threading.Event()

    def serve() -> None:
        client, _ = listening.accept()
        with client, contextlib.suppress(OSError):
            client.recv(65_536)
            while not is_over.wait(0.05):
                client.sendall(piece)

    def connect() -> None:
        try:
            connect_sql(
                settings(f"host=127.0.0.1 port={port} dbname=d user=u sslmode=disable gssencmode=disable")
            )
        except SourceError:
            ended.set()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        serving, connecting = (threading.Thread(target=one, daemon=True) for one in (serve, connect))
        serving.start()
        connecting.start()
        assert ended.wait(60)
        is_over.set()
        serving.join(60)


def test_secrets_are_scrubbed_from_what_libpq_says() -> None:
    connection_parameters(settings("postgresql://u@h/d", "hunter2"))
    error = translate(psycopg2.OperationalError("could not use hunter2 at all"))
    assert "hunter2" not in str(error)
