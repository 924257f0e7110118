"""Build a walsender's items and feed them to a pump with real parts, for the tests of the pipeline.

In: LSNs and values.  Out: items as the drain yields them, and the pump's chunks, decoded by fastavro.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from typing import Any

import fastavro

from cdcd.ack.group import CommitPosition, RecordChunk
from cdcd.ack.position_tracker import PositionTracker
from cdcd.avro.encode import EncodedTransactions
from cdcd.avro.logical_message import encode_logical_message, message_value_schema
from cdcd.avro.plan import RelationPlan, compile_plan
from cdcd.avro.transaction import TransactionContext
from cdcd.model import (
    Control,
    Item,
    Keepalive,
    PartPosition,
    PreparedBefore,
    Record,
    Relation,
    RowBatch,
    TransactionInfo,
)
from cdcd.pgoutput import messages as m
from cdcd.pipeline.interfaces import Buffers
from cdcd.pipeline.pump import Pump
from cdcd.pipeline.stream_progress import StreamProgress
from cdcd.pipeline.table_copies import TableCopies
from cdcd.schema.relation_schema import RelationSchemas, relation_schemas
from cdcd.txn.assembler import Assembler
from cdcd.txn.events import LogicalMessage
from cdcd.txn.lookahead import Lookahead
from tests.support.pgoutput_encode import encode, row_batch_of

RELID = 16401
LENGTH = 8


def control(message: m.AnyMessage, *, in_stream: bool = False, lsn: int = 0) -> Control:
    return Control(lsn, encode(message, in_stream=in_stream))


def begin(commit_lsn: int, xid: int = 7) -> Control:
    return control(m.Begin(commit_lsn, commit_lsn, xid))


def commit(commit_lsn: int) -> Control:
    return control(m.Commit(commit_lsn, commit_lsn + LENGTH, commit_lsn))


def relation(*columns: str, xid: int | None = None, is_full: bool = False) -> Control:
    """Describe `public.items` with text columns; the first one is the key, which FULL does not show."""
    described = tuple(
        m.RelationColumn(is_full or at == 0, name, 25, -1) for at, name in enumerate(columns or ("id",))
    )
    message = m.Relation(RELID, "public", "items", "f" if is_full else "d", described, xid=xid)
    return control(message, in_stream=xid is not None)


def _tuple(values: tuple[str, ...]) -> m.TupleData:
    return m.TupleData(tuple(m.text(value.encode()) for value in values))


def inserts(*rows: str | tuple[str, ...], lsn: int = 50, xid: int | None = None) -> RowBatch:
    tuples = [_tuple(row if isinstance(row, tuple) else (row,)) for row in rows]
    return row_batch_of([(lsn, m.Insert(RELID, one, xid=xid)) for one in tuples], xid=xid)


def key_change(old: str, new: str) -> RowBatch:
    return row_batch_of([(50, m.Update(RELID, m.OldTuple(b"K", _tuple((old,))), _tuple((new,))))])


def update(old: tuple[str, ...], new: tuple[str, ...]) -> RowBatch:
    """Return an update of a table with REPLICA IDENTITY FULL."""
    return row_batch_of([(50, m.Update(RELID, m.OldTuple(b"O", _tuple(old)), _tuple(new)))])


def truncate() -> Control:
    return control(m.Truncate(0, (RELID,)), lsn=60)


def message(
    lsn: int, *, transactional: bool, xid: int | None = None, prefix: str = "audit", content: bytes = b"text"
) -> Control:
    one = m.Message(transactional, lsn, prefix, content, xid=xid)
    return control(one, in_stream=xid is not None, lsn=lsn)


def streamed(xid: int, commit_lsn: int, *items: Item) -> list[Item]:
    """Return a complete transaction in one stream segment, and its commit."""
    start, stop = control(m.StreamStart(xid, True)), control(m.StreamStop())
    return [start, *items, stop, stream_commit(xid, commit_lsn)]


def stream_commit(xid: int, commit_lsn: int) -> Control:
    return control(m.StreamCommit(xid, commit_lsn, commit_lsn + LENGTH, commit_lsn))


def prepared(xid: int, prepare_lsn: int, *items: Item, gid: str = "gid") -> list[Item]:
    """Return a complete transaction from Begin Prepare to Prepare."""
    times = (prepare_lsn, prepare_lsn + LENGTH, prepare_lsn)
    return [control(m.BeginPrepare(*times, xid, gid)), *items, control(m.Prepare(*times, xid, gid))]


def commit_prepared(xid: int, commit_lsn: int, gid: str = "gid") -> Control:
    return control(m.CommitPrepared(commit_lsn, commit_lsn + LENGTH, commit_lsn, xid, gid))


def rollback_prepared(xid: int, prepare_lsn: int, rollback_lsn: int, gid: str = "gid") -> Control:
    ends = (prepare_lsn + LENGTH, rollback_lsn + LENGTH)
    return control(m.RollbackPrepared(*ends, prepare_lsn, rollback_lsn, xid, gid))


def keepalive(lsn: int, *, reply_requested: bool = False) -> Keepalive:
    return Keepalive(lsn, 0, reply_requested)


class RealPlans:
    """Compiled plans without a catalog, a registry or topics: the schema ids are 1 (key) and 2 (value)."""

    def __init__(self) -> None:
        self.by_relid: dict[int, RelationPlan] = {}
        self.schemas: list[RelationSchemas] = []
        self.ahead: list[Lookahead] = []
        self._described: dict[int, Relation] = {}
        self.key: tuple[str, ...] | None = None
        """The key in the catalog, which a table with REPLICA IDENTITY FULL gets; None for that of the relation."""

    def describe(self, relation: Relation) -> None:
        self._described[relation.relid] = relation
        self.by_relid.pop(relation.relid, None)

    async def ready(self, relids: Iterable[int]) -> None:
        for relid in relids:
            if relid not in self.by_relid and relid in self._described:
                self._plan(self._described[relid])

    def has_prepared(self, relids: Iterable[int]) -> bool:
        return bool(self.ahead) and self.ahead[-1].relids.issuperset(relids)

    async def prepare(self, ahead: Lookahead) -> None:
        self.ahead.append(ahead)

    def _plan(self, relation: Relation) -> None:
        schemas = relation_schemas(relation, {}, self.key, "shop")
        self.schemas.append(schemas)
        self.by_relid[relation.relid] = compile_plan(
            relation,
            schemas,
            topic="shop.public.items",
            partitions=3,
            key_schema_id=None if schemas.key is None else 1,
            value_schema_id=2,
            tombstones=True,
        )

    async def logical_message(self, message: LogicalMessage, tx: TransactionContext | None) -> Record:
        return encode_logical_message(
            topic="shop.message",
            partitions=1,
            key_schema_id=1,
            value_schema_id=2,
            prefix=message.prefix,
            content=message.content,
            transactional=message.transactional,
            lsn=message.lsn,
            tx=tx,
        )


class Tally:
    """Records the pump's reports."""

    def __init__(self) -> None:
        self.seen: list[tuple[object, ...]] = []

    def relation(self, relid: int, table: str) -> None:
        self.seen.append(("relation", table))

    def began(self, commit_us: int) -> None:
        self.seen.append(("began",))

    def rows_encoded(self, operations: Mapping[tuple[int, int], int]) -> None:
        self.seen.append(("run", sum(operations.values())))

    def truncated(self, table: str) -> None:
        self.seen.append(("truncated", table))

    def ended(self, end_lsn: int, *, is_empty: bool) -> None:
        self.seen.append(("ended", end_lsn, is_empty))

    def whole(self, encoded: EncodedTransactions) -> None:
        self.seen.append(("whole", sum(encoded.operations.values()), encoded.with_rows, encoded.empty))

    def duplicates(self, count: int) -> None:
        if count:
            self.seen.append(("duplicates", count))


class Flow:
    """A pump with real parts; `chunks` and `idles` are its output."""

    def __init__(
        self,
        *,
        start_lsn: int = 0,
        written_commit_lsn: int = 0,
        written_commit_us: int = 0,
        buffers: Buffers | None = None,
        prepared_before: PreparedBefore | None = None,
        part: PartPosition | None = None,
        refuse_unsafe_streaming: bool = False,
        copies: TableCopies | None = None,
        key: tuple[str, ...] | None = None,
    ) -> None:
        self.chunks: list[RecordChunk] = []
        self.idles: list[tuple[CommitPosition, bool]] = []
        self.plans = RealPlans()
        self.plans.key = key
        self.tally = Tally()
        assembler = Assembler(
            4,
            two_phase=True,
            refuse_unsafe_streaming=refuse_unsafe_streaming,
            written_commit_lsn=written_commit_lsn,
            prepared_before=prepared_before,
        )
        self.pump = Pump(
            assembler,
            self.plans,
            self,
            _new_context,
            self.tally,
            StreamProgress(
                assembler,
                PositionTracker(start_lsn, written_commit_lsn, written_commit_us),
                part=part,
                copies=copies,
            ),
            buffers=buffers,
        )

    async def add(self, chunk: RecordChunk) -> None:
        self.chunks.append(chunk)

    def idle(self, commit_position: CommitPosition, *, is_urgent: bool) -> None:
        self.idles.append((commit_position, is_urgent))

    async def feed(self, *items: Item) -> Flow:
        await self.pump.feed(list(items))
        return self

    @property
    def records(self) -> list[Record]:
        return [record for chunk in self.chunks for record in chunk.records]

    @property
    def commit_positions(self) -> list[CommitPosition]:
        return [chunk.commit_position for chunk in self.chunks if chunk.commit_position is not None]

    def changes(self) -> list[tuple[str, int, int]]:
        """Return (op, commit LSN, tx_seq) of each row event."""
        values = [self.value(r) for r in self.records if r.topic == "shop.public.items" and r.value]
        return [(v["op"], v["source"]["commit_lsn"], v["source"]["tx_seq"]) for v in values]

    def value(self, record: Record) -> Any:
        is_message = record.topic == "shop.message"
        schema = message_value_schema("shop") if is_message else self.plans.schemas[-1].value
        assert record.value is not None
        return fastavro.schemaless_reader(io.BytesIO(record.value[5:]), fastavro.parse_schema(schema), None)


def _new_context(info: TransactionInfo) -> TransactionContext:
    return TransactionContext(info, timeline=1, name="shop", database="shopdb", now_us=1, version="1")
