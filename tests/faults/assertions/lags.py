"""(k) The lag metrics were true during the run. Pure.

In: samples, the transactions, the progress records.  Out: findings.
Invariant: each bound is certain, whatever happened between the queries of one sample, so that a race is never a
finding. cdcd computes both metrics when they are read, from a query of the server that is recent. Without such a
query the bytes are absent, and the seconds grow, except where cdcd has never had a value.
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
"""All processes use the same machine's clock."""
LOOKED_WITHIN_S = 1.0
"""How old the query behind a metric may be."""
SAME_PROCESS_S = 1.0
"""The uptime on /status is rounded."""


def truthful(
    lags: Sequence[Lag], transactions: Sequence[Transaction], committed: Sequence[Progress], point: int | None
) -> Iterator[Finding]:
    """(k) Each lag is between its lower and its upper bound. `point`: the latest snapshot's consistent point.

    A transaction before it may be in copied rows completely: then the stream writes nothing of it.
    """
    if not lags:
        yield Finding("k", "there are no samples of the lag metrics")
    truth = _Truth(lags, transactions, committed, point or 0)
    for at, lag in enumerate(lags):
        if lag.lag_s is None:
            if lag.state in ("streaming", "backpressure"):
                yield Finding("k", "the lag metric is absent while cdcd streams")
            continue
        least_s, most_s = truth.least_s(lag), truth.most_s(at)
        if lag.lag_s < least_s - SLACK_S:
            yield Finding("k", f"the lag metric is {lag.lag_s:.1f} s, the lag is at least {least_s:.1f} s")
        if lag.lag_s > most_s + SLACK_S:
            where = f"{lag.state} since {lag.said_s - lag.began_s:.1f} s"
            yield Finding(
                "k", f"the lag metric is {lag.lag_s:.1f} s, the lag is at most {most_s:.1f} s ({where})"
            )
    for at in range(len(lags) - 1):
        yield from _bytes(lags, at, truth)


@dataclass
class _Truth:
    """What is certain at the time of each sample."""

    lags: Sequence[Lag]
    transactions: Sequence[Transaction]
    committed: Sequence[Progress]
    point: int

    def __post_init__(self) -> None:
        self._ends = [one.end_lsn for one in self.transactions]
        self._offsets = [one.offset for one in self.committed]
        # A commit gets its time before its LSN: on a busy machine seconds before, with other commits in between.
        committed_s = [one.committed_s for one in self.transactions]
        self._latest_s = list(accumulate(committed_s, max))
        self._earliest_s = list(accumulate(reversed(committed_s), min))[::-1]
        self._copies = [
            record
            for before, record in pairwise(self.committed)
            if before.phase == "snapshot" and record.phase == "streaming"
        ]

    def durable(self, lag: Lag) -> Progress | None:
        """Return the last record that can have been durable when the metrics were read."""
        end = bisect_left(self._offsets, lag.end_offset)
        return self.committed[end - 1] if end else None

    def least_s(self, lag: Lag) -> float:
        """Return the age of the oldest committed transaction that is not durable, whether or not it was received."""
        record = self.durable(lag)
        if record is None or record.phase == "snapshot" or record.part is not None:
            return 0.0
        # The first one that ends behind the record's commit is the record's own.
        first = bisect_right(self._ends, max(record.commit_lsn, self.point)) + 1
        if first >= len(self._ends) or self._ends[first] > lag.flushed_lsn:
            return 0.0
        age_s = lag.said_s - self._latest_s[first]
        if self._ends[first] > lag.received_lsn:
            # A commit may get its time long before its LSN: it was certain at the first sample beyond its LSN.
            seen = next(one for one in self.lags if one.flushed_lsn >= self._ends[first])
            age_s = min(age_s, lag.said_s - seen.said_s)
        return max(0.0, age_s)

    def most_s(self, at: int) -> float:
        """Return the age of the earliest time from which cdcd can compute the lag.

        With nothing behind the last confirmed transaction the lag is 0, unless cdcd cannot know that: then the lag
        grows from the value before.
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
        """Return the commit time of the last confirmed transaction, or of a later one: all before it are durable.

        A transaction that is only in the snapshot has no commit time in cdcd. cdcd counts from before it requested
        the slot, which may be much earlier than the slot's consistent point; the record of the complete copy has
        that time.
        """
        copied = bisect_right(self._copies, lag.received_lsn, key=lambda one: one.end_lsn) - 1
        copy = self._copies[copied] if copied >= 0 else None
        if last >= 0 and (copy is None or self._ends[last] > copy.end_lsn):
            return self._earliest_s[last]
        return -inf if copy is None or copy.commit_s is None else copy.commit_s

    def _stored_s(self, at: int) -> float:
        """Return the earliest time in a progress record that the process may have read, or written last.

        The process has received nothing: the copy is not complete, or the process is reading the record. The last
        record before the previous sample may have been uncommitted then, so the one before it counts, too. Without a
        record cdcd counts from the start of the copy, which is within the process.
        """
        lag = self.lags[at]
        first = bisect_left(self._offsets, self.lags[at - 1].end_offset) - 2 if at else -1
        end = bisect_left(self._offsets, lag.end_offset)
        times_s = [one.commit_s for one in self.committed[max(0, first) : end] if one.commit_s is not None]
        return min(times_s if first >= 0 else [*times_s, lag.began_s - SAME_PROCESS_S], default=-inf)


def _bytes(lags: Sequence[Lag], at: int, truth: _Truth) -> Iterator[Finding]:
    """Judge the metrics in bytes: the server was queried at most `LOOKED_WITHIN_S` before."""
    lag, following = lags[at], lags[at + 1]
    since = bisect_left(lags, lag.said_s - LOOKED_WITHIN_S, key=lambda one: one.until_s) - 1
    if since < 0:
        return
    around = lags[since : at + 2]
    confirmed = [one.confirmed_lsn for one in around]
    if lag.slot_lsn is not None and not min(confirmed) <= lag.slot_lsn <= max(confirmed):
        yield Finding(
            "k", f"the slot's metric is {lag.slot_lsn}, the slot was at {min(confirmed)} to {max(confirmed)}"
        )
    record = truth.durable(lag)
    if lag.lag_bytes is None or record is None:
        return
    least = lags[since].flushed_lsn - max(record.end_lsn, *confirmed)
    most = following.inserted_lsn - min(confirmed)
    if not least <= lag.lag_bytes <= most:
        yield Finding("k", f"the lag metric is {lag.lag_bytes} bytes, the lag was {max(0, least)} to {most}")
