"""Tables are published by oid, but users mean names: renames are reported while cdcd runs, at its start and by check
(F42).
"""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from cdcd.demo.stack.postgres import PostgresServer
from cdcd.monitoring import publication_monitor
from cdcd.monitoring.publication_monitor import PublicationMonitor
from cdcd.ops.metrics import Metrics
from cdcd.sink.topic_identity import TopicIdentities, TopicIdentity
from cdcd.source.connection import connect_sql, fetch
from cdcd.source.publication_diff import published_oids, read_published
from cdcd.source.unpublished_tables import read_unpublished
from tests.integration.conftest import NewDaemon
from tests.support.daemon import Daemon, await_confirmed
from tests.support.nightly import nightly
from tests.support.quick import QUICK
from tests.support.reader import Reader
from tests.support.resolutions import command
from tests.support.source import plain, source_database
from tests.support.stack import PostgresServers, run_script
from tests.support.waiting import eventually

TABLES = (
    "CREATE SCHEMA sales",
    "CREATE TABLE t (id int PRIMARY KEY)",
    "CREATE TABLE sales.u (id int PRIMARY KEY)",
    "INSERT INTO t VALUES (1)",
    "INSERT INTO sales.u VALUES (1)",
)
SWAP = (
    "CREATE TABLE t_new (LIKE t INCLUDING ALL); ALTER TABLE t RENAME TO t_old; ALTER TABLE t_new RENAME TO t"
)
ADD_T = 'ADD TABLE "public"."t"'


@pytest.fixture
def daemon(postgres: PostgresServer, database: str, new_daemon: NewDaemon) -> Daemon:
    """Return a daemon that streams two tables that are named in its publication."""
    run_script(postgres.dsn(database), *TABLES)
    made = new_daemon(postgres, database)
    pub = f"cdcd_{made.name}"
    run_script(
        postgres.dsn(database), f"DROP PUBLICATION {pub}", f"CREATE PUBLICATION {pub} FOR TABLE t, sales.u"
    )
    made.entry = QUICK
    made.start().wait_state("streaming")
    await_confirmed(postgres, made)
    return made


def kinds(daemon: Daemon) -> list[str]:
    """Return the changes of publications in the log."""
    return sorted(line["change"] for line in daemon.events("publication_changed"))


def sql_of(daemon: Daemon, change: str) -> str:
    (line,) = (line for line in daemon.events("publication_changed") if line["change"] == change)
    return str(line["sql"])


def complaints(daemon: Daemon) -> str:
    """Return the findings of check that are not "ok"."""
    ran = command(daemon, "check")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return "\n".join(line for line in ran.stdout.splitlines() if not line.startswith("ok"))


def test_an_online_schema_change_is_reported_while_it_runs_with_the_sql_that_helps(
    postgres: PostgresServer, database: str, daemon: Daemon, reader: Reader
) -> None:
    run_script(postgres.dsn(database), SWAP, "INSERT INTO t VALUES (2)")
    eventually(lambda: len(kinds(daemon)) == 2, "both changes are logged")
    assert kinds(daemon) == ["table_renamed", "table_replaced"]
    add, drop = sql_of(daemon, "table_replaced"), sql_of(daemon, "table_renamed")
    assert drop.endswith('DROP TABLE "public"."t_old"')
    assert add.endswith(ADD_T)
    metric = "cdcd_unpublished_tables_with_topic"
    assert f"{metric} 1.0" in daemon.get("/metrics")[1]
    assert daemon.events("table_not_published") == [], "each change is reported once"
    findings = complaints(daemon)
    assert ADD_T in findings
    # The accepted change is in Kafka with the next transaction.
    postgres.execute("INSERT INTO sales.u VALUES (2)", dbname=database)
    await_confirmed(postgres, daemon)
    assert daemon.stop() == 0
    # A restart finds the accepted state; missing tables are reported all the same.
    daemon.config["snapshot"] = {"new_tables": "stream_only"}  # otherwise a copy brings the rows of before
    daemon.start().wait_state("streaming")
    (line,) = eventually(lambda: daemon.events("table_not_published"), "the start reports the table")
    assert (line["table"], line["sql"]) == ("public.t", add)
    assert kinds(daemon) == ["table_renamed", "table_replaced"]
    run_script(postgres.dsn(database), add, drop, "INSERT INTO t VALUES (3)")
    await_confirmed(postgres, daemon)
    ids = {event.value["after"]["id"] for event in reader.read(f"{daemon.name}.public.t")}
    assert ids == {1, 3}, "2 was inserted before the table was added: no stream has it"
    eventually(lambda: f"{metric} 0.0" in daemon.get("/metrics")[1], "no table is unpublished")
    assert ADD_T not in complaints(daemon)


def test_ddl_between_the_queries_of_a_comparison_is_no_finding(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The publications are as before the swap, the other tables as after it: together this never was."""
    with (
        source_database(postgres, *TABLES, "CREATE PUBLICATION pub FOR TABLE t, sales.u") as settings,
        contextlib.closing(connect_sql(settings)) as connection,
    ):
        monitor = PublicationMonitor(
            ("pub",), Metrics("0", with_process=False), halts_at_removal=False, topic_of="{}.{}".format
        )
        identities = TopicIdentities({name: TopicIdentity("id", 1) for name in ("public.t", "sales.u")})
        monitor.begin(identities, is_anew=False)
        assert monitor.judge(monitor.compare(connection)) is None
        swaps = iter([SWAP])

        def swapped(*arguments: Any) -> Any:
            for swap in swaps:
                run_script(plain(settings), swap)
            return read_unpublished(*arguments)

        monkeypatch.setattr(publication_monitor, "read_unpublished", swapped)
        comparison = monitor.compare(connection)
        assert sorted(change.kind for change in comparison.found) == ["table_renamed", "table_replaced"]


@pytest.mark.parametrize(
    ("statements", "expected", "sql"),
    [
        ((SWAP,), ["table_renamed", "table_replaced"], ADD_T),
        nightly(("DROP TABLE t", "CREATE TABLE t (id int PRIMARY KEY)"), ["table_replaced"], ADD_T),
        nightly(("ALTER TABLE t RENAME TO tt",), ["table_renamed"], ""),
        nightly(("ALTER SCHEMA sales RENAME TO shop",), ["table_renamed"], ""),
        nightly(("ALTER TABLE sales.u SET SCHEMA public",), ["table_renamed"], ""),
        nightly(
            ("ALTER TABLE t RENAME TO tt", "CREATE UNLOGGED TABLE t (id int)"),
            ["table_renamed", "table_replaced"],
            "SET LOGGED",
        ),
        nightly(
            (
                "ALTER TABLE t RENAME TO t_0",
                "CREATE TABLE t (id int PRIMARY KEY) PARTITION BY RANGE (id)",
                "ALTER TABLE t ATTACH PARTITION t_0 FOR VALUES FROM (0) TO (10)",
                "CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (10) TO (20)",
            ),
            ["table_renamed", "table_replaced"],
            ADD_T,
        ),
        nightly(("DROP TABLE t",), ["table_gone"], ""),
        nightly(("CREATE TABLE v (id int)",), [], ""),
    ],
)
def test_a_rename_while_cdcd_was_stopped_is_reported_by_check_and_at_the_start(
    postgres: PostgresServer,
    database: str,
    daemon: Daemon,
    statements: tuple[str, ...],
    expected: list[str],
    sql: str,
) -> None:
    assert daemon.stop() == 0
    run_script(postgres.dsn(database), *statements)
    findings = complaints(daemon)
    daemon.start().wait_state("streaming")
    assert kinds(daemon) == expected
    assert sql in findings
    lines = daemon.events("publication_changed")
    assert all(line["reason"] in findings for line in lines if line["change"] != "table_gone"), findings
    assert ("the topic of the new name" in findings) == ("table_renamed" in expected)
    if sql:
        assert sql in sql_of(daemon, "table_replaced")


@pytest.mark.nightly
def test_where_a_removal_halts_so_does_a_table_that_took_the_name(
    postgres: PostgresServer, database: str, daemon: Daemon
) -> None:
    """check fails if the start halts."""
    assert daemon.stop() == 0
    daemon.config["source"]["publication"] = {"table_removed": "halt"}
    run_script(postgres.dsn(database), SWAP)
    ran = command(daemon, "check")
    assert ran.returncode == 1
    assert any(line.startswith("fail") and "public.t" in line for line in ran.stdout.splitlines()), ran.stdout
    daemon.start().wait_state("halted")
    daemon.reload()
    daemon.wait_state("streaming")


@pytest.mark.nightly
def test_a_table_that_was_taken_out_on_purpose_is_forgotten_with_its_topic(
    postgres: PostgresServer, database: str, daemon: Daemon
) -> None:
    postgres.execute(f"ALTER PUBLICATION cdcd_{daemon.name} DROP TABLE t", dbname=database)
    eventually(lambda: kinds(daemon) == ["table_removed"], "the removal is logged")
    postgres.execute("INSERT INTO t VALUES (9)", dbname=database)
    assert sql_of(daemon, "table_removed").endswith(ADD_T)
    postgres.execute("INSERT INTO sales.u VALUES (2)", dbname=database)
    await_confirmed(postgres, daemon)
    assert daemon.stop() == 0
    assert ADD_T in complaints(daemon)
    assert command(daemon, "resume", "--accept-topic", f"{daemon.name}.public.t").returncode == 0
    assert ADD_T not in complaints(daemon)
    daemon.start().wait_state("streaming")
    assert daemon.events("table_not_published") == []


@pytest.mark.parametrize(
    ("published", "statements", "expected"),
    [
        nightly(
            "ALL TABLES",
            (
                "CREATE TABLE r (LIKE t INCLUDING ALL) PARTITION BY RANGE (id)",
                "ALTER TABLE r ATTACH PARTITION t FOR VALUES FROM (0) TO (10)",
            ),
            {"table_attached": "public.r", "table_added": "public.r"},
        ),
        (
            "ALL TABLES",
            (
                "ALTER TABLE t RENAME TO t_0",
                "CREATE TABLE t (LIKE t_0 INCLUDING ALL) PARTITION BY RANGE (id)",
                "ALTER TABLE t ATTACH PARTITION t_0 FOR VALUES FROM (0) TO (10)",
            ),
            {"table_attached": "public.t"},
        ),
        nightly("ALL TABLES", ("ALTER TABLE t SET UNLOGGED",), {"table_removed": "public.t"}),
        nightly(
            "ALL TABLES",
            ("ALTER TABLE t RENAME TO tt", "CREATE UNLOGGED TABLE t (id int PRIMARY KEY)"),
            {"table_renamed": "public.tt", "table_replaced": "public.t"},
        ),
        nightly(
            "TABLES IN SCHEMA public",
            (
                "ALTER SCHEMA public RENAME TO before",
                "CREATE SCHEMA public",
                "CREATE TABLE public.t (id int PRIMARY KEY)",
            ),
            {"table_renamed": "before.t", "table_replaced": "public.t"},
        ),
        nightly(
            "TABLES IN SCHEMA public",
            ("CREATE SCHEMA archive", "ALTER TABLE t SET SCHEMA archive"),
            {"table_removed": "archive.t"},
        ),
    ],
)
def test_a_table_that_is_published_with_others_leaves_without_being_dropped(
    postgres: PostgresServer,
    database: str,
    new_daemon: NewDaemon,
    published: str,
    statements: tuple[str, ...],
    expected: dict[str, str],
) -> None:
    """The server accepts the proposed SQL."""
    run_script(postgres.dsn(database), "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    daemon = new_daemon(postgres, database)
    pub = f"cdcd_{daemon.name}"
    made = f"CREATE PUBLICATION {pub} FOR {published} WITH (publish_via_partition_root = true)"
    run_script(postgres.dsn(database), f"DROP PUBLICATION {pub}", made)
    daemon.entry = QUICK
    daemon.start().wait_state("streaming")
    run_script(postgres.dsn(database), *statements)
    eventually(lambda: kinds(daemon) == sorted(expected), "the changes are logged")
    for line in daemon.events("publication_changed"):
        assert expected[line["change"]] in line["reason"]
        assert "dropped" not in line["reason"]
        run_script(postgres.dsn(database), *(line["sql"],) if "sql" in line else ())


@pytest.mark.nightly
def test_a_new_snapshot_still_reports_unpublished_tables(
    postgres: PostgresServer, database: str, daemon: Daemon
) -> None:
    """The topic still has the records of the table that had the name before."""
    assert daemon.stop() == 0
    run_script(postgres.dsn(database), SWAP)
    assert command(daemon, "resnapshot").returncode == 0
    daemon.start().wait_state("streaming")
    (line,) = eventually(lambda: daemon.events("table_not_published"), "the table is reported")
    assert line["table"] == "public.t"
    assert line["sql"].endswith(ADD_T)
    assert daemon.stop() == 0
    daemon.start().wait_state("streaming")
    eventually(
        lambda: len(daemon.events("table_not_published")) == 2, "the next process reports the table, too"
    )
    assert ADD_T in complaints(daemon)
    assert "cdcd_unpublished_tables_with_topic 1.0" in daemon.get("/metrics")[1]
    assert daemon.stop() == 0
    assert command(daemon, "resume", "--accept-topic", f"{daemon.name}.public.t").returncode == 0
    assert ADD_T not in complaints(daemon)


@pytest.mark.parametrize("major", [nightly(14), 18])
@pytest.mark.parametrize("via_root", ["true", "false"])
def test_partitions_and_their_roots_are_published_by_each_other(
    pg_server: PostgresServers, major: int, via_root: str
) -> None:
    """Neither counts as unpublished, whichever of them the publication lists."""
    script = (
        "CREATE TABLE r (id int) PARTITION BY RANGE (id)",
        "CREATE TABLE r1 PARTITION OF r FOR VALUES FROM (0) TO (10) PARTITION BY RANGE (id)",
        "CREATE TABLE r11 PARTITION OF r1 FOR VALUES FROM (0) TO (5)",
        "CREATE TABLE other (id int)",
        "CREATE UNLOGGED TABLE unlogged (id int)",
        "CREATE VIEW v AS SELECT 1",
        f"CREATE PUBLICATION pub FOR TABLE r WITH (publish_via_partition_root = {via_root})",
    )
    with (
        source_database(pg_server(major), *script) as settings,
        contextlib.closing(connect_sql(settings)) as connection,
    ):
        fetch(connection, "CREATE TEMP TABLE mine AS SELECT 1; SELECT 1")
        found = read_unpublished(connection, published_oids(read_published(connection, ("pub",))))
        assert {(one.name, one.is_logged) for one in found} == {
            ("public.other", True),
            ("public.unlogged", False),
        }
