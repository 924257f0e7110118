"""The table of a mirror that a reader has named, and whether its rows are those of the version's commit.

In: a mirror as of one version, the name of a table, what the reader accepts.  Out: the topic, or an error.
Invariant: without `loading` and `parked` the table has all rows as of the version's commit. A table that was parked
while it was copied has the rows of no one commit, and needs both.
Must not: read rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NoReturn

from cdcd.errors import SparkReadError, TablesParked
from cdcd.spark.reading.mirror import Mirror, parked_for
from cdcd.spark.source.table_options import missing_table, named_topic

__all__ = ["refuse_loading", "refuse_parked", "refuse_unfinished", "topic_of"]

_COPY = "correct the cause, then copy each table again: `cdcd snapshot start --table SCHEMA.TABLE --recopy`"


def topic_of(opened: Mirror, table: str) -> str:
    """Return the topic of a table by one of its names. Raises SparkReadError if there is none."""
    topic = named_topic(table, opened.version.prefix, opened.topics)
    if topic is None:
        raise missing_table(table, opened.version.prefix, opened.topics, target=opened.target.uri)
    return topic


def refuse_unfinished(opened: Mirror, topic: str, *, loading: bool, parked: bool) -> None:
    """Raise TablesParked, or SparkReadError for a table that is loading, unless the reader accepts it."""
    refuse_parked(opened, [topic], loading=loading, parked=parked)
    if topic in opened.loading and not loading:
        refuse_loading([topic])


def refuse_loading(tables: Sequence[str]) -> NoReturn:
    """Raise SparkReadError for tables that lack rows."""
    raise SparkReadError(
        "cdcd still copies the table at this commit, or the mirror has begun to read it later than the others, so it "
        "lacks rows",
        hint="wait until it is complete, or accept it with loading=True",
        table=", ".join(tables),
    )


def refuse_parked(opened: Mirror, topics: Iterable[str], *, loading: bool, parked: bool) -> None:
    """Raise TablesParked for tables of an earlier commit, or of no one commit, unless the reader accepts it."""
    refused = parked_for(opened.version, topics, loading=loading, parked=parked)
    if not refused:
        return
    if parked:
        message = (
            "tables were parked while they were copied, or at an unknown commit, so their rows may not be as of a "
            "single commit"
        )
        hint = f"{_COPY}; or read what there is with parked=True and loading=True"
    else:
        message = "tables are not updated any more, so they are of an earlier commit than the others"
        hint = f"{_COPY}; or read what there is with parked=True"
    reason = opened.parked[refused[0]].reason
    raise TablesParked(
        message, hint=hint, target=opened.target.uri, tables=", ".join(refused), first_reason=reason
    )
