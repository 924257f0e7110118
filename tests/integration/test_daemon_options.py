"""Each combination of tuple format, protocol version, streaming and delivery gives the same rows."""

from __future__ import annotations

import contextlib
from typing import Any

import psycopg2
import pytest

from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.postgres import PostgresServer
from cdcd.failpoints import EXIT_STATUS, VARIABLE
from cdcd.sink.progress import key_of, load
from cdcd.sink.topic_identity import key_of_topics
from tests.integration.conftest import NewDaemon
from tests.support.daemon import Daemon, await_confirmed
from tests.support.nightly import nightly, nightly_except
from tests.support.reader import Reader, assert_each_once, fold
from tests.support.resolutions import equals_table
from tests.support.stack import (
    PostgresServers,
    confirmed_position,
    drop_database,
    new_database_name,
    run_script,
)
from tests.support.topics import committed_records
from tests.support.waiting import eventually

WAYS: dict[str, dict[str, Any]] = {
    "version 1": {"source": {"protocol": {"version": 1}}},
    "binary": {"source": {"protocol": {"binary": True}}},
    "streaming": {"source": {"protocol": {"streaming": "on"}}},
    "parallel": {"source": {"protocol": {"streaming": "parallel"}}},
    "small groups": {"sink": {"commit": {"max_rows": 1, "max_bytes": 1024, "max_wait_ms": 20}}},
    "tiny buffer": {"buffer": {"memory": "64KiB"}},
}


@pytest.mark.parametrize("way", nightly_except(WAYS, "parallel"))
def test_the_same_rows_arrive_in_every_way(
    way: str, postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    """F26, F28: a savepoint rolled back in a large transaction, an aborted one, a small one in between."""
    postgres.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text, at timestamptz, n numeric(12,3))", dbname=database
    )
    postgres.execute(f"ALTER DATABASE {database} SET logical_decoding_work_mem = '64kB'")
    insert = (
        "INSERT INTO t SELECT g, 'v' || g, '2026-01-02 03:04:05.6+00', g / 8.0 FROM generate_series(%s, %s) g"
    )
    with new_daemon(postgres, database, **WAYS[way]) as daemon:
        topic = f"{daemon.name}.public.t"
        daemon.start().wait_state("streaming")
        large = psycopg2.connect(postgres.dsn(database))
        with large.cursor() as cursor:
            cursor.execute(insert, (1, 3000))
            cursor.execute("SAVEPOINT a")
            cursor.execute(insert, (3001, 6000))
            cursor.execute("ROLLBACK TO SAVEPOINT a")
            postgres.execute(insert, 10001, 10002, dbname=database)
            cursor.execute(insert, (6001, 7000))
        large.commit()
        with large.cursor() as cursor:
            cursor.execute(insert, (20001, 24000))
        large.rollback()
        large.close()
        postgres.execute("UPDATE t SET n = n + 1 WHERE id = 10001", dbname=database)
        events = reader.wait([topic], lambda events: any(event.op == "u" for event in events))
        assert daemon.stop() == 0
    assert_each_once(events)
    rows = fold(events, lambda row: row["id"])
    expected = postgres.execute("SELECT id, v, n FROM t", dbname=database)
    assert sorted((row["id"], row["v"], row["n"]) for row in rows.values()) == sorted(expected)


def test_at_least_once_loses_nothing_over_a_kill(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    """Without Kafka transactions a restart may repeat rows; (timeline, commit_lsn, tx_seq) tells them apart."""
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY, pad text)", dbname=database)
    with new_daemon(postgres, database, sink={"delivery": "at_least_once"}) as daemon:
        topic = f"{daemon.name}.public.t"
        daemon.start().wait_state("streaming")
        for start in range(0, 20000, 2000):
            postgres.execute(
                "INSERT INTO t SELECT g, repeat('p', 200) FROM generate_series(%s::int, %s) g",
                start,
                start + 1999,
                dbname=database,
            )
            if start == 10000:
                daemon.kill()
                daemon.start()
        events = reader.wait([topic], lambda events: len({event.sequence for event in events}) >= 20000, 90)
        assert {event.value["after"]["id"] for event in events} == set(range(20000))
        assert daemon.stop() == 0


def test_at_least_once_a_snapshot_that_was_cut_off_leaves_no_row_that_was_deleted_since(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    """F40: the copied row is in the topic before the progress record of the copy, and the delete never arrives."""
    run_script(
        postgres.dsn(database),
        "CREATE TABLE t (id int PRIMARY KEY, body text)",
        "INSERT INTO t VALUES (1, 'goes'), (2, 'stays')",
    )
    with new_daemon(postgres, database, sink={"delivery": "at_least_once"}) as daemon:
        topic = f"{daemon.name}.public.t"
        # After the record of the snapshot's start, and the one with its tables: with the first row at least.
        daemon.environment[VARIABLE] = "flushed:3"
        daemon.start()
        assert daemon.process is not None
        assert daemon.process.wait(30) == EXIT_STATUS
        assert {"id": 1} in [event.key for event in reader.read(topic)]
        del daemon.environment[VARIABLE]
        postgres.execute("DELETE FROM t WHERE id = 1", dbname=database)
        daemon.start().wait_state("streaming")
        equals_table(reader, topic, postgres, database)
        assert daemon.stop() == 0


def test_at_least_once_no_record_of_the_topics_is_newer_than_the_one_in_use(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, kafka: KafkaBroker
) -> None:
    """Compaction leaves the newest one only: readers leave out the offsets of commits that name another one.

    The process ends between the record of the topics and the progress record that would name it. What the record was
    written for, a table that has joined, is undone before the next start, which has no other reason for a new one.
    """
    run_script(postgres.dsn(database), "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    with new_daemon(postgres, database, sink={"delivery": "at_least_once"}) as daemon:
        daemon.start().wait_state("streaming")
        await_confirmed(postgres, daemon)
        assert daemon.stop() == 0
        daemon.environment[VARIABLE] = "topics_written"
        daemon.start()
        run_script(postgres.dsn(database), "CREATE TABLE u (id int PRIMARY KEY)")

        def has_ended() -> bool:
            postgres.execute("UPDATE t SET id = id + 1", dbname=database)
            return daemon.process is not None and daemon.process.poll() is not None

        eventually(has_ended, "the record with the new table is written")
        assert daemon.wait_exit() == EXIT_STATUS
        del daemon.environment[VARIABLE]
        run_script(postgres.dsn(database), "DROP TABLE u")
        for sink in ({"delivery": "at_least_once"}, {"delivery": "exactly_once"}):
            daemon.config["sink"] |= sink
            daemon.start().wait_state("streaming")
            postgres.execute("UPDATE t SET id = id + 1", dbname=database)
            await_confirmed(postgres, daemon)
            assert daemon.stop() == 0
            newest, used = topics_records(kafka, daemon)
            assert used == newest


def topics_records(kafka: KafkaBroker, daemon: Daemon) -> tuple[int | None, int]:
    """Return the offsets of the newest record of the topics, and of the one that the last progress record names."""
    records = committed_records(kafka.bootstrap, f"{daemon.name}.__progress")
    newest = [one.offset() for one in records if one.key() == key_of_topics(daemon.slot)][-1]
    values = [value for one in records if one.key() == key_of(daemon.slot) and (value := one.value())]
    return newest, load(values[-1]).topics_at


@pytest.mark.parametrize(
    ("major", "streaming"),
    [nightly(14, "on"), nightly(16, "parallel"), nightly(17, "on"), nightly(18, "on"), (18, "parallel")],
)
def test_a_rollback_before_the_first_segment_is_sent(
    streaming: str, major: int, pg_server: PostgresServers, new_daemon: NewDaemon, reader: Reader
) -> None:
    """PostgreSQL 18 reports the abort of a subtransaction of which it sent nothing."""
    server = pg_server(major)
    database = new_database_name()
    server.create_database(database)
    try:
        server.execute("CREATE TABLE t (id int PRIMARY KEY, v text)", dbname=database)
        server.execute(f"ALTER DATABASE {database} SET logical_decoding_work_mem = '64kB'")
        with new_daemon(server, database, source={"protocol": {"streaming": streaming}}) as daemon:
            daemon.start().wait_state("streaming")
            assert daemon.stop() == 0
            with contextlib.closing(psycopg2.connect(server.dsn(database))) as connection:
                with connection.cursor() as cursor:
                    cursor.execute("SAVEPOINT a")
                    cursor.execute("INSERT INTO t SELECT g, repeat('v', 200) FROM generate_series(1, 1000) g")
                connection.rollback()
            server.execute("INSERT INTO t VALUES (-1, 'after')", dbname=database)
            daemon.start()
            events = reader.wait([f"{daemon.name}.public.t"], lambda events: len(events) > 0)
            assert [event.key for event in events] == [{"id": -1}]
    finally:
        drop_database(server, database)


def test_a_transaction_that_was_streamed_and_rolled_back_is_counted(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon
) -> None:
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY, v text)", dbname=database)
    postgres.execute(f"ALTER DATABASE {database} SET logical_decoding_work_mem = '64kB'")
    with new_daemon(postgres, database) as daemon:
        daemon.start().wait_state("streaming")
        with contextlib.closing(psycopg2.connect(postgres.dsn(database))) as large, large.cursor() as cursor:
            cursor.execute("INSERT INTO t SELECT g, 'v' || g FROM generate_series(1, 5000) g")
            eventually(lambda: _metric(daemon, "cdcd_open_transactions") == 1, "the transaction is streamed")
            large.rollback()
        eventually(lambda: _metric(daemon, "cdcd_open_transactions") == 0, "the rollback is read")
        assert _metric(daemon, 'cdcd_transactions_total{result="aborted"}') == 1
        assert daemon.stop() == 0


def _metric(daemon: Daemon, name: str) -> float:
    lines = (line.rpartition(" ") for line in daemon.get("/metrics")[1].splitlines())
    return next(float(value) for series, _, value in lines if series == name)


@pytest.mark.nightly
def test_a_slot_that_cannot_be_synchronised_is_refused_also_where_it_exists(
    pg_server: PostgresServers, new_daemon: NewDaemon
) -> None:
    """`cdcd check` reports the same."""
    server, name = pg_server(16), new_database_name()
    server.create_database(name)
    try:
        snapshot = {"mode": "never"}
        with new_daemon(server, name, source={"slot": {"failover": True}}, snapshot=snapshot) as daemon:
            make = "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')"
            server.execute(make, daemon.slot, dbname=name)
            page = daemon.start().wait_state("halted")
            assert "failover is not possible: it needs PostgreSQL 17, the server is 16" in page["reason"]
    finally:
        drop_database(server, name)


def test_contradicting_column_lists_are_reported_at_start(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon
) -> None:
    """F49: the server would fail at the first change of the table, and name neither publication."""
    for statement in (
        "CREATE TABLE t (id int PRIMARY KEY, open text, hidden text)",
        "CREATE TABLE other (id int PRIMARY KEY)",
        "CREATE PUBLICATION part FOR TABLE t (id, open), other",
        "CREATE PUBLICATION more FOR TABLE t (id, hidden), other",
    ):
        postgres.execute(statement, dbname=database)
    with new_daemon(postgres, database, source={"publication": {"names": ["part", "more"]}}) as daemon:
        page = daemon.start().wait_state("halted")
        assert "table public.t: publications more, part have different column lists for it" in page["reason"]
        assert "public.other" not in page["reason"]
        assert confirmed_position(postgres, daemon.slot) is None, "a slot was created"


@pytest.mark.nightly
def test_a_start_does_not_wait_for_a_table_that_is_locked(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon
) -> None:
    """The server takes a lock to list the published tables; an ALTER TABLE may stay open, or prepared, for a long
    time.
    """
    for statement in (
        "CREATE TABLE t (id int PRIMARY KEY)",
        "CREATE PUBLICATION part FOR TABLE t",
        "CREATE PUBLICATION more FOR TABLE t",
    ):
        postgres.execute(statement, dbname=database)
    with new_daemon(postgres, database, source={"publication": {"names": ["part", "more"]}}) as daemon:
        daemon.start().wait_state("streaming")
        assert daemon.stop() == 0
        with contextlib.closing(psycopg2.connect(postgres.dsn(database))) as other, other.cursor() as cursor:
            cursor.execute("ALTER TABLE t ADD COLUMN v text")
            daemon.start().wait_state("streaming", deadline_s=30)
            other.rollback()
        assert daemon.stop() == 0
