"""SQL views of a mirror: DuckDB, which knows nothing of the mirror, reads the rows that `read_mirror` returns."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from importlib import import_module
from itertools import count, product
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import cdcd.spark.reading.plain_query
from cdcd.errors import ConfigError, SparkReadError
from cdcd.spark.__main__ import main
from cdcd.spark.reading.mirror import Mirror, read_mirror
from cdcd.spark.reading.plain_views import plain_views, script_of
from cdcd.spark.reading.sql_dialects import DIALECTS, NoSuchView
from cdcd.spark.target.commit_log import read_latest
from cdcd.spark.target.shape import SPECIAL
from cdcd.spark.target.target_writer import TargetWriter
from cdcd.spark.target.versions import TABLE_FORMATS, Parked, ScdType, TableEntry, TableFormat
from cdcd.spark.testing import Database, Table
from tests.spark.batches import TOPIC, Batches
from tests.spark.events import column
from tests.spark.unit.test_arrow_fold import SCHEMAS, VERSIONS, History
from tests.spark.unit.test_open_tables import bag_change, few_rows_in_a_file, normalised
from tests.support.nightly import nightly, nightly_except

ID, BODY, SIZE = column("id", "int", required=True), column("body", "string"), column("size", "long")
Row = dict[str, Any]
EXTENSIONS: dict[TableFormat, list[str]] = {"parquet": [], "delta": ["delta"], "iceberg": ["avro", "iceberg"]}


@contextmanager
def duck(*extensions: str) -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield a connection with a database of its own. Only the extensions are those of earlier ones."""
    name = f"own{next(_NUMBERS)}"
    with _extended(*extensions).cursor() as connection:
        connection.execute(f"ATTACH ':memory:' AS {name}; USE {name}")
        try:
            yield connection
        finally:
            connection.execute(f"USE memory; DETACH {name}")


_NUMBERS = count()


@cache
def _extended(*extensions: str) -> duckdb.DuckDBPyConnection:
    """Return a DuckDB with extensions, which are installed as packages. It takes half a second to load one."""
    connection = duckdb.connect(":memory:", config={"threads": 1})
    for name in extensions:
        (folder,) = import_module(f"duckdb_extension_{name}").__path__
        (extension,) = Path(folder).rglob("*.duckdb_extension")
        connection.load_extension(str(extension))
    return connection


def shown(opened: Mirror, view: str = '"public_items"') -> list[Row]:
    """Make the views in a new DuckDB; return the rows of one."""
    return normalised(arrow(opened, view))


def arrow(opened: Mirror, view: str = '"public_items"') -> pa.Table:
    with duck(*EXTENSIONS[opened.version.table_format]) as connection:
        connection.execute("\n".join(script_of(opened, plain_views(opened), time.time())))
        return connection.execute(f"SELECT * FROM {view}").to_arrow_table()


def mirrored(opened: Mirror) -> list[Row]:
    return normalised(opened.table(TOPIC))


def assert_equal(opened: Mirror) -> None:
    found, rows = arrow(opened), opened.table(TOPIC)
    assert found.column_names == rows.column_names
    assert normalised(found) == normalised(rows)


@pytest.mark.parametrize(
    ("seed", "table_format"),
    nightly_except(product(range(6), TABLE_FORMATS), (0, "parquet"), (0, "delta"), (0, "iceberg")),
)
def test_a_view_has_the_rows_of_the_mirror(
    seed: int, table_format: TableFormat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With deletes, changes of keys, TRUNCATEs, values that were not sent, and columns that come, go and widen."""
    random.seed(seed)
    few_rows_in_a_file(monkeypatch)
    history = History(with_unchanged=False, ddl=random.choice([0, 0.1, 0.3]))
    items = Batches(tmp_path / "mirror", VERSIONS[1], table_format=table_format)
    items._schemas = dict(SCHEMAS)
    for _ in range(6):
        items.run(history.batch(random.choice([1, 5, 40])), loading=False)
        opened = read_mirror(items.target)
        assert_equal(opened)
        if random.random() < 0.3:
            with items.mirror() as mirror:
                mirror.compact()
    for number in random.sample(range(2, opened.version.number), 4):
        earlier = read_mirror(items.target, at=f"v{number}")
        if TOPIC in earlier.topics:
            assert_equal(earlier)


@pytest.mark.parametrize("seed", [0, nightly(1)])
def test_a_view_of_a_table_without_a_key_has_each_row_as_often_as_the_table(
    seed: int, tmp_path: Path
) -> None:
    random.seed(seed)
    items = Batches(tmp_path / "mirror", [ID, BODY], has_key=False)
    held: list[Row] = []
    names: tuple[str, ...] = ()
    for commit in range(1, 9):
        if commit == 4:
            held, names = [one | {"size": None} for one in held], ("size",)
            items.alter([ID, BODY, SIZE])
        changes = [bag_change(held, names, commit * 10, number) for number in range(random.choice([1, 8]))]
        items.run([items.change(*of, **rest) for of, rest in changes], loading=False)
        assert sorted(shown(read_mirror(items.target)), key=repr) == sorted(
            ({name: one[name] for name in ("id", "body", *names)} for one in held), key=repr
        )


LIKE_PARTITIONS = ["id=7", "size=text", "__key=x", "env=prod", "body=a/size=6"]


def test_names_and_paths_have_any_characters(tmp_path: Path) -> None:
    names = [
        'quote"',
        "apostrophe'",
        "back`tick",
        "semicolon;--",
        "line\nend",
        "Größe",
        "SELECT",
        "a.b",
        "{0}",
        "c1",
    ]
    fields = [ID, *(column(f"n{place}", "string", **{"pg.name": name}) for place, name in enumerate(names))]
    folder = tmp_path / "it's [a] *\"?{b}'%20\\n"
    folder.mkdir()
    items = Batches(folder / "mirror", fields)
    values = {f"n{place}": f"value {place}" for place in range(len(names))}
    items.run([items.change("r", 10, 1, after={"id": 1, **values})], loading=False)
    items.run([items.change("u", 20, 1, after={"id": 1, **values, "n0": "changed"})], loading=False)
    assert_equal(read_mirror(items.target))
    (row,) = shown(read_mirror(items.target))
    assert row == {
        "id": 1,
        **{name: f"value {place}" for place, name in enumerate(names)},
        'quote"': "changed",
    }


@pytest.mark.parametrize(
    ("folder", "table_format"),
    nightly_except(
        product(LIKE_PARTITIONS, TABLE_FORMATS),
        *product(LIKE_PARTITIONS, ["parquet"]),
        *product(LIKE_PARTITIONS[:1], ["delta", "iceberg"]),
    ),
)
def test_folders_that_look_like_partitions_are_no_columns(
    folder: str, table_format: TableFormat, tmp_path: Path
) -> None:
    (tmp_path / folder).mkdir(parents=True)
    items = Batches(tmp_path / folder / "mirror", [ID, BODY, SIZE], table_format=table_format)
    rows = [items.change("r", 10, number, after={"id": number, "body": "a", "size": 1}) for number in (1, 2)]
    items.run(rows, loading=False)
    items.run([items.change("u", 20, 1, after={"id": 1, "body": "changed", "size": 1})], loading=False)
    assert_equal(read_mirror(items.target))


def test_many_files_are_united_in_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine puts each UNION ALL inside the next one, so a long chain is slow, or too deep."""
    items = Batches(tmp_path / "mirror", [ID, BODY])
    for number in range(1, 12):
        items.run(
            [items.change("u", 10 * number, 1, after={"id": number % 5, "body": str(number)})], loading=False
        )
    opened = read_mirror(items.target)
    assert len(opened.version.tables[TOPIC].deltas) > 8
    monkeypatch.setattr(cdcd.spark.reading.plain_query, "UNITED", 2)
    monkeypatch.setattr(DIALECTS["spark"], "many_files", 8)
    assert_equal(opened)
    for dialect in DIALECTS:
        (view,) = plain_views(opened, dialect)
        assert view.statement is not None
        assert longest_union(view.statement) == 2
        assert ["is a relation of its own" in note for note in view.notes] == [True] * (dialect == "spark")


def longest_union(statement: str) -> int:
    """Return the most queries of one UNION ALL."""
    longest, counts = 1, [1]
    for word in re.findall(r"[()]|UNION ALL", statement):
        if word == "(":
            counts.append(1)
        elif word == ")":
            longest = max(longest, counts.pop())
        else:
            counts[-1] += 1
    return longest


def test_names_that_differ_in_case_only_are_said(tmp_path: Path) -> None:
    items = Batches(tmp_path / "mirror", [ID, column("name", "string"), column("NAME", "string")])
    items.run([items.change("r", 10, 1, after={"id": 1, "name": "lower", "NAME": "upper"})], loading=False)
    (view,) = plain_views(read_mirror(items.target))
    assert "case of their names" in view.notes[0]
    (row,) = arrow(read_mirror(items.target)).drop_columns([SPECIAL]).to_pylist()
    assert [*row.values()] == [1, "lower", "upper"]


def numbered(name: str, attnum: int, avro: Any = "string") -> dict[str, Any]:
    return column(name, avro, required=name == "id", **{"pg.attnum": attnum})


def test_a_view_follows_a_column_through_its_names(tmp_path: Path) -> None:
    """Two columns swap their names, one is dropped, one is widened; the files have the former names and types."""
    first = [
        numbered("id", 1, "int"),
        numbered("a", 2),
        numbered("b", 3),
        numbered("n", 4, "int"),
        numbered("w", 5, "int"),
    ]
    items = Batches(tmp_path / "mirror", first)
    empty = {"a": None, "b": None, "n": None, "w": None}
    special = {"after.a": "infinity", "after.b": "-infinity", "after.n": "NaN"}
    items.run(
        [items.change("r", 10, 1, after={"id": 1, "a": "second", "b": "third", "n": 7, "w": 8})],
        loading=False,
    )
    items.run([items.change("c", 20, 1, after={"id": 2, **empty}, special=special)], loading=False)
    items.run([items.change("c", 25, 1, after={"id": 3, **empty}, special={"after.n": "NaN"})], loading=False)
    items.alter([numbered("id", 1, "int"), numbered("b", 2), numbered("a", 3), numbered("w", 5, "long")])
    items.run(
        [items.change("c", 30, 1, after={"id": 4, "b": "second", "a": "third", "w": 2**40})], loading=False
    )
    items.alter([*items._table.fields, numbered("n", 6, "double")])
    items.run(
        [items.change("c", 40, 1, after={"id": 5, "b": "x", "a": "y", "w": None, "n": 0.5})], loading=False
    )
    opened = read_mirror(items.target)
    assert_equal(opened)
    assert arrow(opened).schema.field("w").type == pa.int64()
    rows = {row["id"]: row for row in shown(opened)}
    assert rows[1] == {"id": 1, "b": "second", "a": "third", "w": 8, "n": None}
    assert dict(rows[2][SPECIAL]) == {"b": "infinity", "a": "-infinity"}
    assert SPECIAL not in rows[3], "the column of its text is dropped"


def place(*names: str) -> dict[str, Any]:
    fields = [{"name": name, "type": ["null", "string"], "default": None} for name in names]
    return {"type": "record", "name": "Place", "fields": fields}


EVERY_TYPE: dict[str, tuple[Any, Any]] = {
    "flag": ("boolean", True),
    "small": ("int", -5),
    "large": ("long", 2**62),
    "single": ("float", 0.25),
    "ratio": ("double", 0.5),
    "data": ("bytes", b"\0\xff"),
    "day": ({"type": "int", "logicalType": "date"}, 20_000),
    "clock": ({"type": "long", "logicalType": "time-micros"}, 3_600_000_001),
    "moment": ({"type": "long", "logicalType": "timestamp-micros"}, 1_700_000_000_123_457),
    "naive": ({"type": "long", "logicalType": "local-timestamp-micros"}, 1_700_000_000_123_457),
    "price": (
        {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 10},
        (2**90).to_bytes(16, "big"),
    ),
    "words": ({"type": "array", "items": ["null", "string"]}, ["a", None]),
    "clocks": ({"type": "array", "items": {"type": "long", "logicalType": "time-micros"}}, [1]),
    "tags": ({"type": "map", "values": ["null", "string"]}, {"k": "v"}),
    "place": (place("street"), {"street": "x"}),
}


@pytest.mark.parametrize("table_format", TABLE_FORMATS)
def test_a_view_has_values_of_every_type_and_null_where_a_file_lacks_the_column(
    table_format: TableFormat, tmp_path: Path
) -> None:
    items = Batches(tmp_path / "mirror", [ID], table_format=table_format)
    items.run([items.change("r", 10, 1, after={"id": 1})], loading=False)
    items.alter([ID, *(column(name, avro) for name, (avro, _) in EVERY_TYPE.items())])
    values = {name: value for name, (_, value) in EVERY_TYPE.items()}
    items.run([items.change("c", 20, 1, after={"id": 2, **values})], loading=False)
    opened = read_mirror(items.target)
    found = arrow(opened)
    rows = opened.table(TOPIC)
    if table_format != "parquet":  # a time of day is in microseconds
        rows = rows.set_column(rows.column_names.index("clock"), "clock", rows["clock"].cast(pa.int64()))
        of_clocks = rows["clocks"].cast(pa.list_(pa.int64()))
        rows = rows.set_column(rows.column_names.index("clocks"), "clocks", of_clocks)
    assert normalised(found) == normalised(rows)
    assert [
        str(one.type).replace("Etc/", "") for one in found.schema if one.name in ("moment", "price", "large")
    ] == [
        "int64",
        "timestamp[us, tz=UTC]",
        "decimal128(38, 10)",
    ]


def test_the_fields_of_a_composite_are_followed_by_their_names(tmp_path: Path) -> None:
    """Spark's CAST goes by their places, so there is no view in its dialect."""
    items = Batches(tmp_path / "mirror", [ID, column("place", place("street", "town"))])
    items.run(
        [items.change("r", 10, 1, after={"id": 1, "place": {"street": "s", "town": "t"}})], loading=False
    )
    items.alter([ID, column("place", place("town", "zip"))])
    items.run([items.change("c", 20, 1, after={"id": 2, "place": {"town": "u", "zip": "z"}})], loading=False)
    assert shown(read_mirror(items.target)) == [
        {"id": 1, "place": {"town": "t", "zip": None}},
        {"id": 2, "place": {"town": "u", "zip": "z"}},
    ]
    (view,) = plain_views(read_mirror(items.target), "spark")
    assert view.statement is None
    assert "fields of a composite column" in view.notes[0]


# --- what is not there, and until when -------------------------------------------------------------------------


def test_incomplete_rows_are_in_no_view_and_loading_tables_are_marked(tmp_path: Path) -> None:
    items = Batches(tmp_path / "mirror", [ID, BODY, SIZE])
    complete = items.change("r", 10, 1, after={"id": 1, "body": "a", "size": 1})
    partial = items.change("u", 11, 1, after={"id": 2, "body": None, "size": 2}, unchanged=["body"])
    items.run([complete, partial], loading=True)
    assert items.incomplete_rows() == 1
    opened = read_mirror(items.target)
    assert [row["id"] for row in shown(opened)] == [1]
    (view,) = plain_views(opened)
    assert view.notes == ("LOADING: cdcd still copies the table, so rows are missing",)
    assert "-- public.items: LOADING: " in "\n".join(script_of(opened, [view], 0.0))


def parked(items: Batches, parked: Parked) -> Mirror:
    """Publish a version in which the table is parked, and one without any column; return it."""
    version = read_latest(items.target)
    assert version is not None
    tables = {
        TOPIC: replace(version.tables[TOPIC], parked=parked),
        "shop.public.other": TableEntry("shop.public.other"),
    }
    TargetWriter(items.target, version).publish(replace(version, tables=tables))
    return read_mirror(items.target)


def test_a_parked_table_has_a_view_of_its_rows_whose_comment_has_the_reason(tmp_path: Path) -> None:
    """A name in the reason does not end the comment."""
    items = Batches(tmp_path / "mirror", [ID, BODY])
    items.run([items.change("r", 10, 1, after={"id": 1, "body": "a"})], loading=False)
    opened = parked(items, Parked("CDCD-GAP", 'a gap\nDROP VIEW "public_items";', 100, 0.0))
    assert shown(opened) == [{"id": 1, "body": "a"}]
    of_items, of_other = plain_views(opened)
    assert of_items.notes[0].startswith(
        "PARKED: the table is as of the LSN 0/64, and not updated any more: a gap"
    )
    assert of_other.statement is None
    text = "\n".join(script_of(opened, [of_items, of_other], 0.0))
    assert all(line.startswith("--") for line in text.splitlines() if "DROP" in line or "other" in line)
    assert (
        "not as of a single commit"
        in plain_views(parked(items, Parked("CDCD-GAP", "a gap", 0, 0.0)))[0].notes[0]
    )


@pytest.mark.parametrize("table_format", TABLE_FORMATS)
def test_a_table_without_rows_has_a_view_with_its_columns(table_format: TableFormat, tmp_path: Path) -> None:
    items = Batches(tmp_path / "mirror", [ID, BODY, SIZE], table_format=table_format)
    items.run([items.change("r", 10, 1, after={"id": 1, "body": "a", "size": 1})], loading=False)
    items.run([items.change("t", 20, 1)], loading=False)
    found = arrow(read_mirror(items.target))
    assert (found.column_names, found.num_rows) == (["id", "body", "size", SPECIAL], 0)
    assert found.schema.field("size").type == pa.int64()


def test_the_script_says_until_when_it_can_be_read(tmp_path: Path) -> None:
    items = Batches(tmp_path / "mirror", [ID, BODY])
    items.retain_s = 3600.0
    items.run([items.change("r", 10, 1, after={"id": 1, "body": "a"})], loading=False)
    opened = read_mirror(items.target)
    assert "until 2033-05-18T04:33:20+00:00" in "\n".join(script_of(opened, [], 2_000_000_000.0))
    items.run([items.change("c", 20, 1, after={"id": 2, "body": "b"})], loading=False)
    after = read_mirror(items.target, at=f"v{opened.version.number + 1}")
    text = "\n".join(script_of(opened, [], 2_000_000_000.0))
    assert (
        time.strftime("until %Y-%m-%dT%H:%M:%S+00:00", time.gmtime(int(after.version.published_s + 3600)))
        in text
    )


def test_the_view_of_an_earlier_version_is_read_until_its_files_are_removed(tmp_path: Path) -> None:
    items = Batches(tmp_path / "mirror", [ID, BODY])
    items.run([items.change("r", 10, 1, after={"id": 1, "body": "a"})], loading=False)
    before = read_mirror(items.target)
    with duck() as connection:
        connection.execute("\n".join(script_of(before, plain_views(before), time.time())))
        items.run(
            [items.change("t", 20, 1), items.change("c", 20, 2, after={"id": 2, "body": "b"})], loading=False
        )
        assert connection.execute("SELECT id FROM public_items").fetchall() == [(1,)]
        items.retain_s = -1.0
        items.run([items.change("c", 30, 1, after={"id": 3, "body": "c"})], loading=False)
        with pytest.raises(duckdb.IOException, match="No files found"):
            connection.execute("SELECT id FROM public_items").fetchall()


# --- the command -----------------------------------------------------------------------------------------------


def test_the_command_prints_what_duckdb_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    items = Batches(tmp_path / "mirror", [ID, BODY])
    items.run([items.change("r", 10, 1, after={"id": 1, "body": "a"})], loading=False)
    number = read_mirror(items.target).version.number
    items.run([items.change("u", 20, 1, after={"id": 1, "body": "b"})], loading=False)
    target = ["views", "--target", str(items.target)]
    for words, body in (([], "b"), (["--at", f"v{number}", "--table", "public.*"], "a")):
        assert main([*target, *words, "--view-prefix", "shop "]) == 0
        with duck() as connection:
            connection.execute(capsys.readouterr().out)
            assert connection.execute('SELECT body FROM "shop public_items"').fetchall() == [(body,)]
    assert main([*target, "--table", "public.others"]) == 2
    assert main([*target, "--at", "v99"]) == 2
    assert main(["views", "--target", str(tmp_path / "none")]) == 2
    assert capsys.readouterr().out == ""


def test_a_table_with_a_damaged_file_has_no_view_and_the_others_have_theirs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    items, others = (Table(f"public.{name}", {"id": "bigint"}, ["id"]) for name in ("items", "others"))
    shop = Database(items, others)
    shop.commit(items.insert(id=1), others.insert(id=7))
    opened = shop.mirror(tmp_path / "mirror", stored_as_scd_type=2)
    entry = opened.version.tables[items.topic]
    for file in (*entry.files, *entry.deltas, *entry.history):
        path = tmp_path / "mirror" / file.path
        path.write_bytes(path.read_bytes()[:-20])
    assert main(["views", "--target", str(tmp_path / "mirror")]) == 0
    script = capsys.readouterr().out
    assert (
        "-- public.items: no view: CDCD-MIRROR-INCONSISTENT: a file of the table cannot be decoded" in script
    )
    assert "-- public.items: no view of the history: CDCD-MIRROR-INCONSISTENT" in script
    with duck() as connection:
        connection.execute(script)
        assert connection.execute("SELECT id FROM public_others").fetchall() == [(7,)]


def test_two_tables_of_one_view_and_an_unknown_dialect_are_errors(tmp_path: Path) -> None:
    items = Batches(tmp_path / "mirror", [ID, BODY])
    items.run([items.change("r", 10, 1, after={"id": 1, "body": "a"})], loading=False)
    with pytest.raises(ConfigError, match="use duckdb or spark"):
        plain_views(read_mirror(items.target), "oracle")
    version = read_latest(items.target)
    assert version is not None
    other = "shop.public.ITEMS"
    tables = {**version.tables, other: replace(version.tables[TOPIC], topic=other)}
    TargetWriter(items.target, version).publish(replace(version, tables=tables))
    with pytest.raises(SparkReadError, match="same view"):
        plain_views(read_mirror(items.target))
    assert len(plain_views(read_mirror(items.target), tables=["public.ITEMS"])) == 1


@pytest.mark.parametrize(
    ("dialect", "path", "expected"),
    [
        (
            "duckdb",
            "abfss://box@account.dfs.core.windows.net/a/b",
            "abfss://account.dfs.core.windows.net/box/a/b",
        ),
        ("duckdb", "s3://bucket/a", "s3://bucket/a"),
        ("duckdb", "s3://bucket/a[1]*?]", "'s3://bucket/a[[]1][*][?]]'"),
        ("spark", "s3://bucket/a", "s3a://bucket/a"),
        ("spark", "abfss://box@account.dfs.core.windows.net/a", "abfss://box@account.dfs.core.windows.net/a"),
    ],
)
def test_a_bucket_has_the_name_that_the_engine_knows(dialect: str, path: str, expected: str) -> None:
    (relation,) = DIALECTS[dialect].files([path])
    assert expected in relation


def test_duckdb_has_no_view_of_a_bucket_whose_path_it_would_decode() -> None:
    """It takes `%25` for `%`."""
    with pytest.raises(NoSuchView, match="has a %"):
        DIALECTS["duckdb"].files(["s3://bucket/100%25"])
    assert DIALECTS["duckdb"].files(["/data/100%25"])


def test_duckdb_has_no_view_of_hdfs() -> None:
    with pytest.raises(NoSuchView, match="does not read HDFS"):
        DIALECTS["duckdb"].files(["hdfs://namenode:8020/lake/a"])
    assert "hdfs://namenode:8020/lake/a" in DIALECTS["spark"].files(["hdfs://namenode:8020/lake/a"])[0]


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_spark_has_no_statements_for_tables_in_an_open_format(
    tmp_path: Path, table_format: TableFormat
) -> None:
    items = Batches(tmp_path / "mirror", [ID, BODY], table_format=table_format)
    items.run([items.change("r", 10, 1, after={"id": 1, "body": "a"})], loading=False)
    with pytest.raises(ConfigError, match=f"have the format {table_format}"):
        plain_views(read_mirror(items.target), "spark")


@pytest.mark.parametrize("scd_type", [1, 2])
@pytest.mark.parametrize(
    ("name", "column_name"), [("public.items", "${env:HOME}"), ("public.${env:HOME}", "body")]
)
def test_spark_has_no_statement_with_a_name_that_it_would_replace(
    tmp_path: Path, name: str, column_name: str, scd_type: ScdType
) -> None:
    """`${env:HOME}` is replaced in quotes, too, and a script cannot set the session's option."""
    table = Table(name, {"id": "bigint", column_name: "text"}, key=["id"])
    shop = Database(table)
    shop.commit(table.insert(id=1))
    opened = shop.mirror(tmp_path, stored_as_scd_type=scd_type)
    found = plain_views(opened, "spark")
    assert len(found) == scd_type
    for one in found:
        assert one.statement is None
        assert "which Spark replaces" in one.notes[-1]
    assert all(one.statement for one in plain_views(opened, "duckdb"))


def test_no_command_prints_a_character_that_a_terminal_interprets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = Table("public.items", {"id": "bigint", "a\x1b[2J\u202e": "text"}, key=["id"])
    items = Table("public.others", {"id": "bigint"}, key=["id"])
    shop = Database(odd, items)
    shop.commit(odd.insert(id=1), items.insert(id=1))
    opened = shop.mirror(tmp_path)
    entry = opened.version.tables[odd.topic]
    parked = Parked("CDCD-X", "a\x1b[31m\nPOSITION forged", 0, 0.0, None)
    writer = TargetWriter(opened.target, opened.version)
    writer.publish(
        replace(opened.version, tables={**opened.version.tables, odd.topic: replace(entry, parked=parked)})
    )
    for command in ("status", "views"):
        main([command, "--target", str(tmp_path)])
        printed = capsys.readouterr().out
        assert not set(printed) & {"\x1b", "\u202e"}
        assert not any(line.startswith("POSITION") for line in printed.splitlines())
    assert 'VIEW "public_others"' in printed
    assert "a name has a character that a terminal interprets" in printed
