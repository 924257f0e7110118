"""The lag in time: a table of cases, and a simulated server whose true lag is known."""

from __future__ import annotations

import random

import pytest

from cdcd.monitoring.lag import FRESH_US, MAX_SAMPLES, LagTracker, ServerTimeline, WalEnd
from tests.support.nightly import nightly_except

HERE = ServerTimeline("7", 1)
ELSEWHERE = ServerTimeline("8", 1)
S = 1_000_000


class Clock:
    """A clock of cdcd that starts at 0; the server's clock is `ahead_us` ahead."""

    now_us = 0
    ahead_us = 0

    def __call__(self) -> int:
        return self.now_us

    def server_us(self) -> int:
        return self.now_us + self.ahead_us


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def lag(clock: Clock) -> LagTracker:
    return LagTracker(clock, clock)


def look(lag: LagTracker, clock: Clock, lsn: int, of: ServerTimeline = HERE) -> None:
    lag.add_sample(WalEnd(of, lsn, clock.server_us(), clock.now_us, clock.now_us, lag.received_lsn))


def received(lag: LagTracker, end_lsn: int, commit_us: int) -> None:
    lag.began(commit_us)
    lag.ended(end_lsn, is_empty=False)


def test_before_anything_is_known_there_is_no_lag_and_not_0(lag: LagTracker, clock: Clock) -> None:
    assert lag.lag_us() is None
    look(lag, clock, 100)
    assert lag.lag_us() is None, "the server's position does not show what Kafka has"


def test_the_lag_grows_from_the_last_time_that_everything_was_received(lag: LagTracker, clock: Clock) -> None:
    lag.streams(HERE, 100, 0)
    clock.now_us = 5 * S
    look(lag, clock, 100)
    assert lag.lag_us() == 0
    clock.now_us = 6 * S
    assert lag.lag_us() == S, "no reading since then"
    look(lag, clock, 150)
    clock.now_us = 25 * S
    look(lag, clock, 170)
    assert lag.lag_us() == 20 * S
    lag.received(160)
    assert lag.lag_us() == 19 * S, "the WAL of the reading 19 s ago has been received"
    lag.received(170)
    assert lag.lag_us() == 0
    clock.now_us += FRESH_US + 1
    assert lag.lag_us() == FRESH_US + 1


def test_what_is_received_and_not_durable_counts_from_its_commit(lag: LagTracker, clock: Clock) -> None:
    lag.streams(HERE, 100, 0)
    clock.now_us = 10 * S
    received(lag, 150, 4 * S)
    look(lag, clock, 150)
    assert lag.lag_us() == 6 * S
    lag.durable(150, 4 * S)
    assert lag.lag_us() == 0


def test_what_comes_behind_the_durable_one_counts_from_its_commit(lag: LagTracker, clock: Clock) -> None:
    lag.streams(HERE, 100, 0)
    clock.now_us = 10 * S
    received(lag, 150, 4 * S)
    lag.began(7 * S)  # a long transaction, whose rows still arrive
    lag.durable(150, 4 * S)
    assert lag.lag_us() == 6 * S, "everything committed until 4 s is received"
    lag.ended(200, is_empty=False)
    assert lag.lag_us() == 3 * S
    lag.durable(200, 7 * S)
    look(lag, clock, 200)
    assert lag.lag_us() == 0


def test_an_empty_transaction_counts_only_behind_others(lag: LagTracker, clock: Clock) -> None:
    """F7: an empty transaction has no record that must become durable."""
    lag.streams(HERE, 10, 0)
    clock.now_us = 9 * S
    lag.began(5 * S)
    lag.ended(50, is_empty=True)
    look(lag, clock, 50)
    assert lag.lag_us() == 0
    received(lag, 100, 6 * S)
    lag.began(7 * S)
    lag.ended(200, is_empty=True)
    look(lag, clock, 200)
    assert lag.lag_us() == 3 * S
    lag.durable(200, 6 * S)
    assert lag.lag_us() == 0


def test_a_backlog_is_as_old_as_what_comes_of_it(lag: LagTracker, clock: Clock) -> None:
    """A server that decodes WAL from an hour ago sends its position: the next changes are an hour old too."""
    clock.now_us = 4_000 * S
    lag.streams(HERE, 100, 300 * S)
    look(lag, clock, 10_000)
    assert lag.lag_us() == 3_700 * S
    received(lag, 200, 400 * S)
    lag.durable(100, None)  # a position without a transaction
    assert lag.lag_us() == 3_600 * S
    lag.durable(200, 400 * S)
    assert lag.lag_us() == 3_600 * S
    lag.received(10_000)
    assert lag.lag_us() == 0


def test_wal_of_others_is_no_lag_once_it_is_received(lag: LagTracker, clock: Clock) -> None:
    """F11: a keepalive's WAL end includes the WAL of other databases, which only waits for the next idle position."""
    lag.streams(HERE, 100, 0)
    received(lag, 150, 0)
    lag.durable(150, 0)
    lag.received(500)
    look(lag, clock, 500)
    assert lag.lag_us() == 0


@pytest.mark.parametrize(
    ("start_lsn", "durable_us", "expected_us"),
    [
        (100, 0, 6 * S),  # no transaction is durable: both are sent again
        (150, 4 * S, 6 * S),  # the first transaction is durable: the other committed later
        (
            200,
            7 * S,
            2 * S,
        ),  # both are durable, by a commit without a reply (F76): received until the reading at 8 s
    ],
)
def test_what_a_session_has_left_counts_until_it_is_durable(
    lag: LagTracker, clock: Clock, start_lsn: int, durable_us: int, expected_us: int
) -> None:
    lag.streams(HERE, 100, 0)
    clock.now_us = 8 * S
    received(lag, 150, 4 * S)
    received(lag, 200, 7 * S)
    look(lag, clock, 200)
    for _ in range(3):  # sessions that end before they receive anything
        clock.now_us = 10 * S
        lag.streams(HERE, start_lsn, durable_us)
        look(lag, clock, 210)
        assert lag.lag_us() == expected_us
    lag.durable(start_lsn, None)  # an idle position is not a transaction
    assert lag.lag_us() == expected_us
    lag.received(210)
    assert lag.lag_us() == 0


def test_a_transaction_that_was_cut_off_counts_from_its_commit(lag: LagTracker, clock: Clock) -> None:
    lag.streams(HERE, 100, 0)
    clock.now_us = 8 * S
    look(lag, clock, 100)
    lag.began(3 * S)
    lag.streams(HERE, 100, 2 * S)
    assert lag.lag_us() == 5 * S


def test_a_progress_record_says_until_when_everything_is_durable(lag: LagTracker, clock: Clock) -> None:
    clock.now_us = 100 * S
    lag.recorded(HERE, 500, 40 * S)
    assert lag.lag_us() == 60 * S
    look(lag, clock, 510)
    assert lag.lag_us() == 60 * S
    clock.now_us = 101 * S
    look(lag, clock, 500)
    assert lag.lag_us() == 0, "the server has no WAL after the record"


def test_a_snapshot_counts_from_before_its_slot(lag: LagTracker, clock: Clock) -> None:
    clock.now_us = 100 * S
    lag.copies()
    look(lag, clock, 500)
    clock.now_us = 160 * S
    assert lag.lag_us() == 60 * S
    lag.streams(HERE, 490, 100 * S)
    assert lag.lag_us() == 60 * S
    lag.received(500)
    assert lag.lag_us() == 60 * S, "that reading is 60 s old"
    look(lag, clock, 500)
    assert lag.lag_us() == 0


def test_another_servers_wal_says_nothing(lag: LagTracker, clock: Clock) -> None:
    """F59: after a DNS change the query reaches another server, while the stream hangs."""
    lag.streams(HERE, 500, 0)
    look(lag, clock, 500)
    clock.now_us = 30 * S
    look(lag, clock, 400, ELSEWHERE)
    look(lag, clock, 400, ServerTimeline("7", 2))
    assert lag.lag_us() == 30 * S


def test_after_a_promotion_what_was_received_is_received_anew(lag: LagTracker, clock: Clock) -> None:
    """F58: the new timeline may use the same LSNs again."""
    lag.streams(HERE, 500, 0)
    received(lag, 900, 0)
    clock.now_us = 20 * S
    lag.streams(ServerTimeline("7", 2), 600, 0)
    look(lag, clock, 700, ServerTimeline("7", 2))
    assert lag.lag_us() == 20 * S
    lag.received(700)
    assert lag.lag_us() == 0


@pytest.mark.parametrize("ahead_s", [-3600, 3600])
def test_the_servers_clock_may_be_another(lag: LagTracker, clock: Clock, ahead_s: int) -> None:
    """F70: the lag uses the server's clock, and a clock that is ahead does not hide a stalled stream."""
    clock.ahead_us = ahead_s * S
    lag.streams(HERE, 100, 0)
    look(lag, clock, 100)
    received(lag, 150, clock.server_us())
    clock.now_us = 7 * S
    assert lag.lag_us() == 7 * S
    lag.durable(150, clock.ahead_us)
    assert lag.lag_us() == 7 * S


def test_a_slow_answer_makes_no_lag_and_a_clock_that_was_set_counts(lag: LagTracker, clock: Clock) -> None:
    look(lag, clock, 100)
    clock.now_us = 2 * S
    lag.add_sample(WalEnd(HERE, 100, 1_500_000, S, 2 * S))
    assert lag.now_us() == 2 * S


@pytest.mark.parametrize("set_us", [60 * S, -60 * S])
def test_a_servers_clock_that_is_set_changes_no_age(lag: LagTracker, clock: Clock, set_us: int) -> None:
    clock.now_us = 100 * S
    lag.streams(HERE, 100, 0)
    look(lag, clock, 100)
    received(lag, 150, 100 * S)
    lag.durable(150, 100 * S)
    clock.now_us = 110 * S
    look(lag, clock, 200)
    clock.ahead_us = set_us
    clock.now_us = 120 * S
    look(lag, clock, 300)
    assert lag.now_us() == clock.server_us()
    assert lag.lag_us() == 20 * S
    lag.received(200)
    assert lag.lag_us() == 10 * S
    lag.began(clock.server_us() - 3 * S)
    lag.received(300)
    assert lag.lag_us() == 3 * S


def test_a_commit_time_of_an_origin_ahead_does_not_hide_what_follows(lag: LagTracker, clock: Clock) -> None:
    lag.streams(HERE, 100, 0)
    look(lag, clock, 100)
    received(lag, 150, 3600 * S)
    lag.turned()
    lag.durable(150, 3600 * S)
    clock.now_us = 60 * S
    assert lag.lag_us() == 60 * S
    lag.streams(HERE, 150, 3600 * S)
    clock.now_us = 90 * S
    assert lag.lag_us() == 90 * S


def test_what_is_not_durable_counts_also_by_an_origin_whose_clock_is_ahead(
    lag: LagTracker, clock: Clock
) -> None:
    """Kafka accepts no records; the lag was 0 until the origin's commit time had passed."""
    lag.streams(HERE, 100, 0)
    look(lag, clock, 100)
    clock.now_us = 10 * S
    received(lag, 150, 3600 * S)
    lag.turned()
    look(lag, clock, 150)
    clock.now_us = 70 * S
    look(lag, clock, 150)
    assert lag.lag_us() == 70 * S, "its commit time is unknown, but after the reading at 0"
    received(lag, 200, 3700 * S)
    lag.durable(150, 3600 * S)
    look(lag, clock, 200)
    assert lag.lag_us() == 70 * S
    lag.durable(200, 3700 * S)
    assert lag.lag_us() == 0


def test_a_copy_of_the_server_that_lacks_what_was_received_says_nothing(
    lag: LagTracker, clock: Clock
) -> None:
    """F62: the copy has the server's system identifier and timeline, but its own commits are in no topic."""
    lag.recorded(HERE, 100, 0)
    look(lag, clock, 100)
    clock.now_us = 50 * S
    look(lag, clock, 90)
    assert lag.lag_us() == 50 * S
    look(lag, clock, 100)
    assert lag.lag_us() == 0


def test_a_snapshot_that_is_begun_anew_counts_from_when_it_was_first_behind(
    lag: LagTracker, clock: Clock
) -> None:
    """No later commit is in Kafka before the copy is complete."""
    lag.streams(HERE, 100, 0)
    look(lag, clock, 100)
    clock.now_us = 10 * S
    received(lag, 150, 10 * S)
    clock.now_us = 600 * S
    lag.copies()
    assert lag.lag_us() == 590 * S
    clock.now_us = 700 * S
    lag.copies()
    assert lag.lag_us() == 690 * S
    lag.streams(HERE, 500, 700 * S)
    clock.now_us = 705 * S
    assert lag.lag_us() == 5 * S


def test_a_process_that_copies_anew_counts_from_what_the_record_says(lag: LagTracker, clock: Clock) -> None:
    clock.now_us = 600 * S
    lag.copied_before(100 * S)
    assert lag.lag_us() == 500 * S
    lag.copies()
    assert lag.lag_us() == 500 * S
    lag.streams(HERE, 500, 600 * S)
    assert lag.lag_us() == 0 or lag.lag_us() is None


@pytest.mark.parametrize("ahead_s", [-3600, 3600])
def test_a_snapshot_that_begins_before_the_first_look_counts_by_the_servers_clock(
    clock: Clock, ahead_s: int
) -> None:
    clock.now_us = 5_000 * S
    lag = LagTracker(clock, clock)
    lag.copies()
    clock.ahead_us = ahead_s * S
    clock.now_us += 30 * S
    look(lag, clock, 100)
    assert lag.lag_us() == 30 * S


def test_looks_are_bounded_while_nothing_comes(lag: LagTracker, clock: Clock) -> None:
    lag.streams(HERE, 100, 0)
    look(lag, clock, 100)
    for number in range(10 * MAX_SAMPLES):
        clock.now_us += S
        look(lag, clock, 101 + number)
    assert lag.lag_us() == 10 * MAX_SAMPLES * S
    assert len(lag._samples) <= MAX_SAMPLES
    lag.received(101)
    assert lag.lag_us() == (10 * MAX_SAMPLES - 1) * S
    lag.received(100 + 10 * MAX_SAMPLES)
    assert lag.lag_us() == 0


class MadeUp:
    """A server with commits, a stream that lags and breaks, and a Kafka that lags behind the stream."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.clock = Clock()
        self.clock.now_us = 1_000 * S
        self.clock.ahead_us = self.random.choice((0, -5 * S, 5 * S))
        self.lag = LagTracker(self.clock, self.clock.server_us)
        self.commits = [(100, self.clock.server_us())]  # (end LSN, commit time)
        self.wal_lsn, self.at, self.durable = (
            100,
            0,
            0,
        )  # `at`, `durable`: index of the last commit received, durable
        self.is_open = False

    def step(self) -> None:
        self.clock.now_us += self.random.choice((1, 1_000, 100_000, 3 * S))
        actions = (self.commit, self.commit, self.other_wal, self.receive, self.keepalive, self.durably)
        self.random.choice((*actions, self.look, self.reconnect, self.nothing))()

    def nothing(self) -> None:
        self.is_open = self.is_open and self.random.random() > 0.3

    def commit(self) -> None:
        self.wal_lsn += 10
        self.commits.append((self.wal_lsn, self.clock.server_us()))

    def other_wal(self) -> None:
        self.wal_lsn += 5

    def receive(self) -> None:
        if self.is_open and self.at + 1 < len(self.commits):
            self.at += 1
            end_lsn, commit_us = self.commits[self.at]
            if self.at > self.durable:  # F4
                self.lag.began(commit_us)
                self.lag.ended(end_lsn, is_empty=False)
            self.lag.turned()

    def keepalive(self) -> None:
        if self.is_open and self.at + 1 == len(self.commits):
            self.lag.received(self.wal_lsn)

    def durably(self) -> None:
        if self.is_open and self.at > self.durable:
            self.durable = self.random.randint(self.durable + 1, self.at)
            is_answered = self.random.random() < 0.8
            if is_answered:
                self.lag.durable(*self.commits[self.durable])
            else:
                self.reconnect()

    def look(self) -> None:
        asked_us = self.clock.now_us
        self.clock.now_us += self.random.choice((1_000, 100_000))
        end = self.wal_lsn, self.clock.server_us()
        self.clock.now_us += self.random.choice((1_000, 100_000))
        self.lag.add_sample(WalEnd(HERE, *end, asked_us, self.clock.now_us))

    def reconnect(self) -> None:
        start_lsn, durable_us = self.commits[self.durable]
        if self.random.random() < 0.2:
            self.lag = LagTracker(self.clock, self.clock.server_us)  # another process
            self.lag.recorded(HERE, start_lsn, durable_us)
        self.lag.streams(HERE, start_lsn, durable_us)
        # The server may resend durable transactions.
        self.at, self.is_open = self.random.randint(max(0, self.durable - 2), self.durable), True

    def truth_us(self) -> int:
        after = self.commits[self.durable + 1 :]
        return self.clock.server_us() - after[0][1] if after else 0


@pytest.mark.parametrize("seed", nightly_except(range(200), *range(25)))
def test_the_lag_is_never_below_the_truth_and_0_when_all_is_read_and_durable(seed: int) -> None:
    made_up = MadeUp(seed)
    for _ in range(300):
        made_up.step()
        said_us = made_up.lag.lag_us()
        assert said_us is None or said_us >= made_up.truth_us() - FRESH_US
    made_up.reconnect()
    while made_up.at + 1 < len(made_up.commits):
        made_up.receive()
    made_up.keepalive()
    made_up.lag.durable(made_up.wal_lsn, made_up.commits[-1][1])
    made_up.look()
    assert made_up.lag.lag_us() == 0
