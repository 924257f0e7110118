"""(k) What the lag metrics said during the run was so. Pure.

In: samples, the transactions, the progress records.  Out: findings.
Invariant: each bound is what is certain, whatever happened between the questions of one sample, so that a finding is
never a race. Both are worked out when they are asked for, from a look at the server that is a moment old at most;
without one bytes are absent, and seconds grow, but where nothing was ever known.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import inf

from cdcd.monitoring.server_monitor import SCRAPE_INTERVAL_S
from tests.faults.facts import Finding, Lag, Progress, Transaction

SLACK_S = 0.1
"""All clocks are the machine's one."""
LOOKED_WITHIN_S = 1.0
"""How old a look may be that is shown."""
SAME_PROCESS_S = 1.0
"""What /status says of its age is rounded."""


def truthful(
    lags: Sequence[Lag], transactions: Sequence[Transaction], committed: Sequence[Progress], point: int | None
) -> Iterator[Finding]:
    """(k) Neither less than what is certainly behind, nor more than what may be. `point`: the snapshot's."""
    if not lags:
        yield Finding("k", "nobody has looked at the lag metrics")
    truth = _Truth(lags, transactions, committed, point or 0)
    for at, lag in enumerate(lags):
        if lag.lag_s is None:
            if lag.state in ("streaming", "backpressure"):
                yield Finding("k", "the lag metric is absent while it streams")
            continue
        least_s, most_s = truth.least_s(lag), truth.most_s(at)
        if lag.lag_s < least_s - SLACK_S:
            yield Finding("k", f"the lag metric says {lag.lag_s:.1f} s, it is {least_s:.1f} s at least")
        if lag.lag_s > most_s + SLACK_S:
            where = f"{lag.state} since {lag.said_s - lag.began_s:.1f} s"
            yield Finding(
                "k", f"the lag metric says {lag.lag_s:.1f} s, it is {most_s:.1f} s at most ({where})"
            )
    for at in range(len(lags) - 1):
        yield from _bytes(lags, at, truth)


@dataclass
class _Truth:
    """What is certain of the moments of the samples."""

    lags: Sequence[Lag]
    transactions: Sequence[Transaction]
    committed: Sequence[Progress]
    point: int

    def __post_init__(self) -> None:
        self._ends = [one.end_lsn for one in self.transactions]
        self._offsets = [one.offset for one in self.committed]
        # A commit has its time before its place: on a busy machine seconds before, and another one may come between.
        committed_s = [one.committed_s for one in self.transactions]
        self._latest_s = list(accumulate(committed_s, max))
        self._earliest_s = list(accumulate(reversed(committed_s), min))[::-1]
        self._copies = [
            record
            for before, record in pairwise(self.committed)
            if before.phase == "snapshot" and record.phase == "streaming"
        ]

    def durable(self, lag: Lag) -> Progress | None:
        """The last record that can have been durable when the metrics were asked."""
        end = bisect_left(self._offsets, lag.end_offset)
        return self.committed[end - 1] if end else None

    def least_s(self, lag: Lag) -> float:
        """The age of the oldest transaction that was committed and is not durable, whether it was received or not."""
        record = self.durable(lag)
        if record is None or record.phase == "snapshot" or record.part is not None:
            return 0.0
        # The first one that ends behind the record's commit is the record's own.
        first = bisect_right(self._ends, max(record.commit_lsn, self.point)) + 1
        if first >= len(self._ends) or self._ends[first] > lag.flushed_lsn:
            return 0.0
        age_s = lag.said_s - self._latest_s[first]
        if self._ends[first] > lag.received_lsn:
            # A commit may take its time long before its place: it was there at the first sample that has its place.
            seen = next(one for one in self.lags if one.flushed_lsn >= self._ends[first])
            age_s = min(age_s, lag.said_s - seen.said_s)
        return max(0.0, age_s)

    def most_s(self, at: int) -> float:
        """The age of the earliest moment that cdcd can count from.

        With nothing behind the last confirmed transaction there is no lag, but what cdcd cannot know: that grows from
        what it said before.
        """
        lag = self.lags[at]
        if not lag.received_lsn:
            return lag.until_s - self._stored_s(at)
        last = bisect_right(self._ends, lag.confirmed_lsn) - 1
        age_s = lag.until_s - self._durable_s(lag, last)
        before = self.lags[at - 1] if at else None
        is_same = before is not None and abs(lag.began_s - before.began_s) <= SAME_PROCESS_S
        if last < 0 or before is None or before.lag_s is None or not is_same:
            return age_s
        grown_s = before.lag_s + lag.until_s - before.said_s + SCRAPE_INTERVAL_S
        return grown_s if last == len(self._ends) - 1 else max(age_s, grown_s)

    def _durable_s(self, lag: Lag, last: int) -> float:
        """The commit time of the last confirmed transaction, or of one behind it: everything before is durable.

        A transaction that is only in the copy has no commit time in cdcd. cdcd counts from before it asked for the
        slot, which may be much earlier than the slot's point; the record of the complete copy says when.
        """
        copied = bisect_right(self._copies, lag.received_lsn, key=lambda one: one.end_lsn) - 1
        copy = self._copies[copied] if copied >= 0 else None
        if last >= 0 and (copy is None or self._ends[last] > copy.end_lsn):
            return self._earliest_s[last]
        return -inf if copy is None or copy.commit_s is None else copy.commit_s

    def _stored_s(self, at: int) -> float:
        """The earliest time in a progress record that the process may have read, or written last.

        It has received nothing, so the copy is not complete, or the record is being read. Of the records before the
        previous sample the last one may have been uncommitted then, so the one before it counts too. Without a record
        cdcd counts from the begin of the copy, which is within the process.
        """
        lag = self.lags[at]
        first = bisect_left(self._offsets, self.lags[at - 1].end_offset) - 2 if at else -1
        end = bisect_left(self._offsets, lag.end_offset)
        said = [one.commit_s for one in self.committed[max(0, first) : end] if one.commit_s is not None]
        return min(said if first >= 0 else [*said, lag.began_s - SAME_PROCESS_S], default=-inf)


def _bytes(lags: Sequence[Lag], at: int, truth: _Truth) -> Iterator[Finding]:
    """What a look said that was made within the time that it may take."""
    lag, following = lags[at], lags[at + 1]
    since = bisect_left(lags, lag.said_s - LOOKED_WITHIN_S, key=lambda one: one.until_s) - 1
    if since < 0:
        return
    around = lags[since : at + 2]
    confirmed = [one.confirmed_lsn for one in around]
    if lag.slot_lsn is not None and not min(confirmed) <= lag.slot_lsn <= max(confirmed):
        yield Finding(
            "k", f"the slot's metric says {lag.slot_lsn}, it was from {min(confirmed)} to {max(confirmed)}"
        )
    record = truth.durable(lag)
    if lag.lag_bytes is None or record is None:
        return
    least = lags[since].flushed_lsn - max(record.end_lsn, *confirmed)
    most = following.inserted_lsn - min(confirmed)
    if not least <= lag.lag_bytes <= most:
        yield Finding(
            "k", f"the lag metric says {lag.lag_bytes} bytes, it was from {max(0, least)} to {most}"
        )
