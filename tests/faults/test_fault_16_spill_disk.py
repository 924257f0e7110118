"""Fault 16: open transactions larger than memory are spilled to disk, written as a whole, and removed from disk."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import stat
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from cdcd.demo.stack.postgres import PostgresServer
from cdcd.waits import KINDS
from tests.integration.conftest import NewDaemon
from tests.support.daemon import Daemon, await_confirmed, await_received
from tests.support.hints import hint_of
from tests.support.reader import Reader, assert_each_once, fold
from tests.support.waiting import eventually
from tests.support.witness import Witness, assert_same_changes, changes_of

INSERT = "INSERT INTO t SELECT g, %s, repeat('p', 1000) FROM generate_series(%s::int, %s) g"


@pytest.fixture
def source(postgres: PostgresServer, database: str) -> PostgresServer:
    """The server, whose walsender streams transactions above 64 kB."""
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY, writer int, pad text)", dbname=database)
    postgres.execute(f"ALTER DATABASE {database} SET logical_decoding_work_mem = '64kB'")
    return postgres


def spilling(folder: Path, **buffer: str) -> dict[str, Any]:
    """Return a configuration with a small memory buffer."""
    return {"buffer": {"memory": "1MiB", "spill_dir": str(folder / "spill"), **buffer}}


def files(folder: Path) -> list[Path]:
    """Return the segments on disk."""
    return sorted(folder.glob("spill/cdcd-spill-*/*.spill"))


def metric(daemon: Daemon, name: str) -> float:
    """Return the value of a metric without labels, which exists from the start."""
    for line in daemon.get("/metrics")[1].splitlines():
        if line.startswith(f"{name} "):
            return float(line.split()[1])
    raise AssertionError(f"there is no {name}")


class Session:
    """One writer: inserts in up to three nested savepoints, some of which are rolled back."""

    def __init__(self, number: int, dsn: str, chance: random.Random) -> None:
        self.connection = psycopg2.connect(dsn)
        self._cursor = self.connection.cursor()
        self._number = number
        self._next_id = number * 1_000_000
        self._chance = chance
        self._depth = 0

    def choose(self) -> str:
        """Return a random next step."""
        return self._chance.choice(("rows", "rows", "rows", "update", "savepoint", "back", "release"))

    def step(self, kind: str) -> None:
        """Take a step in the open transaction."""
        if kind == "savepoint" and self._depth < 3:
            self._depth += 1
            self._cursor.execute(f"SAVEPOINT s{self._depth}")
        elif kind in ("back", "release") and self._depth:
            if kind == "back":
                self._cursor.execute(f"ROLLBACK TO SAVEPOINT s{self._depth}")
            self._cursor.execute(f"RELEASE SAVEPOINT s{self._depth}")
            self._depth -= 1
        elif kind == "update":
            self._cursor.execute("UPDATE t SET pad = 'u' WHERE writer = %s AND id %% 7 = 0", (self._number,))
        else:
            first, self._next_id = self._next_id, self._next_id + 100
            self._cursor.execute(INSERT, (self._number, first, first + 99))


@pytest.mark.nightly  # fault 15 has more of them
def test_interleaved_open_transactions_with_savepoints_equal_the_witness(
    source: PostgresServer,
    database: str,
    new_daemon: NewDaemon,
    reader: Reader,
    tmp_path: Path,
) -> None:
    """F26, F28, F29: with spilled transactions, committed changes are there once, rolled back changes are missing."""
    chance = random.Random(11)
    with new_daemon(source, database, **spilling(tmp_path)) as daemon:
        daemon.start().wait_state("streaming", deadline_s=180)
        witness = Witness(source.dsn(database))
        sessions = [Session(number, source.dsn(database), chance) for number in range(1, 9)]
        for _ in range(25):
            steps = [(session, session.choose()) for session in sessions]
            for session, kind in steps:
                if kind != "back":
                    session.step(kind)
            # After a rollback before its decoding, cdcd would read without streaming.
            await_received(source, daemon)
            for session, kind in steps:
                if kind == "back":
                    session.step(kind)
        eventually(lambda: metric(daemon, "cdcd_spill_bytes") > 1 << 20, "transactions are on disk", 120)
        assert metric(daemon, "cdcd_buffer_bytes") < 3 << 20
        for file in files(tmp_path):
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
            assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
        with closing(psycopg2.connect(source.dsn(database))) as altering, altering.cursor() as cursor:
            # This transaction adds a column and rows with it, and rolls back to before: other rows lack the column.
            cursor.execute("CREATE TABLE u (id int PRIMARY KEY, v text)")
            cursor.execute("INSERT INTO u SELECT g, 'before' FROM generate_series(1, 3000) g")
            cursor.execute("SAVEPOINT s")
            cursor.execute("ALTER TABLE u ADD COLUMN w text")
            cursor.execute("INSERT INTO u SELECT g, 'never', 'never' FROM generate_series(4001, 7000) g")
            await_received(source, daemon)
            cursor.execute("ROLLBACK TO SAVEPOINT s")
            cursor.execute("INSERT INTO u SELECT g, 'after' FROM generate_series(7001, 9000) g")
            chance.shuffle(sessions)
            for number, session in enumerate(sessions):
                if number % 4 == 3:
                    session.connection.rollback()
                else:
                    session.connection.commit()
            altering.commit()
        for session in sessions:
            session.connection.close()
        topics = [f"{daemon.name}.public.t", f"{daemon.name}.public.u", f"{daemon.name}.message"]
        await_confirmed(source, daemon, 240)
        events = reader.read(*topics)
        eventually(lambda: files(tmp_path) == [], "the segments are removed")
        assert metric(daemon, "cdcd_spill_bytes") == metric(daemon, "cdcd_spill_files") == 0
        assert metric(daemon, "cdcd_spilled_transactions_total") >= 2
        assert metric(daemon, "cdcd_spilled_bytes_total") > 1 << 20
        assert daemon.stop() == 0
        assert [line["streaming"] for line in daemon.events("streaming")] == ["parallel"]
    assert_each_once(events)
    assert_same_changes(
        witness.read(), changes_of(events, witness.from_lsn, f"{daemon.name}.public", topics[2])
    )
    for topic, columns in ((topics[0], "id, writer, pad"), (topics[1], "id, v")):
        rows = fold([event for event in events if event.topic == topic], lambda row: row["id"])
        found = sorted(tuple(row[name.strip()] for name in columns.split(",")) for row in rows.values())
        table = topic.rpartition(".")[2]
        assert found == sorted(source.execute(f"SELECT {columns} FROM {table}", dbname=database))


def test_what_a_killed_daemon_left_on_disk_is_removed_and_its_transactions_come_once(
    source: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader, tmp_path: Path
) -> None:
    """F27, F30: the next process removes the buffers of the killed one and reads the transactions again."""
    with new_daemon(source, database, **spilling(tmp_path)) as daemon:
        daemon.start().wait_state("streaming", deadline_s=180)
        with closing(psycopg2.connect(source.dsn(database))) as large, large.cursor() as cursor:
            cursor.execute(INSERT, (1, 1, 10_000))
            source.execute(INSERT, 2, 20_001, 20_002, dbname=database)
            eventually(lambda: files(tmp_path), "a part is on disk", 120)
            daemon.kill()
            left = files(tmp_path)
            assert left
            daemon.start().wait_state("streaming", deadline_s=180)
            assert not set(left) & set(files(tmp_path))
            eventually(lambda: files(tmp_path), "a part is on disk again", 120)
            cursor.execute(INSERT, (1, 10_001, 11_000))
            large.commit()
        events = reader.wait([f"{daemon.name}.public.t"], lambda events: len(events) >= 11_002)
        assert len(events) == 11_002
        assert_each_once(events)
        assert daemon.stop() == 0
    assert files(tmp_path) == []


def test_at_the_limit_of_the_disk_what_is_complete_is_written_and_the_daemon_halts(
    source: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader, tmp_path: Path
) -> None:
    """F30: the halt frees the disk and confirms nothing of open transactions; after a retry the daemon continues."""
    with new_daemon(source, database, **spilling(tmp_path, spill="1MiB")) as daemon:
        topic = f"{daemon.name}.public.t"
        daemon.start().wait_state("streaming", deadline_s=180)
        with closing(psycopg2.connect(source.dsn(database))) as large, large.cursor() as cursor:
            cursor.execute(INSERT, (1, 1, 1000))
            before_lsn = source.execute("SELECT pg_current_wal_lsn()::text")[0][0]
            source.execute(INSERT, 2, 100_001, 100_003, dbname=database)
            cursor.execute(INSERT, (1, 1001, 30_000))
            page = daemon.wait_state("halted", deadline_s=180)
            assert "CDCD-SPILL-FULL" in page["reason"]
            assert files(tmp_path) == []
            assert len(reader.read(topic)) == 3
            query = "SELECT confirmed_flush_lsn > %s::pg_lsn FROM pg_replication_slots WHERE slot_name = %s"
            assert source.execute(query, before_lsn, daemon.slot) == [(True,)]
            source.execute(INSERT, 3, 200_001, 200_001, dbname=database)
            large.rollback()
        assert daemon.process is not None
        daemon.config["buffer"]["spill"] = "1GiB"
        daemon.kill()
        daemon.start()
        events = reader.wait([topic], lambda events: len(events) >= 4)
        assert sorted(event.value["after"]["writer"] for event in events) == [2, 2, 2, 3]
        assert daemon.stop() == 0


ROWS = 20_000


def assert_all_there(reader: Reader, daemon: Daemon) -> None:
    """Assert that the rows of the large transaction are there once."""
    events = reader.wait([f"{daemon.name}.public.t"], lambda events: len(events) >= ROWS)
    assert len(events) == ROWS
    assert_each_once(events)


@pytest.mark.nightly
def test_a_disk_that_gets_room_again_in_time_costs_nothing_but_time(
    source: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader, tmp_path: Path
) -> None:
    """The kernel refuses writes (a limit of the process replaces a full disk), then accepts them again."""
    with new_daemon(source, database, **spilling(tmp_path)) as daemon:
        daemon.start().wait_state("streaming", deadline_s=180)
        assert daemon.process is not None
        with closing(psycopg2.connect(source.dsn(database))) as large, large.cursor() as cursor:
            resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
            cursor.execute(INSERT, (1, 1, ROWS))
            daemon.wait_state("backpressure", deadline_s=180)
            wait = eventually(lambda: daemon.waits_for("disk"), "/status shows the wait")
            assert wait["ends_when"] == KINDS["disk"].ends_when
            unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
            resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE, unlimited)
            daemon.wait_state("streaming", deadline_s=180)
            large.commit()
        assert_all_there(reader, daemon)
        assert daemon.events("halted") == daemon.events("retrying") == []
        os.kill(daemon.process.pid, signal.SIGTERM)
        assert daemon.wait_exit() == 0


def test_a_folder_that_cannot_be_made_halts_until_it_can(
    source: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader, tmp_path: Path
) -> None:
    """A file has the folder's name: the daemon halts before it reads anything, and does not overwrite the file."""
    (tmp_path / "spill").write_text("somebody's")
    with new_daemon(source, database, **spilling(tmp_path)) as daemon:
        page = daemon.start().wait_state("halted")
        assert page["reason"].startswith("CDCD-SPILL:")
        assert (tmp_path / "spill").read_text() == "somebody's"
        (tmp_path / "spill").unlink()
        daemon.reload()
        daemon.wait_state("streaming")
        source.execute(INSERT, 1, 1, 3, dbname=database)
        assert len(reader.wait([f"{daemon.name}.public.t"], lambda events: len(events) >= 3)) == 3
        assert daemon.stop() == 0


def test_a_folder_that_is_removed_costs_a_new_session_and_no_row(
    source: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader, tmp_path: Path
) -> None:
    """F27: nothing of the open transaction is confirmed, so the server sends it again without any action."""
    with new_daemon(source, database, **spilling(tmp_path)) as daemon:
        daemon.start().wait_state("streaming", deadline_s=180)
        with closing(psycopg2.connect(source.dsn(database))) as large, large.cursor() as cursor:
            cursor.execute(INSERT, (1, 1, 10_000))
            eventually(lambda: files(tmp_path), "a part is on disk", 120)
            shutil.rmtree(files(tmp_path)[0].parent)
            cursor.execute(INSERT, (1, 10_001, ROWS))
            eventually(lambda: daemon.events("retrying"), "the session ends", 120)
            large.commit()
        assert_all_there(reader, daemon)
        (retrying,) = daemon.events("retrying")
        assert retrying["code"] == "CDCD-SPILL-LOST"
        assert "the server sends the changes again" in hint_of(retrying["error"]), (
            "no action is needed, as asserted above"
        )
        assert daemon.events("halted") == []
        assert daemon.stop() == 0


@pytest.mark.nightly  # a folder that is removed has this code
def test_a_segment_that_cannot_be_read_back_halts_and_nothing_of_its_transaction_is_seen(
    source: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader, tmp_path: Path
) -> None:
    """F28, F30: the replay fails after a part of the rows was sent to Kafka; after a retry all rows are written."""
    with new_daemon(source, database, **spilling(tmp_path)) as daemon:
        topic = f"{daemon.name}.public.t"
        daemon.start().wait_state("streaming", deadline_s=180)
        assert daemon.process is not None
        with closing(psycopg2.connect(source.dsn(database))) as large, large.cursor() as cursor:
            cursor.execute(INSERT, (1, 1, ROWS))
            eventually(
                lambda: metric(daemon, "cdcd_spill_bytes") > 8 << 20,
                "most of the transaction is on disk",
                120,
            )
            with files(tmp_path)[0].open("r+b") as segment:
                segment.seek(4 << 20)
                segment.write(os.urandom(1 << 10))
            commit_lsn = source.execute("SELECT pg_current_wal_lsn()::text")[0][0]
            large.commit()
        page = daemon.wait_state("halted", deadline_s=180)
        assert "CDCD-SPILL: a segment does not contain the bytes that were written to it" in page["reason"]
        assert reader.read(topic) == []
        query = "SELECT confirmed_flush_lsn <= %s::pg_lsn FROM pg_replication_slots WHERE slot_name = %s"
        assert source.execute(query, commit_lsn, daemon.slot) == [(True,)]
        assert files(tmp_path) == []
        daemon.reload()
        assert_all_there(reader, daemon)
        assert daemon.stop() == 0
