"""`cdcd verify` calls no row missing that the last copy of its table has left out, or that cdcd is about to copy."""

from __future__ import annotations

import pytest

from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.postgres import PostgresServer
from cdcd.model import CopyState
from cdcd.sink.progress import key_of, load
from tests.integration.conftest import NewDaemon
from tests.support.daemon import Daemon, await_confirmed
from tests.support.snapshot_commands import await_copied, command, reports, start
from tests.support.topics import committed_records
from tests.support.waiting import eventually
from tests.verify.planting import unseen
from tests.verify.running import Verified, verify

ROWS = 900
FILLED = f"INSERT INTO t SELECT n, 'x' FROM generate_series(1, {ROWS}) n"


def streaming(postgres: PostgresServer, database: str, new_daemon: NewDaemon) -> Daemon:
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY, note text)", dbname=database)
    postgres.execute(FILLED, dbname=database)
    daemon = new_daemon(postgres, database, source={"protocol": {"origin": "none"}})
    postgres.execute(f"DROP PUBLICATION cdcd_{daemon.name}", dbname=database)
    postgres.execute(f"CREATE PUBLICATION cdcd_{daemon.name} FOR TABLE t", dbname=database)
    daemon.config["snapshot"] = {"incremental": {"max_rows_per_second": 300}}
    daemon.start().wait_state("streaming")
    return daemon


def counts(found: Verified) -> tuple[int, int, int]:
    """Return the exit status, and the rows that are missing and different."""
    return found.status, found.one()["missing"], found.one()["different"]


def recorded_copy(daemon: Daemon, kafka: KafkaBroker) -> CopyState:
    """Return the state of the copies in the last progress record."""
    records = committed_records(kafka.bootstrap, f"{daemon.name}.__progress")
    values = [one.value() for one in records if one.key() == key_of(daemon.slot)]
    return load(values[-1] or b"").copy or CopyState()


def await_recorded(daemon: Daemon, kafka: KafkaBroker) -> None:
    """Wait until the copies are complete, and the progress record says so: it is what the command reads."""
    await_copied(daemon)
    eventually(lambda: not recorded_copy(daemon, kafka).tables, "the end of the copy is recorded")


@pytest.mark.nightly
def test_rows_that_a_condition_or_a_stop_left_out_are_unknown(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, kafka: KafkaBroker
) -> None:
    daemon = streaming(postgres, database, new_daemon)
    assert verify(daemon).status == 0
    start(daemon, "public.t", where="id <= 100", recopy=True)
    await_recorded(daemon, kafka)
    await_confirmed(postgres, daemon)
    assert daemon.stop() == 0
    daemon.start().wait_state("streaming")
    found = verify(daemon)
    assert counts(found) == (2, 0, 0), found
    assert f"{ROWS - 100} rows have no record" in found.one()["reason"]
    assert "--where" in found.one()["reason"]
    with unseen(postgres, database) as cursor:
        cursor.execute("UPDATE t SET note = 'y' WHERE id = 1")
    await_confirmed(postgres, daemon)
    assert counts(verify(daemon)) == (1, 0, 1)
    start(daemon, "public.t", recopy=True)
    eventually(lambda: reports(daemon) and reports(daemon)[0]["rows"] > 0, "some rows")
    assert command(daemon, "stop")[0] == 200
    found = verify(daemon)
    assert counts(found) == (2, 0, 0), found
    assert "stopped" in found.one()["reason"]
    start(daemon, "public.t", recopy=True)
    await_recorded(daemon, kafka)
    assert counts(verify(daemon)) == (0, 0, 0)
    with unseen(postgres, database) as cursor:
        cursor.execute("INSERT INTO t VALUES (5000, 'lost')")
    assert counts(verify(daemon)) == (1, 1, 0)


def join_table(
    postgres: PostgresServer, database: str, daemon: Daemon, columns: str = "id int PRIMARY KEY"
) -> None:
    """Create the table `late` with rows, and add it to the publication."""
    for statement in (
        f"CREATE TABLE late ({columns})",
        f"INSERT INTO late SELECT generate_series(1, {ROWS})",
        f"ALTER PUBLICATION cdcd_{daemon.name} ADD TABLE late",
    ):
        postgres.execute(statement, dbname=database)


def test_a_table_that_cdcd_is_about_to_copy_misses_no_row(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, kafka: KafkaBroker
) -> None:
    daemon = streaming(postgres, database, new_daemon)
    join_table(postgres, database, daemon)
    postgres.execute(
        "UPDATE late SET id = -1 WHERE id = 1", dbname=database
    )  # the topic exists before the copy
    found = verify(daemon, "--table", "public.late")
    assert found.status in (0, 2), found
    await_recorded(daemon, kafka)
    eventually(lambda: verify(daemon, "--table", "public.late").status == 0, "the copy is complete")


def test_a_table_that_joins_and_is_copied_by_a_condition_first_lacks_rows(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, kafka: KafkaBroker
) -> None:
    """The command takes the place of the copy that cdcd would begin by itself."""
    daemon = streaming(postgres, database, new_daemon)
    join_table(postgres, database, daemon)
    start(daemon, "public.late", where="id <= 600")
    assert command(daemon, "pause", "public.late")[0] == 200
    eventually(lambda: len(recorded_copy(daemon, kafka).partial) == 1, "cdcd has seen the new table")
    assert command(daemon, "resume", "public.late")[0] == 200
    await_recorded(daemon, kafka)
    await_confirmed(postgres, daemon)
    found = verify(daemon, "--table", "public.late")
    assert counts(found) == (2, 0, 0), found
    assert f"{ROWS - 600} rows have no record" in found.one()["reason"]
    start(daemon, "public.late")
    await_recorded(daemon, kafka)
    assert verify(daemon, "--table", "public.late").status == 0
    assert not recorded_copy(daemon, kafka).partial


@pytest.mark.nightly
def test_a_table_that_joins_and_whose_copy_cannot_begin_lacks_rows(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, kafka: KafkaBroker
) -> None:
    """Its rules name a column that it does not have: cdcd tries again until they are corrected."""
    daemon = streaming(postgres, database, new_daemon)
    assert daemon.stop() == 0
    daemon.config["snapshot"]["overrides"] = [{"table": "public.late", "columns": ["nope"]}]
    daemon.start().wait_state("streaming")
    join_table(postgres, database, daemon, "id int PRIMARY KEY, note text")
    postgres.execute("INSERT INTO late VALUES (5000)", dbname=database)
    eventually(lambda: bool(daemon.events("new_table_not_begun")), "the copy cannot begin")
    await_confirmed(postgres, daemon)
    found = verify(daemon, "--table", "public.late")
    assert counts(found) == (2, 0, 0), found
    assert "its copy waits" in found.one()["reason"]
    assert daemon.stop() == 0
    daemon.config["snapshot"]["overrides"] = []
    daemon.start().wait_state("streaming")
    eventually(lambda: not recorded_copy(daemon, kafka).partial, "the table is copied")
    assert verify(daemon, "--table", "public.late").status == 0
