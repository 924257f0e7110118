"""The key of a table's records, for each way to define one, on every server: a fold by key has to give the table.

The judge is a SELECT of the table after swaps, rotations, updates and deletes; the fold gives the rows that
compaction leaves.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import psycopg2
import pytest

from cdcd.demo.stack.postgres import PostgresServer
from tests.integration.conftest import NewDaemon
from tests.support.daemon import await_confirmed
from tests.support.key_cases import CASES, FULL, PLAIN, ROTATIONS, ROWS
from tests.support.nightly import nightly
from tests.support.reader import Event, Reader
from tests.support.resolutions import command
from tests.support.source import source_database
from tests.support.stack import SUPPORTED_POSTGRES_MAJORS, PostgresServers, run


def carry_out(dsn: str, table: str, statements: Iterable[str]) -> None:
    """Run statements about a table; a unique index on duplicate values stays invalid."""
    with contextlib.closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        for statement in statements:
            ignored = (psycopg2.errors.UniqueViolation,) if "CONCURRENTLY" in statement else ()
            with contextlib.suppress(*ignored):
                cursor.execute(statement.replace("$t", table))


def compacted(events: list[Event]) -> list[str]:
    """Return the column v of the rows that a compacted topic leaves."""
    last = {str(event.key): event.value for event in events}
    return sorted(value["after"]["v"] for value in last.values() if value is not None and value["op"] != "d")


def selected(server: PostgresServer, database: str, table: str) -> list[str]:
    return sorted(row[0] for row in server.execute(f"SELECT v FROM {table}", dbname=database))


OLDEST, *BETWEEN, NEWEST = SUPPORTED_POSTGRES_MAJORS


@pytest.mark.parametrize(
    "major", [nightly(OLDEST), NEWEST, *(pytest.param(major, marks=pytest.mark.long) for major in BETWEEN)]
)
def test_the_key_of_each_definition_holds_for_whoever_reads_by_key(
    pg_server: PostgresServers, major: int, new_daemon: NewDaemon, reader: Reader
) -> None:
    """F45, F82."""
    server = pg_server(major)
    tables = {f"t_{case.name}": case for case in CASES if case.since <= major}
    overrides = [
        {"table": rf"public\.{table}", **case.override} for table, case in tables.items() if case.override
    ]
    with source_database(server) as settings:
        database, dsn = settings.slot, server.dsn(settings.slot)
        for table, case in tables.items():
            carry_out(dsn, table, (*case.define.split("; "), case.rows))
        with new_daemon(server, database, format={"overrides": overrides}) as daemon:
            run(
                server,
                database,
                f"ALTER PUBLICATION cdcd_{daemon.name} SET (publish_via_partition_root = true)",
            )
            daemon.start().wait_state("streaming")
            for table, case in tables.items():
                carry_out(dsn, table, case.steps)
            await_confirmed(server, daemon)
            prefix = f"{daemon.name}.public."
            read: dict[str, list[Event]] = {table: [] for table in tables}
            for event in reader.each(*(prefix + table for table in tables)):
                read[event.topic.removeprefix(prefix)].append(event)
            wrong = {}
            for table, case in tables.items():
                events = read[table]
                keys = {() if event.key is None else tuple(event.key) for event in events}
                there = selected(server, database, table)
                if keys != {tuple(case.key.split())} or (case.key and compacted(events) != there):
                    wrong[table] = (keys, compacted(events), there)
            assert not wrong
            without = {line["table"] for line in daemon.events("relation_without_key")}
            assert without == {f"public.{table}" for table, case in tables.items() if not case.key}
            hints = {line["table"]: line["hint"] for line in daemon.events("relation_without_key")}
            assert "index public.t_deferred_pkey is DEFERRABLE" in hints["public.t_deferred"]
            assert (
                "index public.t_leaf_at_the_end_low_pkey is DEFERRABLE" in hints["public.t_leaf_at_the_end"]
            )
            assert "add a primary key" in hints["public.t_partial"]
            assert not daemon.events("key_not_unique")
            assert daemon.stop() == 0


@pytest.mark.parametrize(
    ("policy", "key"),
    [nightly({"key_columns": ["id"]}, {"id"}), ({"keyless": "row"}, {"id", "v"})],
    ids=["columns", "row"],
)
def test_a_chosen_key_that_rows_may_share_is_warned_of(
    policy: dict[str, object],
    key: set[str],
    postgres: PostgresServer,
    database: str,
    new_daemon: NewDaemon,
    reader: Reader,
) -> None:
    """The reader by key loses existing rows, and both check and log warn of it."""
    carry_out(
        postgres.dsn(database),
        "pos",
        (
            "CREATE TABLE $t (id int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED, v text)",
            FULL,
            "INSERT INTO $t VALUES (1, 'a'), (2, 'a')",
        ),
    )
    with new_daemon(
        postgres, database, format={"overrides": [{"table": r"public\.pos", **policy}]}
    ) as daemon:
        output = command(daemon, "check").stdout
        assert "rows with the same key replace one another" in output
        daemon.start().wait_state("streaming")
        carry_out(postgres.dsn(database), "pos", ("UPDATE $t SET id = 3 - id",))
        await_confirmed(postgres, daemon)
        events = reader.read(f"{daemon.name}.public.pos")
        assert {frozenset(event.key) for event in events} == {frozenset(key)}
        assert len(compacted(events)) < len(selected(postgres, database, "pos"))
        (line,) = daemon.events("key_not_unique")
        assert (line["table"], set(line["key"])) == ("public.pos", key)
        assert daemon.stop() == 0


def test_a_key_of_which_digits_are_left_out_is_warned_of(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    rows = "INSERT INTO $t VALUES (1, 'a'), (1.00000000000000000001, 'b')"
    carry_out(postgres.dsn(database), "n", ("CREATE TABLE $t (k numeric PRIMARY KEY, v text)", rows))
    with new_daemon(postgres, database, format={"numeric_as": "double"}) as daemon:
        assert "may map two different keys to one in k" in command(daemon, "check").stdout
        daemon.start().wait_state("streaming")
        assert len(compacted(reader.read(f"{daemon.name}.public.n"))) == 1
        (line,) = daemon.events("key_not_exact")
        assert (line["table"], line["columns"]) == ("public.n", ["k"])
        assert daemon.stop() == 0


@pytest.mark.nightly  # test_evolution_tables has the halt
def test_a_topic_whose_key_rows_may_share_halts_and_goes_on_as_the_hint_says(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    """Its topic has such a key from an earlier version, or from before its constraint was recreated."""
    carry_out(postgres.dsn(database), "pos", (PLAIN, FULL, ROWS))
    alter = "ALTER TABLE $t DROP CONSTRAINT $t_pkey, ADD PRIMARY KEY (id)"
    with new_daemon(postgres, database) as daemon:
        daemon.start().wait_state("streaming")
        assert daemon.stop() == 0
        carry_out(postgres.dsn(database), "pos", (f"{alter} DEFERRABLE", *ROTATIONS))
        daemon.start()
        reason = daemon.wait_state("halted")["reason"]
        assert "CDCD-KEY-CHANGED" in reason
        assert "NOT DEFERRABLE" in reason
        output = command(daemon, "check").stdout
        assert (
            "two rows may have the same (id) temporarily, because index public.pos_pkey is DEFERRABLE"
            in output
        )
        # the former key, deliberately
        daemon.config["format"] = {"overrides": [{"table": r"public\.pos", "key_columns": ["id"]}]}
        assert daemon.stop() == 0
        daemon.start()
        await_confirmed(postgres, daemon)
        assert daemon.stop() == 0
        # or the recreated constraint
        del daemon.config["format"]
        carry_out(postgres.dsn(database), "pos", (alter, "UPDATE $t SET v = 'last'"))
        daemon.start()
        await_confirmed(postgres, daemon)
        events = reader.read(f"{daemon.name}.public.pos")
        assert {tuple(event.key) for event in events} == {("id",)}
        assert compacted(events) == selected(postgres, database, "pos") == ["last"] * 4
        assert daemon.stop() == 0
