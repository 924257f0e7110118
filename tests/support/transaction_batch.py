"""Expected results for batches of complete transactions: the records, encoded one transaction at a time by the Python
fallback, and the keepalives that batching may drop."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from cdcd.avro.encode import encode_batch_in_python
from cdcd.avro.plan import RelationPlan
from cdcd.avro.transaction import TransactionContext
from cdcd.model import (
    POSTGRES_EPOCH_US,
    Control,
    Item,
    Keepalive,
    PlainItem,
    Record,
    RowBatch,
    TransactionBatch,
)
from cdcd.txn.frames import count_operations_in_python
from cdcd.txn.transaction_batch import expand


def one_by_one(
    transactions: TransactionBatch,
    plans: Mapping[int, RelationPlan],
    new_context: Callable[[int, int, int], TransactionContext],
    written_commit_lsn: int,
) -> tuple[object, ...]:
    """Return the result of `encode_transaction_batch`, computed for each transaction with the fallback."""
    records: list[Record] = []
    operations: dict[tuple[int, int], int] = {}
    times: list[int] = []
    with_rows = empty = dropped = 0
    commit_lsn = end_lsn = 0
    items = list(expand(transactions))
    at = 0
    while at < len(items):
        begin, second = items[at], items[at + 1]
        rows = second if isinstance(second, RowBatch) else None
        commit = items[at + (1 if rows is None else 2)]
        assert isinstance(begin, Control)
        assert isinstance(commit, Control)
        at += 2 if rows is None else 3
        lsn = int.from_bytes(begin.payload[1:9], "big")
        commit_pg_us = int.from_bytes(begin.payload[9:17], "big", signed=True)
        if lsn <= written_commit_lsn:
            dropped += 1
            continue
        if rows is not None:
            xid = int.from_bytes(begin.payload[17:21], "big")
            records += encode_batch_in_python(rows, plans, new_context(xid, lsn, commit_pg_us))
            for operation, count in count_operations_in_python(rows).items():
                operations[operation] = operations.get(operation, 0) + count
        with_rows += rows is not None
        empty += rows is None
        times.append(commit_pg_us + POSTGRES_EPOCH_US)
        commit_lsn, end_lsn = lsn, int.from_bytes(commit.payload[10:18], "big")
    first_us, last_us = (times[0], times[-1]) if times else (0, 0)
    return records, operations, first_us, last_us, commit_lsn, end_lsn, with_rows, empty, dropped


def gathered_back(items: Sequence[Item]) -> list[PlainItem]:
    """Return the items with each batch expanded, and without the send time, which a batch does not have."""
    plain = (
        one for item in items for one in (expand(item) if isinstance(item, TransactionBatch) else [item])
    )
    return [replace(one, sent_at_pg_us=0) if isinstance(one, Control) else one for one in plain]


def without_needless(plain: Sequence[PlainItem], batched: Sequence[PlainItem]) -> list[PlainItem]:
    """Return `plain` without the keepalives that `kept` lacks and may lack (F11): such a keepalive requests no reply,
    follows a Commit or a keepalive, and precedes a keepalive or a Begin with at least its position."""
    found: list[PlainItem] = []
    for at in reversed(range(len(plain))):  # of equal keepalives the last one remains
        is_there = len(found) < len(batched) and batched[-1 - len(found)] == plain[at]
        if is_there or not (0 < at < len(plain) - 1 and _may_go(*plain[at - 1 : at + 2])):
            found.append(plain[at])
    return found[::-1]


def _may_go(before: PlainItem, item: PlainItem, behind: PlainItem) -> bool:
    if not isinstance(item, Keepalive) or item.reply_requested:
        return False
    if not isinstance(before, Keepalive) and not (isinstance(before, Control) and before.payload[:1] == b"C"):
        return False
    if isinstance(behind, Keepalive):
        return not behind.reply_requested and behind.wal_end_lsn >= item.wal_end_lsn
    if not isinstance(behind, Control) or behind.payload[:1] != b"B":
        return False
    (commit_lsn,) = struct.unpack_from(">Q", behind.payload, 1)
    return bool(commit_lsn >= item.wal_end_lsn)
