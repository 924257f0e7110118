"""How late the rows of a mirror are, from the times of commits and versions. Pure."""

from __future__ import annotations

from tests.bench.spark.committing import late_ms


def test_a_row_is_visible_with_the_first_version_whose_last_commit_is_not_before_it() -> None:
    """Its own commit is before the COMMIT returns, so that version may be a later one than the first with the row."""
    visible = [(1_000, 9_000), (5_000, 20_000), (6_000, 40_000)]
    assert late_ms([900, 1_000, 1_001, 5_500], visible) == [8.0, 8.1, 18.999, 34.5]


def test_the_rows_after_the_last_commit_are_in_the_last_version() -> None:
    assert late_ms([7_000], [(1_000, 9_000), (6_000, 40_000)]) == [33.0]
