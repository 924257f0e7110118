"""Two slots of one name share a progress topic: their commits, snapshots and loading tables are apart."""

from __future__ import annotations

from typing import Any

import pytest

from cdcd.errors import SnapshotIncomplete
from cdcd.lsn import format_lsn
from cdcd.spark.source import progress_reader
from cdcd.spark.source.cuts import loading_of
from tests.support.planned import Planned, PlannedTopic, Query, T, U, V, X, read


@pytest.fixture
def kafka(kafka: Planned) -> Planned:
    """Return a Kafka with some topics, each with records that no progress record names."""
    kafka.topics = {T: PlannedTopic("t", 100), U: PlannedTopic("u", 100), V: PlannedTopic("v", 100)}
    return kafka


def both(kafka: Planned) -> None:
    """Write a commit of each slot."""
    kafka.progress(5, {T: 1, V: 1}, "a")
    kafka.progress(6, {U: 1}, "b")


@pytest.mark.parametrize("limits", [{}, {"maxCommits": "1"}, {"maxRows": "1"}])
@pytest.mark.parametrize("is_new_process", [True, False])
def test_no_batch_ends_inside_a_transaction_of_the_other_slot(
    kafka: Planned, limits: dict[str, str], is_new_process: bool
) -> None:
    both(kafka)
    query = Query(**limits)
    while query.batch():
        pass
    kafka.progress(10, {T: 10}, "a", is_part=True)
    kafka.progress(20, {U: 2}, "b")
    kafka.progress(10, {V: 20}, "a", is_part=True)
    kafka.progress(30, {U: 3}, "b")
    if is_new_process:
        query.again()
    found = [query.batch() for _ in range(3)]
    assert found == ([{U: (1, 2)}, {U: (2, 3)}, {}] if limits else [{U: (1, 3)}, {}, {}])
    kafka.progress(40, {T: 11}, "a")
    assert query.batch() == {T: (1, 11), V: (1, 20)}


@pytest.mark.parametrize("first", ["a", "b"])
def test_no_batch_ends_inside_a_snapshot_of_the_other_slot(kafka: Planned, first: str) -> None:
    """It may run for hours: the other slot's topics go on, those of the snapshot are as before it."""
    records = [
        lambda: kafka.progress(10, {T: 10}, "a", snapshot=[T]),
        lambda: kafka.progress(20, {U: 100}, "b"),
    ]
    for write in records if first == "a" else reversed(records):
        write()
    kafka.topics[V].end = 0
    kafka.progress(10, {T: 20}, "a", snapshot=[T])
    query = Query()
    assert query.batch() == {U: (0, 100)}
    assert query.batch() == query.again().batch() == {}
    assert read() == {U: (0, 100)}
    with pytest.raises(SnapshotIncomplete):
        read(startingLsn=format_lsn(25))
    for loading in ("false", "true"):
        assert Query(startingOffsets="latest", loading=loading).reader.initialOffset()[T] == {"0": 0}
    kafka.progress(10, {T: 30}, "a", snapshot=[T])
    assert query.batch() == {}
    kafka.progress(40, {T: 31}, "a")
    assert query.batch() == {T: (0, 31)}
    assert read(startingOffsets="snapshot_end") == {}
    assert Query().batch() == {T: (0, 31), U: (0, 100)}


def test_a_repeated_snapshot_of_one_slot_does_not_stop_the_other(kafka: Planned) -> None:
    both(kafka)
    query = Query()
    query.batch()
    kafka.progress(10, {T: 10}, "a", snapshot=[T])
    kafka.progress(20, {U: 2}, "b")
    assert query.again().batch() == {U: (1, 2)}
    kafka.progress(20, {}, "b")
    kafka.progress(30, {T: 20, V: 5}, "a")
    assert query.batch() == {T: (1, 20), V: (1, 5)}


def test_there_is_no_snapshots_end_while_the_only_one_runs(kafka: Planned) -> None:
    both(kafka)
    kafka.progress(10, {T: 10}, "a", snapshot=[T])
    kafka.progress(20, {U: 2}, "b")
    with pytest.raises(SnapshotIncomplete):
        read(startingOffsets="snapshot_end")


def test_a_table_is_loading_until_all_of_its_rows_are_in_a_batch(kafka: Planned) -> None:
    """The last rows of a copy are a part until the stream has passed the point of the copy."""
    both(kafka)
    kafka.progress(10, {T: 10}, "a", loading=[T])
    query = Query(loading="true")
    query.batch()
    kafka.progress(12, {T: 20}, "a", is_part=True)
    kafka.progress(20, {U: 3}, "b")
    assert T not in query.batch()
    assert loading_of(query.ends[-1]) == {T}
    kafka.progress(30, {}, "a")
    assert query.batch()[T] == (10, 20)
    assert loading_of(query.ends[-1]) == frozenset()


def test_a_table_is_loading_whatever_the_other_slot_writes(kafka: Planned) -> None:
    query = Query(loading="true", maxCommits="1")
    both(kafka)
    kafka.progress(10, {T: 10}, "a", loading=[T])
    kafka.progress(20, {U: 2}, "b")
    kafka.progress(30, {V: 2}, "a", snapshot=[V])
    kafka.progress(40, {U: 3}, "b")
    kafka.progress(50, {T: 11}, "a")
    while query.batch():
        pass
    assert [sorted(loading_of(end)) for end in query.ends][-5:] == [[T], [T], [V], [V], []]


def test_a_slot_that_replaced_another_takes_over_its_topics(kafka: Planned) -> None:
    """The former one ended within a snapshot, whose last record remains for ever."""
    kafka.topics[X] = PlannedTopic("x", 3)
    kafka.describe(T, U, V, X, slot="old")
    kafka.progress(10, {T: 10, U: 5, X: 3}, "old", snapshot=[T, U])
    kafka.describe(T, U, V, X)
    for _ in range(2):
        kafka.progress(20, {T: 12, U: 9, V: 100}, snapshot=[T, U])
        kafka.compact(["s"], kafka.place - 1)
    kafka.progress(30, {U: 10})
    query, loading = Query(), Query(loading="true")
    assert query.batch() == {T: (0, 12), U: (0, 10), V: (0, 100), X: (0, 3)}
    while loading.batch():
        pass
    assert loading_of(loading.ends[-1]) == frozenset()
    kafka.compact(["s"], kafka.place - 1)
    loading = Query(loading="true")
    while loading.batch():
        pass
    assert loading_of(loading.ends[-1]) == frozenset(), "no record is left that names T"


def test_a_slot_that_takes_a_table_over_from_a_running_one_loads_it(kafka: Planned) -> None:
    kafka.describe(T, V, slot="a")
    both(kafka)
    kafka.describe(T, U, slot="b")
    kafka.progress(10, {T: 10}, "b", loading=[T])
    kafka.progress(20, {V: 2}, "a")
    query = Query(loading="true")
    query.batch()
    assert loading_of(query.ends[-1]) == {T}


def at_rest(kafka: Planned, *, is_compacted: bool) -> None:
    """Write a commit of a slot that rests since, and those of another one; only its last ones may be left."""
    kafka.topics = {T: PlannedTopic("t", 40), U: PlannedTopic("u", 100), X: PlannedTopic("x", 1)}
    kafka.progress(5, {X: 1}, "old")
    kafka.progress(8, {T: 10, U: 3})
    for n in range(4, 9):
        kafka.progress(10 * n, {U: n} if n > 6 else {T: 5 * n + 10, U: n})
    if is_compacted:
        kafka.compact(["s"], kafka.place)
    kafka.progress(100, {U: 9})
    kafka.progress(110, {U: 10})


@pytest.mark.parametrize("limits", [{}, {"maxCommits": "1"}])
def test_a_hole_in_the_records_of_one_slot_is_found_behind_those_of_another(
    kafka: Planned, limits: dict[str, str]
) -> None:
    """The rows of T would come when it is named again: for a table that rests, never."""
    at_rest(kafka, is_compacted=True)
    query = Query(**limits)
    query.reached = {T: {"0": 10}, U: {"0": 3}, X: {"0": 1}}
    moves = query.batch()
    assert (moves[T], moves[U][0]) == ((10, 40), 3)


def test_a_hole_is_found_where_no_record_with_offsets_is_left(kafka: Planned) -> None:
    at_rest(kafka, is_compacted=True)
    kafka.compact(["s"], kafka.place)
    kafka.progress(120, {})
    query = Query()
    query.reached = {T: {"0": 10}, U: {"0": 3}, X: {"0": 1}}
    assert query.batch() == {T: (10, 40), U: (3, 100)}


def test_a_restart_takes_the_records_one_by_one_where_each_slot_has_one_that_was_read(
    kafka: Planned,
) -> None:
    at_rest(kafka, is_compacted=False)
    query = Query(maxCommits="1")
    query.reached = {T: {"0": 10}, U: {"0": 3}, X: {"0": 1}}
    assert query.batch() == {T: (10, 30), U: (3, 4)}
    assert query.batch() == {T: (30, 35), U: (4, 5)}


def test_a_slot_of_other_topics_does_not_matter(kafka: Planned) -> None:
    kafka.topics[X] = PlannedTopic("x", 9)
    kafka.describe(X, slot="old")
    kafka.progress(5, {X: 1}, "old")
    kafka.describe(T, U, V)
    for n in range(1, 6):
        kafka.progress(10 * n, {U: n})
    kafka.progress(60, {V: 1})
    query = Query(topics=f"{U},{V}", maxCommits="1")
    query.reached = {U: {"0": 2}}
    assert [query.batch() for _ in range(2)] == [{U: (2, 3)}, {U: (3, 4)}]


def test_a_restart_parses_only_the_first_records_to_find_holes(
    kafka: Planned, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a topic with the records of days it parses each record once."""
    at_rest(kafka, is_compacted=False)
    for n in range(11, 30):
        kafka.progress(10 * n, {U: n})
    parsed: list[bytes] = []
    original = progress_reader.parse_progress
    monkeypatch.setattr(
        progress_reader, "parse_progress", lambda value: parsed.append(value) or original(value)
    )
    query = Query()
    query.reached = {T: {"0": 10}, U: {"0": 3}, X: {"0": 1}}
    query.batch()
    assert len(parsed) <= len(kafka.log) + 6


# --- a topic of both -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("slots", "is_shared"),
    [
        ("aaaa", False),
        ("aabb", False),
        ("aba", False),  # a retired slot is used again
        ("abab", True),
        ("abcabc", True),
    ],
)
def test_a_topic_is_shared_if_two_slots_write_in_turns(kafka: Planned, slots: str, is_shared: bool) -> None:
    for number, slot in enumerate(slots):
        own = {U: number + 1} if slot == "a" else {}
        kafka.progress(10 * number, {T: number + 1, **own}, slot)
    query = Query()
    query.batch()
    assert query.reader.shared == ({T: tuple(sorted(set(slots)))} if is_shared else {})
    query.again().batch()
    assert bool(query.reader.shared) == is_shared


def test_a_topic_whose_copy_waits_or_was_stopped_is_found_to_be_shared(kafka: Planned) -> None:
    """Each record of the slot has it among the loading ones, perhaps for ever; no copy begins with any of them."""
    kafka.describe(T, U, slot="a", incomplete={"begun": {"7": T}})
    for number, slot in enumerate("abab"):
        kafka.progress(10 * number, {T: number + 1, U: number + 1}, slot)
    query = Query(loading="true")
    query.batch()
    assert query.reader.shared == {T: ("a", "b"), U: ("a", "b")}


def test_a_topic_is_not_shared_any_more_after_a_copy(kafka: Planned) -> None:
    for number, slot in enumerate("abab"):
        kafka.progress(10 * number, {T: number + 1}, slot)
    kafka.progress(50, {T: 10}, "b", loading=[T])
    query = Query(loading="true")
    query.batch()
    assert query.reader.shared == {}
    for number, slot in enumerate("bbabab"):
        kafka.progress(60 + number, {T: 11 + number}, slot)
    query.batch()
    assert query.reader.shared == {T: ("a", "b")}


def retired(kafka: Planned) -> None:
    """Let slot b go on without the table of T, which lacks rows, and was dropped."""
    kafka.topics = {T: PlannedTopic("t", 10), U: PlannedTopic("u", 50)}
    kafka.describe(T, U, slot="a", incomplete={"begun": {"1": T}})
    kafka.progress(10, {T: 10, U: 10}, "a")
    kafka.describe(U, slot="b")
    kafka.progress(20, {U: 20}, "b")


@pytest.mark.parametrize("has_read", [True, False], ids=["has read the topic", "a new query"])
def test_a_retired_slot_whose_topics_were_deleted_does_not_hold_readers_back(
    kafka: Planned, has_read: bool
) -> None:
    """Its last record says that a table lacks rows, and nothing follows it: neither list nor position ends."""
    retired(kafka)
    query = Query(loading="true")
    if has_read:
        query.batch()
        assert loading_of(query.ends[-1]) == {T}
        assert query.reader.position(query.ends[-1]).end_lsn == 18
    with pytest.raises(SnapshotIncomplete):
        read()
    del kafka.topics[T]
    kafka.progress(30, {U: 30}, "b")
    query.batch()
    assert loading_of(query.ends[-1]) == frozenset()
    assert query.reader.position(query.ends[-1])[:1] == (38,)
    query.again()
    kafka.progress(40, {U: 40}, "b")
    query.batch()
    position = query.reader.position(query.ends[-1])
    assert (position.end_lsn, position.ended) == (48, {"a"})
    assert read() == {U: (0, 40)}
    assert read(startingLsn=format_lsn(35)) == {U: (30, 40)}


def test_a_retired_slot_is_ended_although_it_left_a_part_of_a_transaction(kafka: Planned) -> None:
    retired(kafka)
    kafka.progress(25, {T: 11}, "a", is_part=True)
    del kafka.topics[T]
    kafka.progress(30, {U: 30}, "b")
    assert read() == {U: (0, 30)}


@pytest.mark.parametrize("last", [{"is_part": True}, {"snapshot": [T]}], ids=["part", "snapshot"])
@pytest.mark.parametrize("loading", ["true", "false"])
def test_a_new_query_does_not_wait_for_the_last_transaction_of_a_retired_slot(
    kafka: Planned, last: dict[str, Any], loading: str
) -> None:
    """No complete commit of the slot names the topic, and compaction has removed nothing yet."""
    kafka.topics = {T: PlannedTopic("t", 10), U: PlannedTopic("u", 30)}
    kafka.describe(T, U, slot="a")
    kafka.progress(5, {U: 5}, "a")
    kafka.progress(10, {T: 10}, "a", **last)
    kafka.describe(U, slot="b")
    kafka.progress(20, {U: 20}, "b")
    kafka.progress(30, {U: 30}, "b")
    waiting = Query()
    assert waiting.batch() == {}, "the slot may go on"
    del kafka.topics[T]
    assert read() == waiting.batch() == {U: (0, 30)}
    query = Query(loading=loading)
    assert query.batch() == {U: (0, 30)}
    kafka.topics[U].end = 40
    kafka.progress(40, {U: 40}, "b")
    query.again()
    assert query.batch() == {U: (30, 40)}
    assert query.reader.position(query.ends[-1]).end_lsn == 48


def after_the_retirement(kafka: Planned) -> Query:
    """Return a running query that has left out slot a, whose topic was deleted."""
    retired(kafka)
    query = Query(loading="true")
    query.batch()
    del kafka.topics[T]
    kafka.progress(30, {U: 30}, "b")
    query.batch()
    assert query.reader.position(query.ends[-1]).ended == {"a"}
    return query


def test_a_slot_that_runs_without_topics_has_a_position(kafka: Planned) -> None:
    """`wait` for the slot ends; and its records are not a reason to look for its topics each time."""
    query = after_the_retirement(kafka)
    kafka.describe(slot="a", incomplete={})
    for lsn in (40, 50):
        kafka.asked.clear()
        kafka.progress(lsn, {}, "a")
        kafka.progress(lsn + 5, {U: lsn}, "b")
        query.batch()
        slots = query.reader.position(query.ends[-1]).slots
        assert (slots["a"].end_lsn, slots["b"].end_lsn) == (lsn + 8, lsn + 13)
        assert loading_of(query.ends[-1]) == frozenset()
        assert T not in kafka.asked
    kafka.progress(70, {U: 46}, "b")
    query.batch()
    position = query.reader.position(query.ends[-1])
    assert (position.end_lsn, position.ended) == (78, {"a"}), "it has retired"


def test_a_slot_lives_again_with_its_next_record_after_its_topics_were_deleted(kafka: Planned) -> None:
    query = after_the_retirement(kafka)
    kafka.topics[X] = PlannedTopic("x", 5)
    kafka.describe(X, slot="a", incomplete={"begun": {"2": X}})
    kafka.progress(35, {X: 5}, "a")
    assert query.batch()[X] == (0, 5)
    assert loading_of(query.ends[-1]) == {X}
    position = query.reader.position(query.ends[-1])
    assert (position.end_lsn, position.ended) == (38, frozenset())


def test_a_slot_that_has_one_topic_left_is_waited_for(kafka: Planned) -> None:
    """It may be one that runs, and whose topic was deleted by mistake."""
    retired(kafka)
    kafka.topics[V] = PlannedTopic("v", 5)
    kafka.describe(T, U, V, slot="a", incomplete={"begun": {"1": T}})
    kafka.progress(25, {V: 5}, "a")
    kafka.describe(U, slot="b")
    del kafka.topics[T]
    kafka.progress(40, {U: 30}, "b")
    query = Query(loading="true")
    query.batch()
    assert loading_of(query.ends[-1]) == {T}
    assert query.reader.position(query.ends[-1]).end_lsn == 33


def test_an_only_slot_is_not_ended(kafka: Planned) -> None:
    kafka.topics = {T: PlannedTopic("t", 10)}
    kafka.describe(T, slot="a")
    kafka.progress(10, {T: 10}, "a")
    query = Query(loading="true")
    query.batch()
    del kafka.topics[T]
    kafka.progress(20, {}, "a")
    query.batch()
    position = query.reader.position(query.ends[-1])
    assert (position.end_lsn, position.ended) == (28, frozenset())
