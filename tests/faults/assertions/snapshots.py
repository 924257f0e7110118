"""(j) The stream begins where the snapshot ends: no gap between them, and no change in both. Pure.

(c) An attempt after an interruption copies no complete table again. (j) Each copied row is that of its position.

In: a block, the tables before it.  Out: the snapshot's consistent points; findings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tests.faults.assertions.folds import Fold, alike, fold_changes, key_of
from tests.faults.facts import Block, Finding, Point, Progress, Table


def snapshot_point(
    records: Sequence[Progress], before: Progress | None, names: Mapping[int, str]
) -> Point | None:
    """Return the points of the last snapshot completed here, of the first record after it.

    Its end is where the stream begins; its floors are the points of tables that were copied later.
    """
    point = None
    for record in records:
        if record.phase == "streaming" and (before is None or before.phase == "snapshot"):
            floors = {names[relid]: lsn for relid, lsn in record.floors.items()}
            point = Point(record.end_lsn, floors, frozenset(names[relid] for relid in record.in_chunks))
        before = record
    return point


def joined(
    block: Block,
    tables: Mapping[str, Table],
    truth: Mapping[str, Fold],
    point: Point | None,
    before: Point | None,
) -> Iterator[Finding]:
    """(j) A table's last snapshot has each row of its point once, and no other row; its stream is behind the point.

    A TRUNCATE behind that point hides rows from the snapshot (TRUNCATE is not MVCC-safe), and is in the stream. Of a
    table whose copy continues in chunks, the snapshot has a part of the rows; the fold of the topic has to have all.
    """
    if point is None or point == before:
        return
    at_point = {name: Fold(table) for name, table in tables.items()}
    for name, fold in truth.items():
        at_point[name].rows, at_point[name].bag = dict(fold.rows), fold.bag.copy()
    changes = [(tx.end_lsn, one) for tx in block.transactions for one in tx.changes]
    fold_changes(at_point, [one for end_lsn, one in changes if end_lsn <= point.of(one.table)])
    emptied = {one.table for end_lsn, one in changes if one.op == "t" and end_lsn > point.of(one.table)}
    for name in tables:
        copied = [
            one.after or {}
            for one in block.events
            if one.table == name and one.op == "r" and one.commit_lsn + 1 == point.of(name)
        ]
        wanted, rows = alike(at_point[name].contents(), copied)
        less, more = (wanted - rows).total(), (rows - wanted).total()
        if more or (less and name not in emptied | point.unfinished):
            yield Finding("j", f"the snapshot of {name}: {less} rows missing, {more} too many")
    early = [
        one
        for one in block.events
        if not one.is_snapshot and one.op not in "xm" and one.commit_lsn < point.of(one.table)
    ]
    if early:
        yield Finding("j", f"{early[0]}: in the stream, although before its point in {point}")


def complete_at(
    records: Sequence[Progress], names: Mapping[int, str]
) -> Iterator[tuple[dict[str, int], int]]:
    """Yield, for each snapshot in the records, at which point each table was complete, and the last attempt's point.

    A record without a list of tables begins a snapshot of all tables.
    """
    seen: set[int] = set()
    complete: dict[str, int] = {}
    last_lsn = 0
    for record in records:
        if record.phase != "snapshot" or record.pending is None:
            if complete:
                yield complete, last_lsn
            seen, complete, last_lsn = set(), {}, 0
            continue
        seen |= record.pending
        last_lsn = record.copy_lsn
        for relid in seen - record.pending:
            complete.setdefault(names[relid], record.copy_lsn)
    if complete:
        yield complete, last_lsn


def copied_once(block: Block) -> Iterator[Finding]:
    """(c) A table that a progress record has as complete is neither copied nor emptied by a later attempt."""
    for complete, last_lsn in complete_at(block.progress, block.names):
        for name, point_lsn in complete.items():
            again = [
                one
                for one in block.events
                if one.table == name and one.is_snapshot and point_lsn < one.commit_lsn + 1 <= last_lsn
            ]
            if again:
                yield Finding(
                    "c", f"{name} was complete at {point_lsn}, and {len(again)} records of it follow"
                )


def as_of_its_position(
    block: Block, tables: Mapping[str, Table], truth: Mapping[str, Fold]
) -> Iterator[Finding]:
    """(j) A copied row of a table with a key is the row of that key after the transactions up to its position.

    A row has the columns of its last change, despite later DDL.
    """
    folds = {name: Fold(table) for name, table in tables.items() if table.key}
    for name, fold in folds.items():
        fold.rows = dict(truth[name].rows)
    transactions = list(block.transactions)[::-1]
    rows = [one for one in block.events if one.op == "r" and one.table in folds]
    for row in sorted(rows, key=lambda one: one.sequence):
        while transactions and transactions[-1].end_lsn <= row.commit_lsn + 1:
            changes = transactions.pop().changes
            fold_changes(folds, [one for one in changes if one.table in folds])
        after = row.after or {}
        wanted = folds[row.table].rows.get(key_of(tables[row.table], after))
        if wanted is None:
            yield Finding("j", f"{row}: there is no row with its key at its position")
        elif any(after[name] != value for name, value in wanted.items() if name in after):
            yield Finding("j", f"{row}: its values differ from those of the row at its position")
