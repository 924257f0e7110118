"""`cdcd drop-slot`: PostgreSQL no longer retains WAL, and a later start is not mistaken for a first one (F24)."""

from __future__ import annotations

import pytest

from cdcd.demo.stack.postgres import PostgresServer
from tests.integration.conftest import NewDaemon
from tests.support.resolutions import audited, command, halts_with
from tests.support.stack import PostgresServers

SLOTS = "SELECT plugin FROM pg_replication_slots WHERE slot_name = %s"


def test_it_goes_only_when_nobody_streams_and_a_start_says_that_it_is_gone(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon
) -> None:
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY)", dbname=database)
    daemon = new_daemon(postgres, database)
    daemon.start().wait_state("streaming")
    refused = command(daemon, "drop-slot")
    assert refused.returncode != 0
    assert "CDCD-RESUME-REFUSED: a daemon streams from the slot now" in refused.stderr
    assert daemon.stop() == 0

    would = command(daemon, "drop-slot", "--dry-run")
    assert would.stdout == f"would drop the slot {daemon.slot}\n"
    assert postgres.execute(SLOTS, daemon.slot) == [("pgoutput",)]
    line = audited(command(daemon, "drop-slot"))
    assert (line["event"], line["slot"]) == ("slot_dropped", daemon.slot)
    assert postgres.execute(SLOTS, daemon.slot) == []
    again = command(daemon, "drop-slot")
    assert (again.returncode, again.stdout) == (0, f"there is no slot {daemon.slot}\n")
    daemon.start()
    halts_with(daemon, "CDCD-SLOT-MISSING")


def test_the_slot_of_somebody_else_is_left_alone(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon
) -> None:
    daemon = new_daemon(postgres, database)
    postgres.execute(
        f"SELECT pg_create_logical_replication_slot('{daemon.slot}', 'test_decoding')", dbname=database
    )
    refused = command(daemon, "drop-slot")
    assert refused.returncode != 0
    assert "not one of cdcd's" in refused.stderr
    assert postgres.execute(SLOTS, daemon.slot) == [("test_decoding",)]


def test_the_slot_that_a_daemon_of_another_name_reads_is_left_alone(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon
) -> None:
    """F80: the other daemon is stopped, and its progress record names it as the slot's owner; its own command drops
    the slot.
    """
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY)", dbname=database)
    daemon, other = new_daemon(postgres, database), new_daemon(postgres, database)
    other.config["source"]["slot"] = {"name": daemon.slot}
    daemon.start().wait_state("streaming")
    assert daemon.stop() == 0
    refused = command(other, "drop-slot")
    assert refused.returncode != 0
    assert f"slot {daemon.slot} of database {database}" in refused.stderr
    assert f"(name {daemon.name})" in refused.stderr
    assert postgres.execute(SLOTS, daemon.slot) == [("pgoutput",)]
    audited(command(daemon, "drop-slot"))
    assert postgres.execute(SLOTS, daemon.slot) == []


@pytest.mark.nightly
def test_a_copy_of_the_file_that_names_another_server_drops_nothing_there(
    postgres: PostgresServer, database: str, pg_server: PostgresServers, new_daemon: NewDaemon
) -> None:
    """F79: staging and production with one file: the slot there has the same name, but belongs to another daemon."""
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY)", dbname=database)
    daemon = new_daemon(postgres, database)
    daemon.start().wait_state("streaming")
    assert daemon.stop() == 0
    with pg_server.fresh(18) as other:
        other.create_database(database)
        made = f"SELECT pg_create_logical_replication_slot('{daemon.slot}', 'pgoutput')"
        other.execute(made, dbname=database)
        daemon.config["source"]["dsn"] = other.dsn(database)
        for more in ((), ("--dry-run",)):
            refused = command(daemon, "drop-slot", *more)
            assert refused.returncode != 0
            assert "another server or database" in refused.stderr
        assert other.execute(SLOTS, daemon.slot) == [("pgoutput",)]
