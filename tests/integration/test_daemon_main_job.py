"""The main job on real servers: snapshot, stream, kill, restart; each change once, for an independent reader."""

from __future__ import annotations

import io
from contextlib import closing

import psycopg2
import pytest

from cdcd.demo.stack.postgres import PostgresServer
from tests.integration.conftest import NewDaemon
from tests.support.daemon import await_confirmed
from tests.support.nightly import nightly, nightly_except
from tests.support.reader import Reader, assert_each_once, fold
from tests.support.stack import SUPPORTED_POSTGRES_MAJORS, PostgresServers, drop_database, new_database_name
from tests.support.waiting import eventually


def ids(rows: list[tuple[object, ...]]) -> dict[object, object]:
    """Return rows (id, text) as a mapping."""
    return {row[0]: row[1] for row in rows}


@pytest.mark.parametrize("major", nightly_except(SUPPORTED_POSTGRES_MAJORS, 18))
def test_every_change_arrives_once_across_a_kill(
    major: int, pg_server: PostgresServers, new_daemon: NewDaemon, reader: Reader
) -> None:
    """F36, F4, F64: snapshot, then inserts, updates, deletes, key changes and a truncate around a SIGKILL."""
    server = pg_server(major)
    database = new_database_name()
    server.create_database(database)
    try:
        run = server.execute
        run("CREATE TABLE item (id int PRIMARY KEY, name text, price numeric(10,2))", dbname=database)
        run("CREATE TABLE gone (id int PRIMARY KEY)", dbname=database)
        run("INSERT INTO item SELECT g, 'n' || g, g FROM generate_series(1, 3000) g", dbname=database)
        run("INSERT INTO gone SELECT generate_series(1, 10)", dbname=database)
        with new_daemon(server, database) as daemon:
            daemon.start().wait_state("streaming")
            for step in range(20):
                run("UPDATE item SET name = 'u' || id WHERE id %% 20 = %s", step, dbname=database)
                run("INSERT INTO item VALUES (%s, 'new', 1)", 10_000 + step, dbname=database)
                if step == 10:
                    daemon.kill()
                    daemon.start()
            run("UPDATE item SET id = id + 50000 WHERE id <= 5", dbname=database)
            run("DELETE FROM item WHERE id BETWEEN 6 AND 20", dbname=database)
            run("TRUNCATE gone", dbname=database)
            run("INSERT INTO gone VALUES (99)", dbname=database)
            await_confirmed(server, daemon)
            assert daemon.stop() == 0
        topics = reader.topics(daemon.name)
        assert topics == [f"{daemon.name}.public.gone", f"{daemon.name}.public.item"]
        items = reader.read(f"{daemon.name}.public.item")
        assert_each_once(items)
        assert sum(event.op == "r" for event in items) == 3000
        rows = fold(items, lambda row: row["id"])
        expected = ids(server.execute("SELECT id, name FROM item", dbname=database))
        assert {key: row["name"] for key, row in rows.items()} == expected
        gone = reader.read(f"{daemon.name}.public.gone")
        assert_each_once(gone)
        assert set(fold(gone, lambda row: row["id"])) == {99}
    finally:
        drop_database(server, database)


@pytest.mark.nightly  # test_snapshot_rest has such a kill
def test_a_kill_in_the_snapshot_copies_the_table_anew_and_forgets_deleted_rows(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    """F37, F40: a truncate event clears the rows of the interrupted attempt before they are copied again."""
    postgres.execute("CREATE TABLE big (id int PRIMARY KEY, pad text)", dbname=database)
    postgres.execute(
        "INSERT INTO big SELECT g, repeat('x', 200) FROM generate_series(1, 60000) g", dbname=database
    )
    with new_daemon(postgres, database, sink={"commit": {"max_rows": 500}}) as daemon:
        topic = f"{daemon.name}.public.big"
        daemon.start()
        eventually(
            lambda: daemon.status().get("rows_written", 0) > 1000,
            "a part of the snapshot is durable",
            pause_s=0.01,
        )
        daemon.kill()
        partly = sum(event.op == "r" for event in reader.read(topic))
        assert 0 < partly < 60000
        postgres.execute("DELETE FROM big WHERE id <= 30000", dbname=database)
        daemon.start().wait_state("streaming", deadline_s=120)
        assert daemon.stop() == 0
        events = reader.read(topic)
        assert_each_once(events)
        assert set(fold(events, lambda row: row["id"])) == set(range(30001, 60001))


@pytest.mark.parametrize("rows", [10_000, nightly(60_000)])
def test_a_transaction_is_seen_whole_or_not_at_all_when_killed_in_its_middle(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader, rows: int
) -> None:
    """F28, F64: a killed daemon's open Kafka transaction is aborted; the transaction then comes once, whole.

    F75: a COPY writes several rows in one WAL record, with one LSN.
    """
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY, pad text)", dbname=database)
    with new_daemon(postgres, database) as daemon:
        topic = f"{daemon.name}.public.t"
        daemon.start().wait_state("streaming")
        lines = "".join(f"{number}\t{'y' * 100}\n" for number in range(rows))
        with closing(psycopg2.connect(postgres.dsn(database))) as connection, connection.cursor() as cursor:
            cursor.copy_expert("COPY t FROM STDIN", io.StringIO(lines))
            connection.commit()
        eventually(lambda: "cdcd_source_bytes_total" in daemon.get("/metrics")[1], "metrics answer")
        eventually(lambda: _received_bytes(daemon.get("/metrics")[1]) > 500_000, "a part has been received")
        daemon.kill()
        assert len(reader.read(topic)) in (0, rows)
        daemon.start()
        events = reader.wait([topic], lambda events: len(events) >= rows)
        assert len(events) == rows
        assert_each_once(events)
        assert len({event.value["source"]["commit_lsn"] for event in events}) == 1
        assert len({event.value["source"]["lsn"] for event in events}) < rows / 10, "rows share LSNs"


def test_bytes_are_counted_when_they_are_received_and_once(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    """The count includes the bytes of an open transaction; its replay at the commit receives nothing."""
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY, pad text)", dbname=database)
    postgres.execute(f"ALTER DATABASE {database} SET logical_decoding_work_mem = '64kB'")
    with new_daemon(postgres, database) as daemon:
        daemon.start().wait_state("streaming")
        with closing(psycopg2.connect(postgres.dsn(database))) as open_one, open_one.cursor() as cursor:
            cursor.execute("INSERT INTO t SELECT g, repeat('y', 100) FROM generate_series(1, 20000) g")
            eventually(
                lambda: _received_bytes(daemon.get("/metrics")[1]) > 2_000_000,
                "the open transaction is counted",
            )
            open_one.commit()
        events = reader.wait([f"{daemon.name}.public.t"], lambda events: len(events) >= 20000)
        assert len(events) == 20000
        assert 2_000_000 < _received_bytes(daemon.get("/metrics")[1]) < 4_000_000
        assert daemon.stop() == 0


def _received_bytes(metrics: str) -> float:
    for line in metrics.splitlines():
        if line.startswith("cdcd_source_bytes_total "):
            return float(line.split()[1])
    return 0.0


def test_logical_messages_arrive_in_and_out_of_transactions(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    """A transactional message arrives only when its transaction commits, any other at once; each once, also across a
    restart.
    """
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY)", dbname=database)
    emit = "SELECT pg_logical_emit_message(%s, 'outbox', %s)"
    with new_daemon(postgres, database) as daemon:
        topic = f"{daemon.name}.message"
        daemon.start().wait_state("streaming")
        postgres.execute(emit, False, "first", dbname=database)
        reader.wait([topic], lambda events: len(events) == 1)
        daemon.kill()
        daemon.start()
        postgres.execute(emit, True, "second", dbname=database)
        events = reader.wait([topic], lambda events: len(events) >= 2)
        assert sorted(event.value["content"] for event in events) == [b"first", b"second"]
        assert {event.key["prefix"] for event in events} == {"outbox"}
