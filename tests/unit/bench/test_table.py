"""Medians, ratios and tables."""

from __future__ import annotations

from tests.bench.table import case_table, cpu_per_million, markdown_table, restart_rows, summaries, text_table
from tests.unit.bench.runs import RUNS


def test_a_ratio_is_of_neighbours_and_the_median_of_the_rounds() -> None:
    unix, cdcd = summaries(RUNS, "unix")
    assert (unix.runner, unix.ratio, cdcd.ratio) == ("unix", 1.0, 0.8)
    assert cdcd.rate == 500.0, "the median of 500, 250 and 800 rows/s"


def test_a_round_whose_limit_failed_has_no_ratio() -> None:
    (cdcd,) = summaries([one for one in RUNS if one["runner"] == "cdcd"], "unix")
    assert cdcd.ratio is None
    _, cdcd = summaries([one for one in RUNS if one != RUNS[0]], "unix")[::-1]
    assert cdcd.ratio == 0.9, "the median of the second and the third round's"


def test_cpu_is_in_seconds_for_a_million_rows() -> None:
    assert cpu_per_million(RUNS[0], "receiver") == 3.0
    assert cpu_per_million(RUNS[0], "broker") == 0.0


def test_a_table_tells_disturbed_runs_threads_and_who_is_absent() -> None:
    table = case_table(RUNS, "unix", {"debezium": "not asked for"})
    assert "1 of 3 disturbed" in table
    assert "cdcd by thread: rdk 3.00, main 2.00; other processes: registry 0.50" in table
    assert "debezium: not asked for" in table


def test_columns_are_as_wide_as_they_need_to_be() -> None:
    assert text_table(("a", "b"), [("xx", "1"), ("y", "100")]) == "a     b\nxx    1\ny   100"
    assert markdown_table(("a", "b"), [("x", "1")]) == "| a | b |\n| --- | ---: |\n| x | 1 |"


def test_starts_are_listed_by_the_end_before_them() -> None:
    starts = [
        {"after": after, "ready_seconds": seconds, "first_seconds": seconds * 2}
        for after, seconds in (("killed", 1.0), ("asked to end", 5.0), ("killed", 3.0), ("killed", 2.0))
    ]
    assert restart_rows(starts) == [["killed", "3", "2.00", "4.00"], ["asked to end", "1", "5.00", "10.00"]]
