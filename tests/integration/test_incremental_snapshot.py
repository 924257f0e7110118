"""Tables that are copied while the stream runs: every row is there, none older than the stream's, across restarts.

The judge is the table itself: the topics' records, folded in the order of their offsets, are its rows (F36, F40).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from random import Random
from typing import Any

import psycopg2
import pytest

from cdcd.demo.stack.postgres import PostgresServer
from cdcd.failpoints import EXIT_STATUS, VARIABLE
from tests.integration.conftest import NewDaemon
from tests.support.daemon import Daemon, await_confirmed
from tests.support.folded import folded
from tests.support.nightly import nightly
from tests.support.random_changes import RandomChanges
from tests.support.reader import Event, Reader, assert_each_once
from tests.support.snapshot_commands import await_copied, command, ensure_started, reports, start
from tests.support.stack import PostgresServers, filled_database, run_script
from tests.support.waiting import eventually

ROWS = 6_000
TABLES = (
    "CREATE TABLE orders (id int PRIMARY KEY, n int, body text)",
    "ALTER TABLE orders ALTER COLUMN body SET STORAGE EXTERNAL",
    "INSERT INTO orders SELECT g, 0, CASE g % 20 WHEN 0 THEN repeat(md5(g::text), 100) ELSE 'x' END"
    f" FROM generate_series(1, {ROWS}) g",
    'CREATE TABLE pair (a text COLLATE "C", b numeric, v int, PRIMARY KEY (b, a))',
    "INSERT INTO pair SELECT 'k' || g % 7, g / 7.0, g FROM generate_series(1, 2000) g",
    "CREATE TABLE log (what text)",
)


@pytest.fixture(params=[nightly(12), 18])
def source(
    request: pytest.FixtureRequest, pg_server: PostgresServers
) -> Iterator[tuple[PostgresServer, str]]:
    """Yield a server and a database with the tables."""
    with filled_database(pg_server, request.param, TABLES) as found:
        yield found


def change(random: Random) -> str:
    """Return a change of `orders`."""
    low, draw = random.randrange(ROWS), random.random()
    if draw < 0.6:
        return f"UPDATE orders SET n = n + 1 WHERE id BETWEEN {low} AND {low + 3}"
    if draw < 0.7:
        return f"DELETE FROM orders WHERE id = {low}"
    if draw < 0.85:
        new = random.randrange(2 * ROWS)
        return (
            f"UPDATE orders SET id = {new} WHERE id = {low} AND NOT EXISTS"
            f" (SELECT FROM orders WHERE id = {new})"
        )
    return f"INSERT INTO orders VALUES ({low}, -1, repeat('new', 900)) ON CONFLICT DO NOTHING"


def assert_equal(
    server: PostgresServer, database: str, daemon: Daemon, reader: Reader, table: str
) -> list[Event]:
    """Assert that the topic has the table's rows; return its records."""
    await_confirmed(server, daemon)
    events = reader.read(f"{daemon.name}.public.{table}")
    assert_each_once(events)
    of_table = {"orders": "orders", "pair": "(SELECT a, b::text, v FROM pair)"}
    rows = [row for (row,) in server.execute(f"SELECT to_json(t) FROM {of_table[table]} t", dbname=database)]
    found = list(folded(events).values())
    order = {"orders": lambda row: row["id"], "pair": lambda row: row["v"]}[table]
    assert sorted(found, key=order) == sorted(rows, key=order)
    return events


def streaming(daemon: Daemon, options: dict[str, Any] | None = None) -> Daemon:
    daemon.config["snapshot"] = {"mode": "never", **(options or {})}
    daemon.start().wait_state("streaming")
    return daemon


@pytest.mark.nightly  # `test_incremental_ways` copies tables while they change
def test_a_table_is_copied_while_it_changes(
    source: tuple[PostgresServer, str], new_daemon: NewDaemon, reader: Reader
) -> None:
    server, database = source
    with streaming(new_daemon(server, database)) as daemon:
        load = RandomChanges(server, database, 1, change)
        try:
            start(daemon, "public.orders", "public.pair")
            await_copied(daemon)
        finally:
            load.stop()
        events = assert_equal(server, database, daemon, reader, "orders")
        copied = [event for event in events if event.op == "r"]
        assert {event.source["snapshot"] for event in copied} == {"incremental"}
        assert len(copied) > ROWS / 2
        assert len(assert_equal(server, database, daemon, reader, "pair")) == 2000
        assert load.transactions > 0


@pytest.mark.parametrize(
    "crashes",
    [
        nightly(("chunk_begun",)),
        nightly(("chunk_emitted:2", "committed:3")),
        ("chunk_emitted:5",),
        nightly(("chunk_emitted:5", "table_copied")),
        nightly(("confirmed:4",)),
    ],
    ids=" then ".join,
)
def test_a_copy_continues_after_a_crash(
    crashes: tuple[str, ...], source: tuple[PostgresServer, str], new_daemon: NewDaemon, reader: Reader
) -> None:
    server, database = source
    with streaming(new_daemon(server, database)) as daemon:
        assert daemon.stop() == 0
        load = RandomChanges(server, database, 2, change)
        try:
            for failpoint in crashes:
                daemon.environment[VARIABLE] = failpoint
                daemon.start()
                ensure_started(daemon, "public.orders")
                assert daemon.wait_exit() == EXIT_STATUS
            del daemon.environment[VARIABLE]
            daemon.start().wait_state("streaming")
            if not reports(daemon) and not any(line["event"] == "table_copied" for line in daemon.lines()):
                start(daemon, "public.orders")
            await_copied(daemon)
        finally:
            load.stop()
        assert_equal(server, database, daemon, reader, "orders")


def marks_of(daemon: Daemon, reader: Reader, table: str) -> list[tuple[Any, ...]]:
    """Return status, id, number of rows and tables of the records of a table's copies."""
    marks = [event.value for event in reader.read(f"{daemon.name}.transaction")]
    return [
        (mark["status"], mark["id"], mark["event_count"], mark["data_collections"])
        for mark in marks
        if mark["id"].startswith("snapshot:") and mark["id"].endswith(f":{table}")
    ]


@pytest.mark.nightly  # a copy that is stopped has both, and the initial snapshot has them over a crash
@pytest.mark.parametrize(
    "crashes",
    [("chunk_emitted:2", "committed:3", "table_copied"), ("chunk_begun:2", "progress_produced:4")],
    ids=" then ".join,
)
def test_begin_and_end_of_a_copy_are_written_once_with_its_rows(
    crashes: tuple[str, ...], source: tuple[PostgresServer, str], new_daemon: NewDaemon, reader: Reader
) -> None:
    server, database = source
    options = {"incremental": {"max_rows_per_second": 3000}}
    daemon = new_daemon(server, database, format={"transactions": True})
    with streaming(daemon, options) as daemon:
        daemon.stop()
        for failpoint in crashes:
            daemon.environment[VARIABLE] = failpoint
            daemon.start()
            ensure_started(daemon, "public.orders")
            assert daemon.wait_exit() == EXIT_STATUS
        del daemon.environment[VARIABLE]
        daemon.start().wait_state("streaming")
        await_copied(daemon)
        events = assert_equal(server, database, daemon, reader, "orders")
        copied = sum(event.op == "r" for event in events)
        begin, end = marks_of(daemon, reader, "public.orders")
        assert begin[0] == "BEGIN"
        assert begin[2:] == (None, None)
        of_table = [{"data_collection": "public.orders", "event_count": copied}]
        assert end == ("END", begin[1], copied, of_table)


def test_a_copy_that_is_stopped_has_an_end_and_another_one_has_its_own(
    source: tuple[PostgresServer, str], new_daemon: NewDaemon, reader: Reader
) -> None:
    server, database = source
    options = {"incremental": {"max_rows_per_second": 500}}
    daemon = new_daemon(server, database, format={"transactions": True})
    with streaming(daemon, options) as daemon:
        start(daemon, "public.orders")
        eventually(lambda: reports(daemon) and reports(daemon)[0]["rows"] > 0, "some rows")
        assert command(daemon, "stop")[0] == 200
        await_confirmed(server, daemon)
        copied = [one for one in reader.read(f"{daemon.name}.public.orders") if one.op == "r"]
        begin, end = marks_of(daemon, reader, "public.orders")
        assert (begin[0], end[:3]) == ("BEGIN", ("END", begin[1], len(copied)))
        start(daemon, "public.pair")
        eventually(lambda: reports(daemon) and reports(daemon)[0]["rows"] > 0, "some rows")
        start(daemon, "public.pair", where="v < 10")
        await_copied(daemon)
        marks = marks_of(daemon, reader, "public.pair")
        assert [mark[0] for mark in marks] == ["BEGIN", "END"] * 2
        assert marks[0][1] == marks[1][1] != marks[2][1] == marks[3][1]
        assert 9 in (marks[1][2], marks[3][2])  # each id has its own partition


def test_commands_pause_resume_stop_and_are_refused(
    source: tuple[PostgresServer, str], new_daemon: NewDaemon, reader: Reader
) -> None:
    server, database = source
    with streaming(new_daemon(server, database)) as daemon:
        for table, message in (
            ("public.absent", "does not exist"),
            ("public.log", "no key"),
        ):
            status, body = command(daemon, "start", table)
            assert status == 422
            assert message in body["message"]
        assert command(daemon, "pause", "public.orders")[0] == 422
        status, body = command(daemon, "start", "public.orders", where="id <")
        assert status == 422
        assert "condition" in body["message"]
        assert reports(daemon) == []

        start(daemon, "public.orders", where="id % 2 = 0")
        await_copied(daemon)
        await_confirmed(server, daemon)
        copied = [one for one in reader.read(f"{daemon.name}.public.orders") if one.op == "r"]
        assert [one.key["id"] for one in copied if one.key["id"] % 2] == []
        assert len(copied) == ROWS / 2

        start(daemon, "public.orders", recopy=True)
        await_copied(daemon)
        events = assert_equal(server, database, daemon, reader, "orders")
        assert sum(event.op == "t" for event in events) == 2  # in each partition


def test_all_tables_are_copied_again_after_a_change_that_the_stream_did_not_have(
    source: tuple[PostgresServer, str], new_daemon: NewDaemon, reader: Reader
) -> None:
    """As after a gap: readers lose what was deleted in it, and get what was inserted."""
    server, database = source
    daemon = new_daemon(server, database)
    daemon.config["snapshot"] = {"overrides": [{"table": r"public\.left_out", "include": False}]}
    with daemon:
        run_script(
            server.dsn(database),
            "CREATE TABLE left_out (id int PRIMARY KEY)",
            "INSERT INTO left_out VALUES (1)",
        )
        daemon.start().wait_state("streaming")
        run_script(
            server.dsn(database),
            f"BEGIN; ALTER PUBLICATION cdcd_{daemon.name} SET (publish = 'truncate');"
            " DELETE FROM orders WHERE id < 100; UPDATE orders SET n = 5 WHERE id < 200;"
            " INSERT INTO orders VALUES (-1, 0, 'x'); DELETE FROM pair WHERE v < 10;"
            f" ALTER PUBLICATION cdcd_{daemon.name} SET (publish = 'insert, update, delete, truncate'); COMMIT",
        )
        status, body = command(daemon, "start", all=True, recopy=True)
        assert (status, body["tables"]) == (200, ["public.orders", "public.pair"])
        assert list(body["left_out"]) == ["public.log"]
        await_copied(daemon)
        for table in ("orders", "pair"):
            assert_equal(server, database, daemon, reader, table)
        assert [line["table"] for line in daemon.events("table_not_copied")] == ["public.log"]
        assert reader.read(f"{daemon.name}.public.left_out") == []


def reason(daemon: Daemon) -> str:
    found = reports(daemon)
    return str(found[0]["reason"]) if found else ""


def test_a_copy_waits_while_the_source_is_busy_and_says_so(
    source: tuple[PostgresServer, str], new_daemon: NewDaemon, reader: Reader
) -> None:
    server, database = source
    daemon = new_daemon(server, database)
    daemon.config["snapshot"] = {"mode": "never", "incremental": {"pause_above_active_sessions": 0}}
    with (
        daemon,
        psycopg2.connect(server.dsn(database)) as busy,
        psycopg2.connect(server.dsn(database)) as lock,
    ):
        daemon.start().wait_state("streaming")
        lock.cursor().execute("SELECT pg_advisory_lock(1)")
        waits = threading.Thread(target=lambda: busy.cursor().execute("SELECT pg_advisory_lock(1)"))
        waits.start()
        try:
            start(daemon, "public.orders")
            eventually(lambda: "1 sessions are active" in reason(daemon), "the copy waits, with the reason")
            assert [one["state"] for one in reports(daemon)] == ["waiting"]
            shown = daemon.status()["incremental_snapshots"]
            assert [(one["table"], one["state"]) for one in shown] == [("public.orders", "waiting")]
            assert 'cdcd_incremental_snapshot_tables{state="waiting"} 1.0' in daemon.get("/metrics")[1]
            assert command(daemon, "pause", "public.orders")[0] == 200
            eventually(
                lambda: [one["state"] for one in reports(daemon)] == ["paused"], "it is shown as paused"
            )
            assert command(daemon, "resume", "public.orders")[0] == 200
            eventually(lambda: "active" in reason(daemon), "the copy waits again")
        finally:
            lock.cursor().execute("SELECT pg_advisory_unlock(1)")
            waits.join()
        await_copied(daemon)
        metrics = daemon.get("/metrics")[1]
        assert 'cdcd_incremental_snapshot_tables{state="waiting"} 0.0' in metrics
        assert "cdcd_incremental_snapshot_last_completed_timestamp_seconds " in metrics
        assert daemon.status()["incremental_snapshots"] == []
        assert_equal(server, database, daemon, reader, "orders")


@pytest.mark.nightly  # a busy source is waited for in the same way
def test_a_copy_waits_while_the_stream_is_behind(
    source: tuple[PostgresServer, str], new_daemon: NewDaemon, reader: Reader
) -> None:
    server, database = source
    daemon = new_daemon(server, database)
    daemon.config["snapshot"] = {"mode": "never", "incremental": {"pause_above_lag_ms": 1}}
    with daemon:
        daemon.start().wait_state("streaming")
        load = RandomChanges(server, database, 3, change)
        try:
            start(daemon, "public.orders")
            eventually(lambda: "the replication lag is" in reason(daemon), "the copy waits, with the reason")
        finally:
            load.stop()
        await_copied(daemon)
        assert_equal(server, database, daemon, reader, "orders")


@pytest.mark.nightly
def test_a_locked_table_refuses_its_start_and_holds_up_no_stop(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon
) -> None:
    """From version 15 on the server locks a table to list its published columns."""
    server = postgres
    run_script(server.dsn(database), *TABLES)
    with streaming(new_daemon(server, database)) as daemon, psycopg2.connect(server.dsn(database)) as lock:
        lock.cursor().execute("LOCK TABLE orders IN ACCESS EXCLUSIVE MODE")
        status, body = command(daemon, "start", "public.orders")
        assert status == 422
        assert "lock" in body["message"]
        assert reports(daemon) == []
        requesting = threading.Thread(target=command, args=(daemon, "start", "public.orders"))
        requesting.start()
        waits = "SELECT count(*) > 0 FROM pg_locks WHERE NOT granted"
        eventually(
            lambda: server.execute(waits, dbname=database) == [(True,)], "the command waits for the lock"
        )
        assert daemon.stop() == 0
        requesting.join()


def test_a_copy_reads_no_faster_than_it_may(
    source: tuple[PostgresServer, str], new_daemon: NewDaemon
) -> None:
    server, database = source
    daemon = new_daemon(server, database)
    daemon.config["snapshot"] = {"mode": "never", "incremental": {"max_rows_per_second": 100}}
    with daemon:
        daemon.start().wait_state("streaming")
        start(daemon, "public.orders")
        eventually(lambda: reason(daemon) == "max_rows_per_second: 100", "the copy waits, with the reason")
        copied = eventually(
            lambda: [one["rows"] for one in reports(daemon) if one["rows"]], "a chunk is copied"
        )
        assert copied[0] < ROWS
        assert command(daemon, "stop", "public.orders")[0] == 200
        assert daemon.stop() == 0
