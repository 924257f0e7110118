"""One row, one key: whatever DDL the table gets, and whatever the catalog contains when the row is read."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.postgres import PostgresServer
from tests.integration.conftest import NewDaemon
from tests.support.daemon import Daemon
from tests.support.nightly import nightly
from tests.support.quick import QUICK
from tests.support.reader import Event, Reader, assert_each_once
from tests.support.resolutions import command
from tests.support.stack import run
from tests.support.topics import committed_records

PARTITIONS = {"topics": {"partitions": 6}}


@pytest.mark.parametrize(
    ("create", "change"),
    [
        nightly("CREATE TABLE t (junk int, id int PRIMARY KEY, v text)", "ALTER TABLE t DROP COLUMN junk"),
        ("CREATE TABLE t (id varchar(10) PRIMARY KEY, v text)", "ALTER TABLE t ALTER id TYPE varchar(20)"),
        nightly(
            "CREATE DOMAIN k AS int; CREATE TABLE t (id k PRIMARY KEY, v text)", "ALTER DOMAIN k RENAME TO k2"
        ),
    ],
)
def test_a_key_keeps_its_bytes_and_its_partition(
    create: str,
    change: str,
    postgres: PostgresServer,
    database: str,
    kafka: KafkaBroker,
    new_daemon: NewDaemon,
    reader: Reader,
) -> None:
    """Compaction takes other bytes for another key, and another partition has another order."""
    run(postgres, database, create, "INSERT INTO t (id, v) SELECT g, 'v' FROM generate_series(1, 50) g")
    with new_daemon(postgres, database, sink=PARTITIONS) as daemon:
        topic = f"{daemon.name}.public.t"
        daemon.start().wait_state("streaming")
        run(postgres, database, change)
        assert daemon.stop() == 0  # a new session reads the catalog again
        daemon.start()
        run(postgres, database, "DELETE FROM t")
        events = reader.wait([topic], lambda events: len(events) == 150)
        assert_each_once(events)
        assert len({record.key() for record in committed_records(kafka.bootstrap, topic)}) == 50
        assert len({(str(event.key), event.partition) for event in events}) == 50


def after_a_gap(daemon: Daemon, server: PostgresServer, database: str, *statements: str) -> None:
    """Run the statements while the daemon is stopped; the last one writes a row of another table."""
    daemon.start().wait_state("streaming")
    assert daemon.stop() == 0
    run(
        server,
        database,
        *statements,
        "CREATE TABLE ended (id int PRIMARY KEY)",
        "INSERT INTO ended VALUES (1)",
    )
    daemon.start()


def read_whole(daemon: Daemon, reader: Reader) -> list[Event]:
    """Return the records of t, once those of the last table are in the topic."""
    reader.wait([f"{daemon.name}.public.ended"], lambda events: len(events) == 1)
    return reader.read(f"{daemon.name}.public.t")


@pytest.mark.nightly
@pytest.mark.parametrize(
    "statements",
    [
        nightly(("CREATE TABLE t (a int, b int, v text, PRIMARY KEY (b, a))",)),
        ("CREATE TABLE t (a int, b int, v text, PRIMARY KEY (b, a))", "ALTER TABLE t REPLICA IDENTITY FULL"),
    ],
    ids=["default", "full"],
)
def test_a_table_dropped_before_its_rows_are_read_keeps_its_key(
    statements: tuple[str, ...],
    postgres: PostgresServer,
    database: str,
    new_daemon: NewDaemon,
    reader: Reader,
) -> None:
    """F44: the catalog no longer has the columns of the key, nor their order; the topic has."""
    run(postgres, database, *statements, "INSERT INTO t SELECT g, 100 + g, 'v' FROM generate_series(1, 20) g")
    with new_daemon(postgres, database, sink=PARTITIONS) as daemon:
        after_a_gap(
            daemon, postgres, database, "UPDATE t SET v = 'w'", "DELETE FROM t WHERE a <= 10", "DROP TABLE t"
        )
        events = read_whole(daemon, reader)
        assert_each_once(events)
        assert len(events) == 20 + 20 + 10 + 10
        assert {tuple(event.key) for event in events} == {("b", "a")}
        assert len({(str(event.key), event.partition) for event in events}) == 20


@pytest.mark.nightly  # a key that was away for a while halts, too
def test_a_key_that_is_another_one_halts_before_a_row_has_it(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    """F45: with identity FULL the stream does not show when the key was dropped, so cdcd halts instead of
    guessing.
    """
    run(
        postgres,
        database,
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "INSERT INTO t VALUES (1, 'a')",
    )
    with new_daemon(postgres, database) as daemon:
        after_a_gap(
            daemon,
            postgres,
            database,
            "UPDATE t SET v = 'b'",
            "ALTER TABLE t DROP CONSTRAINT t_pkey",
            "UPDATE t SET v = 'c'",
        )
        page = daemon.wait_state("halted")
        assert "CDCD-KEY-CHANGED" in str(page)
        assert [event.op for event in reader.read(f"{daemon.name}.public.t")] == ["r"]
        run(postgres, database, "ALTER TABLE t ADD PRIMARY KEY (id)")
        assert daemon.stop() == 0
        daemon.start()
        events = read_whole(daemon, reader)
        assert [(event.op, event.key) for event in events] == [
            ("r", {"id": 1}),
            ("u", {"id": 1}),
            ("u", {"id": 1}),
        ]


@pytest.mark.parametrize("value", [nightly("envelope"), "flat"])
def test_a_key_that_was_away_for_a_while_halts_also_where_it_is_back(
    value: str, postgres: PostgresServer, database: str, new_daemon: NewDaemon
) -> None:
    """F44 and F45: the topic's first rows had a key, so no row gets a null key now."""
    run(postgres, database, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    with new_daemon(postgres, database, format={"value": value}) as daemon:
        after_a_gap(
            daemon,
            postgres,
            database,
            "ALTER TABLE t DROP CONSTRAINT t_pkey",
            "INSERT INTO t VALUES (2)",
            "ALTER TABLE t ADD PRIMARY KEY (id)",
        )
        assert "CDCD-KEY-CHANGED" in daemon.wait_state("halted")["reason"]


def test_a_key_that_is_published_in_part_is_none(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    """F45: rows that differ in the rest of the key would share one, and compaction would keep only the
    last of them.
    """
    run(
        postgres,
        database,
        "CREATE TABLE t (a int, b int, v text, PRIMARY KEY (a, b))",
        "INSERT INTO t VALUES (1, 1, 'x'), (1, 2, 'y')",
    )
    with new_daemon(postgres, database) as daemon:
        run(
            postgres,
            database,
            f"DROP PUBLICATION cdcd_{daemon.name}",
            f"CREATE PUBLICATION cdcd_{daemon.name} FOR TABLE t (a, v) WITH (publish = 'insert')",
        )
        daemon.start().wait_state("streaming")
        run(postgres, database, "INSERT INTO t VALUES (1, 3, 'z')")
        events = reader.wait([f"{daemon.name}.public.t"], lambda events: len(events) == 3)
        assert [event.key for event in events] == [None] * 3
        assert sorted(event.value["after"]["v"] for event in events) == ["x", "y", "z"]
        assert daemon.events("relation_without_key")[0]["table"] == "public.t"


@pytest.mark.nightly  # fault 21 has it
def test_a_topic_that_gets_more_partitions_halts(
    postgres: PostgresServer, database: str, kafka: KafkaBroker, new_daemon: NewDaemon, reader: Reader
) -> None:
    """F66: the same key would continue in another partition. A restart uses the new number, and reports it before."""
    run(postgres, database, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    with new_daemon(postgres, database) as daemon:
        topic = f"{daemon.name}.public.t"
        daemon.entry = QUICK
        daemon.start().wait_state("streaming")
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        for future in admin.create_partitions([NewPartitions(topic, 5)]).values():
            future.result(30)
        page = daemon.wait_state("halted")
        assert "CDCD-TOPIC-MISMATCH" in str(page)
        run(postgres, database, "INSERT INTO t SELECT g FROM generate_series(2, 30) g")
        accepted = command(daemon, "resume", "--accept-topic", topic)
        assert accepted.returncode == 0, accepted.stderr
        events = reader.wait([topic], lambda events: len(events) == 30)
        assert {event.partition for event in events} > {0, 1}
