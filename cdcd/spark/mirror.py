"""The mirror: every table's current state in Parquet, exactly once, from the topics of one daemon.

In: a connection, a target (a folder, or a bucket's URI).  Out: a streaming query; after each batch the target is
equal to the source database as of one PostgreSQL commit, for all its tables except those that are marked as loading.
Invariant: a batch takes effect by one write of the manifest, which has the last applied change of each table, and
only while no other mirror has taken over the target. A batch that Spark repeats therefore changes nothing, and a
query starts at the manifest's offsets, whatever its checkpoint is.
Must not: depend on Spark's batch ids.

Per batch: look (one job over the cached records) -> plan (driver) -> fold (a task per changed bucket, reading only
its files) -> manifest. A table is folded as a whole if a key change needs values of another bucket. Incomplete rows
of a loading table are in files of their own; a batch at whose end the table is not loading must leave none.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.streaming import StreamingQuery

from cdcd.errors import ConfigError, StorageConflict
from cdcd.lsn import format_lsn
from cdcd.spark.connection import Connection, SchemaAccess
from cdcd.spark.cuts import Offsets, is_pseudo, merge, with_loading
from cdcd.spark.kafka import Cluster
from cdcd.spark.manifest import (
    Manifest,
    TableEntry,
    read_manifest,
    remove_files,
    sweep,
    take_over,
    write_manifest,
)
from cdcd.spark.mirror_sizes import DEFAULT_BUCKETS, DEFAULT_MAX_ROWS
from cdcd.spark.next_manifest import next_manifest, refuse_incomplete
from cdcd.spark.plan import Look, TablePlan, plan_table
from cdcd.spark.read_limits import start_available_now
from cdcd.spark.schemas import HEADER_BYTES, access_of, schema_by_id
from cdcd.spark.session import is_remote, parallelism
from cdcd.spark.source import register
from cdcd.spark.storage import Storage, open_storage
from cdcd.spark.target import new_checkpoint, refuse_anothers, starting_manifest, take
from cdcd.spark.tasks import WHOLE, Folded, fold_frame

log = logging.getLogger("cdcd.spark.mirror")
_NOT_REMOTE_HINT = (
    "run it by spark-submit, or as a job of its own: it holds the lock of its target and its checkpoint where it "
    "starts, but its batches would run on the server"
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
    trigger: str | None = "available_now",
    buckets: int = DEFAULT_BUCKETS,
    max_rows: int = DEFAULT_MAX_ROWS,
    topics: Sequence[str] = (),
    accept_gaps: bool = False,
    on_batch: Callable[[BatchReport], None] | None = None,
) -> StreamingQuery:
    """Start the query that updates `target` from the topics.

    `target_options`: those of the storage of a target in a bucket; a secret is a reference.
    `trigger`: "available_now" ends at the newest commit at the start; otherwise a processing time as "2 seconds".
    `accept_gaps`: continue at a marker of missing changes; otherwise the query fails there.
    `buckets` applies only to a new target.
    Raises ConfigError for a session of Spark Connect.
    """
    if is_remote(spark):
        raise ConfigError("the mirror does not run through Spark Connect", hint=_NOT_REMOTE_HINT)
    schemas = access_of(connection)
    if format != "parquet":
        raise ConfigError(f"unknown mirror format {format!r}; use parquet")
    storage = open_storage(target, target_options)
    refuse_anothers(storage)
    held = take(storage)
    cluster = Cluster(connection.brokers, connection.read_properties())
    start = take_over(storage, starting_manifest(storage, connection.prefix, buckets, cluster.id()))
    checkpoint = new_checkpoint(storage)
    sweep(storage)
    register(spark)
    options = connection.options() | {
        "startingOffsets": json.dumps(with_loading(start.offsets, frozenset(start.loading))),
        "loading": "true",
        "ids": "true",
        "maxRows": str(max_rows),
        "readers": str(parallelism(spark)),
    }
    if topics:
        options["topics"] = ",".join(topics)
    batch = MirrorBatch(storage, start, schemas, on_batch, accept_gaps)
    writer = (
        spark.readStream.format("cdcd")
        .options(**options)
        .load()
        .writeStream.foreachBatch(batch)
        .queryName(f"mirror of {connection.prefix}")
        .option("checkpointLocation", checkpoint)
    )
    if trigger == "available_now":
        query = start_available_now(writer, options)
    else:
        query = writer.trigger(processingTime=trigger or "0 seconds").start()
    held.query = query
    return query


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
    mirrored_rows: int
    seconds: float
    loading: tuple[str, ...] = ()


class MirrorBatch:
    """The function of foreachBatch, on the driver."""

    def __init__(
        self,
        target: Storage,
        start: Manifest,
        schemas: SchemaAccess,
        on_batch: Callable[[BatchReport], None] | None,
        accept_gaps: bool = False,
    ) -> None:
        self._accept_gaps = accept_gaps
        self._target = target
        self._prefix, self._buckets, self._writer = start.prefix, start.buckets, start.writer
        self._schemas = schemas
        self._on_batch = on_batch

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Apply one batch. Applying a batch again changes nothing."""
        started = time.monotonic()
        frame = frame.withColumn("bucket", _bucket_column(self._buckets)).persist()
        try:
            manifest = self._own_manifest()
            offsets, looks = look_at(frame, self._prefix, manifest)
            plans, entries = self._plan(looks, manifest)
            folded = self._fold(frame, plans, sum(one.rows for one in looks)) if plans else []
        finally:
            frame.unpersist()
        manifest = next_manifest(manifest, offsets, entries, plans, folded)
        refuse_incomplete(self._target, manifest)
        write_manifest(self._target, manifest)
        self._report(batch_id, manifest, looks, folded, time.monotonic() - started)

    def _own_manifest(self) -> Manifest:
        """Return the manifest. Raises StorageConflict if it is no longer that of this query."""
        manifest = read_manifest(self._target)
        if manifest is None or manifest.writer != self._writer:
            raise StorageConflict("another mirror has taken over the target", target=self._target.uri)
        return manifest

    def _plan(
        self, looks: Iterable[Look], manifest: Manifest
    ) -> tuple[dict[str, TablePlan], dict[str, TableEntry]]:
        plans: dict[str, TablePlan] = {}
        entries: dict[str, TableEntry] = {}
        for look in looks:
            if not look.last_values:
                continue
            entry = manifest.tables.get(look.topic, TableEntry(look.topic))
            plans[look.topic], entries[look.topic] = plan_table(
                look,
                entry,
                lambda number: schema_by_id(self._schemas, number),
                accepts_gaps=self._accept_gaps,
            )
        return plans, entries

    def _fold(self, frame: DataFrame, plans: dict[str, TablePlan], rows: int) -> list[Folded]:
        changes = frame.where(F.col("value").isNotNull() & F.col("topic").isin(list(plans)))
        folded = fold_frame(changes, plans, self._target, self._buckets, rows)
        moved = {one.topic for one in folded if one.moved}
        if moved:
            undone = [one for one in folded if one.topic in moved]
            written = [path for one in undone for path in (one.path, one.incomplete_path) if path]
            remove_files(self._target, written)
            whole = changes.where(F.col("topic").isin(list(moved))).withColumn("bucket", F.lit(WHOLE))
            folded = [one for one in folded if one.topic not in moved]
            folded += fold_frame(whole, plans, self._target, self._buckets, rows)
        return folded

    def _report(
        self, batch_id: int, manifest: Manifest, looks: list[Look], folded: list[Folded], seconds: float
    ) -> None:
        report = BatchReport(
            batch_id,
            sum(one.rows for one in looks),
            len({one.topic for one in folded if one.path}),
            sum(1 for one in folded if one.path),
            manifest.commit_lsn,
            sum(table.rows for table in manifest.tables.values()),
            seconds,
            manifest.loading,
        )
        log.info(
            "batch %d: %d events, %d tables, %d files, mirror has %d rows as of %s, %.1f s",
            report.batch_id,
            report.rows,
            report.tables,
            report.files,
            report.mirrored_rows,
            format_lsn(report.commit_lsn),
            seconds,
        )
        if report.loading:
            log.info("cdcd still copies rows of these tables: %s", ", ".join(report.loading))
        if self._on_batch is not None:
            self._on_batch(report)


def _bucket_column(buckets: int) -> Any:
    """Return the bucket: the key's hash without its header, so that a new schema id moves no row; 0 without a key."""
    return F.expr(f"cast(coalesce(pmod(crc32(substring(key, {HEADER_BYTES + 1})), {buckets}), 0) as int)")


def look_at(frame: DataFrame, prefix: str, manifest: Manifest) -> tuple[Offsets, list[Look]]:
    """Return the next offsets of every partition, and a summary of each table's records.

    With the offsets come the loading tables, and the ids of new topics.
    """
    found = (
        frame.groupBy("topic", "partition", F.substring("value", 1, HEADER_BYTES).alias("header"))
        .agg(
            F.count("*").alias("rows"),
            F.sum(F.expr("cast(key is not null and value is not null as long)")).alias("keyed"),
            F.sum(F.expr("cast(key is null and value is not null as long)")).alias("keyless"),
            (F.max("offset") + 1).alias("next"),
            F.max_by("value", "offset").alias("last"),
        )
        .collect()
    )
    offsets: Offsets = {}
    for one in found:
        offsets = merge(offsets, {one["topic"]: {str(one["partition"]): one["next"]}})
    looks: dict[str, Look] = {}
    for one in found:
        topic = one["topic"]
        if not is_table(topic, prefix):
            continue
        look = looks.get(topic, Look(topic))
        last = () if one["last"] is None else (bytes(one["last"]),)
        looks[topic] = replace(
            look,
            rows=look.rows + one["rows"],
            keyed_rows=look.keyed_rows + one["keyed"],
            last_values=look.last_values + last,
        )
    keyless = {one["topic"] for one in found if one["keyless"]}
    known = {topic for topic, entry in manifest.tables.items() if entry.keyed}
    barriers = [
        topic for topic, look in looks.items() if topic in keyless and (look.keyed_rows or topic in known)
    ]
    if barriers:
        wanted = F.col("topic").isin(barriers) & F.col("key").isNull() & F.col("value").isNotNull()
        for one in frame.where(wanted).select("topic", "value").collect():
            look = looks[one["topic"]]
            looks[one["topic"]] = replace(look, keyless_values=(*look.keyless_values, bytes(one["value"])))
    return offsets, list(looks.values())
