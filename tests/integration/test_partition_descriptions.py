"""F78: a row and its description come from different tables, or from different times.

Partitions with other columns than their root's or the same in another order, column lists and row filters of one or
several publications, identities that change between two rows, partitions that leave and come back, tables that
inherit: the records fold to the result of SELECT.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from cdcd.demo.stack.postgres import PostgresServer
from cdcd.errors import ReplicaIdentityIncomplete
from tests.integration.test_partition_identities import LONG, folded
from tests.support.decoding import decode
from tests.support.source import make_slot, settings_for
from tests.support.stack import PostgresServers, drop_database, new_database_name, run_script

TABLE = (
    "CREATE TABLE t (id int PRIMARY KEY, v text, w int, big text) PARTITION BY RANGE (id)",
    "CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (1000)",
    "ALTER TABLE t1 ALTER big SET STORAGE EXTERNAL",
)
TURNED = (
    # other columns before it, one dropped, and the same ones in another order
    "CREATE TABLE t2 (gone int, big text, w int, dropped text, v text, id int NOT NULL)",
    "ALTER TABLE t2 ALTER big SET STORAGE EXTERNAL, DROP COLUMN gone, DROP COLUMN dropped",
    "ALTER TABLE t ATTACH PARTITION t2 FOR VALUES FROM (1000) TO (2000)",
)
ROWS = (
    f"INSERT INTO t VALUES (1, 'a', 1, {LONG.format(1)}), (2, 'b', 2, {LONG.format(2)})",
    f"INSERT INTO t VALUES (1001, 'c', 3, {LONG.format(3)}), (1002, 'd', 4, NULL)",
)
BY_W = (
    "ALTER TABLE t2 ALTER w SET NOT NULL, ADD CONSTRAINT by_w UNIQUE (w), ADD CONSTRAINT by_both UNIQUE (w, id)",
    "ALTER TABLE t2 REPLICA IDENTITY USING INDEX by_w",
)
CHANGES = (
    "UPDATE t SET w = w + 1",
    "UPDATE t SET id = id + 10 WHERE id IN (1, 1001)",
    "UPDATE t SET id = 1500 WHERE id = 2",
    "UPDATE t SET v = NULL WHERE id = 1002",
    "DELETE FROM t WHERE id = 1011",
)


@dataclass(frozen=True)
class Case:
    """The tables, the statements, and the published part of `t`."""

    name: str
    story: tuple[str, ...]
    setup: tuple[str, ...] = (*TABLE, *TURNED)
    published: tuple[str, ...] = ("TABLE t",)
    columns: str = "id, v, w, big"
    where: str = "true"
    since: int = 14
    halts: bool = False


CASES = [
    Case("another order of columns", (*ROWS, *CHANGES)),
    Case("another order, FULL", (*ROWS, *CHANGES), (*TABLE, *TURNED, "ALTER TABLE t2 REPLICA IDENTITY FULL")),
    Case(
        "a column list, which the server takes for the partition's own columns",
        (*ROWS, *CHANGES),
        published=("TABLE t (id, v)",),
        columns="id, v",
        since=15,
    ),
    Case(
        "the same of a partition by whose identity changes do not name their rows",
        (*ROWS, "UPDATE t SET v = 'x' WHERE id = 1001"),
        (*TABLE, *TURNED, *BY_W),
        published=("TABLE t (id, w)",),
        columns="id, w",
        since=15,
        halts=True,
    ),
    Case(
        "the same, with another identity by the time it is read",
        (*ROWS, "DELETE FROM t WHERE id = 1001", "ALTER TABLE t2 REPLICA IDENTITY DEFAULT"),
        (*TABLE, *TURNED, *BY_W),
        published=("TABLE t (id, w)",),
        columns="id, w",
        since=15,
        halts=True,
    ),
    Case(
        "the same, with one that looks alike in what the server says of it",
        (*ROWS, "DELETE FROM t WHERE id = 1001", "ALTER TABLE t2 REPLICA IDENTITY USING INDEX by_both"),
        (*TABLE, *TURNED, *BY_W),
        published=("TABLE t (id, w)",),
        columns="id, w",
        since=15,
        halts=True,
    ),
    Case(
        "the same without a key: what may be missing in the old row is named",
        (*ROWS, "DELETE FROM t WHERE id = 1001", "ALTER TABLE t2 REPLICA IDENTITY USING INDEX by_both"),
        (*TABLE, *TURNED, *BY_W, "ALTER TABLE t REPLICA IDENTITY NOTHING"),
        published=("TABLE t (id, w)",),
        columns="id, w",
        since=15,
    ),
    Case(
        "a row filter that rows come into and leave",
        (*ROWS, "UPDATE t SET id = id + 500 WHERE id IN (1, 1001)",
         "UPDATE t SET id = 101, big = NULL WHERE id = 501"),
        published=("TABLE t WHERE (id % 1000 < 400)",),
        where="id % 1000 < 400",
        since=15,
    ),
    Case(
        "row filters of two publications",
        (*ROWS, *CHANGES),
        published=("TABLE t WHERE (id < 1000)", "TABLE t WHERE (id >= 1000)"),
        since=15,
    ),
    Case(
        "the partition's identity changes between its rows",
        (*ROWS, "UPDATE t SET w = w + 1", "ALTER TABLE t1 REPLICA IDENTITY FULL", "UPDATE t SET id = id + 10",
         "ALTER TABLE t1 REPLICA IDENTITY DEFAULT", "UPDATE t SET id = id + 10, v = NULL",
         "DELETE FROM t WHERE w = 2"),
    ),
    Case(
        "the root's identity changes between its rows, and its partitions keep theirs",
        (*ROWS, "UPDATE t SET id = id + 10", "ALTER TABLE t REPLICA IDENTITY FULL", "UPDATE t SET id = id + 10",
         "ALTER TABLE t REPLICA IDENTITY NOTHING", "UPDATE t SET id = id + 10",
         "ALTER TABLE t REPLICA IDENTITY DEFAULT", "UPDATE t SET id = id + 10", "DELETE FROM t WHERE w = 2"),
    ),
    Case(
        "a partition leaves, changes its columns' order and its identity, and comes back",
        (*ROWS, *CHANGES, "DELETE FROM t2", "ALTER TABLE t DETACH PARTITION t2", "DROP TABLE t2",
         "CREATE TABLE t2 (w int, id int PRIMARY KEY, big text, v text)", "ALTER TABLE t2 REPLICA IDENTITY FULL",
         "INSERT INTO t2 VALUES (9, 1003, NULL, 'alone'); DELETE FROM t2",
         "ALTER TABLE t ATTACH PARTITION t2 FOR VALUES FROM (1000) TO (2000)",
         "INSERT INTO t VALUES (1003, 'back', 3, NULL), (1004, 'back', 4, NULL)", "UPDATE t SET id = id + 10",
         "DELETE FROM t WHERE w = 4"),
        since=15,  # 14 sends nothing of a partition that its session has met unpublished (docs/limits.md)
    ),
    Case(
        "columns come and go",
        (*ROWS, "ALTER TABLE t ADD COLUMN x int", "UPDATE t SET x = id, id = id + 10", "ALTER TABLE t DROP COLUMN v",
         "UPDATE t SET id = id + 10, w = NULL", "ALTER TABLE t ADD COLUMN v text",
         "UPDATE t SET v = 'new', id = id + 10"),
        columns="id, v, w, big, x",
    ),
    Case(
        "partitions of partitions",
        (*ROWS, "INSERT INTO t VALUES (2001, 'e', 5, NULL), (2501, 'f', 6, NULL)", *CHANGES,
         "UPDATE t SET id = id + 600 WHERE id = 2001", "DELETE FROM t WHERE id = 2501 AND v = 'f'"),
        (*TABLE, *TURNED, "CREATE TABLE t3 (big text, w int, id int NOT NULL, v text) PARTITION BY RANGE (id)",
         "CREATE TABLE t4 PARTITION OF t3 FOR VALUES FROM (2000) TO (2500)",
         "CREATE TABLE t5 (id int NOT NULL, big text, v text, w int)",
         "ALTER TABLE t3 ATTACH PARTITION t5 FOR VALUES FROM (2500) TO (3000)",
         "ALTER TABLE t ATTACH PARTITION t3 FOR VALUES FROM (2000) TO (3000)",
         "ALTER TABLE t5 REPLICA IDENTITY FULL"),
    ),
    Case(
        "a stored column",
        (*ROWS, "UPDATE t SET w = w + 1", "UPDATE t SET id = id + 10", "DELETE FROM t WHERE w = 2"),
        (*TABLE, *TURNED, "ALTER TABLE t ADD COLUMN g int GENERATED ALWAYS AS (w * 2) STORED"),
    ),
    Case(
        "a table that inherits, with an identity of its own",
        ("INSERT INTO t VALUES (1, 'a', 1, NULL)", "UPDATE ONLY t SET id = 2",
         "INSERT INTO heir VALUES (7, 'h', 7, NULL)", "UPDATE heir SET w = 8, id = 8", "DELETE FROM heir",
         "UPDATE ONLY t SET w = 9"),
        ("CREATE TABLE t (id int PRIMARY KEY, v text, w int, big text)", "CREATE TABLE heir () INHERITS (t)",
         "ALTER TABLE heir REPLICA IDENTITY FULL"),
        published=("TABLE ONLY t",),
    ),
]  # fmt: skip
OLDER = [14, 15, 16, 17]


@pytest.fixture(
    scope="module", params=[18, *(pytest.param(major, marks=pytest.mark.long) for major in OLDER)]
)
def server(pg_server: PostgresServers, request: pytest.FixtureRequest) -> PostgresServer:
    return pg_server(request.param)


@pytest.fixture
def dbname(server: PostgresServer) -> Iterator[str]:
    name = new_database_name()
    server.create_database(name)
    yield name
    drop_database(server, name)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_what_is_written_folds_to_the_table(case: Case, server: PostgresServer, dbname: str) -> None:
    if server.major < case.since:
        server.execute("CREATE TABLE t (id int)", dbname=dbname)
        return  # these servers have neither column lists nor row filters, and 14 has a defect of its own
    dsn = server.dsn(dbname)
    run_script(dsn, "CREATE TABLE last (id int)", *case.setup)
    names = tuple(f"pub{number}" for number in range(len(case.published)))
    for name, what in zip(names, case.published, strict=True):
        run_script(dsn, f"CREATE PUBLICATION {name} FOR {what} WITH (publish_via_partition_root = true)")
    run_script(dsn, f"ALTER PUBLICATION {names[0]} ADD TABLE last")
    settings = replace(settings_for(server, dbname), publications=names)
    make_slot(settings)
    run_script(dsn, *case.story, "INSERT INTO last VALUES (1)")
    found = await decode(settings, "last", server_version_num=server.major * 10_000, streaming="off")
    if case.halts:
        assert isinstance(found.error, ReplicaIdentityIncomplete)
        return
    assert found.error is None
    columns = tuple(case.columns.split(", "))
    wanted = server.execute(
        f"SELECT {case.columns} FROM ONLY t WHERE {case.where}"
        if "heir" in str(case.setup)
        else f"SELECT {case.columns} FROM t WHERE {case.where}",
        dbname=dbname,
    )
    assert folded(found.of("t"), columns) == sorted(wanted, key=repr)


@pytest.mark.parametrize("key", ["g", "w, g"])
async def test_a_key_that_is_not_sent_whole_names_no_row(pg_server: PostgresServers, key: str) -> None:
    """Up to PostgreSQL 17 a generated column may be in the identity and is not sent; 18 refuses the change."""
    server, name = pg_server(17), new_database_name()
    server.create_database(name)
    try:
        run_script(
            server.dsn(name),
            "CREATE TABLE last (id int)",
            f"CREATE TABLE t (id int, w int, g int GENERATED ALWAYS AS (id * 2) STORED, PRIMARY KEY ({key}))",
            "CREATE PUBLICATION pub FOR ALL TABLES",
        )
        settings = settings_for(server, name)
        make_slot(settings)
        run_script(server.dsn(name), "INSERT INTO t VALUES (1, 1), (2, 1)", "DELETE FROM t WHERE id = 1")
        run_script(server.dsn(name), "UPDATE t SET w = 1", "INSERT INTO last VALUES (1)")
        found = await decode(settings, "last", server_version_num=170_000)
        assert isinstance(found.error, ReplicaIdentityIncomplete)
        assert 'ALTER TABLE "public"."t" REPLICA IDENTITY FULL' in found.error.advice
        for record in found.of("t")[2:]:
            assert record.value is not None
            assert record.value["source"]["special"] == {"before.id.not_logged": "true"}
    finally:
        drop_database(server, name)
