"""A first snapshot while commits become visible late, in another order than their records: nothing is lost (F36)."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import psycopg2
import pytest

from cdcd.demo.stack.postgres import PostgresServer
from cdcd.failpoints import EXIT_STATUS, VARIABLE
from tests.integration.conftest import NewDaemon
from tests.support.daemon import await_confirmed
from tests.support.late_commits import END_WAITS, TABLE, WAITING, LateCommits, let_commits_wait
from tests.support.nightly import nightly
from tests.support.reader import Reader, assert_each_once, fold
from tests.support.stack import PostgresServers, run_script
from tests.support.waiting import eventually

KEYS = 40


@pytest.mark.parametrize("major", [nightly(14), 18])
@pytest.mark.parametrize("crash", [nightly(""), "committed:1"])
def test_each_row_is_in_the_snapshot_or_in_the_stream_and_none_in_neither(
    crash: str, major: int, pg_server: PostgresServers, new_daemon: NewDaemon, reader: Reader
) -> None:
    """The WAL has commit records of transactions that are not visible when the slot is created."""
    with pg_server.fresh(major) as server:
        run_script(server.dsn("postgres"), *TABLE)
        late = LateCommits(server, keys=KEYS, sessions=6, seed=major)
        with new_daemon(server, "postgres", sink={"commit": {"max_rows": 10}}) as daemon:
            with late.running():
                eventually(lambda: len(late.big_of) > 100, "many versions are written")
                for failpoint in (crash, "")[not crash :]:
                    daemon.environment[VARIABLE] = failpoint
                    daemon.start()
                    if failpoint:
                        assert daemon.wait_exit() == EXIT_STATUS
                daemon.wait_state("streaming", deadline_s=120)
                seen = len(late.big_of)
                eventually(lambda: len(late.big_of) > seen + 100, "the sessions go on")
            await_confirmed(server, daemon)
            assert daemon.stop() == 0
            events = reader.read(f"{daemon.name}.public.t")
            assert_each_once(events)
            rows = {key: (row["ver"], row["big"]) for key, row in fold(events, lambda row: row["k"]).items()}
            table = server.execute("SELECT k, ver, big FROM public.t", dbname="postgres")
            assert rows == {key: (ver, big) for key, ver, big in table}
            assert any(event.op == "r" for event in events)


NEW_ROW = "INSERT INTO public.t VALUES (%s, %s, '')"
LOCALLY = "SET LOCAL synchronous_commit = local"
"""This commit does not wait for the standby."""
SLOT_WAITS = "SELECT 1 FROM pg_locks WHERE NOT granted AND transactionid::text = %s::text"


class Open:
    """A session with an open transaction that has a row of `public.t`, and its xid."""

    def __init__(self, server: PostgresServer, key: int) -> None:
        self._connection = psycopg2.connect(server.dsn("postgres"))
        with self._connection.cursor() as cursor:
            cursor.execute(LOCALLY)
            cursor.execute(NEW_ROW, (key, key))
            cursor.execute("SELECT txid_current()")
            ((self.xid,),) = cursor.fetchall()

    def commit(self) -> None:
        self._connection.commit()
        self._connection.close()


def waiting_commit(server: PostgresServer, key: int) -> threading.Thread:
    """Start a commit of one row and return when it waits for the standby: its record is written."""
    before = len(server.execute(WAITING))
    statement = NEW_ROW.replace("%s", str(key))
    thread = threading.Thread(target=run_script, args=(server.dsn("postgres"), statement))
    thread.start()
    eventually(lambda: len(server.execute(WAITING)) > before, "the commit's wait for a standby")
    return thread


def visible(server: PostgresServer) -> set[Any]:
    return {key for (key,) in server.execute("SELECT k FROM public.t")}


@pytest.mark.parametrize("major", [nightly(12), nightly(14), 18])
def test_a_commit_that_waits_for_a_standby_while_the_slot_is_created_is_copied_once(
    major: int, pg_server: PostgresServers, new_daemon: NewDaemon, reader: Reader
) -> None:
    """The commit's record is before the consistent point, so it is not streamed; no query sees its row yet.

    The server waits for the transactions of its first list (1) and of its second one (2). What commits after the
    second list was made (3), and waits, is in the slot's snapshot, and in no other one.
    """
    with pg_server.fresh(major) as server, contextlib.ExitStack() as stack:
        run_script(server.dsn("postgres"), *TABLE, NEW_ROW.replace("%s", "0"))
        with new_daemon(server, "postgres") as daemon:
            let_commits_wait(server)
            first = Open(server, 1)
            daemon.start()
            eventually(lambda: server.execute(SLOT_WAITS, first.xid), "the slot's creation waits for (1)")
            second = Open(server, 2)
            first.commit()
            eventually(lambda: server.execute(SLOT_WAITS, second.xid), "the slot's creation waits for (2)")
            parked = waiting_commit(server, 3)
            stack.callback(parked.join)
            stack.callback(server.execute, END_WAITS)
            second.commit()
            daemon.wait_state("streaming")
            later = waiting_commit(server, 4)
            stack.callback(later.join)
            stack.callback(server.execute, END_WAITS)
            assert visible(server) == {0, 1, 2}
            events = reader.wait([f"{daemon.name}.public.t"], lambda found: len(found) >= 5)
            assert sorted((event.value["after"]["k"], event.op) for event in events) == [
                (0, "r"),
                (1, "r"),
                (2, "r"),
                (3, "r"),
                (4, "c"),
            ]
            server.execute(END_WAITS)
            parked.join()
            later.join()
            assert visible(server) == {0, 1, 2, 3, 4}
            await_confirmed(server, daemon)
            assert len(reader.read(f"{daemon.name}.public.t")) == 5
