"""Give up the copies of tables that an interrupted snapshot has begun, and that are not to be copied any more.

In: tables, what the interrupted attempt has left.  Out: a line in the log for each; marks of topics that lack rows.
Invariant: a table of which readers have only a part of the rows is marked before the stream begins, whatever follows:
nothing else would tell them so. A dropped table lacks nothing that could come. Of a table whose topic no attempt has
begun readers have no rows but changes: it is streamed only, as an excluded table is, and is not marked. But a topic
with any record may have a marker of a gap that promises rows, or rows of a former attempt, also if all tables are
copied again: its table is marked, unless this process has written a marker with an end.
Must not: decide which copies are given up.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import structlog

from cdcd.lsn import format_lsn
from cdcd.model import CopyState
from cdcd.monitoring.incomplete_tables import IncompleteTables
from cdcd.session.tables_to_continue import titles_of
from cdcd.snapshot.copy_progress import CopyProgress
from cdcd.snapshot.units import CopiedTable
from cdcd.source.settings import SourceSettings
from cdcd.threads import in_thread

__all__ = ["give_up", "leave_out"]

_LOG = structlog.stdlib.get_logger("cdcd.session")
_NOT_COPIED = "the table is not copied any more, because it is excluded or not published"
_LEFT_OUT = "the table is excluded from the snapshot, and its topic has records from before"
_STREAMED_ONLY_HINT = (
    "the table's topic has the changes from this LSN on, and the records from before. If the table is "
    "included again before the snapshot is complete, cdcd copies it; after that, `cdcd snapshot start --table "
    "SCHEMA.TABLE --recopy` copies all rows"
)


async def give_up(
    source: SourceSettings,
    relids: Collection[int],
    progress: CopyProgress,
    before: CopyState,
    with_records: Collection[str],
    incomplete: IncompleteTables,
) -> None:
    """Log and mark these tables. `before`: what the interrupted attempt has left. Raises Source errors.

    `with_records`: the topics that have records; one may have a marker of a gap only, which promises rows.
    """
    titles = await in_thread(titles_of, source, relids) if relids else {}
    for relid in sorted(relids):
        _log(relid, titles.get(relid), progress, _NOT_COPIED)
    for relid, title in titles.items():
        copied = before.tables.get(relid)
        topic = incomplete.topic_of(title) if copied is None else copied.topic
        if topic is not None and (progress.is_begun(topic) or topic in with_records):
            incomplete.lacks_rows(relid, topic)


def leave_out(
    tables: Iterable[CopiedTable],
    progress: CopyProgress,
    with_records: Collection[str],
    incomplete: IncompleteTables,
) -> None:
    """Log and mark those of these tables, which a copy of all tables excludes, whose topics have records."""
    for table in tables:
        topic = incomplete.topic_of(table.title)
        if topic is not None and topic in with_records:
            _log(table.relid, table.title, progress, _LEFT_OUT)
            incomplete.lacks_rows(table.relid, topic)


def _log(relid: int, title: str | None, progress: CopyProgress, reason: str) -> None:
    _LOG.warning(
        "table_streamed_only",
        table=title,
        relid=relid,
        from_lsn=format_lsn(progress.streamed_from(relid)),
        reason=reason,
        hint=_STREAMED_ONLY_HINT,
    )
