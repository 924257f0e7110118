"""Cuts: a batch ends at the sum of complete progress records, whatever the limits."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from cdcd.errors import ProgressUnreadable
from cdcd.model import Progress, SourceIdentity
from cdcd.sink.progress import dump
from cdcd.spark.source.cuts import (
    NO_LIMITS,
    BatchLimits,
    Commit,
    Offsets,
    commit_of_query,
    cut,
    ids_of,
    loading_of,
    merge,
    of_topics,
    parse_progress,
    total,
    with_ids,
    with_loading,
    without,
)
from cdcd.spark.source.entry import Entry
from cdcd.spark.source.joined_commits import as_one
from cdcd.spark.source.slots import complete_commits
from cdcd.spark.source.source_position import SlotPosition
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
    assert cut(start, COMMITS, BatchLimits(**limits)) == end


def cut_of(start: Offsets, records: list[Commit], limits: BatchLimits = NO_LIMITS) -> Offsets:
    """Return the cut after progress records, of which some are parts."""
    return cut(start, complete_commits(records), limits)


def part(commit_lsn: str, offsets: dict) -> Commit:
    return Commit(commit_lsn, offsets, is_part=True)


@pytest.mark.parametrize("limits", [{}, {"max_rows": 1}, {"max_commits": 1}])
def test_no_batch_ends_behind_a_part(limits: dict[str, int]) -> None:
    """The offsets of the parts are added up, and the cut comes with the record that completes the transaction."""
    commits = [part("0/1", {"a": {"0": 5}}), part("0/1", {"a": {"1": 9}}), Commit("0/2", {"a": {"0": 6}})]
    assert cut_of({}, commits[:1], BatchLimits(**limits)) == {}
    assert cut_of({}, commits[:2], BatchLimits(**limits)) == {}
    assert cut_of({}, commits, BatchLimits(**limits)) == {"a": {"0": 6, "1": 9}}
    assert cut_of({}, [*COMMITS[:1], *commits[:2]], BatchLimits(**limits)) == {"a": {"0": 5}}


@pytest.mark.parametrize(
    ("start", "left"),
    [
        ({}, 4),
        ({"a": {"0": 5}}, 4),
        ({"a": {"0": 9}}, 4),
        ({"a": {"0": 9, "1": 4}}, 3),
        ({"a": {"0": 9, "1": 6}}, 3),
        ({"a": {"0": 9, "1": 6}, "b": {"0": 100}}, 2),
        ({"a": {"0": 9, "1": 7}, "b": {"0": 100}}, 1),
    ],
)
def test_the_commits_before_a_start_are_one(start: dict, left: int) -> None:
    """It has their offsets, which a compacted topic needs; a transaction written in part is not taken apart."""
    records = [*COMMITS[:2], part("0/3", {"a": {"1": 6}}), COMMITS[2], Commit("0/4", {"a": {"1": 7}})]
    commits = list(complete_commits(records))
    found = as_one(start, commits)
    assert len(found) == left
    assert total(found) == total(commits)
    assert found[0].is_part is False
    assert found[1:] == commits[len(commits) - left + 1 :]
    for limits in ({}, {"max_rows": 1}, {"max_commits": 1}):
        assert cut(start, found, BatchLimits(**limits)) == cut(start, commits, BatchLimits(**limits))


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
    first = cut({}, commits, BatchLimits(max_commits=1))
    assert (of_topics(first), loading_of(first)) == ({"a": {"0": 5}}, A | B)
    second = cut(first, commits[1:], BatchLimits(max_rows=4))
    assert (of_topics(second), loading_of(second)) == ({"a": {"0": 9}}, B)
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
    assert cut_of({}, commits) == {}
    assert cut_of({}, [*commits, reported]) == {"a": {"0": 7}}


def copied(commit_lsn: int, offsets: dict, *, pending: int = 1, floors: tuple[str, ...] = ()) -> dict:
    """Return a record of the initial snapshot."""
    record = json.loads(progress_value(commit_lsn, offsets, snapshot=["a", "b"]))
    relids = list(range(1, pending + 1))
    floors_of = {str(relid): lsn for relid, lsn in enumerate(floors, 1)}
    return {**record, "copy": {"pending": relids, "floors": floors_of, "point_lsn": "0/9"}}


def commit_of(record: dict | bytes, *, loading: bool = False) -> Commit:
    value = record if isinstance(record, bytes) else json.dumps(record).encode()
    return commit_of_query(parse_progress(value), None, loading=loading)


BEFORE = progress_value(1, {"a": {"0": 5}})
COPIED = [progress_value(1, {}, snapshot=[]), copied(1, {"a": {"0": 50}}), copied(1, {"a": {"1": 70}})]
COMPLETE = progress_value(9, {"b": {"0": 30}})
AFTER = progress_value(20, {"a": {"0": 51}})


@pytest.mark.parametrize("limits", [{}, {"max_rows": 1}, {"max_rows": 10}, {"max_commits": 1}])
def test_a_snapshot_is_one_commit(limits: dict[str, int]) -> None:
    """Also a later one, and where a limit falls inside it: the batch before it ends before its first row."""
    records = [BEFORE, *COPIED, COMPLETE, AFTER]
    commits = [commit_of(record) for record in records]
    before, whole = {"a": {"0": 5}}, {"a": {"0": 50, "1": 70}, "b": {"0": 30}}
    for known in range(1, 5):
        assert cut_of({}, commits[:known], BatchLimits(**limits)) == before
        assert cut_of(before, commits[:known], BatchLimits(**limits)) == before
        assert cut_of({}, commits[1:known], BatchLimits(**limits)) == {}, (
            "a new query while the first snapshot runs"
        )
    assert cut_of(before, commits[1:5], BatchLimits(**limits)) == whole
    assert cut_of({}, commits[1:5], BatchLimits(**limits)) == whole
    assert cut_of(before, commits[1:], BatchLimits(**limits)) == (
        merge(whole, {"a": {"0": 51}}) if not limits else whole
    )
    inside = {"a": {"0": 20}}
    assert cut_of(inside, commits[:4], BatchLimits(**limits)) == inside, "also from a start inside it"


def test_a_query_that_asks_for_loading_tables_sees_those_of_a_snapshot() -> None:
    commits = [commit_of(one, loading=True) for one in [BEFORE, *COPIED, COMPLETE]]
    reached, found = {}, []
    for at in range(len(commits)):
        reached = cut_of(reached, commits[at:], BatchLimits(max_commits=1))
        found.append((of_topics(reached).get("a"), sorted(loading_of(reached))))
    assert found == [
        ({"0": 5}, []),
        ({"0": 50}, ["a", "b"]),
        ({"0": 50, "1": 70}, ["a", "b"]),
        ({"0": 50, "1": 70}, []),
        ({"0": 50, "1": 70}, []),
    ]


@pytest.mark.parametrize(
    ("record", "is_complete"),
    [
        (copied(1, {"a": {"0": 5}}), False),
        (progress_value(1, {"a": {"0": 5}}, snapshot=["a"]), False),
        (copied(1, {"a": {"0": 5}}, pending=0), True),
        (copied(1, {"a": {"0": 5}}, pending=0, floors=("0/E0",)), False),
        (copied(1, {}, pending=0, floors=("0/8", "0/FFFF")), True),
    ],
    ids=[
        "pending",
        "of an older version",
        "initial_only",
        "at different points",
        "initial_only, interrupted",
    ],
)
def test_a_snapshot_is_complete_when_no_table_is_left(record: dict | bytes, is_complete: bool) -> None:
    """The phase remains "snapshot" after `initial_only`, which no stream follows."""
    begun = commit_of(copied(1, {"b": {"0": 3}}))
    assert bool(cut_of({}, [begun, commit_of(record)])) is is_complete


@pytest.mark.parametrize(("end", "is_reached"), [("0/9", False), ("0/10", True), ("1/0", True)])
@pytest.mark.parametrize("by", ["commit_lsn", "end_lsn"])
def test_no_batch_ends_before_the_stream_has_the_point_of_the_last_tables(
    by: str, end: str, is_reached: bool
) -> None:
    """After an interruption the tables were copied at different points; the stream makes them equal."""
    record = {**copied(1, {"a": {"0": 5}}, pending=0, floors=("0/4", "0/10")), "phase": "streaming", by: end}
    for loading in (False, True):
        assert bool(cut_of({}, [commit_of(record, loading=loading)])) is is_reached


def test_the_rest_of_an_interrupted_snapshot_is_read_in_batches_and_its_tables_are_loading() -> None:
    """Also those that are complete at an earlier point. The stream to the last point is one batch."""
    streaming = {**copied(9, {}, pending=0, floors=("0/20",)), "phase": "streaming", "snapshot_tables": []}
    records = [
        copied(1, {"a": {"0": 50}}),
        copied(1, {"b": {"0": 60}}, floors=("0/20",)),
        copied(1, {"b": {"0": 70}}, floors=("0/20",)),
        {**streaming, "offsets": {"a": {"0": 51}}},
        {**streaming, "offsets": {"a": {"0": 52}}, "commit_lsn": "0/20"},
    ]
    commits = [commit_of(one, loading=True) for one in records]
    reached, found = {}, []
    for known in range(1, 6):
        reached = cut_of(reached, commits[:known], BatchLimits(max_rows=1))
        found.append((of_topics(reached), sorted(loading_of(reached))))
    assert found == [
        ({"a": {"0": 50}}, ["a", "b"]),
        ({"a": {"0": 50}, "b": {"0": 60}}, ["a", "b"]),
        ({"a": {"0": 50}, "b": {"0": 70}}, ["a", "b"]),
        ({"a": {"0": 50}, "b": {"0": 70}}, ["a", "b"]),
        ({"a": {"0": 52}, "b": {"0": 70}}, []),
    ]
    assert cut_of({}, [commit_of(one) for one in records[:4]]) == {}, "for other queries it is one commit"
    assert cut_of({}, [commit_of(one) for one in records]) == {"a": {"0": 52}, "b": {"0": 70}}


def after_compaction(ends: Offsets, commits: list[Commit]) -> list[Commit] | None:
    """Return the records from the first one on that can be taken alone, None without one."""
    placed = [replace(one, place=10 + at) for at, one in enumerate(commits)]
    entry = Entry()
    for one in placed:
        entry.add(one)
    again = complete_commits(placed)
    first = entry.first(ends, again)
    assert (first is None) is (entry.place(ends) is None)
    return None if first is None else [first, *again]


def test_after_a_compaction_the_first_cut_is_before_a_snapshot() -> None:
    ends = {"a": {"0": 90, "1": 7}, "c": {"0": 4}}
    commits = [commit_of(one) for one in [BEFORE, progress_value(2, {"a": {"1": 6}}), *COPIED, COMPLETE]]
    completed = after_compaction(ends, commits[:5])
    assert completed is not None
    assert of_topics(cut({}, completed)) == {"a": {"0": 5, "1": 6}, "c": {"0": 4}}
    whole = after_compaction(ends, commits)
    assert whole is not None
    assert of_topics(cut({}, whole)) == {"a": {"0": 50, "1": 70}, "b": {"0": 30}, "c": {"0": 4}}
    for unknown in (commits[2:5], [commits[0], *commits[2:5]], []):
        assert after_compaction(ends, unknown) is None, (
            "where the snapshot begins in a partition is not known"
        )


def test_after_a_compaction_records_are_one_until_each_partition_was_named() -> None:
    """A partition that is named first by a later record may have had records all the time."""
    ends = {"a": {"0": 30, "1": 8, "2": 5}}
    commits = [Commit(f"0/{n}", {"a": {"0": 10 * n}}) for n in (1, 2, 3)]
    commits[1:2] = [Commit("0/2", {"a": {"0": 20, "1": 8}})]
    found = after_compaction(ends, commits)
    assert found is not None
    assert [one.offsets for one in found] == [{"a": {"0": 20, "1": 8, "2": 5}}, {"a": {"0": 30}}]
    found = after_compaction(ends, [part("0/1", {"a": {"1": 8}}), *commits])
    assert found is not None
    assert [one.offsets for one in found] == [
        {"a": {"0": 10, "1": 8, "2": 5}},
        {"a": {"0": 20, "1": 8}},
        {"a": {"0": 30}},
    ]
    assert after_compaction(ends, [*commits, part("0/4", {"b": {"0": 1}})]) is None


def test_a_commit_names_nothing_of_a_former_topic() -> None:
    left = without(COMMITS[1], frozenset({"a", "x"}))
    assert (left.offsets, left.former) == ({}, {"a"})
    assert without(COMMITS[2], frozenset({"a"})) == COMMITS[2]
    assert cut({}, [without(one, frozenset({"a"})) for one in COMMITS]) == {"b": {"0": 100}}
    assert as_one(None, [COMMITS[0], left])[0].former == {"a"}
    assert commit_of_query(left, frozenset({"b"}), loading=False).former == frozenset()


def test_offsets_have_the_ids_of_topics_with_records() -> None:
    offsets = {"a": {"0": 5}, "b": {"0": 0}, "c": {"1": 1}}
    marked = with_ids(offsets, {"a": 1 << 47, "b": 8, "d": 9})
    assert ids_of(marked) == {"a": 1 << 47}
    assert of_topics(marked) == offsets
    assert json.loads(json.dumps(marked)) == marked
    assert with_ids(marked, {"a": 1 << 47}) == marked


def test_a_commit_costs_what_it_names() -> None:
    """With hundreds of tables, a look at each of them for each commit took minutes for a backlog."""
    start = {f"t{n}": {"0": 5} for n in range(900)}
    commits = [Commit(f"0/{n}", {f"t{n}": {"0": 6}}) for n in range(1, 4)]
    seen_by: list[tuple[Offsets, Offsets]] = []

    def between(before: Offsets, after: Offsets) -> float:
        seen_by.append((before, after))
        return 1.0

    end = cut(start, commits, BatchLimits(max_bytes=100, bytes_between=between))
    assert end == start | {f"t{n}": {"0": 6} for n in range(1, 4)}
    assert seen_by == [({f"t{n}": {"0": 5}}, {f"t{n}": {"0": 6}}) for n in range(1, 4)]


@pytest.mark.parametrize("change", [{"phase": "paused"}, {"phase": None}, {"snapshot_tables": [1]}])
def test_an_unknown_phase_is_an_error(change: dict) -> None:
    with pytest.raises(ProgressUnreadable):
        commit_of({**copied(1, {}), **change})


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


def test_the_position_of_a_record_has_its_server_and_timeline() -> None:
    identity = SourceIdentity("7", 3, "shop", "s", timeline_lsn=0x300)
    found = parse_progress(dump(Progress(identity, "streaming", 0x400, 0x408, 0)))
    assert found.position == SlotPosition(0x408, "7", 3, 0x300)
    assert parse_progress(progress_value(1, {})).position == SlotPosition(9, "1", 1, 0)
