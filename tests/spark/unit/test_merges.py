"""Merges of many tables: one that fails, one that is parked, one whose columns were widened."""

from __future__ import annotations

import logging
import threading
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cdcd.errors import MirrorInconsistent
from cdcd.spark.decoding.columns import continues
from cdcd.spark.mirroring.query import MirrorQuery
from cdcd.spark.mirroring.verify import why
from cdcd.spark.session import first_line, is_shown_in_a_line, reason_of
from cdcd.spark.storage.uri import open_storage
from cdcd.spark.tables.compaction import FAN, Compactor, FileMerges, Merge, MergeResult, next_merge
from cdcd.spark.tables.history_merges import HistoryMerges
from cdcd.spark.tables.table_files import added_rows, read_table, write_bucket, write_delta
from cdcd.spark.target.shape import Field, TableShape, arrow_schema
from cdcd.spark.target.versions import BucketFile, Parked, TableEntry
from tests.spark.batches import TOPIC


class OneFails:
    """Merges each table once, except those of which one fails."""

    def __init__(self, error: Exception, fails: str) -> None:
        self.merged: list[str] = []
        self._error, self._fails = error, fails

    def next(self, topic: str, entry: TableEntry) -> Merge | None:
        return None if topic in self.merged else Merge(topic, (), (), is_whole=False)

    def write(self, entry: TableEntry, merge: Merge, stopping: threading.Event) -> MergeResult | None:
        if merge.topic == self._fails:
            raise self._error
        self.merged.append(merge.topic)
        return None

    def discard(self, result: MergeResult) -> None:
        """Nothing is written."""


def test_the_merge_of_a_table_that_fails_does_not_stop_those_of_others() -> None:
    """As `MirrorBatches.compact` merges, with which a run to an end ends."""
    merges = OneFails(MirrorInconsistent("a file cannot be decoded"), "a")
    tables = {topic: TableEntry(topic) for topic in "abc"}
    compactor = Compactor(merges)
    compactor.note(tables)
    while compactor.start(tables):
        compactor.wait()
        compactor.take(tables)
    assert merges.merged == ["b", "c"]


def test_an_error_of_arrow_is_logged_without_its_text(caplog: pytest.LogCaptureFixture) -> None:
    secret = pa.ArrowInvalid("Integer value 20000001 is outside of the range exactly representable")
    compactor = Compactor(OneFails(secret, "a"))
    tables = {"a": TableEntry("a")}
    compactor.note(tables)
    assert compactor.start(tables)
    compactor.wait()
    compactor.take(tables)
    assert "ArrowInvalid" in caplog.text
    assert "20000001" not in caplog.text

    def fail(_: threading.Event) -> None:
        raise secret

    query = MirrorQuery(fail, "a mirror")
    with pytest.raises(RuntimeError, match="ArrowInvalid") as raised:
        query.awaitTermination(60)
    assert "20000001" not in "".join(traceback.format_exception(raised.value))


NUMBERS: dict[str, tuple[Any, Any, Any]] = {
    "array": (
        {"type": "array", "items": ["null", "int"]},
        {"type": "array", "items": ["null", "float"]},
        [20_000_001, None],
    ),
    "map": ({"type": "map", "values": "long"}, {"type": "map", "values": "double"}, [("a", 2**53 + 1)]),
    "composite": (
        {
            "type": "record",
            "name": "r",
            "fields": [{"name": "n", "type": "int"}, {"name": "t", "type": "string"}],
        },
        {
            "type": "record",
            "name": "r",
            "fields": [{"name": "n", "type": "float"}, {"name": "t", "type": "string"}],
        },
        {"n": 20_000_001, "t": "x"},
    ),
}


@pytest.mark.parametrize("kind", NUMBERS)
def test_a_column_with_integers_inside_may_get_floating_point_numbers(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An integer that the type has not becomes the nearest number, as in PostgreSQL."""
    old, new, value = NUMBERS[kind]
    assert continues(["null", old], ["null", new])
    before = (Field(1, "id", "id", "long"), Field(2, "a", "a", ["null", old]))
    after = (before[0], replace(before[1], avro=["null", new]))
    target, shape, schema = open_storage(str(tmp_path)), TableShape(TOPIC, True, before), arrow_schema(before)

    def row(number: int) -> pa.Table:
        columns = [[number], [value], [None], [bytes([number])]]
        arrays = [pa.array(one, field.type) for one, field in zip(columns, schema, strict=True)]
        return pa.Table.from_arrays(arrays, schema=schema)

    base = write_bucket(target, shape, 0, row(0))
    deltas = tuple(write_delta(target, shape, added_rows(row(number))) for number in range(1, FAN + 1))
    entry = TableEntry(TOPIC, keyed=True, fields=after, files=(base,), deltas=deltas)
    rows = read_table(target, entry)
    assert rows.schema.equals(arrow_schema(after))
    assert rows["id"].to_pylist() == [*range(FAN + 1)]
    found = rows["a"][0].as_py()
    assert found in ([20_000_000.0, None], [("a", float(2**53))], {"n": 20_000_000.0, "t": "x"})

    compactor = Compactor(FileMerges(target))
    compactor.note([TOPIC])
    assert next_merge(TOPIC, entry) is not None
    with caplog.at_level(logging.ERROR):
        assert compactor.start({TOPIC: entry})
        compactor.wait()
        (merged,) = compactor.take({TOPIC: entry}).values()
    assert not caplog.messages
    assert read_table(target, merged).sort_by("id").equals(rows)


def test_the_history_of_a_parked_table_is_cut_while_a_merge_of_its_rows_is_due() -> None:
    def file(number: int, **rest: int) -> BucketFile:
        return BucketFile(-1, f"file {number}", 10, (1,), **rest)

    history = (file(99, size_bytes=1, last_us=1),)
    deltas = tuple(file(number) for number in range(1, FAN + 1))
    entry = TableEntry(TOPIC, keyed=True, files=(file(0),), deltas=deltas, history=history)
    merges = HistoryMerges(None, FileMerges(None), 60.0)  # type: ignore[arg-type]
    merge = merges.next(TOPIC, entry)
    assert merge is not None
    assert not merge.is_cut
    merge = merges.next(TOPIC, replace(entry, parked=Parked("X", "y", 0, 0.0, {})))
    assert merge is not None
    assert merge.is_cut


def test_no_command_shows_the_text_of_an_error_of_arrow() -> None:
    error = pa.ArrowInvalid("Integer value 20000001 is out of bounds; CDCD-GAP: 20000001")
    assert is_shown_in_a_line(error), "a trace has the text"
    assert (reason_of(error), first_line(error)) == ("ArrowInvalid", "ArrowInvalid")
    assert why(error) == "an internal error: ArrowInvalid"
