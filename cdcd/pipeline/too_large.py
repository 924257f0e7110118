"""What is larger than Kafka accepts: the error of a transaction, and the order of a chunk after a record.

In: a group at its limit; the records of a chunk.  Out: TransactionTooLarge; records in commit order.
Must not: decide what replaces a record (`dead_letters`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from cdcd.ack.group import Group
from cdcd.errors import TransactionTooLarge
from cdcd.lsn import Lsn
from cdcd.model import Record

_LARGER_BY = {
    "rows": "sink.large_transactions.max_rows",
    "bytes": "sink.large_transactions.max_bytes",
    "time": "sink.transaction_timeout_ms (the broker allows up to its transaction.max.timeout.ms), or "
    "sink.large_transactions.max_time_ms where it is set,",
}
_LARGER_HINT = (
    "nothing of the transaction is visible or confirmed. Raise {raised} and restart cdcd; or set "
    "sink.large_transactions.policy: parts and restart cdcd: readers may then see a part of the transaction "
    "before the rest"
)


def transaction_too_large(limit: str, group: Group, safe_lsn: Lsn, now_us: int) -> TransactionTooLarge:
    """Return the error of a transaction for which the open group has reached this limit."""
    return TransactionTooLarge(
        f"a transaction is larger than one Kafka transaction may be: it has reached the limit in {limit}",
        hint=_LARGER_HINT.format(raised=_LARGER_BY[limit]),
        begins_after_lsn=safe_lsn,
        rows=group.rows,
        bytes=group.bytes,
        seconds=(now_us - (group.opened_us or 0)) // 1_000_000,
    )


def in_commit_order(records: Sequence[Record], given: Iterable[Record]) -> list[Record]:
    """Return `records` without the `given` ones, which are the first ones of each partition."""
    counts = Counter((record.topic, record.partition) for record in given)
    rest = []
    for record in records:
        partition = record.topic, record.partition
        if counts[partition]:
            counts[partition] -= 1
        else:
            rest.append(record)
    return rest
