"""The specification of how whole transactions are encoded in one go: one after the other, by the row codec's twin."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cdcd.avro.encode import encode_run_in_python
from cdcd.avro.plan import RelationPlan
from cdcd.avro.transaction import TransactionContext
from cdcd.model import POSTGRES_EPOCH_US, Record, Run, Transactions
from cdcd.txn.frames import count_operations_in_python
from cdcd.txn.whole import expanded


def one_by_one(
    transactions: Transactions,
    plans: Mapping[int, RelationPlan],
    new_context: Callable[[int, int, int], TransactionContext],
    written_commit_lsn: int,
) -> tuple[object, ...]:
    """What `encode_transactions` returns: each transaction by itself, with the twin."""
    records: list[Record] = []
    operations: dict[tuple[int, int], int] = {}
    times: list[int] = []
    with_rows = empty = dropped = 0
    commit_lsn = end_lsn = 0
    items = list(expanded(transactions))
    at = 0
    while at < len(items):
        begin = items[at]
        rows = items[at + 1] if isinstance(items[at + 1], Run) else None
        commit = items[at + (1 if rows is None else 2)]
        at += 2 if rows is None else 3
        lsn = int.from_bytes(begin.payload[1:9], "big")
        commit_pg_us = int.from_bytes(begin.payload[9:17], "big", signed=True)
        if lsn <= written_commit_lsn:
            dropped += 1
            continue
        if rows is not None:
            xid = int.from_bytes(begin.payload[17:21], "big")
            records += encode_run_in_python(rows, plans, new_context(xid, lsn, commit_pg_us))
            for operation, count in count_operations_in_python(rows).items():
                operations[operation] = operations.get(operation, 0) + count
        with_rows += rows is not None
        empty += rows is None
        times.append(commit_pg_us + POSTGRES_EPOCH_US)
        commit_lsn, end_lsn = lsn, int.from_bytes(commit.payload[10:18], "big")
    first_us, last_us = (times[0], times[-1]) if times else (0, 0)
    return records, operations, first_us, last_us, commit_lsn, end_lsn, with_rows, empty, dropped
