"""Rows that were deleted while the stream did not have the table's changes, found by the keys in the topic.

The judges: the table, the fold of all records, and what compaction leaves of the topic.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.postgres import PostgresServer
from cdcd.failpoints import EXIT_STATUS, VARIABLE
from tests.integration.conftest import NewDaemon
from tests.support.daemon import Daemon, await_confirmed
from tests.support.folded import folded
from tests.support.nightly import nightly
from tests.support.reader import BEGINNING, Event, Reader, assert_each_once
from tests.support.resolutions import ACCEPT_GAP, command
from tests.support.snapshot_commands import await_copied, start
from tests.support.snapshot_commands import command as post
from tests.support.stack import PostgresServers, filled_database, run
from tests.support.topics import committed_records

ROWS, DELETED = 6_000, 2_000
TABLES = (
    "CREATE TABLE orders (n int NOT NULL, region text, id int, note text, PRIMARY KEY (region, id))",
    f"INSERT INTO orders SELECT g, 'r' || g % 3, g, 'first' FROM generate_series(1, {ROWS}) g",
    "CREATE TABLE kinds (t timestamptz, pad text, u uuid, d numeric(10,2), b bytea, PRIMARY KEY (u, d, t, b))",
    "INSERT INTO kinds SELECT timestamptz '2026-01-01 00:00+00' + g * interval '1 hour', 'x', md5(g::text)::uuid,"
    " g / 4.0, decode(md5(g::text), 'hex') FROM generate_series(1, 200) g",
)
IN_THE_GAP = (
    f"DELETE FROM orders WHERE id <= {DELETED}",
    "UPDATE orders SET note = 'second' WHERE id % 7 = 0",
    f"UPDATE orders SET id = id + 100000 WHERE id > {ROWS - 100}",
    f"INSERT INTO orders SELECT 1, 'r', g, 'new' FROM generate_series({ROWS + 1}, {ROWS + 50}) g",
    "DELETE FROM kinds WHERE d < 10",
)
STALE = {"orders": DELETED + 100, "kinds": 39}


@pytest.fixture(params=[nightly(12), 18])
def source(
    request: pytest.FixtureRequest, pg_server: PostgresServers
) -> Iterator[tuple[PostgresServer, str]]:
    """Yield a server and a database with the tables."""
    with filled_database(pg_server, request.param, TABLES) as found:
        yield found


@pytest.fixture
def behind(source: tuple[PostgresServer, str], new_daemon: NewDaemon) -> Iterator[Daemon]:
    """Yield a daemon that streams, and whose topics have rows that were deleted in an accepted gap."""
    server, database = source
    with new_daemon(server, database) as daemon:
        daemon.start().wait_state("streaming")
        run(server, database, "UPDATE orders SET note = 'streamed' WHERE id % 1000 = 0")
        await_confirmed(server, daemon)
        assert daemon.stop() == 0
        accept_a_gap(server, database, daemon, *IN_THE_GAP)
        daemon.start().wait_state("streaming")
        yield daemon


def accept_a_gap(server: PostgresServer, database: str, daemon: Daemon, *changes: str) -> None:
    """Let the stopped daemon miss these changes."""
    run(server, database, *changes)
    server.execute(
        "SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", daemon.slot, dbname=database
    )
    assert command(daemon, *ACCEPT_GAP).returncode == 0


def restart_to_end_at(daemon: Daemon, failpoint: str) -> None:
    """Restart the daemon; its process ends at a failpoint, the next one does not."""
    assert daemon.stop() == 0
    daemon.environment[VARIABLE] = failpoint
    daemon.start().wait_state("streaming")
    del daemon.environment[VARIABLE]


def deletes_of(events: list[Event]) -> list[Event]:
    return [event for event in events if event.op == "d" and event.source["snapshot"] == "incremental"]


def assert_equal(
    server: PostgresServer, database: str, daemon: Daemon, reader: Reader, kafka: KafkaBroker, table: str
) -> list[Event]:
    topic = f"{daemon.name}.public.{table}"
    events = reader.read(topic)
    assert_each_once(events)
    rows = [row for (row,) in server.execute(f"SELECT to_json(t) FROM {table} t", dbname=database)]
    if table == "orders":
        rows_of_readers = folded([event for event in events if event.op != "g"]).values()
        assert sorted(rows_of_readers, key=repr) == sorted(rows, key=repr)
    last = {
        one.key(): one.value() for one in committed_records(kafka.bootstrap, topic) if one.key() is not None
    }
    assert sum(value is not None for value in last.values()) == len(rows), "what compaction leaves"
    return events


@pytest.mark.parametrize("crash", [nightly(None), "stale_rows_deleted:2", nightly("table_copied")])
def test_rows_that_were_deleted_in_a_gap_are_deleted_and_no_other(
    source: tuple[PostgresServer, str],
    behind: Daemon,
    reader: Reader,
    kafka: KafkaBroker,
    crash: str | None,
) -> None:
    server, database = source
    if crash is not None:
        restart_to_end_at(behind, crash)
    start(behind, "public.orders", "public.kinds", compare=True)
    if crash is not None:
        assert behind.wait_exit() == EXIT_STATUS
        behind.start().wait_state("streaming")
    await_copied(behind)
    await_confirmed(server, behind)
    assert behind.stop() == 0
    for table, stale in STALE.items():
        events = assert_equal(server, database, behind, reader, kafka, table)
        deletes = deletes_of(events)
        assert len(deletes) == stale
        for event in deletes:
            assert event.key == {name: event.value["before"][name] for name in event.key}
            assert event.value["after"] is None


@pytest.mark.nightly
def test_a_row_that_comes_back_while_the_keys_are_compared_remains(
    source: tuple[PostgresServer, str], behind: Daemon, reader: Reader, kafka: KafkaBroker
) -> None:
    """Rows of the gap are inserted again and deleted by the stream all the time."""
    server, database = source
    over = threading.Event()

    def insert_and_delete() -> None:
        with server.session(database) as execute:
            for number in range(1, 1_000_000):
                at = number * 7 % DELETED + 1
                execute(
                    f"INSERT INTO orders VALUES ({number}, 'r' || {at} % 3, {at}, 'again')"
                    " ON CONFLICT (region, id) DO UPDATE SET n = excluded.n"
                )
                if number % 3 == 0:
                    execute(f"DELETE FROM orders WHERE id = {at}")
                if over.wait(0.002):
                    return

    writer = threading.Thread(target=insert_and_delete)
    writer.start()
    try:
        start(behind, "public.orders", compare=True)
        await_copied(behind)
    finally:
        over.set()
        writer.join()
    await_confirmed(server, behind)
    assert behind.stop() == 0
    events = assert_equal(server, database, behind, reader, kafka, "orders")
    assert 0 < len(deletes_of(events)) < STALE["orders"], "some came back before, and some after"


@pytest.mark.nightly
def test_a_second_gap_in_the_middle_begins_the_comparison_again(
    source: tuple[PostgresServer, str], behind: Daemon, reader: Reader, kafka: KafkaBroker
) -> None:
    """Rows that were copied before are deleted in it, and rows that the first gap deleted come back."""
    server, database = source
    restart_to_end_at(behind, "stale_rows_deleted:3")
    start(behind, "public.orders", compare=True)
    assert behind.wait_exit() == EXIT_STATUS
    accept_a_gap(
        server,
        database,
        behind,
        f"DELETE FROM orders WHERE id BETWEEN {ROWS - 500} AND {ROWS - 300}",
        f"INSERT INTO orders SELECT 7, 'r' || g % 3, g, 'back' FROM generate_series(1, {DELETED}, 3) g",
    )
    behind.start().wait_state("streaming")
    await_copied(behind)
    await_confirmed(server, behind)
    assert behind.stop() == 0
    events = assert_equal(server, database, behind, reader, kafka, "orders")
    deleted = {tuple(event.key.values()) for event in deletes_of(events)}
    assert len(deleted) > DELETED // 2 + 200


@pytest.mark.nightly
def test_a_key_that_came_back_with_other_bytes(
    pg_server: PostgresServers, new_daemon: NewDaemon, reader: Reader
) -> None:
    """Keys that are equal for the database: a reader that takes them for equal, too, keeps the row."""
    tables = (
        "CREATE EXTENSION citext",
        "CREATE TABLE names (k citext PRIMARY KEY, v int)",
        "INSERT INTO names SELECT 'name' || g, g FROM generate_series(1, 200) g",
        "CREATE TABLE amounts (k numeric PRIMARY KEY, v int)",
        "INSERT INTO amounts SELECT g, g FROM generate_series(1, 200) g",
    )
    with filled_database(pg_server, 18, tables) as (server, database), new_daemon(server, database) as daemon:
        daemon.start().wait_state("streaming")
        await_confirmed(server, daemon)
        assert daemon.stop() == 0
        accept_a_gap(
            server,
            database,
            daemon,
            "UPDATE names SET k = upper(k::text) WHERE v % 2 = 0",
            "DELETE FROM names WHERE v % 10 = 5",
            "UPDATE amounts SET k = (k::text || '.0')::numeric WHERE v % 2 = 0",
            "DELETE FROM amounts WHERE v % 10 = 5",
        )
        daemon.start().wait_state("streaming")
        start(daemon, "public.names", "public.amounts", compare=True)
        await_copied(daemon)
        await_confirmed(server, daemon)
        assert daemon.stop() == 0
        for table, value in {"names": str.casefold, "amounts": float}.items():
            events = [one for one in reader.read(f"{daemon.name}.public.{table}") if one.op != "g"]
            assert_each_once(events)
            rows = {event.key["k"]: row["v"] for event, row in last_rows(events)}
            expected = dict(server.execute(f"SELECT k::text, v FROM {table}", dbname=database))
            assert rows == expected, "by the bytes of the keys"
            by_value = {value(event.key["k"]): row["v"] for event, row in last_rows(events, value)}
            assert by_value == {value(key): v for key, v in expected.items()}


def last_rows(events: list[Event], value: Callable[[str], Any] = str) -> list[tuple[Event, dict[str, Any]]]:
    """Return the records after which a key is not deleted, in the order of the sequences; `value` of a key."""
    last: dict[Any, Event] = {}
    for event in sorted(events, key=lambda one: one.sequence or BEGINNING):
        last[value(event.key["k"])] = event
    return [(event, event.value["after"]) for event in last.values() if event.op != "d"]


@pytest.mark.nightly
def test_a_table_that_is_renamed_while_its_keys_are_compared(
    source: tuple[PostgresServer, str], behind: Daemon, reader: Reader
) -> None:
    """Its rows are copied into the new topic, and no delete of the old one's rows is in it."""
    server, database = source
    restart_to_end_at(behind, "stale_rows_deleted:2")
    start(behind, "public.orders", compare=True)
    assert behind.wait_exit() == EXIT_STATUS
    run(server, database, "ALTER TABLE orders RENAME TO renamed", "UPDATE renamed SET n = -1 WHERE id = 5000")
    behind.start().wait_state("streaming")
    await_copied(behind)
    await_confirmed(server, behind)
    assert behind.stop() == 0
    events = reader.read(f"{behind.name}.public.renamed")
    assert_each_once(events)
    rows = [row for (row,) in server.execute("SELECT to_json(t) FROM renamed t", dbname=database)]
    assert sorted(folded(events).values(), key=repr) == sorted(rows, key=repr)
    assert not deletes_of(events)


def test_what_cannot_be_compared_is_refused(
    source: tuple[PostgresServer, str], behind: Daemon, kafka: KafkaBroker
) -> None:
    for options in ({"where": "id > 5"}, {"recopy": True}, {"blocking": True}):
        status, _ = post(behind, "start", "public.orders", compare=True, **options)
        assert status == 400
    assert post(behind, "stop", compare=True)[0] == 400
    topic = f"{behind.name}.public.kinds"
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    for future in admin.delete_records([TopicPartition(topic, 0, 3)]).values():
        future.result(30)
    status, body = post(behind, "start", "public.kinds", compare=True)
    assert status == 422
    assert "not all of its keys are known" in body["message"]
    assert "--recopy" in body["hint"]
    assert behind.stop() == 0
    behind.config["snapshot"] = {"overrides": [{"table": "public.orders", "where": "id > 5"}]}
    behind.start().wait_state("streaming")
    status, body = post(behind, "start", all=True, compare=True)
    assert (status, body["tables"]) == (200, ["public.kinds"]), "a table that is copied in part is left out"
    assert "copies only a part" in behind.log()
    assert post(behind, "start", "public.orders", compare=True)[0] == 200, "a command has its own condition"
