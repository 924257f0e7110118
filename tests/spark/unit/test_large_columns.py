"""Columns with more than 2 GiB of texts: they are merged, read and folded, and never park a table.

Most tests have a lower limit in place of Arrow's; the long ones have so many bytes.
"""

from __future__ import annotations

import random
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cdcd.spark.decoding.events import Event, Sequence
from cdcd.spark.formats.open_tables import OpenTables
from cdcd.spark.reading.mirror import read_mirror
from cdcd.spark.reading.table_frame import frame_of_rows
from cdcd.spark.storage.uri import Storage, open_storage
from cdcd.spark.tables import data_file, table_files, tasks
from cdcd.spark.tables.compaction import FAN, next_merge, with_merged, write_merge
from cdcd.spark.tables.fold import RowState, rows_of
from cdcd.spark.tables.key_ranges import Part
from cdcd.spark.tables.plan import TablePlan
from cdcd.spark.tables.table_files import (
    added_rows,
    count_rows,
    look_up,
    read_deltas,
    read_part,
    read_table,
    write_bucket,
    write_delta,
)
from cdcd.spark.tables.tasks import FoldResult
from cdcd.spark.target import large_columns
from cdcd.spark.target.large_columns import filtered, is_among, taken
from cdcd.spark.target.shape import KEY, Field, TableShape, arrow_schema
from cdcd.spark.target.versions import TABLE_FORMATS, BucketFile, TableEntry, TableFormat, TargetVersion
from tests.spark.batches import TOPIC, Batches
from tests.spark.unit.test_open_tables import BODY, ID, mirrored, row

TEXTS = {"type": "array", "items": ["null", "string"]}
FIELDS = (Field(1, "id", "id", "long"), Field(2, "doc", "doc", ["null", "string"]))
SHAPE = TableShape(TOPIC, True, FIELDS)
MIB = 1 << 20


def rows_from(first: int, count: int, size: int = 10, fields: tuple[Field, ...] = FIELDS) -> pa.Table:
    """Return rows with a text of so many bytes each."""
    schema, numbers = arrow_schema(fields), range(first, first + count)
    doc = schema.field(1).type
    docs = pa.array(["x" * size] * count, pa.string())
    if pa.types.is_list(doc):
        docs = pa.ListArray.from_arrays(pa.array(range(count + 1), pa.int32()), docs).cast(doc)
    keys = pa.array([number.to_bytes(4, "big") for number in numbers], pa.binary())
    columns = [pa.array(numbers, pa.int64()), docs, pa.nulls(count, schema.field(2).type), keys]
    return pa.Table.from_arrays(columns, schema=schema)


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_storage(str(tmp_path))


@pytest.mark.parametrize("most_bytes", [1, 40, 1000, 1 << 30])
def test_rows_in_another_order_are_those_of_arrow(most_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [None, "", "a", "b" * 300, *(f"{number} " * number for number in range(20))]
    count = len(texts)
    lists = [[text, text] if text else None for text in texts]
    rows = pa.table(
        {
            "text": texts,
            "bytes": pa.array([text and text.encode() for text in texts], pa.binary()),
            "texts": lists,
            "map": pa.array(
                [[(text, text)] if text else None for text in texts], pa.map_(pa.string(), pa.string())
            ),
            "struct": [{"n": len(text or ""), "text": text} for text in texts],
            "number": range(count),
            "nothing": pa.nulls(count),
        }
    )
    rows = pa.concat_tables([rows.slice(0, 5), rows.slice(5)])
    places = pa.array(random.Random(1).sample(range(count), count), pa.int64())
    monkeypatch.setattr(large_columns, "MOST_BYTES", most_bytes)
    found = taken(rows, places)
    found.validate(full=True)
    assert found.equals(rows.take(places))


@pytest.mark.parametrize("most_bytes", [1, 40, 1 << 30])
def test_a_frame_gets_no_array_that_is_too_large_and_no_empty_one(
    most_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arrow makes one array of a nested column, and Spark reads no chunk after an empty one."""
    fields = (FIELDS[0], replace(FIELDS[1], avro=["null", TEXTS]))
    entry = TableEntry(TOPIC, keyed=True, fields=fields)
    parts = [rows_from(first, 1, 20, fields) for first in range(5)]
    rows = pa.concat_tables([parts[0].slice(0, 0), *parts])
    monkeypatch.setattr(large_columns, "MOST_BYTES", most_bytes)
    made: list[pa.Table] = []
    spark: Any = SimpleNamespace(createDataFrame=lambda table, _: made.append(table))
    frame_of_rows(spark, entry, rows)
    (found,) = made
    assert found["doc"].to_pylist() == rows["doc"].to_pylist()
    (lengths,) = {tuple(map(len, column.chunks)) for column in found.columns}
    assert lengths == ((5,) if most_bytes == 1 << 30 else (1,) * 5)


@pytest.mark.parametrize("most_bytes", [1, 10, 1 << 30])
def test_a_set_of_keys_may_be_larger_than_an_array(most_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_columns, "MOST_BYTES", most_bytes)
    numbers = random.Random(2)
    for count in (0, 1, 20):
        keys = [bytes([numbers.randrange(30)]) * 3 for _ in range(count)]
        wanted = pa.chunked_array([keys[:5], [], keys[5:]], pa.binary())
        for values in ([], [None], [bytes([number]) * 3 for number in range(30)]):
            expected = [one in keys for one in values]
            array = pa.array(values, pa.binary())
            assert is_among(array, wanted).to_pylist() == expected
            assert is_among(pa.chunked_array([array]), wanted).to_pylist() == expected


def test_the_newest_rows_of_deltas_are_the_same_whatever_the_bytes_of_their_keys(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = random.Random(3)
    deltas, expected = [], dict[int, int]()
    for size in range(1, 12):
        ids = numbers.sample(range(20), 6)
        rows = pa.concat_tables(rows_from(one, 1, size) for one in ids)
        deltas.append(write_delta(storage, SHAPE, added_rows(rows)))
        expected |= dict.fromkeys(ids, size)
    base = write_bucket(storage, SHAPE, 0, rows_from(0, 25, 99))
    entry = TableEntry(TOPIC, keyed=True, fields=FIELDS, files=(base,), deltas=tuple(deltas))
    found = []
    for most_bytes in (1 << 30, 30):
        monkeypatch.setattr(large_columns, "MOST_BYTES", most_bytes)
        assert count_rows(storage, entry) == 25
        rows = read_table(storage, entry)
        assert dict(zip(*(rows[name].to_pylist() for name in ("id", "doc")), strict=True)) == {
            one: "x" * expected.get(one, 99) for one in range(25)
        }
        found.append(read_deltas(storage, SHAPE, deltas))
    assert found[0].equals(found[1]), "in the same order"


@pytest.mark.parametrize("table_format", TABLE_FORMATS)
@pytest.mark.parametrize("has_key", [True, False])
def test_a_mirror_of_large_columns_has_the_rows_of_one_of_small_columns(
    tmp_path: Path, table_format: TableFormat, has_key: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def histories(name: str) -> list[list[dict[str, Any]]]:
        items = Batches(tmp_path / name, [ID, BODY], has_key=has_key, table_format=table_format)
        found = []
        items.run([items.change("r", 10, n + 1, after=row(n, f"{n} " * n)) for n in range(40)], loading=False)
        for batch in range(FAN + 1):
            at, changed = 20 + batch, row(batch * 2, f"{batch} " * 30)
            rest = {"before": row(batch * 2, f"{batch * 2} " * batch * 2)} if not has_key else {}
            records = [items.change("u", at, 1, after=changed, **rest)]
            if has_key:
                records.append(items.change("u", at, 2, after=row(39 - batch, None), unchanged=["body"]))
            items.run(records, loading=False)
            with items.mirror() as mirror:
                mirror.compact()
            found.append(mirrored(items.target))
        return found

    small = histories("small")
    monkeypatch.setattr(large_columns, "MOST_BYTES", 100)
    monkeypatch.setattr(table_files, "GROUP_BYTES", 500)
    assert histories("large") == small


def test_base_files_are_written_again_for_deltas_with_half_of_their_bytes() -> None:
    """Rows differ in their sizes: those that are changed may be the large ones."""
    base = BucketFile(0, "base", 10_000_000, (1, 2), size_bytes=400 << 20)
    deltas = tuple(
        BucketFile(-1, f"delta {number}", 10, (1, 2), size_bytes=30 << 20) for number in range(FAN)
    )
    entry = TableEntry(TOPIC, keyed=True, fields=FIELDS, files=(base,), deltas=deltas)
    merge = next_merge(TOPIC, entry)
    assert merge is not None
    assert merge.is_whole, "they have half of the base files' bytes"
    merge = next_merge(TOPIC, replace(entry, files=(replace(base, size_bytes=4 << 30),)))
    assert merge is not None
    assert not merge.is_whole


def test_the_files_of_a_mirror_have_their_bytes(tmp_path: Path) -> None:
    items = Batches(tmp_path / "mirror", [ID, BODY])
    items.run([items.change("r", 10, n + 1, after=row(n, "x" * 1000)) for n in range(40)], loading=False)
    items.run([items.change("u", 20, 1, after=row(1, "y" * 5000))], loading=False)
    entry = read_mirror(items.target).version.tables[TOPIC]
    assert sum(one.size_bytes for one in entry.files) > 40_000
    assert [one.size_bytes > 5000 for one in entry.deltas] == [True]


OVERFLOWS = (
    pa.ArrowInvalid("offset overflow while concatenating arrays, consider casting input from `string`"),
    pa.ArrowCapacityError("array cannot contain more than 2147483646 bytes, have 2147483647"),
)


@pytest.mark.parametrize("error", OVERFLOWS)
def test_a_column_that_is_too_large_for_arrow_does_not_park_its_table(
    tmp_path: Path, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fold(*_: Any, **__: Any) -> Any:
        raise error

    plan = TablePlan(SHAPE, {}, parks=True)
    group = pa.table({"topic": [TOPIC], "bucket": pa.array([0], pa.int32())})
    monkeypatch.setattr(tasks, "fold_group", fold)
    with pytest.raises(type(error)):
        tasks.fold_or_failure(group, {TOPIC: plan}, str(tmp_path), 4)
    file = write_bucket(str(tmp_path), SHAPE, 0, rows_from(0, 1))
    opened = data_file.opened(str(tmp_path), file.path)
    monkeypatch.setattr(pq.ParquetFile, "read", fold)
    with pytest.raises(type(error)):
        opened.read()


# --- so many bytes -------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("avro", [["null", "string"], ["null", TEXTS]], ids=["text", "texts"])
def test_deltas_of_more_than_2_gib_are_read_and_merged(storage: Storage, avro: Any) -> None:
    count, fields = 1100, (FIELDS[0], replace(FIELDS[1], avro=avro))
    shape = TableShape(TOPIC, True, fields)
    base = write_bucket(storage, shape, 0, rows_from(10**6, 1, fields=fields))
    deltas = tuple(
        write_delta(storage, shape, added_rows(rows_from(first, count, MIB, fields)))
        for first in (0, count // 2, count)
    )
    entry = TableEntry(TOPIC, keyed=True, fields=fields, files=(base,), deltas=deltas)
    merge = next_merge(TOPIC, entry)
    assert merge is not None
    assert merge.is_whole
    result = write_merge(storage, entry, merge, threading.Event())
    merged = with_merged(entry, result)
    assert merged is not None
    for each in (entry, merged):
        key = pa.array([(5).to_bytes(4, "big")], pa.binary())
        assert look_up(storage, shape, each.files, each.deltas, key)["id"].to_pylist() == [5]
        rows = read_table(storage, each)
        assert rows.num_rows == 2 * count + 1
        assert rows["doc"].nbytes > 2 * count * MIB
        del rows


@pytest.mark.long
def test_keys_of_more_than_2_gib_are_read_and_merged(storage: Storage) -> None:
    """The rows have little more than their keys."""
    count = 600

    def rows(first: int) -> pa.Table:
        keys = pa.array([number.to_bytes(4, "big") * (MIB // 4) for number in range(first, first + count)])
        found = rows_from(first, count)
        return found.set_column(found.num_columns - 1, found.schema.field(KEY), keys)

    starts = (0, count, 2 * count, 3 * count, count // 2)
    base = write_bucket(storage, SHAPE, 0, rows(0))
    deltas = tuple(write_delta(storage, SHAPE, added_rows(rows(first))) for first in starts)
    entry = TableEntry(TOPIC, keyed=True, fields=FIELDS, files=(base,), deltas=deltas)
    assert count_rows(storage, entry) == 4 * count
    assert read_part(storage, SHAPE, Part(base, deltas)).num_rows == 0
    key = pa.array([(5).to_bytes(4, "big") * (MIB // 4)], pa.binary())
    assert look_up(storage, SHAPE, entry.files, entry.deltas, key)["id"].to_pylist() == [5]
    merge = next_merge(TOPIC, entry)
    assert merge is not None
    merged = with_merged(entry, write_merge(storage, entry, merge, threading.Event()))
    assert merged is not None
    assert sorted(read_table(storage, merged)["id"].to_pylist()) == [*range(4 * count)]


@pytest.mark.long
def test_a_row_with_a_value_that_was_not_sent_is_folded_in_2_gib(storage: Storage) -> None:
    deltas = tuple(
        write_delta(storage, SHAPE, added_rows(rows_from(first, 1100, MIB))) for first in (0, 1100)
    )
    plan = TablePlan(SHAPE, {}, files=(write_bucket(storage, SHAPE, 0, rows_from(10**6, 1)),), deltas=deltas)
    keys = [number.to_bytes(4, "big") for number in range(2200)]
    events = [
        Event(Sequence(1, 9, 1, number), "u", key, None, {"id": number, "doc": None}, ("doc",), {}, 1)
        for number, key in enumerate(keys)
    ]
    existing = tasks.complete_rows(events, plan, SHAPE, 0, storage)
    states = [RowState({"id": number}, {}, {"doc": number}, {}) for number in range(2200)]
    rows = rows_of(keys, states, SHAPE, existing)
    assert rows["doc"].nbytes > 2200 * MIB
    file = write_delta(storage, SHAPE, added_rows(rows))
    assert file.rows == 2200


@pytest.mark.long
@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_a_batch_of_more_than_2_gib_is_stored_in_an_open_table(
    storage: Storage, table_format: TableFormat
) -> None:
    version = TargetVersion("shop", 4, number=1, table_format=table_format)
    count = 600
    folds = [
        FoldResult(
            *(TOPIC, bucket, True, False, False, None, 0, Sequence(1, 5, 1, bucket), False),
            complete=rows_from(bucket * count, count, MIB),
        )
        for bucket in range(4)
    ]
    entry = TableEntry(TOPIC, keyed=True, fields=FIELDS)
    after = replace(version, tables={TOPIC: entry})
    found, damaged = OpenTables(storage, version).store(after, version, {TOPIC: TablePlan(SHAPE, {})}, folds)
    assert not damaged
    assert sum(one.rows for one in found.tables[TOPIC].files) == 4 * count


def test_rows_are_filtered_without_those_of_which_it_is_unknown() -> None:
    rows = pa.table({"n": [1, 2, 3]})
    for marks, left in (([True] * 3, [1, 2, 3]), ([True, None, True], [1, 3]), ([False, True, None], [2])):
        assert filtered(rows, pa.chunked_array([marks], pa.bool_()))["n"].to_pylist() == left
    assert filtered(rows.slice(0, 0), pa.array([], pa.bool_())).num_rows == 0
