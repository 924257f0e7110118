"""The check reports every error at once, and reports nothing for a correct setup."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import psycopg2
import pytest

from cdcd.demo.stack.postgres import PostgresServer
from cdcd.errors import SourceAuthentication, SourceSetup
from cdcd.schema.policy import Policy
from cdcd.source.connection import connect_replication, connect_sql
from cdcd.source.settings import SourceSettings
from cdcd.source.slot import drop_slot
from tests.support.nightly import nightly, nightly_except
from tests.support.preflight import preflight
from tests.support.source import make_slot, plain, source_database, streaming
from tests.support.stack import SUPPORTED_POSTGRES_MAJORS, PostgresServers, run_script

TABLE = "CREATE TABLE public.t (id int PRIMARY KEY)"


def complaints(settings: SourceSettings, **options: bool) -> dict[str, str]:
    """Return level and subject of the findings that are not "ok"."""
    return {one.subject: one.level for one in preflight(settings, **options) if one.level != "ok"}


@pytest.mark.parametrize("major", nightly_except(SUPPORTED_POSTGRES_MAJORS, 18))
def test_a_source_that_is_ready_has_no_complaint(pg_server: PostgresServers, major: int) -> None:
    with source_database(pg_server(major), TABLE, "CREATE PUBLICATION pub FOR TABLE public.t") as settings:
        assert complaints(settings) == {}
        make_slot(settings)
        assert complaints(settings) == {}
        assert complaints(settings, limits_wal=False) == {"max_slot_wal_keep_size": "warn"}


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
        findings = preflight(settings)
        assert {one.subject for one in findings if one.level == "fail"} == {
            "wal_level",
            "replication slots",
            "replication connection",
            "publication",
            "table public.keyless",
            "table public.secret",
            "table public.split",
        }
        keyless = [one.level for one in findings if one.subject == "table public.keyless"]
        assert sorted(keyless) == ["fail", "warn"]  # not readable, and no replica identity
        assert all(one.hint for one in findings if one.level != "ok")


def test_a_source_that_cannot_be_reached_is_one_finding() -> None:
    settings = SourceSettings("host=127.0.0.1 port=1", lambda: None, "s", ("p",), "a")
    assert complaints(settings) == {"source connection": "fail"}


async def test_a_slot_in_use_is_a_failure_unless_this_configurations_own_daemon_has_it(
    postgres: PostgresServer,
) -> None:
    """The check does not advise terminating a working daemon."""
    with source_database(postgres, TABLE, "CREATE PUBLICATION pub FOR TABLE public.t") as settings:
        async with streaming(settings, make_slot(settings)):
            assert complaints(settings) == {}
            other = replace(settings, application_name="another")
            (finding,) = [one for one in preflight(other) if one.level != "ok"]
            assert (finding.level, finding.subject, finding.code) == ("fail", "slot", "CDCD-SLOT-ACTIVE")
            assert settings.application_name in finding.message
            assert "terminate" not in finding.hint


def test_the_login_role_needs_replication_and_its_set_role_only_to_drop_a_slot(
    postgres: PostgresServer,
) -> None:
    """ALTER ROLE ... SET role changes the effective role: streaming needs the login role's attribute, SQL the
    other's.
    """
    with source_database(postgres, TABLE, "CREATE PUBLICATION pub FOR TABLE public.t") as settings:
        login, becomes = f"{settings.slot}_login", f"{settings.slot}_becomes"
        run_script(
            plain(settings),
            f"CREATE ROLE {login} LOGIN REPLICATION",
            f"CREATE ROLE {becomes} NOLOGIN",
            f"GRANT {becomes} TO {login}",
            f"ALTER ROLE {login} SET role TO {becomes}",
            f"GRANT SELECT ON public.t TO {becomes}",
        )
        try:
            of_login = replace(settings, dsn=postgres.dsn(settings.slot, login))
            assert complaints(of_login) == {"role": "warn"}
            assert complaints(of_login, drops_slot=True) == {"role": "fail"}
            make_slot(of_login)  # the server's own opinion
            with contextlib.closing(connect_sql(of_login)) as connection, pytest.raises(SourceSetup):
                drop_slot(connection, of_login.slot)
            run_script(
                plain(settings), f"ALTER ROLE {login} NOREPLICATION", f"ALTER ROLE {becomes} REPLICATION"
            )
            (finding,) = [one for one in preflight(of_login) if one.level != "ok"]
            assert (finding.level, finding.subject) == ("fail", "replication connection")
            assert f'ALTER ROLE "{login}" REPLICATION' in finding.hint
        finally:
            run_script(
                plain(settings), f"DROP OWNED BY {becomes}", f"DROP ROLE {login}", f"DROP ROLE {becomes}"
            )


def test_a_partition_whose_changes_are_not_sent_is_named(postgres: PostgresServer) -> None:
    """PostgreSQL publishes its root, and copies its rows for a subscription, too."""
    with source_database(
        postgres,
        "CREATE TABLE public.o (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE public.o_a PARTITION OF public.o FOR VALUES FROM (0) TO (10)",
        "CREATE UNLOGGED TABLE public.o_b PARTITION OF public.o FOR VALUES FROM (10) TO (20)",
        "CREATE PUBLICATION pub FOR TABLE public.o WITH (publish_via_partition_root)",
    ) as settings:
        (finding,) = [one for one in preflight(settings) if one.level == "warn" and "UNLOGGED" in one.message]
        assert finding.subject == "table public.o"
        assert "public.o_b is UNLOGGED" in finding.message
        run_script(plain(settings), finding.hint)
        assert complaints(settings) == {}


def test_the_columns_of_a_row_filter_have_to_be_readable(postgres: PostgresServer) -> None:
    """Also one that is not published, and not one of the filter of another publication."""
    with source_database(
        postgres,
        "CREATE TABLE public.h (id int PRIMARY KEY, pad text, n int, secret int)",
        "CREATE PUBLICATION pub FOR TABLE public.h (id, pad) WHERE (n > 2) WITH (publish = 'insert')",
        "CREATE PUBLICATION other FOR TABLE public.h WHERE (secret > 2) WITH (publish = 'insert')",
    ) as settings:
        role = f"{settings.slot}_reader"
        run_script(
            plain(settings),
            f"CREATE ROLE {role} LOGIN REPLICATION",
            f"GRANT SELECT (id, pad) ON public.h TO {role}",
        )
        try:
            of_role = replace(settings, dsn=postgres.dsn(settings.slot, role))
            (finding,) = [one for one in preflight(of_role) if one.level == "fail"]
            assert finding.subject == "table public.h"
            assert finding.hint == f'GRANT SELECT ("n") ON "public"."h" TO "{role}"'
            run_script(plain(settings), finding.hint)
            assert "fail" not in complaints(of_role).values()
        finally:
            run_script(plain(settings), f"DROP OWNED BY {role}", f"DROP ROLE {role}")


@pytest.mark.parametrize("major", [nightly(15), 18])
def test_a_standby_fails_on_every_major(pg_server: PostgresServers, major: int) -> None:
    """The daemon reads only from a primary, even if a standby could decode."""
    with pg_server.fresh(major) as server:
        run_script(server.dsn(), TABLE, "CREATE PUBLICATION pub FOR TABLE public.t")
        server.stop()
        (server.data_folder / "standby.signal").touch()
        server.start()
        assert server.execute("SELECT pg_is_in_recovery()") == [(True,)]
        settings = SourceSettings(server.dsn(), lambda: None, "shop", ("pub",), "cdcd test")
        assert complaints(settings) == {"standby": "fail"}


def test_a_missing_publication_fails_and_init_is_named_where_it_may_create_it(
    postgres: PostgresServer,
) -> None:
    with source_database(postgres, TABLE) as settings:
        for may_create, word in ((True, "cdcd init"), (False, "CREATE PUBLICATION")):
            findings = preflight(settings, publication_create=may_create)
            (finding,) = [one for one in findings if one.level != "ok"]
            assert (finding.level, finding.subject) == ("fail", "publication")
            assert word in finding.hint


# --- rights of the role ---


def as_role(server: PostgresServer, settings: SourceSettings, *grants: str) -> SourceSettings:
    """Yield the source with a role of its own and these grants ({role} in them); the role is dropped with the
    database.
    """
    role = settings.slot + "_role"
    server.create_role(role)
    run_script(plain(settings), *(grant.format(role=role) for grant in grants))
    return replace(settings, dsn=server.dsn(settings.slot, role))


def without_role(server: PostgresServer, settings: SourceSettings) -> None:
    run_script(server.dsn(settings.slot), f"DROP OWNED BY {settings.slot}_role")
    server.execute(f"DROP ROLE {settings.slot}_role")


def test_grants_on_the_published_columns_are_enough(postgres: PostgresServer) -> None:
    with source_database(
        postgres,
        "CREATE TABLE public.part (id int PRIMARY KEY, v text, w text, secret text)",
        "CREATE PUBLICATION pub FOR TABLE public.part (id, v, w)",
    ) as settings:
        limited = as_role(postgres, settings, "GRANT SELECT (id, v) ON public.part TO {role}")
        (finding,) = [one for one in preflight(limited) if one.level != "ok"]
        assert (finding.level, finding.subject) == ("fail", "table public.part")
        assert finding.hint.startswith('GRANT SELECT ("w") ON "public"."part" TO ')
        run_script(plain(settings), finding.hint)
        assert complaints(limited) == {}
        run_script(limited.dsn, "SELECT id, v, w FROM ONLY public.part")  # the server's own opinion
        without_role(postgres, settings)


def test_a_schema_that_the_role_may_not_use_is_named_once(postgres: PostgresServer) -> None:
    with source_database(
        postgres,
        "CREATE SCHEMA closed",
        "CREATE TABLE closed.a (id int PRIMARY KEY)",
        "CREATE TABLE closed.b (id int PRIMARY KEY)",
        "CREATE PUBLICATION pub FOR TABLE closed.a, closed.b",
    ) as settings:
        limited = as_role(postgres, settings, "GRANT SELECT ON closed.a, closed.b TO {role}")
        (finding,) = [one for one in preflight(limited) if one.level != "ok"]
        assert (finding.level, finding.subject) == ("fail", "schema closed")
        assert complaints(limited, snapshot=False) == {}  # the stream needs no right to read
        run_script(plain(settings), finding.hint)
        assert complaints(limited) == {}
        run_script(limited.dsn, "SELECT id FROM ONLY closed.a")
        without_role(postgres, settings)


def test_row_security_matters_only_where_it_would_hide_rows(postgres: PostgresServer) -> None:
    """Row security does not apply to the table's owner, unless it is forced."""
    with source_database(
        postgres,
        TABLE,
        "ALTER TABLE public.t ENABLE ROW LEVEL SECURITY",
        "CREATE PUBLICATION pub FOR TABLE public.t",
    ) as settings:
        owner = as_role(postgres, settings, "ALTER TABLE public.t OWNER TO {role}")
        assert complaints(owner) == {}
        run_script(plain(settings), "ALTER TABLE public.t FORCE ROW LEVEL SECURITY")
        assert complaints(owner) == {"table public.t": "fail"}
        without_role(postgres, settings)


# --- tables whose records have a null key ---


def test_every_table_without_a_key_is_named_with_what_follows(postgres: PostgresServer) -> None:
    with source_database(
        postgres,
        "CREATE TABLE public.none (v text)",
        "CREATE TABLE public.off (id int PRIMARY KEY)",
        "ALTER TABLE public.off REPLICA IDENTITY NOTHING",
        "CREATE TABLE public.full_none (v text)",
        "ALTER TABLE public.full_none REPLICA IDENTITY FULL",
        "CREATE TABLE public.full_hidden (a int, b int, v text, PRIMARY KEY (a, b))",
        "ALTER TABLE public.full_hidden REPLICA IDENTITY FULL",
        "CREATE TABLE public.full_key (id int PRIMARY KEY)",
        "ALTER TABLE public.full_key REPLICA IDENTITY FULL",
        "CREATE TABLE public.by_index (id int NOT NULL)",
        "CREATE UNIQUE INDEX by_index_id ON public.by_index (id)",
        "ALTER TABLE public.by_index REPLICA IDENTITY USING INDEX by_index_id",
        "CREATE TABLE public.log (v text)",
        "CREATE PUBLICATION pub FOR TABLE public.none, public.off, public.full_none, public.full_key,"
        " public.by_index",
        "CREATE PUBLICATION inserts FOR TABLE public.log, public.full_hidden (a, v)"
        " WITH (publish = 'insert')",
    ) as settings:
        settings = replace(settings, publications=("pub", "inserts"))
        found = {one.subject: one for one in preflight(settings) if one.level != "ok"}
        assert {subject: one.level for subject, one in found.items()} == {
            f"table public.{name}": "warn" for name in ("none", "off", "full_none", "full_hidden", "log")
        }
        for finding in found.values():
            assert "null key" in finding.message
        failing = {subject for subject, one in found.items() if "UPDATE and DELETE fail" in one.message}
        assert failing == {"table public.none", "table public.off"}
        for name in ("none", "full_none", "log"):
            assert f'ALTER TABLE "public"."{name}" ADD PRIMARY KEY' in found[f"table public.{name}"].hint
        policy_of = {"public.full_none": Policy(keyless="row")}.get
        given = {one.subject: one for one in preflight(settings, policy_of=lambda t: policy_of(t, Policy()))}
        assert "no unique index prevents equal rows" in given["table public.full_none"].message
        run_script(plain(settings), "ALTER TABLE public.full_none ADD UNIQUE (v), ALTER v SET NOT NULL")
        given = {one.subject: one for one in preflight(settings, policy_of=lambda t: policy_of(t, Policy()))}
        assert "table public.full_none" not in given


def test_a_key_that_is_not_sent_whole_is_named_with_what_follows(pg_server: PostgresServers) -> None:
    """F78: up to PostgreSQL 17 the server accepts the change, and sends it without the generated column."""
    with source_database(
        pg_server(17),
        "CREATE TABLE public.t (id int, g int GENERATED ALWAYS AS (id * 2) STORED PRIMARY KEY)",
        "CREATE PUBLICATION pub FOR TABLE public.t",
    ) as settings:
        (found,) = (one for one in preflight(settings) if one.level != "ok")
        assert "halt cdcd (CDCD-REPLICA-IDENTITY)" in found.message
        assert found.hint.endswith('ALTER TABLE "public"."t" REPLICA IDENTITY FULL')


def test_an_index_that_gives_no_key_is_named_with_its_reason(pg_server: PostgresServers) -> None:
    """F82: a check at the end of the statement is too late, in a partition too."""
    with source_database(
        pg_server(18),
        "CREATE TABLE public.late (id int PRIMARY KEY DEFERRABLE)",
        "CREATE TABLE public.late_full (id int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED)",
        "ALTER TABLE public.late_full REPLICA IDENTITY FULL",
        "CREATE TABLE public.root (id int NOT NULL) PARTITION BY RANGE (id)",
        "CREATE TABLE public.leaf PARTITION OF public.root FOR VALUES FROM (0) TO (10)",
        "ALTER TABLE ONLY public.root ADD PRIMARY KEY (id)",
        "ALTER TABLE public.leaf REPLICA IDENTITY FULL",
        "CREATE PUBLICATION pub FOR TABLE public.late, public.late_full, public.root"
        " WITH (publish_via_partition_root = true)",
    ) as settings:
        found = {one.subject.removeprefix("table public."): one for one in preflight(settings)}
        texts = {
            name: (found[name].level, found[name].message, found[name].hint)
            for name in ("late", "late_full", "root")
        }
        null_key = "its records have null keys, so all of them go to one partition, and the topic cannot be compacted"
        again = (
            "recreate its constraint as NOT DEFERRABLE (DROP CONSTRAINT, ADD PRIMARY KEY in one ALTER TABLE)"
        )
        assert texts == {
            "late": (
                "warn",
                "(id) is not a replica identity, because index public.late_pkey is DEFERRABLE: the application's "
                f"UPDATE and DELETE fail while the table is published; {null_key}",
                f"{again}, or set format.key_columns",
            ),
            "late_full": (
                "warn",
                "two rows may have the same (id) temporarily, because index public.late_full_pkey is DEFERRABLE: "
                f"{null_key}",
                f"{again}, or set format.key_columns or format.keyless",
            ),
            "root": (
                "warn",
                "two rows may have the same (id) temporarily, because index public.root_pkey is not valid: "
                f"{null_key}",
                "make the index valid: ALTER INDEX ... ATTACH PARTITION for an index of each partition, or set "
                "format.key_columns",
            ),
        }
        run_script(
            plain(settings),
            "ALTER TABLE public.late DROP CONSTRAINT late_pkey, ADD PRIMARY KEY (id)",
            "ALTER TABLE public.late_full DROP CONSTRAINT late_full_pkey, ADD PRIMARY KEY (id)",
            "ALTER TABLE public.leaf ADD PRIMARY KEY (id)",
            "ALTER INDEX public.root_pkey ATTACH PARTITION public.leaf_pkey",
        )
        assert complaints(settings) == {}


@pytest.mark.parametrize("where", [nightly("dsn"), "file"])
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
        assert "secret" not in finding.message + finding.hint
        if where == "file":  # a corrected secret is read at the next connect
            with contextlib.closing(connect_sql(settings)) as connection:
                assert isinstance(connection, psycopg2.extensions.connection)
                assert "right-secret" not in connection.dsn
