"""An interrupted snapshot under a changed configuration: no row is missing, whatever the next start continues.

F37, F40: a table of which ranges are complete is continued only by a start that streams, with the same condition.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psycopg2
import pytest
from confluent_kafka import Producer

from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.postgres import PostgresServer
from cdcd.failpoints import EXIT_STATUS, VARIABLE
from cdcd.model import TableCopyState
from cdcd.sink.progress import dump, key_of, load
from tests.integration.conftest import NewDaemon
from tests.integration.test_snapshot_ranges import with_small_units
from tests.integration.test_snapshot_rest import started_until
from tests.support.daemon import Daemon, await_confirmed
from tests.support.folded import folded
from tests.support.nightly import nightly
from tests.support.reader import BEGINNING, Event, Reader
from tests.support.snapshot_commands import await_copied, ensure_started, reports
from tests.support.stack import PostgresServers, filled_database, run
from tests.support.topics import committed_records
from tests.support.waiting import eventually

BIG = 12_000
TABLES = (
    "CREATE TABLE big (id int PRIMARY KEY, note text, body text)",
    "INSERT INTO big SELECT g, CASE g WHEN 9000 THEN 'secret' ELSE g::text END, repeat('x', 300)"
    f" FROM generate_series(1, {BIG}) g",
    "CREATE TABLE log (at int, what text)",
    "INSERT INTO log SELECT g, repeat('l', 300) FROM generate_series(1, 3000) g",
)
SINK = {"commit": {"max_rows": 500}}


@pytest.fixture
def source(pg_server: PostgresServers) -> Iterator[tuple[PostgresServer, str]]:
    """Yield a server and a database with the tables."""
    with filled_database(pg_server, 18, TABLES) as found:
        yield found


def ids_in_topic(reader: Reader, daemon: Daemon) -> set[int]:
    """Return the keys of the rows that a reader of the topic has."""
    return {row["id"] for row in folded(reader.read(f"{daemon.name}.public.big")).values()}


def ids_in_table(source: tuple[PostgresServer, str], condition: str = "true") -> set[int]:
    server, database = source
    return {row for (row,) in server.execute(f"SELECT id FROM big WHERE {condition}", dbname=database)}


def assert_in_order(events: list[Event]) -> None:
    """Assert that no record of a partition is older than one before it."""
    last: dict[int, tuple[int, ...]] = {}
    for event in sorted(events, key=lambda one: (one.partition, one.offset)):
        if event.sequence is not None:
            assert event.sequence > last.get(event.partition, BEGINNING), (
                "an older record comes after a newer one"
            )
            last[event.partition] = event.sequence


def copied(daemon: Daemon, source: tuple[PostgresServer, str]) -> None:
    """Start the daemon, wait until everything is copied and written, and stop it."""
    server, _ = source
    daemon.start().wait_state("streaming")
    await_copied(daemon)
    await_confirmed(server, daemon)
    assert daemon.stop() == 0


def test_a_table_that_was_to_be_continued_is_copied_by_a_start_without_a_stream(
    source: tuple[PostgresServer, str], new_daemon: NewDaemon, reader: Reader
) -> None:
    """The second attempt has left the table to an incremental snapshot, which with `initial_only` never comes."""
    server, database = source
    with with_small_units(new_daemon(server, database, snapshot={"workers": 1}, sink=SINK)) as daemon:
        started_until(daemon, "committed:10")  # within big
        run(server, database, "DELETE FROM big WHERE id % 7 = 0")
        started_until(daemon, "committed:3")  # within log, which is copied first now
        daemon.config["snapshot"]["mode"] = "initial_only"
        assert daemon.start().wait_exit() == 0
        assert ids_in_topic(reader, daemon) == ids_in_table(source)
        assert daemon.start().wait_exit() == 0
        assert len(daemon.events("snapshot_started")) == 3, "a complete snapshot is taken again"


def test_a_corrected_condition_applies_to_the_interrupted_table(
    source: tuple[PostgresServer, str], new_daemon: NewDaemon, reader: Reader
) -> None:
    """The rows that were written under the former condition are removed."""
    server, database = source
    rule: dict[str, Any] = {"table": "public.big", "where": "note::int > 100"}
    options = {"workers": 1, "overrides": [rule]}
    with with_small_units(new_daemon(server, database, snapshot=options, sink=SINK)) as daemon:
        reason = daemon.start().wait_state("halted")["reason"]
        assert re.match(
            r"CDCD-SOURCE-SETUP: the server cannot evaluate the condition `where` .* for a row", reason
        ), reason
        assert "snapshot.overrides" in reason
        assert "public.big" in reason
        assert "secret" not in daemon.log()
        assert daemon.stop() == 0
        assert ids_in_topic(reader, daemon), "no range is complete"
        rule["where"] = "id > 1000"
        copied(daemon, source)
        assert [event["table"] for event in daemon.events("table_copied_again")] == ["public.big"]
        assert not daemon.events("snapshot_continues_while_streaming")
        assert ids_in_topic(reader, daemon) == ids_in_table(source, "id > 1000")


@pytest.mark.nightly
def test_an_interrupted_table_that_is_excluded_is_only_streamed(
    source: tuple[PostgresServer, str], new_daemon: NewDaemon, reader: Reader
) -> None:
    server, database = source
    with with_small_units(new_daemon(server, database, snapshot={"workers": 1}, sink=SINK)) as daemon:
        started_until(daemon, "committed:10")
        before = ids_in_topic(reader, daemon)
        assert len(before) < BIG
        daemon.config["snapshot"]["overrides"] = [{"table": "public.big", "include": False}]
        run(server, database, "INSERT INTO big VALUES (20000, 'new', '')", "DELETE FROM big WHERE id = 1")
        copied(daemon, source)
        assert not daemon.events("snapshot_continues_while_streaming")
        assert not daemon.events("table_copied_again")
        assert ids_in_topic(reader, daemon) == before - {1} | {20000}


@pytest.mark.nightly
def test_a_table_that_is_included_after_the_end_of_an_initial_only_snapshot_is_copied(
    source: tuple[PostgresServer, str], new_daemon: NewDaemon, reader: Reader
) -> None:
    server, database = source
    options = {"workers": 1, "mode": "initial_only"}
    with with_small_units(new_daemon(server, database, snapshot=options, sink=SINK)) as daemon:
        started_until(daemon, "committed:10")  # within big
        daemon.config["snapshot"]["overrides"] = [{"table": "public.big", "include": False}]
        for _ in range(2):
            assert daemon.start().wait_exit() == 0
        assert len(daemon.events("snapshot_started")) == 2, "a slot is created again for no table"
        run(server, database, "DELETE FROM big WHERE id % 100 = 7")
        daemon.config["snapshot"]["overrides"] = []
        for _ in range(2):
            assert daemon.start().wait_exit() == 0
        assert ids_in_topic(reader, daemon) == ids_in_table(source)
        assert len(daemon.events("snapshot_started")) == 3, "the table is copied once"


def test_a_table_that_is_included_again_before_the_snapshot_is_complete_is_copied(
    source: tuple[PostgresServer, str], new_daemon: NewDaemon, reader: Reader
) -> None:
    server, database = source
    with with_small_units(new_daemon(server, database, snapshot={"workers": 1}, sink=SINK)) as daemon:
        started_until(daemon, "committed:10")  # within big
        daemon.config["snapshot"]["overrides"] = [{"table": "public.big", "include": False}]
        run(server, database, "INSERT INTO big VALUES (20000, 'new', '')", "DELETE FROM big WHERE id = 1")
        started_until(daemon, "committed:3")  # within log
        assert [line["table"] for line in daemon.events("table_streamed_only")] == ["public.big"]
        daemon.config["snapshot"]["overrides"] = []
        run(server, database, "DELETE FROM big WHERE id % 100 = 7")
        copied(daemon, source)
        assert ids_in_topic(reader, daemon) == ids_in_table(source)
        assert_in_order(reader.read(f"{daemon.name}.public.big"))


def tables_to_copy(daemon: Daemon) -> int:
    """Return the number of tables that a start would copy, according to `cdcd check`."""
    findings = json.loads(daemon.run("check", "--json").stdout)
    (message,) = (one["message"] for one in findings if one["subject"] == "start")
    found = re.search(r"copies the (\d+) tables", message)
    assert found is not None, message
    return int(found[1])


def test_a_table_that_the_first_attempt_has_excluded_is_copied_when_it_is_included(
    source: tuple[PostgresServer, str], new_daemon: NewDaemon, reader: Reader
) -> None:
    server, database = source
    rule = {"table": "public.big", "include": False}
    options = {"workers": 1, "overrides": [rule]}
    with with_small_units(new_daemon(server, database, snapshot=options, sink=SINK)) as daemon:
        started_until(daemon, "committed:3")  # within log
        before = tables_to_copy(daemon)
        rule["include"] = True
        assert tables_to_copy(daemon) == before + 1
        run(server, database, "DELETE FROM big WHERE id % 100 = 7")
        copied(daemon, source)
        assert ids_in_topic(reader, daemon) == ids_in_table(source)
        assert_in_order(reader.read(f"{daemon.name}.public.big"))


@pytest.mark.parametrize(
    "has_ranges", [nightly(False), True], ids=["no range is complete", "some ranges are complete"]
)
def test_no_change_comes_after_newer_rows_of_a_table_whose_copy_is_given_up(
    has_ranges: bool, source: tuple[PostgresServer, str], new_daemon: NewDaemon, reader: Reader
) -> None:
    """F40: the second attempt copies in a later snapshot than that at which the stream begins."""
    server, database = source
    with new_daemon(server, database, snapshot={"workers": 1}, sink=SINK) as daemon:
        started_until(daemon, "committed:4")  # within big, which is one unit
        run(server, database, "UPDATE big SET note = 'newer'", "DELETE FROM big WHERE id % 100 = 7")
        if has_ranges:
            with_small_units(daemon)
        started_until(daemon, "committed:12")  # within big, which is copied again
        assert len(daemon.events("snapshot_started")) == 2
        assert ids_in_topic(reader, daemon)
        daemon.config["snapshot"]["overrides"] = [{"table": "public.big", "include": False}]
        run(
            server,
            database,
            "UPDATE big SET note = 'newest' WHERE id % 9 = 0",
            "DELETE FROM big WHERE id = 1",
        )
        copied(daemon, source)
        events = reader.read(f"{daemon.name}.public.big")
        assert_in_order(events)
        rows = folded(events)
        there = ids_in_table(source)
        assert {row["id"] for row in rows.values()} <= there
        assert {row["note"] for row in rows.values() if row["id"] % 9 == 0} == {"newest"}
        assert {row["note"] for row in rows.values() if row["id"] % 9} == {"newer"}
        (line,) = daemon.events("table_streamed_only")
        assert line["table"] == "public.big"


@pytest.mark.parametrize(
    ("before", "after"),
    [(["note"], None), nightly(None, ["note"]), nightly(["note"], ["body"])],
    ids=["more columns", "fewer columns", "others"],
)
def test_a_table_is_copied_again_after_its_columns_were_changed(
    before: list[str] | None,
    after: list[str] | None,
    source: tuple[PostgresServer, str],
    new_daemon: NewDaemon,
    reader: Reader,
) -> None:
    """Otherwise some of its rows have other columns than the rule says, and nothing tells readers so."""
    server, database = source
    options = {"workers": 1, "overrides": [{"table": "public.big", "columns": before}] if before else []}
    with with_small_units(new_daemon(server, database, snapshot=options, sink=SINK)) as daemon:
        started_until(daemon, "committed:12")  # within big
        run(server, database, "DELETE FROM big WHERE id < 50")
        options["overrides"] = [{"table": "public.big", "columns": after}] if after else []
        copied(daemon, source)
        assert [event["table"] for event in daemon.events("table_copied_again")] == ["public.big"]
        assert not daemon.events("snapshot_continues_while_streaming")
        assert ids_in_topic(reader, daemon) == ids_in_table(source)
        wanted = {"id", *(after or ("note", "body"))}
        rows = folded(reader.read(f"{daemon.name}.public.big"))
        assert {frozenset(row) for row in rows.values()} == {frozenset(wanted)}


def test_an_incremental_snapshot_begins_again_after_its_columns_were_changed(
    source: tuple[PostgresServer, str], new_daemon: NewDaemon, reader: Reader
) -> None:
    server, database = source
    rule: dict[str, Any] = {"table": "public.big", "columns": ["note"]}
    with new_daemon(server, database, snapshot={"mode": "never", "overrides": [rule]}, sink=SINK) as daemon:
        daemon.environment[VARIABLE] = "chunk_emitted:3"
        ensure_started(daemon.start(), "public.big")
        assert daemon.wait_exit() == EXIT_STATUS
        del daemon.environment[VARIABLE]
        rule["columns"] = ["note", "body"]
        ensure_started(daemon.start(), "public.big")
        await_copied(daemon)
        await_confirmed(server, daemon)
        assert daemon.stop() == 0
        rows = folded(reader.read(f"{daemon.name}.public.big"))
        assert {row["id"] for row in rows.values()} == ids_in_table(source)
        assert {frozenset(row) for row in rows.values()} == {frozenset({"id", "note", "body"})}


@pytest.mark.nightly
def test_a_complete_snapshot_without_a_stream_is_not_repeated_for_what_an_earlier_version_has_noted(
    source: tuple[PostgresServer, str], new_daemon: NewDaemon, reader: Reader, kafka: KafkaBroker
) -> None:
    """It has left tables in the record that are excluded, and others that were to be continued, and never were."""
    server, database = source
    options = {"mode": "initial_only", "overrides": [{"table": "public.log", "include": False}]}
    with new_daemon(server, database, snapshot=options, sink=SINK) as daemon:
        assert daemon.start().wait_exit() == 0
        run(server, database, "UPDATE big SET note = 'later'")
        note_tables(kafka, server, database, daemon, "log")
        assert daemon.start().wait_exit() == 0
        assert {row["note"] for row in folded(reader.read(f"{daemon.name}.public.big")).values()} != {"later"}
        assert f"{daemon.name}.public.log" not in reader.topics(daemon.name)
        assert daemon.start().wait_exit() == 0
        assert [line["tables"] for line in daemon.events("snapshot_started")] == [1, 0]
        note_tables(kafka, server, database, daemon, "log", "big")
        assert daemon.start().wait_exit() == 0
        assert {row["note"] for row in folded(reader.read(f"{daemon.name}.public.big")).values()} == {"later"}
        assert ids_in_topic(reader, daemon) == ids_in_table(source)


def note_tables(
    kafka: KafkaBroker, server: PostgresServer, database: str, daemon: Daemon, *tables: str
) -> None:
    """Write the last progress record again as an earlier version did, with tables that were to be continued."""
    topic = f"{daemon.name}.__progress"
    records = committed_records(kafka.bootstrap, topic)
    stored = load(
        [value for one in records if one.key() == key_of(daemon.slot) and (value := one.value())][-1]
    )
    assert stored.copy is not None
    assert not stored.copy.incomplete
    states = {
        relid: TableCopyState(f"{daemon.name}.public.{name}", ("0/9/48/",), is_by_blocks=True)
        for name in tables
        for ((relid,),) in [server.execute("SELECT %s::regclass::oid::int8", name, dbname=database)]
    }
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    copy = replace(stored.copy, tables=states)
    producer.produce(topic, dump(replace(stored, copy=copy, offsets={})), key_of(daemon.slot), 0)
    assert producer.flush(60) == 0


def test_the_stream_does_not_wait_for_the_lock_of_a_table_that_is_continued(
    source: tuple[PostgresServer, str], new_daemon: NewDaemon, reader: Reader
) -> None:
    server, database = source
    options = {"workers": 1, "overrides": [{"table": "public.log", "include": False}]}
    with with_small_units(new_daemon(server, database, snapshot=options, sink=SINK)) as daemon:
        started_until(daemon, "committed:12")  # within big
        with contextlib.closing(psycopg2.connect(server.dsn(database))) as holder:
            holder.cursor().execute("LOCK TABLE big")
            daemon.start().wait_state("streaming")
            run(server, database, "INSERT INTO log VALUES (1, 'while big is locked')")
            await_confirmed(server, daemon)
            pid = holder.info.backend_pid
            held = [line["held_by"] for line in daemon.events("table_locked")]
            assert held
            assert all(f"pid {pid}" in one and "public.big" in one for one in held)
            waiting = lambda: [one for one in reports(daemon) if f"pid {pid}" in (one["reason"] or "")]  # noqa: E731
            eventually(lambda: bool(waiting()), "the report names the lock's holder")
        await_copied(daemon)
        await_confirmed(server, daemon)
        assert daemon.stop() == 0
        assert len(daemon.events("snapshot_continues_while_streaming")) == 1
        assert ids_in_topic(reader, daemon) == ids_in_table(source)
