"""The oracle's upper bound of the lag in seconds around a copy: what cdcd can know, and not more.

cdcd asks for the slot at 10 s, PostgreSQL creates it at 16 s with the consistent point 500.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.faults.assertions.lags import truthful
from tests.faults.facts import Lag, Progress, Transaction

POINT = 500
TRANSACTIONS = [Transaction(lsn, lsn, (), float(at_s)) for lsn, at_s in ((400, 12), (499, 15), (600, 17))]
BEGUN = Progress(0, "snapshot", 0, 0, {}, commit_s=10.0)
COPYING = Progress(2, "snapshot", 0, POINT, {}, commit_s=10.0)
NEXT_BEGUN = Progress(0, "snapshot", 0, 0, {}, commit_s=4.0)
NEXT_COPYING = Progress(2, "snapshot", 0, POINT, {}, commit_s=4.0)
"""The attempt after one that was cut off: its records have the time of the first."""
COPIED = Progress(4, "streaming", POINT - 1, POINT, {}, commit_s=10.0)
STREAMED = Progress(6, "streaming", 590, 600, {}, commit_s=17.0)


def sample(
    state: str,
    said_s: float,
    counts_from_s: float,
    *,
    confirmed: int,
    received: int,
    end: int,
    began_s: float,
) -> Lag:
    """A sample at `said_s` whose metric counts from `counts_from_s`."""
    return Lag(
        flushed_lsn=700,
        inserted_lsn=700,
        confirmed_lsn=confirmed,
        said_s=said_s,
        state=state,
        received_lsn=received,
        began_s=began_s,
        lag_s=said_s - counts_from_s,
        lag_bytes=None,
        slot_lsn=None,
        until_s=said_s,
        end_offset=end,
    )


def findings(records: Sequence[Progress], *lags: Lag) -> list[str]:
    return [one.what for one in truthful(lags, TRANSACTIONS, records, POINT)]


@pytest.mark.parametrize("state", ["starting", "streaming", "halted"])
@pytest.mark.parametrize(("counts_from_s", "is_good"), [(10.0, True), (15.0, True), (9.0, False)])
def test_after_a_copy_it_counts_from_before_the_slot(state: str, counts_from_s: float, is_good: bool) -> None:
    """cdcd has no commit time of the last transaction in the copy, which committed at 15 s."""
    records = [BEGUN, COPYING, COPIED]
    lag = sample(state, 30, counts_from_s, confirmed=POINT, received=POINT, end=6, began_s=25)
    assert (not findings(records, lag)) == is_good


@pytest.mark.parametrize(("counts_from_s", "is_good"), [(17.0, True), (16.0, False), (10.0, False)])
def test_after_a_streamed_transaction_it_counts_from_its_commit(counts_from_s: float, is_good: bool) -> None:
    records = [BEGUN, COPYING, COPIED, STREAMED]
    lag = sample("streaming", 30, counts_from_s, confirmed=600, received=600, end=8, began_s=25)
    assert (not findings(records, lag)) == is_good


@pytest.mark.parametrize("state", ["starting", "snapshot", "backoff"])
@pytest.mark.parametrize(("counts_from_s", "is_good"), [(4.0, True), (10.0, True), (3.0, False)])
def test_while_a_copy_is_not_complete_it_counts_from_what_its_records_say(
    state: str, counts_from_s: float, is_good: bool
) -> None:
    """The slot of an attempt that was cut off is confirmed at its point, and nothing is durable."""
    first = sample("starting", 29, 4, confirmed=POINT, received=0, end=4, began_s=25)
    lag = sample(state, 30, counts_from_s, confirmed=POINT, received=0, end=4, began_s=25)
    assert (not findings([NEXT_BEGUN, NEXT_COPYING], first, lag)) == is_good


@pytest.mark.parametrize(("counts_from_s", "is_good"), [(5.0, True), (3.5, False)])
def test_before_the_first_record_it_counts_from_within_the_process(
    counts_from_s: float, is_good: bool
) -> None:
    lag = sample("snapshot", 30, counts_from_s, confirmed=POINT, received=0, end=0, began_s=5)
    assert (not findings([], lag)) == is_good


def test_an_earlier_copy_does_not_loosen_the_bound_of_the_next_one() -> None:
    """The tables are copied again: the records of the new copy have the time since when they are behind."""
    begun = Progress(8, "snapshot", 590, 600, {}, commit_s=17.0)
    records = [BEGUN, COPYING, COPIED, STREAMED, begun, Progress(10, "snapshot", 590, 650, {}, commit_s=17.0)]
    before = sample("snapshot", 29, 17, confirmed=650, received=0, end=12, began_s=2)
    good = sample("snapshot", 30, 17, confirmed=650, received=0, end=12, began_s=2)
    bad = sample("snapshot", 30, 10, confirmed=650, received=0, end=12, began_s=2)
    assert not findings(records, before, good)
    assert findings(records, before, bad)


@pytest.mark.parametrize(("point", "is_good"), [(POINT, False), (700, True)])
def test_a_transaction_that_is_only_in_a_later_copy_is_no_lag(point: int, is_good: bool) -> None:
    """After an interruption a table may be copied at a later point: earlier changes are durable in its copy."""
    transactions = [*TRANSACTIONS, Transaction(650, 650, (), 18.0), Transaction(700, 700, (), 19.0)]
    lag = sample("streaming", 30, 29, confirmed=600, received=700, end=8, began_s=25)
    found = [one.what for one in truthful([lag], transactions, [BEGUN, COPYING, COPIED, STREAMED], point)]
    assert (not found) == is_good
