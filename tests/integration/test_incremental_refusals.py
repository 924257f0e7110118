"""A copy that cannot be made is refused before readers notice it, or fails with what to do; a stopped one stops."""

from __future__ import annotations

from typing import Any

import pytest

from cdcd.demo.stack.postgres import PostgresServer
from tests.integration.conftest import NewDaemon
from tests.support.daemon import Daemon, await_confirmed
from tests.support.folded import folded
from tests.support.reader import Reader
from tests.support.snapshot_commands import await_copied, command, reports, start
from tests.support.stack import run_script
from tests.support.waiting import eventually

ROLE = "cdcd_refused"
ROWS = 3000
TABLE = (
    "CREATE TABLE t (id int PRIMARY KEY, note text)",
    f"INSERT INTO t SELECT g, 'n' || g FROM generate_series(1, {ROWS}) g",
    "ANALYZE t",
)
QUERIES = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep%' AND pid <> pg_backend_pid()"


def report_of(daemon: Daemon, table: str = "public.t") -> dict[str, Any]:
    """Return what is shown of a table that is being copied, {} if it is not."""
    return next((one for one in reports(daemon) if one["table"] == table), {})


def test_a_table_that_may_not_be_read_keeps_its_rows_at_the_readers(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    """A recopy empties the table first. A right that is taken away later stops the copy until it is given again."""
    run_script(
        postgres.dsn(database),
        *TABLE,
        f"DROP ROLE IF EXISTS {ROLE}",
        f"CREATE ROLE {ROLE} LOGIN REPLICATION",
        f"GRANT SELECT ON t TO {ROLE}",
    )
    limits = {"mode": "initial", "incremental": {"max_rows_per_second": 600}}
    daemon = new_daemon(postgres, database, snapshot=limits)
    daemon.config["source"]["dsn"] = postgres.dsn(database).replace("postgres@", f"{ROLE}@")
    with daemon:
        topic = f"{daemon.name}.public.t"
        daemon.start().wait_state("streaming")
        postgres.execute(f"REVOKE SELECT ON t FROM {ROLE}", dbname=database)
        status, body = command(daemon, "start", "public.t", recopy=True)
        assert (status, "permission denied" in body["message"], "GRANT" in body["hint"]) == (422, True, True)
        command(daemon, "start", all=True, recopy=True)
        await_confirmed(postgres, daemon)
        assert len(folded(reader.read(topic))) == ROWS
        postgres.execute(f"GRANT SELECT ON t TO {ROLE}", dbname=database)
        start(daemon, "public.t", recopy=True)
        eventually(lambda: bool(report_of(daemon).get("rows_per_second")), "a limited copy shows its rate")
        assert report_of(daemon)["seconds_left"] is not None
        postgres.execute(f"REVOKE SELECT ON t FROM {ROLE}", dbname=database)
        eventually(lambda: report_of(daemon).get("state") == "failed", "the copy notices it")
        assert "`cdcd snapshot resume --config " in daemon.events("table_not_copied")[-1]["hint"]
        postgres.execute(f"GRANT SELECT ON t TO {ROLE}", dbname=database)
        assert command(daemon, "resume", "public.t")[0] == 200
        await_copied(daemon)
        await_confirmed(postgres, daemon)
        assert len(folded(reader.read(topic))) == ROWS
    postgres.execute(f"REVOKE ALL ON t FROM {ROLE}", dbname=database)
    postgres.execute(f"DROP ROLE {ROLE}")


def test_a_condition_that_fails_on_a_row_ends_the_copy_with_what_to_do(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon
) -> None:
    run_script(postgres.dsn(database), *TABLE)
    with new_daemon(postgres, database, snapshot={"mode": "never"}) as daemon:
        daemon.start().wait_state("streaming")
        for where in ("note::int > 5", "lo_create(0) > 0"):
            start(daemon, "public.t", where=where)
            eventually(lambda: report_of(daemon).get("state") == "failed", "the copy fails")
            assert "the condition of the copy" in report_of(daemon)["reason"]
            failure = daemon.events("table_not_copied")[-1]
            assert "cdcd snapshot start --table public.t --where" in failure["hint"]
            assert command(daemon, "stop")[0] == 200
        assert "n1" not in daemon.log()


@pytest.mark.nightly
def test_a_stopped_copy_has_no_query_on_the_server_any_more(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon
) -> None:
    """With a selective condition one chunk is a scan of the whole table."""
    run_script(postgres.dsn(database), *TABLE, "CREATE TABLE other (id int PRIMARY KEY)")
    incremental = {"mode": "never", "workers": 1}
    with new_daemon(postgres, database, snapshot=incremental) as daemon:
        daemon.start().wait_state("streaming")

        def is_read() -> bool:
            return bool(postgres.execute(QUERIES, dbname=database) == [(1,)])

        for again in ("stop", "start"):
            start(daemon, "public.t", where="pg_sleep(100) IS NULL")
            eventually(is_read, "the table is read")
            eventually(lambda: report_of(daemon).get("state") == "copying", "its state says so")
            assert command(daemon, again, "public.t")[0] == 200
            eventually(lambda: not is_read(), "the query has ended", 60)
            start(daemon, "public.other", "public.t")
            await_copied(daemon, 60)
        assert not daemon.events("snapshot_interrupted")


@pytest.mark.nightly
def test_names_of_tables_that_are_not_published_or_were_dropped(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon
) -> None:
    run_script(
        postgres.dsn(database),
        *TABLE,
        "CREATE TABLE hidden (id int PRIMARY KEY)",
        "CREATE VIEW seen AS SELECT id FROM t",
        'CREATE SCHEMA a; CREATE SCHEMA "a.b"',
        'CREATE TABLE a."b.c" (id int PRIMARY KEY); CREATE TABLE "a.b".c (id int PRIMARY KEY)',
    )
    daemon = new_daemon(postgres, database, snapshot={"mode": "never"})
    pub = f"cdcd_{daemon.name}"
    run_script(postgres.dsn(database), f"DROP PUBLICATION {pub}", f"CREATE PUBLICATION {pub} FOR TABLE t")
    with daemon:
        daemon.start().wait_state("streaming")
        for name, message in (
            ("public.hidden", "the table is not published [table=public.hidden]"),
            ("public.absent", "the table does not exist [table=public.absent]"),
            ('public."t"', 'the table does not exist [table=public."t"]'),
            ("public.seen", "the name is not that of a table [table=public.seen]"),
            ("a.b.c", "several tables have this name [table=a.b.c]"),
        ):
            status, body = command(daemon, "start", name)
            assert (status, body["message"]) == (422, message)
        assert reports(daemon) == []
        start(daemon, "public.t", where="pg_sleep(100) IS NULL")
        eventually(lambda: report_of(daemon).get("state") == "copying", "the table is read")
        assert command(daemon, "pause", "public.t")[0] == 200
        daemon.stop()
        # The query is not left on the server, where it would hold a lock on the table.
        eventually(lambda: postgres.execute(QUERIES, dbname=database) == [(0,)], "the query has ended")
        postgres.execute("DROP TABLE t CASCADE", dbname=database)
        daemon.start().wait_state("streaming")
        eventually(lambda: bool(reports(daemon)), "the copy is known")
        assert command(daemon, "stop", "public.t")[0] == 200
        assert reports(daemon) == []


@pytest.mark.parametrize("is_blocking", [False, True], ids=["incremental", "blocking"])
def test_tables_whose_conditions_do_not_fit_into_the_progress_record_are_refused(
    is_blocking: bool, postgres: PostgresServer, database: str, new_daemon: NewDaemon
) -> None:
    """A record that the broker does not take would halt cdcd, again after each restart of a signal's command."""
    names = [f"t{number}" for number in range(20)]
    run_script(
        postgres.dsn(database),
        *(f"CREATE TABLE {name} (id int PRIMARY KEY, note text)" for name in names),
        f"INSERT INTO t0 SELECT g, 'n' FROM generate_series(1, {ROWS}) g",
    )
    with new_daemon(postgres, database, snapshot={"mode": "never"}) as daemon:
        daemon.start().wait_state("streaming")
        tables, where = [f"public.{name}" for name in names], f"note <> '{'ü' * 10_000}'"
        status, body = command(daemon, "start", *tables, where=where, recopy=True, blocking=is_blocking)
        assert (status, "progress record" in body["message"]) == (422, True), body
        assert "fewer tables" in body["hint"]
        assert reports(daemon) == []
        start(daemon, *tables[:2], where=where, recopy=True, blocking=is_blocking)
        await_copied(daemon)
        assert daemon.status()["state"] == "streaming"
