"""The statistics in the footers of Parquet files: another engine leaves out row groups by them, and loses no row."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder

from cdcd.spark.applying.keyed_table import KeyedTable
from cdcd.spark.storage.uri import open_storage
from cdcd.spark.tables.footer_statistics import paths_with_statistics
from cdcd.spark.target.versions import TableFormat
from tests.spark.batches import Batches
from tests.spark.events import column
from tests.spark.unit.test_open_tables import OPEN

POINT = {"type": "record", "name": "point", "fields": [column("x", "double"), column("n", "int")]}
FIELDS = [
    column("id", "int", required=True),
    column("ratio", "double"),
    column("short", "float"),
    column("point", POINT),
    column("ratios", {"type": "array", "items": ["null", "double"]}),
    column("named", {"type": "map", "values": ["null", "float"]}),
]
VALUES = (1.0, math.nan, 3.0)


def row(number: int, value: float) -> dict[str, Any]:
    point = {"x": value, "n": number}
    return {
        "id": number, "ratio": value, "short": value, "point": point, "ratios": [value], "named": {"a": value}
    }  # fmt: skip


def bounded(path: str) -> dict[str, bool]:
    """Return for each column of a file, and each field inside it, whether it has statistics."""
    group = pq.read_metadata(path).row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    return {one.path_in_schema: bool(one.statistics and one.statistics.has_min_max) for one in columns}


@pytest.mark.parametrize("table_format", OPEN)
def test_a_reader_of_a_file_finds_the_rows_with_nan(tmp_path: Path, table_format: TableFormat) -> None:
    """NaN is greater than all numbers, and no bound: 3.0 is the largest of the others."""
    items = Batches(tmp_path / "t", FIELDS, table_format=table_format)
    rows = [row(number, value) for number, value in enumerate(VALUES)]
    items.run([items.change("c", 10, n, after=one) for n, one in enumerate(rows)], loading=False)
    (file,) = items.target.rglob("part-*.parquet")
    found = bounded(str(file))
    assert {name for name, has in found.items() if has} == {"id", "point.n", "named.key_value.key", "__key"}
    for name in ("ratio", "short", "point.x", "ratios[1]", "named['a']"):
        asked = name if "[" in name else f"t.{name}"
        for condition in (f"{asked} > 5", f"{asked} = 'nan'", f"{asked} <> 1 AND {asked} <> 3"):
            assert duckdb.sql(f"SELECT id FROM '{file}' t WHERE {condition}").fetchall() == [(1,)], condition
    assert math.isnan(duckdb.sql(f"SELECT max(ratio) FROM '{file}'").fetchall()[0][0])


def test_the_query_engine_of_delta_rs_finds_the_rows_with_nan(tmp_path: Path) -> None:
    items = Batches(tmp_path / "t", FIELDS[:2], table_format="delta")
    records = [items.change("c", 10, n, after={"id": n, "ratio": value}) for n, value in enumerate(VALUES)]
    items.run(records, loading=False)
    assert ids_of(items.target / "public.items") == [[1], [1]]


def test_the_files_of_apply_changes_too(tmp_path: Path) -> None:
    table = KeyedTable(open_storage(str(tmp_path)), "items", ["ratio"])
    rows = pa.table({"id": [0, 1, 2], "ratio": pa.array(VALUES), "all": pa.array([[one] for one in VALUES])})
    table.create(rows, {}, "")
    assert ids_of(tmp_path / "items") == [[1], [1]]
    changed = pa.table({"id": [5], "ratio": [math.nan], "all": [[math.nan]]})
    table.replace(changed.select(["ratio"]), changed.cast(table.schema), {})
    assert sorted(table.rows_of(None)["id"].to_pylist()) == [0, 2, 5], "a key with NaN is found"
    assert sorted(DeltaTable(str(tmp_path / "items")).to_pyarrow_table()["id"].to_pylist()) == [0, 2, 5]


def ids_of(folder: Path) -> list[list[int]]:
    queries = QueryBuilder().register("t", DeltaTable(str(folder)))
    asked = ("ratio > 5", "ratio = 'nan'")
    return [
        pa.table(queries.execute(f"SELECT id FROM t WHERE {one}").read_all())["id"].to_pylist()
        for one in asked
    ]


def test_the_paths_are_those_of_parquet(tmp_path: Path) -> None:
    inner = pa.struct(
        [("f", pa.float32()), ("l", pa.list_(pa.struct([("i", pa.int32()), ("d", pa.float64())])))]
    )
    schema = pa.schema(
        [
            ("a.b", pa.int32()),
            ("m", pa.map_(pa.string(), inner)),
            ("large", pa.large_list(pa.large_string())),
            ("fixed", pa.list_(pa.int32(), 2)),
            ("s", inner),
            ("s.f", pa.int32()),  # Parquet's writer does not distinguish it from the field of s
            ("d", pa.decimal128(10, 2)),
        ]
    )
    pq.write_table(schema.empty_table(), tmp_path / "t")
    columns = pq.ParquetFile(tmp_path / "t").schema
    paths = [columns.column(number) for number in range(len(columns))]
    floating = {one.path for one in paths if one.physical_type in ("FLOAT", "DOUBLE")}
    assert paths_with_statistics(schema) == [one.path for one in paths if one.path not in floating]
