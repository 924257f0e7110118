"""Columns of a table that have names which a mirror uses for columns of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdcd.spark.reading.mirror import read_mirror
from cdcd.spark.target.versions import TABLE_FORMATS, TableFormat
from tests.spark.batches import Batches
from tests.spark.events import column
from tests.spark.unit.test_plain_views import mirrored, shown

FIELDS = [column("id", "int", required=True), column("__deleted", "string"), column("body", "string")]


@pytest.mark.parametrize("table_format", TABLE_FORMATS)
@pytest.mark.parametrize("has_key", [True, False], ids=["key", "no key"])
def test_a_column_may_be_called_deleted(tmp_path: Path, table_format: TableFormat, has_key: bool) -> None:
    """As in a table of flat records; the mirror marks deleted rows in its files."""
    items = Batches(tmp_path / "t", FIELDS, has_key=has_key, table_format=table_format)
    rows = [{"id": number, "__deleted": "no", "body": "a"} for number in (1, 2, 3)]
    items.run([items.change("c", 10, number, after=row) for number, row in enumerate(rows)], loading=False)
    changed = rows[1] | {"__deleted": "yes"}
    sent = {"after": changed | {"body": None}, "unchanged": ["body"]} if has_key else {"after": changed}
    before = {} if has_key else {"before": rows[1]}
    assert items.run([items.change("u", 20, 1, **sent, **before)], loading=False) == [
        rows[0],
        changed,
        rows[2],
    ]
    assert items.run([items.change("d", 30, 1, before=rows[0])], loading=False) == [changed, rows[2]]
    opened = read_mirror(items.target)
    assert shown(opened) == mirrored(opened)
