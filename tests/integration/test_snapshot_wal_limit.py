"""While an initial snapshot runs, /status has the WAL that its slot retains, and whether a limit is reached first."""

from __future__ import annotations

from typing import Any

import pytest

from tests.faults.link import linked_by
from tests.integration.conftest import NewDaemon
from tests.support.daemon import Daemon
from tests.support.stack import PostgresServers, run_script
from tests.support.waiting import eventually

TABLES = (
    "CREATE TABLE t (id int PRIMARY KEY, body text)",
    "INSERT INTO t SELECT g, repeat(md5(g::text), 12) FROM generate_series(1, 40000) g",
    "ANALYZE t",
)
SLOW_BYTES_PER_S = 400_000
"""The copy takes half a minute if nothing changes."""
LIMIT_BYTES = 96 << 20
WAL_BYTES = 2 << 20
WRITE_WAL = f"SELECT pg_logical_emit_message(false, 'wal', repeat('x', {WAL_BYTES}))"


def shown(daemon: Daemon) -> dict[str, Any]:
    """Return what /status has of the snapshot, with a new sample of the slot."""
    daemon.get("/metrics")
    return daemon.status().get("snapshot") or {}


@pytest.mark.nightly  # the arithmetic is in tests/unit/monitoring/test_copy_status.py
def test_status_tells_whether_the_limit_is_reached_before_the_copy_ends(
    pg_server: PostgresServers, new_daemon: NewDaemon
) -> None:
    with pg_server.fresh(18, settings={"max_slot_wal_keep_size": "96MB"}) as server:
        run_script(server.dsn("postgres"), *TABLES)
        with linked_by(new_daemon)(server, "postgres", snapshot={"workers": 1}) as (daemon, link):
            link.slow(bytes_per_s=SLOW_BYTES_PER_S)
            daemon.start()
            eventually(lambda: shown(daemon).get("ends_before_wal_limit") is True, "the copy ends first")
            before = shown(daemon)
            assert before["retained_wal_bytes"] + before["safe_wal_bytes"] >= LIMIT_BYTES / 2
            written = 0
            while shown(daemon).get("ends_before_wal_limit") is not False:
                assert written < LIMIT_BYTES / 2, "the limit is announced long before it is reached"
                server.execute(WRITE_WAL)
                written += WAL_BYTES
            after = shown(daemon)
            assert after["retained_wal_bytes"] >= before["retained_wal_bytes"] + written / 2
            assert after["safe_wal_bytes"] <= before["safe_wal_bytes"] - written / 2
            assert after["safe_wal_bytes"] > 0
            link.heal()
            daemon.wait_state("streaming")
            assert daemon.status()["snapshot"] is None
