"""Changes of complete tables and of their keys, on a real server, in separate and in one transaction, streamed and
not.

The judges are fastavro, with the registry's schemas, and the rows as written.
"""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient

from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.postgres import PostgresServer
from tests.integration.conftest import BothWays, NewDaemon, TopicsOf
from tests.support.changes import Topics
from tests.support.daemon import STREAM_ONLY, Daemon, await_confirmed
from tests.support.nightly import nightly, nightly_except
from tests.support.stack import in_one_transaction, run, run_script

NEW_TOPIC = {"incompatible": "new_topic"}


def execute(server: PostgresServer, database: str, statements: tuple[str, ...], *, together: bool) -> None:
    """Run each statement in a transaction of its own, or all in one."""
    (in_one_transaction if together else run_script)(server.dsn(database), *statements)


def change_while_stopped(server: PostgresServer, database: str, daemon: Daemon, *statements: str) -> None:
    """Start the daemon, execute statements while it is stopped, and wait until it has written their changes."""
    daemon.start().wait_state("streaming")
    assert daemon.stop() == 0
    run(server, database, *statements)
    daemon.start()
    await_confirmed(server, daemon)


@pytest.mark.parametrize("together", [nightly(False), True], ids=["apart", "together"])
def test_changes_of_a_table_as_a_whole(
    together: bool,
    postgres: PostgresServer,
    database: str,
    both_ways: BothWays,
    topics_of: TopicsOf,
) -> None:
    """Renamed, moved, dropped and recreated tables, attached and detached partitions, another identity."""
    tables = ("renamed", "moved", "remade", "identity", "loose")
    run(
        postgres,
        database,
        "CREATE SCHEMA other",
        *(f"CREATE TABLE {table} (id int PRIMARY KEY, v text)" for table in tables),
        "CREATE TABLE parts (id int, v text, PRIMARY KEY (id)) PARTITION BY RANGE (id)",
        "CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (10)",
    )
    changes = (
        *(f"INSERT INTO {table} VALUES (1, 'a')" for table in (*tables, "parts")),
        "ALTER TABLE renamed RENAME TO named",
        "INSERT INTO named VALUES (2, 'b')",
        "ALTER TABLE moved SET SCHEMA other",
        "INSERT INTO other.moved VALUES (2, 'b')",
        "DROP TABLE remade",
        "CREATE TABLE remade (id int PRIMARY KEY, w int)",
        "INSERT INTO remade VALUES (1, 7)",
        "CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM (10) TO (20)",
        "INSERT INTO parts VALUES (11, 'b')",
        "ALTER TABLE parts DETACH PARTITION parts_1",
        "INSERT INTO parts_1 VALUES (2, 'b')",
        "UPDATE loose SET id = 21",
        "ALTER TABLE parts ATTACH PARTITION loose FOR VALUES FROM (20) TO (30)",
        "UPDATE parts SET v = 'b' WHERE id = 21",
        "UPDATE parts SET id = 12 WHERE id = 21",
        "UPDATE identity SET v = 'b'",
        "ALTER TABLE identity REPLICA IDENTITY FULL",
        "UPDATE identity SET v = 'c'",
        "ALTER TABLE identity REPLICA IDENTITY DEFAULT",
        "UPDATE identity SET v = 'd'",
    )
    both = both_ways(snapshot={"new_tables": "stream_only"})  # otherwise tables that join are also copied
    execute(postgres, database, changes, together=together)
    for daemon in both:
        await_confirmed(postgres, daemon, 120)
        assert_tables(topics_of(daemon))
        reported = daemon.events("replica_identity_changed")
        assert [(line["table"], line["was"], line["now"]) for line in reported] == [
            ("public.identity", "DEFAULT", "FULL"),
            ("public.identity", "FULL", "DEFAULT"),
        ]
        assert daemon.events("retrying") == []
        assert daemon.stop() == 0


def assert_tables(topics: Topics) -> None:
    """Check that each row is in the topic of its table's name at that time."""
    one, two = {"id": 1, "v": "a"}, {"id": 2, "v": "b"}
    assert topics.reported("renamed") == [("c", None, one)]
    assert topics.reported("named") == [("c", None, two)]
    assert topics.reported("moved") == [("c", None, one)]
    assert topics.reported("moved", schema="other") == [("c", None, two)]
    assert topics.reported("remade") == [("c", None, one), ("c", None, {"id": 1, "w": 7})]
    assert topics.reported("parts_1") == [("c", None, one), ("c", None, two)]
    assert topics.reported("parts_2") == [
        ("c", None, {"id": 11, "v": "b"}),
        ("c", None, {"id": 12, "v": "b"}),
    ]
    assert topics.reported("loose") == [
        ("c", None, one),
        ("d", {"id": 1, "v": None}, None),
        ("c", None, {"id": 21, "v": "a"}),
        ("u", None, {"id": 21, "v": "b"}),
        ("d", {"id": 21, "v": None}, None),
    ]
    assert topics.reported("identity") == [
        ("c", None, one),
        ("u", None, {"id": 1, "v": "b"}),
        ("u", {"id": 1, "v": "b"}, {"id": 1, "v": "c"}),
        ("u", None, {"id": 1, "v": "d"}),
    ]


OTHER_KEYS = {
    "primary key": (
        "CREATE TABLE t (id int PRIMARY KEY, n int NOT NULL)",
        "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (n)",
    ),
    "identity index": (
        "CREATE TABLE t (id int NOT NULL UNIQUE, n int NOT NULL UNIQUE);"
        "ALTER TABLE t REPLICA IDENTITY USING INDEX t_id_key",
        "ALTER TABLE t REPLICA IDENTITY USING INDEX t_n_key",
    ),
}


@pytest.mark.parametrize("together", [nightly(False), True], ids=["apart", "together"])
@pytest.mark.parametrize(
    ("create", "change"),
    nightly_except((pytest.param(*case, id=name) for name, case in OTHER_KEYS.items()), "primary key"),
)
def test_another_key_halts_or_goes_to_a_new_topic(
    create: str,
    change: str,
    together: bool,
    postgres: PostgresServer,
    database: str,
    new_daemon: NewDaemon,
    both_ways: BothWays,
    topics_of: TopicsOf,
) -> None:
    """F45: all records of a topic have the same key columns."""
    run(postgres, database, create)
    changes = (
        "INSERT INTO t VALUES (1, 10)",
        "UPDATE t SET id = 2",
        change,
        "UPDATE t SET n = 20",
        "DELETE FROM t",
    )
    halting = new_daemon(postgres, database, snapshot=STREAM_ONLY)
    halting.start()
    both = both_ways(registry=NEW_TOPIC)
    halting.wait_state("streaming")
    execute(postgres, database, changes, together=together)
    for daemon in both:
        await_confirmed(postgres, daemon, 120)
        topics = topics_of(daemon)
        in_first = [("c", {"id": 1}), ("d", {"id": 1}), ("c", {"id": 2})]
        in_second = [("d", {"n": 10}), ("c", {"n": 20}), ("d", {"n": 20})]
        assert topics.keys("t") == in_first
        assert topics.keys("t.v2") == in_second
        assert daemon.stop() == 0
    page = halting.wait_state("halted")
    assert "CDCD-KEY-CHANGED" in page["reason"]
    before = [] if together else in_first
    assert topics_of(halting).keys("t") == before
    # The resolution that the error names.
    assert halting.stop() == 0
    halting.config["registry"].update(NEW_TOPIC)
    halting.start()
    await_confirmed(postgres, halting, 120)
    assert topics_of(halting).keys("t") == in_first
    assert topics_of(halting).keys("t.v2") == in_second


def test_an_added_and_a_widened_key_are_reported(
    postgres: PostgresServer, database: str, both_ways: BothWays, topics_of: TopicsOf
) -> None:
    """F45: earlier records have a null key, or the same key in other bytes."""
    run(
        postgres,
        database,
        "CREATE TABLE first (id int)",
        "CREATE TABLE added (v text)",
        "CREATE TABLE wide (id int PRIMARY KEY)",
    )
    changes = (
        "INSERT INTO first VALUES (1)",
        "ALTER TABLE first ADD PRIMARY KEY (id)",
        "INSERT INTO first VALUES (2)",
        "INSERT INTO added VALUES ('a')",
        "ALTER TABLE added ADD id serial PRIMARY KEY",
        "INSERT INTO added VALUES ('b')",
        "INSERT INTO wide VALUES (1)",
        "ALTER TABLE wide ALTER id TYPE bigint",
        "INSERT INTO wide VALUES (3000000000)",
        "DELETE FROM wide WHERE id = 1",
    )
    both = both_ways()
    execute(postgres, database, changes, together=True)
    for daemon in both:
        await_confirmed(postgres, daemon, 120)
        topics = topics_of(daemon)
        assert topics.keys("first") == [("c", None), ("c", {"id": 2})]
        assert topics.keys("added") == [("c", None), ("c", {"id": 2})]
        assert [after for _, _, after in topics.reported("added")] == [{"v": "a"}, {"v": "b", "id": 2}]
        assert topics.keys("wide") == [("c", {"id": 1}), ("c", {"id": 3000000000}), ("d", {"id": 1})]
        added = [f"{daemon.name}.public.first", f"{daemon.name}.public.added"]
        assert [line["topic"] for line in daemon.events("key_added")] == added
        reported = daemon.events("key_schema_changed")
        assert [line["topic"] for line in reported] == [f"{daemon.name}.public.wide"]
        assert daemon.stop() == 0


@pytest.mark.nightly
def test_a_key_with_a_composite_type_is_the_same_after_a_restart(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, topics_of: TopicsOf
) -> None:
    """The registry returns the names of its types in another form."""
    run(
        postgres,
        database,
        "CREATE TYPE pair AS (a int, b int)",
        "CREATE TABLE t (id pair PRIMARY KEY, other pair)",
        "INSERT INTO t VALUES (ROW(1, 1))",
    )
    with new_daemon(postgres, database) as daemon:
        change_while_stopped(postgres, database, daemon, "INSERT INTO t VALUES (ROW(2, 2))")
        keys = [{"id": {"a": n, "b": n}} for n in (1, 2)]
        assert topics_of(daemon).keys("t") == [("r", keys[0]), ("c", keys[1])]
        assert daemon.events("key_schema_changed") == []
        assert daemon.stop() == 0


def reading(kafka: KafkaBroker, daemon: Daemon) -> Topics:
    """Read through the daemon's own end-points."""
    client = SchemaRegistryClient({"url": f"http://127.0.0.1:{daemon.port}"})
    return Topics(kafka.bootstrap, client, daemon.name)


@pytest.mark.nightly  # test_evolution has the new topic, test_registry_none its schemas
def test_a_new_topic_without_a_registry(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, kafka: KafkaBroker
) -> None:
    """Rows of the snapshot and the stream and a TRUNCATE go to the topic of their schema, also after a kill."""
    registry: dict[str, Any] = {"url": "none", **NEW_TOPIC}
    run(
        postgres,
        database,
        "CREATE TABLE t (id int PRIMARY KEY, v numeric(8,2))",
        "INSERT INTO t VALUES (1, 1.25)",
    )
    with new_daemon(postgres, database, registry=registry, snapshot=STREAM_ONLY) as daemon:
        daemon.start().wait_state("streaming")
        run(
            postgres,
            database,
            "ALTER TABLE t ALTER v TYPE numeric(8,4)",
            "UPDATE t SET v = 2.5",
            "TRUNCATE t",
            "INSERT INTO t VALUES (2, 2.125)",
        )
        await_confirmed(postgres, daemon, 120)
        daemon.kill()
        run(postgres, database, "INSERT INTO t VALUES (3, 3.5)")
        daemon.start().wait_state("streaming")
        await_confirmed(postgres, daemon, 120)
        topics = reading(kafka, daemon)
        assert [(op, after["id"]) for op, _, after in topics.reported("t")] == [("r", 1)]
        second = [(op, after and (after["id"], str(after["v"]))) for op, _, after in topics.reported("t.v2")]
        # A TRUNCATE is in each partition.
        assert second == [
            ("u", (1, "2.5000")),
            ("t", None),
            ("t", None),
            ("c", (2, "2.1250")),
            ("c", (3, "3.5000")),
        ]
        assert daemon.stop() == 0


@pytest.mark.nightly
@pytest.mark.parametrize("policy", ["halt", "new_topic", "register_with_none"])
def test_a_type_that_is_dropped_before_its_rows_are_read(
    policy: str,
    postgres: PostgresServer,
    database: str,
    new_daemon: NewDaemon,
    topics_of: TopicsOf,
) -> None:
    """F44: nothing shows the base type of a dropped domain; its values are their text, in a schema
    readers can use.
    """
    run(
        postgres,
        database,
        "CREATE TYPE mood AS ENUM ('sad')",
        "CREATE DOMAIN small AS int",
        "CREATE TABLE moods (id int PRIMARY KEY, v mood)",
        "CREATE TABLE t (id int PRIMARY KEY, v small)",
        "INSERT INTO moods VALUES (1, 'sad')",
        "INSERT INTO t VALUES (1, 1)",
    )
    with new_daemon(postgres, database, registry={"incompatible": policy}) as daemon:
        daemon.start().wait_state("streaming")
        assert daemon.stop() == 0
        run(
            postgres,
            database,
            "INSERT INTO moods VALUES (2, 'sad')",
            "INSERT INTO t VALUES (2, 2)",
            "DROP TABLE moods, t",
            "DROP TYPE mood",
            "DROP DOMAIN small",
        )
        daemon.start()
        topics = topics_of(daemon)
        if policy == "halt":
            page = daemon.wait_state("halted")
            assert "CDCD-SCHEMA-INCOMPATIBLE" in page["reason"]
            rows = {"t": [1]}
        else:
            await_confirmed(postgres, daemon, 120)
            rows = {"t": [1], "t.v2": ["2"]} if policy == "new_topic" else {"t": [1, "2"]}
        assert [change.row["v"] for change in topics.changes("moods")] == ["sad", "sad"]
        assert {table: [change.row["v"] for change in topics.changes(table)] for table in rows} == rows


@pytest.mark.nightly
def test_a_composite_type_is_moved_and_then_renamed(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, topics_of: TopicsOf
) -> None:
    """PostgreSQL does not report it in the stream: a new session reads the type again."""
    run(
        postgres,
        database,
        "CREATE SCHEMA other",
        "CREATE TYPE c AS (a int)",
        "CREATE TABLE t (id int PRIMARY KEY, v c)",
        "INSERT INTO t VALUES (1, ROW(1))",
    )
    with new_daemon(postgres, database) as daemon:
        moved = "ALTER TYPE c SET SCHEMA other"
        change_while_stopped(postgres, database, daemon, moved, "INSERT INTO t VALUES (2, ROW(2))")
        topics = topics_of(daemon)
        first, second = topics.changes("t")
        assert topics.read(first.raw, second.schema_id)["after"] == {"id": 1, "v": {"a": 1}}
        assert daemon.stop() == 0
        run(postgres, database, "ALTER TYPE other.c RENAME TO d", "INSERT INTO t VALUES (3, ROW(3))")
        reason = daemon.start().wait_state("halted")["reason"]
        assert "CDCD-SCHEMA-INCOMPATIBLE" in reason
        assert "other.c is now" in reason
        assert len(topics.changes("t")) == 2
