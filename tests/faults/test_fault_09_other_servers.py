"""Fault 9: servers promoted without the slot or without all written changes, restored, replaced (F56 to F62)."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import replace
from itertools import groupby

import pytest

from cdcd.demo.stack.postgres import PostgresServer
from cdcd.errors import SourceStandby, SourceUnavailable
from cdcd.session.slot_creation import create_slot_for_snapshot
from cdcd.source.connection import connect_sql
from cdcd.source.identity import identify
from cdcd.source.slot import create_slot
from tests.faults.link import NewLinked
from tests.faults.test_fault_08_failover import FAILOVER, TABLE, pair
from tests.faults.test_fault_34_idle import samples
from tests.integration.conftest import NewDaemon
from tests.support.daemon import Daemon, await_confirmed
from tests.support.hints import commands_in, hint_of
from tests.support.nightly import nightly
from tests.support.proxy import Proxy, Way
from tests.support.quick import QUICK
from tests.support.reader import BEGINNING, Reader, assert_each_once
from tests.support.resolutions import (
    ACCEPT_GAP,
    RESNAPSHOT,
    audited,
    command,
    equals_table,
    folded,
    halts_with,
)
from tests.support.source import source_database
from tests.support.stack import PostgresServers, drop_database, run_script
from tests.support.standby import await_slot, copy_of, hosts_dsn, make_standby, promote
from tests.support.waiting import eventually


def followed(new_daemon: NewDaemon, primary: PostgresServer, standby: PostgresServer) -> Daemon:
    """Return a daemon that streams from the primary; the standby has a synchronized slot."""
    daemon = new_daemon(primary, "postgres", source=FAILOVER)
    daemon.start().wait_state("streaming")
    make_standby(primary, standby)
    await_slot(standby, daemon.slot)
    return daemon


@pytest.mark.nightly  # tests/hints has the missing slot
def test_a_server_promoted_without_the_slot_halts(
    pg_server: PostgresServers, new_daemon: NewDaemon, reader: Reader
) -> None:
    """F56: the changes that the slot would have sent are lost."""
    with pair(pg_server, 18) as (primary, standby):
        daemon = new_daemon(primary, "postgres")
        daemon.start().wait_state("streaming")
        make_standby(primary, standby, is_synchronised=False)
        await_confirmed(primary, daemon)
        assert daemon.stop() == 0
        follows_everything(primary, standby)
        primary.kill()
        promote(standby)
        daemon.config["source"]["dsn"] = hosts_dsn("postgres", primary, standby)
        daemon.start()
        assert "from_lsn=" in halts_with(daemon, "CDCD-SLOT-MISSING")
        run_script(standby.dsn(), "INSERT INTO t VALUES (2, 'after')")
        assert audited(command(daemon, *RESNAPSHOT))["reason"] == "CDCD-SLOT-MISSING"
        daemon.wait_state("streaming")
        equals_table(reader, f"{daemon.name}.public.t", standby, "postgres")


@pytest.mark.nightly
def test_a_server_promoted_before_its_copy_of_the_slot_is_usable_halts(
    pg_server: PostgresServers, new_daemon: NewDaemon, reader: Reader
) -> None:
    """F57: the server drops such a copy itself, so the slot is missing."""
    with pair(pg_server, 18) as (primary, standby):
        daemon = new_daemon(primary, "postgres", source=FAILOVER)
        daemon.start().wait_state("streaming")
        await_confirmed(primary, daemon)
        assert daemon.stop() == 0
        make_standby(primary, standby)
        copies = f"SELECT temporary FROM pg_replication_slots WHERE slot_name = '{daemon.slot}' AND synced"
        eventually(
            lambda: standby.execute(copies) == [(True,)], "the synchronized slot is temporary, not yet usable"
        )
        primary.kill()
        promote(standby)
        daemon.config["source"]["dsn"] = hosts_dsn("postgres", primary, standby)
        daemon.start()
        reason = halts_with(daemon, "CDCD-SLOT-MISSING")
        assert standby.execute(copies) == []
        assert RESNAPSHOT in commands_in(hint_of(reason))
        audited(command(daemon, *RESNAPSHOT))
        daemon.wait_state("streaming")
        equals_table(reader, f"{daemon.name}.public.t", standby, "postgres")


@pytest.mark.nightly
def test_a_standby_that_lacks_what_was_written_halts_and_goes_on_by_its_way(
    pg_server: PostgresServers, new_daemon: NewDaemon, reader: Reader
) -> None:
    """F58: without synchronized_standby_slots the topics may have changes that the new primary never had."""
    with pair(pg_server, 18) as (primary, standby):
        daemon = followed(new_daemon, primary, standby)
        run_script(
            primary.dsn(),
            "ALTER SYSTEM RESET synchronized_standby_slots",
            "SELECT pg_reload_conf()",
            "INSERT INTO t VALUES (2, 'in both')",
        )
        await_confirmed(primary, daemon)
        follows_everything(primary, standby)
        cut_off(standby)
        run_script(primary.dsn(), "INSERT INTO t VALUES (3, 'never happened')")
        await_confirmed(primary, daemon)
        primary.kill()
        promote(standby)
        daemon.config["source"]["dsn"] = standby.dsn()
        daemon.kill()
        daemon.start()
        reason = halts_with(daemon, "CDCD-SOURCE-TIMELINE")
        assert "switch_lsn=" in reason
        assert {ACCEPT_GAP, RESNAPSHOT} == set(commands_in(hint_of(reason))), "both commands are run below"
        topic = f"{daemon.name}.public.t"
        accept_topic = ("resume", "--accept-topic", topic, "--dry-run")
        assert "CDCD-SOURCE-TIMELINE" in command(daemon, *accept_topic).stderr
        assert command(daemon, *accept_topic, "--accept-gap").returncode == 0
        line = audited(command(daemon, *ACCEPT_GAP))
        daemon.wait_state("streaming")
        run_script(standby.dsn(), "INSERT INTO t VALUES (4, 'after')")
        events = reader.wait([topic], lambda events: any(one.key == {"id": 4} for one in events))
        happened = sorted(one.key["id"] for one in events if one.op == "c" and one.key != {"id": 3})
        assert happened == [2, 4], "each row is there once"
        special = next(one for one in events if one.op == "g").source["special"]
        assert special["gap.from_lsn"] == line["from_lsn"]
        timelines = {one.key["id"]: one.source["timeline"] for one in events if one.op == "c"}
        assert timelines == {2: 1, 3: 1, 4: 2}, "each change has the timeline of its commit"
        assert_each_once(events)
        ordered = sorted(events, key=lambda one: one.sequence or BEGINNING)
        assert [op for op, _ in groupby(ordered, lambda one: one.op)] == ["r", "c", "g", "c"]
        run_script(standby.dsn(), "SELECT pg_switch_wal()", "INSERT INTO t VALUES (5, 'later')")
        assert daemon.stop() == 0
        audited(command(daemon, *RESNAPSHOT))
        daemon.start().wait_state("streaming")
        assert 3 not in folded(equals_table(reader, topic, standby, "postgres")), (
            "a new snapshot removes the row"
        )


def test_what_only_an_idle_stream_has_confirmed_is_not_confirmed_on_the_promoted_server(
    pg_server: PostgresServers, new_daemon: NewDaemon, reader: Reader
) -> None:
    """F3, F58: the stored position is behind the timeline switch, where other changes have the same LSNs."""
    with pair(pg_server, 18) as (primary, standby):
        daemon = followed(new_daemon, primary, standby)
        run_script(primary.dsn(), "ALTER SYSTEM RESET synchronized_standby_slots", "SELECT pg_reload_conf()")
        await_confirmed(primary, daemon)
        follows_everything(primary, standby)
        cut_off(standby)
        run_script(primary.dsn(), "SELECT pg_switch_wal()", "SELECT pg_create_restore_point('idle')")
        await_confirmed(primary, daemon)
        daemon.kill()
        primary.kill()
        promote(standby)
        daemon.config["source"]["dsn"] = standby.dsn()
        daemon.start().wait_state("streaming")
        run_script(standby.dsn(), "INSERT INTO t VALUES (2, 'after')")
        topic = f"{daemon.name}.public.t"
        reader.wait([topic], lambda events: any(one.key == {"id": 2} for one in events))
        ahead = "SELECT 1 FROM pg_replication_slots WHERE confirmed_flush_lsn > pg_current_wal_lsn()"
        assert standby.execute(ahead) == []
        daemon.kill()
        daemon.start().wait_state("streaming")
        equals_table(reader, topic, standby, "postgres")


@pytest.mark.parametrize("way", [ACCEPT_GAP, nightly(RESNAPSHOT), nightly(())], ids=" ".join)
def test_an_idle_position_beyond_the_promotion_of_a_server_without_the_slot_does_not_count_there(
    pg_server: PostgresServers, new_daemon: NewDaemon, reader: Reader, way: tuple[str, ...]
) -> None:
    """F58: it is on the former timeline. Without a command `when_needed` takes the new snapshot."""
    with pair(pg_server, 18) as (primary, standby):
        daemon = new_daemon(primary, "postgres")
        daemon.start().wait_state("streaming")
        make_standby(primary, standby, is_synchronised=False)
        await_confirmed(primary, daemon)
        follows_everything(primary, standby)
        cut_off(standby)
        idle = "SELECT pg_create_restore_point('idle')"
        run_script(primary.dsn(), idle, "SELECT pg_switch_wal()", idle)
        await_confirmed(primary, daemon)
        assert daemon.stop() == 0
        former_lsn = _wal_lsn(primary)
        primary.kill()
        promote(standby)
        assert standby.execute("SELECT pg_current_wal_lsn() < %s::pg_lsn", former_lsn) == [(True,)]
        daemon.config["source"]["dsn"] = standby.dsn()
        if not way:
            daemon.config["snapshot"] = {"mode": "when_needed"}
        daemon.start()
        if way:
            halts_with(daemon, "CDCD-SLOT-MISSING")
            assert audited(command(daemon, *way))["reason"] == "CDCD-SLOT-MISSING"
        daemon.wait_state("streaming")
        run_script(standby.dsn(), "INSERT INTO t VALUES (2, 'after')")
        events = equals_table(reader, f"{daemon.name}.public.t", standby, "postgres")
        ordered = sorted(events, key=lambda one: one.sequence or BEGINNING)
        expected = ["r", "g", "c"] if way == ACCEPT_GAP else ["r", "g", "t", "r", "c"]
        assert [op for op, _ in groupby(ordered, lambda one: one.op)] == expected
        assert {one.source["timeline"] for one in events if one.op == "g"} == {2}
        assert daemon.stop() == 0
        daemon.start().wait_state("streaming")


def test_a_server_restored_to_an_earlier_state_halts(
    pg_server: PostgresServers, new_daemon: NewDaemon, reader: Reader
) -> None:
    """F62: an earlier copy of the server halts the daemon; F58: so does an earlier copy that was promoted."""
    with pair(pg_server, 18) as (primary, earlier):
        daemon = new_daemon(primary, "postgres")
        copy_of(primary, earlier)
        daemon.start().wait_state("streaming")
        run_script(
            primary.dsn(), "INSERT INTO t SELECT n, repeat('x', 100) FROM generate_series(10, 20000) n"
        )
        await_confirmed(primary, daemon)
        assert daemon.stop() == 0
        earlier.start()
        daemon.config["source"]["dsn"] = earlier.dsn()
        daemon.start()
        hint = hint_of(halts_with(daemon, "CDCD-SOURCE-BEHIND"))
        for way in (ACCEPT_GAP, RESNAPSHOT):
            assert "CDCD-RESUME-REFUSED" in command(daemon, *way).stderr
        assert "point source.dsn at the server that was read before" in hint
        assert daemon.stop() == 0
        daemon.config["source"]["dsn"] = primary.dsn()
        daemon.start().wait_state("streaming")
        assert daemon.stop() == 0
        assert "set another `name`, which gives new topics, a new slot and a new snapshot" in hint
        another = new_daemon(earlier, "postgres")
        another.start().wait_state("streaming")
        equals_table(reader, f"{another.name}.public.t", earlier, "postgres")
        assert another.stop() == 0
        daemon.config["source"]["dsn"] = earlier.dsn()
        daemon.start()
        halts_with(daemon, "CDCD-SOURCE-BEHIND")
        earlier.stop()
        (earlier.data_folder / "standby.signal").touch()
        earlier.start()
        promote(earlier)
        assert "CDCD-SOURCE-BEHIND" in command(daemon, "resume").stdout, "the reason of the halt"
        eventually(
            lambda: daemon.status()["reason"].startswith("CDCD-SOURCE-TIMELINE"),
            "the daemon halts for the other timeline",
        )


@pytest.mark.long  # three servers; tests/unit/recovery has the case, too
def test_a_server_that_was_promoted_apart_to_the_same_timeline_halts(
    pg_server: PostgresServers, new_daemon: NewDaemon, reader: Reader
) -> None:
    """F58: two copies were promoted independently: both have a timeline 2."""
    with pair(pg_server, 18) as (primary, first), contextlib.ExitStack() as stopping:
        second = pg_server.fresh(18)
        stopping.callback(second.stop, "immediate")
        for copy in (first, second):
            copy_of(primary, copy)
            (copy.data_folder / "standby.signal").touch()
            run_script(primary.dsn(), "SELECT pg_switch_wal()")
            copy.start()
            promote(copy)
        daemon = new_daemon(first, "postgres")
        second.execute(f"CREATE PUBLICATION {daemon.slot} FOR ALL TABLES")
        second.execute(f"SELECT pg_create_logical_replication_slot('{daemon.slot}', 'pgoutput')")
        while first.execute("SELECT pg_current_wal_lsn() <= %s::pg_lsn", _wal_lsn(second)) == [(True,)]:
            run_script(first.dsn(), "SELECT pg_switch_wal()", "INSERT INTO t SELECT max(id) + 1 FROM t")
        daemon.start().wait_state("streaming")
        await_confirmed(first, daemon)
        assert daemon.stop() == 0
        while second.execute("SELECT pg_current_wal_lsn() <= %s::pg_lsn", _wal_lsn(first)) == [(True,)]:
            run_script(second.dsn(), "INSERT INTO t SELECT max(id) + 100 FROM t", "SELECT pg_switch_wal()")
        daemon.config["source"]["dsn"] = second.dsn()
        daemon.start()
        halts_with(daemon, "CDCD-SOURCE-TIMELINE")
        assert "CDCD-RESUME-REFUSED" in command(daemon, *ACCEPT_GAP).stderr
        audited(command(daemon, *RESNAPSHOT))
        daemon.wait_state("streaming")
        equals_table(reader, f"{daemon.name}.public.t", second, "postgres")


def _wal_lsn(server: PostgresServer) -> str:
    ((lsn,),) = server.execute("SELECT pg_current_wal_lsn()::text")
    return str(lsn)


@pytest.mark.nightly
def test_a_server_that_has_replaced_the_other_is_copied_where_its_wal_is_further(
    pg_server: PostgresServers, new_daemon: NewDaemon, reader: Reader
) -> None:
    """F61, F62: another system identifier halts; readers order changes by their LSNs."""
    with pair(pg_server, 18) as (primary, other):
        daemon = new_daemon(primary, "postgres")
        daemon.start().wait_state("streaming")
        await_confirmed(primary, daemon)
        assert daemon.stop() == 0
        ((lsn,),) = primary.execute("SELECT pg_current_wal_lsn()")
        other.start()
        run_script(other.dsn(), TABLE, "INSERT INTO t VALUES (7, 'other')")
        other.execute(f"CREATE PUBLICATION {daemon.slot} FOR ALL TABLES")
        daemon.config["source"]["dsn"] = other.dsn()
        daemon.start()
        halts_with(daemon, "CDCD-SOURCE-IDENTITY")
        assert "CDCD-RESUME-REFUSED" in command(daemon, *ACCEPT_GAP).stderr
        while other.execute("SELECT pg_current_wal_lsn() <= %s::pg_lsn", lsn) == [(True,)]:
            run_script(other.dsn(), "SELECT pg_switch_wal()", "INSERT INTO t SELECT max(id) + 1 FROM t")
        audited(command(daemon, *RESNAPSHOT))
        daemon.wait_state("streaming")
        equals_table(reader, f"{daemon.name}.public.t", other, "postgres")


@pytest.mark.nightly
def test_a_slot_that_another_daemon_reads_on_the_server_that_has_replaced_the_other_is_not_dropped(
    pg_server: PostgresServers, new_daemon: NewDaemon
) -> None:
    """F80: the stored position says only that cdcd has created the slot of the former server."""
    with pair(pg_server, 18) as (primary, other):
        daemon = new_daemon(primary, "postgres")
        daemon.start().wait_state("streaming")
        await_confirmed(primary, daemon)
        assert daemon.stop() == 0
        ((lsn,),) = primary.execute("SELECT pg_current_wal_lsn()")
        other.start()
        run_script(other.dsn(), TABLE, "INSERT INTO t VALUES (7, 'other')")
        second = new_daemon(other, "postgres")
        second.config["source"]["slot"] = {"name": daemon.slot}
        second.config["sink"]["transactional_id"] = second.name
        second.start().wait_state("streaming")
        assert second.stop() == 0
        while other.execute("SELECT pg_current_wal_lsn() <= %s::pg_lsn", lsn) == [(True,)]:
            run_script(other.dsn(), "SELECT pg_switch_wal()", "INSERT INTO t SELECT max(id) + 1 FROM t")
        other.execute(f"CREATE PUBLICATION {daemon.slot} FOR ALL TABLES")
        daemon.config["source"]["dsn"] = other.dsn()
        daemon.start()
        halts_with(daemon, "CDCD-SOURCE-IDENTITY")
        assert "CDCD-OWNED-BY-ANOTHER" in command(daemon, *RESNAPSHOT).stderr
        assert daemon.stop() == 0
        second.start().wait_state("streaming")


def follows_everything(primary: PostgresServer, standby: PostgresServer) -> None:
    """Wait until the standby has received all WAL written so far."""
    ((lsn,),) = primary.execute("SELECT pg_current_wal_flush_lsn()")
    eventually(
        lambda: standby.execute("SELECT pg_last_wal_receive_lsn() >= %s::pg_lsn", lsn) == [(True,)],
        "the standby has received the WAL",
    )


def cut_off(standby: PostgresServer) -> None:
    """Stop the replication to the standby."""
    run_script(standby.dsn(), "ALTER SYSTEM SET primary_conninfo = ''", "SELECT pg_reload_conf()")
    eventually(
        lambda: not standby.execute("SELECT 1 FROM pg_stat_wal_receiver"), "the standby receives no WAL"
    )


def test_a_name_that_moves_to_another_server_halts_until_it_is_back(
    postgres: PostgresServer,
    pg_server: PostgresServers,
    database: str,
    new_linked: NewLinked,
    reader: Reader,
) -> None:
    """F10: another cluster has the same host and port, as after a change in the DNS.

    F59: it still answers afterwards, on the monitor's connection; that is no judgement on the publication.
    """
    other = pg_server(17)
    other.create_database(database)
    try:
        with new_linked(postgres, database) as (daemon, link):
            other.execute(f"CREATE PUBLICATION cdcd_{daemon.name} FOR ALL TABLES", dbname=database)
            run_script(postgres.dsn(database), TABLE, "INSERT INTO t VALUES (1, 'copied')")
            daemon.entry = QUICK
            daemon.start().wait_state("streaming")
            link.point_to(other.port)
            link.cut()
            halts_with(daemon, "CDCD-SOURCE-IDENTITY")
            eventually(
                lambda: daemon.events("another_server_answers") or is_connected(other),
                "the monitor has found the other server",
            )
            # A reading of the former server is shown for half a second at most.
            eventually(lambda: "cdcd_slot_active" not in samples(daemon), "nothing is known about the slot")
            run_script(postgres.dsn(database), "INSERT INTO t VALUES (2, 'meanwhile')")
            link.point_to(postgres.port)
            daemon.reload()
            daemon.wait_state("streaming")
            run_script(postgres.dsn(database), "CREATE TABLE u (id int PRIMARY KEY)")
            eventually(
                lambda: daemon.events("publication_changed") or len(daemon.events("halted")) > 1,
                "the monitor has compared the publication again",
            )
            (change,) = daemon.events("publication_changed")
            assert "public.u" in change["reason"]
            await_confirmed(postgres, daemon)
            assert len(daemon.events("halted")) == 1
            assert samples(daemon)["cdcd_slot_active"] == 1
            events = reader.read(f"{daemon.name}.public.t")
            assert sorted(event.value["after"]["id"] for event in events) == [1, 2]
    finally:
        drop_database(other, database)


def is_connected(server: PostgresServer) -> bool:
    """Return whether cdcd is connected to the server now."""
    return bool(server.execute("SELECT 1 FROM pg_stat_activity WHERE application_name LIKE 'cdcd%'"))


@pytest.mark.nightly
def test_a_name_that_moves_while_cdcd_begins_is_not_judged_by_the_other_servers_slot(
    postgres: PostgresServer,
    pg_server: PostgresServers,
    database: str,
    new_linked: NewLinked,
    reader: Reader,
) -> None:
    """F59: slot and stored position are compared on one server; the next attempt identifies the server again."""
    other = pg_server(17)
    other.create_database(database)
    # Two publications: a start compares them directly after it has identified the server, and nothing else does.
    names = ["one", "two"]
    try:
        for server in (postgres, other):
            run_script(server.dsn(database), *(f"CREATE PUBLICATION {name} FOR ALL TABLES" for name in names))
        run_script(postgres.dsn(database), TABLE, "INSERT INTO t VALUES (1, 'copied')")
        source = {"publication": {"names": names}}
        with new_linked(postgres, database, source=source) as (daemon, link):

            def move(direction: Way, piece: bytes) -> bytes:
                if direction == "up" and b"WITH published AS" in piece:
                    link.point_to(other.port)
                return piece

            daemon.start().wait_state("streaming")
            assert daemon.stop() == 0
            link.change(move)
            daemon.start()
            # Not CDCD-SLOT-MISSING: the missing slot of the other server says nothing about this server.
            halts_with(daemon, "CDCD-SOURCE-IDENTITY")
            (line,) = daemon.events("retrying")
            assert "another server answers" in str(line)
            link.change(None)
            link.point_to(postgres.port)
            daemon.reload()
            daemon.wait_state("streaming")
            equals_table(reader, f"{daemon.name}.public.t", postgres, database)
    finally:
        drop_database(other, database)


def test_a_slot_is_neither_dropped_nor_made_on_another_server(
    postgres: PostgresServer, pg_server: PostgresServers
) -> None:
    """F59: after an interrupted attempt, the name moves to another server before the drop, or directly after it."""
    with (
        source_database(postgres) as settings,
        Proxy(postgres.port) as link,
        contextlib.closing(connect_sql(settings)) as connection,
    ):
        expected = identify(connection)
        create_slot(settings, export_snapshot=False).close()
        other = pg_server(17)
        other.create_database(settings.slot)
        slots = "SELECT slot_name, confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = %s"
        try:
            create_slot(replace(settings, dsn=other.dsn(settings.slot)), export_snapshot=False).close()
            before = other.execute(slots, settings.slot)
            moved = replace(settings, dsn=settings.dsn.replace(f":{postgres.port}/", f":{link.port}/"))

            def refused() -> None:
                with pytest.raises(SourceUnavailable, match="another server answers"):
                    create_slot_for_snapshot(moved, expected, True, True, threading.Event())

            link.point_to(other.port)
            refused()
            assert len(postgres.execute(slots, settings.slot)) == 1
            assert other.execute(slots, settings.slot) == before

            def move(_direction: Way, piece: bytes) -> bytes:
                if b"pg_drop_replication_slot" in piece:
                    link.point_to(other.port)
                return piece

            other.execute("SELECT pg_drop_replication_slot(%s)", settings.slot)
            link.point_to(postgres.port)
            link.change(move)
            refused()
            assert postgres.execute(slots, settings.slot) == other.execute(slots, settings.slot) == []
        finally:
            drop_database(other, settings.slot)


@pytest.mark.nightly
def test_a_name_that_moves_to_a_standby_while_cdcd_starts_is_waited_for(
    postgres: PostgresServer,
    pg_server: PostgresServers,
    new_linked: NewLinked,
    database: str,
    reader: Reader,
) -> None:
    """F59: cdcd identifies the server again once it streams: it reads nothing from a standby and waits."""
    with pg_server.fresh(18) as standby, new_linked(postgres, database) as (daemon, link):
        standby.create_database(database)
        standby.stop()
        (standby.data_folder / "standby.signal").touch()
        standby.start()
        run_script(postgres.dsn(database), TABLE, "INSERT INTO t VALUES (1, 'copied')")
        daemon.start().wait_state("streaming")
        assert daemon.stop() == 0
        run_script(postgres.dsn(database), "INSERT INTO t VALUES (2, 'meanwhile')")

        def move(direction: Way, piece: bytes) -> bytes:
            if direction == "up" and b"START_REPLICATION" in piece:
                link.point_to(standby.port)
            return piece

        begun = len(daemon.events("streaming"))
        link.change(move)
        daemon.start()
        eventually(lambda: len(daemon.events("retrying")) >= 2, "the daemon waits")
        opened = len(daemon.events("progress_read"))
        eventually(lambda: len(daemon.events("retrying")) >= 4, "the daemon still waits")
        assert len(daemon.events("progress_read")) == opened, "meanwhile the daemon fences no other producer"
        assert {line["code"] for line in daemon.events("retrying")} == {SourceStandby.code}
        assert len(daemon.events("streaming")) == begun
        link.change(None)
        link.point_to(postgres.port)
        daemon.wait_state("streaming")
        await_confirmed(postgres, daemon)
        assert_each_once(reader.read(f"{daemon.name}.public.t"))
