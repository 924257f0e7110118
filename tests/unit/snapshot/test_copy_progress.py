"""The positions of a snapshot: what a crash at each of them leaves to the next attempt."""

from __future__ import annotations

from itertools import pairwise

from cdcd.ack.group import CommitPosition
from cdcd.model import CopyState, TableCopyState
from cdcd.snapshot.copy_progress import CopyProgress
from cdcd.snapshot.key_sql import key_columns
from cdcd.snapshot.units import Blocks, CopiedTable, CopyUnit, KeyRange, join_ranges


def first_attempt() -> CopyProgress:
    progress = CopyProgress(
        point_lsn=500,
        stream_lsn=500,
        written_commit_lsn=0,
        since_us=7,
        before_us=9,
        begun_topics=(),
    )
    progress.to_copy([1, 2, 3])
    return progress


def test_a_table_is_pending_until_it_is_complete_and_its_topic_begun_from_its_first_row() -> None:
    progress = first_attempt()
    position = CommitPosition(0, 500, 7, 0, "snapshot", (), copy=CopyState((1, 2, 3), {}, 500))
    assert progress.so_far() == position
    progress.begin(2, "b")
    assert progress.so_far() == CommitPosition(
        0, 500, 7, 0, "snapshot", ("b",), copy=CopyState((1, 2, 3), {}, 500)
    )
    progress.complete(2)
    progress.begin(1, "a")
    assert progress.so_far() == CommitPosition(
        0, 500, 7, 0, "snapshot", ("b", "a"), copy=CopyState((1, 3), {}, 500)
    )


def test_at_the_end_the_stream_begins_and_the_first_attempt_has_no_floors() -> None:
    progress = first_attempt()
    for relid in (1, 2, 3):
        progress.complete(relid)
    progress.tx_seq = 12
    copied = CopyState((), {}, 500, tx_seq=12)  # until the stream has passed the point
    assert progress.done() == CommitPosition(499, 500, 9, 0, "streaming", (), copy=copied)


def test_a_later_attempt_begins_the_stream_at_the_first_point_and_has_floors() -> None:
    progress = CopyProgress(
        point_lsn=800,
        stream_lsn=500,
        written_commit_lsn=0,
        since_us=7,
        before_us=7,
        begun_topics=("a", "b"),
        before=CopyState((1, 2, 3), {9: 700}, 700),
    )
    progress.to_copy([1, 3])  # 2 is not published any more
    assert progress.is_begun("a")
    assert not progress.is_begun("c")
    progress.complete(3)
    left = CopyState((1,), {9: 700, 3: 800}, 800, partial=(2,))
    assert progress.so_far() == CommitPosition(0, 500, 7, 0, "snapshot", ("a", "b"), copy=left)
    progress.complete(1)
    done = progress.done()
    assert (done.commit_lsn, done.end_lsn, done.phase, done.snapshot_tables) == (499, 500, "streaming", ())
    assert done.copy == CopyState((), {9: 700, 3: 800, 1: 800}, 800, partial=(2,))


def test_a_position_is_not_changed_by_what_is_copied_after_it() -> None:
    progress = first_attempt()
    before = progress.so_far()
    progress.begin(1, "a")
    progress.complete(1)
    assert before.copy == CopyState((1, 2, 3), {}, 500)
    assert before.snapshot_tables == ()


def units(relid: int, *ranges: Blocks | KeyRange, can_continue: bool = True) -> list[CopyUnit]:
    table = CopiedTable(relid, "s", "t", ("id",), None, is_partitioned=False, can_continue=can_continue)
    return [CopyUnit(table, number, None, one) for number, one in enumerate(ranges)]


RANGES = [Blocks(0, 9, 0, 16), Blocks(0, 9, 16, 32), Blocks(0, 9, 32, 48), Blocks(0, 9, 48, None)]


def test_what_is_left_of_a_large_table_with_a_key_is_known_by_its_blocks() -> None:
    progress = first_attempt()
    large, keyless, small = (
        units(1, *RANGES),
        units(2, *RANGES, can_continue=False),
        units(3, Blocks(0, 8, 0, None)),
    )
    progress.plan([*large, *keyless, *small], {})
    progress.complete_units([large[1], keyless[1], small[0]], "topic")
    left = TableCopyState("topic", ("0/9/0/16", "0/9/32/"), is_by_blocks=True)
    assert progress.so_far().copy == CopyState((1, 2, 3), {}, 500, tables={1: left})
    progress.complete_units([large[2], large[0]], "topic")
    left = TableCopyState("topic", ("0/9/48/",), is_by_blocks=True)
    assert progress.so_far().copy == CopyState((1, 2, 3), {}, 500, tables={1: left})
    progress.complete(1)
    assert progress.so_far().copy == CopyState((2, 3), {}, 500)


def key_ranges(*order: str) -> list[KeyRange]:
    operators = [("pg_catalog", name) for name in ("<", "<=", "=", ">=", ">")]
    (column,) = key_columns([("id", "pg_catalog", "int8", None, None, operators)])
    return [KeyRange(column, *bounds, order) for bounds in pairwise([None, "10", "20", "30", None])]


def test_a_table_of_which_ranges_of_keys_are_complete_is_continued_behind_them() -> None:
    """An incremental snapshot continues at one key: only the ranges without an incomplete one before them count."""
    progress, large = first_attempt(), units(1, *key_ranges("id", "n"))
    progress.plan([*large, *units(2, *key_ranges())], {})
    progress.complete_units([large[2], units(2, *key_ranges())[0]], "topic")
    assert progress.so_far().copy == CopyState((1, 2, 3), {}, 500)
    progress.complete_units([large[0]], "topic")
    left = TableCopyState("topic", ("10",), key=("id", "n"))
    assert progress.so_far().copy == CopyState((1, 2, 3), {}, 500, tables={1: left})
    progress.complete_units([large[1]], "topic")
    left = TableCopyState("topic", ("30",), key=("id", "n"))
    assert progress.so_far().copy == CopyState((1, 2, 3), {}, 500, tables={1: left})
    progress.complete(1)
    assert progress.so_far().copy == CopyState((2, 3), {}, 500)


def test_an_incremental_snapshot_continues_a_table_from_which_ranges_are_left() -> None:
    """The other tables are copied in a later snapshot, before the stream."""
    left = TableCopyState("topic", ("0/9/48/",), is_by_blocks=True)
    progress = CopyProgress(
        point_lsn=800,
        stream_lsn=500,
        written_commit_lsn=0,
        since_us=7,
        before_us=7,
        begun_topics=("topic", "other"),
        before=CopyState((1, 2), {}, 500, tables={1: left}),
        later=[1],
    )
    progress.to_copy([2])
    assert progress.so_far().copy == CopyState((2, 1), {}, 800, tables={1: left}), "it may not be continued"
    progress.complete(2)
    assert progress.done().copy == CopyState((), {2: 800}, 800, tables={1: left})


def test_a_table_that_is_copied_again_has_no_ranges_left() -> None:
    left = TableCopyState("topic", ("0/9/48/",), is_by_blocks=True)
    progress = CopyProgress(
        point_lsn=800,
        stream_lsn=500,
        written_commit_lsn=0,
        since_us=7,
        before_us=7,
        begun_topics=("topic",),
        before=CopyState((1,), {}, 500, tables={1: left}),
    )
    progress.to_copy([1])
    assert progress.so_far().copy == CopyState((1,), {}, 800)


def test_a_table_that_is_given_up_keeps_its_floor() -> None:
    """F40: the rows of an earlier attempt that its topic has are newer than the stream's changes below the floor."""
    left = TableCopyState("topic", ("0/9/48/",), is_by_blocks=True)
    progress = CopyProgress(
        point_lsn=900,
        stream_lsn=500,
        written_commit_lsn=0,
        since_us=7,
        before_us=7,
        begun_topics=("topic",),
        before=CopyState((1, 2, 4), {1: 800, 3: 800}, 800, tables={1: left}),
    )
    progress.to_copy([2])
    assert progress.so_far().copy == CopyState((2,), {1: 800, 3: 800}, 900, partial=(1, 4))
    assert (progress.streamed_from(1), progress.streamed_from(4)) == (800, 500)


def later_attempt(before: CopyState, to_copy: list[int], later: list[int] | None = None) -> CopyProgress:
    progress = CopyProgress(
        point_lsn=900,
        stream_lsn=500,
        written_commit_lsn=0,
        since_us=7,
        before_us=7,
        begun_topics=("topic",),
        before=before,
        later=later or (),
    )
    progress.to_copy(to_copy)
    return progress


def test_a_table_that_is_given_up_is_partial_until_it_is_copied() -> None:
    """The next attempt copies it if it is included again; without a copy, its topic lacks rows."""
    given_up = later_attempt(CopyState((1, 2, 3), {}, 800), [2])
    assert given_up.so_far().copy == CopyState((2,), {}, 900, partial=(1, 3))
    given_up.complete(2)
    done = given_up.done().copy
    assert done is not None
    assert done.partial == (1, 3)
    streaming = done.left_at(2_000)
    assert streaming == CopyState(partial=(1, 3)), "as long as the stream runs"
    again = later_attempt(given_up.so_far().copy or CopyState(), [3])
    assert again.so_far().copy == CopyState((3,), {2: 900}, 900, partial=(1,))
    nothing = later_attempt(again.so_far().copy or CopyState(), [])
    assert nothing.so_far().copy == CopyState((), {2: 900}, 900, partial=(1, 3))


def test_a_table_that_is_excluded_from_the_first_attempt_on_is_known_until_the_snapshot_is_complete() -> None:
    """A later attempt copies it if it is included. When the stream runs, the configuration tells that it is not."""
    first = first_attempt()
    first.to_copy([1, 2], excluded=[3, 4])
    assert first.so_far().copy == CopyState((1, 2), {}, 500, excluded=(3, 4))
    again = later_attempt(first.so_far().copy or CopyState(), [2, 3])
    assert again.so_far().copy == CopyState((2, 3), {}, 900, partial=(1,), excluded=(4,))
    done = again.done().copy
    assert done is not None
    assert (done.partial, done.excluded) == ((1,), ())


def test_a_table_that_is_continued_later_is_not_given_up() -> None:
    left = TableCopyState("topic", ("0/9/48/",), is_by_blocks=True)
    progress = later_attempt(CopyState((1, 2), {}, 800, tables={1: left}), [], later=[1])
    assert progress.so_far().copy == CopyState((1,), {}, 900, tables={1: left}, partial=(2,))


def test_the_first_row_of_a_later_snapshot_gives_its_table_a_floor() -> None:
    """F40: also a row of a range that is never completed."""
    progress = CopyProgress(
        point_lsn=800, stream_lsn=500, written_commit_lsn=0, since_us=7, before_us=7, begun_topics=("b",)
    )
    progress.to_copy([1, 2])
    assert progress.so_far().copy == CopyState((1, 2), {}, 800)
    progress.begin(2, "b")
    assert progress.so_far().copy == CopyState((1, 2), {2: 800}, 800)
    progress.begin(1, "a")
    position = progress.so_far()
    assert position.copy == CopyState((1, 2), {2: 800, 1: 800}, 800)
    assert position.snapshot_tables == ("b", "a")


def test_what_an_earlier_version_has_left_to_an_incremental_snapshot_is_incomplete() -> None:
    left = TableCopyState("topic", ("0/9/48/",), is_by_blocks=True)
    assert CopyState((2,), tables={1: left}).incomplete == {1, 2}
    assert not CopyState(floors={3: 800}).incomplete


def test_a_range_of_a_later_snapshot_gives_its_table_a_floor() -> None:
    progress = CopyProgress(
        point_lsn=800, stream_lsn=500, written_commit_lsn=0, since_us=7, before_us=7, begun_topics=()
    )
    progress.to_copy([1])
    large = units(1, *RANGES)
    progress.plan(large, {1: ("19:700",)})
    progress.complete_units(large[:1], "topic")
    left = TableCopyState("topic", ("0/9/16/",), is_by_blocks=True, partitions=("19:700",))
    assert progress.so_far().copy == CopyState((1,), {1: 800}, 800, tables={1: left})


def test_ranges_are_joined_where_they_follow_each_other_in_one_file() -> None:
    assert join_ranges([RANGES[3], RANGES[0], RANGES[2]]) == [Blocks(0, 9, 0, 16), Blocks(0, 9, 32, None)]
    assert join_ranges([Blocks(3, 9, 0, 16), Blocks(4, 8, 16, 32)]) == [
        Blocks(3, 9, 0, 16),
        Blocks(4, 8, 16, 32),
    ]
    assert [Blocks.parse(one.text) for one in RANGES] == RANGES
