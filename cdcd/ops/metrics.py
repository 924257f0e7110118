"""The values of the daemon's metrics.

In: plain calls of the daemon, at most a few for each batch or group.  Out: the exposition text.
Invariant: labels are bounded (tables beyond a limit count as "other"; no LSN, xid or error text). `metric_series`
has the rules for what exists from the start and what is absent.
Must not: be called for each row, contain values of rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from prometheus_client import (
    Counter,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

from cdcd.errors import CdcdError
from cdcd.ops.health import STATES
from cdcd.ops.metric_series import OPERATIONS, REASONS, MetricSeries, labels_of
from cdcd.ops.slot_metrics import SlotReading

__all__ = ["OPERATIONS", "Metrics", "SlotReading"]

OTHER_TABLE = "other"


class Metrics(MetricSeries):
    """All metrics of one daemon, in a separate registry. `clock` returns seconds of the Unix epoch."""

    def __init__(
        self,
        version: str,
        *,
        revision: str = "",
        max_tables: int = 200,
        clock: Callable[[], float] = time.time,
        with_process: bool = True,
    ) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._clock = clock
        self._max_tables = max_tables
        self._tables: set[str] = set()
        self._events_of: dict[tuple[str, str], Counter] = {}
        """A cache of the series in use, because a look-up costs as much as several rows."""
        self._blocked_since_s: dict[str, float] = {}
        super().__init__(version, revision, clock, self._table)
        if with_process:
            ProcessCollector(registry=self.registry)
            PlatformCollector(registry=self.registry)
            GCCollector(registry=self.registry)

    # --- out ---------------------------------------------------------------------------------------------

    def exposition(self) -> bytes:
        """Return the text of /metrics."""
        self._count_backpressure()
        return generate_latest(self.registry)

    def snapshot(self) -> dict[str, float]:
        """Return every sample by its name and labels as in the exposition, `name{label="value"}`."""
        self._count_backpressure()
        return {
            _series(sample.name, sample.labels): sample.value
            for family in self.registry.collect()
            for sample in family.samples
        }

    # --- state -------------------------------------------------------------------------------------------

    def state(self, state: str, *, halted_code: str | None = None) -> None:
        """Set the pipeline's state, and for a halt the error's code."""
        for name in STATES:
            self._state.labels(name).set(name == state)
        self._halted.clear()
        if halted_code is not None:
            self._halted.labels(halted_code).set(1)

    def source_connected(self, is_connected: bool) -> None:
        """Set whether the replication stream is open."""
        self._source_connected.set(is_connected)

    def sink_connected(self, is_connected: bool) -> None:
        """Set whether the producer is open."""
        self._sink_connected.set(is_connected)

    def turned(self) -> None:
        """Record an iteration of the event loop."""
        self._last_turn.set(self._clock())

    # --- throughput --------------------------------------------------------------------------------------

    def received(self, size_bytes: int) -> None:
        """Count bytes received from the stream."""
        self._source_bytes.inc(size_bytes)

    def events(self, counts: Mapping[tuple[str, str], int]) -> None:
        """Count events of a batch by (table, operation), operations as in `OPERATIONS`."""
        for (table, operation), count in counts.items():
            labels = self._table(table), operation
            child = self._events_of.get(labels)
            if child is None:
                child = self._events_of[labels] = self._events.labels(*labels)
            child.inc(count)

    def table_known(self, table: str) -> None:
        """Create the counters of a table with 0, before its first row."""
        label = self._table(table)
        for operation in OPERATIONS:
            self._events.labels(label, operation)
        self._dead_letters.labels(label)

    def transactions(self, *, committed: int = 0, empty: int = 0, aborted: int = 0) -> None:
        """Count PostgreSQL transactions by result."""
        for result, count in (("committed", committed), ("empty", empty), ("aborted", aborted)):
            if count:
                self._transactions[result].inc(count)

    def in_python(self, columns: int, rows: int) -> None:
        """Count the values and rows that the C extension has passed to the Python fallback."""
        self._python_columns.inc(columns)
        self._python_rows.inc(rows)

    def open_transactions(self, count: int | None) -> None:
        """Set the number of open transactions; None without a stream."""
        self._open_transactions.set(count)

    def prepared_transactions(
        self, count: int | None, oldest_age_s: Callable[[], float | None] = lambda: 0.0
    ) -> None:
        """Set the number of prepared transactions (F33); None without a stream or two_phase.

        `oldest_age_s` is called at each scrape.
        """
        self._prepared.set(count)
        self._prepared_age.set_function(oldest_age_s if count is not None else lambda: None)

    def duplicates_suppressed(self, count: int) -> None:
        """Count transactions that were durable already and were dropped on replay (F4)."""
        self._duplicates.inc(count)

    # --- lag ---------------------------------------------------------------------------------------------

    def lag(self, lag_s: Callable[[], float | None]) -> None:
        """Set the function that returns the lag in seconds at each scrape, so that the lag grows; None: unknown."""
        self._lag.set_function(lag_s)

    def last_commit(self, commit_us: int) -> None:
        """Set the commit time of the last durable transaction (Unix epoch)."""
        self._last_commit.set(commit_us / 1e6)

    def positions(self, *, server_lsn: int, received_lsn: int, confirmed_lsn: int) -> None:
        """Set the lags in bytes from the server's end of WAL and cdcd's positions, after `slot`."""
        self._slot.unconfirmed_bytes = max(0, server_lsn - confirmed_lsn)
        self._slot.unreceived_bytes = max(0, server_lsn - received_lsn)

    def positions_unknown(self) -> None:
        """Show no lags in bytes."""
        self._slot.unconfirmed_bytes = self._slot.unreceived_bytes = None

    # --- Kafka -------------------------------------------------------------------------------------------

    def group_committed(
        self, *, duration_s: float, commit_us: int | None = None, latency_s: float | None = None
    ) -> None:
        """Count a durable group, and record the duration of Kafka's commit.

        `commit_us`: the commit time of the last PostgreSQL transaction that ends in the group, None if none does (a
        part of a transaction, rows of a snapshot, a position without rows). `latency_s`: the age of that commit, None
        for a group without rows.
        """
        self._kafka_transactions.labels("committed").inc()
        self._kafka_duration.observe(duration_s)
        self._kafka_last_commit.set(self._clock())
        if commit_us is not None:
            self.last_commit(commit_us)
        if latency_s is not None:
            self._latency.observe(max(0.0, latency_s))

    def dead_letter(self, table: str) -> None:
        """Count a row that was too large for Kafka, and is reported in the topic of dead letters."""
        self._dead_letters.labels(self._table(table)).inc()

    def group_aborted(self) -> None:
        """Count an aborted group."""
        self._kafka_transactions.labels("aborted").inc()

    def producer_rebuilt(self, reason: str) -> None:
        """Count a new producer that replaced another within a session."""
        self._producer_rebuilds.labels(reason).inc()

    def registry_request(self, operation: str, code: str) -> None:
        """Count an answered request to the schema registry; the signature is that of `Registry`'s observer."""
        self._registry_requests.labels(operation, code).inc()
        if operation == "register" and code == "200":
            self._registrations.inc()

    # --- memory ------------------------------------------------------------------------------------------

    def buffers(
        self,
        *,
        buffered_bytes: Callable[[], float | None],
        spilled_bytes: Callable[[], float | None],
        limit_bytes: Callable[[], float | None],
        files: Callable[[], float | None],
    ) -> None:
        """Set the functions for the bytes in memory not yet passed to the producer, and on disk, at each scrape."""
        self._buffer_bytes.set_function(buffered_bytes)
        self._spill_bytes.set_function(spilled_bytes)
        self._spill_limit.set_function(limit_bytes)
        self._spill_files.set_function(files)

    def spilled(self, *, transactions: int, size_bytes: int) -> None:
        """Count bytes written to disk; `transactions`: those that are on disk for the first time."""
        self._spilled_transactions.inc(transactions)
        self._spilled_bytes.inc(size_bytes)

    def backpressure(self, is_active: bool, cause: str = "producer") -> None:
        """Set whether reading is paused because of `cause`."""
        self._count_backpressure()
        if is_active:
            self._blocked_since_s.setdefault(cause, self._clock())
        else:
            self._blocked_since_s.pop(cause, None)
        self._backpressure.set(bool(self._blocked_since_s))

    def _count_backpressure(self) -> None:
        """Count the seconds up to now, also of a pause that has not ended."""
        now_s = self._clock()
        for cause, since_s in self._blocked_since_s.items():
            self._backpressure_seconds.labels(cause).inc(max(0.0, now_s - since_s))
            self._blocked_since_s[cause] = now_s

    # --- reliability -------------------------------------------------------------------------------------

    def reconnecting(self, component: str, reason: str) -> None:
        """Count a reconnect of a component; a reason not in `REASONS` counts as "other"."""
        self._reconnects.labels(component, reason if reason in REASONS else "other").inc()

    def failed(self, error: type[CdcdError]) -> None:
        """Count an error; the class fatal waits for an operator or ends the process."""
        self._errors.labels(*labels_of(error)).inc()

    def status_updates(self, count: int) -> None:
        """Count status updates sent to the server."""
        self._status_updates.inc(count)

    def slot(self, reading: SlotReading | None) -> None:
        """Set the slot's reading; with None (PostgreSQL is unreachable) the lags in bytes are absent, too."""
        self._slot.reading = reading
        self.positions_unknown()

    # --- snapshot ----------------------------------------------------------------------------------------

    def new_snapshot(self, reason: str) -> None:
        """Count a new snapshot that cdcd takes by itself."""
        self._new_snapshots.labels(reason).inc()

    def snapshot_started(self, tables: int) -> None:
        """Record the start of a snapshot of this many tables."""
        self._snapshot_running.set(1)
        self._snapshot_tables.set(tables)
        self._snapshot_remaining.set(tables)

    def snapshot_remaining(self, remaining: int | None) -> None:
        """Set the number of tables not copied yet: 0 without a snapshot, None while it is unknown."""
        self._snapshot_remaining.set(remaining)
        if not remaining:
            self._snapshot_chunks.set(remaining)

    def snapshot_chunks(self, remaining: int) -> None:
        """Set the number of chunks that are not read yet."""
        self._snapshot_chunks.set(remaining)

    def snapshot_rows(self, table: str, count: int) -> None:
        """Count copied rows of a table (the caller counts them as events, too)."""
        self._snapshot_rows.labels(self._table(table)).inc(count)

    def snapshot_ended(self, *, duration_s: float, is_complete: bool) -> None:
        """Record the end of the snapshot; an incomplete one starts again later, with the tables published then."""
        self._snapshot_running.set(0)
        self.snapshot_remaining(0 if is_complete else None)
        if is_complete:
            self._snapshot_duration.set(duration_s)
            self._snapshot_completed.set(self._clock())
        else:
            self._snapshot_tables.set(None)

    def incremental_tables(self, states: Sequence[str], count: Callable[[str], int]) -> None:
        """Count the tables of incremental snapshots by their state at each scrape."""
        for state in states:
            self._incremental_tables.labels(state).set_function(partial(count, state))

    def table_copied(self) -> None:
        """Record the end of one table's incremental snapshot."""
        self._incremental_completed.set(self._clock())

    # --- inside ------------------------------------------------------------------------------------------

    def _table(self, table: str) -> str:
        if table in self._tables:
            return table
        if len(self._tables) >= self._max_tables:
            return OTHER_TABLE
        self._tables.add(table)
        return table


def _series(name: str, labels: Mapping[str, str]) -> str:
    if not labels:
        return name
    inner = ",".join(f'{label}="{value}"' for label, value in labels.items())
    return f"{name}{{{inner}}}"
