"""Kafka has each transaction once, complete and in order, for any transactions, chunks, faults and restarts.

A seeded model drives `Group` as the writer does: a server that resends from the confirmed position (F1, F4), a
broker whose commits succeed, fail, or succeed without a reply (F76), a daemon that may die at any step.
The same model with a planted bug must fail: this shows that the model can detect such a bug.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdcd.ack.group import CommitPosition, Group, GroupLimits, RecordChunk, SafeLsn
from cdcd.model import Record


@dataclass(frozen=True)
class Transaction:
    commit_lsn: int
    end_lsn: int
    changes: tuple[Record, ...]


class _Died(Exception):
    """The daemon or its session ended here."""


def history_of(chance: random.Random) -> list[Transaction]:
    """Return transactions; some are empty, some begin exactly at the end of the previous one (F1)."""
    lsn, history = 100, []
    for number in range(chance.randrange(1, 15)):
        lsn += chance.choice((0, 0, 8, 40))
        size = chance.choice((0, 1, 1, 2, 9))
        changes = tuple(Record("t", 0, b"%d" % number, b"%d" % seq) for seq in range(size))
        history.append(Transaction(lsn, lsn + 8, changes))
        lsn += 8
    return history


class World:
    """PostgreSQL, Kafka, and a daemon between them that is restarted until everything has arrived."""

    def __init__(
        self, chance: random.Random, *, group: type[Group] = Group, confirms_early: bool = False
    ) -> None:
        self.chance = chance
        self.new_group = group
        self.confirms_early = confirms_early
        self.history = history_of(chance)
        self.confirmed_lsn = 0
        self.visible: list[Record] = []
        self.stored = CommitPosition(0, 0, 0, 0)
        self.faults_left = chance.randrange(8)

    def run(self) -> None:
        """Run sessions until one reaches the end; the number of faults is limited."""
        for _ in range(self.faults_left + 2):
            try:
                self.session()
            except _Died:
                continue
            break
        assert self.visible == [change for one in self.history for change in one.changes], "lost at the end"

    # --- the daemon ---

    def session(self) -> None:
        chance = self.chance
        self.now_us = 0
        limits = GroupLimits(chance.choice((1, 3, 50)), chance.choice((10, 500)), chance.choice((0, 5)))
        self.group = self.new_group(limits)
        self.safe = SafeLsn(self.stored.end_lsn)
        self.open: list[Record] = []
        for chunk in self.received():
            self.group.add(chunk)
            self.now_us += chance.choice((0, 1, 6))
            if chance.random() < 0.5:
                self.turn()
            if chance.random() < 0.03:
                self.fault()
        self.group.begin_flush()
        self.turn()
        self.commit_idle()

    def turn(self) -> None:
        """`Writer._turn` without threads."""
        while True:
            while (chunk := self.group.take(self.now_us)) is not None:
                self.open.extend(chunk.records)
                if self.chance.random() < 0.02:
                    self.fault()
            if not self.group.ready(self.now_us):
                break
            self.commit(self.group.close())
        if self.chance.random() < 0.3:
            self.commit_idle()

    def commit_idle(self) -> None:
        idle = self.group.idle_position
        if idle is not None and idle.end_lsn > self.safe.lsn:
            self.commit(self.group.close())

    def received(self) -> Iterator[RecordChunk]:
        """Yield the pump's chunks: duplicates dropped (F4), rows split at any point, keepalives in between."""
        start_lsn = self.chance.choice((self.stored.end_lsn, self.confirmed_lsn))
        commit_lsn, end_lsn = self.stored.commit_lsn, self.stored.end_lsn
        for one, following in zip(self.history, [*self.history[1:], None], strict=True):
            if one.commit_lsn < start_lsn or one.commit_lsn <= self.stored.commit_lsn:
                continue
            left = list(one.changes)
            while left:
                cut = self.chance.randrange(1, len(left) + 1)
                yield RecordChunk(left[:cut], 10 * cut)
                left = left[cut:]
            commit_lsn, end_lsn = one.commit_lsn, one.end_lsn
            yield RecordChunk((), 0, CommitPosition(commit_lsn, end_lsn, 1))
            if following is not None and self.chance.random() < 0.4:
                end_lsn = self.chance.randint(end_lsn, following.commit_lsn)
                yield RecordChunk((), 0, CommitPosition(commit_lsn, end_lsn, 1, transactions=0))

    def confirm(self, lsn: int) -> None:
        assert lsn >= self.confirmed_lsn, "confirmed backwards"
        self.confirmed_lsn = lsn
        self.judge()

    # --- the broker ---

    def fault(self) -> None:
        if self.faults_left:
            self.faults_left -= 1
            raise _Died

    def commit(self, commit_position: CommitPosition) -> None:
        if self.confirms_early:
            self.confirm(self.safe.advance(commit_position.end_lsn))
        if self.chance.random() < 0.1:
            self.fault()  # the commit failed, and the transaction is aborted
        self.visible += self.open
        self.open = []
        self.stored = commit_position
        self.judge()
        if self.chance.random() < 0.1:
            self.fault()  # the commit succeeded, and its reply is lost (F76)
        self.confirm(self.safe.advance(commit_position.end_lsn))

    # --- the judge ---

    def judge(self) -> None:
        """Assert that a reader sees complete transactions, and that neither position is ahead of them."""
        whole: list[Record] = []
        for one in self.history:
            if len(whole) == len(self.visible) and one.changes:
                break
            whole += one.changes
        assert self.visible == whole, "not complete transactions, once each, in order"
        for lsn in (self.stored.end_lsn, self.confirmed_lsn):
            claimed = [change for one in self.history if one.commit_lsn < lsn for change in one.changes]
            assert claimed == self.visible[: len(claimed)], "a position is ahead of what is durable"
        due = [
            change for one in self.history if one.commit_lsn < self.stored.end_lsn for change in one.changes
        ]
        assert self.visible == due, "a written change would be sent again"


@pytest.mark.nightly  # without a bug, 300 seeds pass
@settings(max_examples=400, deadline=None)
@given(st.randoms(use_true_random=False))
def test_nothing_is_lost_nothing_comes_twice_and_nothing_is_confirmed_before_it_is_durable(
    chance: random.Random,
) -> None:
    World(chance).run()


# --- the same model detects planted bugs ---


class CommitsInside(Group):
    """Keeps the last commit position valid although a part of the next transaction was taken after it."""

    def take(self, now_us: int) -> RecordChunk | None:
        before = self.commit_position
        chunk = super().take(now_us)
        if chunk is not None and self.commit_position is None:
            self.commit_position = before
        return chunk


class ClosesWithWhatWaits(Group):
    """Closes at the newest commit position received, not at the newest one written."""

    def close(self) -> CommitPosition:
        waiting = [chunk.commit_position for chunk in self._waiting if chunk.commit_position is not None]
        own = super().close()
        return waiting[-1] if waiting else own


class OneByteFurther(Group):
    """F2: the end LSN plus one skips a commit that begins exactly at the end."""

    def close(self) -> CommitPosition:
        own = super().close()
        return replace(own, end_lsn=own.end_lsn + 1)


class OwnCommitLsn(Group):
    """F2: with the commit's own LSN the server resends the transaction, and no position says that it was written."""

    def close(self) -> CommitPosition:
        own = super().close()
        return replace(own, commit_lsn=0, end_lsn=own.commit_lsn)


class LosesWhatWaits(Group):
    """Loses the chunks that wait behind the group that ends."""

    def reset(self) -> None:
        super().reset()
        self._waiting.clear()
        self._positions_waiting = 0


class OutOfOrder(Group):
    """Takes a later chunk before an earlier one."""

    def add(self, chunk: RecordChunk) -> None:
        super().add(chunk)
        if len(self._waiting) > 2:
            self._waiting.rotate(1)


def outcomes(**bug: object) -> set[str]:
    found = set()
    for seed in range(300):
        try:
            World(random.Random(seed), **bug).run()  # type: ignore[arg-type]
        except AssertionError as failure:
            found.add(str(failure).splitlines()[0])
    return found


@pytest.mark.parametrize(
    "bug", [CommitsInside, ClosesWithWhatWaits, OneByteFurther, OwnCommitLsn, LosesWhatWaits, OutOfOrder]
)
def test_the_model_sees_a_planted_bug(bug: type[Group]) -> None:
    assert outcomes(group=bug)


def test_the_model_sees_a_confirmation_before_the_commit() -> None:
    assert "a position is ahead of what is durable" in outcomes(confirms_early=True)


def test_without_a_bug_the_same_seeds_pass() -> None:
    assert outcomes() == set()
