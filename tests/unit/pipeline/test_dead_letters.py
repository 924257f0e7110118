"""A record that Kafka refuses: a halt that names it, or a marker and a dead letter in one group (F65)."""

from __future__ import annotations

import asyncio
import json
import random
import struct
from collections.abc import Callable, Sequence

import pytest

from cdcd.ack.group import CommitPosition, GroupLimits, RecordChunk
from cdcd.avro.encode import encode_batch, encode_truncate
from cdcd.avro.plan import RelationPlan, compile_plan
from cdcd.avro.transaction import TransactionContext
from cdcd.errors import RecordTooLarge
from cdcd.model import Column, PartPosition, Record, Relation, ReplicaIdentity, RowBatch, TransactionInfo
from cdcd.pipeline.dead_letters import DeadLetters
from cdcd.pipeline.writer import Writer, WriterOptions
from cdcd.schema.relation_schema import relation_schemas
from cdcd.sink.produce_batch import by_partition
from tests.unit.pipeline.test_writer import IDENTITY, MemorySink

COMMIT_LSN, LSN = 0x100, 0x80
RELATION = Relation(
    7,
    "public",
    "t",
    ReplicaIdentity.DEFAULT,
    (Column("id", 23, -1, True), Column("note", 25, -1, False)),
)
PLAN: RelationPlan = compile_plan(
    RELATION,
    relation_schemas(RELATION, {}, ("id",), "shop"),
    topic="shop.public.t",
    partitions=1,
    key_schema_id=1,
    value_schema_id=2,
    tombstones=True,
)
DEAD = "shop.__dead_letters"
REFUSAL = "producing a record: larger than message.max.bytes"


class PickySink(MemorySink):
    """Refuses records above `limit` bytes; after `send_now` the queue has space for `room_when_sent` records."""

    limit = 2000
    room_when_sent = 1_000_000

    def produce(self, records: Sequence[Record], start: int) -> int:
        for at in range(start, len(records)):
            if len(records[at].key or b"") + len(records[at].value or b"") > self.limit:
                if (taken := super().produce(records[:at], start)) < at:
                    return taken
                refusal = RecordTooLarge(REFUSAL, topic=records[at].topic)
                refusal.at = at
                raise refusal
        return super().produce(records, start)

    def send_now(self, timeout_s: float) -> None:
        self.room = self.room_when_sent
        super().send_now(timeout_s)


class Plans:
    def of_record(self, record: Record) -> RelationPlan | None:
        return PLAN if record.topic == PLAN.topic and record.value is not None else None


class Report:
    """An observer of groups and dead letters."""

    def __init__(self) -> None:
        self.letters: list[str] = []
        self.confirmed: list[int] = []

    def dead_letter(self, table: str) -> None:
        self.letters.append(table)

    def committed(self, commit_position: CommitPosition, **_numbers: object) -> None: ...
    def at_rest(self, commit_position: CommitPosition) -> None: ...
    def given_up(self) -> None: ...
    def epoch_renewed(self, renewal_reason: str, seconds: float) -> None: ...
    def waiting(self, size_bytes: int, *, is_blocked: bool) -> None: ...


def chunk(*sizes: int, first: int = 1) -> RecordChunk:
    """Return a chunk of rows of one transaction, with notes of these sizes in bytes."""
    tx = TransactionContext(
        TransactionInfo(771, COMMIT_LSN, 0), timeline=3, name="shop", database="d", now_us=1, version="1"
    )
    frames = b""
    for number, size in enumerate(sizes, first):
        values = (str(number).encode(), b"s3cret".ljust(size, b"x"))
        columns = b"".join(b"t" + struct.pack(">I", len(value)) + value for value in values)
        payload = struct.pack(">cIcH", b"I", 7, b"N", 2) + columns
        frames += struct.pack(">IQ", len(payload), LSN) + payload
    records = encode_batch(RowBatch(frames, len(sizes)), {7: PLAN}, tx)
    return RecordChunk(records, len(frames), reached=PartPosition(COMMIT_LSN, tx.tx_seq))


END = RecordChunk((), 0, CommitPosition(COMMIT_LSN, COMMIT_LSN + 8, 5))


class World:
    """A writer with a `PickySink`."""

    def __init__(self, topic: str | None) -> None:
        self.sink, self.report = PickySink(), Report()
        self.writer = Writer(
            self.sink,
            IDENTITY,
            WriterOptions(GroupLimits(1000, 1_000_000, 0), waiting_limit_bytes=1_000_000),
            confirm=self.report.confirmed.append,
            observer=self.report,
            too_large=DeadLetters(Plans(), self.report, topic),
        )

    async def write(self, *chunks: RecordChunk) -> None:
        running = asyncio.ensure_future(self.writer.run())
        try:
            for one in chunks:
                await self.writer.add(one)
            flushing = asyncio.ensure_future(self.writer.drain())
            async with asyncio.timeout(20):
                await asyncio.wait([running, flushing], return_when=asyncio.FIRST_COMPLETED)
            flushing.cancel()
            if running.done():
                running.result()
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def test_each_large_row_has_a_marker_in_its_place_and_a_dead_letter_in_the_same_group() -> None:
    one = World(DEAD)
    await one.write(chunk(6, 5000, 6, 9000, 7000, 6), END)
    ((records, progress),) = one.sink.groups
    assert progress.end_lsn == COMMIT_LSN + 8
    rows = [record for record in records if record.topic == PLAN.topic]
    letters = [record for record in records if record.topic == DEAD]
    whole = chunk(6, 5000, 6, 9000, 7000, 6).records
    assert [row.key for row in rows] == [row.key for row in whole], "rows and markers are in order"
    assert [at for at in range(6) if rows[at] != whole[at]] == [1, 3, 4]
    assert [letter.key for letter in letters] == [rows[at].key for at in (1, 3, 4)]
    assert [json.loads(letter.value or b"")["tx_seq"] for letter in letters] == [2, 4, 5]
    assert json.loads(letters[0].value or b"") == {
        "format": 1,
        "reason": "CDCD-RECORD-TOO-LARGE",
        "topic": PLAN.topic,
        "partition": 0,
        "schema": "public",
        "table": "t",
        "op": "c",
        "xid": 771,
        "timeline": 3,
        "commit_lsn": "0/100",
        "tx_seq": 2,
        "lsn": "0/80",
        "key_columns": ["id"],
        "size_bytes": len(whole[1].key or b"") + len(whole[1].value or b""),
    }
    assert b"s3cret" not in b"".join(record.value or b"" for record in (rows[1], *letters))
    assert one.report.letters == ["public.t"] * 3


async def test_a_full_queue_between_large_rows_loses_and_repeats_nothing() -> None:
    one = World(DEAD)
    one.sink.room = one.sink.room_when_sent = 2
    await one.write(chunk(6, 6, 6, 5000, 6, 6, 5000, 6), END)
    ((records, _),) = one.sink.groups
    rows = [record.key for record in records if record.topic == PLAN.topic]
    assert rows == [record.key for record in chunk(*[6] * 8).records]
    assert sum(record.topic == DEAD for record in records) == 2


@pytest.mark.parametrize("seed", range(20))
async def test_dead_letters_are_in_commit_order_where_rows_go_partition_by_partition(seed: int) -> None:
    """From the first oversized record on, a chunk is written in commit order, even with a full queue in between."""
    chance, one = random.Random(seed), World(DEAD)
    whole = [
        record._replace(partition=chance.randrange(4))
        for record in chunk(*(chance.choice((6, 6, 5000)) for _ in range(40))).records
    ]
    large = [at for at, record in enumerate(whole) if len(record.value or b"") > one.sink.limit]
    one.sink.by_partition = by_partition  # type: ignore[method-assign]
    one.sink.room = one.sink.room_when_sent = 7
    await one.write(RecordChunk(whole, 1, reached=PartPosition(COMMIT_LSN, len(whole))), END)
    ((records, _),) = one.sink.groups
    letters = [record for record in records if record.topic == DEAD]
    assert [json.loads(letter.value or b"")["tx_seq"] for letter in letters] == [at + 1 for at in large]
    assert [letter.key for letter in letters] == [whole[at].key for at in large]
    for partition in range(4):
        keys = [
            record.key for record in records if (record.topic, record.partition) == (PLAN.topic, partition)
        ]
        assert keys == [record.key for record in whole if record.partition == partition]


async def test_a_halt_names_the_first_change_that_is_too_large_where_rows_go_partition_by_partition() -> None:
    one = World(None)
    sizes, partitions = (6, 6, 6, 5000, 6, 5000, 6), (2, 2, 2, 1, 1, 2, 1)
    whole = [
        record._replace(partition=partition)
        for record, partition in zip(chunk(*sizes).records, partitions, strict=True)
    ]
    one.sink.by_partition = by_partition  # type: ignore[method-assign]
    with pytest.raises(RecordTooLarge) as caught:
        await one.write(RecordChunk(whole, 1, reached=PartPosition(COMMIT_LSN, len(whole))), END)
    assert caught.value.context["tx_seq"] == 4


async def test_what_is_not_durable_is_not_counted() -> None:
    one = World(DEAD)
    one.sink.commit_error = RuntimeError("away")
    with pytest.raises(RuntimeError):
        await one.write(chunk(5000), END)
    assert one.report.letters == []


async def test_a_halt_names_the_table_and_the_transaction_and_no_value() -> None:
    one = World(None)
    with pytest.raises(RecordTooLarge) as caught:
        await one.write(chunk(6, 5000), END)
    assert caught.value.context == {
        "topic": PLAN.topic,
        "table": "public.t",
        "commit_lsn": COMMIT_LSN,
        "tx_seq": 2,
    }
    assert "commit_lsn=0/100" in str(caught.value)
    assert "s3cret" not in str(caught.value)
    assert one.sink.groups == []


def large_message() -> RecordChunk:
    return RecordChunk(
        [Record("shop.message", 0, b"k", b"x" * 5000)], 5000, reached=PartPosition(COMMIT_LSN, 1)
    )


def large_message_alone() -> RecordChunk:
    record = Record("shop.message", 0, b"k", b"x" * 5000)
    return RecordChunk([record], 5000, CommitPosition(COMMIT_LSN, COMMIT_LSN + 1, 5, transactions=0))


@pytest.mark.parametrize("made", [large_message, large_message_alone])
async def test_what_is_no_row_halts_under_either_policy(made: Callable[[], RecordChunk]) -> None:
    for topic in (DEAD, None):
        with pytest.raises(RecordTooLarge) as caught:
            await World(topic).write(made(), END)
        assert caught.value.context == {"topic": "shop.message", "commit_lsn": COMMIT_LSN}


def truncate() -> RecordChunk:
    tx = TransactionContext(
        TransactionInfo(1, COMMIT_LSN, 0), timeline=3, name="shop", database="d", now_us=1, version="1"
    )
    records = encode_truncate(PLAN, lsn=1, cascade=False, restart_identity=False, tx=tx)
    return RecordChunk(records, 0, reached=PartPosition(COMMIT_LSN, 1))


@pytest.mark.parametrize(("made", "advice"), [(lambda: chunk(5000), "marker"), (truncate, "Raise")])
async def test_a_marker_and_a_truncate_that_are_too_large_themselves_halt(
    made: Callable[[], RecordChunk], advice: str
) -> None:
    one = World(DEAD)
    one.sink.limit = 100
    with pytest.raises(RecordTooLarge) as caught:
        await one.write(made(), END)
    assert caught.value.context["table"] == "public.t"
    assert advice in caught.value.advice
    assert one.sink.groups == []
