"""Generate the page of all metrics from their descriptions in the code.

In: the groups of `Metrics` and of `MirrorMetrics`; metrics.template, the page's text.  Out: Markdown.
Must not: add text about a metric that its description does not have, except links to other pages.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from cdcd.metrics.group import Described
from cdcd.ops.metrics import Metrics
from cdcd.spark.mirroring.metrics import MirrorMetrics
from tests.docs.filled import cell, filled

TEMPLATE = Path(__file__).with_suffix(".template")
_HEAD = "| metric | kind | labels | meaning | absent |\n|---|---|---|---|---|\n"
_THE_LAG = "[the lag](monitoring.md#the-lag)"
_SNAPSHOTS = "[snapshots](snapshots.md#copy-a-table-while-streaming)"
_A_MIRROR = "[a mirror](spark/operate-mirror.md)"
LINKS = {
    "cdcd_pipeline_state": "[the probes](monitoring.md#the-probes)",
    "cdcd_halted_reason_info": "[errors](errors.md)",
    "cdcd_replication_lag_seconds": _THE_LAG,
    "cdcd_replication_lag_bytes": _THE_LAG,
    "cdcd_received_lag_bytes": _THE_LAG,
    "cdcd_event_latency_seconds": _THE_LAG,
    "cdcd_producer_rebuilds_total": "[late requests](kafka.md#requests-that-arrive-late)",
    "cdcd_wait_seconds": "[waits](monitoring.md#waits)",
    "cdcd_wait_blocker_info": "[waits](monitoring.md#waits)",
    "cdcd_wal_guard_level": "[the WAL guard](source.md#the-wal-guard)",
    "cdcd_publication_changes_total": "[the publications](source.md#the-publications)",
    "cdcd_unpublished_tables_with_topic": "[tables by name](source.md#tables-by-name)",
    "cdcd_snapshot_running": "[blocking snapshots](snapshots.md#copy-a-table-without-a-key)",
    "cdcd_incremental_snapshot_tables": _SNAPSHOTS,
    "cdcd_mirror_lag_seconds": _A_MIRROR,
    "cdcd_mirror_retrying": _A_MIRROR,
    "cdcd_mirror_tables": "[parked tables](spark/operate-mirror.md#parked-tables)",
}
"""The pages that explain more."""


def metrics_page() -> str:
    """Return the page of all metrics."""
    groups = Metrics("", with_process=False).groups + MirrorMetrics(with_process=False).groups
    missing = LINKS.keys() - {metric.name for group in groups for metric in group.metrics}
    if missing:
        raise ValueError(f"links of metrics that the code does not have: {sorted(missing)}")
    return filled(TEMPLATE, groups="\n".join(f"## {one.title}\n\n{_table(one.metrics)}" for one in groups))


def _table(metrics: Iterable[Described]) -> str:
    return _HEAD + "".join(_row(metric) for metric in metrics)


def _row(metric: Described) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    link = f" See {LINKS[metric.name]}." if metric.name in LINKS else ""
    return f"| `{metric.name}` | {metric.kind} | {labels} | {cell(metric.text)}{link} | {cell(metric.absent)} |\n"
