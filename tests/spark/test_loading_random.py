"""Random copies of a table that changes meanwhile: no batch shows a row that the source does not have."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.spark.batches import Batches, Record
from tests.spark.test_loading import COLUMNS
from tests.support.nightly import nightly_except

LARGE = ("body", "note")
IDS = range(1, 13)
Row = dict[str, Any]


class Source:
    """A table, the records of its changes, and a copy in chunks of three keys (rows that changed are dropped)."""

    def __init__(self, items: Batches, seed: int) -> None:
        self.random, self.items = random.Random(seed), items
        self.rows = {number: self._row(number) for number in IDS if number % 2}
        self.records: list[Record] = []
        self.lsn = 10
        self.chunk: dict[int, Row | None] | None = None
        self.unread, self.read_again = list(IDS), set[int]()
        self.changed: dict[int, bool] = {}
        """The keys that changed since the chunk was read, and whether a value was not sent."""

    @property
    def is_copied(self) -> bool:
        return self.chunk is None and not self.unread and not self.read_again

    def _text(self) -> str:
        return str(self.random.randrange(10**6))

    def _row(self, number: int) -> Row:
        return {"id": number, "name": self._text(), "body": self._text(), "note": self._text()}

    def _note(self, number: int, unchanged: list[str]) -> None:
        self.changed[number] = bool(unchanged) or (number in self.changed and self.changed[number])

    def _write(self, op: str, place: int, **rest: Any) -> None:
        self.records.append(self.items.change(op, self.lsn, place, **rest))

    def transaction(self) -> None:
        """Change some rows."""
        self.lsn += 10
        for place in range(1, 2 * self.random.randrange(1, 4), 2):
            chosen = self.random.choice(IDS)
            if self.random.random() < 0.02:
                self._write("t", place)
                self.changed |= dict.fromkeys(IDS, False)
                self.rows.clear()
            elif chosen not in self.rows:
                self.rows[chosen] = self._row(chosen)
                self._note(chosen, [])
                self._write("c", place, after=self.rows[chosen])
            elif self.random.random() < 0.2:
                self._note(chosen, [])
                self._write("d", place, before=self.rows.pop(chosen))
            else:
                self._update(chosen, place)

    def _update(self, old: int, place: int) -> None:
        sent = [name for name in LARGE if self.random.random() < 0.4]
        unchanged = [name for name in LARGE if name not in sent]
        free = [number for number in IDS if number not in self.rows]
        new = self.random.choice(free) if free and self.random.random() < 0.3 else old
        row = {**self.rows.pop(old), **dict.fromkeys(sent, self._text()), "id": new, "name": self._text()}
        self.rows[new] = row
        after = {**row, **dict.fromkeys(unchanged)}
        self._note(old, [])
        self._note(new, unchanged)
        if new == old:
            self._write("u", place, after=after, unchanged=unchanged)
            return
        self._write("d", place, before={"id": old, "name": None, "body": None, "note": None})
        self._write("c", place + 1, after=after, unchanged=unchanged)
        if unchanged:
            self.read_again.add(new)

    def copy(self) -> None:
        """Read the next chunk, or emit the one that was read."""
        if self.chunk is not None:
            self._emit(self.chunk)
            return
        keys = self.unread[:3] or sorted(self.read_again)[:3]
        self.chunk = {key: self.rows.get(key) for key in keys}
        self.changed = {}

    def _emit(self, chunk: dict[int, Row | None]) -> None:
        self.lsn += 10
        for place, (key, row) in enumerate(chunk.items(), 1):
            if key not in self.changed and row is not None:
                self._write("r", place, after=row)
            self.read_again.discard(key)
            if self.changed.get(key):
                self.read_again.add(key)
        self.unread = self.unread[3:] if self.unread else []
        self.chunk = None


@pytest.mark.parametrize("seed", nightly_except(range(40), 0, 3))
def test_no_batch_shows_a_row_that_the_source_does_not_have(tmp_path: Path, seed: int) -> None:
    items = Batches(tmp_path / "mirror", COLUMNS)
    source = Source(items, seed)
    done = 0
    while not source.is_copied:
        for _ in range(source.random.randrange(1, 5)):
            source.random.choice([source.transaction, source.copy])()
        repeated = done if source.random.random() < 0.8 else source.random.randrange(done + 1)
        shown = items.run(source.records[repeated:], loading=not source.is_copied)
        done = len(source.records)
        assert all(row == source.rows.get(row["id"]) for row in shown)
    for _ in range(4):
        assert shown == sorted(source.rows.values(), key=lambda row: row["id"])
        source.transaction()
        shown = items.run(source.records[done:], loading=False)
