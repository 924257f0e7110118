"""What an incremental snapshot waits for, and what it does not wait for."""

from __future__ import annotations

import contextlib
import threading

import psycopg2
import pytest

from cdcd.demo.stack.postgres import PostgresServer
from tests.integration.conftest import NewDaemon
from tests.support.daemon import Daemon, await_confirmed
from tests.support.folded import folded
from tests.support.gate import GATE, gate, stand_after_a_chunk
from tests.support.nightly import nightly
from tests.support.reader import Reader
from tests.support.snapshot_commands import await_copied, command, reports, start
from tests.support.stack import prepare, run_script
from tests.support.waiting import eventually

NEVER = {"mode": "never"}


def create(server: PostgresServer, database: str, *tables: str, rows: int = 5000) -> None:
    for table in tables:
        run_script(
            server.dsn(database),
            f"CREATE TABLE {table} (id int PRIMARY KEY, n int NOT NULL, big text)",
            f"ALTER TABLE {table} ALTER big SET STORAGE EXTERNAL",
            f"INSERT INTO {table} SELECT g, 0, 'x' FROM generate_series(1, {rows}) g",
            f"ANALYZE {table}",
        )


def assert_rows(server: PostgresServer, database: str, daemon: Daemon, reader: Reader, *tables: str) -> None:
    await_confirmed(server, daemon)
    for table in tables:
        rows = [row for (row,) in server.execute(f"SELECT to_json(t) FROM {table} t", dbname=database)]
        found = [
            {name: row.get(name) for name in rows[0]}
            for row in folded(reader.read(f"{daemon.name}.public.{table}")).values()
        ]
        assert sorted(found, key=lambda row: row["id"]) == sorted(rows, key=lambda row: row["id"]), table


def reason_of(daemon: Daemon, table: str) -> str:
    return next((one["reason"] or "" for one in reports(daemon) if one["table"] == f"public.{table}"), "")


@pytest.mark.nightly
def test_other_tables_are_copied_while_one_is_locked(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    create(postgres, database, "locked", "free")
    with new_daemon(postgres, database, snapshot={**NEVER, "workers": 1}) as daemon:
        daemon.start().wait_state("streaming")
        with contextlib.closing(psycopg2.connect(postgres.dsn(database))) as holder:
            start(daemon, "public.locked", "public.free", where="id > 0")
            with holder.cursor() as cursor:
                cursor.execute("LOCK TABLE locked")
                eventually(
                    lambda: [one["table"] for one in reports(daemon)] in (["public.locked"], []),
                    "the table without a lock is copied",
                )
                if reports(daemon):  # it may have been copied before the lock
                    eventually(lambda: "locked" in reason_of(daemon, "locked"), "the report names the lock")
                holder.rollback()
        await_copied(daemon)
        assert_rows(postgres, database, daemon, reader, "locked", "free")


@pytest.mark.parametrize("kind", ["prepared", nightly("statement")])
def test_a_transaction_that_may_be_in_its_commit_is_waited_for_and_named(
    kind: str, postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    create(postgres, database, "t")
    change = "UPDATE t SET n = 1 WHERE id % 2 = 0"
    with new_daemon(postgres, database, snapshot=NEVER) as daemon, contextlib.ExitStack() as open_ones:
        daemon.start().wait_state("streaming")
        with postgres.session(dbname=database) as execute:
            if kind == "prepared":
                prepare(postgres.dsn(database), "open", change)
            else:
                execute("SELECT pg_advisory_lock(7)")
                thread = threading.Thread(
                    target=run_script,
                    args=(
                        postgres.dsn(database),
                        f"BEGIN; {change}; SELECT pg_advisory_xact_lock(7); COMMIT",
                    ),
                )
                thread.start()
                open_ones.callback(thread.join)
                waiting = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
                eventually(lambda: execute(waiting), "the transaction is inside a statement")
            start(daemon, "public.t")
            eventually(lambda: "transactions" in reason_of(daemon, "t"), "the report has the reason")
            execute("COMMIT PREPARED 'open'" if kind == "prepared" else "SELECT pg_advisory_unlock(7)")
        await_copied(daemon)
        assert_rows(postgres, database, daemon, reader, "t")


@pytest.mark.nightly
def test_columns_are_renamed_while_a_chunk_waits_for_the_lock(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    """The chunk's snapshot has the old names, and the statement the new ones."""
    create(postgres, database, "t", "u")
    daemon = new_daemon(postgres, database, snapshot=NEVER)
    daemon.config["source"]["protocol"] = {"streaming": "off"}
    waiting = "SELECT pid FROM pg_locks WHERE relation = %s::regclass AND NOT granted"
    with daemon, gate(postgres, database) as closed:
        daemon.start().wait_state("streaming")
        for table, change in (
            ("t", "ALTER TABLE t RENAME n TO m"),
            ("u", "ALTER TABLE u RENAME TO u_old; ALTER TABLE t RENAME TO u"),
        ):
            stand_after_a_chunk(daemon, closed, f"public.{table}")
            with (
                contextlib.closing(psycopg2.connect(postgres.dsn(database))) as changing,
                changing.cursor() as cursor,
            ):
                cursor.execute(f"LOCK TABLE {table}")
                assert command(daemon, "resume", f"public.{table}")[0] == 200
                eventually(
                    lambda table=table: postgres.execute(waiting, table, dbname=database), "a chunk waits"
                )
                cursor.execute(change)
                changing.commit()
            closed.open()
            await_copied(daemon)
            closed.close()
        await_confirmed(postgres, daemon)
        assert len(folded(reader.read(f"{daemon.name}.public.u_old"))) == 5000
        found = list(folded(reader.read(f"{daemon.name}.public.t")).values())
        assert len(found) == 5000


def test_rows_to_read_again_that_are_larger_than_a_chunk(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    """60 rows of 300 kB move from the part that is not read yet to the other, without their large values."""
    create(postgres, database, "t", rows=2200)
    large = "INSERT INTO t SELECT g, 0, repeat(md5(g::text), 9000) FROM generate_series(3001, 3060) g"
    run_script(postgres.dsn(database), large, "ANALYZE t")
    with new_daemon(postgres, database, snapshot=NEVER) as daemon, gate(postgres, database) as closed:
        daemon.start().wait_state("streaming")
        stand_after_a_chunk(daemon, closed, "public.t")
        closed.open()
        run_script(postgres.dsn(database), "UPDATE t SET id = 3000 - id WHERE id > 3000")
        await_confirmed(postgres, daemon)
        assert command(daemon, "resume")[0] == 200
        await_copied(daemon)
        assert_rows(postgres, database, daemon, reader, "t")


@pytest.mark.nightly
def test_the_connection_of_the_chunks_is_ended_again_and_again(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    create(postgres, database, "t", "u")
    ending = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    with new_daemon(postgres, database, snapshot=NEVER) as daemon, gate(postgres, database) as closed:
        daemon.start().wait_state("streaming")
        start(daemon, "public.t", "public.u", where=GATE)
        for _ in range(4):
            closed.wait()
            postgres.execute(ending, dbname=database)
            run_script(postgres.dsn(database), "UPDATE t SET n = n + 1 WHERE id % 5 = 0")
            eventually(lambda: not postgres.execute(ending, dbname=database), "the chunks' sessions end")
        closed.open()
        await_copied(daemon)
        assert len(daemon.events("streaming")) == 1  # the stream did not notice
        assert_rows(postgres, database, daemon, reader, "t", "u")


@pytest.mark.nightly
def test_an_idle_server_with_an_open_transaction_does_not_delay_a_copy(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    """The WAL of the open transaction is inserted, and nothing flushes it: the stream does not receive it."""
    create(postgres, database, "t")
    with new_daemon(postgres, database, snapshot=NEVER) as daemon:
        daemon.start().wait_state("streaming")
        with contextlib.closing(psycopg2.connect(postgres.dsn(database))) as idle, idle.cursor() as cursor:
            for switch in (False, True):
                if switch:
                    postgres.execute("SELECT pg_switch_wal()")
                cursor.execute("UPDATE t SET n = n + 1 WHERE id < 10")

                start(daemon, "public.t")
                await_copied(daemon)
            idle.commit()
        assert_rows(postgres, database, daemon, reader, "t")


def test_a_pause_lasts_over_a_restart_and_an_error_of_one_table_is_its_own(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    create(postgres, database, "t", "wrong", "other")
    create(postgres, database, "no_rows", rows=0)
    with new_daemon(postgres, database, snapshot=NEVER) as daemon, gate(postgres, database) as closed:
        daemon.start().wait_state("streaming")
        stand_after_a_chunk(daemon, closed, "public.t")
        closed.open()
        assert daemon.stop() == 0
        run_script(
            postgres.dsn(database), "UPDATE t SET n = id WHERE id % 9 = 0", "DELETE FROM t WHERE id % 9 = 1"
        )
        daemon.start().wait_state("streaming")
        start(daemon, "public.wrong", where="1 / (id - 3000) < 5")
        start(daemon, "public.other", "public.no_rows")

        def states() -> dict[str, str]:
            return {one["table"].rpartition(".")[2]: one["state"] for one in reports(daemon)}

        eventually(lambda: states() == {"t": "paused", "wrong": "failed"}, "the others are copied")
        assert "data exception" in reason_of(daemon, "wrong")
        assert command(daemon, "stop", "public.wrong")[0] == 200
        assert command(daemon, "resume", "public.t")[0] == 200
        await_copied(daemon)
        assert_rows(postgres, database, daemon, reader, "t", "other")
        assert len(daemon.events("streaming")) == 2
