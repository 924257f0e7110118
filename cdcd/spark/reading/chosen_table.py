"""The table of a mirror that a reader has named, and whether its rows are those of the version's commit.

In: a mirror as of one version, the name of a table, what the reader accepts.  Out: the topic, or an error.
Invariant: without `loading` and `parked` the table has all rows as of the version's commit.
Must not: read rows.
"""

from __future__ import annotations

from cdcd.errors import SparkReadError, TablesParked
from cdcd.spark.reading.mirror import Mirror
from cdcd.spark.source.table_options import named_topic

__all__ = ["refuse_unfinished", "topic_of"]


def topic_of(opened: Mirror, table: str) -> str:
    """Return the topic of a table by one of its names. Raises SparkReadError if there is none."""
    topic = named_topic(table, opened.version.prefix, opened.topics)
    if topic is None:
        raise SparkReadError("the mirror has no such table", table=table, target=opened.target.uri)
    return topic


def refuse_unfinished(opened: Mirror, topic: str, *, loading: bool, parked: bool) -> None:
    """Raise TablesParked, or SparkReadError for a table that is loading, unless the reader accepts it."""
    if topic in opened.parked and not parked:
        raise TablesParked(
            "the table is not updated any more, so it is of an earlier commit",
            hint="copy it again; or pass parked=True to read what there is",
            target=opened.target.uri,
            tables=topic,
            first_reason=opened.parked[topic].reason,
        )
    if topic in opened.loading and not loading:
        raise SparkReadError(
            "cdcd still copies the table at this commit, so it lacks rows",
            hint="wait until it is complete, or pass loading=True",
            table=topic,
        )
