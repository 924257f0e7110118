"""F36: the commits of transactions are streamed before they are visible, and become visible in another order."""

from __future__ import annotations

import pytest

from tests.integration.conftest import NewDaemon
from tests.support.daemon import await_confirmed
from tests.support.folded import folded
from tests.support.late_commits import TABLE, LateCommits
from tests.support.nightly import nightly
from tests.support.reader import Reader, assert_each_once
from tests.support.snapshot_commands import await_copied, start
from tests.support.stack import PostgresServers, run_script

COPIES, FEW_COPIES = 12, 6


@pytest.mark.parametrize(("major", "copies"), [nightly(12, COPIES), (18, FEW_COPIES), nightly(18, COPIES)])
def test_copies_while_commits_become_visible_late(
    major: int, copies: int, pg_server: PostgresServers, new_daemon: NewDaemon, reader: Reader
) -> None:
    with pg_server.fresh(major) as server:
        run_script(server.dsn("postgres"), *TABLE)
        with new_daemon(server, "postgres", snapshot={"mode": "never"}) as daemon:
            daemon.start().wait_state("streaming")
            late = LateCommits(server, keys=400, sessions=6, seed=major)
            with late.running():
                for number in range(copies):
                    start(daemon, "public.t", recopy=number % 3 == 2)
                    await_copied(daemon)
            await_confirmed(server, daemon)
            events = reader.read(f"{daemon.name}.public.t")
            assert_each_once(events)
            rows = server.execute("SELECT k, ver, trim(big)::int FROM public.t")
            found = [(row["k"], row["ver"], int(row["big"])) for row in folded(events).values()]
            assert sorted(found) == sorted(rows)
            assert sum(event.op == "r" for event in events) > copies
