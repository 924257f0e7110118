"""The mirror: every table's current state in Parquet, exactly once, from the topics of one daemon.

In: a connection, a target (a folder, or a bucket's URI).  Out: a running query; after each batch the target is
equal to the source database as of one PostgreSQL commit, for all its tables except those that are marked as loading.
Invariant: a batch takes effect by one record of the commit log, which has the last applied change of each table, and
only while no other mirror has taken over the target. A batch that is repeated therefore changes nothing, and a mirror
starts at the offsets of the newest version; it has no checkpoint.
Must not: publish a version elsewhere.

Per batch: records -> look -> plan -> fold (for each changed bucket, reading only its files) -> version. The driver
does this in Arrow, without a job of Spark; Spark's tasks fold a batch that is too large for it. A table is folded as
a whole if a key change needs values of another bucket. Incomplete rows of a loading table are in files of their own;
a batch at whose end the table is not loading must leave none.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from pyspark.sql import SparkSession

from cdcd.errors import ConfigError
from cdcd.lsn import format_lsn
from cdcd.spark.commit_log import TargetWriter, remove_files, sweep, take_over
from cdcd.spark.compaction import Compactor
from cdcd.spark.connection import Connection
from cdcd.spark.cuts import Offsets, is_pseudo
from cdcd.spark.kafka import Cluster
from cdcd.spark.mirror_query import MirrorQuery
from cdcd.spark.mirror_records import Records, looks_of
from cdcd.spark.mirror_sizes import DEFAULT_BUCKETS, DEFAULT_DRIVER_MB, DEFAULT_MAX_ROWS, DEFAULT_RETAIN_S
from cdcd.spark.mirror_source import MirrorSource, seconds_of
from cdcd.spark.next_version import next_version, refuse_incomplete
from cdcd.spark.plan import Look, SchemaSource, TablePlan, plan_table
from cdcd.spark.schemas import access_of, schema_by_id
from cdcd.spark.session import is_remote
from cdcd.spark.source import register
from cdcd.spark.storage import Storage, open_storage
from cdcd.spark.target import refuse_anothers, starting_version, take
from cdcd.spark.tasks import FoldResult
from cdcd.spark.versions import TableEntry, TargetVersion

AVAILABLE_NOW = "available_now"
LOOK_AGAIN_S = 0.1
"""The pause of a mirror that has read all records."""
log = logging.getLogger("cdcd.spark.mirror")
_NOT_REMOTE_HINT = (
    "run it by spark-submit, or as a job of its own: it has the lock of its target and folds small batches where it "
    "starts, but its tasks would run on the server"
)


def is_table(topic: str, prefix: str) -> bool:
    """Return whether a topic has the rows of a table."""
    is_internal = topic in (f"{prefix}.message", f"{prefix}.transaction") or topic.startswith(prefix + ".__")
    return not is_internal and not is_pseudo(topic)


def mirror(
    spark: SparkSession,
    connection: Connection,
    target: str,
    *,
    target_options: Mapping[str, str] | None = None,
    format: str = "parquet",
    trigger: str | None = AVAILABLE_NOW,
    buckets: int = DEFAULT_BUCKETS,
    max_rows: int = DEFAULT_MAX_ROWS,
    driver_bytes: int = DEFAULT_DRIVER_MB << 20,
    topics: Sequence[str] = (),
    accept_gaps: bool = False,
    accept_cluster: bool = False,
    retain_s: float = DEFAULT_RETAIN_S,
    on_batch: Callable[[BatchReport], None] | None = None,
) -> MirrorQuery:
    """Start a thread that updates `target` from the topics.

    `target_options`: those of the storage of a target in a bucket; a secret is a reference.
    `trigger`: "available_now" ends at the newest commit at the start; otherwise a processing time as "2 seconds".
    `accept_gaps`: continue at a marker of missing changes; otherwise the query fails there.
    `accept_cluster`: continue although the topics are in another Kafka cluster, with the same offsets.
    `retain_s`: for so long an earlier version of the target can be read.
    `buckets` applies only to a new target. `driver_bytes`: a batch with more bytes is folded by Spark's tasks.
    Raises ConfigError for a session of Spark Connect.
    """
    if is_remote(spark):
        raise ConfigError("the mirror does not run through Spark Connect", hint=_NOT_REMOTE_HINT)
    schemas = access_of(connection)
    if format != "parquet":
        raise ConfigError(f"unknown mirror format {format!r}; use parquet")
    interval_s = None if trigger == AVAILABLE_NOW else seconds_of(trigger or "0 seconds")
    storage = open_storage(target, target_options)
    refuse_anothers(storage)
    held = take(storage)
    cluster = Cluster(connection.brokers, connection.read_properties())
    start = starting_version(storage, connection.prefix, buckets, cluster.id(), accept_cluster=accept_cluster)
    writer = take_over(storage, replace(start, retain_s=retain_s))
    sweep(storage)
    register(spark)
    given = {"maxRows": str(max_rows)} | ({"topics": ",".join(topics)} if topics else {})
    batches = MirrorBatches(storage, writer, partial(schema_by_id, schemas), on_batch, accept_gaps)
    source = MirrorSource(spark, connection, batches.version, given, driver_bytes)

    def run(stopping: threading.Event) -> None:
        try:
            run_batches(source, batches, stopping, interval_s)
        finally:
            batches.close()
            source.close()

    held.query = MirrorQuery(run, f"mirror of {connection.prefix}")
    return held.query


def run_batches(
    source: MirrorSource, batches: MirrorBatches, stopping: threading.Event, interval_s: float | None
) -> None:
    """Apply batch after batch. `interval_s`: the time from one to the next; None: end at the newest commit."""
    source.begin(ends_now=interval_s is None)
    while not stopping.is_set():
        started_s = time.monotonic()
        if not source.advance():
            if interval_s is None:
                batches.compact()
                return
            batches.publish_merged()
            stopping.wait(LOOK_AGAIN_S)
            continue
        records = source.records(batches.buckets)
        try:
            batches.apply(records, source.end)
        finally:
            records.close()
        stopping.wait(max(0.0, (interval_s or 0.0) - (time.monotonic() - started_s)))


@dataclass(frozen=True, slots=True)
class BatchReport:
    """The result of a batch: `rows` read, `tables` changed, the mirror's position.

    `loading`: the topics of the tables that cdcd still copies at this position, so rows are still missing.
    """

    batch_id: int
    rows: int
    tables: int
    files: int
    commit_lsn: int
    written_rows: int
    seconds: float
    loading: tuple[str, ...] = ()


class MirrorBatches:
    """Applies batches to a target, on the driver."""

    def __init__(
        self,
        target: Storage,
        writer: TargetWriter,
        schema_of: SchemaSource,
        on_batch: Callable[[BatchReport], None] | None = None,
        accept_gaps: bool = False,
    ) -> None:
        self._accept_gaps = accept_gaps
        self._target = target
        self._writer = writer
        self._prefix, self.buckets = self.version.prefix, self.version.buckets
        self._schema_of = schema_of
        self._on_batch = on_batch
        self._applied = 0
        self._compactor = Compactor(target, self.buckets)
        self._compactor.note(self.version.tables)

    def apply(self, records: Records, end: Offsets) -> None:
        """Apply the batch that ends here. Applying a batch again changes nothing."""
        started_s = time.monotonic()
        now = self._with_merged(self.version)
        keyed = {topic for topic, entry in now.tables.items() if entry.keyed}
        looks = looks_of(records, partial(is_table, prefix=self._prefix), keyed)
        plans, entries = self._plan(looks, now)
        folded = self._fold(records, plans) if plans else []
        version = next_version(now, end, entries, plans, folded)
        refuse_incomplete(self._target, version)
        version = self._writer.publish(version)
        self._compactor.note(entries)
        self._compactor.start(version.tables)
        self._report(version, looks, folded, time.monotonic() - started_s)

    def publish_merged(self) -> None:
        """Publish the files of a complete merge, and begin the next merge."""
        if not self._compactor.has_result:
            return
        changed = self._with_merged(self.version)
        if changed is not self.version:
            changed = self._writer.publish(changed)
        self._compactor.start(changed.tables)

    def compact(self) -> None:
        """Merge files until no table has too many."""
        while self._compactor.start(self.version.tables):
            self._compactor.wait()
            self.publish_merged()

    def close(self) -> None:
        """End a merge."""
        self._compactor.close()

    @property
    def version(self) -> TargetVersion:
        """The version that was published last."""
        assert self._writer.version is not None
        return self._writer.version

    def _with_merged(self, version: TargetVersion) -> TargetVersion:
        changed = self._compactor.take(version.tables)
        return replace(version, tables={**version.tables, **changed}) if changed else version

    def _plan(
        self, looks: Iterable[Look], version: TargetVersion
    ) -> tuple[dict[str, TablePlan], dict[str, TableEntry]]:
        plans: dict[str, TablePlan] = {}
        entries: dict[str, TableEntry] = {}
        for look in looks:
            if not look.last_values:
                continue
            entry = version.tables.get(look.topic, TableEntry(look.topic))
            plans[look.topic], entries[look.topic] = plan_table(
                look,
                entry,
                self._schema_of,
                accepts_gaps=self._accept_gaps,
            )
        return plans, entries

    def _fold(self, records: Records, plans: dict[str, TablePlan]) -> list[FoldResult]:
        folded = records.fold(plans, self._target, self.buckets)
        moved = {one.topic for one in folded if one.moved}
        if moved:
            undone = [one for one in folded if one.topic in moved]
            written = [path for one in undone for path in (one.path, one.incomplete_path) if path]
            remove_files(self._target, written)  # Spark's tasks of other buckets have written
            whole = {topic: plan for topic, plan in plans.items() if topic in moved}
            folded = [one for one in folded if one.topic not in moved]
            folded += records.fold(whole, self._target, self.buckets, whole=True)
        return folded

    def _report(
        self, version: TargetVersion, looks: list[Look], folded: list[FoldResult], seconds: float
    ) -> None:
        report = BatchReport(
            self._applied,
            sum(one.rows for one in looks),
            len({one.topic for one in folded if one.changed}),
            sum(1 for one in folded if one.path),
            version.commit_lsn,
            sum(one.rows for one in folded),
            seconds,
            version.loading,
        )
        log.info(
            "batch %d: %d events, %d tables, %d files with %d rows, as of %s, %.1f s",
            report.batch_id,
            report.rows,
            report.tables,
            report.files,
            report.written_rows,
            format_lsn(report.commit_lsn),
            seconds,
        )
        if report.loading:
            log.info("cdcd still copies rows of these tables: %s", ", ".join(report.loading))
        self._applied += 1
        if self._on_batch is not None:
            self._on_batch(report)
