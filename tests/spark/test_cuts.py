"""Cuts: a batch ends at the sum of complete progress records, whatever the limits."""

from __future__ import annotations

import json

import pytest

from cdcd.errors import ProgressUnreadable
from cdcd.spark.cuts import (
    Commit,
    cut,
    loading_of,
    merge,
    parse_progress,
    with_loading,
    without_loading,
)
from tests.spark.events import progress_value

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


def part(commit_lsn: str, offsets: dict) -> Commit:
    return Commit(commit_lsn, offsets, is_part=True)


@pytest.mark.parametrize("limits", [{}, {"max_rows": 1}, {"max_commits": 1}])
def test_no_batch_ends_behind_a_part(limits: dict[str, int]) -> None:
    """The offsets of the parts are added up, and the cut comes with the record that completes the transaction."""
    commits = [part("0/1", {"a": {"0": 5}}), part("0/1", {"a": {"1": 9}}), Commit("0/2", {"a": {"0": 6}})]
    assert cut({}, commits[:1], **limits) == {}
    assert cut({}, commits[:2], **limits) == {}
    assert cut({}, commits, **limits) == {"a": {"0": 6, "1": 9}}
    assert cut({}, [*COMMITS[:1], *commits[:2]], **limits) == {"a": {"0": 5}}


def test_a_record_says_that_it_is_of_a_part() -> None:
    whole = json.loads(progress_value(1, {}))
    assert not parse_progress(json.dumps(whole).encode()).is_part
    whole["part"] = {"commit_lsn": "0/2", "tx_seq": 7}
    assert parse_progress(json.dumps(whole).encode()).is_part


def test_a_record_names_the_tables_that_are_being_copied() -> None:
    assert parse_progress(progress_value(1, {}, loading=["s.a", "s.b"])).loading == {"s.a", "s.b"}
    record = json.loads(progress_value(1, {}))
    for copy in ({}, {"pending": [16384], "floors": {}, "point_lsn": "0/0"}):
        assert parse_progress(json.dumps({**record, "copy": copy}).encode()).loading == frozenset()
    for tables in ([], {"1": {}}, {"1": {"topic": None}}):
        for kind in ("tables", "blocking"):
            with pytest.raises(ProgressUnreadable):
                parse_progress(json.dumps({**record, "copy": {kind: tables}}).encode())


def test_a_table_of_a_blocking_snapshot_is_loading_until_it_is_copied() -> None:
    record = json.loads(progress_value(1, {}, loading=["s.a"]))
    record["copy"]["blocking"] = {"7": {"topic": "s.log", "empties": True}}
    assert parse_progress(json.dumps(record).encode()).loading == {"s.a", "s.log"}


A, B = frozenset({"a"}), frozenset({"b"})


def test_a_cut_has_the_tables_that_are_loading_there() -> None:
    begun = Commit("0/1", {"a": {"0": 5}}, loading=A | B)
    commits = [
        begun,
        Commit("0/2", {"a": {"0": 9}}, loading=B),
        Commit("0/3", {"a": {"0": 10}}),
        Commit("0/4", {}),
    ]
    first = cut({}, commits, max_commits=1)
    assert (without_loading(first), loading_of(first)) == ({"a": {"0": 5}}, A | B)
    second = cut(first, commits[1:], max_rows=4)
    assert (without_loading(second), loading_of(second)) == ({"a": {"0": 9}}, B)
    assert cut(second, commits[2:]) == {"a": {"0": 10}}
    assert cut({}, [*COMMITS, Commit("0/4", {}, loading=B)]) == with_loading(cut({}, COMMITS), B)


def test_a_change_of_the_loading_tables_is_a_cut_without_records() -> None:
    start = with_loading({"a": {"0": 5}}, A)
    assert cut(start, [Commit("0/2", {}, loading=A)]) == start
    assert cut(start, [Commit("0/2", {}, loading=A), Commit("0/3", {})]) == {"a": {"0": 5}}


def test_no_batch_ends_before_the_markers_of_a_gap() -> None:
    """After an accepted gap the rest of a partly written transaction never comes: the gap's marker ends it in one
    batch.
    """
    accepted = json.loads(progress_value(2, {"a": {"0": 5}}))
    accepted["gap"] = {"from_lsn": "0/1", "to_lsn": "0/9", "reason": "CDCD-SLOT-LOST", "decided_us": 1}
    reported = Commit("0/9", {"a": {"0": 7}})
    commits = [part("0/1", {"a": {"0": 5}}), parse_progress(json.dumps(accepted).encode())]
    assert cut({}, commits) == {}
    assert cut({}, [*commits, reported]) == {"a": {"0": 7}}


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
