"""A gauge that exists only while its value is known: 0 never means "unknown".

In: a value, or a function that is called at each scrape; None for unknown.  Out: one sample, or none.
Must not: show a value after its owner has set None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

__all__ = ["OptionalGauge"]


class OptionalGauge(Collector):
    """Absent until it is set, and again after `set(None)`."""

    def __init__(self, name: str, text: str, registry: CollectorRegistry) -> None:
        self._name = name
        self._text = text
        self._value: Callable[[], float | None] = lambda: None
        registry.register(self)

    def set(self, value: float | None) -> None:
        """Show this value from now on; None: the value is unknown."""
        self._value = lambda: value

    def set_function(self, value: Callable[[], float | None]) -> None:
        """Call `value` at each scrape from now on."""
        self._value = value

    def collect(self) -> Iterator[Metric]:
        """Yield the sample, if there is one."""
        value = self._value()
        if value is not None:
            yield GaugeMetricFamily(self._name, self._text, value=value)
