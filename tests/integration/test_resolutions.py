"""`cdcd resume` and `cdcd resnapshot` change nothing if the next step would be refused (F79)."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.postgres import PostgresServer
from tests.integration.conftest import NewDaemon
from tests.support.daemon import Daemon, await_confirmed
from tests.support.nightly import nightly
from tests.support.reader import BEGINNING, Event, Reader, assert_each_once
from tests.support.resolutions import ACCEPT_GAP, RESNAPSHOT, audited, command
from tests.support.snapshot_commands import await_copied, start
from tests.support.topics import committed_records


@pytest.fixture
def stopped(postgres: PostgresServer, database: str, new_daemon: NewDaemon) -> Daemon:
    """Return a stopped daemon that has streamed a row."""
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY)", dbname=database)
    daemon = new_daemon(postgres, database)
    daemon.start().wait_state("streaming")
    postgres.execute("INSERT INTO t VALUES (1)", dbname=database)
    await_confirmed(postgres, daemon)
    assert daemon.stop() == 0
    return daemon


@pytest.mark.parametrize("more", [(), nightly(("--dry-run",))])
def test_a_topic_is_not_accepted_if_the_gap_is_refused(
    kafka: KafkaBroker, stopped: Daemon, more: tuple[str, ...]
) -> None:
    """No change is missing here, so there is no gap to accept."""
    progress, topic = f"{stopped.name}.__progress", f"{stopped.name}.public.t"
    before = len(committed_records(kafka.bootstrap, progress))
    ran = command(stopped, "resume", "--accept-topic", topic, "--accept-gap", *more)
    assert ran.returncode != 0
    assert "nothing is missing" in ran.stderr
    assert ran.stdout == ""
    assert len(committed_records(kafka.bootstrap, progress)) == before


@pytest.mark.nightly
def test_a_dry_run_refuses_what_would_be_refused(stopped: Daemon) -> None:
    unknown = command(stopped, "resume", "--accept-topic", "nobodys", "--dry-run")
    assert unknown.returncode != 0
    assert "has written nothing to nobodys" in unknown.stderr
    stopped.start().wait_state("streaming")
    ran = command(stopped, *RESNAPSHOT, "--dry-run")
    assert ran.returncode != 0
    assert "a daemon streams from the slot now" in ran.stderr


@pytest.mark.nightly
@pytest.mark.parametrize("more", [(), nightly(("--dry-run",))])
def test_a_new_snapshot_is_not_asked_for_where_the_start_that_takes_it_would_be_refused(
    postgres: PostgresServer, database: str, kafka: KafkaBroker, stopped: Daemon, more: tuple[str, ...]
) -> None:
    """The request deletes the stored position: a daemon that could continue would stop."""
    role = f"reader_{stopped.name}"
    postgres.create_role(role)
    stopped.config["source"]["dsn"] = postgres.dsn(database, user=role)
    progress = f"{stopped.name}.__progress"
    before = len(committed_records(kafka.bootstrap, progress))
    ran = command(stopped, *RESNAPSHOT, *more)
    assert ran.returncode != 0
    assert "a start that copies the tables would be refused: CDCD-SOURCE-SETUP" in ran.stderr
    assert f"GRANT SELECT ON public.t TO {role}" in ran.stderr.replace('"', "")
    assert len(committed_records(kafka.bootstrap, progress)) == before
    stopped.start().wait_state("streaming")


def test_a_gaps_marker_does_not_change_the_last_commit_time(
    postgres: PostgresServer, database: str, kafka: KafkaBroker, stopped: Daemon, reader: Reader
) -> None:
    """The lag counts from the last commit in the record: the marker's time would count as a commit."""
    progress = f"{stopped.name}.__progress"

    def commit_times() -> list[int]:
        records = committed_records(kafka.bootstrap, progress)
        own = [one for one in records if one.key() == stopped.slot.encode()]
        return [json.loads(one.value() or b"")["commit_us"] for one in own]

    before = commit_times()
    postgres.execute("INSERT INTO t VALUES (2)", dbname=database)
    postgres.execute(
        "SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", stopped.slot, dbname=database
    )
    line = audited(command(stopped, *ACCEPT_GAP))
    stopped.start().wait_state("streaming")
    assert stopped.stop() == 0
    assert len(commit_times()) > len(before) + 1
    assert max(commit_times()) == max(before)
    is_marked(reader.read(f"{stopped.name}.public.t"), line)


def test_rows_that_are_copied_after_a_gap_are_behind_its_markers(
    postgres: PostgresServer, database: str, stopped: Daemon, reader: Reader
) -> None:
    """Without a transaction in between they have the commit LSN of the markers, which number the tables."""
    for name in ("u", "v"):
        postgres.execute(f"CREATE TABLE {name} (id int PRIMARY KEY)", dbname=database)
        postgres.execute(f"INSERT INTO {name} VALUES (1), (2)", dbname=database)
    postgres.execute(
        "SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", stopped.slot, dbname=database
    )
    audited(command(stopped, *ACCEPT_GAP))
    stopped.start().wait_state("streaming")
    start(stopped, "public.t", "public.u", "public.v", recopy=True)
    await_copied(stopped)
    assert stopped.stop() == 0
    for name in ("t", "u", "v"):
        events = reader.read(f"{stopped.name}.public.{name}")
        assert_each_once(events)
        ops = "".join(
            event.op or "" for event in sorted(events, key=lambda event: event.sequence or BEGINNING)
        )
        assert re.fullmatch("c?gg[tr]*ttr+", ops), ops


def is_marked(events: list[Event], line: dict[str, Any]) -> None:
    """Assert that the gap has a marker in each partition, after the row before it, and that row 2 is missing."""
    ordered = sorted(events, key=lambda event: event.sequence or BEGINNING)
    assert [event.op for event in ordered] == ["c", "g", "g"]
    row, *markers = ordered
    assert row.value["after"] == {"id": 1}
    assert sorted(event.partition for event in markers) == [0, 1]
    for marker in markers:
        special = marker.source["special"]
        assert (marker.value["before"], marker.value["after"], marker.key) == (None, None, None)
        assert (special["gap.from_lsn"], special["gap.to_lsn"]) == (line["from_lsn"], line["to_lsn"])
        assert special["gap.reason"] == line["reason"] == "CDCD-SLOT-AHEAD"
