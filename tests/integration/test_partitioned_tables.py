"""F78, with a daemon: partitions with another replica identity than their root, in `cdcd check`, the log and the
topics.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cdcd.demo.stack.postgres import PostgresServer
from tests.integration.conftest import NewDaemon
from tests.support.daemon import Daemon
from tests.support.nightly import nightly
from tests.support.quick import QUICK
from tests.support.reader import Reader
from tests.support.stack import PostgresServers, drop_database, new_database_name
from tests.support.waiting import eventually

ROOT_IS_FULL = """
    CREATE TABLE r (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
    CREATE TABLE r1 PARTITION OF r FOR VALUES FROM (0) TO (1000);
    ALTER TABLE r1 ALTER v SET STORAGE EXTERNAL;
    ALTER TABLE r REPLICA IDENTITY FULL
"""
PARTITION_HAS_A_KEY = """
    CREATE TABLE n (id int, v text) PARTITION BY RANGE (id);
    CREATE TABLE n1 PARTITION OF n FOR VALUES FROM (0) TO (10);
    ALTER TABLE n1 ADD PRIMARY KEY (id)
"""
INSERT_LONG = "INSERT INTO r VALUES (1, repeat('z', 5000))"


@pytest.fixture
def via_root(postgres: PostgresServer, database: str, new_daemon: NewDaemon) -> Iterator[Daemon]:
    """Return a daemon that publishes roots; its tables are those of the two examples."""
    postgres.execute(ROOT_IS_FULL + ";" + PARTITION_HAS_A_KEY, dbname=database)
    daemon = new_daemon(postgres, database, sink={"topics": {"partitions": 1}})
    postgres.execute(
        f"ALTER PUBLICATION cdcd_{daemon.name} SET (publish_via_partition_root = true)", dbname=database
    )
    daemon.entry = QUICK
    with daemon:
        yield daemon.start()


def reported(reader: Reader, daemon: Daemon, table: str, count: int) -> list[Any]:
    """Return per change: op, key, before, after, unchanged."""
    topic = f"{daemon.name}.public.{table}"
    events = reader.wait([topic], lambda events: len([one for one in events if one.op]) >= count)
    return [
        (one.op, one.key, one.value["before"], one.value["after"], one.source["unchanged"])
        for one in events
        if one.op
    ]


def test_the_examples(via_root: Daemon, postgres: PostgresServer, database: str, reader: Reader) -> None:
    via_root.wait_state("streaming")
    for statement in (INSERT_LONG, "UPDATE r SET id = 2", "INSERT INTO n VALUES (3, 'd'); DELETE FROM n"):
        postgres.execute(statement, dbname=database)
    assert reported(reader, via_root, "r", 3)[1:] == [
        ("d", {"id": 1}, {"id": 1, "v": None}, None, []),
        ("c", {"id": 2}, None, {"id": 2, "v": None}, ["v"]),
    ]
    assert reported(reader, via_root, "n", 2) == [
        ("c", None, None, {"id": 3, "v": "d"}, []),
        ("d", None, {"id": 3, "v": None}, None, []),
    ]
    identities = {line["table"]: line for line in via_root.events("partition_identity")}
    assert identities.keys() == {"public.r", "public.n"}
    assert 'ALTER TABLE "public"."r1" REPLICA IDENTITY FULL' in identities["public.r"]["hint"]
    assert "format.key_columns" in identities["public.n"]["hint"]


def test_a_change_that_names_no_row_halts_until_the_key_is_named(
    via_root: Daemon, postgres: PostgresServer, database: str, reader: Reader
) -> None:
    via_root.wait_state("streaming")
    postgres.execute("INSERT INTO n VALUES (3, 'd')", dbname=database)
    reported(reader, via_root, "n", 1)
    postgres.execute("UPDATE n SET v = 'e'", dbname=database)
    reason = via_root.wait_state("halted")["reason"]
    statement = 'ALTER TABLE "public"."n1" REPLICA IDENTITY FULL'
    for part in ("CDCD-REPLICA-IDENTITY", "table=public.n", "lsn=", statement, "format.key_columns"):
        assert part in reason
    via_root.stop()
    via_root.config["format"] = {"overrides": [{"table": r"public\.n", "key_columns": ["id"]}]}
    via_root.start().wait_state("streaming")
    assert reported(reader, via_root, "n", 2)[1] == ("u", {"id": 3}, None, {"id": 3, "v": "e"}, [])


def test_a_partition_that_comes_later_is_seen_and_so_is_the_end(
    via_root: Daemon, postgres: PostgresServer, database: str
) -> None:
    via_root.wait_state("streaming")
    postgres.execute("ALTER TABLE r1 REPLICA IDENTITY FULL; DROP TABLE n", dbname=database)
    eventually(
        lambda: (
            {line["table"] for line in via_root.events("partition_identity_complete")}
            == {"public.r", "public.n"}
        ),
        "both identities are complete",
    )
    postgres.execute("CREATE TABLE r2 (v text, id int NOT NULL)", dbname=database)
    postgres.execute("ALTER TABLE r ATTACH PARTITION r2 FOR VALUES FROM (1000) TO (2000)", dbname=database)
    eventually(
        lambda: any('"public"."r2"' in line["reason"] for line in via_root.events("partition_identity")),
        "r2 is seen",
    )


@pytest.mark.parametrize("major", [nightly(14), 18])
def test_check_says_what_partitions_leave_out(
    pg_server: PostgresServers, major: int, new_daemon: NewDaemon
) -> None:
    server, database = pg_server(major), new_database_name()
    server.create_database(database)
    try:
        server.execute(ROOT_IS_FULL + ";" + PARTITION_HAS_A_KEY, dbname=database)
        server.execute("CREATE TABLE n2 PARTITION OF n FOR VALUES FROM (10) TO (20)", dbname=database)
        daemon = new_daemon(server, database)
        publication = f"ALTER PUBLICATION cdcd_{daemon.name} SET (publish_via_partition_root = "
        assert "in partition" not in _checked(daemon)
        server.execute(publication + "true)", dbname=database)
        found = _checked(daemon)
        assert 'changes in partition "public"."r1" lack the old values' in found
        assert 'UPDATE or DELETE in partition "public"."n1" halts cdcd (CDCD-REPLICA-IDENTITY)' in found
        assert 'PostgreSQL refuses UPDATE and DELETE in partition "public"."n2"' in found
        for table in ("r1", "n1", "n2"):
            statement = f'ALTER TABLE "public"."{table}" REPLICA IDENTITY FULL'
            assert statement in found
            server.execute(statement, dbname=database)
        assert "in partition" not in _checked(daemon)
    finally:
        drop_database(server, database)


def _checked(daemon: Daemon) -> str:
    return daemon.run("check").stdout
