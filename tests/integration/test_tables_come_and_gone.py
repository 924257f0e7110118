"""Tables that are in the publications only while no daemon runs: the stream has their changes of that time."""

from __future__ import annotations

from cdcd.demo.stack.postgres import PostgresServer
from tests.integration.conftest import NewDaemon
from tests.integration.test_snapshot_abandoned import lacking, listed
from tests.support.daemon import await_confirmed
from tests.support.reader import Reader
from tests.support.snapshot_commands import await_copied
from tests.support.stack import run
from tests.support.waiting import eventually

TABLES = (
    "CREATE TABLE t (id int PRIMARY KEY)",
    "CREATE TABLE former (id int PRIMARY KEY)",
    "INSERT INTO former VALUES (1)",
    "CREATE TABLE visitor (id int PRIMARY KEY, n int)",
    "INSERT INTO visitor SELECT g, 0 FROM generate_series(1, 100) g",
    "CREATE TABLE parted (id int PRIMARY KEY) PARTITION BY RANGE (id)",
)
MEANWHILE = (
    "ALTER PUBLICATION {pub} ADD TABLE visitor",
    "UPDATE visitor SET n = 1 WHERE id = 1",
    "INSERT INTO former VALUES (2)",
    "ALTER PUBLICATION {pub} DROP TABLE visitor, former",
    "CREATE TABLE dropped (id int PRIMARY KEY)",
    "CREATE TABLE part (id int PRIMARY KEY)",
    "ALTER PUBLICATION {pub} ADD TABLE dropped, part",
    "INSERT INTO dropped VALUES (1)",
    "INSERT INTO part VALUES (1)",
    "DROP TABLE dropped",
    "ALTER PUBLICATION {pub} DROP TABLE part",
    "ALTER TABLE parted ATTACH PARTITION part FOR VALUES FROM (1) TO (10)",
)


def test_a_table_that_has_come_and_gone_while_no_daemon_ran_is_not_shown_as_complete(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon, reader: Reader
) -> None:
    """One that was dropped, filled and attached, or known before, lacks nothing."""
    run(postgres, database, *TABLES)
    with new_daemon(postgres, database) as daemon:
        pub = f"cdcd_{daemon.name}"
        options = "WITH (publish_via_partition_root)"
        run(
            postgres,
            database,
            f"DROP PUBLICATION {pub}",
            f"CREATE PUBLICATION {pub} FOR TABLE t, former, parted {options}",
        )
        daemon.start().wait_state("streaming")
        await_confirmed(postgres, daemon)
        assert daemon.stop() == 0
        run(postgres, database, *(sql.format(pub=pub) for sql in MEANWHILE))
        daemon.start().wait_state("streaming")
        await_confirmed(postgres, daemon)
        eventually(lambda: listed(daemon) == {"visitor"}, "the comparison has judged the tables")
        eventually(lambda: lacking(daemon) == {"visitor"}, "its result is recorded")
        assert [event.op for event in reader.read(f"{daemon.name}.public.visitor")] == ["u"]
        daemon.kill()
        daemon.start().wait_state("streaming")
        assert listed(daemon) == lacking(daemon) == {"visitor"}
        run(postgres, database, f"ALTER PUBLICATION {pub} ADD TABLE visitor")
        eventually(lambda: not listed(daemon), "the table is complete")
        await_copied(daemon)
        assert lacking(daemon) == set()
        ops = [event.op for event in reader.read(f"{daemon.name}.public.visitor")]
        assert "t" in ops, "rows may have been deleted meanwhile"
        assert ops.count("r") == 100
