"""Facts of PostgreSQL that the incremental snapshot is built on: what is committed, streamed, and not visible yet."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import psycopg2
import pytest

from cdcd.demo.stack.postgres import PostgresServer
from cdcd.lsn import end_of_commits, format_lsn, parse_lsn
from cdcd.snapshot.changed_keys import ChangedKeys
from cdcd.snapshot.running_xids import RUNNING, RunningTransactions
from cdcd.snapshot.visibility import Snapshot
from cdcd.source.connection import connect_sql
from tests.support.late_commits import END_WAITS, WAITING, let_commits_wait
from tests.support.nightly import nightly
from tests.support.source import make_slot, settings_for, streaming, until
from tests.support.stack import PostgresServers, run_script
from tests.support.waiting import eventually

MAJORS = (nightly(12), 18)


@contextlib.contextmanager
def server_with_table(pg_server: PostgresServers, major: int) -> Iterator[PostgresServer]:
    with pg_server.fresh(major) as server:
        run_script(
            server.dsn("postgres"),
            "CREATE TABLE public.t (k int PRIMARY KEY)",
            "CREATE PUBLICATION pub FOR TABLE public.t",
        )
        yield server


def rows(connection: Any, query: str) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(query)
        return list(cursor.fetchall())


def snapshot_of(connection: Any, major: int) -> Snapshot:
    name = "pg_current_snapshot" if major > 12 else "txid_current_snapshot"
    ((text,),) = rows(connection, f"SELECT {name}()::text")
    return Snapshot.parse(text)


def streamed(connection: Any) -> list[tuple[int, int]]:
    """Return the xid and the commit LSN of each transaction that the slot would send."""
    query = (
        "SELECT data FROM pg_logical_slot_peek_binary_changes(current_database()::name, NULL, NULL,"
        " 'proto_version', '1', 'publication_names', 'pub')"
    )
    begins = [bytes(data) for (data,) in rows(connection, query) if bytes(data)[:1] == b"B"]
    return [(int.from_bytes(one[17:21], "big"), int.from_bytes(one[1:9], "big")) for one in begins]


@pytest.mark.parametrize("major", MAJORS)
def test_a_streamed_transaction_may_be_invisible_and_above_xmax(
    pg_server: PostgresServers, major: int
) -> None:
    """F36: no LSN and no list of a snapshot shows this; its session's xid does, until it is visible."""
    with (
        server_with_table(pg_server, major) as server,
        contextlib.closing(connect_sql(settings_for(server, "postgres"))) as asked,
    ):
        let_commits_wait(server)
        make_slot(settings_for(server, "postgres"))
        commit = threading.Thread(
            target=run_script, args=(server.dsn("postgres"), "INSERT INTO public.t VALUES (1)")
        )
        commit.start()
        eventually(lambda: server.execute(WAITING), "the commit's wait for a standby")

        ((low,),) = rows(asked, "SELECT pg_current_wal_insert_lsn()::text")
        running = RunningTransactions(rows(asked, RUNNING))
        snapshot = snapshot_of(asked, major)
        ((xid, commit_lsn),) = streamed(asked)
        assert commit_lsn < parse_lsn(low), "a low watermark is too late for it"
        assert rows(asked, "SELECT * FROM public.t") == []
        assert not snapshot.sees(xid)
        assert not snapshot.in_progress, "the snapshot does not list it"
        assert running.xids == {xid}
        assert running.settled(rows(asked, RUNNING)) == frozenset()

        changed = ChangedKeys(1000)
        changed.refuse_until_visible(running.xids)
        assert not changed.may_use(snapshot)
        server.execute(END_WAITS)
        commit.join()
        later = snapshot_of(asked, major)
        assert rows(asked, "SELECT * FROM public.t") == [(1,)]
        assert later.sees(xid)
        assert later.includes(snapshot)
        assert changed.may_use(later)
        assert rows(asked, RUNNING) == []


@pytest.mark.parametrize("major", MAJORS)
def test_a_transaction_outside_its_commit_is_not_waited_for(pg_server: PostgresServers, major: int) -> None:
    """A session that is idle in its transaction, or that begins another statement, has no commit record yet."""
    with (
        server_with_table(pg_server, major) as server,
        contextlib.closing(connect_sql(settings_for(server, "postgres"))) as asked,
        contextlib.closing(psycopg2.connect(server.dsn("postgres"))) as session,
        contextlib.closing(psycopg2.connect(server.dsn("postgres"))) as locker,
        session.cursor() as cursor,
        locker.cursor() as locking,
    ):
        cursor.execute("INSERT INTO public.t VALUES (1)")
        assert len(rows(asked, RUNNING)) == 1
        assert RunningTransactions(rows(asked, RUNNING)).xids == frozenset()

        locking.execute("SELECT pg_advisory_lock(1), pg_advisory_lock(2)")
        steps = [
            threading.Thread(target=cursor.execute, args=(f"SELECT pg_advisory_lock({number})",))
            for number in (1, 2)
        ]
        steps[0].start()
        active = "SELECT query FROM pg_stat_activity WHERE state = 'active' AND wait_event = 'advisory'"
        eventually(lambda: rows(asked, active), "the first statement")
        running = RunningTransactions(rows(asked, RUNNING))
        (xid,) = running.xids
        assert running.settled(rows(asked, RUNNING)) == frozenset(), "it may be the statement that commits"
        locking.execute("SELECT pg_advisory_unlock(1)")
        steps[0].join()
        steps[1].start()
        eventually(lambda: rows(asked, active), "the second statement")
        assert running.settled(rows(asked, RUNNING)) == {xid}
        assert running.xids == frozenset()
        locking.execute("SELECT pg_advisory_unlock(2)")
        steps[1].join()


@pytest.mark.parametrize("major", MAJORS)
def test_prepared_transactions_are_waited_for(pg_server: PostgresServers, major: int) -> None:
    """Nothing shows whether another session is inside its COMMIT PREPARED."""
    with (
        server_with_table(pg_server, major) as server,
        contextlib.closing(connect_sql(settings_for(server, "postgres"))) as asked,
    ):
        server.execute("BEGIN; INSERT INTO public.t VALUES (1); PREPARE TRANSACTION 'one'")
        running = RunningTransactions(rows(asked, RUNNING))
        (xid,) = running.xids
        assert running.settled(rows(asked, RUNNING)) == frozenset()
        assert not snapshot_of(asked, major).sees(xid)
        server.execute("COMMIT PREPARED 'one'")
        assert snapshot_of(asked, major).sees(xid)


@pytest.mark.parametrize("major", MAJORS)
async def test_the_stream_reaches_the_end_of_the_last_record_and_not_the_insert_position(
    pg_server: PostgresServers, major: int
) -> None:
    """At the start of a page the insert position is behind the page's header: an idle stream never gets there."""
    with server_with_table(pg_server, major) as server:
        settings = settings_for(server, "postgres")
        make_slot(settings)
        ((block, segment),) = server.execute(
            "SELECT current_setting('wal_block_size')::int, pg_size_bytes(current_setting('wal_segment_size'))"
        )
        with contextlib.closing(connect_sql(settings)) as asked:
            async with streaming(settings, server_version_num=major * 10_000):
                for _ in range(5):  # the server may write WAL of its own in between
                    rows(asked, "SELECT pg_switch_wal()")
                    ((text,),) = rows(asked, "SELECT pg_current_wal_insert_lsn()::text")
                    insert_lsn = parse_lsn(text)
                    end_lsn = end_of_commits(insert_lsn, block_bytes=block, segment_bytes=segment)
                    sent = (
                        "SELECT sent_lsn::text FROM pg_stat_replication"
                        f" WHERE sent_lsn >= '{format_lsn(end_lsn)}'"
                    )
                    await until(
                        lambda sent=sent: rows(asked, sent), "the stream at the end of the last record"
                    )
                    ((reached,),) = rows(asked, sent)
                    if end_lsn == parse_lsn(reached) < insert_lsn:
                        return
    pytest.fail("the stream was never between the end of the last record and the insert position")
