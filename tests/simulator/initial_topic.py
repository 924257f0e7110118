"""The forms of rows and changes in the simulation of the initial snapshot: plans, payloads, copied rows, records.

In: changes and rows of the model.  Out: the same in the forms of PostgreSQL and of the topics, and back.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import fastavro

from cdcd.avro.plan import RelationPlan, compile_plan
from cdcd.frame_layout import HEADER
from cdcd.model import Column, Record, Relation, ReplicaIdentity
from cdcd.pgoutput import messages as m
from cdcd.schema.relation_schema import relation_schemas
from cdcd.snapshot.table import CopiedRows
from cdcd.snapshot.units import CopiedTable
from tests.simulator.initial_server import Change, Commit
from tests.support.copydata import xlog
from tests.support.pgoutput_encode import encode, row_batch_of

TEXT_OID = 25
SCHEMAS: dict[str, Any] = {}
"""The value schema of each topic."""


class Plans:
    """Compiled plans without a catalog, a registry or Kafka."""

    def __init__(self, relids: Iterable[int]) -> None:
        self.by_relid = {relid: _plan(relid) for relid in relids}

    async def plan_tables(self, relations: Iterable[Relation]) -> list[RelationPlan]:
        return [self.by_relid[relation.relid] for relation in relations]

    def describe(self, relation: Relation) -> None: ...
    async def ready(self, relids: Iterable[int]) -> None: ...


def table_of(relid: int) -> CopiedTable:
    return CopiedTable(relid, "public", f"t{relid}", ("id", "value"), None, is_partitioned=False)


def relation_of(relid: int) -> Relation:
    columns = (Column("id", TEXT_OID, -1, is_key=True), Column("value", TEXT_OID, -1, is_key=False))
    return Relation(relid, "public", f"t{relid}", ReplicaIdentity.DEFAULT, columns)


def _plan(relid: int) -> RelationPlan:
    relation = relation_of(relid)
    schemas = relation_schemas(relation, {}, None, "shop")
    SCHEMAS[str(relid)] = fastavro.parse_schema(schemas.value)
    return compile_plan(
        relation,
        schemas,
        topic=str(relid),
        partitions=1,
        key_schema_id=1,
        value_schema_id=2,
        tombstones=False,
    )


class Event(NamedTuple):
    """A decoded record."""

    op: str
    key: str
    value: str
    place: tuple[int, int]


def decoded(record: Record) -> Event:
    """Decode a record of a table's topic."""
    assert record.value is not None
    event: Any = fastavro.schemaless_reader(io.BytesIO(record.value[5:]), SCHEMAS[record.topic], None)
    row = event["after"] or event["before"] or {"id": "", "value": ""}
    source = event["source"]
    return Event(event["op"], row["id"], row["value"] or "", (source["commit_lsn"], source["tx_seq"]))


def copied(relid: int, rows: list[tuple[str, str]], point: int) -> CopiedRows:
    """Return rows as a reader of the snapshot returns them."""
    batch = row_batch_of([(point, m.Insert(relid, _tuple(*row))) for row in rows])
    at = 0
    for _ in rows[:-1]:
        length, _ = HEADER.unpack_from(batch.frames, at)
        at += HEADER.size + length
    return CopiedRows(batch, at)


def payloads(commit: Commit, described: set[int]) -> Iterator[bytes]:
    """Yield a transaction as a walsender sends it; `described`: the tables that the session has described."""
    yield xlog(encode(m.Begin(commit.lsn, 1, 7), in_stream=False), commit.lsn)
    for change in commit.changes:
        if change.relid not in described:
            described.add(change.relid)
            columns = tuple(
                m.RelationColumn(*one) for one in ((True, "id", TEXT_OID, -1), (False, "value", TEXT_OID, -1))
            )
            yield xlog(
                encode(m.Relation(change.relid, "public", f"t{change.relid}", "d", columns), in_stream=False)
            )
        yield xlog(encode(_message(change), in_stream=False), commit.lsn)
    yield xlog(encode(m.Commit(commit.lsn, commit.end_lsn, 1), in_stream=False), commit.lsn)


def _message(change: Change) -> Any:
    if change.op == "t":
        return m.Truncate(0, (change.relid,))
    if change.op == "d":
        return m.Delete(change.relid, m.OldTuple(b"K", _tuple(change.key, "")))
    row = _tuple(change.key, change.value)
    return m.Insert(change.relid, row) if change.op == "c" else m.Update(change.relid, None, row)


def _tuple(*values: str) -> m.TupleData:
    return m.TupleData(tuple(m.text(value.encode()) for value in values))
