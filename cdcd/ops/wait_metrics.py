"""Metrics of cdcd's waits: the duration by kind, and the blockers.

In: the current waits, read at each scrape.  Out: gauges.
Invariant: a kind without a wait is 0, because cdcd knows that itself; a blocker exists only while it blocks.
Must not: query a server.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from cdcd.metrics.group import Described
from cdcd.waits import KINDS, MOST_BLOCKERS, Wait, clean_name

__all__ = ["WaitCollector"]

_SECONDS = Described(
    "cdcd_wait_seconds",
    "Duration of the current wait for another system, by kind; 0 without a wait, or for less than 3 s.",
    labels=("kind",),
)
_BLOCKERS = Described(
    "cdcd_wait_blocker_info",
    "1 for each blocker of a current wait.",
    "without a wait, or with an unknown blocker",
    ("kind", "pid", "database", "user", "application", "who"),
)


class WaitCollector(Collector):
    """A collector of the waits that the function `waits` returns; no waits until it is set."""

    metrics = (_SECONDS, _BLOCKERS)

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self.waits: Callable[[], Sequence[Wait]] = list

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of the current waits."""
        waits, now_s = self.waits(), self._clock()
        seconds = _SECONDS.family()
        for kind in KINDS:
            ages = [now_s - wait.since_s for wait in waits if wait.kind == kind]
            seconds.add_metric([kind], max([0.0, *ages]))
        yield seconds
        blockers = _BLOCKERS.family()
        shown = {
            (
                wait.kind,
                "" if one.pid is None else str(one.pid),
                *(clean_name(label) for label in (one.database, one.user, one.application, one.who)),
            )
            for wait in waits
            for one in wait.blockers[:MOST_BLOCKERS]
        }
        for labels in sorted(shown):
            blockers.add_metric(list(labels), 1)
        yield blockers
