"""The statistics in a Delta log: another reader has them, leaves out files by them, and loses no row."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime
from itertools import product
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from cdcd.spark.formats.delta_statistics import MOST_CHARACTERS, MOST_COLUMNS, has_one_order, statistics_of
from cdcd.spark.reading.mirror import read_mirror
from tests.spark.batches import TOPIC, Batches
from tests.spark.events import column
from tests.spark.unit.test_open_tables import files_of_rows, newest, recorded
from tests.spark.unit.test_plain_views import duck

FIELDS = [
    column("id", "int", required=True),
    column("body", "string"),
    column("moment", {"type": "long", "logicalType": "timestamp-micros"}),
    column("naive", {"type": "long", "logicalType": "local-timestamp-micros"}),
    column("day", {"type": "int", "logicalType": "date"}),
    column("clock", {"type": "long", "logicalType": "time-micros"}),
    column("ratio", "double"),
]
BOUNDED = ("id", "body", "moment", "naive", "day", "clock")
BODIES = [None, "", "a", "ä", "\U0010ffff", "Z" * MOST_CHARACTERS, "Z" * (MOST_CHARACTERS + 1)]


@pytest.fixture
def items(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Batches:
    """Return a table with random values in files of 10 rows."""
    files_of_rows(monkeypatch, 10)
    batches = Batches(tmp_path / "mirror", FIELDS, table_format="delta")
    dice = random.Random(1)
    rows = [row(number, dice) for number in range(100)]
    batches.run([batches.change("r", 10, n + 1, after=one) for n, one in enumerate(rows)], loading=False)
    changed = [batches.change("u", 20, n + 1, after=row(n, dice)) for n in range(0, 100, 7)]
    batches.run(changed, loading=False)
    return batches


def row(number: int, dice: random.Random) -> dict[str, Any]:
    return {
        "id": number,
        "body": dice.choice(BODIES),
        "moment": dice.choice([None, 0, dice.randrange(-(10**15), 10**15)]),
        "naive": dice.choice([-1, dice.randrange(10**16)]),
        "day": dice.choice([-719_162, dice.randrange(20_000)]),
        "clock": dice.randrange(86_400_000_000),
        "ratio": dice.choice([float("nan"), 0.5]),
    }


def test_another_reader_has_the_bounds_of_each_file(items: Batches) -> None:
    """Each one is compared with the values in the file."""
    table = DeltaTable(str(items.target / "public.items"))
    added = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    assert len(added) > 9
    known: set[str] = set()
    for one in added:
        found = pq.read_table(items.target / "public.items" / one["path"])
        for name in BOUNDED:
            assert one[f"null_count.{name}"] == found[name].null_count
            expected = pc.min_max(found[name]).as_py()
            texts = [bound for bound in expected.values() if isinstance(bound, str)]
            is_none = any(len(one) > MOST_CHARACTERS or "\U0010ffff" in one for one in texts)
            bounds = [None, None] if is_none else [expected["min"], expected["max"]]
            assert [one[f"min.{name}"], one[f"max.{name}"]] == bounds
            known |= {name} if bounds[0] is not None else set()
        assert one["min.ratio"] is None
    assert known == set(BOUNDED)


def test_a_reader_leaves_out_files_and_loses_no_row(items: Batches) -> None:
    """DuckDB says how many files it reads."""
    all_rows = pa.Table.from_pylist(newest(items))
    opened = duckdb.arrow(all_rows)
    assert len(all_rows) == 100
    dice, files = random.Random(2), len(read_mirror(items.target).version.tables[TOPIC].files)
    with duck("delta") as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute(f"CREATE VIEW items AS SELECT * FROM delta_scan('{items.target}/public.items')")
        for name in BOUNDED:
            for bound in dice.sample([one for one in all_rows[name].to_pylist() if one is not None], 8):
                for comparison in ("=", "<", ">="):
                    question = f'SELECT id FROM items WHERE "{name}" {comparison} ? ORDER BY id'
                    expected = opened.filter(f'"{name}" {comparison} {literal(bound)}').order("id")
                    found = connection.execute(question, [bound]).fetchall()
                    assert found == expected.project("id").fetchall(), (name, comparison)
        (_, plan), *_ = connection.execute("EXPLAIN ANALYZE SELECT * FROM items WHERE id = 5").fetchall()
    assert f"1/{files}" in plan, plan


def literal(value: Any) -> str:
    if isinstance(value, int):
        return str(value)
    text = str(value).replace("'", "''")
    kind = {datetime: "TIMESTAMPTZ" if getattr(value, "tzinfo", None) else "TIMESTAMP", date: "DATE"}
    return f"{kind.get(type(value), '')} '{text}'"


def test_years_that_no_reader_has_are_no_bounds() -> None:
    days = pa.chunked_array([pa.array([0, 2**30], pa.int32()).cast(pa.date32())])
    moments = pa.chunked_array([pa.array([0, 2**62], pa.timestamp("us", "UTC"))])
    found = statistics_of(pa.table({"day": days, "moment": moments}))
    assert (found["minValues"], found["nullCount"]) == ({}, {"day": 0, "moment": 0})


def test_times_are_in_the_form_of_delta() -> None:
    moment = pa.array([datetime(2026, 1, 2, tzinfo=UTC)], pa.timestamp("us", "UTC"))
    naive = pa.array([datetime(1, 1, 2, 3, 4, 5, 6)], pa.timestamp("us"))
    found = statistics_of(pa.table({"moment": moment, "naive": naive, "nothing": pa.nulls(1, pa.string())}))
    assert found["minValues"] == {
        "moment": "2026-01-02T00:00:00.000000Z",
        "naive": "0001-01-02T03:04:05.000006",
    }
    assert found["nullCount"]["nothing"] == 1


def test_a_table_with_many_columns_has_small_commits() -> None:
    rows = pa.table({f"c{number}": pa.array([1]) for number in range(1000)})
    assert [*statistics_of(rows)["minValues"]] == [f"c{number}" for number in range(MOST_COLUMNS)]


def test_a_start_keeps_them(items: Batches) -> None:
    """It restores the version, with the files that were there before."""
    items.retain_s = 3 * 86_400.0
    with items.mirror() as mirror:
        mirror.publish_start()
    added = pa.table(DeltaTable(str(items.target / "public.items")).get_add_actions(flatten=True))
    assert added["min.id"].null_count == 0
    assert repr(newest(items)) == repr(recorded(items)), "NaN is no NaN"


def test_texts_that_utf_16_orders_otherwise_are_no_bounds() -> None:
    """A reader in Java that compares UTF-16 would leave out a file that has the row."""
    for text, is_bound in {"\ud7ff": True, "\ue000": False, "a\ufffd": False, "\U00010000": False}.items():
        found = statistics_of(pa.table({"body": ["", text]}))
        assert found["maxValues"] == ({"body": text} if is_bound else {})
        assert found["nullCount"] == {"body": 0}


def test_two_texts_have_the_same_order_if_one_of_them_is_a_bound() -> None:
    texts = ["", "a", "\ud7ff", "\ue000", "\uffff", "\U00010000", "\U0010ffff"]
    both = [one + other for one in texts for other in texts]
    for bound, text in product(filter(has_one_order, both), both):
        assert (bound < text) == (bound.encode("utf-16-be") < text.encode("utf-16-be"))
        assert (bound < text) == (bound.encode() < text.encode())
