"""(j) The stream begins where the snapshot ends: no gap between them, and no change in both. Pure.

In: a block, the tables before it.  Out: the snapshot's consistent point; findings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tests.faults.assertions.folds import Fold, alike, fold_changes
from tests.faults.facts import Block, Finding, Progress, Table


def snapshot_point(records: Sequence[Progress], before: Progress | None) -> int | None:
    """Return the consistent point of the last snapshot completed here: the end of the first record after it."""
    point = None
    for record in records:
        if record.phase == "streaming" and (before is None or before.phase == "snapshot"):
            point = record.end_lsn
        before = record
    return point


def joined(
    block: Block,
    tables: Mapping[str, Table],
    truth: Mapping[str, Fold],
    point: int | None,
    before: int | None,
) -> Iterator[Finding]:
    """(j) The last snapshot has each row of its consistent point once, and no other row; the stream is behind it.

    A TRUNCATE behind that point hides rows from the snapshot (TRUNCATE is not MVCC-safe), and is in the stream.
    """
    if point is None or point == before:
        return
    at_point = {name: Fold(table) for name, table in tables.items()}
    for name, fold in truth.items():
        at_point[name].rows, at_point[name].bag = dict(fold.rows), fold.bag.copy()
    fold_changes(at_point, [one for tx in block.transactions if tx.end_lsn <= point for one in tx.changes])
    emptied = {
        one.table for tx in block.transactions if tx.end_lsn > point for one in tx.changes if one.op == "t"
    }
    for name in tables:
        copied = [
            one.after or {}
            for one in block.events
            if one.table == name and one.op == "r" and one.commit_lsn + 1 == point
        ]
        wanted, rows = alike(at_point[name].contents(), copied)
        less, more = (wanted - rows).total(), (rows - wanted).total()
        if more or (less and name not in emptied):
            yield Finding("j", f"the snapshot of {name}: {less} rows missing, {more} too many")
    early = [
        one for one in block.events if not one.is_snapshot and one.op not in "xm" and one.commit_lsn < point
    ]
    if early:
        yield Finding("j", f"{early[0]}: in the stream, although before the snapshot's point {point}")
