"""`snapshot.mode` `when_needed` and `always`: new snapshots that cdcd takes by itself, judged by another reader."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import psycopg2
import pytest

from cdcd.demo.stack.postgres import PostgresServer
from cdcd.failpoints import EXIT_STATUS, VARIABLE
from tests.integration.conftest import NewDaemon
from tests.support.daemon import Daemon, await_confirmed
from tests.support.nightly import nightly
from tests.support.reader import BEGINNING, Event, Reader
from tests.support.resolutions import ACCEPT_GAP, audited, command, equals_table, halts_with
from tests.support.seldom_guarded import SELDOM_GUARDED
from tests.support.snapshot_commands import start
from tests.support.stack import PostgresServers, prepare, run, run_script, wal_position
from tests.support.waiting import eventually

TABLES = (
    "CREATE TABLE t (id int PRIMARY KEY, body text)",
    "INSERT INTO t VALUES (1, 'copied'), (2, 'deleted in the gap')",
)
MIB = 1 << 20
Break = Callable[[PostgresServer, str, Daemon], None]


def dropped(server: PostgresServer, database: str, daemon: Daemon) -> None:
    server.execute("SELECT pg_drop_replication_slot(%s)", daemon.slot, dbname=database)


def advanced(server: PostgresServer, database: str, daemon: Daemon) -> None:
    server.execute(
        "SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", daemon.slot, dbname=database
    )


def made_again(server: PostgresServer, database: str, daemon: Daemon) -> None:
    dropped(server, database, daemon)
    server.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", daemon.slot, dbname=database)


def outgrown(server: PostgresServer, _database: str, daemon: Daemon) -> None:
    run_script(
        server.dsn(),
        "ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'",
        "SELECT pg_reload_conf()",
        *["SELECT pg_logical_emit_message(false, 'x', 'x'), pg_switch_wal()", "CHECKPOINT"] * 3,
    )
    lost = "SELECT 1 FROM pg_replication_slots WHERE slot_name = %s AND wal_status = 'lost'"
    eventually(lambda: server.execute(lost, daemon.slot), "the slot is lost")
    run_script(server.dsn(), "ALTER SYSTEM RESET max_slot_wal_keep_size", "SELECT pg_reload_conf()")


def streamed_then_broken(
    server: PostgresServer, database: str, daemon: Daemon, breaks: Break, *, holds_restart: bool = False
) -> None:
    """Stream, stop, change rows and break the slot.

    `holds_restart`: an open transaction keeps the slot's restart_lsn below the stored position meanwhile.
    """
    run(server, database, *TABLES)
    daemon.start().wait_state("streaming")
    with contextlib.ExitStack() as ends:
        if holds_restart:
            connection = ends.enter_context(contextlib.closing(psycopg2.connect(server.dsn(database))))
            connection.cursor().execute("INSERT INTO t VALUES (9, 'rolled back')")
        run(server, database, "INSERT INTO t VALUES (3, 'streamed')")
        await_confirmed(server, daemon)
        assert daemon.stop() == 0
        run(server, database, "DELETE FROM t WHERE id = 2", "INSERT INTO t VALUES (4, 'in the gap')")
        breaks(server, database, daemon)


def ops(events: list[Event]) -> list[str | None]:
    """Return the operations in the order of readers, rows of a snapshot as one."""
    ordered = [event.op for event in sorted(events, key=lambda event: event.sequence or BEGINNING)]
    return [op for number, op in enumerate(ordered) if op != "r" or ordered[number - 1 : number] != ["r"]]


def assert_anew(server: PostgresServer, database: str, daemon: Daemon, reader: Reader, reason: str) -> None:
    """Assert that readers have the table's rows, and how they got them."""
    daemon.wait_state("streaming")
    run(server, database, "INSERT INTO t VALUES (5, 'after')")
    events = equals_table(reader, f"{daemon.name}.public.t", server, database)
    assert ops(events) == ["r", "c", "g", "g", "t", "t", "r", "c"]
    assert {event.source["special"]["gap.reason"] for event in events if event.op == "g"} == {reason}


@pytest.fixture(scope="module")
def own_server(pg_server: PostgresServers) -> Iterator[PostgresServer]:
    """Yield a server whose settings the tests change."""
    with pg_server.fresh(18, settings={"max_wal_size": "32MB", "min_wal_size": "32MB"}) as server:
        yield server


@pytest.mark.parametrize(
    ("breaks", "code"),
    [
        (dropped, "CDCD-SLOT-MISSING"),
        nightly(advanced, "CDCD-SLOT-AHEAD"),
        nightly(outgrown, "CDCD-SLOT-LOST"),
    ],
)
def test_a_slot_that_cannot_continue_is_replaced_with_a_new_snapshot(
    breaks: Break, code: str, own_server: PostgresServer, new_daemon: NewDaemon, reader: Reader
) -> None:
    database = f"broken_{code[-5:].lower().strip('-')}"
    own_server.create_database(database)
    with new_daemon(own_server, database, snapshot={"mode": "when_needed"}) as daemon:
        streamed_then_broken(own_server, database, daemon, breaks, holds_restart=breaks is advanced)
        assert daemon.status() == {}
        assert "takes a new snapshot, because of" in daemon.run("check").stdout
        daemon.start()
        assert_anew(own_server, database, daemon, reader, code)
        assert str(daemon.status()["new_snapshot"]).startswith(f"{code}: ")
        assert f'cdcd_new_snapshots_total{{reason="{code}"}} 1.0' in daemon.get("/metrics")[1]
        assert [line["reason"] for line in daemon.events("new_snapshot")] == [code]
        assert daemon.events("halted") == []
        assert daemon.stop() == 0
        daemon.start().wait_state("streaming")
        assert daemon.status()["new_snapshot"] is None
        assert len(daemon.events("new_snapshot")) == 1, "a restart continues"
        assert daemon.stop() == 0


@pytest.mark.parametrize(
    "failpoint",
    [
        "committed:1",
        nightly("snapshot_begun"),
        nightly("slot_made"),
        nightly("snapshot_copied"),
        nightly("produced:1"),
    ],
)
def test_a_new_snapshot_survives_a_crash(
    failpoint: str, postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    with new_daemon(postgres, database, snapshot={"mode": "when_needed"}) as daemon:
        streamed_then_broken(postgres, database, daemon, dropped)
        daemon.environment[VARIABLE] = failpoint
        assert daemon.start().wait_exit() == EXIT_STATUS
        del daemon.environment[VARIABLE]
        daemon.start().wait_state("streaming")
        run(postgres, database, "INSERT INTO t VALUES (5, 'after')")
        events = equals_table(reader, f"{daemon.name}.public.t", postgres, database)
        assert [event.op for event in events].count("g") == 2, "each partition has one marker"
        assert daemon.stop() == 0


@pytest.mark.nightly
def test_a_slot_that_may_be_another_programs_is_not_dropped(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon
) -> None:
    with new_daemon(postgres, database, snapshot={"mode": "when_needed"}) as daemon:
        streamed_then_broken(postgres, database, daemon, made_again)
        slot = "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = %s"
        before = postgres.execute(slot, daemon.slot)
        halts_with(daemon.start(), "CDCD-SLOT-AHEAD")
        assert postgres.execute(slot, daemon.slot) == before
        assert audited(command(daemon, "resnapshot"))["reason"] == "CDCD-SLOT-AHEAD"
        daemon.wait_state("streaming")


def test_a_slot_that_another_daemon_reads_is_not_dropped(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon
) -> None:
    """F80: a daemon of another name has advanced the slot; its progress record says that it reads the slot."""
    first = new_daemon(postgres, database, snapshot={"mode": "when_needed"})
    second = new_daemon(postgres, database, snapshot={"mode": "never"})
    second.config["source"]["slot"] = {"name": first.slot}
    second.config["sink"]["transactional_id"] = second.name

    def read_by_the_second(server: PostgresServer, database: str, _daemon: Daemon) -> None:
        second.start().wait_state("streaming")
        run(server, database, "INSERT INTO t VALUES (6, 'to the second')")
        eventually(lambda: second.status()["transactions_written"] > 0, "the second daemon has written it")
        assert second.stop() == 0

    with first, second:
        streamed_then_broken(postgres, database, first, read_by_the_second, holds_restart=True)
        slot = "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = %s"
        before = postgres.execute(slot, first.slot)
        first.start()
        assert second.name in halts_with(first, "CDCD-OWNED-BY-ANOTHER")
        assert postgres.execute(slot, first.slot) == before
        assert first.events("slot_dropped") == []


@pytest.mark.nightly
def test_an_accepted_gap_is_no_reason_for_a_snapshot(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon
) -> None:
    """An operator may choose to continue without the missing changes."""
    with new_daemon(postgres, database, snapshot={"mode": "when_needed"}) as daemon:
        streamed_then_broken(postgres, database, daemon, dropped)
        assert "CDCD-SLOT-MISSING" in command(daemon, *ACCEPT_GAP, "--dry-run").stdout
        audited(command(daemon, *ACCEPT_GAP))
        daemon.start().wait_state("streaming")
        assert daemon.events("new_snapshot") == []


@pytest.mark.nightly  # test_check_beginning has another server
def test_another_server_is_not_copied(
    postgres: PostgresServer, database: str, own_server: PostgresServer, new_daemon: NewDaemon
) -> None:
    with new_daemon(postgres, database, snapshot={"mode": "when_needed"}) as daemon:
        streamed_then_broken(postgres, database, daemon, dropped)
        own_server.create_database(database)
        run(own_server, database, *TABLES, f"CREATE PUBLICATION {daemon.slot} FOR ALL TABLES")
        daemon.config["source"]["dsn"] = own_server.dsn(database)
        halts_with(daemon.start(), "CDCD-SOURCE-IDENTITY")


def test_a_slot_that_the_wal_guard_drops_is_replaced(
    own_server: PostgresServer, new_daemon: NewDaemon, reader: Reader
) -> None:
    """F21: also while the daemon runs, and however late the guard's next turn is."""
    own_server.create_database("guarded")
    run(own_server, "guarded", *TABLES)
    source = {"wal_guard": {"warn": "24MiB", "critical": "48MiB", "drop_slot": "96MiB"}}
    with new_daemon(own_server, "guarded", source=source, snapshot={"mode": "when_needed"}) as daemon:
        daemon.entry = SELDOM_GUARDED
        daemon.start().wait_state("streaming")
        prepare(own_server.dsn("guarded"), "kept", "INSERT INTO t VALUES (7, 'prepared')")
        try:
            end_lsn = wal_position(own_server) + 110 * MIB
            while wal_position(own_server) < end_lsn:
                own_server.execute("SELECT pg_logical_emit_message(false, 'burn', 'x'), pg_switch_wal()")
            eventually(
                lambda: daemon.events("slot_dropped_by_wal_guard") or daemon.events("halted"),
                "the slot is dropped",
            )
            eventually(lambda: daemon.events("new_snapshot"), "a new snapshot begins")
        finally:
            own_server.execute("ROLLBACK PREPARED 'kept'", dbname="guarded")
        daemon.wait_state("streaming")
        run(own_server, "guarded", "INSERT INTO t VALUES (5, 'after')")
        equals_table(reader, f"{daemon.name}.public.t", own_server, "guarded")
        assert daemon.events("halted") == []
        assert daemon.stop() == 0


def gap_ends(events: list[Event]) -> list[str | None]:
    """Return the ends of the gaps in a topic, one for each marker."""
    return [event.source["special"].get("gap.to_lsn") for event in events if event.op == "g"]


@pytest.mark.parametrize("mode", ["when_needed", nightly("always")])
def test_a_table_that_a_new_snapshot_does_not_copy_lacks_the_changes_in_the_gap(
    mode: str, postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    """Its marker has an end, at which readers stop: neither a truncate event nor its rows follow."""
    overrides = [
        {"table": r"public\.(u|created)", "include": False},
        {"table": r"public\.part", "where": "id > 0"},
    ]
    others = ("u", "part", "created")
    make, fill = "CREATE TABLE {} (id int PRIMARY KEY, body text)", "INSERT INTO {} VALUES (2, 'streamed')"
    with new_daemon(postgres, database, snapshot={"mode": mode, "overrides": overrides}) as daemon:
        run(postgres, database, *[make.format(name) for name in others[:2]])
        streamed_then_broken(postgres, database, daemon, lambda *_: None)
        daemon.start().wait_state("streaming")
        run(postgres, database, *[fill.format(name) for name in others[:2]])
        await_confirmed(postgres, daemon)
        assert daemon.stop() == 0
        dropped(postgres, database, daemon)
        run(postgres, database, make.format("created"), fill.format("created"))
        run(postgres, database, *[f"DELETE FROM {name} WHERE id = 2" for name in others[:2]])
        daemon.start().wait_state("streaming")
        run(postgres, database, *[f"INSERT INTO {name} VALUES (5, 'after')" for name in ("t", *others)])
        topics = {name: f"{daemon.name}.public.{name}" for name in others}
        copied = equals_table(reader, f"{daemon.name}.public.t", postgres, database)
        assert set(gap_ends(copied)) == {None}
        await_confirmed(postgres, daemon)
        assert set(gap_ends(equals_table(reader, topics["part"], postgres, database, "part"))) == {None}
        for name in ("u", "created"):
            marked = reader.read(topics[name])
            assert None not in gap_ends(marked)
            assert len(gap_ends(marked)) > 0
            assert "t" not in ops(marked)
        assert daemon.status()["incomplete_topics"] == [], "the marker's end says so"
        line = daemon.events("gap_not_copied")[-1]
        assert set(line["first_tables"]) == {"public.u", "public.created"}
        for name in ("u", "created"):
            start(daemon, f"public.{name}", recopy=True)
            equals_table(reader, topics[name], postgres, database, name)
        assert daemon.stop() == 0


@pytest.mark.parametrize("failpoint", ["snapshot_begun", nightly("slot_made"), "committed:3"])
def test_a_table_that_is_excluded_between_its_marker_and_its_copy_is_listed(
    failpoint: str, postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    """Its marker has no end, so readers pass it, but neither a truncate event nor its rows follow.

    At committed:3 the copy has begun: topics with rows have their truncate events, that of a new table a marker only.
    """
    make = "CREATE TABLE {} (id int PRIMARY KEY, body text)"
    others = ("u", "created", "never")
    never = [{"table": r"public\.never", "include": False}]
    with new_daemon(
        postgres,
        database,
        snapshot={"mode": "when_needed", "overrides": list(never)},
        sink={"commit": {"max_rows": 1}},
    ) as daemon:
        run(
            postgres,
            database,
            make.format("u"),
            make.format("never"),
            "INSERT INTO u VALUES (1, 'a'), (2, 'b')",
        )
        streamed_then_broken(postgres, database, daemon, dropped)
        run(postgres, database, make.format("created"), "DELETE FROM u WHERE id = 1")
        run(postgres, database, *[f"INSERT INTO {name} VALUES (3, 'gap')" for name in others])
        daemon.environment[VARIABLE] = failpoint
        assert daemon.start().wait_exit() == EXIT_STATUS
        del daemon.environment[VARIABLE]
        daemon.config["snapshot"]["overrides"] = [{"table": r"public\.(u|created|never)", "include": False}]
        daemon.start().wait_state("streaming")
        topics = {name: f"{daemon.name}.public.{name}" for name in others}
        assert set(gap_ends(reader.read(topics["u"]))) == {None}
        listed = {one["topic"] for one in daemon.status()["incomplete_topics"]}
        assert listed >= {topics["u"], topics["created"]}
        given_up = {line["table"] for line in daemon.events("table_streamed_only")}
        assert given_up >= {"public.u", "public.created"}
        for name in others:
            start(daemon, f"public.{name}", recopy=True)
            equals_table(reader, topics[name], postgres, database, name)
        eventually(lambda: not daemon.status()["incomplete_topics"], "all tables are complete")
        assert daemon.stop() == 0


def test_a_table_that_is_included_between_its_marker_and_its_copy_gets_a_truncate_event(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    """Also if its topic had no rows: a mirror that has parked it at the marker's end begins it there."""
    overrides = [{"table": r"public\.u", "include": False}]
    with new_daemon(postgres, database, snapshot={"mode": "when_needed", "overrides": overrides}) as daemon:
        run(postgres, database, "CREATE TABLE u (id int PRIMARY KEY, body text)")
        streamed_then_broken(postgres, database, daemon, dropped)
        run(postgres, database, "INSERT INTO u VALUES (1, 'in the gap')")
        daemon.environment[VARIABLE] = "snapshot_begun"
        assert daemon.start().wait_exit() == EXIT_STATUS
        del daemon.environment[VARIABLE]
        daemon.config["snapshot"]["overrides"] = []
        daemon.start().wait_state("streaming")
        marked = equals_table(reader, f"{daemon.name}.public.u", postgres, database, "u")
        assert None not in gap_ends(marked)
        assert "t" in ops(marked)
        assert daemon.status()["incomplete_topics"] == []
        assert daemon.stop() == 0


def test_always_copies_at_each_start_of_the_process_and_not_at_each_session(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    run(postgres, database, *TABLES)
    with new_daemon(postgres, database, snapshot={"mode": "always"}) as daemon:
        topic = f"{daemon.name}.public.t"
        daemon.start().wait_state("streaming")
        assert daemon.events("new_snapshot") == [], "the first start is that of initial"
        postgres.execute(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = %s AND"
            " application_name LIKE 'cdcd%%'",
            database,
        )
        eventually(lambda: len(daemon.events("streaming")) == 2, "a new session streams")
        run(postgres, database, "INSERT INTO t VALUES (3, 'streamed')")
        await_confirmed(postgres, daemon)
        assert ops(equals_table(reader, topic, postgres, database)) == ["r", "c"]
        assert daemon.stop() == 0
        run(postgres, database, "DELETE FROM t WHERE id = 2", "INSERT INTO t VALUES (4, 'stopped')")
        daemon.start()
        assert_anew(postgres, database, daemon, reader, "requested")
        assert [line["reason"] for line in daemon.events("new_snapshot")] == ["requested"]
        assert daemon.stop() == 0


@pytest.mark.nightly  # one that replaces a slot has the crash
@pytest.mark.parametrize("failpoint", ["committed:1", "slot_made", "committed:2"])
def test_always_completes_a_snapshot_that_a_crash_has_interrupted(
    failpoint: str, postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    run(postgres, database, *TABLES)
    with new_daemon(postgres, database, snapshot={"mode": "always"}) as daemon:
        daemon.start().wait_state("streaming")
        assert daemon.stop() == 0
        daemon.environment[VARIABLE] = failpoint
        assert daemon.start().wait_exit() == EXIT_STATUS
        del daemon.environment[VARIABLE]
        daemon.start().wait_state("streaming")
        begun = [line["reason"] for line in daemon.events("new_snapshot")]
        assert begun == ["requested"], "the next start completes that snapshot"
        run(postgres, database, "INSERT INTO t VALUES (5, 'after')")
        events = equals_table(reader, f"{daemon.name}.public.t", postgres, database)
        assert [event.op for event in events].count("g") == 2
        assert daemon.stop() == 0
