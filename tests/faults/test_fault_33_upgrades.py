"""Fault 33: another version of cdcd on the same topics, and another PostgreSQL under the same slot.

F61: pg_upgrade creates a new cluster, whose system identifier differs from the stored one.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest
from confluent_kafka import Producer

from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.postgres import PostgresServer, programs_from_wheel
from cdcd.demo.stack.process import as_account
from tests.integration.conftest import NewDaemon
from tests.support.daemon import Daemon
from tests.support.nightly import nightly
from tests.support.reader import Reader, assert_each_once, fold
from tests.support.stack import run
from tests.support.topics import committed_records


def stored(kafka: KafkaBroker, daemon: Daemon) -> dict[str, Any]:
    """Return the last progress record, as JSON."""
    found = committed_records(kafka.bootstrap, f"{daemon.name}.__progress")
    last = [message for message in found if message.key() == daemon.slot.encode()][-1]
    return cast(dict[str, Any], json.loads(last.value() or b""))


def store(kafka: KafkaBroker, daemon: Daemon, record: dict[str, Any]) -> None:
    """Write a progress record as another version would."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "acks": "all"})
    producer.produce(f"{daemon.name}.__progress", json.dumps(record), daemon.slot, 0)
    assert producer.flush(30) == 0


@pytest.fixture
def stopped(postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader) -> Daemon:
    """A daemon that has written a row and is stopped."""
    run(postgres, database, "CREATE TABLE t (id int PRIMARY KEY)")
    daemon = new_daemon(postgres, database)
    daemon.start().wait_state("streaming")
    postgres.execute("INSERT INTO t VALUES (1)", dbname=database)
    reader.wait([f"{daemon.name}.public.t"], lambda events: len(events) == 1)
    assert daemon.stop() == 0
    return daemon


def test_the_record_of_an_older_version_is_gone_on_from(
    stopped: Daemon, kafka: KafkaBroker, postgres: PostgresServer, database: str, reader: Reader
) -> None:
    """The first format has fewer fields of the slot."""
    record = stored(kafka, stopped)
    old = {key: value for key, value in record.items() if key not in ("plugin", "two_phase", "slot_lsn")}
    store(kafka, stopped, old | {"format": 1})
    postgres.execute("INSERT INTO t VALUES (2)", dbname=database)
    stopped.start().wait_state("streaming")
    events = reader.wait([f"{stopped.name}.public.t"], lambda events: len(events) >= 2)
    assert_each_once(events)
    assert sorted(event.value["after"]["id"] for event in events) == [1, 2]
    assert stopped.stop() == 0
    assert stored(kafka, stopped)["format"] == record["format"]


@pytest.mark.nightly  # tests/hints has a record that cannot be read
@pytest.mark.parametrize("newer", [{"format": 99}, nightly({"unheard_of": 1})], ids=["format", "key"])
def test_the_record_of_a_newer_version_is_refused(
    newer: dict[str, Any], stopped: Daemon, kafka: KafkaBroker
) -> None:
    """The daemon halts and does not overwrite the record; without the newer record, the daemon streams as before."""
    record = stored(kafka, stopped)
    store(kafka, stopped, record | newer)
    page = stopped.start().wait_state("halted")
    assert "CDCD-PROGRESS-UNREADABLE" in page["reason"]
    assert next(iter(newer)) in page["reason"]
    assert stored(kafka, stopped) == record | newer
    store(kafka, stopped, record)
    stopped.reload()
    stopped.wait_state("streaming")


@pytest.mark.nightly
@pytest.mark.timeout(180)
def test_a_cluster_that_pg_upgrade_has_made_is_another_one_until_somebody_says_so(
    tmp_path: Path, stack_folder: Path, new_daemon: NewDaemon, reader: Reader
) -> None:
    """F61: PostgreSQL 17 and later migrate the slot; the tables are copied again."""
    programs = programs_from_wheel(18)
    old, new = (
        PostgresServer(18, programs, stack_folder / f"{tmp_path.name}-{which}") for which in ("old", "new")
    )
    old.start()
    old.create_database("shop")
    run(old, "shop", "CREATE TABLE t (id int PRIMARY KEY)")
    daemon = new_daemon(old, "shop")
    topic = f"{daemon.name}.public.t"
    try:
        daemon.start().wait_state("streaming")
        run(old, "shop", "INSERT INTO t VALUES (1)")
        reader.wait([topic], lambda events: len(events) == 1)
        old.stop("fast")  # F13: it waits until all WAL is confirmed
        assert daemon.stop() == 0
        new.start()
        new.stop("fast")
        upgrade(old, new)
        new.start()
        run(new, "shop", "INSERT INTO t VALUES (2)")
        daemon.config["source"]["dsn"] = new.dsn("shop")
        page = daemon.start().wait_state("halted")
        assert "CDCD-SOURCE-IDENTITY" in page["reason"]
        assert len(reader.read(topic)) == 1
        done = resnapshot(daemon)
        assert done.returncode == 0, done.stderr
        events = reader.wait([topic], lambda events: set(fold(events, row_of)) == {1, 2})
        assert_each_once([event for event in events if event.op not in ("t", "g")])
        daemon.wait_state("streaming")
    finally:
        daemon.__exit__()
        for server in (old, new):
            server.stop("immediate")


def row_of(row: dict[str, Any]) -> int:
    """Return the key of a row."""
    return int(row["id"])


def resnapshot(daemon: Daemon) -> subprocess.CompletedProcess[str]:
    """Request a new snapshot from the present server."""
    command = [sys.executable, "-m", "cdcd", "resnapshot", "--config", str(daemon.config_path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def upgrade(old: PostgresServer, new: PostgresServer) -> None:
    """Run pg_upgrade on two stopped servers."""
    settings = "-c wal_level=logical -c max_replication_slots=30 -c max_prepared_transactions=10"
    command = [str(new.bin / "pg_upgrade"), "-b", str(old.bin), "-B", str(new.bin), "-U", new.superuser]
    command += ["-d", str(old.data_folder), "-D", str(new.data_folder), "-o", settings, "-O", settings]
    command += ["--socketdir", str(new.folder), "--copy"]
    done = subprocess.run(
        command,
        cwd=new.folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        **as_account(new._account),
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
