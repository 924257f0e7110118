"""The creation of a slot: it names its blocker, leaves no slot if interrupted, and ends a lost session."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading

import psycopg2
import pytest

from cdcd.demo.stack.postgres import PostgresServer
from cdcd.errors import SlotActive
from cdcd.session.slot_creation import create_slot_for_snapshot
from cdcd.source.connection import connect_sql
from cdcd.source.identity import identify
from cdcd.source.settings import SourceSettings
from cdcd.source.slot import CreatedSlot, temporary_name
from tests.integration.conftest import NewDaemon
from tests.support.daemon import environment_without_cdcd
from tests.support.nightly import nightly
from tests.support.waiting import eventually


@pytest.mark.parametrize("is_interrupted", [nightly(False), True])
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


def test_a_temporary_slot_that_a_lost_session_holds_is_given_free(
    postgres: PostgresServer, database: str
) -> None:
    """F24: a server does not notice for hours that the client of an idle session has gone."""
    settings = SourceSettings(
        postgres.dsn(database), lambda: None, temporary_name(database), ("pub",), "cdcd-test"
    )
    with contextlib.closing(connect_sql(settings)) as connection:
        server = identify(connection)

    def create() -> CreatedSlot:
        return create_slot_for_snapshot(settings, server, False, True, threading.Event(), is_temporary=True)

    with create():  # as an earlier attempt would have left it
        with pytest.raises(SlotActive, match="was ended"):
            create()
        held = "SELECT 1 FROM pg_replication_slots WHERE slot_name = %s"
        eventually(lambda: not postgres.execute(held, settings.slot), "its slot is gone")
        create().close()
