"""Prepared transactions arrive once, at their COMMIT PREPARED, in its order, and delay only the confirmation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cdcd.demo.stack.postgres import PostgresServer
from cdcd.lsn import end_of_commits
from tests.integration.conftest import NewDaemon
from tests.support.daemon import Daemon
from tests.support.hints import apply, commands_in, hint_of, sql_in
from tests.support.nightly import nightly
from tests.support.reader import BEGINNING, Event, Reader, assert_each_once, fold
from tests.support.resolutions import audited, command, halts_with
from tests.support.stack import (
    PostgresServers,
    confirmed_position,
    drop_database,
    new_database_name,
    prepare,
    run_script,
)
from tests.support.waiting import eventually
from tests.support.witness import Witness, assert_same_changes, changes_of

TABLE = "CREATE TABLE t (id int PRIMARY KEY, v text)"
WAYS = [
    nightly(15, True, "off"),
    nightly(17, True, "on"),
    (18, True, "parallel"),
    nightly(18, False, "parallel"),
    *(
        pytest.param(*way, marks=pytest.mark.long)
        for way in [
            (15, True, "on"),
            (15, False, "off"),
            (16, True, "parallel"),
            (17, False, "on"),
            (18, True, "off"),
        ]
    ),
]


@pytest.fixture
def place(pg_server: PostgresServers, request: pytest.FixtureRequest) -> Iterator[tuple[PostgresServer, str]]:
    """Yield a server of the wanted major and a new database with the table; large transactions are streamed early."""
    server = pg_server(getattr(request, "param", 18))
    name = new_database_name()
    server.create_database(name)
    server.execute(f"ALTER DATABASE {name} SET logical_decoding_work_mem = '64kB'")
    server.execute(TABLE, dbname=name)
    yield server, name
    drop_database(server, name)


def insert(server: PostgresServer, dbname: str, number: int, value: str = "plain") -> None:
    """Insert a row in a transaction of its own."""
    server.execute("INSERT INTO t VALUES (%s, %s)", number, value, dbname=dbname)


def decide(server: PostgresServer, dbname: str, gid: str, *, commit: bool = True) -> None:
    """Run COMMIT PREPARED or ROLLBACK PREPARED."""
    server.execute(f"{'COMMIT' if commit else 'ROLLBACK'} PREPARED %s", gid, dbname=dbname)


def wal_lsn(server: PostgresServer, dbname: str) -> int:
    """Return the end of the last WAL record."""
    position = server.execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn", dbname=dbname)
    return end_of_commits(int(position[0][0]))


def ids(events: list[Event]) -> list[int]:
    """Return the ids of the rows that have arrived, in the order of their transactions."""
    ordered = sorted(
        (event for event in events if event.sequence), key=lambda event: event.sequence or BEGINNING
    )
    return [event.value["after"]["id"] for event in ordered]


def wait_held(daemon: Daemon, count: int) -> dict[str, Any]:
    """Wait until the daemon holds this many prepared transactions."""
    return eventually(
        lambda: page if (page := daemon.status().get("prepared") or {}).get("transactions") == count else {},
        f"{count} prepared transactions are held",
    )


def assert_same_rows(server: PostgresServer, dbname: str, events: list[Event]) -> None:
    """Check that each change is there once, and that together they give the table."""
    assert_each_once(events)
    rows = fold(events, lambda row: row["id"])
    expected = server.execute("SELECT id, v FROM t", dbname=dbname)
    assert sorted((row["id"], row["v"]) for row in rows.values()) == sorted(expected)


@pytest.mark.parametrize(("place", "two_phase", "streaming"), WAYS, indirect=["place"])
def test_what_is_prepared_arrives_once_when_it_is_committed(
    place: tuple[PostgresServer, str], two_phase: bool, streaming: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    """F33, F34: two committed in the opposite order, one rolled back, a large one with a savepoint rolled back."""
    server, dbname = place
    dsn = server.dsn(dbname)
    large = "INSERT INTO t SELECT g, repeat('l', 100) FROM generate_series({}, {}) g"
    protocol = {"two_phase": two_phase, "streaming": streaming}
    with new_daemon(server, dbname, source={"protocol": protocol}) as daemon:
        topic = f"{daemon.name}.public.t"
        daemon.start().wait_state("streaming")
        witness = Witness(dsn)
        prepare(dsn, "first", "INSERT INTO t VALUES (1, 'first')")
        prepare(dsn, "dropped", "INSERT INTO t VALUES (2, 'dropped')")
        prepare(
            dsn,
            "large",
            large.format(1000, 2999),
            "SAVEPOINT s",
            large.format(3000, 4999),
            "ROLLBACK TO SAVEPOINT s",
            large.format(5000, 5999),
        )
        insert(server, dbname, 3)
        if two_phase:
            wait_held(daemon, 3)
        events = reader.wait([topic], lambda events: bool(events))
        assert ids(events) == [3], "rows are visible before they are committed"
        decide(server, dbname, "dropped", commit=False)
        large_lsn = wal_lsn(server, dbname)
        decide(server, dbname, "large")
        first_lsn = wal_lsn(server, dbname)
        decide(server, dbname, "first")
        prepare(dsn, "first", "UPDATE t SET v = 'again' WHERE id = 1")
        decide(server, dbname, "first")
        events = reader.wait([topic], lambda events: len(events) >= 3003)
        eventually(
            lambda: (confirmed_position(server, daemon.slot) or 0) > first_lsn,
            "the decided transactions are confirmed",
            60,
        )
        assert daemon.stop() == 0
    assert_same_rows(server, dbname, events)
    assert_same_changes(witness.read(), changes_of(events, witness.from_lsn, f"{daemon.name}.public", ""))
    lsns = {event.value["after"]["v"][:5]: event.source["commit_lsn"] for event in events}
    assert large_lsn <= lsns["lllll"] < first_lsn <= lsns["first"] < lsns["again"]


@pytest.mark.parametrize("ends", ["ks", nightly("ksks")])
def test_others_flow_and_are_not_repeated_while_one_stays_prepared(
    ends: str, place: tuple[PostgresServer, str], new_daemon: NewDaemon, reader: Reader
) -> None:
    """F4, F33: over restarts of each kind; the confirmed position stays below the PREPARE, and advances at the
    decision. `ends`: k for a kill, s for a stop.
    """
    server, dbname = place
    others = [1, *range(10, 10 + len(ends)), 20]
    with new_daemon(server, dbname, source={"protocol": {"two_phase": True}}) as daemon:
        topic = f"{daemon.name}.public.t"
        daemon.start().wait_state("streaming")
        insert(server, dbname, 1)
        before_lsn = wal_lsn(server, dbname)
        prepare(server.dsn(dbname), "held", "INSERT INTO t VALUES (1000, 'held')")
        for number, end in enumerate(ends):
            insert(server, dbname, 10 + number)
            reader.wait([topic], lambda events, number=number: len(events) >= 2 + number)
            page = wait_held(daemon, 1)
            assert page["oldest_age_s"] >= 0
            assert (confirmed_position(server, daemon.slot) or 0) <= before_lsn + 8192
            assert _metric(daemon, "cdcd_prepared_transactions") == 1
            daemon.kill() if end == "k" else daemon.stop()
            daemon.start().wait_state("streaming")
        insert(server, dbname, 20)
        events = reader.wait([topic], lambda events: len(events) >= len(others))
        assert ids(events) == others
        prepared_lsn = int(server.execute("SELECT %s::pg_lsn - '0/0'", page["oldest_lsn"])[0][0])
        assert before_lsn <= prepared_lsn < wal_lsn(server, dbname)
        assert (confirmed_position(server, daemon.slot) or 0) <= prepared_lsn
        assert _metric(daemon, "cdcd_replication_lag_seconds") == 0, "everything committed is durable"
        decide(server, dbname, "held")
        decided_lsn = wal_lsn(server, dbname)
        events = reader.wait([topic], lambda events: len(events) > len(others))
        assert ids(events)[-1] == 1000
        wait_held(daemon, 0)
        eventually(
            lambda: (confirmed_position(server, daemon.slot) or 0) >= decided_lsn, "the slot advances", 60
        )
        assert daemon.stop() == 0
        daemon.start().wait_state("streaming")
        insert(server, dbname, 21)
        events = reader.wait([topic], lambda events: len(events) > len(others) + 1)
    assert_same_rows(server, dbname, events)


def _metric(daemon: Daemon, name: str) -> float:
    lines = [line.split() for line in daemon.get("/metrics")[1].splitlines()]
    return next(float(line[1]) for line in lines if line and line[0] == name)


@pytest.mark.nightly
@pytest.mark.parametrize("place", [nightly(15), 18], indirect=True)
def test_a_slot_is_switched_on_with_one_undecided_and_not_off_again(
    place: tuple[PostgresServer, str], new_daemon: NewDaemon, reader: Reader
) -> None:
    """F34, F35: a transaction prepared before arrives completely with its COMMIT PREPARED, once."""
    server, dbname = place
    dsn = server.dsn(dbname)
    with new_daemon(server, dbname) as daemon:
        topic = f"{daemon.name}.public.t"
        daemon.start().wait_state("streaming")
        prepare(dsn, "before", "INSERT INTO t VALUES (1, 'before')")
        insert(server, dbname, 2)
        reader.wait([topic], lambda events: len(events) >= 1)
        assert daemon.stop() == 0
        daemon.config["source"]["protocol"] = {"two_phase": True}
        daemon.start().wait_state("streaming")
        prepare(dsn, "after", "INSERT INTO t VALUES (3, 'after')")
        insert(server, dbname, 4)
        wait_held(daemon, 1)
        daemon.kill()
        daemon.start().wait_state("streaming")
        decide(server, dbname, "before")
        decide(server, dbname, "after")
        events = reader.wait([topic], lambda events: len(events) >= 4)
        assert ids(events) == [2, 4, 1, 3]
        assert daemon.stop() == 0
        insert(server, dbname, 5)
        del daemon.config["source"]["protocol"]
        page = daemon.start().wait_state("halted")
        assert "CDCD-SLOT-UNUSABLE" in page["reason"]
        assert "source.protocol.two_phase: true" in page["reason"]
        assert daemon.stop() == 0
        daemon.config["source"]["protocol"] = {"two_phase": True}
        daemon.start()
        events = reader.wait([topic], lambda events: len(events) >= 5)
    assert_same_rows(server, dbname, events)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "sessions", [nightly("one"), "stopped", nightly("killed twice"), nightly("decided while it is stopped")]
)
def test_a_commit_of_rows_that_this_slot_has_lost_halts(
    place: tuple[PostgresServer, str], sessions: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    """F33: another client confirmed the PREPARE; the COMMIT PREPARED arrives without rows, in any session."""
    server, dbname = place
    daemon_ = new_daemon(server, dbname, source={"protocol": {"two_phase": True}}, snapshot={"mode": "never"})
    with daemon_ as daemon:
        _new_slot_of_others(server, dbname, daemon.slot)
        for number, gid in ((1, "lost"), (2, "lost and rolled back")):
            prepare(server.dsn(dbname), gid, f"INSERT INTO t VALUES ({number}, 'lost')")
        server.execute(
            "SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", daemon.slot, dbname=dbname
        )
        daemon.start()
        _wait_may_be_lost(daemon, 2)
        topic = f"{daemon.name}.public.t"
        decide(server, dbname, "lost and rolled back", commit=False)
        insert(server, dbname, 3)
        reader.wait([topic], lambda events: ids(events) == [3])
        _wait_may_be_lost(daemon, 1)
        for end in {"stopped": [daemon.stop], "killed twice": [daemon.kill] * 2}.get(sessions, []):
            end()
            daemon.start()
            _wait_may_be_lost(daemon, 1)
        insert(server, dbname, 4)
        reader.wait([topic], lambda events: ids(events) == [3, 4])
        is_running = sessions != "decided while it is stopped"
        if not is_running:
            assert daemon.stop() == 0
        decided_from_lsn = wal_lsn(server, dbname)
        decide(server, dbname, "lost")
        insert(server, dbname, 5)
        for _ in range(2):  # also after another restart
            if not is_running:
                daemon.start()
            page = daemon.wait_state("halted")
            assert "CDCD-PREPARED-MISSING" in page["reason"]
            assert (confirmed_position(server, daemon.slot) or 0) <= decided_from_lsn
            assert daemon.get("/readyz")[0] == 503
            daemon.kill()
            is_running = False
        (way,) = commands_in(hint_of(page["reason"]))
        daemon.config["snapshot"] = {"mode": "initial"}
        audited(command(daemon, *way))
        daemon.start().wait_state("streaming")
        copied = {(1,), (3,), (4,), (5,)}
        assert set(server.execute("SELECT id FROM t", dbname=dbname)) == copied
        eventually(
            lambda: {(one.key["id"],) for one in reader.read(topic) if one.op == "r"} == copied,
            "the lost rows are copied",
        )


@pytest.mark.parametrize("place", [nightly(15), 18], indirect=True)
def test_a_slot_created_by_others_without_two_phase_has_lost_nothing(
    place: tuple[PostgresServer, str], new_daemon: NewDaemon, reader: Reader
) -> None:
    """F34: whatever position was confirmed, the server sends the transaction completely at its commit."""
    server, dbname = place
    dsn = server.dsn(dbname)
    insert(server, dbname, 1)
    daemon_ = new_daemon(server, dbname, source={"protocol": {"two_phase": True}}, snapshot={"mode": "never"})
    with daemon_ as daemon:
        _new_slot_of_others(server, dbname, daemon.slot, two_phase=False)
        prepare(dsn, "locked", "SELECT * FROM t WHERE id = 1 FOR UPDATE")
        prepare(dsn, "whole", "INSERT INTO t VALUES (2, 'whole')")
        server.execute(
            "SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", daemon.slot, dbname=dbname
        )
        daemon.start().wait_state("streaming")
        for gid in ("locked", "whole"):
            decide(server, dbname, gid)
        insert(server, dbname, 3)
        reader.wait([f"{daemon.name}.public.t"], lambda events: ids(events) == [2, 3])
        assert daemon.stop() == 0
        assert daemon.events("halted") == []


def _new_slot_of_others(server: PostgresServer, dbname: str, slot: str, *, two_phase: bool = True) -> None:
    create = "SELECT pg_create_logical_replication_slot(%s, 'pgoutput', false, %s)"
    server.execute(create, slot, two_phase, dbname=dbname)


def _wait_may_be_lost(daemon: Daemon, count: int) -> None:
    eventually(
        lambda: (daemon.status().get("prepared") or {}).get("may_be_lost") == count,
        f"{count} may be lost",
        60,
    )


@pytest.mark.nightly
@pytest.mark.parametrize("place", [16, 18], indirect=True)
def test_a_prepared_transaction_with_only_row_locks_is_no_loss(
    place: tuple[PostgresServer, str], new_daemon: NewDaemon, reader: Reader
) -> None:
    """The server sends only its COMMIT PREPARED, and from 18 on its Prepare without a Begin Prepare."""
    server, dbname = place
    for number in (1, 2):
        insert(server, dbname, number)
    with new_daemon(server, dbname, source={"protocol": {"two_phase": True}}) as daemon:
        daemon.start().wait_state("streaming")
        for number, gid in ((1, "while it streams"), (2, "over a restart")):
            prepare(server.dsn(dbname), gid, f"SELECT * FROM t WHERE id = {number} FOR UPDATE")
        decide(server, dbname, "while it streams")
        insert(server, dbname, 3)
        topic = f"{daemon.name}.public.t"
        reader.wait([topic], lambda events: ids(events) == [1, 2, 3])
        daemon.kill()
        daemon.start().wait_state("streaming")
        decide(server, dbname, "over a restart")
        insert(server, dbname, 4)
        reader.wait([topic], lambda events: ids(events) == [1, 2, 3, 4])
        assert daemon.stop() == 0
        assert daemon.events("halted") == []


@pytest.mark.nightly  # test_source_options has what a server cannot do
def test_a_server_without_two_phase_is_refused_before_a_slot_is_created(
    pg_server: PostgresServers, new_daemon: NewDaemon
) -> None:
    server = pg_server(14)
    name = new_database_name()
    server.create_database(name)
    try:
        with new_daemon(server, name, source={"protocol": {"two_phase": True}}) as daemon:
            page = daemon.start().wait_state("halted")
            assert "PostgreSQL 15" in page["reason"]
            assert confirmed_position(server, daemon.slot) is None, "a slot was created"
    finally:
        drop_database(server, name)


@pytest.mark.parametrize(
    "place", [nightly(15), pytest.param(16, marks=pytest.mark.long), nightly(17), 18], indirect=True
)
def test_what_was_rolled_back_before_it_is_decoded_halts_and_the_hint_goes_past_it(
    place: tuple[PostgresServer, str], new_daemon: NewDaemon, reader: Reader
) -> None:
    """F84: the server cannot map a file that a savepoint created. A still prepared transaction arrives once all the
    same.
    """
    server, dbname = place
    dsn = server.dsn(dbname)
    with new_daemon(server, dbname, source={"protocol": {"two_phase": True}}) as daemon:
        topic = f"{daemon.name}.public.t"
        daemon.start().wait_state("streaming")
        server.execute("CREATE TABLE other (id int)", dbname=dbname)
        prepare(dsn, "waits", "INSERT INTO t VALUES (1, 'waits')")
        insert(server, dbname, 2)
        reader.wait([topic], lambda events: len(events) >= 1)
        wait_held(daemon, 1)
        daemon.stop()
        prepare(dsn, "gone", "SAVEPOINT s", "TRUNCATE other", "INSERT INTO other VALUES (1)")
        decide(server, dbname, "gone", commit=False)
        insert(server, dbname, 3)
        daemon.start()
        reason = halts_with(daemon, "CDCD-SOURCE-TWO-PHASE")
        daemon.stop()
        run_script(dsn, *sql_in(hint_of(reason)))
        apply(daemon.config, hint_of(reason), "source.protocol.two_phase")
        daemon.start().wait_state("streaming")
        insert(server, dbname, 4)
        decide(server, dbname, "waits")
        events = reader.wait([topic], lambda events: len(events) >= 4)
    assert ids(events) == [2, 3, 4, 1]
    assert_same_rows(server, dbname, events)
    slots = server.execute(
        "SELECT slot_name FROM pg_replication_slots WHERE database = %s", dbname, dbname=dbname
    )
    assert slots == [(daemon.slot,)]
