"""The modes of a snapshot beside `initial` and `never`: a copy without a stream, topics and schemas without rows."""

from __future__ import annotations

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient

from cdcd.demo.stack.postgres import PostgresServer
from cdcd.demo.stack.registry import SchemaRegistry
from cdcd.failpoints import EXIT_STATUS, VARIABLE
from tests.integration.conftest import NewDaemon
from tests.support.daemon import Daemon, await_confirmed
from tests.support.nightly import nightly, nightly_except
from tests.support.reader import BEGINNING, Event, Reader, assert_each_once, fold
from tests.support.resolutions import halts_with
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


def by_place(events: list[Event]) -> dict[tuple[int, int], Event]:
    """Return the events by partition and offset: a reader returns the partitions in any order."""
    return {(event.partition, event.offset): event for event in events}


@pytest.mark.parametrize("failpoint", [nightly(""), "committed:2", nightly("snapshot_copied")])
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
        assert by_place(reader.read(f"{daemon.name}.public.b")) == by_place(events["b"])
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


OVERRIDES = {
    "order": "largest_first",
    "workers": 1,
    "overrides": [
        {"table": "public.(a|c|d)", "priority": 1},
        {"table": r"public\.a", "where": "id % 10 = 0 AND note <> '%'"},
        {"table": r"public\.skipped", "include": False},
        {"table": "nothing", "include": False},
    ],
}


def test_overrides_choose_the_rows_and_the_order_and_the_stream_has_all_changes(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    more = [f"CREATE TABLE {name} AS SELECT * FROM b" for name in ("c", "d", "skipped")]
    keys = [f"ALTER TABLE {name} ADD PRIMARY KEY (id)" for name in ("c", "d", "skipped")]
    grow = "INSERT INTO d SELECT g FROM generate_series(10, 3000) g"
    run(postgres, database, *TABLES, *more, *keys, grow)
    with new_daemon(postgres, database, snapshot=OVERRIDES) as daemon:
        daemon.start().wait_state("streaming")
        run(postgres, database, "UPDATE a SET note = 'y' WHERE id = 7", "DELETE FROM skipped WHERE id = 1")
        await_confirmed(postgres, daemon)
        assert daemon.stop() == 0
        names = ("a", "b", "c", "d", "skipped")
        events = {name: reader.read(f"{daemon.name}.public.{name}") for name in names}
        copied = {name: [event for event in found if event.op == "r"] for name, found in events.items()}
        assert ids(copied["a"]) == set(range(10, ROWS + 1, 10))
        assert ids(events["a"]) == {7, *range(10, ROWS + 1, 10)}
        assert ids(copied["b"]) == ids(copied["c"]) == {1, 2}
        assert copied["skipped"] == []
        assert [event.key["id"] for event in events["skipped"] if event.op == "d"] == [1]
        order = sorted("abcd", key=lambda name: copied[name][0].sequence or BEGINNING)
        assert order == ["a", "d", "c", "b"]
        unused = [line["table"] for line in daemon.events("snapshot_override_unused")]
        assert unused == ["nothing"]


def test_the_transaction_topic_has_begin_and_end_of_each_tables_snapshot(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    run(postgres, database, *TABLES, "CREATE TABLE nothing (id int PRIMARY KEY)")
    sink = {"commit": {"max_rows": 500}}
    with new_daemon(postgres, database, format={"transactions": True}, sink=sink) as daemon:
        daemon.environment[VARIABLE] = "committed:3"
        assert daemon.start().wait_exit() == EXIT_STATUS
        del daemon.environment[VARIABLE]
        daemon.start().wait_state("streaming")
        assert daemon.stop() == 0
        marks = by_place(reader.read(f"{daemon.name}.transaction"))
        rows = reader.read(f"{daemon.name}.public.a", f"{daemon.name}.public.b")
        point = max(event.source["commit_lsn"] for event in rows)
        of_tables = {"public.a": ROWS, "public.b": 2, "public.nothing": 0}
        for table, count in of_tables.items():
            of_table = [event.value for event in marks.values() if event.value["id"].endswith(f":{table}")]
            found = {value["id"]: [] for value in of_table}
            for value in of_table:
                found[value["id"]].append(value["status"])
            (last,) = [value for value in of_table if value["status"] == "END"]
            assert last["id"] == f"snapshot:{last['commit_lsn']}:{table}"
            assert last["event_count"] == count
            assert last["data_collections"] == [{"data_collection": table, "event_count": count}]
            assert found.pop(last["id"]) == ["BEGIN", "END"]
            if table == "public.a":
                assert last["commit_lsn"] == point
                assert list(found.values()) == [["BEGIN"]], "the crash has interrupted the first one"
        assert all(event.value.get("transaction") is None for event in rows)


@pytest.mark.parametrize(
    "where",
    nightly_except(
        [
            "nope > 1",
            "id >",
            "id = 'x'",
            "true) UNION (SELECT",
            "false) OR (true",
            "true; SELECT",
            "true -- all",
        ],
        "true) UNION (SELECT",
    ),
)
def test_a_condition_that_the_server_refuses_halts_before_a_row_is_copied(
    where: str, postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    run(postgres, database, *TABLES)
    snapshot = {"overrides": [{"table": r"public\.b", "where": where}]}
    with new_daemon(postgres, database, snapshot=snapshot) as daemon:
        reason = halts_with(daemon.start(), "CDCD-SOURCE-SETUP")
        assert "table=public.b" in reason
        assert "snapshot.overrides" in reason
        assert reader.read(f"{daemon.name}.public.a") == []
        del daemon.config["snapshot"]
        assert daemon.stop() == 0
        daemon.start().wait_state("streaming")
        assert daemon.stop() == 0
        assert ids(reader.read(f"{daemon.name}.public.b")) == {1, 2}
