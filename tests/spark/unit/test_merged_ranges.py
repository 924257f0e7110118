"""Files of a table in ranges of keys: what merges write of them, and what readers read. A dictionary is the judge."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cdcd.errors import TableFileMissing
from cdcd.spark.mirroring.records import RecordsOnDriver
from cdcd.spark.storage.uri import Storage, open_storage
from cdcd.spark.tables import compaction, merged_ranges, table_files
from cdcd.spark.tables.compaction import FAN, FULL, next_merge, with_merged, write_merge
from cdcd.spark.tables.key_ranges import KeyRange, count_runs, may_have, parts_of, ranges_of
from cdcd.spark.tables.table_files import (
    DELETED,
    added_rows,
    count_rows,
    look_up,
    read_part,
    read_table,
    write_bucket,
    write_delta,
)
from cdcd.spark.target.commit_log import read_latest
from cdcd.spark.target.shape import KEY, Field, TableShape, arrow_schema
from cdcd.spark.target.target_writer import TargetWriter
from cdcd.spark.target.versions import BucketFile, TableEntry
from tests.spark.batches import TOPIC, Batches, records_table
from tests.spark.events import column

FIELDS = (Field(1, "id", "id", "long"), Field(2, "body", "body", ["null", "string"]))
SHAPE = TableShape(TOPIC, True, FIELDS)
ROWS = 1_000
GROUP_ROWS = 16
Model = dict[bytes, str]


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Storage:
    """Return a target whose files and row groups are small."""
    monkeypatch.setattr(table_files, "GROUP_ROWS", GROUP_ROWS)
    monkeypatch.setattr(merged_ranges, "PIECE_BYTES", 2_000)
    monkeypatch.setattr(compaction, "PIECE_BYTES", 2_000)
    return open_storage(str(tmp_path))


def _key(number: int) -> bytes:
    """Return a key as Avro encodes a long: in another order than the numbers."""
    value, found = number << 1, bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _rows(model: Model) -> pa.Table:
    arrays = [[len(key) for key in model], [*model.values()], [None] * len(model), [*model]]
    schema = arrow_schema(FIELDS)
    return pa.Table.from_arrays(
        [pa.array(values, field.type) for values, field in zip(arrays, schema, strict=True)], schema=schema
    )


def _delta(changed: Model, gone: set[bytes]) -> pa.Table:
    rows = _rows(changed | dict.fromkeys(gone, ""))
    marks = [key in gone for key in rows[KEY].to_pylist()]
    return rows.append_column(DELETED, pa.array(marks, pa.bool_()))


def _as_model(rows: pa.Table) -> Model:
    keys = rows[KEY].to_pylist()
    assert len(set(keys)) == len(keys), "a key is there twice"
    return dict(zip(keys, rows["body"].to_pylist(), strict=True))


def _check(storage: Storage, entry: TableEntry, model: Model) -> None:
    """Compare every way to read the table with the model."""
    assert _as_model(read_table(storage, entry)) == model
    parts = [read_part(storage, SHAPE, part) for part in parts_of(entry)]
    assert _as_model(pa.concat_tables([arrow_schema(FIELDS).empty_table(), *parts])) == model
    assert count_rows(storage, entry) == len(model)
    wanted = [_key(number) for number in range(0, 2 * ROWS, 7)]
    found = look_up(storage, SHAPE, entry.files, entry.deltas, pa.array(wanted, pa.binary()))
    assert _as_model(found) == {key: model[key] for key in wanted if key in model}
    for run in (entry.files, entry.deltas):
        for file, keys in zip(run, ranges_of(run), strict=True):
            held = pq.read_table(storage.folder / file.path)[KEY].to_pylist()  # type: ignore[operator]
            assert all(keys.low <= key and (keys.high is None or key < keys.high) for key in held)
            assert held == sorted(held)


def _changes(seed: int) -> Iterator[tuple[Model, set[bytes]]]:
    """Yield batches: inserts, updates, deletes of rows, and of rows that are not there."""
    draw = random.Random(seed)
    while True:
        keys = [_key(number) for number in draw.sample(range(2 * ROWS), draw.choice((1, 40, 300)))]
        gone = {key for key in keys if draw.random() < draw.choice((0.1, 0.5))}
        yield {key: f"{draw.random()}" for key in keys if key not in gone}, gone


def _first(storage: Storage, model: Model) -> TableEntry:
    """Return the table after a first batch: its files are of hash buckets, so their ranges overlap."""
    parts = [{key: body for key, body in model.items() if key[0] % 2 == bucket} for bucket in (0, 1)]
    files = tuple(write_bucket(storage, SHAPE, number, _rows(part)) for number, part in enumerate(parts))
    return TableEntry(TOPIC, keyed=True, fields=FIELDS, files=files)


@pytest.mark.parametrize("seed", range(6))
def test_merges_change_no_row(storage: Storage, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "LARGE_ROWS", 400)
    model = {_key(number): f"first {number}" for number in range(0 if seed == 0 else ROWS)}
    entry = _first(storage, model)
    most, kinds = 0, set()
    for _, (changed, gone) in zip(range(6 * FAN), _changes(seed), strict=False):
        entry = replace(entry, deltas=(*entry.deltas, write_delta(storage, SHAPE, _delta(changed, gone))))
        model = {key: body for key, body in (model | changed).items() if key not in gone}
        while merge := next_merge(TOPIC, entry):
            kinds.add(merge.is_whole)
            merged = with_merged(entry, write_merge(storage, entry, merge, threading.Event()))
            assert merged is not None
            entry = merged
        assert count_runs(entry.deltas) < 3 * FAN
        most = max(most, len(entry.files))
    _check(storage, entry, model)
    assert most > 5, "no table had several base files"
    assert kinds == {True, False}


def _rows_of(parts: Sequence[pa.Table]) -> int:
    return sum(one.num_rows for one in parts)


def test_a_merge_has_a_range_in_memory(storage: Storage) -> None:
    """Whatever the size of the table: its row groups are read once, in the order of the keys."""
    model = {_key(number): "a row of some length" for number in range(8 * ROWS)}
    entry = _first(storage, model)
    deltas = tuple(
        write_delta(storage, SHAPE, _delta(dict.fromkeys([*model][first::40], "new"), set()))
        for first in range(FAN)
    )
    ranges = list(merged_ranges.merged_ranges(storage, SHAPE, entry.files, deltas))
    sizes = [_rows_of(one.base) + _rows_of(one.changed) for one in ranges]
    assert sum(_rows_of(one.base) for one in ranges) == len(model)
    assert max(sizes) < 20 * GROUP_ROWS
    assert [one.keys.high for one in ranges[:-1]] == [one.keys.low for one in ranges[1:]]
    assert (ranges[0].keys.low, ranges[-1].keys.high) == (b"", None)


def test_keys_that_begin_with_the_same_bytes_are_in_several_ranges(storage: Storage) -> None:
    """As those of a composite key whose first column has few values."""
    model = {b"the same first column" * 5 + _key(number): "a row" for number in range(ROWS)}
    entry = _first(storage, model)
    delta = write_delta(storage, SHAPE, _delta(dict.fromkeys([*model][::9], "new"), {*[*model][::10]}))
    merge = compaction.Merge(TOPIC, entry.files, (delta,), is_whole=True)
    merged = with_merged(
        replace(entry, deltas=(delta,)), write_merge(storage, entry, merge, threading.Event())
    )
    assert merged is not None
    assert max(one.rows for one in merged.files) < 20 * GROUP_ROWS
    model |= dict.fromkeys([*model][::9], "new")
    _check(storage, merged, {key: model[key] for place, key in enumerate(model) if place % 10})


def test_a_range_has_few_rows_of_many_columns_without_values(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They need memory, but hardly a byte in a file."""
    monkeypatch.setattr(table_files, "GROUP_ROWS", 100)
    monkeypatch.setattr(merged_ranges, "PIECE_BYTES", 40_000)
    fields = (*FIELDS, *(Field(3 + number, f"c{number}", f"c{number}", "long") for number in range(50)))
    shape = TableShape(TOPIC, True, fields)
    schema = arrow_schema(fields)
    keys = sorted(map(_key, range(ROWS)))
    columns = [pa.array(keys) if one.name == KEY else pa.nulls(ROWS, one.type) for one in schema]
    file = write_bucket(storage, shape, 0, pa.Table.from_arrays(columns, schema=schema))
    ranges = list(merged_ranges.merged_ranges(storage, shape, [file], []))
    assert sum(_rows_of(one.base) for one in ranges) == ROWS
    assert max(_rows_of(one.base) for one in ranges) <= 200


@pytest.mark.parametrize(
    ("least", "greatest", "rows", "is_read"),
    [
        (b"a", b"", 2, True),  # the highest key has more than 4 KiB
        (b"", b"", 2, True),
        (b"", b"", 1, False),
        (b"a", b"b", 2, False),
        (b"a", b"z", 2, True),
    ],
)
def test_a_row_group_without_its_highest_key_is_read(
    least: bytes, greatest: bytes, rows: int, is_read: bool
) -> None:
    """Parquet leaves out bounds of more than 4 KiB one by one; for pyarrow 17 such a bound is empty."""
    statistics = SimpleNamespace(has_min_max=True, min=least, max=greatest)
    column = SimpleNamespace(path=KEY, statistics=statistics)
    group = SimpleNamespace(column=lambda _: column, num_rows=rows, total_byte_size=1)
    footer = SimpleNamespace(
        num_columns=1,
        num_row_groups=1,
        row_group=lambda _: group,
        schema=SimpleNamespace(column=lambda _: column),
    )
    source: Any = SimpleNamespace(metadata=footer, read_row_groups=lambda groups, **_: groups)
    read: Any = table_files._read_between(source, KeyRange(b"k", b"l"))
    assert read == ([0] if is_read else [])
    assert table_files._groups_with(source, pa.array([b"k" * 5000], pa.binary())) == ([0] if is_read else [])


def test_deltas_of_an_earlier_version_are_merged_in_whatever_order_their_rows_are(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = {_key(number): "first" for number in range(ROWS)}
    entry = _first(storage, model)
    changed = {_key(number): f"new {number}" for number in random.Random(1).sample(range(ROWS), 300)}
    monkeypatch.setattr(table_files, "in_order", lambda rows: rows)
    deltas = (write_delta(storage, SHAPE, _delta(changed, {_key(5)})),)
    monkeypatch.undo()
    monkeypatch.setattr(merged_ranges, "PIECE_BYTES", 2_000)
    merge = compaction.Merge(TOPIC, entry.files, deltas, is_whole=True)
    entry = replace(entry, deltas=deltas)
    merged = with_merged(entry, write_merge(storage, entry, merge, threading.Event()))
    assert merged is not None
    assert len(merged.files) > 2
    model |= changed
    del model[_key(5)]
    _check(storage, merged, model)


def test_a_key_below_and_above_all_earlier_ones_is_found(storage: Storage) -> None:
    """The ranges of a run have every key, not only those that its files have."""
    model = {bytes([64, number // 256, number % 256]): "first" for number in range(ROWS)}
    entry = _first(storage, model)
    merge = compaction.Merge(
        TOPIC, entry.files, (write_delta(storage, SHAPE, _delta({}, set())),), is_whole=True
    )
    entry = replace(entry, deltas=merge.deltas)
    entry = with_merged(entry, write_merge(storage, entry, merge, threading.Event())) or entry
    assert len(entry.files) > 2
    changed = {b"": "lowest", b"\x01": "low", bytes([64, 1]): "between", b"\xff\xff": "highest"}
    entry = replace(entry, deltas=(write_delta(storage, SHAPE, _delta(changed, {bytes([64, 0, 0])})),))
    model |= changed
    del model[bytes([64, 0, 0])]
    _check(storage, entry, model)
    keys = pa.array([*changed, b"\x02", None], pa.binary())  # None: of a TRUNCATE
    assert _as_model(look_up(storage, SHAPE, entry.files, entry.deltas, keys)) == changed


def test_a_part_reads_only_files_with_its_keys() -> None:
    def file(name: str, from_key: str | None) -> BucketFile:
        return BucketFile(-1, name, 1, (1,), from_key=from_key)

    base = (file("a", ""), file("b", "40"), file("c", "80"))
    run = (file("d", ""), file("e", "60"))
    deltas = (*run, file("f", None), file("g", ""))
    parts = parts_of(TableEntry(TOPIC, keyed=True, files=base, deltas=deltas))
    assert [one.file for one in parts] == [*base]
    assert [[delta.path for delta in one.deltas] for one in parts] == [
        ["d", "f", "g"],
        ["d", "e", "f", "g"],
        ["e", "f", "g"],
    ]
    assert [one.keys for one in parts] == [KeyRange(b"", b"@"), KeyRange(b"@", b"\x80"), KeyRange(b"\x80")]
    assert count_runs(deltas) == 3
    assert may_have(run, KeyRange(b"\x60", b"\x61")) == [run[1]]
    assert may_have(run, KeyRange(b"\x5f", b"\x60")) == [run[0]]


def test_a_table_without_a_key_is_never_written_as_a_whole(storage: Storage) -> None:
    """Its files have rows of their own: those that are full remain, and small ones become few."""
    shape = replace(SHAPE, keyed=False)
    entry = TableEntry(TOPIC, keyed=False, fields=FIELDS)
    bodies: list[str] = []
    written: set[str] = set()
    for batch in range(12 * FAN):
        new = {_key(number): f"{batch} {number}" for number in range(batch % 11)}
        bodies += new.values()
        entry = replace(entry, deltas=(*entry.deltas, write_delta(storage, shape, added_rows(_rows(new)))))
        full = {one.path for one in entry.deltas if one.level == FULL}
        while merge := next_merge(TOPIC, entry):
            assert full.isdisjoint(one.path for one in merge.deltas)
            result = write_merge(storage, entry, merge, threading.Event())
            written |= {one.path for one in result.deltas}
            merged = with_merged(entry, result)
            assert merged is not None
            entry = merged
        assert sum(one.level != FULL for one in entry.deltas) < 3 * FAN
    assert sum(one.level == FULL for one in entry.deltas) > 3
    rows: list[Any] = read_table(storage, entry)["body"].to_pylist()
    assert sorted(rows) == sorted(bodies)
    parts = [read_part(storage, shape, part) for part in parts_of(entry)]
    assert sorted(pa.concat_tables(parts)["body"].to_pylist()) == sorted(bodies)
    assert count_rows(storage, entry) == len(bodies)


@pytest.mark.parametrize("is_lost", [False, True])
def test_the_rows_that_all_buckets_need_are_looked_up_once(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, is_lost: bool
) -> None:
    """The keys of a hash bucket are in most files. A lost file parks the table."""
    assert storage.folder is not None
    items = Batches(storage.folder / "mirror", [column("id", "int", required=True), column("body", "string")])
    items.on_error = "park"
    rows = [{"id": number, "body": f"body {number}"} for number in range(200)]
    items.run([items.change("c", 10, row["id"] + 1, after=row) for row in rows], loading=False)
    items.run([items.change("u", 20, 1, after=rows[0])], loading=False)
    version, target = read_latest(items.target), open_storage(str(items.target))
    assert version is not None
    entry = version.tables[TOPIC]
    merge = compaction.Merge(TOPIC, entry.files, entry.deltas, is_whole=True)
    merged = with_merged(entry, write_merge(target, entry, merge, threading.Event()))
    assert merged is not None
    assert len(merged.files) > 2
    TargetWriter(target, version).publish(replace(version, tables={TOPIC: merged}))
    paths, found = [], table_files._found

    def counted(target: Storage, shape: TableShape, file: BucketFile, keys: pa.Array) -> pa.Table:
        paths.append(file.path)
        return found(target, shape, file, keys)

    monkeypatch.setattr(table_files, "_found", counted)
    if is_lost:
        (items.target / merged.files[1].path).unlink()
    sent = [
        items.change("u", 30, row["id"] + 1, after=row | {"body": None}, unchanged=["body"]) for row in rows
    ]
    with items.mirror() as batches:
        batches.apply(RecordsOnDriver(records_table(sent)), {})
        parked = batches.version.parked
    if is_lost:
        assert parked[TOPIC].code == TableFileMissing.code
        return
    assert sorted(paths) == sorted(one.path for one in merged.files)
    assert items.rows() == rows
