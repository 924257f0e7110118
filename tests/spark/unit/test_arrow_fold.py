"""The fold in columns gives what the fold row by row gives, for histories with everything that changes can have."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cdcd.errors import CdcdError
from cdcd.spark.decoding.events import Sequence
from cdcd.spark.storage.uri import open_storage
from cdcd.spark.tables import compaction, table_files, tasks
from cdcd.spark.tables.arrow_fold import changes_of, latest
from cdcd.spark.tables.compaction import FileMerges, Merge, next_merge, with_merged, write_merge
from cdcd.spark.tables.history_merges import HistoryMerges, next_history_merge
from cdcd.spark.tables.next_version import entry_after
from cdcd.spark.tables.plan import Look, TablePlan, plan_table
from cdcd.spark.tables.table_files import count_rows, read_history, read_incomplete, read_table
from cdcd.spark.target.shape import CHANGE, Field, TableShape
from cdcd.spark.target.versions import ALL_BUCKETS, TableEntry
from tests.spark.events import column, envelope_schema, frame, key_schema
from tests.support.nightly import nightly_except

TOPIC = "shop.public.items"
ID = column("id", "int", required=True)
PRICE = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
SEEN = {"type": "long", "logicalType": "timestamp-micros"}
VERSIONS = {
    1: [ID, column("name", "string"), column("price", PRICE)],
    2: [
        ID,
        column("name", "string"),
        column("seen", SEEN),
        column("tags", {"type": "array", "items": ["null", "string"]}, **{"pg.name": "Tags"}),
    ],
    3: [ID, column("name", "string"), column("seen", SEEN)],
}
VALUES: dict[str, Any] = {
    "name": lambda: random.choice([None, "", "a", "long" * 9]),
    "price": lambda: random.choice([None, random.randbytes(3)]),
    "seen": lambda: random.choice([None, random.randrange(1 << 50)]),
    "tags": lambda: random.choice([None, [], ["x", None, "y"]]),
}
SCHEMAS = {number: envelope_schema(TOPIC, fields) for number, fields in VERSIONS.items()}
KEY = key_schema(TOPIC, [ID])
KEYS = 24
Record = tuple[bytes | None, bytes | None]


@dataclass
class History:
    """Random changes of one table in order, with what a sender may do to them."""

    with_unchanged: bool
    ddl: float = 0.0
    version: int = 1
    at: list[int] = field(default_factory=lambda: [1, 100, 1])
    keys: set[int] = field(default_factory=set)

    def batch(self, size: int) -> list[Record]:
        """Return the records of a batch: shuffled between keys, some of them twice, with tombstones."""
        records = [record for _ in range(size) for record in self._change()]
        records += random.sample(records, k=min(3, len(records)))
        if random.random() < 0.5:
            random.shuffle(records)
        return records

    def _change(self) -> Iterator[Record]:
        self._step()
        if random.random() < self.ddl:
            self.version = random.choice([1, 2, 3])
        number = random.randrange(KEYS)
        chosen = random.random()
        if chosen < 0.02:
            self.keys.clear()
            yield self._record("t", None, None)
        elif chosen < 0.2 and number in self.keys:
            self.keys.discard(number)
            yield self._record("d", number, None)
            yield frame(9, KEY, {"id": number}), None
        elif chosen < 0.25 and self.keys:  # a change of the key
            old = random.choice(sorted(self.keys))
            self.keys.discard(old)
            yield self._record("d", old, None)
            self.at[2] += 1
            yield self._changed("c", number + KEYS if number == old else number)
        elif number in self.keys:
            yield self._changed("u", number)
        else:
            yield self._changed(random.choice("cr"), number, is_new=True)

    def _step(self) -> None:
        if random.random() < 0.3:
            self.at[2] += 1
            return
        if random.random() < 0.02:
            self.at = [self.at[0] + 1, self.at[1] - 5, 0]
        self.at = [self.at[0], self.at[1] + random.choice([1, 7]), 1]

    def _changed(self, op: str, number: int, *, is_new: bool = False) -> Record:
        names = [one["name"] for one in VERSIONS[self.version][1:]]
        row: dict[str, Any] = {"id": number} | {name: VALUES[name]() for name in names}
        unchanged = []
        if self.with_unchanged and not is_new and random.random() < 0.3:
            unchanged = random.sample(names, k=1)
            row |= dict.fromkeys(unchanged)
        self.keys.add(number)
        return self._record(op, number, row, unchanged)

    def _record(
        self, op: str, number: int | None, after: dict[str, Any] | None, unchanged: list[str] | None = None
    ) -> Record:
        timeline, commit_lsn, tx_seq = self.at
        special = random.choice(
            [None, None, {}, {"after.name": "x"}, {"after.Tags": "[", "before.name": "y"}]
        )
        source = {
            "version": "1", "connector": "postgresql", "name": "shop", "ts_ms": 0, "db": "d", "schema": "public",
            "snapshot": "true" if op == "r" else "false", "table": "items", "timeline": timeline,
            "commit_lsn": commit_lsn, "tx_seq": tx_seq, "special": special if after else None,
            "unchanged": unchanged or [],
        }  # fmt: skip
        envelope = {"before": None, "after": after, "source": source, "op": op}
        key = None if number is None else frame(9, KEY, {"id": number})
        return key, frame(self.version, SCHEMAS[self.version], envelope)


class Mirrored:
    """The table that the batches become: folded in columns with deltas, or row by row into base files only."""

    def __init__(self, target: Path, *, by_row: bool, has_history: bool) -> None:
        target.mkdir()
        self._has_history = has_history
        self._target, self._by_row = open_storage(str(target)), by_row
        self._entry = TableEntry(TOPIC, keyed=True)

    def apply(self, records: list[Record], monkeypatch: pytest.MonkeyPatch) -> object:
        """Apply a batch; return the rows, or the error."""
        with monkeypatch.context() as patched:
            if self._by_row:
                patched.setattr(tasks, "changes_of", lambda *_, **__: None)
            try:
                return self._apply(records)
            except CdcdError as error:
                return str(error)

    def _apply(self, records: list[Record]) -> object:
        last = {value[4]: value for _, value in records if value is not None}
        keyless = tuple(value for key, value in records if key is None and value is not None)
        look = Look(TOPIC, len(records), len(records) - len(keyless), tuple(last.values()), keyless)
        plan, entry = plan_table(look, self._entry, lambda number: SCHEMAS[number])
        plan = replace(plan, has_history=self._has_history)
        changes = [(key, value) for key, value in records if value is not None]
        group = pa.table(
            {
                "topic": [TOPIC] * len(changes),
                "bucket": pa.array([0] * len(changes), pa.int32()),
                "key": pa.array([key for key, _ in changes], pa.binary()),
                "value": pa.array([value for _, value in changes], pa.binary()),
            }
        )
        found = self._folded(group, plan)
        is_moved = any(one.moved for one in found)
        if is_moved:
            group = group.set_column(1, "bucket", pa.array([ALL_BUCKETS] * len(changes), pa.int32()))
            found = self._folded(group, plan)
        self._entry = entry_after(entry, plan.shape, found)
        self._merge()
        return self._entry.applied, is_moved, self._rows(), self._lines()

    def _folded(self, group: pa.Table, plan: TablePlan) -> list[tasks.FoldResult]:
        return tasks.write_folds(tasks.fold_group(group, {TOPIC: plan}, self._target, 1), self._target)

    def _merge(self) -> None:
        """Make base files of all files, or merge what is due."""
        merge = next_merge(TOPIC, self._entry)
        if merge is None and (merge := next_history_merge(TOPIC, self._entry)) is not None:
            files = FileMerges(self._target)
            lines = HistoryMerges(self._target, files).write(self._entry, merge, threading.Event())
            assert lines is not None
            merged = with_merged(self._entry, lines)
            assert merged is not None
            assert len(merged.history) < len(self._entry.history)
            self._entry, merge = merged, None
        if self._by_row:
            merge = Merge(TOPIC, self._entry.files, self._entry.deltas, is_whole=True)
        if merge is not None:
            result = write_merge(self._target, self._entry, merge, threading.Event())
            entry = with_merged(self._entry, result)
            assert entry is not None
            assert len(entry.files) + len(entry.deltas) <= len(self._entry.files) + len(self._entry.deltas)
            self._entry = entry

    def _rows(self) -> list[list[dict[str, Any]]]:
        shape = self._entry.shape()
        complete = [read_table(self._target, self._entry)]
        assert count_rows(self._target, self._entry) == complete[0].num_rows
        incomplete = [read_incomplete(self._target, shape, one) for one in self._entry.incomplete]
        return [
            sorted((row for one in each for row in one.to_pylist()), key=lambda row: row["__key"])
            for each in (complete, incomplete)
        ]

    def _lines(self) -> list[dict[str, Any]]:
        """Return the history in order; the lines of each key, one after another, give the row, complete or not."""
        shape = self._entry.shape()
        found = [
            line for one in self._entry.history for line in read_history(self._target, shape, one).to_pylist()
        ]
        lines = sorted(found, key=lambda line: tuple(line[CHANGE]["at"].values()))
        assert len({tuple(line[CHANGE]["at"].values()) for line in lines}) == len(lines)
        complete, incomplete = self._rows()
        if self._has_history:
            rows = replayed(lines, {one.number: one.name for one in shape.fields})
            known = {key: row for key, (row, unknown) in rows.items() if not unknown}
            assert known == {row["__key"]: row for row in complete}
            assert rows.keys() - known.keys() == {row["__key"] for row in incomplete}
        return lines


def replayed(
    lines: list[dict[str, Any]], names: dict[int, str]
) -> dict[bytes, tuple[dict[str, Any], set[str]]]:
    """Return by key the row that the lines give, and the columns of which no line has the value."""
    rows: dict[bytes, tuple[dict[str, Any], set[str]]] = {}
    for line in lines:
        change, row = line[CHANGE], {name: line[name] for name in line if name != CHANGE}
        if change["op"] in ("t", "x"):
            rows.clear()
        elif change["op"] == "d":
            rows.pop(row["__key"], None)
        else:
            unsent = {names[number] for number in change["unsent"] or () if number in names}
            if change["op"] == "c":
                rows.pop(row["__key"], None)
            rows[row["__key"]] = _filled(row, unsent, rows.get(row["__key"]), set(names.values()))
    return rows


def _filled(
    row: dict[str, Any], unsent: set[str], before: tuple[dict[str, Any], set[str]] | None, all_names: set[str]
) -> tuple[dict[str, Any], set[str]]:
    former, unknown = before or ({}, all_names)
    held = dict(row["__special"] or ())
    held |= {name: text for name, text in former.get("__special") or () if name in unsent}
    filled = row | {name: former.get(name) for name in unsent}
    filled["__special"] = [(name, held[name]) for name in row if name in held] or None
    return filled, unsent & unknown


@pytest.mark.parametrize("seed", nightly_except(range(60), *range(3)))
def test_both_folds_give_the_same(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with deltas of several levels, row groups of few rows, and with the history of the rows."""
    random.seed(seed)
    monkeypatch.setattr(compaction, "FAN", random.choice([2, 3]))
    monkeypatch.setattr(compaction, "SHARE", random.choice([0, 2]))
    monkeypatch.setattr(table_files, "GROUP_ROWS", 3)
    history = History(with_unchanged=seed % 2 == 0, ddl=random.choice([0, 0.1, 0.3]))
    has_history = seed % 4 < 2
    columns = Mirrored(tmp_path / "columns", by_row=False, has_history=has_history)
    rows = Mirrored(tmp_path / "rows", by_row=True, has_history=has_history)
    for _ in range(10):
        records = history.batch(random.choice([1, 5, 60]))
        found = columns.apply(records, monkeypatch)
        assert found == rows.apply(records, monkeypatch)
        if isinstance(found, str):
            return


def test_rows_of_a_batch_without_unsent_columns_are_all_folded_in_columns() -> None:
    random.seed(7)
    history = History(with_unchanged=False)
    records = [history._changed("u", number % 5) for number in range(50)]
    shape = TableShape(TOPIC, True, (Field(1, "id", "id", "int"), Field(2, "name", "name", "string")))
    keys, values = (pa.array(part, pa.binary()) for part in zip(*records, strict=True))
    changes = changes_of(keys, values, SCHEMAS, shape.fields)
    assert changes is not None
    assert (len(changes.others), changes.last) == (0, Sequence(1, 100, 1, 1))
    found = latest(changes, shape)
    assert found is not None
    assert (found.rows["id"].to_pylist(), len(found.keys), len(found.rest)) == ([0, 1, 2, 3, 4], 5, 0)
