"""`columns` of snapshot.overrides: a copy has the chosen columns and the key, the stream has all of them.

The judge is the table itself: a copied row has its values in the chosen columns, and names the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cdcd.demo.stack.postgres import PostgresServer
from tests.integration.conftest import NewDaemon
from tests.support.daemon import Daemon, await_confirmed
from tests.support.nightly import nightly
from tests.support.reader import BEGINNING, Event, Reader, assert_each_once
from tests.support.resolutions import halts_with
from tests.support.snapshot_commands import await_copied, start
from tests.support.stack import PostgresServers, filled_database, run

ROWS = 2_000
TABLES = (
    "CREATE TABLE docs (body text, a int, id bigint, at timestamptz, large jsonb, b int, PRIMARY KEY (b, id))",
    f"""INSERT INTO docs SELECT CASE WHEN g % 7 > 0 THEN E'tab\\t' || g END, g, g * 3, now(), '[1]', g % 5
        FROM generate_series(1, {ROWS}) g""",
    "CREATE TABLE log (what text, n int, at int DEFAULT 7)",
    "ALTER TABLE log REPLICA IDENTITY FULL",
    "INSERT INTO log SELECT 'x' || g, g FROM generate_series(1, 50) g",
    "CREATE TABLE whole (id int PRIMARY KEY, note text)",
    "INSERT INTO whole VALUES (1, 'all of it')",
)
COLUMNS = {
    "overrides": [
        {"table": r"public\.docs", "columns": ["body", "a"]},
        {"table": r"public\.log", "columns": "n"},
    ]
}


@pytest.fixture(params=[nightly(12), 18])
def source(
    request: pytest.FixtureRequest, pg_server: PostgresServers
) -> Iterator[tuple[PostgresServer, str]]:
    """Yield a server and a database with the tables."""
    with filled_database(pg_server, request.param, TABLES) as found:
        yield found


def copied(daemon: Daemon, reader: Reader, table: str) -> list[Event]:
    """Return the copied rows, each of which is there once."""
    events = [event for event in reader.read(f"{daemon.name}.public.{table}") if event.op == "r"]
    assert_each_once(events)
    return events


def afters(events: list[Event], *columns: str) -> list[tuple[Any, ...]]:
    return sorted((tuple(event.value["after"][column] for column in columns) for event in events), key=repr)


def assert_docs(source: tuple[PostgresServer, str], events: list[Event]) -> None:
    """Assert that the rows have the chosen columns and the key, and name the others."""
    server, database = source
    rows = server.execute("SELECT body, a, id, b FROM docs WHERE a <= %s", ROWS, dbname=database)
    assert afters(events, "body", "a", "id", "b") == sorted(rows, key=repr)
    assert [event.key for event in events] == [
        {"b": event.value["after"]["b"], "id": event.value["after"]["id"]} for event in events
    ]
    for event in events:
        assert event.source["unchanged"] == ["at", "large"]
        assert (event.value["after"]["at"], event.value["after"]["large"]) == (None, None)


def assert_all(source: tuple[PostgresServer, str], daemon: Daemon, reader: Reader) -> None:
    """Assert the copied rows of every table."""
    assert_docs(source, copied(daemon, reader, "docs"))
    log = copied(daemon, reader, "log")
    assert afters(log, "what", "n", "at") == sorted([(None, n, None) for n in range(1, 51)], key=repr)
    assert {tuple(event.source["unchanged"]) for event in log} == {("what", "at")}
    (whole,) = copied(daemon, reader, "whole")
    assert (whole.value["after"], whole.source["unchanged"]) == ({"id": 1, "note": "all of it"}, [])


@pytest.mark.parametrize("mode", ["initial", "never"])
def test_a_copy_has_the_chosen_columns_and_the_key(
    mode: str, source: tuple[PostgresServer, str], new_daemon: NewDaemon, reader: Reader
) -> None:
    """`never`: the copy is incremental, and blocking for the table without a key. `docs` is read as text: jsonb."""
    server, database = source
    with new_daemon(server, database, snapshot={"mode": mode, **COLUMNS}) as daemon:
        daemon.start().wait_state("streaming")
        if mode == "never":
            start(daemon, "public.docs", "public.whole")
            await_copied(daemon)
            start(daemon, "public.log", blocking=True, recopy=True)
            await_copied(daemon)
        run(
            server,
            database,
            f"INSERT INTO docs VALUES ('new', {ROWS + 1}, 0, 'epoch', '[2]', 0)",
            "UPDATE docs SET a = a WHERE id = 3",
        )
        await_confirmed(server, daemon)
        assert_all(source, daemon, reader)
        events = [event for event in reader.read(f"{daemon.name}.public.docs") if event.op in "cu"]
        streamed = sorted(events, key=lambda event: event.sequence or BEGINNING)
        assert [event.source["unchanged"] for event in streamed] == [[], []]
        assert [event.value["after"]["large"] for event in streamed] == ["[2]", "[1]"]


def test_the_binary_format_has_the_same_columns(
    source: tuple[PostgresServer, str], new_daemon: NewDaemon, reader: Reader
) -> None:
    """Of a table's columns only those that are read decide about the format: a range has no decoder in C."""
    server, database = source
    run(server, database, "ALTER TABLE docs DROP large", "ALTER TABLE docs ADD large int4range")
    with new_daemon(server, database, snapshot=COLUMNS) as daemon:
        daemon.start().wait_state("streaming")
        events = copied(daemon, reader, "docs")
        assert {tuple(event.source["unchanged"]) for event in events} == {("at", "large")}
        rows = server.execute("SELECT body, a, id, b FROM docs", dbname=database)
        assert afters(events, "body", "a", "id", "b") == sorted(rows, key=repr)


def test_a_role_needs_no_right_on_what_is_not_copied(
    source: tuple[PostgresServer, str], new_daemon: NewDaemon, reader: Reader
) -> None:
    server, database = source
    role = f"r_{database}"
    run(
        server,
        database,
        f"CREATE ROLE {role} LOGIN REPLICATION",
        f"GRANT SELECT (body, a, id, b) ON docs TO {role}",
        f"GRANT SELECT ON whole TO {role}",
    )
    overrides = [*COLUMNS["overrides"], {"table": r"public\.log", "include": False}]
    try:
        with new_daemon(server, database, snapshot={"overrides": overrides}) as daemon:
            daemon.config["source"]["dsn"] = daemon.config["source"]["dsn"].replace(
                "//postgres@", f"//{role}@"
            )
            assert role in daemon.config["source"]["dsn"]
            checked = daemon.run("check").stdout
            assert "lacks SELECT" not in checked
            daemon.start().wait_state("streaming")
            assert_docs(source, copied(daemon, reader, "docs"))
    finally:
        run(server, database, f"DROP OWNED BY {role}", f"DROP ROLE {role}")


def test_a_column_that_is_not_published_is_refused_before_the_slot_is_created(
    source: tuple[PostgresServer, str], new_daemon: NewDaemon, reader: Reader
) -> None:
    server, database = source
    overrides = [{"table": r"public\..*", "columns": ["a", "n", "id"]}]
    with new_daemon(server, database, snapshot={"overrides": overrides}) as daemon:
        checked = daemon.run("check")
        assert checked.returncode != 0
        lines = [line for line in checked.stdout.splitlines() if "chooses columns" in line]
        for table, missing in (("docs", "n"), ("log", "a, id"), ("whole", "a, n")):
            (line,) = [line for line in lines if f"table public.{table}" in line]
            assert f"does not publish: {missing}" in line
        reason = halts_with(daemon.start(), "CDCD-SOURCE-SETUP")
        assert "snapshot.overrides" in reason
        slots = "SELECT 1 FROM pg_replication_slots WHERE slot_name = %s"
        assert server.execute(slots, daemon.slot) == []
        assert reader.read(f"{daemon.name}.public.whole") == []
