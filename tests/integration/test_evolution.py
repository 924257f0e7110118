"""Every kind of DDL on a real server, while cdcd reads: rows before and after it, apart and in one transaction,
streamed and not. The judges are fastavro, with the schemas that the registry has, and the rows as they were written.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import fastavro
import psycopg2
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient

from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.postgres import PostgresServer
from cdcd.demo.stack.registry import SchemaRegistry
from tests.integration.conftest import NewDaemon
from tests.support.daemon import Daemon, await_confirmed
from tests.support.evolution import CASES, COMPATIBLE, INCOMPATIBLE, SAME, Case
from tests.support.stack import PostgresServers, drop_database, new_database_name, run
from tests.support.topics import committed_records

STREAMED = "options=-c%20debug_logical_replication_streaming%3Dimmediate"
SPACING = ("apart", "together")
LET_THROUGH = {"registry": {"incompatible": "register_with_none"}}


def table_of(case: Case, spacing: str) -> str:
    return f"{re.sub('[^a-z]', '_', case.name.lower())}_{spacing}"


@dataclass(frozen=True)
class Change:
    """One record: its bytes, its schema's id, its envelope."""

    raw: bytes
    schema_id: int
    envelope: dict[str, Any]

    def place(self) -> tuple[int, int]:
        """Where it stands in the order."""
        return self.envelope["source"]["commit_lsn"], self.envelope["source"]["tx_seq"]

    @property
    def row(self) -> dict[str, Any]:
        """The row after."""
        return dict(self.envelope["after"])


@dataclass(frozen=True)
class Topics:
    """An independent reader of one daemon's topics."""

    bootstrap: str
    client: SchemaRegistryClient
    prefix: str

    def changes(self, table: str, schema: str = "public") -> list[Change]:
        """What was committed to a table's topic, in the order of the changes."""
        records = committed_records(self.bootstrap, f"{self.prefix}.{schema}.{table}")
        return sorted((self._change(raw) for record in records if (raw := record.value())), key=Change.place)

    def _change(self, raw: bytes) -> Change:
        number = int.from_bytes(raw[1:5], "big")
        return Change(raw, number, self.read(raw, number))

    def read(self, raw: bytes, reader_id: int) -> dict[str, Any]:
        """A record under its own schema, or resolved against a later one."""
        writer = self.schema(int.from_bytes(raw[1:5], "big"))
        return dict(fastavro.schemaless_reader(io.BytesIO(raw[5:]), writer, self.schema(reader_id)))  # type: ignore[arg-type]

    def schema(self, number: int) -> Any:
        return fastavro.parse_schema(json.loads(self.client.get_schema(number).schema_str or ""))


def without_time(row: dict[str, Any]) -> dict[str, Any]:
    """Without values that Python and PostgreSQL write differently."""
    return {name: value for name, value in row.items() if not hasattr(value, "tzinfo")}


@pytest.fixture
def source(pg_server: PostgresServers) -> PostgresServer:
    return pg_server(18)


@pytest.fixture
def empty(source: PostgresServer) -> Iterator[str]:
    name = new_database_name()
    source.create_database(name)
    yield name
    drop_database(source, name)


def prepare(server: PostgresServer, database: str, cases: list[Case]) -> None:
    for case in cases:
        for spacing in SPACING:
            table = table_of(case, spacing)
            for statement in case.setup:
                server.execute(statement.format(t=table), dbname=database)
            server.execute(f"CREATE TABLE {table} ({case.columns.format(t=table)})", dbname=database)


def change(server: PostgresServer, database: str, cases: list[Case]) -> None:
    """A row, the DDL, a row: each in a transaction of its own, and all in one."""
    for spacing in SPACING:
        for case in cases:
            table = table_of(case, spacing)
            with closing(psycopg2.connect(server.dsn(database))) as connection, connection.cursor() as cursor:
                connection.autocommit = spacing == "apart"
                cursor.execute(f"INSERT INTO {table} VALUES ({case.first})")
                for statement in case.ddl:
                    cursor.execute(statement.format(t=table))
                cursor.execute(f"INSERT INTO {table} VALUES ({case.second})")
                if not connection.autocommit:
                    connection.commit()


def two_daemons(
    new_daemon: NewDaemon, source: PostgresServer, database: str, **over: Any
) -> tuple[Daemon, Daemon]:
    """One that receives transactions whole, and one that receives each change before its commit."""
    plain = new_daemon(source, database, **over)
    plain.config["source"]["protocol"] = {"streaming": "off"}
    streamed = new_daemon(source, database, **over)
    streamed.config["source"]["dsn"] += f"?{STREAMED}"
    return plain, streamed


def test_rows_before_and_after_a_change_are_read_by_those_who_come_later(
    source: PostgresServer,
    empty: str,
    new_daemon: NewDaemon,
    kafka: KafkaBroker,
    registry: SchemaRegistry,
) -> None:
    """F42 and F44: each row has the schema of its own time, also when all of it is in one transaction."""
    cases = [case for case in CASES if case.verdict in (SAME, COMPATIBLE)]
    client = SchemaRegistryClient({"url": registry.url})
    prepare(source, empty, cases)
    plain, streamed = two_daemons(new_daemon, source, empty)
    with plain, streamed:
        for daemon in (plain, streamed):
            daemon.start().wait_state("streaming")
        change(source, empty, cases)
        for daemon in (plain, streamed):
            await_confirmed(source, daemon, 120)
        for daemon in (plain, streamed):
            topics = Topics(kafka.bootstrap, client, daemon.name)
            for case in cases:
                for spacing in SPACING:
                    where = f"{case.name}, {spacing}, {daemon.name}"
                    first, second = topics.changes(table_of(case, spacing))
                    assert (first.row, second.row) == (case.before, case.after), where
                    assert (first.schema_id == second.schema_id) == (case.verdict == SAME), where
                    upgraded = case.before if case.upgraded is None else case.upgraded
                    assert topics.read(first.raw, second.schema_id)["after"] == upgraded, where
            assert daemon.events("retrying") == []
            assert daemon.stop() == 0


def test_what_is_incompatible_can_be_let_through(
    source: PostgresServer,
    empty: str,
    new_daemon: NewDaemon,
    kafka: KafkaBroker,
    registry: SchemaRegistry,
) -> None:
    cases = [case for case in CASES if case.verdict == INCOMPATIBLE]
    client = SchemaRegistryClient({"url": registry.url})
    prepare(source, empty, cases)
    plain, streamed = two_daemons(new_daemon, source, empty, **LET_THROUGH)
    with plain, streamed:
        for daemon in (plain, streamed):
            daemon.start().wait_state("streaming")
        change(source, empty, cases)
        for daemon in (plain, streamed):
            await_confirmed(source, daemon, 120)
        for daemon in (plain, streamed):
            topics = Topics(kafka.bootstrap, client, daemon.name)
            for case in cases:
                for spacing in SPACING:
                    where = f"{case.name}, {spacing}, {daemon.name}"
                    first, second = topics.changes(table_of(case, spacing))
                    assert without_time(first.row) == case.before, where
                    assert without_time(second.row) == case.after, where
                    assert first.schema_id != second.schema_id, where
                    subject = f"{daemon.name}.public.{table_of(case, spacing)}-value"
                    assert client.get_compatibility(subject) == "BACKWARD_TRANSITIVE"
            assert len(daemon.events("incompatible_schema")) == len(cases) * len(SPACING)
            assert daemon.stop() == 0


def told(topics: Topics, table: str) -> list[tuple[str, Any, Any]]:
    """Op, row before and row after of what is in a topic."""
    return [
        (change.envelope["op"], change.envelope["before"], change.envelope["after"])
        for change in topics.changes(table)
    ]


def test_what_is_incompatible_halts_with_its_place_and_nothing_is_skipped(
    source: PostgresServer,
    empty: str,
    new_daemon: NewDaemon,
    kafka: KafkaBroker,
    registry: SchemaRegistry,
) -> None:
    """F55: what the registry itself would let through, a change of scale; the way back is the way on."""
    run(source, empty, "CREATE TABLE t (id int PRIMARY KEY, v numeric(8,2))")
    with new_daemon(source, empty) as daemon:
        topics = Topics(kafka.bootstrap, SchemaRegistryClient({"url": registry.url}), daemon.name)
        daemon.start().wait_state("streaming")
        run(
            source,
            empty,
            "INSERT INTO t VALUES (1, 1.25)",
            "ALTER TABLE t ALTER v TYPE numeric(8,4)",
            "INSERT INTO t VALUES (2, 7777.5)",
        )
        page = daemon.wait_state("halted")
        assert "CDCD-SCHEMA-INCOMPATIBLE" in page["reason"]
        assert "before.v: a decimal of scale 2 cannot be read with scale 4" in page["reason"]
        assert "7777" not in daemon.log()
        assert [change.row["id"] for change in topics.changes("t")] == [1]
        assert daemon.stop() == 0
        daemon.config["registry"]["incompatible"] = "register_with_none"
        daemon.start()
        await_confirmed(source, daemon, 120)
        assert [str(change.row["v"]) for change in topics.changes("t")] == ["1.25", "7777.5000"]
        assert daemon.stop() == 0


def test_what_is_incompatible_goes_on_in_a_new_topic(
    source: PostgresServer,
    empty: str,
    new_daemon: NewDaemon,
    kafka: KafkaBroker,
    registry: SchemaRegistry,
) -> None:
    """Each row is in the topic of its schema, also after a kill, and after the change was taken back."""
    run(source, empty, "CREATE TABLE t (id int PRIMARY KEY, v numeric(8,2))")
    with new_daemon(source, empty, registry={"incompatible": "new_topic"}) as daemon:
        topics = Topics(kafka.bootstrap, SchemaRegistryClient({"url": registry.url}), daemon.name)
        daemon.start().wait_state("streaming")
        run(
            source,
            empty,
            "INSERT INTO t VALUES (1, 1.25)",
            "ALTER TABLE t ALTER v TYPE numeric(8,4)",
            "INSERT INTO t VALUES (2, 2.5)",
        )
        await_confirmed(source, daemon, 120)
        daemon.kill()
        run(source, empty, "INSERT INTO t VALUES (3, 3.5)", "ALTER TABLE t ADD w int")
        daemon.start()
        run(source, empty, "INSERT INTO t VALUES (4, 4.5, 4)", "UPDATE t SET w = 0 WHERE id = 1")
        run(source, empty, "ALTER TABLE t DROP w", "ALTER TABLE t ALTER v TYPE numeric(8,2)")
        run(source, empty, "INSERT INTO t VALUES (5, 5.25)", "ALTER TABLE t ALTER v TYPE bigint")
        run(source, empty, "INSERT INTO t VALUES (6, 6)")
        await_confirmed(source, daemon, 120)
        assert [(op, after["id"]) for op, _, after in told(topics, "t")] == [("c", 1), ("c", 5)]
        assert [(op, after["id"]) for op, _, after in told(topics, "t.v2")] == [
            ("c", 2),
            ("c", 3),
            ("c", 4),
            ("u", 1),
        ]
        assert [(op, after["id"]) for op, _, after in told(topics, "t.v3")] == [("c", 6)]
        assert [line["topic"] for line in daemon.events("incompatible_schema")] == [
            f"{daemon.name}.public.t.v2",
            f"{daemon.name}.public.t.v3",
        ]
        assert daemon.stop() == 0


def test_changes_of_a_table_as_a_whole(
    source: PostgresServer,
    empty: str,
    new_daemon: NewDaemon,
    kafka: KafkaBroker,
    registry: SchemaRegistry,
) -> None:
    """Renamed, moved, dropped and made again, a partition more, another identity: all in one transaction."""
    tables = ("renamed", "moved", "remade", "identity")
    run(
        source,
        empty,
        "CREATE SCHEMA other",
        *(f"CREATE TABLE {table} (id int PRIMARY KEY, v text)" for table in tables),
        "CREATE TABLE parts (id int, v text, PRIMARY KEY (id)) PARTITION BY RANGE (id)",
        "CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (10)",
    )
    changes = (
        *(f"INSERT INTO {table} VALUES (1, 'a')" for table in (*tables, "parts")),
        "ALTER TABLE renamed RENAME TO named",
        "INSERT INTO named VALUES (2, 'b')",
        "ALTER TABLE moved SET SCHEMA other",
        "INSERT INTO other.moved VALUES (2, 'b')",
        "DROP TABLE remade",
        "CREATE TABLE remade (id int PRIMARY KEY, w int)",
        "INSERT INTO remade VALUES (1, 7)",
        "CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM (10) TO (20)",
        "INSERT INTO parts VALUES (11, 'b')",
        "UPDATE identity SET v = 'b'",
        "ALTER TABLE identity REPLICA IDENTITY FULL",
        "UPDATE identity SET v = 'c'",
        "ALTER TABLE identity REPLICA IDENTITY DEFAULT",
        "UPDATE identity SET v = 'd'",
    )
    plain, streamed = two_daemons(new_daemon, source, empty)
    with plain, streamed:
        for daemon in (plain, streamed):
            daemon.start().wait_state("streaming")
        with closing(psycopg2.connect(source.dsn(empty))) as connection, connection.cursor() as cursor:
            for statement in changes:
                cursor.execute(statement)
            connection.commit()
        for daemon in (plain, streamed):
            await_confirmed(source, daemon, 120)
            topics = Topics(kafka.bootstrap, SchemaRegistryClient({"url": registry.url}), daemon.name)
            one, two = {"id": 1, "v": "a"}, {"id": 2, "v": "b"}
            assert told(topics, "renamed") == [("c", None, one)]
            assert told(topics, "named") == [("c", None, two)]
            assert told(topics, "moved") == [("c", None, one)]
            assert [change.row for change in topics.changes("moved", schema="other")] == [two]
            assert told(topics, "remade") == [("c", None, one), ("c", None, {"id": 1, "w": 7})]
            assert told(topics, "parts_1") == [("c", None, one)]
            assert told(topics, "parts_2") == [("c", None, {"id": 11, "v": "b"})]
            assert told(topics, "identity") == [
                ("c", None, one),
                ("u", None, {"id": 1, "v": "b"}),
                ("u", {"id": 1, "v": "b"}, {"id": 1, "v": "c"}),
                ("u", None, {"id": 1, "v": "d"}),
            ]
            said = daemon.events("replica_identity_changed")
            assert [(line["table"], line["was"], line["now"]) for line in said] == [
                ("public.identity", "DEFAULT", "FULL"),
                ("public.identity", "FULL", "DEFAULT"),
            ]
            assert daemon.events("retrying") == []
            assert daemon.stop() == 0
