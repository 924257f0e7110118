"""`apply_changes` with a real Spark: batches, streams, restarts, cdcd's own changes; delta-rs reads the results."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from deltalake import DeltaTable
from pyspark import pipelines
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.types import StructField, StructType
from pyspark.testing.objects import ExamplePoint, ExamplePointUDT

from cdcd.demo.stack.s3 import S3Server
from cdcd.errors import ChangesInvalid, ConfigError, StorageConflict
from cdcd.spark import apply_changes, auto_cdc, decode, row_changes
from cdcd.spark.applying.changed_table import ChangedTable
from cdcd.spark.data_source import register
from cdcd.spark.session import reason_of, run_to_end
from cdcd.spark.testing import Change, Database, Table
from tests.spark.events import column
from tests.spark.topics import TopicsWriter
from tests.support.pages import ROOT, python_blocks

DDL = "id bigint, name string, amount int, op string, at timestamp, number int"
Row = dict[str, Any]
DEADLINE_S = 280


def day(number: int) -> str:
    return f"2026-01-{number:02} 00:00:00"


def frame(spark: SparkSession, *rows: tuple[Any, ...]) -> DataFrame:
    """Return changes: id, name, amount, op, and the day and number of the order."""
    typed = spark.createDataFrame(
        list(rows), "id bigint, name string, amount int, op string, day int, number int"
    )
    at = F.make_timestamp(F.lit(2026), F.lit(1), F.col("day"), F.lit(0), F.lit(0), F.lit(0))
    return typed.select("id", "name", "amount", "op", at.alias("at"), "number")


def rows_of(target: Path) -> list[Row]:
    return sorted(DeltaTable(str(target)).to_pyarrow_table().to_pylist(), key=repr)


@pytest.fixture
def order(spark: SparkSession) -> dict[str, Any]:
    """The parameters of all tests; a Column needs a session."""
    return {
        "keys": ["id"],
        "sequence_by": F.struct("at", "number"),
        "apply_as_deletes": "op = 'd'",
        "column_list": ["id", "name", "amount"],
    }


def test_each_key_has_its_last_change(spark: SparkSession, tmp_path: Path, order: dict[str, Any]) -> None:
    first = frame(
        spark,
        (1, "a", 1, "c", 1, 1),
        (2, "b", 2, "c", 1, 2),
        (1, "c", 3, "u", 2, 1),
        (2, None, None, "d", 2, 2),
    )
    assert apply_changes(first, tmp_path, **order) is None
    assert rows_of(tmp_path) == [{"id": 1, "name": "c", "amount": 3}]
    late = frame(spark, (2, "late", 9, "u", 1, 9), (1, "late", 9, "u", 2, 0), (3, "new", 1, "c", 1, 1))
    apply_changes(late, tmp_path, **order)
    assert rows_of(tmp_path) == [{"id": 1, "name": "c", "amount": 3}, {"id": 3, "name": "new", "amount": 1}]
    apply_changes(first, tmp_path, **order)
    assert DeltaTable(str(tmp_path)).version() == 1, "a repeated batch is no version"


def test_a_history_has_tracked_columns_only(
    spark: SparkSession, tmp_path: Path, order: dict[str, Any]
) -> None:
    history = order | {
        "sequence_by": "number",
        "stored_as_scd_type": "2",
        "track_history_except_column_list": [F.col("amount")],
    }
    apply_changes(frame(spark, (1, "a", 1, "c", 1, 10), (1, "c", 1, "u", 1, 30)), tmp_path, **history)
    apply_changes(frame(spark, (1, "a", 5, "u", 1, 20), (1, None, None, "d", 1, 40)), tmp_path, **history)
    assert rows_of(tmp_path) == [
        {"id": 1, "name": "a", "amount": 5, "__start_at": 10, "__end_at": 30},
        {"id": 1, "name": "c", "amount": 1, "__start_at": 30, "__end_at": 40},
    ]


def test_nulls_and_conditions(spark: SparkSession, tmp_path: Path, order: dict[str, Any]) -> None:
    rows = [
        (1, "a", 1, "c", 1, 1),
        (1, None, 2, "u", 1, 2),
        (2, "noise", 0, "x", 1, 3),
        (None, None, None, "x", 1, 4),
    ]
    apply_changes(
        frame(spark, *rows), tmp_path / "t", **order, where="op <> 'x'", ignore_null_updates=["name"]
    )
    assert rows_of(tmp_path / "t") == [{"id": 1, "name": "a", "amount": 2}]
    more = frame(spark, (None, None, None, "t", 2, 1), (3, "after", 1, "c", 2, 2))
    apply_changes(
        more, tmp_path / "t", **order, ignore_null_updates=["name"], apply_as_truncates=F.col("op") == "t"
    )
    assert rows_of(tmp_path / "t") == [{"id": 3, "name": "after", "amount": 1}]
    with pytest.raises(ChangesInvalid, match="no value in a column of the key"):
        apply_changes(frame(spark, *rows), tmp_path / "t", **order, ignore_null_updates=["name"])


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"keys": []}, "needs keys"),
        ({"keys": "id"}, "keys has to be a list"),
        ({"keys": ["nr"]}, "keys names a column that the frame does not have"),
        ({"except_column_list": ["op"]}, "column_list and except_column_list exclude each other"),
        ({"column_list": ["names"]}, "column_list names a column"),
        ({"stored_as_scd_type": 3}, "unknown value"),
        ({"stored_as_scd_type": 2, "apply_as_truncates": "op = 't'"}, "for type 1 only"),
        ({"track_history_column_list": ["name"]}, "for type 2 only"),
        (
            {
                "stored_as_scd_type": 2,
                "track_history_column_list": ["name"],
                "track_history_except_column_list": ["name"],
            },
            "exclude each other",
        ),
        (
            {"stored_as_scd_type": 2, "track_history_column_list": ["name", "op"]},
            "columns that the table does not have.*columns=op",
        ),
        ({"unchanged_column": "op"}, "unchanged_column has to be an array of texts.*type=string"),
        ({"sequence_by": "struct(op COLLATE UTF8_LCASE)"}, "does not have the collation.*column=sequence_by"),
        ({"checkpoint": "/nowhere"}, "are for streams"),
        ({"target_options": {"region": "x"}}, "a local target has no options"),
    ],
)
def test_parameters_that_do_not_fit_are_an_error_before_anything_is_written(
    spark: SparkSession, tmp_path: Path, order: dict[str, Any], given: dict[str, Any], expected: str
) -> None:
    with pytest.raises(Exception, match=expected):
        apply_changes(frame(spark, (1, "a", 1, "c", 1, 1)), tmp_path / "t", **order | given)
    assert not (tmp_path / "t").exists()


def test_reserved_names_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    for name in ("__start_at", "__OP"):
        with pytest.raises(ConfigError, match=name):
            apply_changes(spark.range(1).withColumn(name, F.lit(1)), tmp_path, ["id"], "id")


def test_a_key_with_another_collation_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    changes = spark.sql("SELECT 'A' COLLATE UTF8_LCASE AS id, 1 AS seq")
    for keys in (changes, changes.select(F.struct("id").alias("id"), "seq")):
        with pytest.raises(ConfigError, match=r"does not have the collation.*column=id"):
            apply_changes(keys, tmp_path / "t", ["id"], "seq")


@pytest.mark.parametrize("form", ["{}", "named_struct('a', {})", "array({})", "map('a', {})"])
@pytest.mark.parametrize(
    "value", ["parse_json('1')", "st_geomfromwkb(X'0101000000000000000000F03F0000000000000040')"]
)
def test_a_type_that_arrow_does_not_know_is_refused(
    spark: SparkSession, tmp_path: Path, form: str, value: str
) -> None:
    """It would be a struct of bytes in the table, without an error."""
    if value.startswith("st_") and spark.version < "4.3":
        pytest.skip("Spark has no geometries by default")
    rows = spark.range(1).select("id", F.expr(form.format(value)).alias("v"), F.lit(1).alias("seq"))
    with pytest.raises(ConfigError, match=r"a column has a type that .*column=v.*CAST"):
        apply_changes(rows, tmp_path / "t", keys=["id"], sequence_by="seq")
    assert not (tmp_path / "t").exists()
    apply_changes(rows, tmp_path / "t", keys=["id"], sequence_by="seq", except_column_list=["v"])
    assert rows_of(tmp_path / "t") == [{"id": 0, "seq": 1}]


def test_a_type_of_the_user_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    row = (1, ExamplePoint(1.0, 2.0), 1)
    schema = StructType([*_typed("id long"), StructField("v", ExamplePointUDT()), *_typed("seq int")])
    with pytest.raises(ConfigError, match=r"a column has a type that .*column=v"):
        apply_changes(spark.createDataFrame([row], schema), tmp_path, keys=["id"], sequence_by="seq")


def _typed(ddl: str) -> StructType:
    return StructType.fromDDL(ddl)


def test_the_names_of_unchanged_columns_are_no_column_and_have_to_be_right(
    spark: SparkSession, tmp_path: Path
) -> None:
    changes = spark.sql("SELECT 1 AS id, 2 AS seq, 'a' AS v, array('v') AS lacks")
    for given in ("lacks", F.col("lacks"), changes["lacks"]):
        target = tmp_path / str(given)
        apply_changes(changes, target, ["id"], "seq", unchanged_column=given)
        assert rows_of(target) == [{"id": 1, "seq": 2, "v": None}]
    apply_changes(changes, tmp_path / "null", ["id"], "seq", unchanged_column="array(null, 'v')")
    assert rows_of(tmp_path / "null")[0]["v"] is None
    # A column that the table does not have is one of the frame.
    apply_changes(changes, tmp_path / "t", ["id"], "seq", unchanged_column="lacks", column_list=["seq"])
    for name in ("V", "nowhere"):
        with pytest.raises(ChangesInvalid, match="not a column of the frame") as caught:
            apply_changes(changes, tmp_path / "t", ["id"], "seq", unchanged_column=f"array('{name}')")
        assert name not in str(caught.value).split()


@pytest.mark.nightly
@pytest.mark.timeout(1200)  # the S3 server is built at its first use on a host
def test_a_table_in_a_bucket(spark: SparkSession, s3: S3Server, bucket: str, order: dict[str, Any]) -> None:
    options = s3.options()
    secret = Path(options["secret_access_key"].removeprefix("file:")).read_text()
    target, given = f"{bucket}/lake/customers", order | {"target_options": options}
    apply_changes(frame(spark, (1, "a", 1, "c", 1, 1), (2, "b", 1, "c", 1, 2)), target, **given)
    apply_changes(frame(spark, (1, "c", 2, "u", 2, 1), (2, None, None, "d", 2, 2)), target, **given)
    apply_changes(frame(spark, (2, "late", 2, "u", 1, 9)), target, **given)
    read = DeltaTable(target, storage_options=options | {"secret_access_key": secret})
    assert read.to_pyarrow_table().to_pylist() == [{"id": 1, "name": "c", "amount": 2}]


# --- streams ---------------------------------------------------------------------------------------------------


class Input:
    """A folder of files, each of which is a batch of a stream."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder, self.files = spark, folder, 0
        folder.mkdir()

    def add(self, *rows: tuple[Any, ...]) -> None:
        """Add a file of changes."""
        path = self.folder / f"{self.files:04}.parquet"
        self.files += 1
        table = frame(self.spark, *rows).toArrow()
        pq.write_table(table, path)

    def stream(self) -> DataFrame:
        return self.spark.readStream.schema(DDL).option("maxFilesPerTrigger", 1).parquet(str(self.folder))


@pytest.fixture
def changes(spark: SparkSession, tmp_path: Path) -> Input:
    return Input(spark, tmp_path / "input")


@pytest.fixture
def run(tmp_path: Path, changes: Input, order: dict[str, Any]) -> Callable[..., Exception | None]:
    """Return what runs a stream over the files that are there to its end."""

    def to_end(target: Path, **given: Any) -> Exception | None:
        options = {"checkpoint": str(tmp_path / "checkpoint"), "trigger": {"availableNow": True}} | given

        def start() -> Any:
            return apply_changes(changes.stream(), target, **order | options)

        return run_to_end(start)

    return to_end


def test_a_stream_goes_on_after_a_restart_and_repeats_nothing(
    changes: Input, run: Callable[..., Exception | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first query ends after the commit of a batch, before Spark's checkpoint has it."""
    target = tmp_path / "table"
    changes.add((1, "a", 1, "c", 1, 1), (2, "b", 2, "c", 1, 2))
    assert run(target) is None
    changes.add((1, "c", 3, "u", 2, 1))
    whole = ChangedTable.apply

    def lost(self: ChangedTable, *given: Any) -> bool:
        whole(self, *given)
        raise OSError("the driver is lost")

    with monkeypatch.context() as broken:
        broken.setattr(ChangedTable, "apply", lost)
        assert "the driver is lost" in str(run(target))
    applied: list[bool] = []
    monkeypatch.setattr(ChangedTable, "apply", lambda *given: applied.append(whole(*given)))
    changes.add((2, None, None, "d", 3, 1))
    assert run(target) is None
    assert applied == [False, True], "the lost batch is repeated, and the table has it"
    assert rows_of(target) == [{"id": 1, "name": "c", "amount": 3}]
    assert DeltaTable(str(target)).version() == 2


def test_a_checkpoint_that_is_older_than_the_table_loses_nothing(
    changes: Input, run: Callable[..., Exception | None], tmp_path: Path
) -> None:
    """The number of the lost batch is given to a batch with further changes."""
    target, checkpoint = tmp_path / "table", tmp_path / "checkpoint"
    changes.add((1, "a", 1, "c", 1, 1))
    assert run(target) is None
    shutil.copytree(checkpoint, tmp_path / "older")
    changes.add((2, "b", 2, "c", 1, 2))
    assert run(target) is None
    shutil.rmtree(checkpoint)
    shutil.move(tmp_path / "older", checkpoint)
    last = max(changes.folder.iterdir())
    table = pa.concat_tables([pq.read_table(last), frame(changes.spark, (3, "c", 3, "c", 2, 1)).toArrow()])
    pq.write_table(table, last)
    assert run(target) is None
    assert [one["id"] for one in rows_of(target)] == [1, 2, 3]
    shutil.rmtree(target)
    changes.add((4, "d", 4, "c", 3, 1))
    failure = run(target)
    assert failure is not None
    assert "does not have the earlier batches of this query" in reason_of(failure)
    assert not target.exists()


def test_a_second_writer_ends_the_stream(
    changes: Input,
    run: Callable[..., Exception | None],
    tmp_path: Path,
    spark: SparkSession,
    order: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = tmp_path / "table"
    changes.add((1, "a", 1, "c", 1, 1))
    assert run(target) is None
    changes.add((1, "loser", 3, "u", 3, 1))
    other = frame(spark, (1, "winner", 3, "u", 2, 1))
    whole = ChangedTable._commit

    def after_another(self: ChangedTable, *given: Any, **options: Any) -> None:
        monkeypatch.setattr(ChangedTable, "_commit", whole)
        apply_changes(other, target, **order)
        whole(self, *given, **options)

    monkeypatch.setattr(ChangedTable, "_commit", after_another)
    failure = run(target)
    assert failure is not None
    assert StorageConflict.code in reason_of(failure)
    assert rows_of(target) == [{"id": 1, "name": "winner", "amount": 3}]
    assert run(target) is None
    assert rows_of(target) == [{"id": 1, "name": "loser", "amount": 3}], (
        "its restart applies the later change"
    )


def test_a_stream_needs_a_checkpoint(changes: Input, tmp_path: Path, order: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="a stream needs a checkpoint"):
        apply_changes(changes.stream(), tmp_path / "table", **order)


# --- cdcd's own changes ------------------------------------------------------------------------------------------


ORDERS = {"id": "bigint", "total": "numeric(10,2)", "note": "text"}


@pytest.mark.parametrize("scd_type", [1, 2])
def test_the_changes_of_a_table_are_its_rows(spark: SparkSession, tmp_path: Path, scd_type: int) -> None:
    """Equal to the mirror of the same records, which has code of its own."""
    orders = Table("public.orders", ORDERS, key=["id"])
    shop = Database(orders)
    shop.commit(orders.insert(id=1, total=Decimal("9.50"), note="long"), orders.insert(id=2))
    if scd_type == 1:
        shop.commit(orders.truncate())
        shop.commit(orders.insert(id=1, total=Decimal("9.50"), note="long"))
    shop.commit(orders.update(id=1, total=Decimal("7.00"), unchanged=["note"]), orders.insert(id=3, note="c"))
    shop.commit(orders.delete(id=3), orders.insert(id=4, note="d"))
    changes = decode(shop.frame(spark), topic=orders.topic, connection=shop.connection)
    more = {"apply_as_truncates": "__change.op = 't'"} if scd_type == 1 else {}
    rows = row_changes(changes, unchanged="column", truncates="row" if scd_type == 1 else "error")
    arguments = auto_cdc(changes) | more | {"unchanged_column": "__change.unchanged"}
    apply_changes(rows, tmp_path / "t", **arguments, stored_as_scd_type=scd_type)  # type: ignore[arg-type]
    mirrored = shop.mirror(tmp_path / "mirror").table(orders.topic).drop_columns(["__special"]).to_pylist()
    found = rows_of(tmp_path / "t")
    if scd_type == 2:
        assert [(one["id"], one["total"], one["note"]) for one in found if one["id"] == 1] == [
            (1, Decimal("7.00"), "long"),
            (1, Decimal("9.50"), "long"),
        ]
        assert found[0]["__start_at"] == {"timeline": 1, "commit_lsn": 200, "tx_seq": 1}
        found = [{name: one[name] for name in ORDERS} for one in found if one["__end_at"] is None]
    assert sorted(found, key=repr) == sorted(mirrored, key=repr)


def test_an_update_of_a_key_that_lacks_values_ends_the_query(spark: SparkSession, tmp_path: Path) -> None:
    """They are of the former key. A column that the frame does not have is no reason."""
    orders = Table("public.orders", ORDERS, key=["id"])
    shop = Database(orders)
    shop.commit(orders.insert(id=1, total=Decimal("9.50"), note="long"))
    moved = Change(orders, "c", after={"id": 2, "total": Decimal("9.50"), "note": None}, unchanged=("note",))
    shop.commit(orders.delete(id=1), moved)

    def apply(target: Path, **columns: Any) -> None:
        changes = decode(shop.frame(spark), topic=orders.topic, connection=shop.connection, **columns)
        arguments = auto_cdc(changes) | {"unchanged_column": "__change.unchanged"}
        apply_changes(row_changes(changes, unchanged="column"), target, **arguments)  # type: ignore[arg-type]

    with pytest.raises(Exception, match=r"CDCD-CHANGES-INVALID: an update of a key lacks TOASTed values"):
        apply(tmp_path / "whole")
    assert not (tmp_path / "whole").exists()
    apply(tmp_path / "some", columns=["id", "total"])
    assert rows_of(tmp_path / "some") == [{"id": 2, "total": Decimal("9.50")}]


def test_rows_and_columns_of_your_own(spark: SparkSession, tmp_path: Path) -> None:
    """As the page has them: rows that leave a condition, deletes, and a column of a value that was not sent."""
    page = (ROOT / "docs/spark/apply-changes.md").read_text()
    deletes = "__change.op = 'd' OR NOT coalesce(total > 15, false)"
    unchanged = re.search(r'unchanged_column="(concat.*)"', page)
    assert deletes in page
    assert unchanged is not None
    orders = Table("public.orders", ORDERS, key=["id"])
    shop = Database(orders)
    shop.commit(*(orders.insert(id=number, total=Decimal(20 + number), note="long") for number in (1, 2, 3)))
    shop.commit(orders.delete(id=2), orders.update(id=1, total=Decimal("21"), unchanged=["note"]))
    shop.commit(orders.update(id=3, total=Decimal("9"), unchanged=["note"]))
    changes = decode(shop.frame(spark), topic=orders.topic, connection=shop.connection)
    rows = row_changes(changes, unchanged="column").selectExpr("*", "upper(note) AS loud")
    arguments = auto_cdc(changes) | {"unchanged_column": unchanged[1], "apply_as_deletes": deletes}
    apply_changes(rows, tmp_path / "t", **arguments)  # type: ignore[arg-type]
    assert rows_of(tmp_path / "t") == [{"id": 1, "total": Decimal("21.00"), "note": "long", "loud": "LONG"}]


def test_what_a_frame_of_rows_cannot_say_ends_the_query(spark: SparkSession) -> None:
    orders, lines = Table("public.orders", ORDERS, key=["id"]), Table("public.lines", {"id": "int"})
    shop = Database(orders, lines)
    shop.commit(orders.update(id=1, unchanged=["note"]), orders.truncate(), lines.insert(id=1))
    changes = decode(shop.frame(spark), topic=orders.topic, connection=shop.connection)
    with pytest.raises(Exception, match=r"CDCD-SPARK-READ: an update lacks TOASTed values"):
        row_changes(changes, truncates="row").select("id").collect()
    copied = changes.where("op = 'u'").withColumn("op", F.lit("r"))
    with pytest.raises(
        Exception, match=r"CDCD-SPARK-READ: a copied row lacks columns .*copy the table with them"
    ):
        row_changes(copied).select("id").collect()
    with pytest.raises(Exception, match=r"CDCD-SPARK-READ: the table was truncated"):
        row_changes(changes, unchanged="column").select("id").collect()
    without = decode(shop.frame(spark), topic=lines.topic, connection=shop.connection)
    with pytest.raises(ConfigError, match="changes of a table with a key"):
        row_changes(without)
    with pytest.raises(ConfigError, match="unchanged has an unknown value"):
        row_changes(changes, unchanged="null")  # type: ignore[arg-type]
    some = decode(shop.frame(spark), topic=orders.topic, connection=shop.connection, columns=["note"])
    with pytest.raises(ConfigError, match="does not have all columns of the key"):
        row_changes(some)


@pytest.mark.parametrize("lacks_special", [False, True])
def test_a_gap_behind_which_changes_are_missing_ends_the_query(
    spark: SparkSession, lacks_special: bool
) -> None:
    """After a gap without an end, a TRUNCATE and all rows follow."""
    orders = Table("public.orders", ORDERS, key=["id"])
    shop = Database(orders)
    shop.commit(orders.insert(id=1))
    changes = decode(shop.frame(spark), topic=orders.topic, connection=shop.connection)

    def gap(**special: str) -> DataFrame:
        texts = F.create_map(*(F.lit(one) for pair in special.items() for one in pair))
        marker = changes.withColumn("op", F.lit("g")).withColumn("special", texts)
        return marker.drop("special") if lacks_special else marker

    bounded = gap(**{"gap.from_lsn": "0/1", "gap.to_lsn": "0/2", "gap.reason": "slot"})
    with pytest.raises(Exception, match=r"CDCD-GAP: .*accept_gaps=True"):
        row_changes(bounded).select("id").collect()
    assert row_changes(bounded, accept_gaps=True).count() == 0
    before_a_snapshot = row_changes(gap(**{"gap.from_lsn": "0/1", "gap.reason": "slot"}))
    if not lacks_special:
        assert before_a_snapshot.count() == 0
    else:
        with pytest.raises(Exception, match="CDCD-GAP"):
            before_a_snapshot.count()


def test_a_broken_record_is_no_tombstone(spark: SparkSession, tmp_path: Path) -> None:
    """Both have no `op`."""
    orders = Table("public.orders", ORDERS, key=["id"])
    shop = Database(orders)
    shop.commit(orders.insert(id=1), orders.insert(id=2), orders.insert(id=3))
    broken = F.expr("CASE offset WHEN 1 THEN substring(value, 1, 7) WHEN 2 THEN null ELSE value END")
    frame = shop.frame(spark).withColumn("value", broken)
    changes = decode(frame, topic=orders.topic, connection=shop.connection, on_error="quarantine")
    assert changes.where("op is null and error is null").count() == 1, "the tombstone"
    with pytest.raises(Exception, match="CDCD-SPARK-READ: a record is broken"):
        apply_changes(row_changes(changes), tmp_path / "t", **auto_cdc(changes))
    assert not (tmp_path / "t").exists()
    apply_changes(row_changes(changes.where("error is null")), tmp_path / "t", **auto_cdc(changes))
    assert [one["id"] for one in rows_of(tmp_path / "t")] == [1]


# --- the page --------------------------------------------------------------------------------------------------


def block(word: str) -> str:
    """Return the block of the page that has this word."""
    (text,) = (one for one in python_blocks("docs/spark/apply-changes.md") if word in one)
    return text


def test_the_block_of_a_users_frame_runs(spark: SparkSession, tmp_path: Path) -> None:
    events = spark.createDataFrame(
        [(1, "a", day(1), 1, "I"), (1, "b", day(2), 2, "U"), (1, "", day(3), 3, "D")],
        "id bigint, name string, changed_at string, number int, op string",
    )
    exec(block("events,").replace("/data/", f"{tmp_path}/"), {"events": events})
    found = rows_of(tmp_path / "customers")
    assert [(one["name"], one["__end_at"]["number"]) for one in found] == [("a", 2), ("b", 3)]


@pytest.mark.nightly  # frames of a table, and streams of files, have tests of their own
def test_the_block_of_a_table_of_cdcd_runs(spark: SparkSession, topics: TopicsWriter, tmp_path: Path) -> None:
    items = topics.table("orders", [column("id", "int", required=True), column("name", "string")])
    for number, name in enumerate("ab", 1):
        row = {"id": number, "name": name}
        topics.commit(number * 10, topics.change(items, "c", number * 10, 1, after=row))
    topics.commit(30, topics.change(items, "d", 30, 1, before={"id": 2, "name": None}))
    topics.wait_until_visible()
    register(spark)
    text = block("apply_as_truncates=").replace('config="/etc/cdcd/cdcd.yaml"', "**options")
    text = text.replace('"/data/', f'"{tmp_path}/').replace(
        "checkpoint=", 'trigger={"availableNow": True}, checkpoint='
    )
    found: dict[str, Any] = {"spark": spark, "options": options_of(topics)}

    def start() -> Any:
        exec(text, found)
        return found["query"]

    assert run_to_end(start) is None
    assert rows_of(tmp_path / "orders") == [{"id": 1, "name": "a"}]


@pytest.mark.nightly
@pytest.mark.skipif(not hasattr(pipelines, "create_auto_cdc_flow"), reason="from Spark 4.3 on")
def test_the_block_of_a_pipeline_is_analysed_by_spark(topics: TopicsWriter, tmp_path: Path) -> None:
    """Spark's own program resolves keys, sequence and columns of the flow against the changes of a topic."""
    items = topics.table("orders", [column("id", "int", required=True), column("name", "string")])
    topics.commit(10, topics.change(items, "c", 10, 1, after={"id": 1, "name": "a"}))
    topics.wait_until_visible()
    text = block("create_auto_cdc_flow(target").replace(
        'config="/etc/cdcd/cdcd.yaml"', f"**{options_of(topics)}"
    )
    (tmp_path / "orders.py").write_text(text)
    definition = {
        "name": "shop",
        "storage": f"file://{tmp_path}/storage",
        "libraries": [{"glob": {"include": "orders.py"}}],
    }
    (tmp_path / "spark-pipeline.yml").write_text(yaml.safe_dump(definition))
    discovery = ROOT / "cdcd" / "spark" / "discovery"
    bin_folder = Path(sys.executable).parent
    done = subprocess.run(
        [bin_folder / "spark-pipelines", "dry-run", "--conf", "spark.driver.host=127.0.0.1"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        env=os.environ
        | {
            "PATH": f"{bin_folder}:{os.environ['PATH']}",
            "PYTHONPATH": f"{ROOT}:{discovery}",
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
    )
    output = done.stdout + done.stderr
    assert "Run is COMPLETED" in output, output
    assert done.returncode == 0


def options_of(topics: TopicsWriter) -> dict[str, str]:
    return {"brokers": topics.bootstrap, "prefix": topics.prefix, "registry": topics.registry_url}
