"""A mirror with Delta or Iceberg tables: delta-rs and PyIceberg, which know nothing of the mirror, read each version.

In: the histories that the Parquet format is tested with.
Invariant: after each batch a table has the rows that the mirror in Parquet files has.
"""

from __future__ import annotations

import os
import random
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from decimal import Decimal
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.table import TableAlterer
from pyiceberg.table import StaticTable

from cdcd.errors import (
    CdcdError,
    ConfigError,
    SparkReadError,
    StorageConflict,
    StorageError,
    StorageUnavailable,
)
from cdcd.spark.formats import file_levels, iceberg_manifests, open_table, open_tables
from cdcd.spark.formats.delta_access import DeltaAccess, require_delta
from cdcd.spark.formats.delta_log import DeltaLog
from cdcd.spark.formats.iceberg_access import IcebergAccess, require_iceberg
from cdcd.spark.formats.iceberg_log import IcebergLog
from cdcd.spark.formats.table_log import CommitLabel, TableLog
from cdcd.spark.mirroring.batches import MirrorBatches
from cdcd.spark.mirroring.records import RecordsOnDriver
from cdcd.spark.reading.mirror import read_mirror
from cdcd.spark.source.cuts import with_loading
from cdcd.spark.source.source_position import SourcePosition
from cdcd.spark.storage.uri import open_storage
from cdcd.spark.tables.compaction import MergeUncertain
from cdcd.spark.target.commit_log import read_latest
from cdcd.spark.target.left_files import sweep
from cdcd.spark.target.ownership import starting_version
from cdcd.spark.target.shape import KEY, SPECIAL
from cdcd.spark.target.target_writer import TargetWriter, take_over
from cdcd.spark.target.versions import TableFormat
from tests.spark.batches import TOPIC, Batches, Record, records_table
from tests.spark.events import column
from tests.spark.foreign_readers import READERS
from tests.spark.unit.test_arrow_fold import SCHEMAS, VERSIONS, History
from tests.support.nightly import nightly, nightly_except

ID, BODY, SIZE = column("id", "int", required=True), column("body", "string"), column("size", "long")
OPEN: tuple[TableFormat, ...] = ("delta", "iceberg")
of_both = pytest.mark.parametrize("table_format", OPEN)
Row = dict[str, Any]


def newest(items: Batches) -> list[Row]:
    """Return what another reader of the format finds in the newest version."""
    return normalised(READERS[items.table_format].newest(items.target))


def normalised(rows: pa.Table) -> list[Row]:
    """Return the rows in an order, without empty special texts, and without their keys."""
    shown = rows.drop_columns([name for name in (KEY,) if name in rows.column_names]).to_pylist()
    return sorted(({n: v for n, v in row.items() if n != SPECIAL or v} for row in shown), key=repr_of)


def log_of(items: Batches) -> TableLog:
    log = DeltaLog if items.table_format == "delta" else IcebergLog
    return log(open_storage(str(items.target)), "public.items", 0.0)


def repr_of(row: Row) -> str:
    return repr(sorted(row.items(), key=lambda item: item[0]))


def mirrored(target: Path, *, at: int | str | None = None) -> list[Row]:
    """Return what `read_mirror` reads."""
    opened = read_mirror(target, at=at)
    return normalised(opened.table(TOPIC)) if TOPIC in opened.topics else []


def recorded(items: Batches, *, at: int | str | None = None) -> list[Row]:
    """Return what another reader finds at the version that the commit log names."""
    return normalised(READERS[items.table_format].recorded(read_mirror(items.target, at=at)))


def apply(mirror: MirrorBatches, records: Sequence[Record], end_lsn: int = 0) -> str:
    """Apply a batch; return the error that it ends with, "" for none."""
    try:
        mirror.apply(
            RecordsOnDriver(records_table(records)), with_loading({}, frozenset()), position(end_lsn)
        )
    except CdcdError as error:
        return str(error)
    return ""


def position(end_lsn: int) -> SourcePosition:
    return SourcePosition(end_lsn=end_lsn)


@pytest.fixture(params=["delta", nightly("iceberg")])
def table_format(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def items(tmp_path: Path, table_format: TableFormat) -> Batches:
    """Return a table with ten rows."""
    batches = Batches(tmp_path / "mirror", [ID, BODY], table_format=table_format)
    copied = [batches.change("r", 10, number + 1, after=row(number, "first")) for number in range(10)]
    batches.run(copied, loading=False)
    return batches


def row(number: int, body: str) -> Row:
    return {"id": number, "body": body}


# --- the same rows as in Parquet files ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table_format", "seed"),
    nightly_except(product(OPEN, range(25)), ("delta", 0), ("iceberg", 1)),
)
def test_a_table_has_the_rows_of_the_parquet_format(
    table_format: TableFormat, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With deletes, changes of keys, TRUNCATEs, values that were not sent, and columns that come and go."""
    random.seed(seed)
    few_rows_in_a_file(monkeypatch)
    history = History(with_unchanged=seed % 2 == 0, ddl=random.choice([0, 0.05, 0.3]))
    both = {one: Batches(tmp_path / one, VERSIONS[1], table_format=one) for one in ("parquet", table_format)}
    for batches in both.values():
        batches._schemas = dict(SCHEMAS)
    for _ in range(4):  # starts of the mirror
        parts = [history.batch(random.choice([1, 5, 40])) for _ in range(3)]
        errors = {one: applied(batches, parts) for one, batches in both.items()}
        assert errors[table_format] == errors["parquet"]
        rows = mirrored(both["parquet"].target)
        assert recorded(both[table_format]) == rows
        assert mirrored(both[table_format].target) == rows
        assert read_mirror(both[table_format].target).rows(TOPIC) == len(rows)
        if errors[table_format]:
            return


def few_rows_in_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_levels, "FAN", random.choice([2, 4]))
    monkeypatch.setattr(file_levels, "FILE_ROWS", random.choice([3, 10, 1000]))
    monkeypatch.setattr(file_levels, "NEW_FILE_BYTES", random.choice([1, 1000, 1 << 20]))
    monkeypatch.setattr(iceberg_manifests, "MOST_ENTRIES", random.choice([2, 5, 1000]))


def files_of_rows(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """Let each file have so many rows, also one of new rows."""
    monkeypatch.setattr(file_levels, "FILE_ROWS", rows)
    monkeypatch.setattr(open_tables, "size_of_new", file_levels.size_of_changed)


def applied(batches: Batches, parts: Sequence[Sequence[Record]]) -> str:
    """Apply batches by one mirror, with merges in the background; check the newest one of the table after each."""
    with batches.mirror() as mirror:
        for records in parts:
            if error := apply(mirror, records):
                return error
            if random.random() < 0.5:
                mirror.compact()
                if batches.table_format != "parquet":
                    assert newest(batches) == mirrored(batches.target)
    return ""


@pytest.mark.parametrize(("table_format", "seed"), nightly_except(product(OPEN, range(15)), ("delta", 1)))
def test_a_table_without_a_key_has_the_rows_of_the_parquet_format(
    table_format: TableFormat, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random.seed(seed)
    few_rows_in_a_file(monkeypatch)
    both = {
        one: Batches(tmp_path / one, [ID, BODY], has_key=False, table_format=one)
        for one in ("parquet", table_format)
    }
    held: list[Row] = []
    names: tuple[str, ...] = ()
    for commit in range(1, 12):
        if commit == 6 and seed % 3 == 0:
            held, names = [one | {"size": None} for one in held], ("size",)
            for batches in both.values():
                batches.alter([ID, BODY, SIZE])
        changes = [bag_change(held, names, commit * 10, number) for number in range(random.choice([1, 8]))]
        for batches in both.values():
            batches.run([batches.change(*of, **rest) for of, rest in changes], loading=False)
        rows = mirrored(both["parquet"].target)
        assert rows == sorted(held, key=repr_of)
        assert recorded(both[table_format]) == rows == mirrored(both[table_format].target)


def bag_change(
    held: list[Row], names: Sequence[str], lsn: int, number: int
) -> tuple[tuple[str, int, int], dict[str, Any]]:
    """Change the rows, and return the change. `names`: of the columns that were added, which are null."""
    new: Row = {"id": random.randrange(4), "body": random.choice(["a", "b"])} | dict.fromkeys(names)
    chosen = random.random()
    at = (lsn, number + 1)
    if chosen < 0.05:
        held.clear()
        return ("t", *at), {}
    if held and chosen < 0.4:
        old = held.pop(random.randrange(len(held)))
        return ("d", *at), {"before": old}
    if held and chosen < 0.6:
        old = held.pop(random.randrange(len(held)))
        held.append(new)
        return ("u", *at), {"before": old, "after": new}
    held.append(new)
    return ("c", *at), {"after": new}


NAMES = ["Mixed", "two words", "a.b", "x`y", 'q"t', "select"]


@of_both
def test_columns_of_every_type_and_name_are_readable(tmp_path: Path, table_format: TableFormat) -> None:
    """Delta has no time of day, nor Spark one of Iceberg: it is in microseconds, and as it is in `read_mirror`."""
    moment, naive = {"logicalType": "timestamp-micros"}, {"logicalType": "local-timestamp-micros"}
    clock = {"type": "long", "logicalType": "time-micros"}
    price = {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 10}
    typed = {
        "clock": clock,
        "clocks": {"type": "array", "items": ["null", clock]},
        "moment": {"type": "long", **moment},
        "naive": {"type": "long", **naive},
        "price": price,
        "day": {"type": "int", "logicalType": "date"},
        "data": "bytes",
        "flag": "boolean",
        "ratio": "double",
    }
    fields = [ID, *(column(name, one) for name, one in typed.items())]
    fields += [column(f"n{place}", "string", **{"pg.name": name}) for place, name in enumerate(NAMES)]
    items = Batches(tmp_path / "mirror", fields, table_format=table_format)
    values: Row = {
        "id": 1, "clock": 5, "clocks": [7, None], "moment": 2**62, "naive": -(2**61), "day": -1, "data": b"\0\xff",
        "price": (123).to_bytes(1, "big"), "flag": True, "ratio": 0.5,
    } | {f"n{place}": name for place, name in enumerate(NAMES)}  # fmt: skip
    changed = [items.change("u", 20, 1, after=values | {"n0": "changed"})]
    with items.mirror() as mirror:
        assert apply(mirror, [items.change("r", 10, 1, after=values)]) == ""
        assert apply(mirror, [*changed, items.change("c", 20, 2, after=values | {"id": 2})]) == ""
    found = READERS[table_format].newest(items.target)
    for name in ("moment", "naive"):  # Python has no such years
        found = found.set_column(found.column_names.index(name), name, found[name].cast(pa.int64()))
    first = found.sort_by("id").to_pylist()[0]
    assert (first["clock"], first["clocks"], first["moment"], first["naive"]) == (
        5,
        [7, None],
        2**62,
        -(2**61),
    )
    assert (first["price"], first["data"], first["ratio"]) == (Decimal("0.0000000123"), b"\0\xff", 0.5)
    assert [first[name] for name in NAMES] == ["changed", *NAMES[1:]]
    read = read_mirror(items.target).table(TOPIC)
    assert read["clock"].type == pa.time64("us")
    assert read["clocks"].type == pa.list_(pa.time64("us"))
    assert read["clock"].cast(pa.int64()).to_pylist() == [5, 5]


def test_a_column_that_is_dropped_and_added_again_starts_empty(items: Batches) -> None:
    items.alter([ID])
    items.run([items.change("u", 20, 1, after={"id": 1})], loading=False)
    assert newest(items)[0] == {"id": 0}
    items.alter([ID, BODY])
    rows = items.run([items.change("u", 30, 1, after=row(1, "again"))], loading=False)
    assert rows == [row(number, "again") if number == 1 else row(number, None) for number in range(10)]  # type: ignore[arg-type]
    assert newest(items) == sorted(rows, key=repr_of)


def test_columns_that_differ_only_in_case_park_the_table(items: Batches) -> None:
    items.on_error = "park"
    items.alter([ID, BODY, column("other", "string", **{"pg.name": "Body"})])
    before = newest(items)
    items.run([items.change("u", 20, 1, after=row(1, "b") | {"other": "x"})], loading=False)
    (reason,) = [one.reason for one in read_mirror(items.target).parked.values()]
    assert "case of their names" in reason
    assert newest(items) == before


# --- crashes and other writers ---------------------------------------------------------------------------------


def _more_rows(items: Batches) -> list[Record]:
    gone = items.change("d", 20, 2, before=row(2, ""))
    return [
        items.change("u", 20, 1, after=row(1, "changed")),
        gone,
        items.change("c", 20, 3, after=row(50, "new")),
    ]


def _new_column(items: Batches) -> list[Record]:
    items.alter([ID, BODY, SIZE])
    return [items.change("u", 20, 1, after=row(1, "changed") | {"size": 5})]


def _other_columns(items: Batches) -> list[Record]:
    items.alter([ID, SIZE])
    return [items.change("u", 20, 1, after={"id": 1, "size": 5})]


def _truncate(items: Batches) -> list[Record]:
    return [items.change("t", 20, 1), items.change("c", 20, 2, after=row(1, "again"))]


@pytest.mark.parametrize(
    ("table_format", "change"),
    nightly_except(
        product(OPEN, [_more_rows, _new_column, _other_columns, _truncate]),
        *product(["delta"], [_more_rows, _new_column, _other_columns, _truncate]),
        *product(["iceberg"], [_more_rows, _other_columns]),
    ),
)
def test_a_crash_before_the_record_changes_nothing(
    items: Batches, change: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table has the batch already: the next start restores it, and repeats the batch."""
    before = newest(items)
    records = change(items)
    with monkeypatch.context() as patched, items.mirror() as mirror:
        patched.setattr(TargetWriter, "publish", crash)
        with pytest.raises(KeyboardInterrupt):
            apply(mirror, records)
    assert newest(items) != before
    assert recorded(items) == mirrored(items.target) == before
    with items.mirror() as mirror:
        sweep(items.target)
        assert newest(items) == mirrored(items.target) == before
        assert apply(mirror, records) == ""
        after = mirrored(items.target)
        assert newest(items) == after != before
        assert apply(mirror, records) == ""
    assert newest(items) == recorded(items) == after


def crash(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def test_a_crash_before_the_first_record_changes_nothing(
    tmp_path: Path, table_format: TableFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = Batches(tmp_path / "mirror", [ID, BODY], table_format=table_format)
    records = [items.change("r", 10, 1, after=row(1, "a"))]
    with monkeypatch.context() as patched, items.mirror() as mirror:
        patched.setattr(TargetWriter, "publish", crash)
        with pytest.raises(KeyboardInterrupt):
            apply(mirror, records)
    assert items.rows() == []
    assert items.run(records, loading=False) == [row(1, "a")]
    assert newest(items) == [row(1, "a")]


@of_both
def test_a_crash_between_the_columns_and_the_rows_changes_nothing(
    items: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, records = newest(items), _new_column(items)
    with monkeypatch.context() as patched, items.mirror() as mirror:
        if items.table_format == "delta":
            patched.setattr(DeltaTable, "create_write_transaction", crash)
        else:
            patched.setattr(IcebergAccess, "write_hint", crash)
        with pytest.raises(KeyboardInterrupt):
            apply(mirror, records)
    if (
        items.table_format == "delta"
    ):  # Iceberg's columns and rows are one commit, which its hint does not name yet
        assert [*newest(items)[0]] == ["id", "body", "size"]
    with items.mirror():
        assert newest(items) == before


@of_both
def test_rows_that_a_start_takes_back_can_be_read_for_the_retention(
    items: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader of the newest version may have opened them before the start."""
    with monkeypatch.context() as patched, items.mirror() as mirror:
        patched.setattr(TargetWriter, "publish", crash)
        with pytest.raises(KeyboardInterrupt):
            apply(mirror, _more_rows(items))
    opened, rows = READERS[items.table_format].opened(items.target), newest(items)
    files = READERS[items.table_format].files(items.target)
    with items.mirror() as mirror:
        sweep(items.target, mirror._writer)
        assert newest(items) == mirrored(items.target) != rows
        assert normalised(opened()) == rows
    items.retain_s = -1.0
    items.run([items.change("c", 30, 1, after=row(60, "new"))], loading=False)
    assert not any(Path(one).exists() for one in files)


@of_both
def test_another_writer_is_refused_and_its_rows_are_taken_back(items: Batches) -> None:
    before = newest(items)
    with items.mirror() as mirror:
        READERS[items.table_format].append(items.target)
        assert len(newest(items)) == 11
        with pytest.raises(StorageConflict, match="another writer"):
            mirror.apply(RecordsOnDriver(records_table(_more_rows(items))), with_loading({}, frozenset()))
    assert mirrored(items.target) == before
    rows = items.run(_more_rows(items), loading=False)
    assert newest(items) == sorted(rows, key=repr_of)


def test_a_mirror_that_another_has_taken_over_changes_no_table(items: Batches) -> None:
    with items.mirror() as first, items.mirror() as second:
        assert apply(second, _more_rows(items)) == ""
        rows = mirrored(items.target)
        error = apply(first, [items.change("u", 30, 1, after=row(1, "late"))])
        assert "CDCD-STORAGE-CONFLICT" in error
    assert newest(items) == mirrored(items.target) == rows


@of_both
def test_a_late_commit_of_a_mirror_that_another_has_taken_over_is_taken_back(items: Batches) -> None:
    """It comes after the other one's start and before its first batch, which fails; its next start restores."""
    with items.mirror() as first, items.mirror() as second:
        rows = mirrored(items.target)
        assert "CDCD-STORAGE-CONFLICT" in apply(first, [items.change("u", 30, 1, after=row(1, "late"))])
        assert newest(items) != rows
        assert "CDCD-STORAGE-CONFLICT" in apply(second, _more_rows(items))
    assert mirrored(items.target) == rows
    with items.mirror() as third:
        assert newest(items) == rows
        assert apply(third, _more_rows(items)) == ""
        assert newest(items) == mirrored(items.target) != rows


def test_a_start_that_was_taken_over_restores_nothing_of_the_other(items: Batches) -> None:
    """It sleeps after it has taken over; meanwhile another one does, and has a batch."""
    target = open_storage(str(items.target))
    version = read_latest(target)
    assert version is not None
    writer = take_over(target, version)
    with items.mirror() as second:
        assert apply(second, _more_rows(items)) == ""
        rows = mirrored(items.target)
        with pytest.raises(StorageConflict, match="another mirror has taken over"):
            MirrorBatches(target, writer, items._schemas.__getitem__)
        assert newest(items) == recorded(items) == rows
        assert apply(second, [items.change("c", 30, 1, after=row(60, "new"))]) == ""
    assert newest(items) == mirrored(items.target)


def test_a_start_that_is_taken_over_after_it_has_asked_restores_nothing_of_the_other(
    items: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The version that it restores succeeds the one that it has opened before it asked."""
    with monkeypatch.context() as patched, items.mirror() as mirror:
        patched.setattr(TargetWriter, "publish", crash)
        with pytest.raises(KeyboardInterrupt):
            apply(mirror, _more_rows(items))
    rows: list[Row] = []
    own_latest = TargetWriter.own_latest

    def taken_over_after(writer: TargetWriter) -> Any:
        found = own_latest(writer)
        monkeypatch.setattr(TargetWriter, "own_latest", own_latest)
        with items.mirror() as second:
            assert apply(second, [items.change("c", 30, 1, after=row(60, "new"))]) == ""
        rows.extend(mirrored(items.target))
        return found

    monkeypatch.setattr(TargetWriter, "own_latest", taken_over_after)
    with pytest.raises(StorageConflict), items.mirror():
        pass
    assert row(60, "new") in rows
    assert newest(items) == recorded(items) == mirrored(items.target) == rows


@of_both
def test_a_start_that_has_nothing_to_restore_does_not_build_on_the_rows_of_the_other(
    items: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one commits after the start has opened the table: the start has its files, not the new ones."""
    opener, name = (DeltaAccess, "open") if items.table_format == "delta" else (IcebergAccess, "newest")
    opened, rows = getattr(opener, name), []

    def taken_over_after(log: Any, version: int | None = None) -> Any:
        found = opened(log, version)
        monkeypatch.setattr(opener, name, opened)
        with items.mirror() as second:
            assert apply(second, _more_rows(items)) == ""
        rows.extend(mirrored(items.target))
        return found

    monkeypatch.setattr(opener, name, taken_over_after)
    with items.mirror() as first:
        error = apply(first, [items.change("u", 30, 1, after=row(5, "late"))])
    assert "CDCD-STORAGE-CONFLICT" in error
    assert newest(items) == recorded(items) == mirrored(items.target) == rows


def test_a_commit_that_the_storage_does_not_take_is_tried_again(items: Batches) -> None:
    """A folder that cannot be written heals; the next session has the same rows."""
    log = READERS[items.table_format].log(items.target)
    rows = mirrored(items.target)
    with items.mirror() as mirror:
        away = log.rename(log.with_name("away"))
        log.write_bytes(b"")
        error = apply(mirror, _more_rows(items))
        assert (items.table_format == "delta") == error.startswith("CDCD-STORAGE-UNAVAILABLE"), error
        assert "CONFLICT" not in error
        log.unlink()
        away.rename(log)
    assert newest(items) == mirrored(items.target) == rows


LISTING = "Error interacting with object store: Generic S3 error: Error performing list request"


def _fails_as_a_listing(*_: Any, **__: Any) -> None:
    """End as delta-rs does if the storage does not list the log before a commit: not with an OSError."""
    raise DeltaError(LISTING)


@pytest.mark.parametrize("table_format", ["delta"])
@pytest.mark.parametrize(
    ("method", "change"),
    [
        ((DeltaTable, "create_write_transaction"), _more_rows),
        ((TableAlterer, "add_columns"), _new_column),
        ((transaction, "create_table_with_add_actions"), _other_columns),
    ],
    ids=["rows", "columns", "create"],
)
def test_a_log_that_the_storage_does_not_list_is_read_again(
    items: Batches, method: tuple[Any, str], change: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = mirrored(items.target)
    with items.mirror() as mirror, monkeypatch.context() as patched:
        patched.setattr(*method, _fails_as_a_listing)
        assert apply(mirror, change(items)).startswith("CDCD-STORAGE-UNAVAILABLE")
    assert newest(items) == mirrored(items.target) == rows
    assert items.run(change(items), loading=False) != rows
    assert newest(items) == mirrored(items.target)


@pytest.mark.parametrize("table_format", ["delta"])
@pytest.mark.parametrize("kind", [DeltaError, CommitFailedError])
def test_a_commit_that_failed_while_the_storage_does_not_answer_is_tried_again(
    items: Batches, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer to a commit may be lost, and its repetition refused."""
    rows = mirrored(items.target)
    with items.mirror() as mirror, monkeypatch.context() as patched:

        def fails(*_: Any, **__: Any) -> None:
            patched.setattr(DeltaTable, "__init__", unanswered)
            raise kind("refused")

        def unanswered(*_: Any, **__: Any) -> None:
            raise OSError("error sending request")

        mirror.publish_start()
        patched.setattr(DeltaTable, "create_write_transaction", fails)
        assert apply(mirror, _more_rows(items)).startswith("CDCD-STORAGE-UNAVAILABLE")
    with items.mirror():
        pass
    assert newest(items) == mirrored(items.target) == rows


@pytest.mark.parametrize("table_format", ["delta"])
def test_an_error_of_a_commit_whose_log_is_damaged_does_not_heal(
    items: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = READERS[items.table_format].log(items.target)
    with items.mirror() as mirror:
        mirror.publish_start()
        (first,) = log.glob("*0.json")
        first.write_bytes(b"{")
        monkeypatch.setattr(DeltaTable, "create_write_transaction", _fails_as_a_listing)
        assert apply(mirror, _more_rows(items)).startswith("CDCD-STORAGE:")


@pytest.mark.parametrize("table_format", ["delta"])
@pytest.mark.parametrize("change", [_more_rows, _new_column])
def test_a_commit_whose_checkpoint_cannot_be_written_is_tried_again(items: Batches, change: Any) -> None:
    """The version is durable, and delta-rs ends with an error; the next session has the rows of its record."""
    table, log = items.target / "public.items", READERS[items.table_format].log(items.target)
    DeltaTable(str(table)).alter.set_table_properties({"delta.checkpointInterval": "1"})
    rows = mirrored(items.target)
    with items.mirror() as mirror:
        blocked = log / f"{DeltaTable(str(table)).version() + 1:020d}.checkpoint.parquet"
        blocked.mkdir()
        assert apply(mirror, change(items)).startswith("CDCD-STORAGE-UNAVAILABLE")
    blocked.rmdir()
    assert mirrored(items.target) == rows
    assert items.run(change(items), loading=False) != rows
    assert newest(items) == mirrored(items.target)


def test_files_that_the_log_does_not_have_are_an_error(items: Batches) -> None:
    """As after a backup of another time was restored."""
    version = read_latest(items.target)
    assert version is not None
    entry = version.tables[TOPIC]
    assert entry.table_version is not None
    with pytest.raises(StorageError, match="one backup"):
        log_of(items).restore(entry.table_version, (), CommitLabel(TOPIC, 1, "0/0"))


# --- versions and files ----------------------------------------------------------------------------------------


def test_an_earlier_version_is_readable_by_every_reader(items: Batches) -> None:
    expected: dict[int, list[Row]] = {}
    with items.mirror() as mirror:
        for batch in range(12):
            change = items.change("u", 100 + batch, 1, after=row(batch % 3, f"batch {batch}"))
            new = items.change("c", 100 + batch, 2, after=row(100 + batch, "new"))
            assert apply(mirror, [change, new], 100 + batch) == ""
            mirror.compact()
            expected[100 + batch] = mirrored(items.target)
    assert len({repr(rows) for rows in expected.values()}) == 12
    for lsn, rows in expected.items():
        assert recorded(items, at=lsn) == mirrored(items.target, at=lsn) == rows


def test_a_commit_says_which_version_it_belongs_to(items: Batches) -> None:
    items.run(_more_rows(items), loading=False)
    version = read_mirror(items.target).version
    if items.table_format == "iceberg":
        snapshot = StaticTable.from_metadata(str(items.target / "public.items")).current_snapshot()
        assert snapshot is not None
        assert snapshot.summary is not None
        assert snapshot.summary["cdcd.commit_lsn"] == "0/14"
        assert snapshot.summary["cdcd.version"] == str(version.number)
        return
    found = DeltaTable(str(items.target / "public.items"))
    assert found.transaction_version(TOPIC) == version.number
    assert found.history(1)[0]["cdcd.commit_lsn"] == "0/14"
    assert found.history(1)[0]["cdcd.version"] == str(version.number)


@of_both
def test_small_files_become_few(items: Batches) -> None:
    with items.mirror() as mirror:
        for batch in range(3 * file_levels.FAN):
            assert apply(mirror, [items.change("c", 100 + batch, 1, after=row(100 + batch, "new"))]) == ""
            mirror.compact()
            assert len(READERS[items.table_format].files(items.target)) < 2 * file_levels.FAN
    assert len(newest(items)) == 10 + 3 * file_levels.FAN
    assert newest(items) == mirrored(items.target)


@of_both
def test_a_merge_whose_commit_gets_no_answer_ends_the_session(
    items: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table may have the merged files, which the mirror does not know: it must not build on them."""
    log = DeltaLog if items.table_format == "delta" else IcebergLog
    commit = log.commit

    def without_answer(self: Any, *arguments: Any, changes_rows: bool = True) -> None:
        commit(self, *arguments, changes_rows=changes_rows)
        if not changes_rows:
            raise StorageUnavailable("the storage does not answer")

    def changes() -> None:
        with items.mirror() as mirror:
            for number in range(2 * file_levels.FAN):
                assert apply(mirror, [items.change("c", 20 + number, 1, after=row(20 + number, "new"))]) == ""
                mirror.compact()

    with monkeypatch.context() as patched:
        patched.setattr(log, "commit", without_answer)
        with pytest.raises((StorageUnavailable, AssertionError)):
            changes()
    for number in range(3):
        items.run([items.change("u", 90 + number, 1, after=row(number, "changed"))], loading=False)
        assert newest(items) == mirrored(items.target)
    assert sum(one["body"] == "changed" for one in newest(items)) == 3


@of_both
def test_another_writer_is_found_by_a_merge_too(items: Batches) -> None:
    """Otherwise the table has its rows until a batch changes it, and each try leaves files."""
    for number in range(file_levels.FAN):
        items.run([items.change("c", 20 + number, 1, after=row(20 + number, "new"))], loading=False)
    version = read_mirror(items.target).version
    tables = open_tables.OpenTables(open_storage(str(items.target)), version)
    merge = tables.next(TOPIC, version.tables[TOPIC])
    assert merge is not None
    READERS[items.table_format].append(items.target)
    with pytest.raises(MergeUncertain) as raised:
        tables.write(version.tables[TOPIC], merge, threading.Event())
    assert isinstance(raised.value.__cause__, StorageConflict)
    with items.mirror():
        pass
    assert newest(items) == mirrored(items.target)


def test_a_merge_of_files_that_a_batch_has_replaced_changes_nothing(items: Batches) -> None:
    for number in range(file_levels.FAN):
        items.run([items.change("c", 20 + number, 1, after=row(20 + number, "new"))], loading=False)
    version = read_mirror(items.target).version
    tables = open_tables.OpenTables(open_storage(str(items.target)), version)
    before = version.tables[TOPIC]
    merge = tables.next(TOPIC, before)
    assert merge is not None
    with items.mirror() as mirror:
        assert apply(mirror, [items.change("u", 50, 1, after=row(1, "changed"))]) == ""
    version = read_mirror(items.target).version
    tables = open_tables.OpenTables(open_storage(str(items.target)), version)
    paths = sorted(items.target.rglob("part-*.parquet"))
    assert tables.write(before, merge, threading.Event()) is None
    assert sorted(items.target.rglob("part-*.parquet")) == paths
    assert newest(items) == mirrored(items.target)
    stopping = threading.Event()
    stopping.set()
    assert tables.write(version.tables[TOPIC], merge, stopping) is None
    assert newest(items) == mirrored(items.target)


@of_both
def test_a_merge_goes_on_while_batches_add_rows(items: Batches, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches that come faster than a merge is written would otherwise leave small files for ever."""
    may_end = threading.Event()
    write = open_tables.OpenTables.write

    def wait_and_write(tables: Any, entry: Any, merge: Any, stopping: threading.Event) -> Any:
        while not may_end.wait(0.01) and not stopping.is_set():
            pass
        return write(tables, entry, merge, stopping)

    with items.mirror() as mirror:
        monkeypatch.setattr(open_tables.OpenTables, "write", wait_and_write)
        for number in range(file_levels.FAN + 3):
            change = items.change("c", 20 + number, 1, after=row(20 + number, "new"))
            assert apply(mirror, [change]) == ""
        before = len(mirror.version.tables[TOPIC].files)
        may_end.set()
        mirror._compactor.wait()
        mirror.publish_merged()
        assert len(mirror.version.tables[TOPIC].files) == before - file_levels.FAN + 1
        assert apply(mirror, [items.change("u", 90, 1, after=row(20, "later"))]) == ""
    rows = mirrored(items.target)
    assert (len(rows), recorded(items), newest(items)) == (10 + file_levels.FAN + 3, rows, rows)


@of_both
def test_a_merge_that_a_batch_has_taken_over_is_in_the_version_once(items: Batches) -> None:
    """The batch follows the merge in the table, and is published before the merge's result is taken."""
    for number in range(file_levels.FAN):
        items.run([items.change("c", 20 + number, 1, after=row(20 + number, "new"))], loading=False)
    with items.mirror() as mirror:
        mirror._compactor.start(mirror.version.tables)
        mirror._compactor.wait()
        result, mirror._compactor._running = mirror._compactor._running, None
        assert result is not None
        assert apply(mirror, [items.change("c", 50, 1, after=row(50, "new"))]) == ""
        mirror._compactor.wait()
        mirror._compactor._running = result
        files = mirror.version.tables[TOPIC].files
        assert mirror._with_merged(mirror.version).tables[TOPIC].files == files
    rows = mirrored(items.target)
    assert (len(rows), recorded(items), newest(items)) == (11 + file_levels.FAN, rows, rows)


def test_a_batch_writes_the_files_that_have_its_rows(items: Batches, monkeypatch: pytest.MonkeyPatch) -> None:
    files_of_rows(monkeypatch, 10)
    items.run([items.change("c", 20, n, after=row(n, "more")) for n in range(100, 200)], loading=False)
    before = READERS[items.table_format].files(items.target)
    assert len(before) == 11
    items.run([items.change("u", 30, 1, after=row(5, "x"))], loading=False)
    after = READERS[items.table_format].files(items.target)
    assert (len(before - after), len(after - before)) == (1, 1)


def test_a_large_file_of_new_rows_is_divided_by_the_first_change_of_one(
    items: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_levels, "FILE_ROWS", 10)
    reader = READERS[items.table_format]
    (first,) = reader.files(items.target)
    items.run([items.change("c", 20, n, after=row(n, "new")) for n in range(100, 200)], loading=False)
    (large,) = reader.files(items.target) - {first}
    items.run([items.change("u", 30, 1, after=row(150, "x"))], loading=False)
    divided = reader.files(items.target)
    assert (len(divided), large in divided, first in divided) == (1 + 10, False, True)
    items.run([items.change("d", 40, 1, before=row(160, ""))], loading=False)
    after = reader.files(items.target)
    assert (len(divided - after), len(after - divided)) == (1, 1)
    assert newest(items) == mirrored(items.target) == recorded(items)


def test_a_large_file_of_new_rows_remains_large_when_its_columns_change(
    items: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_levels, "FILE_ROWS", 10)
    items.run([items.change("c", 20, n, after=row(n, "new")) for n in range(100, 200)], loading=False)
    before = READERS[items.table_format].files(items.target)
    items.run(_other_columns(items), loading=False)
    after = READERS[items.table_format].files(items.target)
    assert len(after) == len(before)
    assert newest(items) == mirrored(items.target) == recorded(items)


@of_both
def test_replaced_files_are_removed_and_the_table_remains_readable(items: Batches) -> None:
    (first,) = READERS[items.table_format].files(items.target)
    items.run(_more_rows(items), loading=False)
    assert Path(first).exists()
    items.retain_s = -1.0
    folder = items.target / "public.items"
    crashed = [folder / f"part-{'0' * 32}.parquet", folder / f"part-{'1' * 32}.parquet.{'0' * 32}"]
    for left in crashed:
        left.write_bytes(b"what a crash leaves")
    others = items.target / "public.items" / "part-of-another.parquet"
    others.write_bytes(b"")
    with items.mirror() as mirror:
        sweep(items.target, mirror._writer)
    rows = items.run([items.change("c", 30, 1, after=row(60, "new"))], loading=False)
    assert not Path(first).exists()
    assert not any(left.exists() for left in crashed)
    assert others.exists()
    assert newest(items) == sorted(rows, key=repr_of)


@pytest.mark.parametrize(
    ("made", "asked"), [("parquet", "delta"), ("delta", "iceberg"), ("iceberg", "parquet")]
)
def test_a_target_of_the_other_format_is_refused(
    tmp_path: Path, made: TableFormat, asked: TableFormat
) -> None:
    items = Batches(tmp_path / "mirror", [ID, BODY], table_format=made)
    items.run([items.change("r", 10, 1, after=row(1, "a"))], loading=False)
    with pytest.raises(SparkReadError, match="another format"):
        starting_version(items.target, "shop", 4, "", table_format=asked)
    assert starting_version(items.target, "shop", 4, "", table_format=made).table_format == made
    if made != "delta":
        with pytest.raises(SparkReadError, match="no Delta table"):
            read_mirror(items.target).delta_table(TOPIC)
    if made != "iceberg":
        with pytest.raises(SparkReadError, match="no Iceberg table"):
            read_mirror(items.target).iceberg_table(TOPIC)


def test_the_library_is_needed_only_where_the_mirror_runs(
    items: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, library = newest(items), {"delta": "deltalake", "iceberg": "pyiceberg"}[items.table_format]
    require = {"delta": require_delta, "iceberg": require_iceberg}[items.table_format]
    with monkeypatch.context() as patched:
        for name in [one for one in sys.modules if one.partition(".")[0] == library]:
            patched.setitem(sys.modules, name, None)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match=f"package {library}"):
            require()
        assert mirrored(items.target) == rows
    with suppress(ConfigError):
        require()


@pytest.mark.parametrize("table_format", ["delta"])
def test_old_versions_of_the_delta_log_are_removed(items: Batches, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a batch each second would leave millions of files."""
    monkeypatch.setattr(open_table, "CLEAN_EVERY", 1)
    for batch in range(4):
        items.run([items.change("u", 20 + batch, 1, after=row(1, f"{batch}"))], loading=False)
    table = items.target / "public.items"
    DeltaTable(str(table)).create_checkpoint()
    log = table / "_delta_log"
    for path in log.glob("*.json"):
        os.utime(path, (0, 0))
    rows = items.run([items.change("u", 30, 1, after=row(1, "last"))], loading=False)
    assert len([*log.glob("*.json")]) == 2
    assert newest(items) == recorded(items) == sorted(rows, key=repr_of)


@pytest.mark.parametrize("table_format", ["delta"])
def test_another_retention_is_that_of_the_delta_log(items: Batches) -> None:
    """Otherwise the log has the versions of the time for which the table was made."""
    found = []
    for retain_s in (3 * 86_400.0, 3 * 86_400.0, 60.0):
        items.retain_s = retain_s
        with items.mirror() as mirror:
            mirror.publish_start()
        table = DeltaTable(str(items.target / "public.items"))
        names = ("delta.logRetentionDuration", "delta.deletedFileRetentionDuration")
        found.append(([table.metadata().configuration[name] for name in names], table.version()))
    four, one = ["interval 4 days"] * 2, ["interval 1 days"] * 2
    assert found == [(four, 1), (four, 1), (one, 2)]
    assert newest(items) == recorded(items) == mirrored(items.target)
