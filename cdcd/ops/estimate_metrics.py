"""The estimated rows of the tables that are being copied.

In: the tables and the server's estimates, read at each scrape.  Out: a gauge.
Invariant: a table without statistics has no series, and no table has one before its copy or after it.
Must not: query a server.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from cdcd.metrics.group import Described

__all__ = ["EstimateCollector"]

_ROWS = Described(
    "cdcd_snapshot_rows_estimated",
    "The server's estimate (pg_class.reltuples) of the rows of each table that is being copied or waits for it.",
    "for other tables, and for a table without statistics",
    ("table",),
)


class EstimateCollector(Collector):
    """A collector of the estimates that the function `estimates` returns, by table; none until it is set.

    `label_of`: the value of the label for a table; several tables may share one.
    """

    metrics = (_ROWS,)

    def __init__(self, label_of: Callable[[str], str]) -> None:
        self._label_of = label_of
        self.estimates: Callable[[], Iterable[tuple[str, int]]] = list

    def collect(self) -> Iterator[Metric]:
        """Yield the metric of the tables in progress."""
        rows: Counter[str] = Counter()
        for table, estimate in self.estimates():
            rows[self._label_of(table)] += estimate
        found = _ROWS.family()
        for label, estimate in rows.items():
            found.add_metric([label], estimate)
        yield found
