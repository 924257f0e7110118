"""Rows as a real pgoutput sends them: TOAST, key changes, identities, text and binary."""

from __future__ import annotations

import io
import struct
from typing import Any

import fastavro
import psycopg2
import pytest

from cdcd.avro.encode import encode_batch
from cdcd.avro.plan import RelationPlan, compile_plan
from cdcd.avro.transaction import TransactionContext
from cdcd.model import Record, RowBatch, TransactionInfo
from cdcd.pgoutput.decode import decode
from cdcd.pgoutput.messages import Relation as RelationMessage
from cdcd.schema.relation_schema import relation_schemas
from cdcd.txn.relations import relation_of
from tests.support.nightly import nightly

LONG = "string_agg(md5(n::text), '')"  # not compressed, so it is stored outside the row
WORKLOAD = f"""
    create table t (k text primary key, n int, big text);
    create table f (id int primary key, n int, big text);
    alter table f replica identity full;
    create publication p for table t, f;
    select pg_create_logical_replication_slot('rows', 'pgoutput');
    insert into t select 'a', 1, {LONG} from generate_series(1, 1000) n;
    update t set n = 2;
    update t set k = 'b';
    insert into t select {LONG}, 7, null from generate_series(1, 60) n;
    delete from t where k = 'b';
    insert into f select 1, 1, {LONG} from generate_series(1, 1000) n;
    update f set n = 2;
    update f set id = 9;
    delete from f
"""


def changes(dsn: str, binary: bool) -> list[Any]:
    connection = psycopg2.connect(dsn)
    connection.autocommit = True
    cursor = connection.cursor()
    cursor.execute(
        "select data from pg_logical_slot_peek_binary_changes('rows', null, null, "
        "'proto_version', '1', 'publication_names', 'p', 'binary', %s)",
        (str(binary).lower(),),
    )
    payloads = [bytes(row[0]) for row in cursor.fetchall()]
    connection.close()
    return payloads


def plan_of(message: RelationMessage) -> tuple[RelationPlan, Any, Any]:
    relation = relation_of(message)
    schemas = relation_schemas(relation, {}, ("id",) if message.name == "f" else None, "shop")
    plan = compile_plan(
        relation,
        schemas,
        topic=message.name,
        partitions=3,
        key_schema_id=1,
        value_schema_id=2,
        tombstones=True,
    )
    return plan, fastavro.parse_schema(schemas.key), fastavro.parse_schema(schemas.value)


def read(framed: bytes | None, schema: Any) -> Any:
    return framed and fastavro.schemaless_reader(io.BytesIO(framed[5:]), schema, None)


def story(payloads: list[bytes]) -> tuple[list[Record], list[tuple[Any, ...]]]:
    """Return the records, and per record (table, op, key, before.n, after.n, sizes of big before and after,
    unchanged).
    """
    plans: dict[int, Any] = {}
    records, reported = [], []
    tx = TransactionContext(
        TransactionInfo(1, 1, 0), timeline=1, name="shop", database="d", now_us=0, version="0"
    )
    for payload in payloads:
        if payload[:1] == b"R":
            message = decode(payload, in_stream=False, protocol_version=1)
            assert isinstance(message, RelationMessage)
            plans[message.relid] = plan_of(message)
        if payload[:1] not in (b"I", b"U", b"D"):
            continue
        plan, key_schema, value_schema = plans[int.from_bytes(payload[1:5], "big")]
        batch = RowBatch(struct.pack(">IQ", len(payload), 1) + payload, 1)
        for record in encode_batch(batch, {plan.relation.relid: plan}, tx):
            records.append(record)
            value, (key,) = read(record.value, value_schema), read(record.key, key_schema).values()
            short = key if len(str(key)) < 9 else "long"
            if value is None:
                reported.append((record.topic, "tombstone", short))
                continue
            sides = [
                (r["n"], r["big"] and len(r["big"])) if r else None for r in (value["before"], value["after"])
            ]
            reported.append((record.topic, value["op"], short, *sides, value["source"]["unchanged"]))
    return records, reported


def test_what_the_server_sends_becomes_what_happened(postgres: Any, database: str) -> None:
    for statement in WORKLOAD.split(";"):
        postgres.execute(statement, dbname=database)
    records, reported = story(changes(postgres.dsn(database), binary=False))
    assert reported == [
        ("t", "c", "a", None, (1, 32000), []),
        ("t", "u", "a", None, (2, None), ["big"]),  # F46: the server did not send it
        ("t", "d", "a", (None, None), None, []),  # F45, F47
        ("t", "tombstone", "a"),
        ("t", "c", "b", None, (2, None), ["big"]),
        ("t", "c", "long", None, (7, None), []),
        ("t", "d", "b", (None, None), None, []),
        ("t", "tombstone", "b"),
        ("f", "c", 1, None, (1, 32000), []),
        ("f", "u", 1, (1, 32000), (2, 32000), []),  # F46: filled from the old tuple
        ("f", "d", 1, (2, 32000), None, []),
        ("f", "tombstone", 1),
        ("f", "c", 9, None, (2, 32000), []),
        ("f", "d", 9, (2, 32000), None, []),
        ("f", "tombstone", 9),
    ]
    assert story(changes(postgres.dsn(database), binary=True))[0] == records


@pytest.mark.parametrize("major", [14, nightly(15), nightly(16), nightly(17)])
def test_older_servers_tell_the_same_story(pg_server: Any, postgres: Any, database: str, major: int) -> None:
    for statement in WORKLOAD.split(";"):
        postgres.execute(statement, dbname=database)
    server = pg_server(major)
    server.create_database(database)
    for statement in WORKLOAD.split(";"):
        server.execute(statement, dbname=database)
    try:
        assert (
            story(changes(server.dsn(database), binary=False))[1]
            == story(changes(postgres.dsn(database), binary=False))[1]
        )
    finally:
        server.drop_database(database)
