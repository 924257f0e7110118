"""The sessions of a mirror: a source and a writer of the target, from one error to the next.

In: the settings of a mirror.  Out: batches in the target, until the mirror is asked to stop, is up to date, or has
an error that does not heal.
Invariant: each session starts at the newest version of the target, under a writer's id of its own, with new clients,
which read the secrets again; it removes the files that the session before has left. It does not take the target back
from another mirror: that is a conflict, which ends this one.
Must not: decide which errors heal (`retries`).
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from pyspark.sql import SparkSession

from cdcd.errors import SparkReadError, StorageConflict, StorageError
from cdcd.spark.clients.connection import Connection
from cdcd.spark.clients.kafka import Cluster
from cdcd.spark.decoding.schemas import access_of, schema_by_id
from cdcd.spark.mirroring.batch_source import MirrorSource
from cdcd.spark.mirroring.batches import BatchReport, MirrorBatches, OnError
from cdcd.spark.mirroring.empty_tables import EmptyTables
from cdcd.spark.mirroring.metrics import MirrorMetrics
from cdcd.spark.mirroring.retries import Retries, code_of, heals
from cdcd.spark.reading.catalog_updates import CatalogUpdates
from cdcd.spark.session import reason_of
from cdcd.spark.source.cuts import loading_of
from cdcd.spark.source.table_options import split_names
from cdcd.spark.storage.uri import Storage, open_storage
from cdcd.spark.tables.retained_columns import DEFAULT_POLICIES, ColumnPolicies
from cdcd.spark.target.commit_log import read_latest
from cdcd.spark.target.left_files import sweep
from cdcd.spark.target.ownership import starting_version
from cdcd.spark.target.target_writer import TargetWriter, take_over
from cdcd.spark.target.versions import ScdType, TableEntry, TableFormat, TargetVersion

__all__ = ["MirrorSessions", "MirrorSettings", "Session"]

LOOK_AGAIN_S = 0.1
"""The pause of a mirror that has read all records."""
LOOK_FOR_EMPTY_S = 10.0
"""The shortest time between two searches for tables without rows."""
LOG_EVERY_S = 10.0
"""The shortest time between two log lines of the backlog."""
log = logging.getLogger("cdcd.spark.mirror")


@dataclass(frozen=True, slots=True)
class MirrorSettings:
    """What one mirror is, from its start to its end. `interval_s` None: it ends at the newest commit."""

    connection: Connection
    target: str
    target_options: Mapping[str, str] | None
    source_options: Mapping[str, str]
    interval_s: float | None
    buckets: int
    driver_bytes: int
    accept_gaps: bool
    accept_cluster: bool
    on_error: OnError
    retain_s: float
    table_format: TableFormat = "parquet"
    scd_type: ScdType = 1
    on_batch: Callable[[BatchReport], None] | None = None
    catalog: str | None = None
    history_retain_s: float | None = None
    policies: ColumnPolicies = DEFAULT_POLICIES


@dataclass
class Session:
    """A source, and the writer of the target."""

    source: MirrorSource
    batches: MirrorBatches
    empty: EmptyTables
    looked_for_empty_s: float = 0.0

    @property
    def is_due(self) -> bool:
        """Whether to look for tables without rows again."""
        return time.monotonic() > self.looked_for_empty_s + LOOK_FOR_EMPTY_S

    def empty_tables(self) -> list[TableEntry]:
        """Return the tables of which no row is in the topics."""
        version = self.batches.version
        self.looked_for_empty_s = time.monotonic()
        return self.empty.look({*version.tables, *version.dropped})

    def add(self, found: Iterable[TableEntry]) -> None:
        """Add tables of which no row is in the topics; while tables are copied, it is not known which."""
        version = self.batches.version
        if not version.end_lsn or version.loading:
            return
        for topic, error in self.batches.add_empty(found).items():
            self.empty.leave_out(topic, error)

    def close(self) -> None:
        """Close the connections, and end a merge; what cannot be removed now is removed by the next session."""
        for close in (self.batches.close, self.source.close):
            try:
                close()
            except Exception as error:  # noqa: BLE001 - the error that ended the session is the one to report
                log.warning("the mirror's session could not be closed completely: %s", reason_of(error))


@dataclass
class MirrorSessions:
    """Opens the sessions of one mirror, one after another."""

    spark: SparkSession
    settings: MirrorSettings
    metrics: MirrorMetrics
    retries: Retries
    catalog: CatalogUpdates | None = None
    _ids: set[str] = field(default_factory=set)
    """The ids of this mirror's writers."""
    _applied: int = 0
    _logged_s: float = 0.0

    def open(self) -> Session:
        """Take over the target, and return the session that continues from its newest version."""
        asked = self.settings
        connection = asked.connection
        storage = open_storage(asked.target, asked.target_options)
        cluster = Cluster(connection.brokers, connection.read_properties())
        only = frozenset(split_names(asked.source_options.get("topics", "")))
        start = starting_version(
            *(storage, connection.prefix, asked.buckets, cluster.id()),
            accept_cluster=asked.accept_cluster,
            table_format=asked.table_format,
            scd_type=asked.scd_type,
            topics=only,
        )
        writer = self._taken(
            storage, replace(start, retain_s=asked.retain_s, history_retain_s=asked.history_retain_s)
        )
        assert writer.version is not None
        self.metrics.mirrors(connection.prefix, storage.uri)
        self.published(writer.version)
        schema_of = partial(schema_by_id, access_of(connection))
        source = MirrorSource(
            self.spark, connection, writer.version, asked.source_options, asked.driver_bytes
        )
        batches = MirrorBatches(
            *(storage, writer, schema_of, self._reported, asked.accept_gaps, asked.on_error, self),
            policies=asked.policies,
        )
        batches.publish_start()
        sweep(storage, writer)  # after Delta tables are at the version's commits again
        batches.applied = self._applied
        empty = EmptyTables(cluster, connection, only)
        session = Session(source, batches, empty)
        session.add(session.empty_tables())
        return session

    def _taken(self, storage: Storage, start: TargetVersion) -> TargetWriter:
        if self._ids and not start.number:
            raise SparkReadError(
                "the target lost its records while the mirror ran",
                hint="restore it from a backup, or start the mirror again with an empty target",
                target=storage.uri,
            )
        if self._ids and start.writer not in self._ids:
            raise StorageConflict("another mirror has taken over the target", target=storage.uri)
        writer_id = uuid.uuid4().hex
        self._ids.add(writer_id)
        return take_over(storage, start, writer_id)

    def published(self, version: TargetVersion, *, merges: int = 0) -> None:
        """Take a version that is visible now, as `Observer`."""
        self.metrics.published(version, merges=merges)
        if self.catalog is not None:
            self.catalog.note(version)

    def _reported(self, report: BatchReport) -> None:
        self._applied = report.batch_id + 1
        self.metrics.batch(report)
        if self.settings.on_batch is not None:
            self.settings.on_batch(report)

    def run(self, session: Session, stopping: threading.Event) -> None:
        """Run from a session on, in further ones after what heals. Raises what does not heal, or not in time."""
        current: Session | None = session
        while True:
            try:
                current = current or self.open()
                self._run(current, stopping)
                return
            except Exception as error:  # noqa: BLE001 - raised again, unless it heals
                pause_s = self._pause_after(error)
            finally:
                if current is not None:
                    current.close()
                    current = None
            if stopping.wait(pause_s):
                return

    def _pause_after(self, error: Exception) -> float:
        may_heal = heals(error) or (isinstance(error, StorageConflict) and self._is_of_this(error))
        try:
            pause_s = self.retries.pause_after(error, may_heal=may_heal)
        except Exception:
            self.metrics.failed(code_of(error), is_retried=False)
            raise
        self.metrics.failed(code_of(error), is_retried=True)
        return pause_s

    def _is_of_this(self, error: StorageConflict) -> bool:
        """Return whether an earlier request of this mirror, which got no answer, has caused the conflict."""
        try:
            found = read_latest(open_storage(self.settings.target, self.settings.target_options))
        except (StorageError, SparkReadError):
            return False
        return found is not None and found.writer in self._ids

    def _advanced(self) -> None:
        self.retries.advanced()
        self.metrics.advanced()

    def _run(self, session: Session, stopping: threading.Event) -> None:
        """Apply batch after batch."""
        source, batches, interval_s = session.source, session.batches, self.settings.interval_s
        source.begin(ends_now=interval_s is None)
        while not stopping.is_set():
            started_s = time.monotonic()
            looked_s = time.time()
            is_new = source.advance()
            # Before the batch is applied: a table that cdcd begins to copy meanwhile would be none of `loading`.
            found = self._empty_tables(session, is_new=is_new)
            self.metrics.looked(source.backlog(is_applied=not is_new), looked_s)
            if is_new:
                self._apply(session, looked_s)
            elif interval_s is None:
                self._end(session)
                return
            else:
                batches.publish_merged()
                batches.note_position(source.position)
            session.add(found)
            if is_new:
                stopping.wait(max(0.0, (interval_s or 0.0) - (time.monotonic() - started_s)))
            else:
                self._advanced()
                stopping.wait(LOOK_AGAIN_S)

    def _empty_tables(self, session: Session, *, is_new: bool) -> list[TableEntry]:
        """Look for tables without rows, if it is time, and if all commits and copies are in the current batch.

        No batch depends on it: an error that heals does not end the session before the batch (`is_new`) is applied.
        """
        source = session.source
        if not session.is_due or loading_of(source.end) or source.backlog(is_applied=True).is_pending:
            return []
        try:
            return session.empty_tables()
        except Exception as error:
            if not (is_new and heals(error)):
                raise
            log.warning("the search for tables without a row is tried again: %s", reason_of(error))
            return []

    def _end(self, session: Session) -> None:
        """Publish what a mirror at the newest commit has to have without further batches. Raises TablesParked."""
        batches = session.batches
        batches.note_position(session.source.position, now=True)
        session.add(session.empty_tables())
        batches.compact()
        batches.refuse_parked()

    def _apply(self, session: Session, looked_s: float) -> None:
        source, batches = session.source, session.batches
        records = source.records(batches.buckets)
        try:
            batches.apply(records, source.end, source.position, source.refused)
        finally:
            records.close()
        self._advanced()
        self.metrics.looked(source.backlog(is_applied=True), looked_s)
        self._log_backlog(source)

    def _log_backlog(self, source: MirrorSource) -> None:
        backlog = source.backlog(is_applied=True)
        if not backlog.is_pending or time.monotonic() < self._logged_s + LOG_EVERY_S:
            return
        self._logged_s = time.monotonic()
        lag_s = self.metrics.lag_s()
        log.info(
            "the mirror is behind the topics by %s offsets and %s",
            "an unknown number of" if backlog.offsets is None else backlog.offsets,
            "an unknown time" if lag_s is None else f"{lag_s:.1f} s",
        )
