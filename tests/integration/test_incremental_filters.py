"""The publication's row filter is changed in the middle of a copy: readers have the rows that it now lets through."""

from __future__ import annotations

import pytest

from cdcd.demo.stack.postgres import PostgresServer
from tests.integration.conftest import NewDaemon
from tests.support.daemon import await_confirmed
from tests.support.folded import folded
from tests.support.gate import gate
from tests.support.nightly import nightly
from tests.support.reader import Reader
from tests.support.snapshot_commands import await_copied, command, reports, start
from tests.support.stack import run_script

ROWS = 10_000


@pytest.mark.parametrize("is_restarted", [nightly(False), True], ids=["same process", "after a restart"])
def test_a_wider_filter_begins_the_copy_again(
    is_restarted: bool, postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    run_script(
        postgres.dsn(database),
        "CREATE TABLE t (id int PRIMARY KEY)",
        f"INSERT INTO t SELECT g FROM generate_series(1, {ROWS}) g",
    )
    daemon = new_daemon(postgres, database, snapshot={"mode": "never"})
    publication = f"cdcd_{daemon.name}"
    run_script(
        postgres.dsn(database),
        f"DROP PUBLICATION {publication}",
        f"CREATE PUBLICATION {publication} FOR TABLE t WHERE (id % 2 = 0)",
    )
    with daemon, gate(postgres, database) as closed:
        daemon.start().wait_state("streaming")
        start(daemon, "public.t", where="public.gate(id / 2)")
        closed.wait()
        assert command(daemon, "pause", "public.t")[0] == 200
        closed.pass_()
        assert reports(daemon)[0]["rows"] == 2000
        closed.open()
        if is_restarted:
            daemon.stop()
        run_script(postgres.dsn(database), f"ALTER PUBLICATION {publication} SET TABLE t WHERE (id > 0)")
        if is_restarted:
            daemon.start().wait_state("streaming")
        assert command(daemon, "resume", "public.t")[0] == 200
        await_copied(daemon)
        await_confirmed(postgres, daemon)
        assert len(folded(reader.read(f"{daemon.name}.public.t"))) == ROWS
        assert "row filter" in daemon.events("table_copied_again")[-1]["reason"]
