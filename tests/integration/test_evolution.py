"""Every kind of DDL on a real server, while cdcd reads: rows before and after it, in separate and in one transaction,
streamed and not. The judges are fastavro, with the registry's schemas, and the rows as written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from cdcd.demo.stack.postgres import PostgresServer
from tests.integration.conftest import BothWays, NewDaemon, TopicsOf
from tests.support.changes import Change, Topics
from tests.support.daemon import STREAM_ONLY, await_confirmed
from tests.support.evolution import CASES, COMPATIBLE, INCOMPATIBLE, SAME, Case
from tests.support.stack import in_one_transaction, run, run_script

SPACING = ("apart", "together")
LET_THROUGH = {"registry": {"incompatible": "register_with_none"}}


def table_of(case: Case, spacing: str) -> str:
    return f"{re.sub('[^a-z]', '_', case.name.lower())}_{spacing}"


def without_time(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row without values that Python and PostgreSQL format differently."""
    return {name: value for name, value in row.items() if not hasattr(value, "tzinfo")}


def prepare(server: PostgresServer, database: str, cases: list[Case]) -> None:
    for case in cases:
        for spacing in SPACING:
            table = table_of(case, spacing)
            for statement in case.setup:
                server.execute(statement.format(t=table), dbname=database)
            server.execute(f"CREATE TABLE {table} ({case.columns.format(t=table)})", dbname=database)


def change(server: PostgresServer, database: str, cases: list[Case]) -> None:
    """Run a row, the DDL and a row: each in a transaction of its own, or all in one."""
    for spacing in SPACING:
        for case in cases:
            table = table_of(case, spacing)
            execute = run_script if spacing == "apart" else in_one_transaction
            execute(
                server.dsn(database),
                f"INSERT INTO {table} VALUES ({case.first})",
                *(statement.format(t=table) for statement in case.ddl),
                f"INSERT INTO {table} VALUES ({case.second})",
            )


def both_rows(topics: Topics, cases: list[Case]) -> Iterator[tuple[Case, str, Change, Change]]:
    """Return each case and table with its row before and its row after."""
    for case in cases:
        for spacing in SPACING:
            table = table_of(case, spacing)
            first, second = topics.changes(table)
            yield case, table, first, second


@pytest.mark.nightly
def test_rows_before_and_after_a_change_are_read_by_those_who_come_later(
    postgres: PostgresServer, database: str, both_ways: BothWays, topics_of: TopicsOf
) -> None:
    """F42 and F44: each row has the schema of its own time, also when all statements are in one transaction."""
    cases = [case for case in CASES if case.verdict in (SAME, COMPATIBLE)]
    prepare(postgres, database, cases)
    both = both_ways()
    change(postgres, database, cases)
    for daemon in both:
        await_confirmed(postgres, daemon, 120)
        topics = topics_of(daemon)
        for case, table, first, second in both_rows(topics, cases):
            where = f"{table}, {daemon.name}"
            assert (first.row, second.row) == (case.before, case.after), where
            assert (first.schema_id == second.schema_id) == (case.verdict == SAME), where
            upgraded = case.before if case.upgraded is None else case.upgraded
            assert topics.read(first.raw, second.schema_id)["after"] == upgraded, where
        assert daemon.events("retrying") == []
        assert daemon.stop() == 0


@pytest.mark.nightly  # test_schemas_before_rows lets a type through
def test_what_is_incompatible_can_be_let_through(
    postgres: PostgresServer, database: str, both_ways: BothWays, topics_of: TopicsOf
) -> None:
    cases = [case for case in CASES if case.verdict == INCOMPATIBLE]
    prepare(postgres, database, cases)
    both = both_ways(**LET_THROUGH)
    change(postgres, database, cases)
    for daemon in both:
        await_confirmed(postgres, daemon, 120)
        topics = topics_of(daemon)
        for case, table, first, second in both_rows(topics, cases):
            where = f"{table}, {daemon.name}"
            assert without_time(first.row) == case.before, where
            assert without_time(second.row) == case.after, where
            assert first.schema_id != second.schema_id, where
            level = topics.client.get_compatibility(f"{daemon.name}.public.{table}-value")
            assert level == "BACKWARD_TRANSITIVE"
        assert len(daemon.events("incompatible_schema")) == len(cases) * len(SPACING)
        assert daemon.stop() == 0


def test_what_is_incompatible_halts_with_its_place_and_nothing_is_skipped(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, topics_of: TopicsOf
) -> None:
    """F55: a change of scale, which the registry itself would accept; the reversed change is the resolution."""
    run(postgres, database, "CREATE TABLE t (id int PRIMARY KEY, v numeric(8,2))")
    with new_daemon(postgres, database, snapshot=STREAM_ONLY) as daemon:
        topics = topics_of(daemon)
        daemon.start().wait_state("streaming")
        run(
            postgres,
            database,
            "INSERT INTO t VALUES (1, 1.25)",
            "ALTER TABLE t ALTER v TYPE numeric(8,4)",
            "INSERT INTO t VALUES (2, 7391.8264)",
        )
        page = daemon.wait_state("halted")
        assert "CDCD-SCHEMA-INCOMPATIBLE" in page["reason"]
        assert "before.v: a decimal of scale 2 cannot be read with scale 4" in page["reason"]
        assert "7391.8264" not in daemon.log()
        assert [change.row["id"] for change in topics.changes("t")] == [1]
        assert daemon.stop() == 0
        daemon.config["registry"]["incompatible"] = "register_with_none"
        daemon.start()
        await_confirmed(postgres, daemon, 120)
        assert [str(change.row["v"]) for change in topics.changes("t")] == ["1.25", "7391.8264"]
        assert daemon.stop() == 0


def test_what_is_incompatible_goes_on_in_a_new_topic(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, topics_of: TopicsOf
) -> None:
    """Each row is in the topic of its schema, also after a kill, and after the change was reverted."""
    run(postgres, database, "CREATE TABLE t (id int PRIMARY KEY, v numeric(8,2))")
    over: dict[str, Any] = {"registry": {"incompatible": "new_topic"}, "snapshot": STREAM_ONLY}
    with new_daemon(postgres, database, **over) as daemon:
        topics = topics_of(daemon)
        daemon.start().wait_state("streaming")
        run(
            postgres,
            database,
            "INSERT INTO t VALUES (1, 1.25)",
            "ALTER TABLE t ALTER v TYPE numeric(8,4)",
            "INSERT INTO t VALUES (2, 2.5)",
        )
        await_confirmed(postgres, daemon, 120)
        daemon.kill()
        run(postgres, database, "INSERT INTO t VALUES (3, 3.5)", "ALTER TABLE t ADD w int")
        daemon.start()
        run(postgres, database, "INSERT INTO t VALUES (4, 4.5, 4)", "UPDATE t SET w = 0 WHERE id = 1")
        run(postgres, database, "ALTER TABLE t DROP w", "ALTER TABLE t ALTER v TYPE numeric(8,2)")
        run(postgres, database, "INSERT INTO t VALUES (5, 5.25)", "ALTER TABLE t ALTER v TYPE bigint")
        run(postgres, database, "INSERT INTO t VALUES (6, 6)")
        await_confirmed(postgres, daemon, 120)
        assert [(op, after["id"]) for op, _, after in topics.reported("t")] == [("c", 1), ("c", 5)]
        assert [(op, after["id"]) for op, _, after in topics.reported("t.v2")] == [
            ("c", 2),
            ("c", 3),
            ("c", 4),
            ("u", 1),
        ]
        assert [(op, after["id"]) for op, _, after in topics.reported("t.v3")] == [("c", 6)]
        assert [line["topic"] for line in daemon.events("incompatible_schema")] == [
            f"{daemon.name}.public.t.v2",
            f"{daemon.name}.public.t.v3",
        ]
        assert daemon.stop() == 0
