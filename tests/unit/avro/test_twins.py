"""The compiled row codec against its twin in Python: the same records, or the same error, whatever the bytes."""

from __future__ import annotations

import copy
import random

import pytest

from cdcd.avro import encode
from cdcd.avro.encode import encode_run, encode_run_in_python, encode_transactions
from cdcd.avro.transaction import TransactionContext
from cdcd.kernels import compiled
from cdcd.model import TransactionInfo
from tests.support.some_rows import LSN, Table, context, outcome, run_of, transactions_of
from tests.support.whole import one_by_one

ROWS = compiled("cdcd.avro.rows")
needs_kernel = pytest.mark.skipif(ROWS is None, reason="the kernels in Python were asked for")
SEEDS = range(2000)
WRITTEN = LSN + 1500


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


@needs_kernel
@pytest.mark.parametrize("first", range(0, len(SEEDS), 200))
def test_a_run_becomes_the_same_records_or_the_same_error(first: int) -> None:
    encoded = 0
    for seed in SEEDS[first : first + 200]:
        chance = random.Random(seed)
        tables = [Table(chance, relid) for relid in (7, 8)]
        plans = {table.relid: table.plan for table in tables if chance.random() < 0.97}
        tx = context(chance, snapshot=chance.random() < 0.1, has_block=chance.random() < 0.2)
        for _ in range(5):
            run = run_of(tables, chance)
            one, other = copy.deepcopy(tx), copy.deepcopy(tx)
            wanted = outcome(encode_run_in_python, run, plans, one)
            assert outcome(encode_run, run, plans, other) == wanted, seed
            if isinstance(wanted, list):
                encoded += 1
                assert (other.tx_seq, other.counts) == (one.tx_seq, one.counts), seed
                tx = one
    assert encoded > 200, "most runs are good ones"


@needs_kernel
@pytest.mark.parametrize("first", range(0, len(SEEDS), 200))
def test_whole_transactions_become_what_they_become_one_by_one(first: int) -> None:
    gone = 0
    for seed in SEEDS[first : first + 200]:
        chance = random.Random(seed)
        tables = [Table(chance, relid) for relid in (7, 8)]
        plans = {table.relid: table.plan for table in tables}
        transactions = transactions_of(tables, chance)
        found = encode_transactions(transactions, plans, _context, FIRST, WRITTEN)
        if found is None:
            continue
        gone += 1
        assert not isinstance(found, int)
        assert found == one_by_one(transactions, plans, _context, WRITTEN), seed
    assert gone > 100, "most go this way"


@needs_kernel
def test_a_row_without_a_plan_is_named() -> None:
    chance = random.Random(4)
    transactions = transactions_of([Table(chance, 8)], chance)
    assert transactions.frames.count(b"N") > 0
    assert encode_transactions(transactions, {}, _context, FIRST, 0) == 8


def test_without_a_kernel_they_go_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encode, "_KERNEL", None)
    chance = random.Random(4)
    transactions = transactions_of([Table(chance, 8)], chance)
    assert encode_transactions(transactions, {}, _context, FIRST, 0) is None
