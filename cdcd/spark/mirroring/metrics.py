"""The metrics of a mirror: progress, lag, restarts.

In: versions and batches of a mirror, and what the topics have after them.  Out: the exposition text.
Invariant: an unknown value is absent, never 0. While the topics cannot be read, the lag counts from the last
time that the mirror had all of them, so that it grows.
Must not: ask Kafka or the target; have a label with a table, an LSN or an error's text.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

from cdcd.metrics.group import MetricGroup
from cdcd.spark.source.backlog import Backlog

if TYPE_CHECKING:  # the page of the metrics is made without Spark
    from cdcd.spark.mirroring.batches import BatchReport
    from cdcd.spark.reading.catalog_state import CatalogState
    from cdcd.spark.target.versions import TargetVersion

__all__ = ["STATES", "MirrorMetrics"]

STATES = ("updated", "loading", "parked")
"""The states of a table, as the command `status` shows them."""
FRESH_S = 10.0
"""A reading of the topics that is older is not used for their present content."""
_BATCH_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
_LATENCY_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 3600, 86_400)
_NO_COMMIT = "before a commit time is known"
_NO_VERSION = "before the target is opened"


class MirrorMetrics:
    """All metrics of one mirror, in a separate registry. `clock` returns seconds of the Unix epoch."""

    def __init__(self, *, clock: Callable[[], float] = time.time, with_process: bool = True) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._clock = clock
        self._lock = threading.Lock()
        self._version: TargetVersion | None = None
        self._before_us = 0
        """The commit time of the version before."""
        self._backlog = Backlog()
        self._row_bytes: dict[str, float] = {}
        """By topic, the mean bytes of a record in the last batch that has read some."""
        self._looked_s: float | None = None
        self._complete_s: float | None = None
        """The last time at which the mirror had everything that the topics had."""
        self.error_code = ""
        """The code of the error after which the mirror tries again; "" while it runs."""
        self.registry = CollectorRegistry()
        self.groups: list[MetricGroup] = []
        """The metrics by subject."""
        self._make_lag(self._group("Mirror: lag"))
        self._make_progress(self._group("Mirror: progress"))
        self._make_state(self._group("Mirror: state and errors"))
        if with_process:
            for collector in (ProcessCollector, PlatformCollector, GCCollector):
                collector(registry=self.registry)

    def _group(self, title: str) -> MetricGroup:
        self.groups.append(MetricGroup(title, self.registry))
        return self.groups[-1]

    def _make_lag(self, new: MetricGroup) -> None:
        lag = new.optional(
            "mirror_lag_seconds",
            "Age of the oldest commits in the topics that are not visible in the target, 0 if there are none.",
            absent="before the mirror has had all commits once, if the oldest commit's time is not known",
        )
        lag.set_function(self.lag_s)
        backlog = new.optional(
            "mirror_backlog_offsets",
            "Kafka offsets between the target and the newest commit in the topics, as of the last check.",
            absent="before the first check, and while progress records of a large backlog are not read",
        )
        backlog.set_function(lambda: self._backlog.offsets)
        in_bytes = new.optional(
            "mirror_backlog_bytes",
            "Estimated bytes of the tables' records in the backlog, by the mean size of the records last read "
            "from each topic.",
            absent="as the offsets, and while the backlog has a table of which the mirror has read no record",
        )
        in_bytes.set_function(self._backlog_bytes)
        self._latency = new.histogram(
            "mirror_visible_latency_seconds",
            "Time from a commit in PostgreSQL to its visibility in the target, of the last commit of each batch.",
            _LATENCY_BUCKETS,
        )
        self._make_position(new)

    def _make_position(self, new: MetricGroup) -> None:
        position = new.optional(
            "mirror_end_lsn_bytes",
            "The mirror's position in the source's WAL: all commits below this LSN, as a number, are visible.",
            absent="before a position is known",
        )
        position.set_function(lambda: self._of_version(lambda one: one.end_lsn) or None)
        commit = new.optional(
            "mirror_last_commit_timestamp_seconds",
            "Commit time of the last commit that is visible in the target.",
            absent=_NO_COMMIT,
        )
        commit.set_function(lambda: (self._of_version(lambda one: one.commit_us) or 0) / 1e6 or None)
        published = new.optional(
            "mirror_last_published_timestamp_seconds",
            "Time of the newest version of the target.",
            absent=_NO_VERSION,
        )
        published.set_function(lambda: self._of_version(lambda one: one.published_s))

    def _make_progress(self, new: MetricGroup) -> None:
        self._batches = new.counter("mirror_batches_total", "Batches that became visible in the target.")
        self._rows = new.counter("mirror_rows_read_total", "Records of tables that these batches have read.")
        self._read_bytes = new.counter("mirror_read_bytes_total", "Bytes of their keys and values.")
        self._written = new.counter("mirror_rows_written_total", "Rows written to files of the target.")
        self._files = new.counter("mirror_files_written_total", "Files of rows written to the target.")
        self._duration = new.histogram(
            "mirror_batch_duration_seconds",
            "Duration of a batch, from its records in memory, or in Spark, to the version.",
            _BATCH_BUCKETS,
        )
        self._versions = new.counter("mirror_versions_total", "Versions of the target that were published.")
        self._compactions = new.counter(
            "mirror_compactions_total", "Merges of a table's files that were published."
        )

    def _make_state(self, new: MetricGroup) -> None:
        self._info = new.gauge(
            "mirror_info",
            "1, with the topic prefix and the target of the mirror.",
            ("prefix", "target"),
            absent=_NO_VERSION,
        )
        self._tables = new.gauge(
            "mirror_tables", "Tables of the mirror, by state.", ("state",), absent=_NO_VERSION
        )
        self._catalog = new.gauge(
            "mirror_catalog_tables",
            "Tables of the mirror in the catalog of Spark, by whether the last attempt has registered them.",
            ("state",),
            absent="without a catalog, before the first attempt, and after one that failed as a whole",
        )
        self._retrying = new.gauge(
            "mirror_retrying",
            "1 from an error after which the mirror tries again until its next progress, otherwise 0.",
        )
        self._restarts = new.counter(
            "mirror_restarts_total",
            "Errors after which the mirror has tried again, by the error's code.",
            ("reason",),
            absent="before the first such error",
        )
        self._last_error = new.gauge(
            "mirror_last_error_info",
            "1, with the code of the last error.",
            ("code",),
            absent="before the first error",
        )
        self._last_error_time = new.optional(
            "mirror_last_error_timestamp_seconds", "Time of the last error.", absent="before the first error"
        )

    # --- out ---------------------------------------------------------------------------------------------

    def exposition(self) -> bytes:
        """Return the text of /metrics."""
        return generate_latest(self.registry)

    def lag_s(self) -> float | None:
        """Return the age of the oldest commit that is in the topics and not in the target, None: unknown."""
        now_s = self._clock()
        with self._lock:
            if self._backlog.oldest_us:
                return max(0.0, now_s - self._backlog.oldest_us / 1e6)
            is_fresh = self._looked_s is not None and now_s - self._looked_s < FRESH_S
            if is_fresh and not self._backlog.is_pending:
                return 0.0
            return None if self._complete_s is None else max(0.0, now_s - self._complete_s)

    # --- in ----------------------------------------------------------------------------------------------

    def mirrors(self, prefix: str, target: str) -> None:
        """Set what is mirrored, and where."""
        self._info.labels(prefix, target).set(1)

    def looked(self, backlog: Backlog, at_s: float) -> None:
        """Set what the topics had after the target's version; `at_s`: when the topics were read."""
        with self._lock:
            self._backlog, self._looked_s = backlog, at_s
            if not backlog.is_pending:
                self._complete_s = at_s

    def published(self, version: TargetVersion, *, merges: int = 0) -> None:
        """Count a version that is visible now. `merges`: of how many tables it has merged files."""
        self._before_us = 0 if self._version is None else self._version.commit_us
        is_first, self._version = self._version is None, version
        self._versions.inc()
        self._compactions.inc(merges)
        if is_first:
            for state in STATES:
                self._tables.labels(state).set_function(partial(self._count, state))

    def batch(self, report: BatchReport) -> None:
        """Count a batch, whose version was published before."""
        self._batches.inc()
        self._rows.inc(report.rows)
        self._read_bytes.inc(sum(one.size_bytes for one in report.reads.values()))
        with self._lock:
            self._row_bytes |= {topic: one.size_bytes / one.rows for topic, one in report.reads.items()}
        self._written.inc(report.written_rows)
        self._files.inc(report.files)
        self._duration.observe(report.seconds)
        if report.commit_us > self._before_us and self._version is not None:
            self._latency.observe(max(0.0, self._version.published_s - report.commit_us / 1e6))

    def registered(self, state: CatalogState) -> None:
        """Set what the last attempt has registered in a catalog."""
        self._catalog.clear()
        if not state.error:
            failed = len(state.errors)
            self._catalog.labels("failed").set(failed)
            self._catalog.labels("registered").set(len(state.tables) - failed)

    def failed(self, code: str, *, is_retried: bool) -> None:
        """Count an error by its code."""
        self._last_error.clear()
        self._last_error.labels(code).set(1)
        self._last_error_time.set(self._clock())
        if is_retried:
            self.error_code = code
            self._retrying.set(1)
            self._restarts.labels(code).inc()

    def advanced(self) -> None:
        """Note progress: a batch is visible, or the mirror has everything."""
        self.error_code = ""
        self._retrying.set(0)

    # --- inside ------------------------------------------------------------------------------------------

    def _backlog_bytes(self) -> float | None:
        with self._lock:
            backlog, known = self._backlog, dict(self._row_bytes)
        if backlog.offsets is None or not backlog.topics.keys() <= known.keys():
            return None
        return sum(count * known[topic] for topic, count in backlog.topics.items())

    def _of_version(self, value: Callable[[TargetVersion], float]) -> float | None:
        return None if self._version is None else value(self._version)

    def _count(self, state: str) -> float:
        version = self._version
        if version is None:
            return 0.0
        parked = version.parked
        states = (
            "parked" if topic in parked else "loading" if topic in version.loading else "updated"
            for topic in version.tables
        )
        return float(sum(1 for one in states if one == state))
