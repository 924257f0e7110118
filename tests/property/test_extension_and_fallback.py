"""The C extension of the row codec and its Python fallback give the same records or error for any bytes."""

from __future__ import annotations

import copy
import dataclasses
import random
import struct

import pytest

from cdcd.avro import encode
from cdcd.avro.encode import (
    encode_batch,
    encode_batch_in_python,
    encode_transaction_batch,
    take_fallback_counts,
)
from cdcd.avro.plan import RelationPlan, compile_plan
from cdcd.avro.transaction import TransactionContext
from cdcd.extensions import extension
from cdcd.model import Column, Relation, ReplicaIdentity, RowBatch, TransactionInfo
from cdcd.schema.keys import key_of
from cdcd.schema.policy import Policies, Policy
from cdcd.schema.relation_schema import relation_schemas
from tests.support.nightly import nightly_except
from tests.support.some_rows import LSN, TYPES, Table, context, frame, outcome, row_batch_of, transactions_of
from tests.support.transaction_batch import one_by_one

ROWS = extension("cdcd.avro.rows")
needs_extension = pytest.mark.skipif(ROWS is None, reason="the Python fallbacks were asked for")
SEEDS = range(2000)
WRITTEN = LSN + 1500
FLOAT8, TIMESTAMPTZ, INTERVAL = 701, 1184, 1186


def _context(xid: int, commit_lsn: int, commit_pg_us: int) -> TransactionContext:
    return TransactionContext(
        TransactionInfo(xid, commit_lsn, commit_pg_us),
        timeline=3,
        name="shop",
        database="orders",
        now_us=1,
        version="9.9.9",
    )


FIRST = _context(1, 1, 1)


@needs_extension
@pytest.mark.parametrize("first", nightly_except(range(0, len(SEEDS), 200), 0))
def test_a_run_becomes_the_same_records_or_the_same_error(first: int) -> None:
    encoded = 0
    for seed in SEEDS[first : first + 200]:
        chance = random.Random(seed)
        tables = [Table(chance, relid) for relid in (7, 8)]
        plans = {table.relid: table.plan for table in tables if chance.random() < 0.97}
        tx = context(chance, snapshot=chance.random() < 0.1, has_block=chance.random() < 0.2)
        for _ in range(5):
            batch = row_batch_of(tables, chance)
            one, other = copy.deepcopy(tx), copy.deepcopy(tx)
            wanted = outcome(encode_batch_in_python, batch, plans, one)
            assert outcome(encode_batch, batch, plans, other) == wanted, seed
            if isinstance(wanted, list):
                encoded += 1
                assert (other.tx_seq, other.counts) == (one.tx_seq, one.counts), seed
                tx = one
    assert encoded > 200, "most batches are valid"


@needs_extension
@pytest.mark.parametrize("first", nightly_except(range(0, len(SEEDS), 200), 0))
def test_whole_transactions_become_what_they_become_one_by_one(first: int) -> None:
    gone = 0
    for seed in SEEDS[first : first + 200]:
        chance = random.Random(seed)
        tables = [Table(chance, relid) for relid in (7, 8)]
        plans = {table.relid: table.plan for table in tables}
        transactions = transactions_of(tables, chance)
        found = encode_transaction_batch(transactions, plans, _context, FIRST, WRITTEN)
        if found is None:
            continue
        gone += 1
        assert not isinstance(found, int)
        assert found == one_by_one(transactions, plans, _context, WRITTEN), seed
    assert gone > 100, "most batches are encoded in one call"


@needs_extension
def test_a_row_without_a_plan_is_named() -> None:
    chance = random.Random(4)
    transactions = transactions_of([Table(chance, 8)], chance)
    assert transactions.frames.count(b"N") > 0
    assert encode_transaction_batch(transactions, {}, _context, FIRST, 0) == 8


def test_without_the_extension_transactions_are_encoded_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encode, "_EXTENSION", None)
    chance = random.Random(4)
    transactions = transactions_of([Table(chance, 8)], chance)
    assert encode_transaction_batch(transactions, {}, _context, FIRST, 0) is None


def _one_column(type_oid: int) -> dict[int, RelationPlan]:
    column = Column("ratio", type_oid, -1, is_key=False)
    relation = Relation(7, "public", "t7", ReplicaIdentity.NOTHING, (column,))
    policies = Policies(Policy())
    key = key_of(relation, (), None, policies.table("public.t7"))
    schemas = relation_schemas(relation, TYPES, key, "shop", policies, is_key_required=False)
    plan = compile_plan(
        relation, schemas, topic="t", partitions=1, key_schema_id=None, value_schema_id=12, tombstones=False
    )
    return {7: plan}


def _one_row(text: str) -> RowBatch:
    tuple_data = struct.pack(">HcI", 1, b"t", len(text)) + text.encode()
    return RowBatch(frame(b"I" + struct.pack(">I", 7) + b"N" + tuple_data), 1)


@needs_extension
def test_two_relations_of_one_name_are_counted_together() -> None:
    """The tables "a.b"."c" and "a"."b.c" have one name in the metrics."""
    for seed in range(50):
        chance = random.Random(seed)
        tables = [Table(chance, relid) for relid in (7, 8)]
        plans = {one.relid: dataclasses.replace(one.plan, table="a.b.c", compiled=None) for one in tables}
        tx, batch = context(chance, has_block=True), row_batch_of(tables, chance)
        one, other = copy.deepcopy(tx), copy.deepcopy(tx)
        assert outcome(encode_batch, batch, plans, other) == outcome(
            encode_batch_in_python, batch, plans, one
        )
        assert (other.tx_seq, other.counts) == (one.tx_seq, one.counts), seed


@needs_extension
@pytest.mark.parametrize(
    ("type_oid", "text", "tally"),
    [(FLOAT8, "1.5", (0, 0)), (INTERVAL, "1 day", (1, 0)), (TIMESTAMPTZ, "infinity", (0, 1))],
)
def test_what_the_extension_leaves_to_python_is_counted(
    type_oid: int, text: str, tally: tuple[int, int]
) -> None:
    """A column of a rare type, or a row with a value that the extension does not encode."""
    take_fallback_counts()
    assert len(encode_batch(_one_row(text), _one_column(type_oid), context(random.Random(1)))) == 1
    assert take_fallback_counts() == tally
    assert take_fallback_counts() == (0, 0)


def _float_texts(chance: random.Random, count: int) -> list[str]:
    """Return doubles as PostgreSQL writes them (the shortest text), and numbers near the middle of two doubles."""
    written = [repr(chance.choice((1, -1)) * 10 ** chance.uniform(-4, 15)) for _ in range(count)]
    middles = []
    for _ in range(count):
        bits = chance.randint(54, 63)
        middle = (chance.getrandbits(52) | 1 << 52) << 1 | 1  # 54 bits; a double has 53
        digits = str((middle << (bits - 54)) + chance.choice((-1, 0, 0, 1)))
        point = chance.randint(1, len(digits))
        middles += [digits, digits[:point] + "." + digits[point:]]
    return [text for text in (*written, *middles) if "e" not in text]


def test_a_text_becomes_the_nearest_double() -> None:
    """The extension and its fallback must equal Python's `float`, which rounds correctly."""
    plans = _one_column(FLOAT8)
    tx = context(random.Random(1))
    texts = _float_texts(random.Random(2), 4000)
    for text in texts:
        (record,) = encode_batch(_one_row(text), plans, tx)
        assert record.value is not None
        assert b"\x02" + struct.pack("<d", float(text)) in record.value, text
    assert sum(len(text.strip("-").replace(".", "")) >= 17 for text in texts) > 4000, "most have 17 digits"
