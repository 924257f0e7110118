"""The metrics of the daemon: their names, which dashboards and alerts use, their meaning, and when they are absent.

In: the version.  Out: the metrics, in a separate registry; their descriptions by subject.
Invariant: every counter whose labels are known exists from the start with 0, so that rates include the first event; a
gauge whose value is unknown (before the first event, while PostgreSQL is unreachable, if the feature is off) is
absent: never 0, never its last value.
Must not: change a value after the start; `cdcd.ops.metrics` does.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry

from cdcd.errors import CdcdError, Retry
from cdcd.extensions import implementation
from cdcd.metrics.group import MetricGroup
from cdcd.ops.estimate_metrics import EstimateCollector
from cdcd.ops.health import STATES
from cdcd.ops.slot_metrics import BY_FIELD, UNCONFIRMED_BYTES, UNRECEIVED_BYTES, WAL_STATUS, SlotCollector
from cdcd.ops.source_metrics import SourceMetrics
from cdcd.ops.wait_metrics import WaitCollector
from cdcd.recovery import new_snapshot

__all__ = ["OPERATIONS", "REASONS", "MetricSeries", "labels_of"]

OPERATIONS = ("insert", "update", "delete", "truncate", "snapshot")
COMPONENTS = ("source", "sink", "registry")
REASONS = ("unavailable", "authentication", "slot_active", "other")
BACKPRESSURE_CAUSES = ("producer", "spill")
REGISTRY_OPERATIONS = ("lookup", "register", "set_compatibility", "global_config")

_LATENCY_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 3600)
_DURATION_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)

_NO_TABLE = "before the table is known"
_NO_STREAM = "without a stream"
_NOT_PREPARED = "without a stream, or without source.protocol.two_phase: they are not visible then"
_NO_SESSION = "before the first session"


class MetricSeries:
    """All metrics of one daemon, with their values at the start.

    `clock` returns seconds of the Unix epoch. `label_of`: the value of the label `table` for a table.
    """

    def __init__(
        self, version: str, revision: str, clock: Callable[[], float], label_of: Callable[[str], str]
    ) -> None:
        self.registry = CollectorRegistry()
        self.groups: list[MetricGroup] = []
        """The metrics by subject."""
        self._make_state(self._group("State"), version, revision)
        self._make_lag(self._group("Lag"))
        self._make_throughput(self._group("Throughput"))
        self._make_transactions(self._group("Open transactions"))
        self._make_kafka(self._group("Kafka and the schema registry"))
        self._make_errors(self._group("Errors and waits"), clock)
        slot = self._group("The slot and the publications")
        slot.collected((*BY_FIELD.values(), WAL_STATUS))
        self.source = SourceMetrics(slot)
        """The metrics of the monitors."""
        self._make_snapshot(self._group("Snapshots"), label_of)
        self._make_incremental(self.groups[-1])

    def _group(self, title: str) -> MetricGroup:
        self.groups.append(MetricGroup(title, self.registry))
        return self.groups[-1]

    def _make_state(self, new: MetricGroup, version: str, revision: str) -> None:
        build = new.gauge(
            "build_info",
            "1, with the versions of cdcd and Python, and whether the C extensions or the Python fallback are used.",
            ("version", "revision", "python", "extensions"),
        )
        build.labels(version, revision, platform.python_version(), implementation()).set(1)
        self._state = new.gauge("pipeline_state", "1 for the current state, 0 for all others.", ("state",))
        for state in STATES:
            self._state.labels(state).set(state == "starting")
        self._halted = new.gauge(
            "halted_reason_info",
            "1, with the error code of the halt.",
            ("reason",),
            absent="while cdcd is not halted",
        )
        self._source_connected = new.gauge(
            "source_connected", "1 while the replication stream is open, otherwise 0."
        )
        self._sink_connected = new.gauge("sink_connected", "1 while the producer is open, otherwise 0.")
        self._last_turn = new.optional(
            "event_loop_last_iteration_timestamp_seconds",
            "Time of the event loop's last iteration.",
            absent="before the first iteration",
        )

    def _make_lag(self, new: MetricGroup) -> None:
        self._lag = new.optional(
            "replication_lag_seconds",
            "Age of the oldest commit that is not, or may not be, durable in Kafka, whether received or not.",
            absent="before the progress record is read, or the first snapshot starts; while another process "
            "holds the slot",
        )
        self._slot = SlotCollector()
        self.registry.register(self._slot)
        new.collected((UNCONFIRMED_BYTES, UNRECEIVED_BYTES))
        self._last_commit = new.optional(
            "last_commit_timestamp_seconds",
            "Commit time of the last transaction that is durable in Kafka.",
            absent="before a transaction is known to be durable",
        )
        self._kafka_last_commit = new.optional(
            "kafka_last_commit_timestamp_seconds",
            "Time of this process's last commit in Kafka.",
            absent="before the first commit",
        )
        self._latency = new.histogram(
            "event_latency_seconds",
            "Time from a commit to its durability in Kafka, once for each group in which a PostgreSQL transaction "
            "ends.",
            _LATENCY_BUCKETS,
        )

    def _make_throughput(self, new: MetricGroup) -> None:
        self._source_bytes = new.counter("source_bytes_total", "Bytes received from PostgreSQL.")
        self._events = new.counter(
            "events_total", "Events encoded, by table and operation.", ("table", "op"), absent=_NO_TABLE
        )
        transactions = new.counter(
            "transactions_total", "PostgreSQL transactions received, by result.", ("result",)
        )
        self._transactions = {
            result: transactions.labels(result) for result in ("committed", "empty", "aborted")
        }
        self._duplicates = new.counter(
            "duplicates_suppressed_total", "Transactions dropped on replay because they were durable already."
        )
        self._status_updates = new.counter("status_updates_total", "Status updates sent to PostgreSQL.")
        self._python_columns = new.counter(
            "encoded_in_python_columns_total",
            "Values that the C extension passed to the Python fallback, because it does not encode their type.",
        )
        self._python_rows = new.counter(
            "encoded_in_python_rows_total", "Rows that the C extension passed to the Python fallback."
        )

    def _make_transactions(self, new: MetricGroup) -> None:
        self._open_transactions = new.optional(
            "open_transactions",
            "Transactions whose commit, prepare or abort has not been received.",
            absent=_NO_STREAM,
        )
        self._prepared = new.optional(
            "prepared_transactions",
            "Transactions prepared and neither committed nor rolled back.",
            absent=_NOT_PREPARED,
        )
        self._prepared_age = new.optional(
            "prepared_oldest_age_seconds",
            "Time for which the oldest prepared transaction has held back the confirmed LSN; 0 without one.",
            absent=_NOT_PREPARED,
        )
        self._buffer_bytes = new.optional(
            "buffer_bytes", "Bytes in memory that wait for the producer or for a commit.", absent=_NO_SESSION
        )
        self._make_spill(new)
        self._backpressure = new.gauge("backpressure_active", "1 while reading is paused, otherwise 0.")
        self._backpressure_seconds = new.counter(
            "backpressure_seconds_total",
            "Seconds for which reading was paused, including a current pause, by cause.",
            ("cause",),
        )
        for cause in BACKPRESSURE_CAUSES:
            self._backpressure_seconds.labels(cause)

    def _make_spill(self, new: MetricGroup) -> None:
        self._spill_bytes = new.optional(
            "spill_bytes", "Bytes of open transactions on disk.", absent=_NO_SESSION
        )
        self._spill_limit = new.optional(
            "spill_limit_bytes", "Limit of the bytes on disk (buffer.spill).", absent=_NO_SESSION
        )
        self._spill_files = new.optional("spill_files", "Files with open transactions.", absent=_NO_SESSION)
        self._spilled_transactions = new.counter(
            "spilled_transactions_total", "Open transactions written to disk in whole or in part."
        )
        self._spilled_bytes = new.counter("spilled_bytes_total", "Bytes written to disk.")

    def _make_kafka(self, new: MetricGroup) -> None:
        self._kafka_transactions = new.counter(
            "kafka_transactions_total",
            "Groups of transactions written to Kafka, by result; with exactly_once each is one Kafka transaction.",
            ("result",),
        )
        for result in ("committed", "aborted"):
            self._kafka_transactions.labels(result)
        self._kafka_duration = new.histogram(
            "kafka_transaction_duration_seconds", "Duration of the commit of a group.", _DURATION_BUCKETS
        )
        self._dead_letters = new.counter(
            "dead_letters_total",
            "Rows that were too large for Kafka and are reported in the topic of dead letters, by table.",
            ("table",),
            absent=_NO_TABLE,
        )
        self._make_rebuilds(new)
        self._registrations = new.counter(
            "schema_registrations_total", "Schemas registered, including those that existed already."
        )
        self._registry_requests = new.counter(
            "registry_requests_total",
            "Requests to a schema registry, by operation and status (unreachable: no response).",
            ("operation", "code"),
        )
        for operation in REGISTRY_OPERATIONS:
            self._registry_requests.labels(operation, "200")
            self._registry_requests.labels(operation, "unreachable")

    def _make_rebuilds(self, new: MetricGroup) -> None:
        self._producer_rebuilds = new.counter(
            "producer_rebuilds_total",
            "Producers recreated within a session, by reason: the files that they read on disk have changed (files); "
            "a commit took 0.4 s or more, so that the Kafka client may have sent it twice (late_request).",
            ("reason",),
        )
        for reason in ("files", "late_request"):
            self._producer_rebuilds.labels(reason)

    def _make_errors(self, new: MetricGroup, clock: Callable[[], float]) -> None:
        self._reconnects = new.counter(
            "reconnects_total", "Reconnects, by component and reason.", ("component", "reason")
        )
        for component in COMPONENTS:
            for reason in REASONS:
                self._reconnects.labels(component, reason)
        self._errors = new.counter(
            "errors_total",
            "Errors, by component and class: retryable, or fatal (an operator has to act, or the process ends).",
            ("component", "class"),
        )
        for error in _errors_of(CdcdError):
            self._errors.labels(*labels_of(error))
        self.waits = WaitCollector(clock)
        self.registry.register(self.waits)
        new.collected(self.waits.metrics)

    def _make_snapshot(self, new: MetricGroup, label_of: Callable[[str], str]) -> None:
        self._snapshot_running = new.gauge(
            "snapshot_running", "1 while the snapshot runs, also a blocking one, otherwise 0."
        )
        self._snapshot_tables = new.optional(
            "snapshot_tables", "Tables of this process's snapshot.", absent="without a snapshot"
        )
        self._snapshot_remaining = new.optional(
            "snapshot_tables_remaining",
            "Tables that the snapshot has not copied yet; 0 while cdcd streams.",
            absent="while unknown: before the first session, and until the tables are listed",
        )
        self._snapshot_chunks = new.optional(
            "snapshot_chunks_remaining",
            "Chunks that the snapshot has not read yet: ranges of 32 MB of large tables or partitions, and small "
            "tables; 0 while cdcd streams, even if it copies tables incrementally.",
            absent="while unknown: before the first session, and until the tables are divided",
        )
        self._snapshot_rows = new.counter(
            "snapshot_rows_total",
            "Rows that snapshots have copied, by table.",
            ("table",),
            absent="before this process copies a row of the table",
        )
        self.estimates = EstimateCollector(label_of)
        self.registry.register(self.estimates)
        new.collected(self.estimates.metrics)
        self._make_completed(new)

    def _make_completed(self, new: MetricGroup) -> None:
        self._snapshot_duration = new.optional(
            "snapshot_duration_seconds",
            "Duration of the last snapshot that this process completed.",
            absent="before this process has completed one",
        )
        self._snapshot_completed = new.optional(
            "snapshot_last_completed_timestamp_seconds",
            "Time of the end of the last snapshot that this process completed.",
            absent="before this process has completed one",
        )

    def _make_incremental(self, new: MetricGroup) -> None:
        self._new_snapshots = new.counter(
            "new_snapshots_total",
            "New snapshots that cdcd has begun by itself (snapshot.mode when_needed and always), by reason: the code "
            "of the halt, or requested.",
            ("reason",),
        )
        for reason in new_snapshot.REASONS:
            self._new_snapshots.labels(reason)
        self._incremental_tables = new.gauge(
            "incremental_snapshot_tables",
            "Tables that are copied while cdcd streams, that wait, are paused, or have failed, by state.",
            ("state",),
            absent="before the first session streams",
        )
        self._incremental_completed = new.optional(
            "incremental_snapshot_last_completed_timestamp_seconds",
            "Time at which this process copied the last table completely while it streamed.",
            absent="before the first one",
        )


def _errors_of(error: type[CdcdError]) -> Iterator[type[CdcdError]]:
    """Return every known error class; each has a counter from the start, so that a rate includes the first error."""
    for kind in error.__subclasses__():
        yield kind
        yield from _errors_of(kind)


def labels_of(error: type[CdcdError]) -> tuple[str, str]:
    """Return the component, which is the word after CDCD in the code, and the class."""
    word = error.code.split("-")[1].lower() if "-" in error.code else "other"
    component = {"slot": "source", "topic": "sink"}.get(word, word)
    return component, "fatal" if error.retry in (Retry.OPERATOR, Retry.NEVER) else "retryable"
