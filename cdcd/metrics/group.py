"""Metrics with their meaning: each one is described where it is made, and nowhere else.

In: a metric's name, HELP text, labels, and when it is absent.  Out: the metric in a registry; its description, from
which docs/metrics.md is generated.
Invariant: the HELP text of the exposition is the text of the description: one sentence in one line.
Must not: know the values.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily

from cdcd.metrics.optional_gauge import OptionalGauge

__all__ = ["NEVER", "Described", "MetricGroup"]

NEVER = "never"
"""When a metric is absent that has a value from the start of the process."""
_PREFIX = "cdcd_"


@dataclass(frozen=True, slots=True)
class Described:
    """The description of one metric. `absent`: when it has no series, because its value is unknown."""

    name: str
    text: str
    absent: str = NEVER
    labels: tuple[str, ...] = ()
    kind: Literal["gauge", "counter", "histogram"] = "gauge"

    def family(self, value: float | None = None) -> GaugeMetricFamily:
        """Return a gauge for a scrape: with this value, or with labels and without values."""
        return GaugeMetricFamily(self.name, self.text, value=value, labels=self.labels or None)


class MetricGroup:
    """Metrics of one subject in one registry. Names are without `cdcd_`."""

    def __init__(self, title: str, registry: CollectorRegistry) -> None:
        self.title = title
        self.metrics: list[Described] = []
        self._registry = registry

    def gauge(self, name: str, text: str, labels: tuple[str, ...] = (), *, absent: str = NEVER) -> Gauge:
        """Return a new gauge; one with labels is absent until a series of it exists."""
        made = self._describe(Described(_PREFIX + name, text, absent, labels))
        return Gauge(made.name, text, labels, registry=self._registry)

    def optional(self, name: str, text: str, *, absent: str) -> OptionalGauge:
        """Return a new gauge that is absent while its value is unknown."""
        made = self._describe(Described(_PREFIX + name, text, absent))
        return OptionalGauge(made.name, text, self._registry)

    def counter(self, name: str, text: str, labels: tuple[str, ...] = (), *, absent: str = NEVER) -> Counter:
        """Return a new counter; one with labels is absent until a series of it exists."""
        made = self._describe(Described(_PREFIX + name, text, absent, labels, "counter"))
        return Counter(made.name, text, labels, registry=self._registry)

    def histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        """Return a new histogram."""
        made = self._describe(Described(_PREFIX + name, text, kind="histogram"))
        return Histogram(made.name, text, registry=self._registry, buckets=buckets)

    def collected(self, metrics: Iterable[Described]) -> None:
        """Add the metrics of a collector, which makes them at each scrape."""
        self.metrics.extend(metrics)

    def _describe(self, metric: Described) -> Described:
        self.metrics.append(metric)
        return metric
