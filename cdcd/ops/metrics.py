"""The metrics of the daemon, under the names that dashboards and alerts use.

In: plain calls of the daemon, at most a few for each batch or group.  Out: the exposition text.
Invariant: every counter whose labels are known exists from the start with 0, so that rates include the first event; a
gauge whose value is unknown (before the first event, while PostgreSQL is unreachable, if the feature is off) is
absent: never 0, never its last value. Labels are bounded (tables beyond a limit count as "other"; no LSN, xid or
error text).
Must not: be called for each row, contain values of rows.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

from cdcd.errors import CdcdError, Retry
from cdcd.extensions import implementation
from cdcd.ops.estimate_metrics import EstimateCollector
from cdcd.ops.health import STATES
from cdcd.ops.optional_gauge import OptionalGauge
from cdcd.ops.slot_metrics import SlotCollector, SlotReading
from cdcd.ops.source_metrics import SourceMetrics
from cdcd.ops.wait_metrics import WaitCollector
from cdcd.recovery import new_snapshot

__all__ = ["OPERATIONS", "Metrics", "SlotReading"]

OPERATIONS = ("insert", "update", "delete", "truncate", "snapshot")
COMPONENTS = ("source", "sink", "registry")
REASONS = ("unavailable", "authentication", "slot_active", "other")
BACKPRESSURE_CAUSES = ("producer", "spill")
REGISTRY_OPERATIONS = ("lookup", "register", "set_compatibility", "global_config")
OTHER_TABLE = "other"

_LATENCY_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 3600)
_DURATION_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Metrics:
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
        self.registry = CollectorRegistry()
        self._clock = clock
        self._max_tables = max_tables
        self._tables: set[str] = set()
        self._events_of: dict[tuple[str, str], Counter] = {}
        """A cache of the series in use, because a look-up costs as much as several rows."""
        self._blocked_since_s: dict[str, float] = {}
        self._slot = SlotCollector()
        self.registry.register(self._slot)
        self.waits = WaitCollector(clock)
        self.registry.register(self.waits)
        self.estimates = EstimateCollector(self._table)
        self.registry.register(self.estimates)
        if with_process:
            ProcessCollector(registry=self.registry)
            PlatformCollector(registry=self.registry)
            GCCollector(registry=self.registry)
        self._make_state(version, revision)
        self._make_lag()
        self._make_throughput()
        self._make_kafka()
        self._make_reliability()
        self._make_snapshot()
        self.source = SourceMetrics(self.registry)
        """The metrics of the monitors."""

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
        self._errors.labels(*_labels_of(error)).inc()

    def status_updates(self, count: int) -> None:
        """Count status updates sent to the server."""
        self._status_updates.inc(count)

    def slot(self, reading: SlotReading | None) -> None:
        """Set the slot's reading; with None (PostgreSQL is unreachable) the lags in bytes are absent, too."""
        self._slot.reading = reading
        self._slot.unconfirmed_bytes = self._slot.unreceived_bytes = None

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

    def snapshot_rows(self, table: str, count: int) -> None:
        """Count copied rows of a table (the caller counts them as events, too)."""
        self._snapshot_rows.labels(self._table(table)).inc(count)

    def snapshot_ended(self, *, duration_s: float, is_complete: bool) -> None:
        """Record the end of the snapshot; an incomplete one starts again later, with the tables published then."""
        self._snapshot_running.set(0)
        self._snapshot_remaining.set(0 if is_complete else None)
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

    def _optional(self, name: str, text: str) -> OptionalGauge:
        return OptionalGauge(f"cdcd_{name}", text, self.registry)

    def _gauge(self, name: str, text: str, labels: tuple[str, ...] = ()) -> Gauge:
        return Gauge(f"cdcd_{name}", text, labels, registry=self.registry)

    def _counter(self, name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
        return Counter(f"cdcd_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"cdcd_{name}", text, registry=self.registry, buckets=buckets)

    def _make_state(self, version: str, revision: str) -> None:
        build = self._gauge(
            "build_info",
            "1, with the versions of cdcd and Python, and whether the C extensions are used.",
            ("version", "revision", "python", "extensions"),
        )
        build.labels(version, revision, platform.python_version(), implementation()).set(1)
        self._state = self._gauge(
            "pipeline_state", "1 for the pipeline's state, 0 for all others.", ("state",)
        )
        self._halted = self._gauge("halted_reason_info", "1, with the error code of the halt.", ("reason",))
        self._source_connected = self._gauge("source_connected", "1 while the replication stream is open.")
        self._sink_connected = self._gauge("sink_connected", "1 while the producer is open.")
        self._last_turn = self._optional(
            "event_loop_last_iteration_timestamp_seconds", "Time of the event loop's last iteration."
        )
        self.state("starting")

    def _make_lag(self) -> None:
        self._lag = self._optional(
            "replication_lag_seconds",
            "Age of the oldest commit that is not, or may not be, durable in Kafka; absent while unknown.",
        )
        self._last_commit = self._optional(
            "last_commit_timestamp_seconds", "Commit time of the last transaction that is durable in Kafka."
        )
        self._kafka_last_commit = self._optional(
            "kafka_last_commit_timestamp_seconds", "Time of the last commit of a group in Kafka."
        )
        self._latency = self._histogram(
            "event_latency_seconds",
            "Time from a commit in PostgreSQL to its durability in Kafka, once for each group with such a commit.",
            _LATENCY_BUCKETS,
        )

    def _make_throughput(self) -> None:
        self._source_bytes = self._counter("source_bytes_total", "Bytes received from PostgreSQL.")
        self._events = self._counter(
            "events_total", "Events encoded, by table and operation.", ("table", "op")
        )
        transactions = self._counter(
            "transactions_total", "PostgreSQL transactions received, by result.", ("result",)
        )
        self._transactions = {
            result: transactions.labels(result) for result in ("committed", "empty", "aborted")
        }
        self._python_columns = self._counter(
            "encoded_in_python_columns_total",
            "Values whose type the C extension does not encode.",
        )
        self._python_rows = self._counter(
            "encoded_in_python_rows_total", "Rows that the C extension passed to its Python fallback."
        )
        self._open_transactions = self._optional(
            "open_transactions", "Open transactions; absent without a stream."
        )
        self._prepared = self._optional(
            "prepared_transactions",
            "Transactions prepared and neither committed nor rolled back; absent without a stream or two_phase.",
        )
        self._prepared_age = self._optional(
            "prepared_oldest_age_seconds",
            "Time for which the oldest prepared transaction has held back the confirmed LSN, or 0.",
        )
        self._buffer_bytes = self._optional("buffer_bytes", "Bytes waiting for the producer or for a commit.")
        self._make_spill()
        self._backpressure = self._gauge("backpressure_active", "1 while reading is paused.")
        self._backpressure_seconds = self._counter(
            "backpressure_seconds_total", "Seconds for which reading was paused, by cause.", ("cause",)
        )
        for cause in BACKPRESSURE_CAUSES:
            self._backpressure_seconds.labels(cause)

    def _make_spill(self) -> None:
        self._spill_bytes = self._optional("spill_bytes", "Bytes of open transactions on disk.")
        self._spill_limit = self._optional("spill_limit_bytes", "Limit of the bytes on disk (buffer.spill).")
        self._spill_files = self._optional("spill_files", "Files with open transactions.")
        self._spilled_transactions = self._counter(
            "spilled_transactions_total", "Open transactions written to disk in whole or in part."
        )
        self._spilled_bytes = self._counter("spilled_bytes_total", "Bytes written to disk.")

    def _make_kafka(self) -> None:
        self._kafka_transactions = self._counter(
            "kafka_transactions_total", "Groups written to Kafka, by result.", ("result",)
        )
        for result in ("committed", "aborted"):
            self._kafka_transactions.labels(result)
        self._dead_letters = self._counter(
            "dead_letters_total", "Rows too large for Kafka, replaced by a marker.", ("table",)
        )
        self._producer_rebuilds = self._counter(
            "producer_rebuilds_total",
            "Producers recreated within a session: the files that they read were changed (files), or a request of a "
            "Kafka transaction may still arrive (late_request).",
            ("reason",),
        )
        for reason in ("files", "late_request"):
            self._producer_rebuilds.labels(reason)
        self._kafka_duration = self._histogram(
            "kafka_transaction_duration_seconds", "Duration of the commit of a group.", _DURATION_BUCKETS
        )
        self._registrations = self._counter(
            "schema_registrations_total", "Schemas registered, including those that existed already."
        )
        self._registry_requests = self._counter(
            "registry_requests_total", "Requests to the schema registry.", ("operation", "code")
        )
        for operation in REGISTRY_OPERATIONS:
            self._registry_requests.labels(operation, "200")
            self._registry_requests.labels(operation, "unreachable")

    def _make_reliability(self) -> None:
        self._reconnects = self._counter(
            "reconnects_total", "Reconnects, by component and reason.", ("component", "reason")
        )
        self._errors = self._counter(
            "errors_total", "Errors, by component and class (who fixes them).", ("component", "class")
        )
        for component in COMPONENTS:
            for reason in REASONS:
                self._reconnects.labels(component, reason)
        for error in _errors_of(CdcdError):
            self._errors.labels(*_labels_of(error))
        self._status_updates = self._counter("status_updates_total", "Status messages sent to PostgreSQL.")
        self._duplicates = self._counter(
            "duplicates_suppressed_total", "Transactions dropped on replay because they were durable already."
        )

    def _make_snapshot(self) -> None:
        self._snapshot_running = self._gauge("snapshot_running", "1 while the snapshot runs.")
        self._snapshot_tables = self._optional("snapshot_tables", "Tables of the snapshot.")
        self._snapshot_remaining = self._optional(
            "snapshot_tables_remaining", "Tables that the snapshot has not copied yet."
        )
        self._snapshot_rows = self._counter(
            "snapshot_rows_total", "Rows that the snapshot has copied.", ("table",)
        )
        self._new_snapshots = self._counter(
            "new_snapshots_total", "New snapshots that cdcd has begun by itself, by reason.", ("reason",)
        )
        for reason in new_snapshot.REASONS:
            self._new_snapshots.labels(reason)
        self._snapshot_duration = self._optional(
            "snapshot_duration_seconds", "Duration of the last completed snapshot."
        )
        self._snapshot_completed = self._optional(
            "snapshot_last_completed_timestamp_seconds", "Time of the end of the last completed snapshot."
        )
        self._incremental_tables = self._gauge(
            "incremental_snapshot_tables", "Tables of incremental snapshots, by state.", ("state",)
        )
        self._incremental_completed = self._optional(
            "incremental_snapshot_last_completed_timestamp_seconds",
            "Time at which the last table was copied completely while streaming.",
        )


def _errors_of(error: type[CdcdError]) -> Iterator[type[CdcdError]]:
    """Return every known error class; each has a counter from the start, so that a rate includes the first error."""
    for kind in error.__subclasses__():
        yield kind
        yield from _errors_of(kind)


def _labels_of(error: type[CdcdError]) -> tuple[str, str]:
    """Return the component, which is the word after CDCD in the code, and the class."""
    word = error.code.split("-")[1].lower() if "-" in error.code else "other"
    component = {"slot": "source", "topic": "sink"}.get(word, word)
    return component, "fatal" if error.retry in (Retry.OPERATOR, Retry.NEVER) else "retryable"


def _series(name: str, labels: Mapping[str, str]) -> str:
    if not labels:
        return name
    inner = ",".join(f'{label}="{value}"' for label, value in labels.items())
    return f"{name}{{{inner}}}"
