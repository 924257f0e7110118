"""The positions of a snapshot: what a crash at each of them leaves to the next attempt."""

from __future__ import annotations

from cdcd.ack.group import CommitPosition
from cdcd.model import CopyState
from cdcd.snapshot.copy_progress import CopyProgress


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
    progress.begin("b")
    assert progress.so_far() == CommitPosition(
        0, 500, 7, 0, "snapshot", ("b",), copy=CopyState((1, 2, 3), {}, 500)
    )
    progress.complete(2)
    progress.begin("a")
    assert progress.so_far() == CommitPosition(
        0, 500, 7, 0, "snapshot", ("b", "a"), copy=CopyState((1, 3), {}, 500)
    )


def test_at_the_end_the_stream_begins_and_the_first_attempt_has_no_floors() -> None:
    progress = first_attempt()
    for relid in (1, 2, 3):
        progress.complete(relid)
    assert progress.done() == CommitPosition(499, 500, 9, 0, "streaming", ())


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
    left = CopyState((1,), {9: 700, 3: 800}, 800)
    assert progress.so_far() == CommitPosition(0, 500, 7, 0, "snapshot", ("a", "b"), copy=left)
    progress.complete(1)
    done = progress.done()
    assert (done.commit_lsn, done.end_lsn, done.phase, done.snapshot_tables) == (499, 500, "streaming", ())
    assert done.copy == CopyState((), {9: 700, 3: 800, 1: 800}, 800)


def test_a_position_is_not_changed_by_what_is_copied_after_it() -> None:
    progress = first_attempt()
    before = progress.so_far()
    progress.begin("a")
    progress.complete(1)
    assert before.copy == CopyState((1, 2, 3), {}, 500)
    assert before.snapshot_tables == ()
