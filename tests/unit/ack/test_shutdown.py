"""A server that shuts down requests replies repeatedly; other requests for a reply do not count as a shutdown."""

from __future__ import annotations

from cdcd.ack.shutdown import REPLY_REQUESTS, ShutdownWatch

SECOND_US = 1_000_000


def _asked(*questions: tuple[int, int]) -> bool:
    watch = ShutdownWatch()
    return any(watch.reply_requested(wal_end_lsn, now_us) for wal_end_lsn, now_us in questions)


def test_questions_that_follow_each_other_at_one_place_are_a_shutdown() -> None:
    for pause_us in (30, 200_000):
        assert _asked(*((500, at * pause_us) for at in range(REPLY_REQUESTS)))
        assert not _asked(*((500, at * pause_us) for at in range(REPLY_REQUESTS - 1)))


def test_questions_at_half_of_the_time_out_are_not() -> None:
    assert not _asked(*((500, at * SECOND_US) for at in range(10 * REPLY_REQUESTS)))


def test_questions_while_wal_moves_on_are_not() -> None:
    assert not _asked(*((500 + at, at) for at in range(10 * REPLY_REQUESTS)))
