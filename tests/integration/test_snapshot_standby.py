"""`snapshot.from`: the tables are copied from a standby, and the primary's are not read. The judge is the primary."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import pytest

from cdcd.errors import CdcdError, SnapshotStale, SourceUnavailable, StandbyUnavailable, StandbyUnusable
from cdcd.failpoints import EXIT_STATUS, VARIABLE
from cdcd.session.snapshot_copy import copied_table
from cdcd.snapshot.standby import (
    StandbySnapshot,
    await_catalog,
    connect_standby,
    export_snapshot,
    of_standby,
)
from cdcd.snapshot.table import SnapshotReader
from cdcd.source.connection import connect_sql
from cdcd.source.identity import ServerIdentity, identify
from cdcd.source.lock_watch import unreported
from cdcd.source.publication_catalog import published_tables
from cdcd.source.settings import SourceSettings
from cdcd.waits import KINDS, WaitCause
from tests.integration.conftest import NewDaemon
from tests.support.daemon import Daemon
from tests.support.gate import gate
from tests.support.nightly import nightly, nightly_except
from tests.support.reader import Reader
from tests.support.resolutions import halts_with
from tests.support.stack import PostgresServers, run, run_script
from tests.support.standby import follow, hosts_dsn, make_standby, promote
from tests.support.standby_snapshot import (
    BIG,
    FIRST,
    READ,
    ROLE,
    Pair,
    changed,
    copied,
    filled,
    finish,
    from_standby,
    gated,
    writing,
)
from tests.support.waiting import eventually

WITHOUT_FEEDBACK = "SELECT 1 FROM pg_replication_slots WHERE slot_type = 'physical' AND xmin IS NULL"


@pytest.fixture(scope="module")
def pairs(pg_server: PostgresServers) -> Iterator[Callable[[int], Pair]]:
    """Return `pairs(major)`: a primary and its standby for the tests of this file."""
    made: dict[int, Pair] = {}

    def pair(major: int) -> Pair:
        if major not in made:
            made[major] = Pair(pg_server.fresh(major), pg_server.fresh(major))
            made[major].start()
        return made[major]

    yield pair
    for one in made.values():
        one.stop()


def started_until(daemon: Daemon, failpoint: str) -> None:
    """Start the daemon and let it crash at the failpoint."""
    daemon.environment[VARIABLE] = failpoint
    assert daemon.start().wait_exit() == EXIT_STATUS
    del daemon.environment[VARIABLE]


@pytest.mark.parametrize("major", nightly_except((16, 18), 18))
def test_the_tables_are_copied_from_the_standby_while_the_primary_is_written_to(
    pairs: Callable[[int], Pair], new_daemon: NewDaemon, reader: Reader, major: int
) -> None:
    """F36, F37, F41: the standby's snapshot and the primary's stream join without a gap or an overlap."""
    pair = pairs(major)
    with (
        filled(pair) as database,
        gate(pair.primary, database, pair.standby) as closed,
        new_daemon(pair.primary, database, snapshot=gated(pair, database)) as daemon,
    ):
        with writing(pair.primary.dsn(database)):
            daemon.start()
            closed.wait()
            page = daemon.wait_state("snapshot")
            eventually(lambda: daemon.status()["snapshot"], "/status shows the copy")
            assert daemon.status()["snapshot"]["read_from"] == "standby"
            changed(pair, database)
            closed.open()
            daemon.wait_state("streaming")
        assert page["slot"] == daemon.slot
        events = finish(pair, database, daemon, reader)
        assert copied(events["big"]) > BIG / 2
        assert len(daemon.events("snapshot_started")) == 1
        assert pair.standby.execute(READ, dbname=database)[0][0] > BIG / 2


@pytest.mark.nightly
@pytest.mark.parametrize("major", [16, 18])
def test_a_role_without_rights_copies_from_an_idle_primary(
    pairs: Callable[[int], Pair], new_daemon: NewDaemon, reader: Reader, major: int
) -> None:
    """F60: the primary writes no record of its running transactions by itself, and the role may not ask for one."""
    pair = pairs(major)
    with filled(pair) as database:
        run(pair.primary, database, f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {ROLE}")
        follow(*pair)
        dsn = hosts_dsn(database, *pair).replace(f"//{pair.primary.superuser}@", f"//{ROLE}@")
        snapshot = {"from": dsn.replace("=read-write", "=standby")}
        with new_daemon(pair.primary, database, snapshot=snapshot) as daemon:
            daemon.config["source"]["dsn"] = pair.primary.dsn(database, ROLE)
            daemon.start()
            events = finish(pair, database, daemon, reader)
            assert copied(events["a_first"]) == FIRST
            assert copied(events["big"]) == BIG


@pytest.mark.nightly
def test_a_standby_that_is_behind_is_waited_for(
    pairs: Callable[[int], Pair], new_daemon: NewDaemon, reader: Reader
) -> None:
    pair = pairs(18)
    with (
        filled(pair) as database,
        new_daemon(pair.primary, database, snapshot=from_standby(pair, database)) as daemon,
    ):
        follow(*pair)
        pair.standby.execute("SELECT pg_wal_replay_pause()")
        try:
            run(pair.primary, database, "DELETE FROM a_first WHERE id = 1")
            daemon.start()
            wait = eventually(lambda: daemon.waits_for("snapshot_standby"), "/status shows the wait")
            assert wait["ends_when"] == KINDS["snapshot_standby"].ends_when
            named = eventually(lambda: daemon.waits_for("snapshot_standby")["blockers"], "the reason")  # type: ignore[index]
            assert named[0]["who"] == "the standby, whose replay is paused"
            assert "not yet to" in named[0]["doing"]
            eventually(lambda: daemon.events("waiting"), "the log has the wait")
            assert daemon.status()["rows_written"] == 0
            assert daemon.stop() == 0, "a stop does not wait for the standby"
            daemon.start()
            eventually(lambda: daemon.waits_for("snapshot_standby"), "the next start waits, too")
            slots = "SELECT 1 FROM pg_replication_slots WHERE slot_name = %s"
            assert pair.primary.execute(slots, daemon.slot) == [], "no WAL is retained before"
        finally:
            pair.standby.execute("SELECT pg_wal_replay_resume()")
        events = finish(pair, database, daemon, reader)
        assert copied(events["a_first"]) == FIRST - 1
        assert daemon.events("wait_ended")


@pytest.mark.nightly
def test_a_recovery_conflict_is_tried_again_without_the_complete_tables(
    pairs: Callable[[int], Pair], new_daemon: NewDaemon, reader: Reader
) -> None:
    """F60: VACUUM on the primary removes rows that the standby's snapshot sees."""
    pair = pairs(18)
    pair.set(hot_standby_feedback="off", max_standby_streaming_delay="0")
    try:
        eventually(lambda: pair.primary.execute(WITHOUT_FEEDBACK), "the primary knows no snapshot")
        with (
            filled(pair) as database,
            gate(pair.primary, database, pair.standby) as closed,
            new_daemon(pair.primary, database, snapshot=gated(pair, database)) as daemon,
        ):
            daemon.config["snapshot"]["workers"] = 1
            daemon.start()
            closed.wait()
            eventually(lambda: daemon.status()["rows_written"] > FIRST, "a_first is durable")
            run_script(
                pair.primary.dsn(database),
                "SET enable_seqscan = off",
                "DELETE FROM a_first WHERE id < 200",
                "VACUUM a_first",
            )
            line = eventually(lambda: daemon.events("retrying"), "the copy was cancelled")[0]
            assert line["code"] == StandbyUnavailable.code
            assert "conflict with recovery" in line["error"]
            assert "hot_standby_feedback" in line["error"]
            closed.open()
            events = finish(pair, database, daemon, reader)
            assert copied(events["a_first"]) == FIRST
            assert not any(event.op == "t" for event in events["a_first"])
            assert [one["tables"] for one in daemon.events("snapshot_started")][-1] == 1
    finally:
        pair.set(hot_standby_feedback="on", max_standby_streaming_delay="30000")


@pytest.mark.nightly
@pytest.mark.parametrize("crash", ["slot_made", "in_snapshot:2", "committed:3", "snapshot_copied"])
def test_a_daemon_that_is_killed_in_the_copy_continues_from_the_standby(
    pairs: Callable[[int], Pair], new_daemon: NewDaemon, reader: Reader, crash: str
) -> None:
    pair = pairs(18)
    sink = {"commit": {"max_rows": 500}}
    with (
        filled(pair) as database,
        new_daemon(pair.primary, database, snapshot=from_standby(pair, database), sink=sink) as daemon,
    ):
        started_until(daemon, crash)
        changed(pair, database)
        daemon.start()
        events = finish(pair, database, daemon, reader)
        is_emptied = any(event.op == "t" for event in events["a_first"])
        assert copied(events["a_first"]) <= FIRST * (2 if is_emptied else 1)
        assert daemon.events("snapshot_continues_while_streaming") == []


@pytest.mark.nightly
def test_a_table_of_which_a_part_is_copied_is_copied_again_and_not_continued_from_the_primary(
    pairs: Callable[[int], Pair], new_daemon: NewDaemon, reader: Reader
) -> None:
    """Its ranges could only be continued while the stream runs, which reads the primary."""
    pair = pairs(18)
    sink = {"commit": {"max_rows": 500}}
    with (
        filled(pair) as database,
        new_daemon(pair.primary, database, snapshot=from_standby(pair, database), sink=sink) as daemon,
    ):
        daemon.entry = ("-m", "tests.support.small_units")
        started_until(daemon, "committed:8")
        changed(pair, database)
        daemon.start()
        events = finish(pair, database, daemon, reader)
        assert daemon.events("snapshot_started")[0]["units"] > 10
        assert daemon.events("snapshot_continues_while_streaming") == []
        assert [event.op for event in events["big"]].count("t") >= 1
        assert copied(events["a_first"]) == FIRST
        assert copied(events["big"]) > BIG


@pytest.mark.nightly
def test_a_snapshot_that_is_repeated_reads_the_standby_again(
    pairs: Callable[[int], Pair], new_daemon: NewDaemon, reader: Reader
) -> None:
    pair = pairs(18)
    with filled(pair) as database:
        snapshot = from_standby(pair, database, mode="always")
        with new_daemon(pair.primary, database, snapshot=snapshot) as daemon:
            daemon.start().wait_state("streaming")
            assert daemon.stop() == 0
            changed(pair, database)
            daemon.start()
            finish(pair, database, daemon, reader)
            assert len(daemon.events("snapshot_started")) == 2


@pytest.mark.parametrize(
    ("major", "words"),
    [
        nightly(15, "PostgreSQL 15 cannot export"),
        (18, "another cluster"),
        nightly(None, "not a standby"),
    ],
)
def test_a_server_that_is_no_standby_is_refused_at_the_start(
    pairs: Callable[[int], Pair],
    new_daemon: NewDaemon,
    pg_server: PostgresServers,
    major: int | None,
    words: str,
) -> None:
    """`major`: of a server of its own; None: the primary."""
    pair = pairs(18)
    with filled(pair) as database:
        dsn = pair.primary.dsn(database) if major is None else pg_server(major).dsn("postgres")
        with new_daemon(pair.primary, database, snapshot={"from": dsn}) as daemon:
            checked = daemon.run("check")
            assert checked.returncode == 1
            assert words in checked.stdout
            reason = halts_with(daemon.start(), StandbyUnusable.code)
            assert words in reason
            slots = "SELECT 1 FROM pg_replication_slots WHERE slot_name = %s"
            assert pair.primary.execute(slots, daemon.slot) == []
            assert daemon.stop() == 0
            daemon.config["snapshot"] = from_standby(pair, database)
            daemon.start().wait_state("streaming")


@pytest.mark.nightly
def test_a_promoted_standby_is_refused_and_its_own_standby_is_not(
    new_daemon: NewDaemon, pg_server: PostgresServers, reader: Reader
) -> None:
    """F58: the timeline of a standby is the one that it has replayed."""
    pair = Pair(pg_server.fresh(16), pg_server.fresh(16))
    third = pg_server.fresh(16)
    try:
        pair.start()
        with filled(pair) as database:
            promote(pair.standby)
            with new_daemon(pair.primary, database, snapshot=from_standby(pair, database)) as daemon:
                assert "it was promoted" in halts_with(daemon.start(), StandbyUnusable.code)
            second = Pair(pair.standby, third)
            make_standby(*second, is_synchronised=False)
            with new_daemon(second.primary, database, snapshot=from_standby(second, database)) as daemon:
                follow(*second)
                changed(second, database)
                finish(second, database, daemon.start(), reader)
    finally:
        pair.stop()
        third.stop("immediate")


def test_check_names_what_the_standby_lacks(pairs: Callable[[int], Pair], new_daemon: NewDaemon) -> None:
    pair = pairs(18)
    with filled(pair) as database:
        dsn = pair.standby.dsn(database, ROLE)
        with new_daemon(pair.primary, database, snapshot={"from": dsn}) as daemon:
            follow(*pair)
            pair.set(hot_standby_feedback="off")
            try:
                feedback = "SHOW hot_standby_feedback"
                eventually(lambda: pair.standby.execute(feedback) == [("off",)], "the setting is in effect")
                checked = daemon.run("check")
            finally:
                pair.set(hot_standby_feedback="on")
            lines = checked.stdout.splitlines()
            assert any(line.startswith("ok ") and "standby of PostgreSQL 18" in line for line in lines)
            assert any(line.startswith("warn") and "hot_standby_feedback is off" in line for line in lines)
            assert any(line.startswith("fail") and "on the standby" in line for line in lines)
            assert f'GRANT SELECT ON "public"."big" TO "{ROLE}"' in checked.stdout


# --- the parts ---


def settings_of(pair: Pair, database: str) -> tuple[SourceSettings, SourceSettings, ServerIdentity]:
    """Return the settings of primary and standby, and the identity of the primary."""
    source = SourceSettings(pair.primary.dsn(database), lambda: None, "parts", ("pub",), "cdcd-test")
    run(pair.primary, database, "CREATE PUBLICATION pub FOR ALL TABLES")
    with contextlib.closing(connect_sql(source)) as connection:
        primary = identify(connection)
    return source, replace(source, dsn=pair.standby.dsn(database), option="snapshot.from"), primary


@contextlib.contextmanager
def exported(pair: Pair, database: str) -> Iterator[tuple[StandbySnapshot, SourceSettings, ServerIdentity]]:
    """Yield a snapshot of the standby, and the settings and the identity of the primary."""
    source, standby, primary = settings_of(pair, database)
    found = export_snapshot(standby, source, primary, primary.wal_lsn, threading.Event(), unreported)
    with contextlib.closing(found.created):
        assert found.created.consistent_point >= primary.wal_lsn
        yield found, source, primary


def test_a_table_whose_rows_vacuum_full_has_removed_is_stale(pairs: Callable[[int], Pair]) -> None:
    """F81: without feedback VACUUM FULL omits rows that the standby's snapshot sees, and no conflict shows it."""
    pair = pairs(18)
    pair.set(hot_standby_feedback="off")
    try:
        eventually(lambda: pair.primary.execute(WITHOUT_FEEDBACK), "the primary knows no snapshot")
        with filled(pair) as database, exported(pair, database) as (found, source, _):
            with contextlib.closing(connect_sql(source)) as connection:
                (table, *_) = map(copied_table, published_tables(connection, source.publications))
            assert table.name == "a_first"
            run(pair.primary, database, "DELETE FROM a_first WHERE id < 100", "VACUUM FULL a_first")
            follow(*pair)
            name = found.created.snapshot_name
            assert name is not None
            connect = partial(connect_standby, found.settings)
            reader = SnapshotReader(connect, of_standby, name, is_standby=True)
            with contextlib.closing(reader):
                (unit,) = reader.units([table]).units
                with pytest.raises(SnapshotStale):
                    list(reader.copy(unit, found.created.consistent_point))
    finally:
        pair.set(hot_standby_feedback="on")


@pytest.mark.nightly
def test_the_copy_waits_until_the_standby_knows_a_new_column(pairs: Callable[[int], Pair]) -> None:
    pair = pairs(16)
    reports: list[WaitCause | None] = []
    with filled(pair) as database, exported(pair, database) as (found, source, primary):
        pair.standby.execute("SELECT pg_wal_replay_pause()")
        waiting = threading.Thread(
            target=await_catalog,
            args=(found.settings, source, primary, threading.Event(), reports.append),
        )
        try:
            run(pair.primary, database, "ALTER TABLE a_first ADD COLUMN extra int DEFAULT 7")
            waiting.start()
            eventually(lambda: len(reports) > 2, "the standby is behind")
            assert waiting.is_alive()
        finally:
            pair.standby.execute("SELECT pg_wal_replay_resume()")
        waiting.join(60)
        assert not waiting.is_alive()
        assert pair.standby.execute("SELECT DISTINCT extra FROM a_first", dbname=database) == [(7,)]


def test_a_session_that_an_earlier_attempt_has_left_on_the_standby_is_ended(
    pairs: Callable[[int], Pair],
) -> None:
    """F24: a server does not notice for hours that the client of an idle session has gone."""
    pair = pairs(18)
    with filled(pair) as database, exported(pair, database) as (left_behind, source, primary):
        standby = replace(left_behind.settings, slot=source.slot, instance=None)
        arguments = standby, source, primary, primary.wal_lsn, threading.Event(), unreported
        with pytest.raises(StandbyUnavailable, match="was ended"):
            export_snapshot(*arguments)
        temporary = "SELECT 1 FROM pg_replication_slots WHERE temporary"
        eventually(lambda: not pair.standby.execute(temporary), "its slot is gone")
        export_snapshot(*arguments).created.close()


def test_an_open_transaction_of_the_primary_is_named_and_a_stop_does_not_wait_for_it(
    pairs: Callable[[int], Pair],
) -> None:
    """F38: the standby's slot waits for it, as one of the primary does."""
    pair = pairs(18)
    reports: list[WaitCause | None] = []
    with filled(pair) as database:
        source, standby, primary = settings_of(pair, database)
        given_up, failures = threading.Event(), list[CdcdError]()

        def export() -> None:
            try:
                found = export_snapshot(standby, source, primary, primary.wal_lsn, given_up, reports.append)
                found.created.close()
            except CdcdError as error:
                failures.append(error)

        def is_named() -> bool:
            return any(
                one is not None and f"pid {pid}" in map(str, (b.who for b in one.blockers)) for one in reports
            )

        with pair.primary.session(dbname=database) as execute:
            execute("BEGIN")
            execute("DELETE FROM a_first WHERE id = 1")
            ((pid,),) = execute("SELECT pg_backend_pid()")
            working = threading.Thread(target=export)
            working.start()
            eventually(is_named, "the transaction is named")
            given_up.set()
            working.join(60)
            assert not working.is_alive()
            assert len(failures) == 1
            execute("COMMIT")
        temporary = "SELECT 1 FROM pg_replication_slots WHERE temporary"
        eventually(lambda: not pair.standby.execute(temporary), "no slot is left on the standby")


def test_a_connection_to_another_server_of_the_same_name_is_not_used(pairs: Callable[[int], Pair]) -> None:
    """A snapshot's name may exist on each standby behind a name."""
    pair = pairs(16)
    with filled(pair) as database, exported(pair, database) as (found, source, _):
        connect_sql(found.settings).close()
        with pytest.raises(SourceUnavailable, match="leads to several servers"):
            connect_sql(replace(source, instance=found.settings.instance))
