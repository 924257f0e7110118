"""`cdcd snapshot status` while the initial snapshot is being taken."""

from __future__ import annotations

import json
import sys

from cdcd.demo.stack.postgres import PostgresServer
from tests.integration.conftest import NewDaemon
from tests.support.stack import run
from tests.support.waiting import eventually

ROWS = 300
SLOW = {"table": "public.slow", "where": "pg_catalog.pg_sleep(0.03) IS NOT NULL"}


def test_the_tables_of_an_initial_snapshot_are_shown_until_they_are_copied(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon
) -> None:
    run(
        postgres,
        database,
        "CREATE TABLE quick (id int PRIMARY KEY)",
        f"INSERT INTO quick SELECT generate_series(1, {ROWS})",
        "CREATE TABLE slow (id int PRIMARY KEY)",
        f"INSERT INTO slow SELECT generate_series(1, {ROWS})",
        "ANALYZE",
    )
    with new_daemon(postgres, database) as daemon:
        daemon.config["snapshot"] = {"overrides": [SLOW]}
        daemon.start()

        def shown() -> list[tuple[str, str, int | None]]:
            code, body = daemon.get("/snapshots")
            reports = json.loads(body) if code == 200 else []
            return [(one["table"], one["kind"], one["estimated_rows"]) for one in reports]

        eventually(lambda: ("public.slow", "initial", None) in shown(), "the slow table is being copied", 30)
        words = ["snapshot", "status", "--config", str(daemon.config_path)]
        printed = daemon.run_command([sys.executable, "-m", "cdcd", *words], daemon.folder, 60)
        assert printed.returncode == 0
        assert "public.slow" in printed.stdout
        assert "initial, " in printed.stdout
        daemon.wait_state("streaming")
        eventually(lambda: daemon.get("/snapshots") == (200, "[]"), "no table is left")
