"""Tables that are copied while the stream waits: without a key, with a condition, across crashes, and refused.

The judge is the table itself: its rows are those that the topic's records add and remove, in their order (F36, F40).
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

import psycopg2
import pytest
from confluent_kafka import Producer

from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.postgres import PostgresServer
from cdcd.failpoints import EXIT_STATUS, VARIABLE
from tests.integration.conftest import NewDaemon
from tests.support.daemon import Daemon, await_confirmed
from tests.support.folded import folded
from tests.support.nightly import nightly, nightly_except
from tests.support.random_changes import RandomChanges
from tests.support.reader import BEGINNING, Event, Reader, assert_each_once
from tests.support.snapshot_commands import await_copied, command, reports, start
from tests.support.stack import PostgresServers, filled_database, run
from tests.support.topics import create_topic
from tests.support.waiting import eventually

ROWS = 9_000
LOG = "public.log"
TABLES = (
    "CREATE TABLE log (n int, what text)",
    "ALTER TABLE log REPLICA IDENTITY FULL",
    f"INSERT INTO log SELECT g % 5000, repeat(md5(g::text), 3) FROM generate_series(1, {ROWS}) g",
    "CREATE TABLE orders (id int PRIMARY KEY, n int, what text DEFAULT repeat('x', 80))",
    f"INSERT INTO orders SELECT g, 0, repeat('x', 80) FROM generate_series(1, {ROWS}) g",
    "CREATE TABLE other (what text)",
)


@pytest.fixture(params=[nightly(12), 18])
def source(
    request: pytest.FixtureRequest, pg_server: PostgresServers
) -> Iterator[tuple[PostgresServer, str]]:
    """Yield a server and a database with the tables."""
    with filled_database(pg_server, request.param, TABLES) as found:
        yield found


def change(random: Random) -> str:
    """Return a change of `log` or `orders`."""
    low, draw = random.randrange(5_000), random.random()
    if draw < 0.4:
        return f"INSERT INTO log VALUES ({low}, 'new'), ({low}, 'new'), ({low + 1}, 'newer')"
    if draw < 0.6:
        return f"UPDATE log SET what = what || '+' WHERE n = {low}"
    if draw < 0.7:
        return f"DELETE FROM log WHERE n = {low}"
    if draw < 0.85:
        return f"UPDATE orders SET n = n + 1 WHERE id BETWEEN {low} AND {low + 3}"
    if draw < 0.95:
        return f"DELETE FROM orders WHERE id = {low}"
    return f"INSERT INTO orders VALUES ({low}, -1) ON CONFLICT DO NOTHING"


@contextlib.contextmanager
def old_transaction(server: PostgresServer, database: str) -> Iterator[None]:
    """Hold a transaction open that writes: PostgreSQL creates no slot before it ends (F38)."""
    with contextlib.closing(psycopg2.connect(server.dsn(database))) as connection:
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO other VALUES ('x')")
        yield
        connection.rollback()


def bag(events: list[Event]) -> Counter[tuple[Any, ...]]:
    """Return the rows of a table without a key after all records."""
    rows: Counter[tuple[Any, ...]] = Counter()
    for event in events:
        if event.op == "t":
            rows.clear()
        for image, sign in (("before", -1), ("after", 1)):
            if event.op in ("c", "r", "u", "d") and event.value[image] is not None:
                rows[tuple(event.value[image].values())] += sign
    assert not any(count < 0 for count in rows.values())
    return +rows


def records_of(daemon: Daemon, reader: Reader, table: str) -> list[Event]:
    """Return the records of a table in their order: those of the partitions, and a truncate event in each of them."""
    events = reader.read(f"{daemon.name}.public.{table}")
    assert_each_once(events)
    return sorted(
        (event for event in events if event.sequence), key=lambda event: event.sequence or BEGINNING
    )


def assert_bag(server: PostgresServer, database: str, daemon: Daemon, reader: Reader) -> list[Event]:
    """Assert that readers of `log` have its rows, each as often as the table; return the records."""
    await_confirmed(server, daemon)
    events = records_of(daemon, reader, "log")
    assert bag(events) == Counter(server.execute("SELECT n, what FROM log", dbname=database))
    return events


def assert_orders(server: PostgresServer, database: str, daemon: Daemon, reader: Reader) -> list[Event]:
    """Assert that readers of `orders` have its rows; return the records."""
    await_confirmed(server, daemon)
    events = records_of(daemon, reader, "orders")
    rows = dict(server.execute("SELECT id, n FROM orders", dbname=database))
    assert {row["id"]: row["n"] for row in folded(events).values()} == rows
    return events


def streaming(daemon: Daemon, mode: str = "never") -> Daemon:
    daemon.config.setdefault("snapshot", {})["mode"] = mode
    daemon.start().wait_state("streaming")
    return daemon


def is_shown_as_copying(daemon: Daemon) -> bool:
    return "\ncdcd_snapshot_running 1" in daemon.get("/metrics")[1]


def waits_for(daemon: Daemon, reason: str) -> None:
    eventually(lambda: [one for one in reports(daemon) if reason in (one["reason"] or "")], reason)


@pytest.mark.nightly
def test_a_table_without_a_key_is_copied_while_it_changes(
    source: tuple[PostgresServer, str], new_daemon: NewDaemon, reader: Reader
) -> None:
    server, database = source
    with streaming(new_daemon(server, database, format={"transactions": True})) as daemon:
        load = RandomChanges(server, database, 1, change)
        try:
            with old_transaction(server, database):
                reader.wait([f"{daemon.name}.public.log"], bool)
                start(daemon, LOG, blocking=True, recopy=True)
                waits_for(daemon, "temporary slot")
                assert [(one["table"], one["kind"]) for one in reports(daemon)] == [(LOG, "blocking")]
            await_copied(daemon)
        finally:
            load.stop()
        events = assert_bag(server, database, daemon, reader)
        copied = [event for event in events if event.op == "r"]
        assert len(copied) > ROWS / 2
        assert next(event.op for event in events if event.op in ("t", "r")) == "t"
        markers = [event.source["snapshot"] for event in copied]
        assert (markers[0], markers[-1], set(markers[1:-1])) == ("first", "last", {"true"})
        marks = [event.value for event in reader.read(f"{daemon.name}.transaction")]
        ends = [mark for mark in marks if "snapshot" in mark["id"] and mark["status"] == "END"]
        assert [mark["event_count"] for mark in ends] == [len(copied)]
        assert_orders_changes(events)


def assert_orders_changes(events: list[Event]) -> None:
    """Assert that no change was dropped: changes come before and after the copied rows."""
    ops = "".join(event.op or "" for event in events)
    before, _, after = ops.partition("t")
    assert set(before) & set("cud")
    assert set(after.lstrip("tr")) & set("cud")


CRASHES = [
    ("blocking_recorded", "slot_made"),
    ("hold_reached", "in_snapshot:2", "committed:4"),
    ("in_snapshot:3", "snapshot_copied"),
    ("confirmed:4", "progress_produced:5"),
]


@pytest.mark.nightly  # `test_a_repetition_doubles_no_row_without_a_key` has a crash, too
@pytest.mark.parametrize(
    ("table", "crashes"),
    nightly_except(
        [
            pytest.param(table, crashes, id=f"{table}-{' then '.join(crashes)}")
            for table in ("log", "orders")
            for crashes in CRASHES
        ],
        "orders-blocking_recorded then slot_made",
    ),
)
def test_a_copy_is_repeated_after_a_crash(
    crashes: tuple[str, ...],
    table: str,
    source: tuple[PostgresServer, str],
    new_daemon: NewDaemon,
    reader: Reader,
) -> None:
    """Of a table with a key that was never copied the rows are there, too, with the deletes in between."""
    server, database = source
    with streaming(new_daemon(server, database)) as daemon:
        load = RandomChanges(server, database, 2, change)
        options = {"recopy": table == "log"}
        try:
            for number, failpoint in enumerate(crashes):
                daemon.stop()
                daemon.environment[VARIABLE] = failpoint
                daemon.start()
                if number == 0:
                    daemon.wait_state("streaming")
                    assert command(daemon, "start", f"public.{table}", blocking=True, **options)[0] in (
                        0,
                        200,
                    )
                assert daemon.wait_exit() == EXIT_STATUS
            del daemon.environment[VARIABLE]
            daemon.start().wait_state("streaming")
            if not reports(daemon) and not daemon.events("table_copied"):
                start(daemon, f"public.{table}", blocking=True, **options)
            await_copied(daemon)
        finally:
            load.stop()
        judge = assert_bag if table == "log" else assert_orders
        assert len([event for event in judge(server, database, daemon, reader) if event.op == "r"]) > ROWS / 2


def test_a_part_of_a_table_is_copied_and_no_change_of_the_other_rows_is_lost(
    source: tuple[PostgresServer, str], new_daemon: NewDaemon, reader: Reader
) -> None:
    """Changes between the command and the snapshot: of rows that match, of rows that do not, and deletes."""
    server, database = source
    with streaming(new_daemon(server, database), "initial") as daemon:
        with old_transaction(server, database):
            start(daemon, "public.orders", blocking=True, where="id > 8000")
            waits_for(daemon, "temporary slot")
            run(
                server,
                database,
                "DELETE FROM orders WHERE id IN (5, 8005)",
                "UPDATE orders SET n = 7 WHERE id IN (6, 8006)",
                "INSERT INTO orders VALUES (-1, 3), (10001, 4)",
            )
        await_copied(daemon)
        events = assert_orders(server, database, daemon, reader)
        again = [event for event in events if event.op == "r"][ROWS:]
        assert {event.value["after"]["id"] for event in again} == {*range(8001, ROWS + 1), 10001} - {8005}


def test_a_table_without_a_key_is_not_copied_twice(
    source: tuple[PostgresServer, str], new_daemon: NewDaemon, reader: Reader
) -> None:
    server, database = source
    with streaming(new_daemon(server, database)) as daemon:
        run(server, database, "CREATE TABLE empty (n int)", "INSERT INTO empty VALUES (1)")
        _, refusal = command(daemon, "start", LOG)
        assert "no key" in refusal["message"]
        assert f"cdcd snapshot start --table {LOG} --blocking" in refusal["hint"]
        status, refusal = command(daemon, "start", LOG, blocking=True, where="n < 7")
        assert (status, "--recopy" in refusal["hint"]) == (422, True)
        start(daemon, LOG, blocking=True)  # the topic has no records yet
        await_copied(daemon)
        assert_bag(server, database, daemon, reader)
        status, refusal = command(daemon, "start", LOG, blocking=True)
        assert (status, "--recopy" in refusal["hint"]) == (422, True)
        start(daemon, LOG, blocking=True, where="n < 7", recopy=True)
        await_copied(daemon)
        events = records_of(daemon, reader, "log")
        rows = server.execute("SELECT n, what FROM log WHERE n < 7", dbname=database)
        assert bag(events) == Counter(rows)


def test_rows_that_the_stream_writes_between_the_command_and_the_copy_are_not_doubled(
    source: tuple[PostgresServer, str], new_daemon: NewDaemon, reader: Reader
) -> None:
    """The topic has no record when the command comes, and the snapshot has the rows of the open transaction, too."""
    server, database = source
    with streaming(new_daemon(server, database)) as daemon:
        with contextlib.closing(psycopg2.connect(server.dsn(database))) as connection:
            connection.cursor().execute("INSERT INTO log VALUES (-1, 'open')")
            start(daemon, LOG, blocking=True)
            waits_for(daemon, "temporary slot")
            connection.commit()
        await_copied(daemon)
        events = assert_bag(server, database, daemon, reader)
        assert [event.op for event in events[:2]] == ["c", "t"]


def test_a_repetition_doubles_no_row_without_a_key(
    source: tuple[PostgresServer, str], new_daemon: NewDaemon, reader: Reader
) -> None:
    """The command asks for no truncate event: the first attempt was the first to write rows."""
    server, database = source
    # A batch is written to the end of its Kafka transaction before the one after the next is read.
    small = {"sink": {"commit": {"max_rows": 500}}, "buffer": {"memory": "64KiB"}}
    with streaming(new_daemon(server, database, **small)) as daemon:
        assert daemon.stop() == 0
        daemon.environment[VARIABLE] = "in_snapshot:3"
        daemon.start().wait_state("streaming")
        command(daemon, "start", LOG, blocking=True)
        assert daemon.wait_exit() == EXIT_STATUS
        del daemon.environment[VARIABLE]
        before = records_of(daemon, reader, "log")
        assert {event.op for event in before} == {"r"}
        assert len(before) < ROWS
        run(
            server,
            database,
            "DELETE FROM log WHERE n < 2500",
            "INSERT INTO log VALUES (1, 'new'), (1, 'new')",
        )
        daemon.start()
        await_copied(daemon)
        events = assert_bag(server, database, daemon, reader)
        assert [event.op for event in events[: len(before) + 1]] == ["r"] * len(before) + ["d"]
        assert "t" in {event.op for event in events}


def test_what_a_blocking_snapshot_refuses_and_how_it_is_stopped(
    source: tuple[PostgresServer, str], new_daemon: NewDaemon, reader: Reader
) -> None:
    server, database = source
    with streaming(new_daemon(server, database)) as daemon:
        status, refusal = command(daemon, "start", LOG, blocking=True, where="n / 0 is")
        assert (status, refusal["code"]) == (422, "CDCD-SOURCE-SETUP")
        with old_transaction(server, database):
            start(daemon, LOG, "public.orders", blocking=True)
            waits_for(daemon, "temporary slot")
            for action, table in (("pause", LOG), ("resume", LOG), ("start", "public.orders")):
                status, refusal = command(daemon, action, table)
                assert (status, refusal["code"]) == (422, "CDCD-SNAPSHOT-REFUSED"), refusal
            run(server, database, "INSERT INTO orders VALUES (20000, 1)")
            assert command(daemon, "stop", LOG) == (200, {"tables": [LOG]})
            waits_for(daemon, "temporary slot")
            assert [one["table"] for one in reports(daemon)] == ["public.orders"]
            assert command(daemon, "stop") == (200, {"tables": ["public.orders"]})
            assert reports(daemon) == []
            # The stream goes on although no slot could be created.
            reader.wait([f"{daemon.name}.public.orders"], bool)
        assert daemon.stop() == 0
        daemon.start().wait_state("streaming")
        assert reports(daemon) == []


@pytest.mark.nightly
def test_a_copy_can_be_stopped_in_the_middle(
    source: tuple[PostgresServer, str], new_daemon: NewDaemon, reader: Reader
) -> None:
    server, database = source
    with streaming(new_daemon(server, database)) as daemon:
        start(daemon, LOG, blocking=True, recopy=True, where="n < 0 OR pg_sleep(0.02) IS NOT NULL")
        eventually(
            lambda: [one for one in reports(daemon) if one["state"] == "copying"], "the copy has begun"
        )
        assert is_shown_as_copying(daemon)
        run(server, database, "INSERT INTO other VALUES ('behind')")
        status, refusal = command(daemon, "start", "public.orders")
        assert (status, "blocking snapshot" in refusal["message"]) == (422, True)
        assert command(daemon, "stop", LOG)[0] == 200
        reader.wait([f"{daemon.name}.public.other"], bool)
        assert (reports(daemon), is_shown_as_copying(daemon)) == ([], False)
        start(daemon, LOG, blocking=True, recopy=True)
        await_copied(daemon)
        assert_bag(server, database, daemon, reader)


def test_a_failed_copy_does_not_stop_the_stream_and_is_not_repeated_by_itself(
    source: tuple[PostgresServer, str], new_daemon: NewDaemon, reader: Reader
) -> None:
    server, database = source
    with streaming(new_daemon(server, database)) as daemon:
        start(daemon, LOG, blocking=True, recopy=True, where="1000 / (n - 4321) IS NOT NULL")
        eventually(lambda: [one for one in reports(daemon) if one["state"] == "failed"], "a failure")
        eventually(lambda: daemon.events("table_not_copied"), "the log has the reason")
        assert f"start --table {LOG} --blocking" in daemon.events("table_not_copied")[-1]["hint"]
        run(server, database, "INSERT INTO orders VALUES (20000, 1)")
        reader.wait([f"{daemon.name}.public.orders"], bool)
        assert daemon.stop() == 0
        daemon.start().wait_state("streaming")
        (report,) = reports(daemon)
        assert (report["state"], report["kind"]) == ("failed", "blocking")
        start(daemon, LOG, blocking=True)
        await_copied(daemon)
        assert_bag(server, database, daemon, reader)


@pytest.mark.nightly  # test_snapshot_signals has the signals
def test_a_signal_starts_a_blocking_snapshot(
    source: tuple[PostgresServer, str], new_daemon: NewDaemon, kafka: KafkaBroker, reader: Reader
) -> None:
    server, database = source
    daemon = new_daemon(server, database)
    topic = f"{daemon.name}.signals"
    create_topic(kafka.bootstrap, topic)
    daemon.config["snapshot"] = {"signals": {"topic": topic}}
    with streaming(daemon) as daemon:
        data = {"data-collections": [LOG], "type": "blocking"}
        signal = json.dumps({"id": "1", "type": "execute-snapshot", "data": data})
        producer = Producer({"bootstrap.servers": kafka.bootstrap})

        def is_taken() -> bool:
            producer.produce(topic, signal, key=daemon.name)
            assert producer.flush(60) == 0
            return bool(daemon.events("table_copied"))

        eventually(is_taken, "the table is copied")  # signals from before the first start are not read
        await_copied(daemon)
        assert_bag(server, database, daemon, reader)


@pytest.mark.nightly
def test_a_partitioned_table_without_a_key_is_copied_under_its_root(
    source: tuple[PostgresServer, str], new_daemon: NewDaemon, reader: Reader
) -> None:
    server, database = source
    via_root = server.major >= 13
    with streaming(new_daemon(server, database)) as daemon:
        if via_root:
            run(server, database, f"ALTER PUBLICATION cdcd_{daemon.name} SET (publish_via_partition_root)")
        run(
            server,
            database,
            "CREATE TABLE split (n int, what text) PARTITION BY RANGE (n)",
            "CREATE TABLE split_1 PARTITION OF split FOR VALUES FROM (0) TO (1000)",
            "CREATE TABLE split_2 PARTITION OF split DEFAULT",
            "INSERT INTO split SELECT g % 1500, 'x' FROM generate_series(1, 3000) g",
        )
        assert daemon.stop() == 0
        daemon.start().wait_state("streaming")
        root = "split" if via_root else "split_1"
        start(daemon, f"public.{root}", blocking=True, recopy=True)
        await_copied(daemon)
        await_confirmed(server, daemon)
        rows = server.execute(f"SELECT n, what FROM {root}", dbname=database)
        assert bag(records_of(daemon, reader, root)) == Counter(rows)


@pytest.mark.nightly
def test_two_daemons_copy_the_same_table_at_the_same_time(
    source: tuple[PostgresServer, str], new_daemon: NewDaemon, reader: Reader
) -> None:
    server, database = source
    with streaming(new_daemon(server, database)) as one, streaming(new_daemon(server, database)) as another:
        load = RandomChanges(server, database, 3, change)
        try:
            with old_transaction(server, database):
                for daemon in (one, another):
                    start(daemon, LOG, "public.orders", blocking=True, recopy=True)
                    waits_for(daemon, "temporary slot")
            for daemon in (one, another):
                await_copied(daemon)
        finally:
            load.stop()
        for daemon in (one, another):
            assert_bag(server, database, daemon, reader)
            assert_orders(server, database, daemon, reader)
