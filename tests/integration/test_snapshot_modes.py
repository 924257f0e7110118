"""The modes of a snapshot beside `initial` and `never`: a copy without a stream, topics and schemas without rows."""

from __future__ import annotations

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient

from cdcd.demo.stack.postgres import PostgresServer
from cdcd.demo.stack.registry import SchemaRegistry
from cdcd.failpoints import EXIT_STATUS, VARIABLE
from tests.integration.conftest import NewDaemon
from tests.support.daemon import Daemon, await_confirmed
from tests.support.reader import Event, Reader, assert_each_once, fold
from tests.support.stack import run

ROWS = 3_000
TABLES = (
    "CREATE TABLE a (id int PRIMARY KEY, note text)",
    f"INSERT INTO a SELECT g, repeat('x', 300) FROM generate_series(1, {ROWS}) g",
    "CREATE TABLE b (id int PRIMARY KEY)",
    "INSERT INTO b VALUES (1), (2)",
)


def slots(server: PostgresServer, daemon: Daemon) -> list[tuple[object, ...]]:
    return server.execute("SELECT slot_name FROM pg_replication_slots WHERE slot_name = %s", daemon.slot)


def ids(events: list[Event]) -> set[int]:
    assert_each_once(events)
    return set(fold(events, lambda row: row["id"]))


@pytest.mark.parametrize("failpoint", ["", "committed:2", "snapshot_copied"])
def test_initial_only_copies_and_ends_and_leaves_no_slot(
    failpoint: str, postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    run(postgres, database, *TABLES)
    snapshot, sink = {"mode": "initial_only"}, {"commit": {"max_rows": 500}}
    with new_daemon(postgres, database, snapshot=snapshot, sink=sink) as daemon:
        if failpoint:
            daemon.environment[VARIABLE] = failpoint
            assert daemon.start().wait_exit() == EXIT_STATUS
            del daemon.environment[VARIABLE]
        assert daemon.start().wait_exit() == 0
        assert slots(postgres, daemon) == []
        events = {name: reader.read(f"{daemon.name}.public.{name}") for name in "ab"}
        assert ids(events["a"]) == set(range(1, ROWS + 1))
        assert ids(events["b"]) == {1, 2}
        markers = [event.source["snapshot"] for event in events["a"] + events["b"] if event.op == "r"]
        if not failpoint:
            assert [markers.count(one) for one in ("first", "last")] == [1, 1]
            assert len(markers) == ROWS + 2
        # A complete copy is not repeated.
        run(postgres, database, "INSERT INTO b VALUES (3)")
        assert daemon.start().wait_exit() == 0
        assert reader.read(f"{daemon.name}.public.b") == events["b"]
        assert slots(postgres, daemon) == []
        # Another mode begins anew, with a slot.
        daemon.config["snapshot"]["mode"] = "initial"
        daemon.start().wait_state("streaming")
        run(postgres, database, "INSERT INTO b VALUES (4)", "DELETE FROM a WHERE id > 100")
        await_confirmed(postgres, daemon)
        assert daemon.stop() == 0
        assert ids(reader.read(f"{daemon.name}.public.a")) == set(range(1, 101))
        assert ids(reader.read(f"{daemon.name}.public.b")) == {1, 2, 3, 4}


def test_no_data_makes_topics_and_schemas_of_all_tables_and_streams(
    postgres: PostgresServer,
    database: str,
    registry: SchemaRegistry,
    new_daemon: NewDaemon,
    reader: Reader,
) -> None:
    run(postgres, database, *TABLES)
    with new_daemon(postgres, database, snapshot={"mode": "no_data"}) as daemon:
        daemon.start().wait_state("streaming")
        assert reader.topics(daemon.name) == [f"{daemon.name}.public.a", f"{daemon.name}.public.b"]
        subjects = SchemaRegistryClient({"url": registry.url}).get_subjects()
        wanted = {f"{daemon.name}.public.{name}-{part}" for name in "ab" for part in ("key", "value")}
        assert wanted <= set(subjects)
        run(postgres, database, "INSERT INTO b VALUES (3)", "UPDATE a SET note = 'y' WHERE id = 7")
        await_confirmed(postgres, daemon)
        assert daemon.stop() == 0
        events = reader.read(f"{daemon.name}.public.a", f"{daemon.name}.public.b")
        assert sorted((event.op, event.key["id"]) for event in events) == [("c", 3), ("u", 7)]
        assert daemon.start().wait_state("streaming")
        assert daemon.stop() == 0
        assert len(daemon.events("tables_described")) == 1
