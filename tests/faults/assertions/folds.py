"""(f) Changes folded into rows, compared with the table. Pure.

In: changes from PostgreSQL's history, or events of the topics.  Out: rows by key; findings.
Invariant: a table without a key is a multiset of rows. Must not: report a column that DDL added or dropped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tests.faults.facts import MESSAGE, Change, Event, Finding, Key, Row, Table


@dataclass
class Fold:
    """A table after its changes: rows by key, or a multiset of rows where there is no key."""

    table: Table
    rows: dict[Key, Row] = field(default_factory=dict)
    bag: Counter[Key] = field(default_factory=Counter)

    def clear(self) -> None:
        self.rows.clear()
        self.bag.clear()

    def put(self, row: Row) -> None:
        if self.table.key:
            self.rows[key_of(self.table, row)] = row
        else:
            self.bag[whole(row)] += 1

    def drop(self, row: Row) -> Row:
        """Remove a row; return the old row as far as it is known."""
        if self.table.key:
            return self.rows.pop(key_of(self.table, row), {})
        self.bag[whole(row)] -= 1
        return row

    def contents(self) -> list[Row]:
        return [*self.rows.values(), *(dict(row) for row in self.bag.elements())]


def key_of(table: Table, row: Row) -> Key:
    """Return the key of a row."""
    return tuple((name, row[name]) for name in table.key)


def whole(row: Row) -> Key:
    """Return a complete row in a form that can be compared."""
    return tuple(sorted(row.items()))


def fold_changes(folds: Mapping[str, Fold], changes: Sequence[Change]) -> None:
    """Fold the changes of PostgreSQL's history."""
    for change in changes:
        if change.table == MESSAGE:
            continue
        fold = folds[change.table]
        if change.op == "t":
            fold.clear()
        if change.before is not None:
            fold.drop(change.before)
        if change.after is not None:
            fold.put(change.after)


def fold_events(folds: Mapping[str, Fold], events: Sequence[Event]) -> None:
    """Fold the events of the topics; values that were not sent are taken from the row before."""
    deleted: dict[str, Row] = {}
    for event in sorted(events, key=lambda event: event.sequence):
        if event.op in "xm" or event.is_odd:
            continue
        fold = folds[event.table]
        if event.op == "t":
            fold.clear()
        elif event.op == "d" and event.before is not None:
            deleted[event.table] = fold.drop(event.before)
        elif event.after is not None:
            old: Row = {}
            if event.op == "u":
                old = fold.drop(event.before or event.after)
            elif event.op == "c":
                old = deleted.get(event.table, {})
            fold.put({n: old.get(n) if n in event.unchanged else v for n, v in event.after.items()})


def folded(
    rows: Mapping[str, Sequence[Row]], truth: Mapping[str, Fold], topic: Mapping[str, Fold]
) -> list[Finding]:
    """(f) Both folds are equal to the table. A row has the columns of its last change, despite later DDL."""
    findings = []
    for name, selected in rows.items():
        for whose, fold in (("history", truth[name]), ("topic", topic[name])):
            one, other = alike(fold.contents(), selected)
            if one != other:
                more, less = (one - other).total(), (other - one).total()
                findings.append(
                    Finding("f", f"the fold of {name}'s {whose}: {less} rows missing, {more} too many")
                )
    return findings


def alike(rows: Sequence[Row], others: Sequence[Row]) -> tuple[Counter[Key], Counter[Key]]:
    """Count the rows of both sides by their common columns: a row lacks columns that were added after its change."""
    both = (*rows, *others)
    columns = set.intersection(*map(set, both)) if both else set()
    one, other = (
        Counter(whole({name: value for name, value in row.items() if name in columns}) for row in side)
        for side in (rows, others)
    )
    return one, other
