"""Tables that get another file while the daemon copies an earlier table: the topic equals the result of SELECT."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from cdcd.demo.stack.postgres import PostgresServer
from tests.integration.conftest import NewDaemon
from tests.support.daemon import await_confirmed
from tests.support.nightly import nightly
from tests.support.quick import QUICK, STALE_TRIES
from tests.support.reader import Reader, assert_each_once, fold
from tests.support.resolutions import command, halts_with
from tests.support.stack import run, run_script
from tests.support.waiting import eventually

EXCHANGE_FILES = """
    UPDATE pg_class c SET relfilenode = o.relfilenode FROM pg_class o
    WHERE (c.relname, o.relname) IN (('z', 'z_new'), ('z_new', 'z'))
"""
SWAP_IN = (
    "BEGIN",
    "CREATE TABLE z_new AS TABLE z",
    "LOCK TABLE z, z_new IN ACCESS EXCLUSIVE MODE",
    "SET LOCAL allow_system_table_mods = on",
    EXCHANGE_FILES,
    "COMMIT",
)


@pytest.mark.parametrize(
    ("statements", "is_stale"),
    [
        (("ALTER TABLE z ALTER COLUMN n TYPE bigint",), True),
        nightly(SWAP_IN, True),
        nightly(("TRUNCATE z", "INSERT INTO z VALUES (7, 7)"), True),
        nightly(("TRUNCATE z",), False),
        nightly(("VACUUM FULL z",), False),
    ],
    ids=["rewrite", "swap", "truncate and fill", "truncate", "vacuum full"],
)
def test_what_gets_another_file_during_the_snapshot_arrives_whole(
    statements: tuple[str, ...],
    is_stale: bool,
    postgres: PostgresServer,
    database: str,
    new_daemon: NewDaemon,
    reader: Reader,
) -> None:
    """F81: neither the snapshot nor the stream has the rows of a rewrite; a TRUNCATE is in the stream."""
    run(
        postgres,
        database,
        "CREATE TABLE a (id int PRIMARY KEY, pad text)",
        "INSERT INTO a SELECT g, repeat('x', 200) FROM generate_series(1, 30000) g",
        "CREATE TABLE z (id int PRIMARY KEY, n int)",
        "INSERT INTO z SELECT g, g FROM generate_series(1, 100) g",
    )
    with new_daemon(
        postgres, database, snapshot={"workers": 1}, sink={"commit": {"max_rows": 500}}
    ) as daemon:
        daemon.start()
        eventually(lambda: daemon.status().get("rows_written", 0) > 500, "a is being copied", pause_s=0.01)
        run_script(postgres.dsn(database), *statements)
        daemon.wait_state("streaming", deadline_s=120)
        await_confirmed(postgres, daemon)
        stale = [line for line in daemon.events("retrying") if line["code"] == "CDCD-SNAPSHOT-STALE"]
        assert len(stale) == is_stale, "z is copied first, so it is not stale again"
        assert len(daemon.events("copied_as_empty")) == (statements == ("TRUNCATE z",))
        for table in ("a", "z"):
            events = reader.read(f"{daemon.name}.public.{table}")
            assert_each_once(events)
            ids = {row[0] for row in postgres.execute(f"SELECT id FROM {table}", dbname=database)}
            assert set(fold(events, lambda row: row["id"])) == ids
        assert daemon.stop() == 0


ALWAYS_ANOTHER = """
    DO $$
    BEGIN
        WHILE EXISTS (SELECT FROM goes_on) LOOP
            TRUNCATE z; INSERT INTO z VALUES (7, 7); COMMIT; PERFORM pg_sleep(0.002);
        END LOOP;
    END $$
"""


@pytest.mark.nightly
def test_a_table_that_is_never_left_alone_halts_and_arrives_whole_once_it_is(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    """F81: cdcd does not restart a snapshot for ever."""
    run(
        postgres,
        database,
        "CREATE TABLE a (id int PRIMARY KEY)",
        "CREATE TABLE z (id int PRIMARY KEY, n int)",
        "CREATE TABLE goes_on AS SELECT 1",
    )
    with ThreadPoolExecutor(1) as pool, new_daemon(postgres, database) as daemon:
        daemon.entry = QUICK
        rewriting = pool.submit(run_script, postgres.dsn(database), ALWAYS_ANOTHER)
        try:
            reason = halts_with(daemon.start(), "CDCD-SNAPSHOT-STALE")
        finally:
            run(postgres, database, "TRUNCATE goes_on")
        rewriting.result(30)
        assert "table=public.z" in reason
        assert "run no command that rewrites the table" in reason
        stale = [line for line in daemon.events("retrying") if line["code"] == "CDCD-SNAPSHOT-STALE"]
        assert len(stale) == STALE_TRIES - 1
        assert command(daemon, "resume").returncode == 0
        daemon.wait_state("streaming")
        await_confirmed(postgres, daemon)
        assert set(fold(reader.read(f"{daemon.name}.public.z"), lambda row: row["id"])) == {7}
        assert daemon.stop() == 0
