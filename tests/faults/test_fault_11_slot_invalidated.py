"""Fault 11: a slot that the server has invalidated, and the two resolutions (F23).

These tests cause `wal_removed` and `idle_timeout`. `rows_removed` and `wal_level_insufficient` occur only for slots
of a standby (a primary with logical slots does not start with a lower wal_level): they are in the table of verdicts,
`tests/unit/recovery/test_start_decision.py`.
"""

from __future__ import annotations

import re

import pytest

from cdcd.demo.stack.postgres import PostgresServer
from tests.faults.test_fault_10_slot_moved import (
    goes_on_with_a_marked_gap,
    halted,
    is_copied_anew,
    wal_status,
)
from tests.integration.conftest import NewDaemon
from tests.support.daemon import Daemon
from tests.support.hints import commands_in, hint_of
from tests.support.nightly import nightly
from tests.support.reader import Reader
from tests.support.resolutions import ACCEPT_GAP, RESNAPSHOT
from tests.support.stack import PostgresServers, run_script
from tests.support.waiting import eventually


def outgrown(server: PostgresServer, database: str, daemon: Daemon) -> None:
    """F23: more WAL than max_slot_wal_keep_size."""
    run_script(
        server.dsn(),
        "ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'",
        "SELECT pg_reload_conf()",
        *["SELECT pg_logical_emit_message(false, 'x', 'x'), pg_switch_wal()", "CHECKPOINT"] * 3,
    )
    eventually(lambda: wal_status(server, daemon) == "lost", "the slot is lost")
    run_script(server.dsn(), "ALTER SYSTEM RESET max_slot_wal_keep_size", "SELECT pg_reload_conf()")


@pytest.mark.parametrize("way", [nightly(ACCEPT_GAP), RESNAPSHOT])
def test_a_slot_that_the_server_gave_up_is_made_anew(
    pg_server: PostgresServers, new_daemon: NewDaemon, reader: Reader, way: tuple[str, ...]
) -> None:
    """F23: max_slot_wal_keep_size invalidates the slot, and the halt names the cause."""
    with pg_server.fresh(18, settings={"max_wal_size": "32MB", "min_wal_size": "32MB"}) as server:
        daemon = new_daemon(server, "postgres")
        reason = halted(server, "postgres", daemon, outgrown, "CDCD-SLOT-LOST")
        assert "wal_removed" in reason
        assert way in commands_in(hint_of(reason))
        lost = re.compile(r'^cdcd_slot_wal_status\{[^}]*status="lost"[^}]*\} 1\.0$', re.M)
        eventually(lambda: lost.search(daemon.get("/metrics")[1]), "the metric shows the status")
        if way == RESNAPSHOT:
            is_copied_anew(server, "postgres", daemon, reader, "CDCD-SLOT-LOST")
        else:
            goes_on_with_a_marked_gap(server, "postgres", daemon, reader, "CDCD-SLOT-LOST")
        daemon.stop()


@pytest.mark.long
def test_a_slot_that_was_idle_for_too_long_is_copied_anew(
    pg_server: PostgresServers, new_daemon: NewDaemon, reader: Reader
) -> None:
    """F23: idle_replication_slot_timeout of PostgreSQL 18, whose minimum is one minute."""
    with pg_server.fresh(18, settings={"idle_replication_slot_timeout": "1min"}) as server:
        daemon = new_daemon(server, "postgres")

        def idle(server: PostgresServer, database: str, daemon: Daemon) -> None:
            def is_lost() -> bool:
                server.execute("CHECKPOINT")
                return wal_status(server, daemon) == "lost"

            eventually(is_lost, "the server has invalidated the idle slot", 150)

        assert "idle_timeout" in halted(server, "postgres", daemon, idle, "CDCD-SLOT-LOST")
        is_copied_anew(server, "postgres", daemon, reader, "CDCD-SLOT-LOST")
        daemon.stop()
