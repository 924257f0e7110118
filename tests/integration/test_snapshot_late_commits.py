"""A first snapshot while commits become visible late, in another order than their records: nothing is lost (F36)."""

from __future__ import annotations

import pytest

from cdcd.failpoints import EXIT_STATUS, VARIABLE
from tests.integration.conftest import NewDaemon
from tests.support.daemon import await_confirmed
from tests.support.late_commits import TABLE, LateCommits
from tests.support.nightly import nightly
from tests.support.reader import Reader, assert_each_once, fold
from tests.support.stack import PostgresServers, run_script
from tests.support.waiting import eventually

KEYS = 40


@pytest.mark.parametrize("major", [nightly(14), 18])
@pytest.mark.parametrize("crash", ["", "committed:1"])
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
