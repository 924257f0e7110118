"""The mirror: every table's current state in Parquet, Delta or Iceberg, exactly once, from the topics of one daemon.

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

import threading
from collections.abc import Callable, Mapping, Sequence

from pyspark.sql import SparkSession

from cdcd.errors import ConfigError
from cdcd.spark.clients.connection import Connection
from cdcd.spark.clients.connection_options import connection_from
from cdcd.spark.data_source import register
from cdcd.spark.decoding.schemas import access_of
from cdcd.spark.formats.delta_access import check_delta_target, require_delta
from cdcd.spark.formats.iceberg_access import require_iceberg
from cdcd.spark.formats.readable_paths import check_new_target
from cdcd.spark.mirroring.arguments import check_choices, check_history, check_names, check_numbers
from cdcd.spark.mirroring.batch_source import seconds_of
from cdcd.spark.mirroring.batches import BatchReport, OnError
from cdcd.spark.mirroring.metrics import MirrorMetrics
from cdcd.spark.mirroring.metrics_server import MetricsServer, Page
from cdcd.spark.mirroring.query import MirrorQuery
from cdcd.spark.mirroring.retries import Retries
from cdcd.spark.mirroring.session import MirrorSessions, MirrorSettings
from cdcd.spark.reading.catalog import Catalog, namespace_of
from cdcd.spark.reading.catalog_updates import CatalogUpdates
from cdcd.spark.session import is_remote
from cdcd.spark.source.prefix_topics import existing_tables
from cdcd.spark.source.table_options import topics_of
from cdcd.spark.storage.uri import FORMS, open_storage
from cdcd.spark.tables.retained_columns import ChangedTypes, ColumnPolicies, DroppedColumns
from cdcd.spark.target.commit_log import has_version
from cdcd.spark.target.mirror_sizes import (
    DEFAULT_BUCKETS,
    DEFAULT_DRIVER_MB,
    DEFAULT_MAX_ROWS,
    DEFAULT_RETAIN_S,
    DEFAULT_RETRY_S,
    LOCAL_HOST,
)
from cdcd.spark.target.ownership import refuse_anothers, release, take
from cdcd.spark.target.versions import ScdType, TableFormat

AVAILABLE_NOW = "available_now"
_NOT_REMOTE_HINT = (
    "run the mirror by spark-submit, or as a separate job: it holds the lock of its target, and folds small "
    "batches, in the process that starts it, but its tasks would run on the server"
)


def mirror(
    spark: SparkSession,
    connection: Connection | None = None,
    target: str = "",
    *,
    config: str | None = None,
    target_options: Mapping[str, str] | None = None,
    format: TableFormat = "parquet",
    stored_as_scd_type: ScdType = 1,
    trigger: str | None = AVAILABLE_NOW,
    buckets: int = DEFAULT_BUCKETS,
    max_rows: int = DEFAULT_MAX_ROWS,
    driver_bytes: int = DEFAULT_DRIVER_MB << 20,
    tables: Sequence[str] = (),
    topics: Sequence[str] = (),
    accept_gaps: bool = False,
    accept_cluster: bool = False,
    on_error: OnError = "park",
    retain_s: float = DEFAULT_RETAIN_S,
    on_batch: Callable[[BatchReport], None] | None = None,
    retry_s: float = DEFAULT_RETRY_S,
    metrics_port: int | None = None,
    metrics_host: str = LOCAL_HOST,
    catalog: str | None = None,
    history_retain_s: float | None = None,
    dropped_columns: DroppedColumns = "drop",
    changed_types: ChangedTypes = "park",
) -> MirrorQuery:
    """Start a thread that updates `target` from the topics.

    `connection`, or `config`: the path of the daemon's configuration. `target`: a folder, or a bucket's URI.
    `target_options`: those of the storage of a target in a bucket; a secret is a reference.
    `format`: of the tables of a new target: Parquet files, which need the commit log, or Delta or Iceberg tables.
    `stored_as_scd_type`: 2 stores the history of the tables with a key, too, which `history` reads; of a new target.
    `trigger`: "available_now" ends at the newest commit at the start; otherwise a processing time as "2 seconds".
    `tables`: mirror these only, by names or patterns of tables that have a topic now, or `topics`: those of these
    topics; default: all of the prefix, also later ones. The target must have no other table.
    `accept_gaps`: continue at a marker of missing changes; otherwise the query fails there.
    `accept_cluster`: continue although the topics are in another Kafka cluster, with the same offsets.
    `on_error`: "park" leaves a table whose records are not a consistent history as it was before them, and updates
    the others; "fail" ends the query. `retain_s`: how long an earlier version of the target can be read.
    `buckets` applies only to a new target. `driver_bytes`: a batch with more bytes is folded by Spark's tasks.
    `history_retain_s`: how long a version of a row remains in the history after its end; None: for ever.
    `retry_s`: how long, without progress, the mirror tries again after an error that may heal; 0: never.
    `metrics_port`: of an HTTP server with /metrics and /healthz; 0 takes a free one, None has no server.
    `dropped_columns`: "keep" leaves a column that PostgreSQL drops in the table, null in rows written later.
    `changed_types`: what happens if a column gets an incompatible type: "park" does what `on_error` says;
    "new_column" leaves the former values in a column of their own, unless it is in the key; "fail" ends the query.
    `catalog`: a namespace such as "spark_catalog.shop", in which the tables are registered, later ones too.
    Raises ConfigError for a session of Spark Connect, for the format delta or iceberg without its library, and for a
    new target whose path readers of the format do not find. An error of the start is raised, and not tried again.
    """
    if is_remote(spark):
        raise ConfigError("the mirror does not run through Spark Connect", hint=_NOT_REMOTE_HINT)
    connection = _connection(connection, config, target)
    access_of(connection)
    check_choices(on_error=on_error, format=format, stored_as_scd_type=stored_as_scd_type)
    check_choices(dropped_columns=dropped_columns, changed_types=changed_types)
    check_numbers(
        buckets=buckets, max_rows=max_rows, driver_bytes=driver_bytes, retain_s=retain_s, retry_s=retry_s
    )
    check_history(history_retain_s, stored_as_scd_type)
    check_names(tables, topics)
    if format == "delta":
        require_delta()
        check_delta_target(open_storage(target, target_options))
    if format == "iceberg":
        require_iceberg()
    interval_s = None if trigger == AVAILABLE_NOW else seconds_of(trigger or "0 seconds")
    if tables:
        topics = topics_of(tables, connection.prefix, existing_tables(connection))
    settings = MirrorSettings(
        connection,
        target,
        target_options,
        {"maxRows": str(max_rows)} | ({"topics": ",".join(topics)} if topics else {}),
        interval_s,
        buckets,
        driver_bytes,
        accept_gaps,
        accept_cluster,
        on_error,
        retain_s,
        format,
        stored_as_scd_type,
        on_batch,
        catalog,
        history_retain_s,
        ColumnPolicies(dropped_columns, changed_types),
    )
    namespace = None if catalog is None else namespace_of(catalog)
    sessions = MirrorSessions(spark, settings, MirrorMetrics(), Retries(retry_s))
    return _started(sessions, metrics_host, metrics_port, namespace)


def _started(
    sessions: MirrorSessions, metrics_host: str, metrics_port: int | None, namespace: tuple[str, ...] | None
) -> MirrorQuery:
    """Open the first session, whose errors the caller gets, and run it in a thread."""
    settings = sessions.settings
    storage = open_storage(settings.target, settings.target_options)
    refuse_anothers(storage)
    if not has_version(storage):
        check_new_target(storage, settings.table_format)
    held = take(storage)
    server = first = None
    try:
        if metrics_port is not None:
            server = MetricsServer(metrics_host, metrics_port, _pages(sessions.metrics))
        first = sessions.open()
        register(sessions.spark)
        if namespace is not None:
            catalog = Catalog(sessions.spark, namespace, settings.target_options or {})
            sessions.catalog = CatalogUpdates(catalog, storage, sessions.metrics.registered)
            sessions.catalog.note(first.batches.version)
    except BaseException:
        for opened in (first, server):
            if opened is not None:
                opened.close()
        release(held)
        raise

    def run(stopping: threading.Event) -> None:
        try:
            sessions.run(first, stopping)
        finally:
            if sessions.catalog is not None:
                sessions.catalog.end()
            if server is not None:
                server.close()
            release(held)

    port = None if server is None else server.port
    held.query = MirrorQuery(run, f"mirror of {settings.connection.prefix}", port)
    return held.query


def _pages(metrics: MirrorMetrics) -> dict[str, Callable[[], Page]]:
    """Return the pages of the mirror's port, which answers while the mirror runs, also without the servers."""

    def health() -> Page:
        state = f"tries again after {metrics.error_code}" if metrics.error_code else "runs"
        return Page(200, f"the mirror {state}\n".encode())

    return {"/metrics": lambda: Page(200, metrics.exposition()), "/healthz": health}


def _connection(connection: Connection | None, config: str | None, target: str) -> Connection:
    if not target:
        raise ConfigError("the mirror has no target", hint=f"pass target: {FORMS}")
    if (connection is None) == (config is None):
        raise ConfigError(
            "the mirror needs a connection or the path of the daemon's configuration",
            hint='pass one of them, such as config="/etc/cdcd/cdcd.yaml"',
        )
    return connection_from({"config": config}) if config is not None else connection  # type: ignore[return-value]
