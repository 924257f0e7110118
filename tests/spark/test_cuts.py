"""Cuts: a batch ends at the sum of whole progress records, whatever the limits."""

from __future__ import annotations

import pytest

from cdcd.errors import ProgressUnreadable
from cdcd.spark.cuts import Commit, cut, merge, parse_progress
from cdcd.spark.testing import progress_value

COMMITS = [
    Commit("0/1", {"a": {"0": 5}}),
    Commit("0/2", {"a": {"0": 9, "1": 4}}),
    Commit("0/3", {"b": {"0": 100}}),
]


@pytest.mark.parametrize(
    ("start", "limits", "end"),
    [
        ({}, {}, {"a": {"0": 9, "1": 4}, "b": {"0": 100}}),
        ({}, {"max_rows": 5}, {"a": {"0": 5}}),
        ({}, {"max_rows": 12}, {"a": {"0": 5}}),
        ({}, {"max_rows": 13}, {"a": {"0": 9, "1": 4}}),
        ({}, {"max_rows": 1}, {"a": {"0": 5}}),
        ({}, {"max_commits": 2}, {"a": {"0": 9, "1": 4}}),
        ({"a": {"0": 9, "1": 4}}, {"max_rows": 1}, {"a": {"0": 9, "1": 4}, "b": {"0": 100}}),
        ({"a": {"0": 9, "1": 4}, "b": {"0": 100}}, {}, {"a": {"0": 9, "1": 4}, "b": {"0": 100}}),
    ],
)
def test_a_cut_is_made_of_whole_commits(start: dict, limits: dict[str, int], end: dict) -> None:
    assert cut(start, COMMITS, **limits) == end


def test_offsets_never_move_back_and_have_one_order() -> None:
    merged = merge({"b": {"10": 3, "9": 7}}, {"a": {"0": 1}, "b": {"10": 2}})
    assert [(topic, list(partitions.items())) for topic, partitions in merged.items()] == [
        ("a", [("0", 1)]),
        ("b", [("9", 7), ("10", 3)]),
    ]


@pytest.mark.parametrize(
    "value", [b"", b"{}", b"[]", progress_value(1, {}).replace(b'"format": 1', b'"format": 3')]
)
def test_an_unknown_progress_record_is_an_error(value: bytes) -> None:
    with pytest.raises(ProgressUnreadable):
        parse_progress(value)
