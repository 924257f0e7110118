"""Arrow values become text that PostgreSQL reads back: the exact forms, also outside the range of Python's dates."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest

from cdcd.demo.render import NotComparable, column_texts, date_text, time_text, timestamp_text


@pytest.mark.parametrize(
    ("days", "text"),
    [
        (0, "1970-01-01"),
        (-1, "1969-12-31"),
        (11_016, "2000-02-29"),
        (-719_162, "0001-01-01"),
        (-719_163, "0001-12-31 BC"),
        (-735_160, "0044-03-15 BC"),
        (2_932_896, "9999-12-31"),
        (2_932_897, "10000-01-01"),
        (-2_440_588, "4714-11-24 BC"),  # PostgreSQL's first day, Julian day 0
        (2_145_042_905, "5874897-12-31"),  # PostgreSQL's last day
    ],
)
def test_dates_by_their_day_number(days: int, text: str) -> None:
    assert date_text(days) == text


@pytest.mark.parametrize(
    ("microseconds", "text"),
    [
        (0, "1970-01-01 00:00:00.000000"),
        (-1, "1969-12-31 23:59:59.999999"),
        (-62_135_596_800_000_001, "0001-12-31 23:59:59.999999 BC"),
        (253_402_300_799_999_999, "9999-12-31 23:59:59.999999"),
        (9_224_318_015_999_999_999, "294276-12-31 23:59:59.999999"),
    ],
)
def test_timestamps_by_their_microseconds(microseconds: int, text: str) -> None:
    assert timestamp_text(microseconds) == text


def test_the_zone_stands_before_the_era() -> None:
    assert timestamp_text(-62_135_596_800_000_001, "+00") == "0001-12-31 23:59:59.999999+00 BC"


def test_the_last_microsecond_of_a_day() -> None:
    assert time_text(86_399_999_999) == "23:59:59.999999"


@pytest.mark.parametrize(
    ("array", "pg_type", "texts"),
    [
        (pa.array([True, False, None]), "bool", ["t", "f", None]),
        (pa.array([1, None], pa.int64()), "int8", ["1", None]),
        (
            pa.array([0.1, float("nan"), float("-inf"), -0.0], pa.float64()),
            "float8",
            ["0.1", "nan", "-inf", "-0.0"],
        ),
        (pa.array([Decimal("-0.10"), Decimal("1E+2")], pa.decimal128(12, 2)), "numeric", ["-0.10", "100.00"]),
        (pa.array(["", None, "a"]), "text", ["", None, "a"]),
        (pa.array([b"", b"\x00\xff"]), "bytea", ["\\x", "\\x00ff"]),
        (pa.array([-719_163], pa.int32()).cast(pa.date32()), "date", ["0001-12-31 BC"]),
        (pa.array([-719_163], pa.int32()), "date", ["0001-12-31 BC"]),
        (pa.array([1], pa.int64()), "time", ["00:00:00.000001"]),
        (pa.array([1], pa.int64()).cast(pa.time64("us")), "time", ["00:00:00.000001"]),
        (
            pa.array([-1], pa.int64()).cast(pa.timestamp("us", tz="UTC")),
            "timestamptz",
            ["1969-12-31 23:59:59.999999+00"],
        ),
        (pa.array([-1000], pa.int64()).cast(pa.timestamp("ns")), "timestamp", ["1969-12-31 23:59:59.999999"]),
        (
            pa.array([["a", None, "NULL", 'q"\\,{}'], [], None, [""]]),
            "text",
            ['{"a",NULL,"NULL","q\\"\\\\,{}"}', "{}", None, '{""}'],
        ),
        (pa.array([[9], [1, None], [3]], pa.list_(pa.int32()))[1:], "int4", ['{"1",NULL}', '{"3"}']),
    ],
)
def test_every_kind_of_column(array: pa.Array, pg_type: str, texts: list[str | None]) -> None:
    assert column_texts(array, pg_type) == texts


def test_what_has_no_exact_text_is_refused() -> None:
    with pytest.raises(NotComparable):
        column_texts(pa.array([1], pa.int64()).cast(pa.timestamp("ns")), "timestamp")
    with pytest.raises(NotComparable):
        column_texts(pa.array([{"a": 1}]), "json")
