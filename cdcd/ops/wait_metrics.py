"""Metrics of what cdcd waits for: how long by kind, and who holds it up.

In: the waits that have lasted, asked for at each scrape.  Out: gauges.
Invariant: a kind that is not waited for is 0, because cdcd knows that itself; blockers exist only while they are one.
Must not: ask a server.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cdcd.waits import KINDS, MOST_BLOCKERS, Wait, cleaned

__all__ = ["WaitCollector"]

_LABELS = ["kind", "pid", "database", "user", "application", "who"]


class WaitCollector(Collector):
    """`waits` returns those that are shown; none until somebody sets it."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self.waits: Callable[[], Sequence[Wait]] = list

    def collect(self) -> Iterator[Metric]:
        """Yield what is waited for now."""
        waits, now_s = self.waits(), self._clock()
        seconds = GaugeMetricFamily(
            "cdcd_wait_seconds",
            "How long cdcd has waited for something outside itself, 0: not.",
            labels=["kind"],
        )
        for kind in KINDS:
            ages = [now_s - wait.since_s for wait in waits if wait.kind == kind]
            seconds.add_metric([kind], max([0.0, *ages]))
        yield seconds
        blockers = GaugeMetricFamily(
            "cdcd_wait_blocker_info", "1 for each blocker of a wait.", labels=_LABELS
        )
        shown = {
            (
                wait.kind,
                "" if one.pid is None else str(one.pid),
                *(cleaned(label) for label in (one.database, one.user, one.application, one.who)),
            )
            for wait in waits
            for one in wait.blockers[:MOST_BLOCKERS]
        }
        for labels in sorted(shown):
            blockers.add_metric(list(labels), 1)
        yield blockers
