"""The test kit for users: its records are decoded and mirrored as those of a daemon."""

from __future__ import annotations

import traceback
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pyspark.sql import SparkSession

from cdcd.errors import ConfigError, MirrorInconsistent
from cdcd.spark import decode
from cdcd.spark.reading.mirror import Mirror, read_mirror
from cdcd.spark.testing import Database, Table
from tests.spark.unit.test_plain_history import rows_of
from tests.support.pages import python_blocks

ORDERS = {"id": "bigint", "total": "numeric(10,2)", "note": "text", "paid_at": "timestamptz"}
AT = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
VIEW = "public_orders_history"


def _rows(opened: Mirror, table: Table) -> list[dict[str, Any]]:
    rows = opened.table(table.topic).drop_columns(["__special"]).to_pylist()
    return sorted(rows, key=lambda row: row["id"])


def test_changes_are_decoded_and_mirrored(spark: SparkSession, tmp_path: Path) -> None:
    orders, lines = Table("public.orders", ORDERS, key=["id"]), Table("public.lines", {"id": "int"})
    shop = Database(orders, lines, prefix="shop")
    first = shop.commit(
        orders.insert(id=1, total=Decimal("9.50"), note="a", paid_at=AT),
        orders.copied(id=2),
        lines.insert(id=7),
    )
    last = shop.commit(
        orders.update(id=1, total=Decimal("7.00"), unchanged=["note", "paid_at"]), orders.delete(id=2)
    )
    found = decode(shop.frame(spark), topic=orders.topic, connection=shop.connection)
    rows = found.orderBy("commit_lsn", "tx_seq").select(
        "op", "commit_lsn", "tx_seq", "after.id", "after.total"
    )
    assert [tuple(row) for row in rows.collect()] == [
        ("c", first, 1, 1, Decimal("9.50")),
        ("r", first, 2, 2, None),
        ("u", last, 1, 1, Decimal("7.00")),
        ("d", last, 2, None, None),
    ]
    assert found.where("op = 'u'").select("unchanged").collect()[0][0] == ["note", "paid_at"]
    opened = shop.mirror(tmp_path / "mirror")
    assert opened.end_lsn == last + 1
    assert _rows(opened, orders) == [{"id": 1, "total": Decimal("7.00"), "note": "a", "paid_at": AT}]
    shop.commit(orders.truncate(), lines.insert(id=8))
    opened = shop.mirror(tmp_path / "mirror")
    assert _rows(opened, orders) == []
    assert _rows(opened, lines) == [{"id": 7}, {"id": 8}], "a repeated call applies each record once"


def test_the_block_of_the_page_runs(spark: SparkSession, tmp_path: Path) -> None:
    (text,) = python_blocks("docs/spark/testing.md")
    exec(text.replace("/tmp/mirror-of-a-test", str(tmp_path / "mirror")), {"spark": spark})


def test_a_table_follows_its_columns(tmp_path: Path) -> None:
    orders = Table("public.orders", {"id": "bigint", "total": "numeric(10,2)"}, key=["id"])
    shop = Database(orders)
    shop.commit(orders.insert(id=1, total=Decimal("1.00")))
    orders.alter({"id": "bigint", "day": "date", "token": "uuid", "data": "bytea"})
    token = UUID(int=5)
    shop.commit(orders.insert(id=2, day=date(2026, 1, 2), token=token, data=b"\x00"))
    rows = _rows(shop.mirror(tmp_path), orders)
    assert rows == [
        {"id": 1, "day": None, "token": None, "data": None},
        {"id": 2, "day": date(2026, 1, 2), "token": str(token), "data": b"\x00"},
    ]


def test_a_table_is_copied_again_in_one_commit(tmp_path: Path) -> None:
    orders = Table("public.orders", {"id": "bigint"}, key=["id"])
    shop = Database(orders)
    shop.commit(orders.insert(id=1), orders.insert(id=2))
    shop.commit(orders.truncate(), orders.copied(id=2), orders.copied(id=3))
    assert _rows(shop.mirror(tmp_path), orders) == [{"id": 2}, {"id": 3}]


def test_commits_have_the_times_that_a_test_gives_them(tmp_path: Path) -> None:
    """In the history, and for a version of the mirror as of a time; without a time both are unknown."""
    orders = Table("public.orders", {"id": "bigint"}, key=["id"])
    shop = Database(orders)
    times = [AT, AT + timedelta(minutes=1, microseconds=7)]
    shop.commit(orders.insert(id=1), commit_time=times[0])
    shop.mirror(tmp_path / "mirror", stored_as_scd_type=2)
    shop.commit(orders.delete(id=1), orders.insert(id=2), commit_time=times[1])
    opened = shop.mirror(tmp_path / "mirror")
    shown = sorted((one["id"], one["__start_time"], one["__end_time"]) for one in rows_of(opened, VIEW))
    assert shown == [(1, *times), (2, times[1], None)]
    assert opened.commit_time == times[1]
    assert _rows(read_mirror(tmp_path / "mirror", at=AT + timedelta(seconds=30)), orders) == [{"id": 1}]
    shop.commit(orders.insert(id=3))
    (found,) = [one for one in rows_of(shop.mirror(tmp_path / "mirror"), VIEW) if one["id"] == 3]
    assert found["__start_time"] is None
    with pytest.raises(ConfigError, match="no time zone"):
        shop.commit(orders.insert(id=4), commit_time=datetime(2026, 1, 1))


def test_what_ends_a_mirror_is_raised(tmp_path: Path) -> None:
    orders = Table("public.orders", {"id": "bigint", "note": "text"}, key=["id"])
    shop = Database(orders)
    shop.commit(orders.update(id=1, unchanged=["note"]))
    with pytest.raises(MirrorInconsistent, match="did not send all columns"):
        shop.mirror(tmp_path)
    assert shop.mirror(tmp_path, loading=[orders]).loading == [orders.topic]


def test_wrong_names_and_types_are_errors() -> None:
    with pytest.raises(ConfigError, match="'geometry' is not known here"):
        Table("public.t", {"id": "geometry"})
    with pytest.raises(ConfigError, match=r"key has columns that the table public\.t lacks: id"):
        Table("public.t", {"a": "int"}, key=["id"])
    for call in (Table.insert, Table.delete, Table.copied):
        with pytest.raises(ConfigError, match=r"no columns b -> .*the columns are a"):
            call(Table("public.t", {"a": "int"}), b=1)
    with pytest.raises(ConfigError, match=r"no columns b -> .*the columns are a"):
        Table("public.t", {"a": "int"}).update(unchanged=["b"], a=1)
    with pytest.raises(ConfigError, match=r"unchanged has to be a list of names"):
        Table("public.t", {"a": "int"}).update(unchanged="a")
    with pytest.raises(ConfigError, match="key has to be a list of names"):
        Table("public.t", {"id": "int"}, key="id")
    for name in ("t", "public.", ".t"):
        with pytest.raises(ConfigError, match=r"not that of a schema and a table.*-> write SCHEMA\.TABLE"):
            Table(name, {"id": "int"})


def test_names_with_any_characters(spark: SparkSession, tmp_path: Path) -> None:
    """A name that Avro or Kafka does not allow is the column's, the key's, and the table's, as with a daemon."""
    odd = Table('Ein Schema."Straße 1"', {"id nr": "int", "größe": "int", "a-b": "text"}, key=["id nr"])
    shop = Database(odd)
    shop.commit(odd.insert(**{"id nr": 1, "größe": 7, "a-b": "x"}))
    shop.commit(odd.update({"id nr": 1}, unchanged=["a-b"], **{"id nr": 1, "größe": 8}))
    (first, last) = decode(shop.frame(spark), topic=odd.topic, connection=shop.connection).collect()
    assert first["after"].asDict() == {"id nr": 1, "größe": 7, "a-b": "x"}
    assert (last["unchanged"], last["key"].asDict()) == (["a-b"], {"id nr": 1})
    (row,) = shop.mirror(tmp_path).table(odd.topic).drop_columns(["__special"]).to_pylist()
    assert row == {"id nr": 1, "größe": 8, "a-b": "x"}
    assert odd.topic == "testing.Ein_u0020Schema._u0022Stra_u00DFe_u00201_u0022"


@pytest.mark.parametrize(
    ("row", "columns"),
    [
        ({"total": Decimal(1)}, "id"),
        ({"id": "secret"}, "id"),
        ({"id": 2**70}, "id"),
        ({"id": 1, "total": 1.5}, "total"),
        ({"id": 1, "total": Decimal("1.555")}, "total"),
        ({"id": 1, "note": {"a": "secret"}, "paid_at": "secret"}, "note, paid_at"),
    ],
)
def test_a_value_of_another_type_is_an_error_that_names_its_column_and_not_the_row(
    tmp_path: Path, row: dict[str, Any], columns: str
) -> None:
    orders = Table("public.orders", ORDERS, key=["id"])
    shop = Database(orders)
    first = shop.commit(orders.insert(id=1))
    expected = rf"none of its column's type.*\[table=public\.orders columns={columns}\]"
    with pytest.raises(ConfigError, match=expected) as raised:
        shop.commit(orders.insert(id=7), orders.insert(**row))
    assert "secret" not in "".join(traceback.format_exception(raised.value))
    assert shop.lsn == first
    shop.commit(orders.insert(id=2))
    assert [one["id"] for one in _rows(shop.mirror(tmp_path), orders)] == [1, 2], (
        "nothing of the commit is there"
    )


def test_commits_are_in_their_order(tmp_path: Path) -> None:
    orders = Table("public.orders", {"self": "int"}, key=["self"])
    shop = Database(orders)
    assert shop.commit(orders.insert(self=1), lsn=500) == 500
    with pytest.raises(ConfigError, match="not higher than that of the last one"):
        shop.commit(orders.insert(self=2), lsn=500)
    with pytest.raises(ConfigError, match="unknown stored_as_scd_type"):
        shop.mirror(tmp_path, stored_as_scd_type=3)  # type: ignore[arg-type]
    assert shop.mirror(tmp_path).table(orders.topic)["self"].to_pylist() == [1]
