"""The progress of a snapshot on /status: what is known, and None for what is not."""

from __future__ import annotations

import pytest

from cdcd.monitoring.copy_status import MOST_TABLES, CopyStatus

GB = 1_000_000_000


def test_the_end_is_estimated_by_rows_and_rate() -> None:
    status = CopyStatus(100.0, {"a": 1_000, "b": 3_000})
    status.add_rows("a", 500)
    status.add_rows("b", 500)
    page = status.page(110.0)
    assert (page["tables"], page["tables_remaining"]) == (2, 2)
    assert (page["rows"], page["rows_estimated"], page["rows_per_second"]) == (1_000, 4_000, 100.0)
    assert page["seconds_left"] == 30.0
    assert page["in_progress"] == [
        {"table": "a", "rows": 500, "rows_estimated": 1_000},
        {"table": "b", "rows": 500, "rows_estimated": 3_000},
    ]


def test_a_complete_table_corrects_its_estimate_and_more_rows_than_estimated_do_too() -> None:
    status = CopyStatus(0.0, {"a": 1_000, "b": 100})
    status.add_rows("a", 200)
    status.complete("a")
    status.add_rows("b", 150)
    page = status.page(1.0)
    assert (page["rows_estimated"], page["tables_remaining"], page["seconds_left"]) == (350, 1, 0.0)
    assert [one["table"] for one in page["in_progress"]] == ["b"]


def test_without_statistics_of_a_table_the_end_is_not_known() -> None:
    status = CopyStatus(0.0, {"a": None, "b": 100})
    status.add_rows("b", 50)
    page = status.page(1.0)
    assert (page["rows_estimated"], page["seconds_left"], page["ends_before_wal_limit"]) == (None, None, None)
    status.add_rows("a", 7)
    status.complete("a")
    assert status.page(1.0)["rows_estimated"] == 107


def test_before_the_first_row_no_rate_is_known() -> None:
    page = CopyStatus(0.0, {"a": 5}).page(1.0)
    assert (page["rows"], page["rows_per_second"], page["seconds_left"]) == (0, None, None)


@pytest.mark.parametrize(("safe_bytes", "expected"), [(20 * GB, True), (8 * GB, False), (None, None)])
def test_the_wal_limit_is_compared_with_the_wal_until_the_end(
    safe_bytes: int | None, expected: bool | None
) -> None:
    """100 s are left, at 0.1 GB of WAL a second."""
    status = CopyStatus(0.0, {"a": 2_000})
    status.add_rows("a", 1_000)
    status.sampled(80.0, 3 * GB, safe_bytes)
    assert status.page(90.0)["ends_before_wal_limit"] is None
    status.sampled(100.0, 5 * GB, safe_bytes)
    page = status.page(100.0)
    assert page["seconds_left"] == 100.0
    assert page["ends_before_wal_limit"] is expected
    assert (page["retained_wal_bytes"], page["safe_wal_bytes"]) == (5 * GB, safe_bytes)


def test_the_list_of_tables_is_bounded() -> None:
    status = CopyStatus(0.0, {f"t{n}": 5 for n in range(200)})
    for number in range(200):
        status.add_rows(f"t{number}", 1)
    assert len(status.page(1.0)["in_progress"]) == MOST_TABLES


def test_the_tables_that_are_left_are_reported_those_with_rows_first() -> None:
    status = CopyStatus(100.0, {"s.a": 1_000, "s.b": None, "s.c": 10, "s.d": 40})
    status.add_rows("s.d", 40)
    status.complete("s.d")
    status.add_rows("s.b", 5)
    status.add_rows("s.a", 100)
    first = status.tables(110.0)
    assert [(one.table, one.state, one.rows, one.estimated_rows) for one in first] == [
        ("s.b", "copying", 5, None),
        ("s.a", "copying", 100, 1_000),
        ("s.c", "waiting", 0, 10),
    ]
    assert {one.kind for one in first} == {"initial"}
    assert [one.rows_per_second for one in first] == [None, None, None], "a rate needs two looks"
    status.add_rows("s.a", 300)
    status.add_rows("s.c", 1)
    b, a, c = status.tables(120.0)
    assert (a.rows_per_second, a.seconds_left) == (30.0, 20.0)
    assert (b.rows_per_second, b.seconds_left, c.rows_per_second) == (None, None, None)
    for table in ("s.a", "s.b", "s.c"):
        status.complete(table)
    assert status.tables(130.0) == []
