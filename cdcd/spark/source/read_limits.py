"""The limits of a stream's batches, and its end: Spark's own since 4.2, and their replacement in Spark 4.1.

In: PySpark.  Out: Spark's classes for limits of a source in Python; `start_available_now`, which starts a query that
ends at the newest commit.
Spark 4.1 gives a source in Python neither a batch's start nor a limit, and runs availableNow as a single batch. There
the source applies its limits by itself (`source.CdcdStreamReader.latestOffset`), and `start_available_now` stops the
query when it has reached the commit that was the newest at its start.
Must not: change anything for a Spark that has these classes.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

from cdcd.spark.source.commits import Commits
from cdcd.spark.source.cuts import Offsets, distance, of_topics
from cdcd.spark.source.source_options import parse_options

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )

    HAS_READ_LIMITS = True
except ModuleNotFoundError:
    HAS_READ_LIMITS = False

    class ReadLimit:  # type: ignore[no-redef]
        """A limit of a batch."""

    @dataclass
    class ReadAllAvailable:  # type: ignore[no-redef]
        """No limit."""

    @dataclass
    class ReadMaxRows:  # type: ignore[no-redef]
        """At most a number of rows."""

        max_rows: int

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """A source that can end at the newest commit; Spark 4.1 does not ask a source in Python."""


__all__ = [
    "HAS_READ_LIMITS",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
    "start_available_now",
]
LOOK_AGAIN_S = 0.1


def start_available_now(writer: DataStreamWriter, options: Mapping[str, str]) -> StreamingQuery:
    """Start a query that ends at the commit that is the newest now, in batches within its limits.

    `options`: those of the query's `format("cdcd")`, which is its only source.
    """
    if HAS_READ_LIMITS:
        return writer.trigger(availableNow=True).start()
    newest = _newest(options)
    query = writer.trigger(processingTime="0 seconds").start()
    threading.Thread(target=_stop_at, args=(query, newest), name="cdcd-available-now", daemon=True).start()
    return query


def _newest(options: Mapping[str, str]) -> Offsets:
    """Return the offsets after the newest commit."""
    commits = Commits(parse_options(options).without_limits())
    try:
        start = commits.initial()
        commits.refresh(start)
        return of_topics(commits.newest(start))
    finally:
        commits.close()


def _stop_at(query: StreamingQuery, newest: Offsets) -> None:
    """Stop a query when a batch that ends at these offsets, or after them, is complete."""
    while query.isActive:
        progress = query.lastProgress
        if progress is not None and distance(_end_of(progress.json), newest) == 0:
            query.stop()
            return
        time.sleep(LOOK_AGAIN_S)


def _end_of(progress: str) -> Offsets:
    """Return the end of the batch that a progress describes; only its JSON has the offsets as JSON."""
    end = json.loads(progress)["sources"][0]["endOffset"]
    return of_topics(json.loads(end) if isinstance(end, str) else end or {})
