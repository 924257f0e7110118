"""A model of the histories of a mirror: a replay of the changes one by one, and changes of all kinds at random."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any, Protocol, TypeVar

from pyspark.sql import SparkSession

from cdcd.spark import history
from cdcd.spark.target.commit_log import read_latest
from cdcd.spark.target.versions import TableEntry
from tests.spark.batches import TOPIC, Batches, Record
from tests.spark.events import column

TABLE = TOPIC.partition(".")[2]

FIELDS = [column("id", "int", required=True), column("name", "string"), column("note", "string")]
Row = dict[str, Any]
Version = tuple[int, str | None, str | None, tuple[int, int], tuple[int, int] | None]
"""Columns, and the LSN and the number in the transaction of the start and of the end."""
Sent = TypeVar("Sent", covariant=True)


class Changes(Protocol[Sent]):
    """Makes what is sent for a change."""

    def change(self, op: str, commit_lsn: int, tx_seq: int, **rest: Any) -> Sent:
        """Return what is sent."""


def item(number: int, name: str | None, note: str | None = "n") -> Row:
    return {"id": number, "name": name, "note": note}


class Timed(Batches):
    """Batches whose commits have times: a commit's time is its LSN in seconds.

    So a retention from an LSN on is the time since then.
    """

    def change(self, op: str, commit_lsn: int, tx_seq: int, **rest: Any) -> Record:
        return super().change(op, commit_lsn, tx_seq, commit_us=commit_lsn * 1_000_000, **rest)

    def retain_from(self, lsn: int) -> None:
        """Retain what has ended after this LSN, from the next start on."""
        self.history_retain_s = time.time() - lsn

    def compact(self) -> None:
        with self.mirror() as batches:
            batches.compact()

    def entry(self) -> TableEntry:
        latest = read_latest(self.target)
        assert latest is not None
        return latest.tables[TOPIC]

    def lines(self) -> int:
        return sum(one.rows for one in self.entry().history)


class Model:
    """The versions by a replay of the changes."""

    def __init__(self) -> None:
        self.rows: dict[int, Row] = {}
        self._began: dict[int, tuple[int, int]] = {}
        self.ended: list[Version] = []

    def put(self, row: Row, at: tuple[int, int]) -> None:
        if self.rows.get(row["id"]) == row:
            return
        self.end(row["id"], at)
        self.rows[row["id"]], self._began[row["id"]] = row, at

    def end(self, number: int, at: tuple[int, int]) -> None:
        row = self.rows.pop(number, None)
        if row is not None:
            self.ended.append((number, row["name"], row["note"], self._began[number], at))

    @property
    def versions(self) -> list[Version]:
        valid: list[Version] = [
            (number, row["name"], row["note"], self._began[number], None) for number, row in self.rows.items()
        ]
        return sorted([*self.ended, *valid], key=lambda one: (one[0], one[3]))


def batch_of(items: Changes[Sent], model: Model, lsn: int, chosen: random.Random) -> list[Sent]:
    """Return random changes of all kinds, as `items` makes them, with the values that PostgreSQL would send."""
    records: list[Sent] = []
    for number in range(1, 12):
        one, at, kind = chosen.randrange(12), (lsn, number), chosen.random()
        row = {"id": one, "name": chosen.choice(["a", "b", None]), "note": chosen.choice(["n", "m"])}
        old = model.rows.get(one)
        if kind < 0.03:
            for held in list(model.rows):
                model.end(held, at)
            records.append(items.change("t", *at))
        elif old is None:
            model.put(row, at)
            records.append(items.change("c", *at, after=row))
        elif kind < 0.2:
            model.end(one, at)
            records.append(items.change("d", *at, before=old))
        elif kind < 0.4:  # the note is TOASTed, and was not changed
            model.put({**row, "note": old["note"]}, at)
            sent = {**row, "note": None}
            records.append(items.change("u", *at, after=sent, unchanged=["note"]))
        else:
            model.put(row, at)
            records.append(items.change("u", *at, after=row))
    return records


def copy_of(items: Batches, model: Model, lsn: int, chosen: random.Random) -> list[Record]:
    """Copy the table again: most rows are as they were, some are not, some are not found, and some are found newly.

    The stream changes or deletes others before their chunk is read. Of some the note is not copied, so it is null.
    """
    records = [items.change("t", lsn, 1, snapshot=True)]
    new = [number for number in range(12) if number not in model.rows and chosen.random() < 0.3]
    streamed: list[Record] = []
    for place, old in enumerate(list(model.rows.values()), 2):
        kind = chosen.random()
        row = old if kind > 0.6 else {**old, "name": chosen.choice(["a", "z"])}
        if kind < 0.2:
            model.end(old["id"], (lsn, 1))
        elif kind < 0.7:
            row, lacks = ({**row, "note": None}, ["note"]) if kind > 0.62 else (row, [])
            model.put(row, (lsn, place))
            records.append(items.change("r", lsn, place, after=row, unchanged=lacks))
        elif kind < 0.85:
            model.put({**row, "name": "s"}, (lsn + 1, place))
            streamed.append(items.change("u", lsn + 1, place, after={**row, "name": "s"}))
        else:
            model.end(old["id"], (lsn + 1, place))
            streamed.append(items.change("d", lsn + 1, place, before=old))
    for place, number in enumerate(new, 100):
        row = item(number, chosen.choice(["a", "b"]))
        model.put(row, (lsn, place))
        records.append(items.change("r", lsn, place, after=row))
    return [*records, *streamed]


def stopped_copy_of(items: Batches, model: Model, lsn: int, chosen: random.Random) -> list[Record]:
    """Begin a copy that never is complete: it ends no row, whatever it has not read yet."""
    records = [items.change("t", lsn, 1, snapshot=True)]
    for place, old in enumerate(list(model.rows.values()), 2):
        row = {**old, "name": chosen.choice([old["name"], "h"])}
        if chosen.random() < 0.4:
            model.put(row, (lsn, place))
            records.append(items.change("r", lsn, place, after=row))
    return records


def plain_copy_of(items: Batches, model: Model, lsn: int, chosen: random.Random) -> list[Record]:
    """Copy the rows without a TRUNCATE before and without their notes: a row retains the one that it has."""
    records = []
    for place, old in enumerate(list(model.rows.values()), 1):
        row = {**old, "name": chosen.choice([old["name"], "p"])}
        model.put(row, (lsn, place))
        records.append(items.change("r", lsn, place, after={**row, "note": None}, unchanged=["note"]))
    return records


def versions_of(spark: SparkSession, target: Path, **options: Any) -> list[Version]:
    """Return what `history` returns, in the order of a model."""
    found = history(spark, str(target), TABLE, **options).collect()
    return sorted(
        (
            (one["id"], one["name"], one["note"], _place(one["__start_at"]), _place(one["__end_at"]))
            for one in found
        ),
        key=lambda one: (one[0], one[3]),
    )


def _place(at: Any) -> Any:
    return None if at is None else (at["commit_lsn"], at["tx_seq"])
