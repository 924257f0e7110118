"""The check names everything wrong at once, and is quiet about what is right."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import psycopg2
import pytest

from cdcd.demo.stack.postgres import PostgresServer
from cdcd.errors import SourceAuthentication
from cdcd.source.connection import connect_replication, connect_sql
from cdcd.source.preflight import preflight
from cdcd.source.settings import SourceSettings
from tests.support.source import make_slot, plain, source_database, streaming
from tests.support.stack import SUPPORTED_POSTGRES_MAJORS, PostgresServers, run_script

TABLE = "CREATE TABLE public.t (id int PRIMARY KEY)"


def complaints(settings: SourceSettings, **options: bool) -> dict[str, str]:
    """Level and subject of what is not ok."""
    return {one.subject: one.level for one in preflight(settings, **options) if one.level != "ok"}


@pytest.mark.parametrize("major", SUPPORTED_POSTGRES_MAJORS)
def test_a_source_that_is_ready_has_no_complaint(pg_server: PostgresServers, major: int) -> None:
    with source_database(pg_server(major), TABLE, "CREATE PUBLICATION pub FOR TABLE public.t") as settings:
        assert complaints(settings) == {}
        make_slot(settings)
        assert complaints(settings, slot_create=False) == {}


def test_everything_wrong_is_named_at_once(pg_server: PostgresServers) -> None:
    server = pg_server.fresh(
        18, settings={"wal_level": "replica", "max_replication_slots": "1", "max_wal_senders": "0"}
    )
    with server:
        server.create_database("shop")
        server.create_role("cdcd", replication=False)
        server.execute("SELECT pg_create_physical_replication_slot('other')")
        run_script(
            server.dsn("shop"),
            "CREATE TABLE public.keyless (v text)",
            "CREATE TABLE public.secret (id int PRIMARY KEY)",
            "ALTER TABLE public.secret ENABLE ROW LEVEL SECURITY",
            "GRANT SELECT ON public.secret TO cdcd",
            "CREATE TABLE public.split (id int PRIMARY KEY, v text)",
            "GRANT SELECT ON public.split TO cdcd",
            "CREATE PUBLICATION pub FOR TABLE public.keyless, public.secret, public.split",
            "CREATE PUBLICATION narrow FOR TABLE public.split (id)",
        )
        settings = SourceSettings(
            server.dsn("shop", "cdcd"), lambda: None, "shop", ("pub", "narrow", "gone"), "cdcd test"
        )
        findings = preflight(settings, slot_create=False)
        assert {one.subject for one in findings if one.level == "fail"} == {
            "wal_level",
            "replication slots",
            "wal senders",
            "role",
            "replication connection",
            "slot",
            "publication",
            "table public.keyless",
            "table public.secret",
            "table public.split",
        }
        keyless = [one.level for one in findings if one.subject == "table public.keyless"]
        assert sorted(keyless) == ["fail", "warn"]  # not readable, and no replica identity
        assert all(one.mend for one in findings if one.level != "ok")


def test_a_source_that_cannot_be_reached_is_one_finding() -> None:
    settings = SourceSettings("host=127.0.0.1 port=1", lambda: None, "s", ("p",), "a")
    assert complaints(settings) == {"source connection": "fail"}


async def test_a_slot_in_use_is_a_warning(postgres: PostgresServer) -> None:
    with source_database(postgres, TABLE, "CREATE PUBLICATION pub FOR TABLE public.t") as settings:
        async with streaming(settings, make_slot(settings)):
            assert complaints(settings) == {"slot": "warn"}


def test_a_slot_of_another_kind_or_database_fails(postgres: PostgresServer) -> None:
    with source_database(postgres, TABLE, "CREATE PUBLICATION pub FOR TABLE public.t") as settings:
        elsewhere = replace(settings, slot=settings.slot + "_x")
        run_script(
            plain(settings),
            f"SELECT pg_create_logical_replication_slot('{settings.slot}', 'test_decoding')",
            f"SELECT pg_create_physical_replication_slot('{elsewhere.slot}')",
        )
        assert complaints(settings) == {"slot": "fail"}
        assert complaints(elsewhere) == {"slot": "fail"}
        postgres.execute("SELECT pg_drop_replication_slot(%s)", elsewhere.slot)


@pytest.mark.parametrize("where", ["dsn", "file"])
def test_a_wrong_password_is_never_shown(pg_server: PostgresServers, where: str) -> None:
    with pg_server.fresh(18, authentication="scram-sha-256") as server:
        server.create_role("cdcd", "right-secret")
        passwords = iter(["wrong-secret", "wrong-secret", "wrong-secret", "right-secret"])
        if where == "dsn":
            dsn = server.dsn("postgres", "cdcd", "wrong-secret")
            settings = SourceSettings(dsn, lambda: None, "s", ("p",), "a")
        else:
            settings = SourceSettings(
                server.dsn("postgres", "cdcd"), lambda: next(passwords), "s", ("p",), "a"
            )
        for connect in (connect_sql, connect_replication):
            with pytest.raises(SourceAuthentication) as caught:
                connect(settings)
            assert "secret" not in str(caught.value)
        (finding,) = preflight(settings)
        assert (finding.level, finding.subject) == ("fail", "source password")
        assert "secret" not in finding.message + finding.mend
        if where == "file":  # a mended secret is read at the next connect
            with contextlib.closing(connect_sql(settings)) as connection:
                assert isinstance(connection, psycopg2.extensions.connection)
                assert "right-secret" not in connection.dsn
