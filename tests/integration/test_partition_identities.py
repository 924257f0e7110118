"""F78: rows published as their root's, formed by the replica identity of their partition.

Every identity of a root with every identity of its partitions, published via the root or not, streamed or not, by
each key policy: the records fold to the table, as SELECT returns it, and their old rows equal test_decoding's; or
cdcd halts at the first change that does not identify its row, according to PostgreSQL's rules.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from psycopg2.errors import ObjectNotInPrerequisiteState

from cdcd.demo.stack.postgres import PostgresServer
from cdcd.errors import ReplicaIdentityIncomplete
from cdcd.schema.policy import Policies, Policy
from tests.matrix import account
from tests.matrix.account import UNCHANGED, Change
from tests.support.decoding import Decoded, decode
from tests.support.nightly import nightly_except
from tests.support.source import make_slot, settings_for
from tests.support.stack import (
    SUPPORTED_POSTGRES_MAJORS,
    PostgresServers,
    drop_database,
    in_one_transaction,
    new_database_name,
)

COLUMNS = ("id", "code", "k", "n", "big")
LONG = "(SELECT string_agg(md5((n + {0})::text), '') FROM generate_series(1, 300) n)"
FILLER = "INSERT INTO filler SELECT n, repeat('f', 200) FROM generate_series(1, 1000) n"

Columns = frozenset[str]
NONE: Columns = frozenset()
ALL: Columns = frozenset(COLUMNS)
PK, INDEX = frozenset({"id", "k"}), frozenset({"code", "k"})


@dataclass(frozen=True)
class Root:
    """A root: its definition, and the key of its records. `has_key`: partitions inherit a primary key."""

    sql: str
    key: Columns
    has_key: bool = True
    is_full: bool = False


ROOTS = {
    "default": Root("", PK),
    "index": Root("ALTER TABLE {0} REPLICA IDENTITY USING INDEX {0}_code_k_key", INDEX),
    "full": Root("ALTER TABLE {0} REPLICA IDENTITY FULL", PK, is_full=True),
    "nothing": Root("ALTER TABLE {0} REPLICA IDENTITY NOTHING", NONE),
    "keyless": Root("", NONE, has_key=False),
    "keyless_full": Root("ALTER TABLE {0} REPLICA IDENTITY FULL", NONE, has_key=False, is_full=True),
}
PARTITIONS = {
    "default": ("", PK),
    "own_key": ("ALTER TABLE {0} ADD PRIMARY KEY (id)", frozenset({"id"})),
    "same_index": ("ALTER TABLE {0} REPLICA IDENTITY USING INDEX {0}_code_k_key", INDEX),
    "own_index": ("ALTER TABLE {0} REPLICA IDENTITY USING INDEX {0}_code", frozenset({"code"})),
    "full": ("ALTER TABLE {0} REPLICA IDENTITY FULL", ALL),
    "nothing": ("ALTER TABLE {0} REPLICA IDENTITY NOTHING", NONE),
}
POLICIES = {
    "one_partition": Policy(),
    "row": Policy(keyless="row"),
    "key_columns": Policy(key_columns=("id",)),
}


@dataclass(frozen=True)
class Statement:
    """A change of existing rows; `changed`: the columns whose values it changes, all columns for a DELETE."""

    sql: str
    changed: Columns

    @property
    def is_delete(self) -> bool:
        return self.changed == ALL

    def names_its_row(self, identity: Columns, key: Columns) -> bool:
        """Return whether the change identifies its row: PostgreSQL logs the old tuple if the identity is FULL or
        changed, or for a DELETE.
        """
        if identity == ALL:
            return True
        is_logged = bool(self.changed & identity)
        if not key:
            return is_logged
        return key <= identity


INSERTS = (
    f"INSERT INTO {{0}} VALUES (1, 'c1', 1, 1, {LONG.format(1)}), (2, 'c2', 2, NULL, {LONG.format(2)})",
    f"INSERT INTO {{0}} VALUES (3, 'c3', 3, 3, {LONG.format(3)}), (4, 'c4', 4, 4, NULL)",
    f"INSERT INTO {{0}} VALUES (5, 'c5', 1005, 5, {LONG.format(5)})",
)
STATEMENTS = (
    Statement("UPDATE {0} SET n = 7 WHERE id = 1", frozenset({"n"})),
    Statement("UPDATE {0} SET id = 11 WHERE id = 1", frozenset({"id"})),
    Statement("UPDATE {0} SET code = 'x2' WHERE id = 2", frozenset({"code"})),
    Statement("UPDATE {0} SET id = 12, code = 'x12', n = NULL WHERE id = 2", frozenset({"id", "code"})),
    Statement("UPDATE {0} SET k = 9 WHERE id = 3", frozenset({"k"})),
    Statement("UPDATE {0} SET k = 1003 WHERE id = 3", ALL),  # into the other partition: DELETE and INSERT
    Statement("UPDATE {0} SET big = NULL WHERE id = 5", frozenset({"big"})),
    Statement(f"UPDATE {{0}} SET big = {LONG.format(9)} WHERE id = 5", frozenset({"big"})),
    Statement("DELETE FROM {0} WHERE id = 4", ALL),
)


@dataclass(frozen=True)
class Case:
    """A root with two partitions of one identity; `identity` is empty if PostgreSQL finds none."""

    root: Root
    partition: str
    identity: Columns

    def key(self, policy: str) -> Columns:
        """Return the key of the root's records under this policy."""
        if self.root.key or policy == "one_partition":
            return self.root.key
        if policy == "key_columns":
            return frozenset({"id"})
        return ALL if self.root.is_full else NONE

    def halting(self, policy: str) -> list[Statement]:
        """Return the statements whose changes do not identify their rows."""
        key = self.key(policy)
        return [one for one in STATEMENTS if self.identity and not one.names_its_row(self.identity, key)]

    def unlogged(self, policy: str) -> Columns:
        """Return the columns that old rows must mark as not logged."""
        is_marked = self.root.is_full or not self.key(policy)
        return ALL - self.identity if is_marked and self.identity else NONE

    def make(self, name: str) -> Iterator[str]:
        """Return the statements that create one table."""
        key = ", PRIMARY KEY (id, k)" if self.root.has_key else ""
        columns = "id int NOT NULL, code text NOT NULL, k int NOT NULL, n int, big text"
        yield f"CREATE TABLE {name} ({columns}, UNIQUE (code, k){key}) PARTITION BY RANGE (k)"
        yield self.root.sql.format(name)
        for part, low in ((f"{name}a", 0), (f"{name}b", 1000)):
            yield f"CREATE TABLE {part} PARTITION OF {name} FOR VALUES FROM ({low}) TO ({low + 1000})"
            yield f"ALTER TABLE {part} ALTER big SET STORAGE EXTERNAL"
            yield f"CREATE UNIQUE INDEX {part}_code ON {part} (code)"
            yield PARTITIONS[self.partition][0].format(part)


def cases() -> Iterator[Any]:
    for (root_name, root), (partition, (_, identity)) in itertools.product(ROOTS.items(), PARTITIONS.items()):
        if partition == "own_key" and root.has_key:
            continue  # the key exists already
        known = NONE if partition == "default" and not root.has_key else identity
        yield pytest.param(Case(root, partition, known), id=f"{root_name}-{partition}")


*OLDER, NEWEST = SUPPORTED_POSTGRES_MAJORS
MAJORS = (NEWEST, *(pytest.param(major, marks=pytest.mark.long) for major in OLDER))


@pytest.fixture(scope="module", params=MAJORS)
def server(pg_server: PostgresServers, request: pytest.FixtureRequest) -> PostgresServer:
    return pg_server(request.param)


@pytest.fixture
def dbname(server: PostgresServer) -> Iterator[str]:
    name = new_database_name()
    server.create_database(name)
    server.execute(f"ALTER DATABASE {name} SET logical_decoding_work_mem = '64kB'")
    server.execute("CREATE TABLE filler (id int, pad text); CREATE TABLE last (id int)", dbname=name)
    yield name
    drop_database(server, name)


@pytest.mark.parametrize(
    "case",
    nightly_except(
        cases(),
        "default-same_index",
        "keyless-own_key",
    ),
)
async def test_a_change_is_what_the_server_did_or_halts(
    case: Case, server: PostgresServer, dbname: str
) -> None:
    policies = [name for name in POLICIES if name == "one_partition" or not case.root.key]
    stories = {
        f"t{number}_{policy}": (policy, statements)
        for policy in policies
        for number, statements in enumerate(
            [
                [one for one in STATEMENTS if one not in case.halting(policy)],
                *([one] for one in case.halting(policy)),
            ]
        )
    }
    for name in stories:
        for statement in filter(None, case.make(name)):
            server.execute(statement, dbname=dbname)
        for suffix, via_root in (("root", "true"), ("leaf", "false")):
            server.execute(
                f"CREATE PUBLICATION {name}_{suffix} FOR TABLE {name}, last"
                f" WITH (publish_via_partition_root = {via_root})",
                dbname=dbname,
            )
    turns = itertools.cycle(("off", "on"))
    settings = settings_for(server, dbname)
    make_slot(settings)
    account.begin(server.dsn(dbname), "witness_" + dbname)
    for name, (_, statements) in stories.items():
        _run_statements(server, dbname, name, case, statements)
    server.execute("INSERT INTO last VALUES (1)", dbname=dbname)
    reported = account.read(server.dsn(dbname), "witness_" + dbname)
    changes = [
        one for transaction in reported.transactions for one in transaction.changes if isinstance(one, Change)
    ]
    for name, (policy, statements) in stories.items():
        # A case in which each halting statement has its own transaction is read in one of the ways only.
        ways = (
            itertools.product(("root", "leaf"), ("off", "on"))
            if name.startswith("t0")
            else [("root", next(turns))]
        )
        for suffix, streaming in ways:
            found = await decode(
                replace(settings, publications=(f"{name}_{suffix}",)),
                "last",
                Policies(POLICIES[policy]),
                server_version_num=server.major * 10_000,
                streaming=streaming,
            )
            where = f"{name} via {suffix}, streaming {streaming}"
            if suffix == "root" and set(statements) & set(case.halting(policy)):
                assert isinstance(found.error, ReplicaIdentityIncomplete), where
                assert f'ALTER TABLE "public"."{name}a" REPLICA IDENTITY FULL' in found.error.advice, where
                continue
            assert found.error is None, where
            assert found.is_streamed == (streaming == "on"), where
            tables = [name] if suffix == "root" else [f"{name}a", f"{name}b"]
            records = [one for table in tables for one in found.of(table)]
            if suffix == "root":
                of_table = [one for one in changes if one.table in (f"{name}a", f"{name}b")]
                _compare_old_rows(records, of_table, case.unlogged(policy))
            assert folded(records) == _selected(server, dbname, name), where


def _run_statements(
    server: PostgresServer, dbname: str, name: str, case: Case, statements: list[Statement]
) -> None:
    """Run the statements in one transaction; partitions without an identity accept only the INSERTs."""
    inserts = [statement.format(name) for statement in INSERTS]
    if not case.identity:
        in_one_transaction(server.dsn(dbname), FILLER, *inserts)
        for statement in STATEMENTS:
            with pytest.raises(ObjectNotInPrerequisiteState):
                server.execute(statement.sql.format(name), dbname=dbname)
        return
    in_one_transaction(server.dsn(dbname), FILLER, *inserts, *(one.sql.format(name) for one in statements))


def _selected(server: PostgresServer, dbname: str, name: str) -> list[tuple[Any, ...]]:
    rows = server.execute(f"SELECT {', '.join(COLUMNS)} FROM {name}", dbname=dbname)
    return sorted(rows, key=repr)


def folded(records: list[Decoded], columns: tuple[str, ...] = COLUMNS) -> list[tuple[Any, ...]]:
    """Return the rows that the records leave, found by key or, without one, by the logged columns of
    their old rows.
    """
    rows: list[tuple[Any, dict[str, Any]]] = []
    deleted: dict[str, Any] = {}
    for record in records:
        value = record.value
        assert value is not None
        before, after = value["before"], value["after"]
        old: dict[str, Any] = deleted
        if value["op"] in "ud":
            at = next(at for at, (key, row) in enumerate(rows) if _is_its(record, key, row, before, value))
            old = rows.pop(at)[1]
        if value["op"] == "d":
            deleted = old
            continue
        for column in value["source"]["unchanged"]:
            after[column] = old[column]
        rows.append((record.key, after))
        deleted = {}
    return sorted((tuple(row.get(column) for column in columns) for _, row in rows), key=repr)


def _is_its(record: Decoded, key: Any, row: dict[str, Any], before: Any, value: dict[str, Any]) -> bool:
    if record.key is not None:
        return bool(record.key == key)
    special = value["source"]["special"] or {}
    known = [column for column in before or () if f"before.{column}.not_logged" not in special]
    return bool(before) and all(row[column] == before[column] for column in known)


def _compare_old_rows(records: list[Decoded], changes: list[Change], unlogged: Columns) -> None:
    """Check that each record's old row has exactly the columns in the WAL, as test_decoding shows them."""
    left = iter(records)
    for change in changes:
        record = next(left)
        assert record.value is not None
        old = {} if change.old is None else {name: one for name, one in change.old.items() if one is not None}
        if change.verb != "INSERT" and record.value["before"] is not None:
            assert {name: one for name, one in record.value["before"].items() if one is not None} == old
            special = record.value["source"]["special"] or {}
            assert special == {f"before.{name}.not_logged": "true" for name in unlogged - old.keys()}
        else:
            assert not old
        if change.verb == "UPDATE" and record.value["op"] == "d":
            record = next(left)
            assert record.value is not None
        if change.new is not None:
            unsent = {name for name, one in change.new.items() if one is UNCHANGED} - old.keys()
            assert set(record.value["source"]["unchanged"]) == unsent
    assert next(left, None) is None
