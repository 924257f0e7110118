"""Partitions that are attached, detached and created in the middle of an incremental snapshot of their root."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.conftest import NewDaemon
from tests.support.daemon import await_confirmed
from tests.support.folded import folded
from tests.support.gate import gate, stand_after_a_chunk
from tests.support.reader import Reader
from tests.support.snapshot_commands import await_copied, command
from tests.support.stack import PostgresServers, drop_database, new_database_name, run_script

PARTS = (
    "CREATE TABLE {table} (id int, part int, n int, note text, PRIMARY KEY (id, part)) PARTITION BY LIST (part)",
    "CREATE TABLE {table}_1 PARTITION OF {table} FOR VALUES IN (1)",
    # another order of the columns, and one that was dropped
    "CREATE TABLE {table}_2 (gone int, note text, n int, part int NOT NULL, id int NOT NULL)",
    "ALTER TABLE {table}_2 DROP gone",
    "ALTER TABLE {table} ATTACH PARTITION {table}_2 FOR VALUES IN (2)",
    "INSERT INTO {table} SELECT g, g % 2 + 1, 0, 'x' FROM generate_series(1, 5000) g",
    "CREATE TABLE {table}_3 (LIKE {table} INCLUDING ALL)",
    "INSERT INTO {table}_3 SELECT g, 3, 0, 'own' FROM generate_series(1, 100) g",
    "ANALYZE {table}",
)


@pytest.mark.nightly  # test_incremental_changes has other changes
@pytest.mark.parametrize("major", [14, 18])
def test_partitions_change_in_the_middle(
    major: int, pg_server: PostgresServers, new_daemon: NewDaemon, reader: Reader
) -> None:
    server, database = pg_server(major), new_database_name()
    changes = {
        "attached": ("ALTER TABLE attached ATTACH PARTITION attached_3 FOR VALUES IN (3)",),
        "created": (
            "CREATE TABLE created_9 PARTITION OF created FOR VALUES IN (9)",
            "INSERT INTO created SELECT g, 9, 7, 'new' FROM generate_series(1, 10) g",
        ),
        "prepared": ("CREATE TABLE prepared_9 PARTITION OF prepared FOR VALUES IN (9)",),
        "detached": ("ALTER TABLE detached DETACH PARTITION detached_1",),
        "changed": (
            "ALTER TABLE changed DETACH PARTITION changed_1",
            "UPDATE changed_1 SET n = 5 WHERE id < 100",
            "ALTER TABLE changed ATTACH PARTITION changed_1 FOR VALUES IN (1)",
        ),
        "truncated": ("TRUNCATE truncated", "INSERT INTO truncated VALUES (3, 1, 1, 'a'), (4, 2, 2, 'b')"),
        "moved": (
            "UPDATE moved SET part = 3 - part WHERE id % 10 = 0",
            "DELETE FROM moved WHERE id % 10 = 1",
        ),
    }
    server.create_database(database)
    try:
        for table in changes:
            run_script(server.dsn(database), *(one.format(table=table) for one in PARTS))
        daemon = new_daemon(server, database, snapshot={"mode": "never"})
        pub = f"cdcd_{daemon.name}"
        named = ", ".join(changes)
        run_script(
            server.dsn(database),
            f"DROP PUBLICATION {pub}",
            f"CREATE PUBLICATION {pub} FOR TABLE {named} WITH (publish_via_partition_root = true)",
        )
        with daemon, gate(server, database) as closed:
            daemon.start().wait_state("streaming")
            for table in changes:
                stand_after_a_chunk(daemon, closed, f"public.{table}")
            closed.open()
            for statements in changes.values():
                run_script(server.dsn(database), *statements)
            assert command(daemon, "resume")[0] == 200
            await_copied(daemon)
            await_confirmed(server, daemon)
            for table in changes:
                rows = server.execute(f"SELECT to_json(t) FROM {table} t", dbname=database)
                found = list(folded(reader.read(f"{daemon.name}.public.{table}")).values())
                if table == "detached":  # the stream has no event for its rows
                    found = [row for row in found if row["part"] != 1]
                assert sorted(map(by_key, found)) == sorted(by_key(row) for (row,) in rows), table
            again = {line["table"] for line in daemon.events("table_copied_again")}
            assert again == {"public.attached", "public.changed", "public.created"}
    finally:
        drop_database(server, database)


def by_key(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["part"], row["id"], row["n"], row["note"]
