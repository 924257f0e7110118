"""The comparison of a mirror with its table: equal mirrors are equal, and every kind of difference is reported.

The mirrors here are made from PostgreSQL's own text and pyarrow, without the mirror's code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from decimal import Decimal
from typing import Any

import psycopg2
import pyarrow as pa
import pytest

from cdcd.demo.compare import TableOutcome, compare_table, report
from cdcd.demo.stack import PostgresServer

ROWS = [
    {"a": 1, "b": "x", "words": "", "money": Decimal("1.50"), "at": 0},
    {"a": 1, "b": "y", "words": None, "money": None, "at": -62_135_596_800_000_001},
    {"a": 2, "b": "x", "words": "NULL", "money": Decimal("-0.01"), "at": None},
]
SCHEMA = pa.schema(
    [
        *(("a", pa.int32()), ("b", pa.string()), ("words", pa.string()), ("money", pa.decimal128(12, 2))),
        *(("at", pa.timestamp("us", tz="UTC")), ("__special", pa.map_(pa.string(), pa.string()))),
    ]
)

Compare = Callable[[list[dict[str, Any]]], TableOutcome]


def arrow(rows: list[dict[str, Any]]) -> pa.Table:
    full = [{"__special": None, **row} for row in rows]
    return pa.Table.from_pylist(full, schema=SCHEMA)


@pytest.fixture
def connection(postgres: PostgresServer, database: str) -> Iterator[Any]:
    with closing(psycopg2.connect(postgres.dsn(database))) as connection:
        with connection, connection.cursor() as cursor:
            cursor.execute(
                "CREATE TABLE t (a int, b text, words text, money numeric(12,2), at timestamptz NOT NULL,"
                " PRIMARY KEY (b, a));"
                "INSERT INTO t VALUES (1, 'x', '', 1.50, '1970-01-01 00:00+00'),"
                " (1, 'y', NULL, NULL, '0001-12-31 23:59:59.999999+00 BC'),"
                " (2, 'x', 'NULL', -0.01, 'infinity')"
            )
        yield connection


@pytest.fixture
def compare(connection: Any) -> Compare:
    return lambda rows: compare_table(connection, "public", "t", arrow(rows))


def mirrored() -> list[dict[str, Any]]:
    rows = [dict(row) for row in ROWS]
    rows[2]["__special"] = {"at": "infinity"}
    return rows


def test_equal_is_equal(compare: Compare) -> None:
    assert compare(mirrored()) == TableOutcome("public.t", 3, 3)
    assert report([compare(mirrored())]) == []


def test_a_missing_row_is_named_by_its_key(compare: Compare) -> None:
    outcome = compare(mirrored()[1:])
    assert outcome.differences == ("1 rows are missing from the mirror: (b, a) = (x,1)",)


def test_an_extra_row_is_named_by_its_key(compare: Compare) -> None:
    outcome = compare([*mirrored(), {**ROWS[0], "a": 9}])
    assert outcome.differences == ("1 rows are only in the mirror: (b, a) = (x,9)",)


def test_a_row_twice_is_one_too_many(compare: Compare) -> None:
    outcome = compare([*mirrored(), ROWS[0]])
    assert outcome.differences == ("1 rows are only in the mirror: (b, a) = (x,1)",)


def test_an_altered_value_is_reported_by_column_without_the_value(compare: Compare) -> None:
    rows = mirrored()
    rows[0]["money"] = Decimal("4711.00")
    outcome = compare(rows)
    assert outcome.differences == ("1 rows differ, in the columns:", "    (b, a) = (x,1): money")
    assert "4711" not in "\n".join(report([outcome]))


def test_null_is_not_the_empty_string(compare: Compare) -> None:
    rows = mirrored()
    rows[0]["words"], rows[1]["words"] = None, ""
    assert compare(rows).differences == (
        "2 rows differ, in the columns:",
        "    (b, a) = (x,1): words",
        "    (b, a) = (y,1): words",
    )


def test_a_wrong_special_is_a_difference(compare: Compare) -> None:
    rows = mirrored()
    rows[2]["__special"] = {"at": "-infinity"}
    assert compare(rows).differences[1] == "    (b, a) = (x,2): at"


def test_a_lost_special_is_a_difference_also_in_a_not_null_column(compare: Compare) -> None:
    rows = mirrored()
    rows[2]["__special"] = None
    assert compare(rows).differences[1] == "    (b, a) = (x,2): at"


def test_a_special_of_an_unknown_column_is_refused(compare: Compare) -> None:
    rows = mirrored()
    rows[2]["__special"] = {"at": "infinity", "zz": "1"}
    assert "zz" in compare(rows).differences[0]


def test_a_value_that_postgresql_refuses_is_reported_without_the_value(compare: Compare) -> None:
    rows = mirrored()
    rows[0]["__special"] = {"words": "fine"}
    rows[0]["words"] = None
    rows[2]["__special"] = {"at": "4711th of May"}
    (difference,) = compare(rows).differences
    assert "22007" in difference
    assert "column at" in difference
    assert "4711" not in difference


def test_no_mirror_at_all(connection: Any) -> None:
    assert compare_table(connection, "public", "t", None).differences == ("there is no mirror of its 3 rows",)
    with connection, connection.cursor() as cursor:
        cursor.execute("TRUNCATE t")
    assert compare_table(connection, "public", "t", None).is_equal


def test_other_columns_are_a_difference(connection: Any) -> None:
    table = arrow(mirrored()).drop_columns(["money"])
    assert "money" in compare_table(connection, "public", "t", table).differences[0]


def test_duplicates_count_without_a_key(connection: Any) -> None:
    with connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE k (words text); INSERT INTO k VALUES ('a'), ('a'), (NULL)")
    for words, is_equal in ((["a", None, "a"], True), (["a", None], False), (["a", "a", None, None], False)):
        table = pa.table({"words": pa.array(words, pa.string())})
        assert compare_table(connection, "public", "k", table).is_equal is is_equal
