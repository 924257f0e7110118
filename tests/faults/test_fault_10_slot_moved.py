"""Fault 10: a slot that was moved: its halt, and the two resolutions, seen by an independent reader (F3, F10)."""

from __future__ import annotations

import getpass
from collections.abc import Callable

import pytest

from cdcd.demo.stack.postgres import PostgresServer
from tests.faults.link import NewLinked
from tests.integration.conftest import NewDaemon
from tests.support.daemon import Daemon, await_confirmed
from tests.support.nightly import nightly
from tests.support.proxy import Way
from tests.support.reader import BEGINNING, Reader
from tests.support.resolutions import (
    ACCEPT_GAP,
    RESNAPSHOT,
    audited,
    command,
    equals_table,
    folded,
    halts_with,
)
from tests.support.stack import run_script

Break = Callable[[PostgresServer, str, Daemon], None]


def change(server: PostgresServer, database: str, *statements: str) -> None:
    run_script(server.dsn(database), *statements)


def dropped(server: PostgresServer, database: str, daemon: Daemon) -> None:
    server.execute(f"SELECT pg_drop_replication_slot('{daemon.slot}')", dbname=database)


def made_again(server: PostgresServer, database: str, daemon: Daemon) -> None:
    dropped(server, database, daemon)
    server.execute(f"SELECT pg_create_logical_replication_slot('{daemon.slot}', 'pgoutput')", dbname=database)


def advanced(server: PostgresServer, database: str, daemon: Daemon) -> None:
    server.execute(
        f"SELECT pg_replication_slot_advance('{daemon.slot}', pg_current_wal_lsn())", dbname=database
    )


def wal_status(server: PostgresServer, daemon: Daemon) -> str:
    ((status,),) = server.execute(
        f"SELECT wal_status FROM pg_replication_slots WHERE slot_name = '{daemon.slot}'"
    )
    return str(status)


def halted(server: PostgresServer, database: str, daemon: Daemon, breaks: Break, code: str) -> str:
    """Stream some rows, stop, change rows and break the slot, start again; return the reason of the halt."""
    change(
        server,
        database,
        "CREATE TABLE t (id int PRIMARY KEY, body text)",
        "INSERT INTO t VALUES (1, 'copied'), (2, 'deleted in the gap')",
    )
    daemon.start().wait_state("streaming")
    change(server, database, "INSERT INTO t VALUES (3, 'streamed')")
    await_confirmed(server, daemon)
    assert daemon.stop() == 0
    change(server, database, "DELETE FROM t WHERE id = 2", "INSERT INTO t VALUES (4, 'in the gap')")
    breaks(server, database, daemon)
    daemon.start()
    return halts_with(daemon, code)


WAYS = pytest.mark.parametrize(
    ("breaks", "code"),
    [
        nightly(dropped, "CDCD-SLOT-MISSING"),  # tests/hints has both ways
        nightly(made_again, "CDCD-SLOT-AHEAD"),
        (advanced, "CDCD-SLOT-AHEAD"),
    ],
)


@pytest.mark.nightly
@WAYS
def test_a_gap_is_accepted_and_marked(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader, breaks: Break, code: str
) -> None:
    daemon = new_daemon(postgres, database)
    reason = halted(postgres, database, daemon, breaks, code)
    assert "from_lsn=" in reason
    assert "to_lsn=" in reason
    goes_on_with_a_marked_gap(postgres, database, daemon, reader, code)


@pytest.mark.nightly  # test_new_snapshots and tests/hints have it
@WAYS
def test_the_tables_are_copied_anew(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader, breaks: Break, code: str
) -> None:
    daemon = new_daemon(postgres, database)
    halted(postgres, database, daemon, breaks, code)
    is_copied_anew(postgres, database, daemon, reader, code)


def goes_on_with_a_marked_gap(
    server: PostgresServer, database: str, daemon: Daemon, reader: Reader, code: str
) -> None:
    topic = f"{daemon.name}.public.t"
    before = len(reader.read(topic))
    planned = command(daemon, *ACCEPT_GAP, "--dry-run")
    assert planned.returncode == 0, planned.stderr
    assert code in planned.stdout
    assert daemon.status()["state"] == "halted", "a dry run does not signal the daemon"

    line = audited(command(daemon, *ACCEPT_GAP))
    assert (line["event"], line["who"], line["reason"]) == ("gap_accepted", getpass.getuser(), code)
    daemon.wait_state("streaming")
    change(server, database, "INSERT INTO t VALUES (5, 'after')")
    events = reader.wait([topic], lambda events: 5 in folded(events))
    markers = [event for event in events if event.op == "g"]
    assert sorted(event.partition for event in markers) == [0, 1], "each partition has a marker"
    for marker in markers:
        special = marker.source["special"]
        assert (special["gap.from_lsn"], special["gap.to_lsn"]) == (line["from_lsn"], line["to_lsn"])
        assert special["gap.reason"] == code
        assert (marker.value["before"], marker.value["after"], marker.key) == (None, None, None)
    ordered = [event.op for event in sorted(events, key=lambda event: event.sequence or BEGINNING)]
    assert ordered == ["r"] * (before - 1) + ["c"] + ["g"] * 2 + ["c"], (
        "the markers are between the changes before and after the gap"
    )
    assert folded(events) == {1: "copied", 2: "deleted in the gap", 3: "streamed", 5: "after"}
    assert command(daemon, *ACCEPT_GAP).returncode == 1, "the command is refused while the daemon streams"
    assert daemon.status()["state"] == "streaming"
    assert daemon.stop() == 0
    assert "nothing is missing" in command(daemon, *ACCEPT_GAP).stderr
    daemon.start().wait_state("streaming")
    assert len([event for event in reader.read(topic) if event.op == "g"]) == 2, "a restart adds no marker"


def is_copied_anew(server: PostgresServer, database: str, daemon: Daemon, reader: Reader, code: str) -> None:
    topic = f"{daemon.name}.public.t"
    line = audited(command(daemon, *RESNAPSHOT))
    assert (line["event"], line["reason"], line["to_lsn"]) == ("resnapshot_requested", code, None)
    daemon.wait_state("streaming")
    change(server, database, "INSERT INTO t VALUES (5, 'after')")
    events = equals_table(reader, topic, server, database)
    ops = [
        event.op for event in sorted(events, key=lambda event: event.sequence or BEGINNING) if event.op != "r"
    ]
    assert ops == ["c", "g", "g", "t", "t", "c"], (
        "the gap markers, the truncates, and the change after the snapshot"
    )
    assert all("gap.to_lsn" not in event.source["special"] for event in events if event.op == "g"), (
        "the new snapshot closes the gap, so its marker has no end"
    )


@pytest.mark.nightly  # the two tests above have the same command
def test_a_new_snapshot_may_be_had_without_any_trouble(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    """A new snapshot can be requested while the daemon is stopped; a streaming daemon is not disturbed."""
    daemon = new_daemon(postgres, database)
    change(
        postgres, database, "CREATE TABLE t (id int PRIMARY KEY, body text)", "INSERT INTO t VALUES (1, 'a')"
    )
    nothing = command(daemon, *RESNAPSHOT)
    assert nothing.returncode == 1
    assert "CDCD-RESUME-REFUSED" in nothing.stderr or "CDCD-TOPIC-MISSING" in nothing.stderr
    daemon.start().wait_state("streaming")
    refused = command(daemon, *RESNAPSHOT)
    assert refused.returncode == 1
    assert "CDCD-RESUME-REFUSED" in refused.stderr
    assert daemon.status()["state"] == "streaming", "the daemon was not fenced"
    reported = command(daemon, "resume")
    assert "it was in state streaming" in reported.stdout
    assert daemon.stop() == 0
    assert "no cdcd answers" in command(daemon, "resume").stderr
    assert audited(command(daemon, *RESNAPSHOT))["reason"] == "requested"
    assert audited(command(daemon, *RESNAPSHOT))["reason"] == "requested", "the request can be repeated"
    daemon.start().wait_state("streaming")
    events = equals_table(reader, f"{daemon.name}.public.t", postgres, database)
    assert [event.op for event in events].count("r") == 2
    assert [event.op for event in events].count("g") == 2


@pytest.mark.nightly
def test_a_flat_topic_has_the_marker_too(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    daemon = new_daemon(postgres, database, format={"value": "flat"})
    change(
        postgres, database, "CREATE TABLE t (id int PRIMARY KEY, body text)", "INSERT INTO t VALUES (1, 'a')"
    )
    daemon.start().wait_state("streaming")
    await_confirmed(postgres, daemon)
    daemon.stop()
    change(postgres, database, "INSERT INTO t VALUES (2, 'b')")
    advanced(postgres, database, daemon)
    daemon.start()
    halts_with(daemon, "CDCD-SLOT-AHEAD")
    line = audited(command(daemon, *ACCEPT_GAP))
    daemon.wait_state("streaming")
    events = reader.read(f"{daemon.name}.public.t")
    markers = [event.value for event in events if event.value["__op"] == "g"]
    assert len(markers) == 2
    for marker in markers:
        assert marker["__special"]["gap.from_lsn"] == line["from_lsn"]
        assert (marker["id"], marker["body"], marker["__deleted"]) == (None, None, False)


def test_a_slot_that_is_advanced_between_the_verdict_and_the_start_halts_before_anything_is_read(
    postgres: PostgresServer, database: str, new_linked: NewLinked, reader: Reader
) -> None:
    """F3, at START_REPLICATION: the slot is advanced then, and the server does not send the skipped changes."""
    with new_linked(postgres, database) as (daemon, link):
        change(postgres, database, "CREATE TABLE t (id int PRIMARY KEY)")
        daemon.start().wait_state("streaming")
        change(postgres, database, "INSERT INTO t VALUES (1)")
        await_confirmed(postgres, daemon)
        assert daemon.stop() == 0
        change(postgres, database, "INSERT INTO t VALUES (2)")
        begun = len(daemon.events("streaming"))

        def advance(direction: Way, piece: bytes) -> bytes:
            if direction == "up" and b"START_REPLICATION" in piece:
                advanced(postgres, database, daemon)
            return piece

        link.change(advance)
        daemon.start()
        assert "while cdcd was starting" in halts_with(daemon, "CDCD-SLOT-AHEAD")
        assert len(daemon.events("streaming")) == begun
        assert [event.key["id"] for event in reader.read(f"{daemon.name}.public.t")] == [1]
