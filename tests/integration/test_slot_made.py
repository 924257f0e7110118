"""`cdcd init` without a snapshot creates the slot: it names its blocker, and an interrupted init leaves no slot."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys

import psycopg2
import pytest

from cdcd.demo.stack.postgres import PostgresServer
from tests.integration.conftest import NewDaemon
from tests.support.daemon import environment_without_cdcd


@pytest.mark.parametrize("is_interrupted", [False, True])
def test_init_names_who_holds_the_slot_up(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, is_interrupted: bool
) -> None:
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY)", dbname=database)
    daemon = new_daemon(postgres, database, snapshot={"mode": "never"})
    command = [sys.executable, "-m", "cdcd", "init", "--config", str(daemon.config_path)]
    environment = environment_without_cdcd()
    with contextlib.closing(psycopg2.connect(postgres.dsn(database))) as writing:
        writing.cursor().execute("INSERT INTO t VALUES (1)")
        with subprocess.Popen(
            command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, env=environment
        ) as init:
            assert init.stderr is not None
            line = init.stderr.readline().decode()
            assert f"pid {writing.info.backend_pid} of {postgres.superuser} in database {database}" in line
            if is_interrupted:
                init.send_signal(signal.SIGINT)
                assert init.wait(60) != 0
            writing.commit()
            if not is_interrupted:
                assert init.wait(60) == 0
    slots = postgres.execute("SELECT slot_name FROM pg_replication_slots WHERE slot_name = %s", daemon.slot)
    assert len(slots) == (0 if is_interrupted else 1)
