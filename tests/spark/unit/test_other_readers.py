"""What readers of a Delta or Iceberg table find is what the mirror's version names, or there is a reason."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cdcd.spark.formats import other_readers
from cdcd.spark.formats.other_readers import other_rows
from cdcd.spark.formats.table_log import CHANGED_SINCE, OTHER_FILES
from cdcd.spark.reading.mirror import read_mirror
from cdcd.spark.target.target_writer import TargetWriter
from cdcd.spark.target.versions import TableFormat
from tests.spark.batches import TOPIC, Batches
from tests.spark.events import column
from tests.spark.foreign_readers import READERS
from tests.spark.unit.test_open_tables import apply, crash

FORMATS: tuple[TableFormat, ...] = ("delta", "iceberg")


@pytest.fixture(params=FORMATS)
def items(tmp_path: Path, request: pytest.FixtureRequest) -> Batches:
    """Return a table with two rows."""
    columns = [column("id", "int", required=True), column("body", "string")]
    batches = Batches(tmp_path / "mirror", columns, table_format=request.param)
    batches.run([batches.change("r", 10, n, after={"id": n, "body": "a"}) for n in (1, 2)], loading=False)
    return batches


def _found(items: Batches) -> str:
    opened = read_mirror(items.target)
    return other_rows(opened.target, opened.version, opened.version.tables[TOPIC])


def test_the_rows_of_another_writer_are_found_until_a_start(items: Batches) -> None:
    assert _found(items) == ""
    READERS[items.table_format].append(items.target)
    assert _found(items) == CHANGED_SINCE
    with items.mirror():
        assert _found(items) == ""
    items.run([items.change("u", 20, 1, after={"id": 1, "body": "b"})], loading=False)
    assert _found(items) == ""


def test_a_batch_that_is_not_published_is_no_reason(items: Batches, monkeypatch: pytest.MonkeyPatch) -> None:
    records = [items.change("u", 20, 1, after={"id": 1, "body": "b"})]
    with monkeypatch.context() as patched, items.mirror() as mirror:
        patched.setattr(TargetWriter, "publish", crash)
        with pytest.raises(KeyboardInterrupt):
            apply(mirror, records)
    assert len(READERS[items.table_format].newest(items.target)) == 2
    assert _found(items) == ""


def test_other_files_and_a_log_that_is_not_readable_are_reasons(
    items: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = read_mirror(items.target)
    entry = opened.version.tables[TOPIC]
    assert other_rows(opened.target, opened.version, replace(entry, files=())) == OTHER_FILES
    for path in READERS[items.table_format].log(items.target).iterdir():
        if path.is_file():
            path.write_bytes(b"{")
    assert "cannot be read" in _found(items)
    monkeypatch.setattr(other_readers, "_LIBRARIES", dict.fromkeys(FORMATS, "a_package_that_nobody_has"))
    assert _found(items) == ""
