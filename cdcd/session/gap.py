"""Mark an accepted gap in the topics, before any other record is written to them.

In: a progress record with a gap.  Out: one Kafka transaction with a marker in every partition of every published
table's topic, and the progress record without the gap.
Invariant: markers and record are one Kafka transaction, so each marker is written exactly once, whatever is killed.
Its position sorts after all records from before the gap and before all records that follow. Only a table that a new
snapshot copies has a marker without an end, which readers pass, because a truncate event and all rows follow.
Must not: decide that a gap is accepted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import NamedTuple

import structlog

from cdcd.ack.group import CommitPosition, RecordChunk
from cdcd.avro.encode import encode_gap
from cdcd.avro.transaction import TransactionContext
from cdcd.errors import SourceTimeline
from cdcd.lsn import Lsn, format_lsn
from cdcd.model import (
    POSTGRES_EPOCH_US,
    CopyState,
    Gap,
    Progress,
    Record,
    Relation,
    Timelines,
    TransactionInfo,
)
from cdcd.pipeline.plans import Plans
from cdcd.pipeline.writer import Writer

_LOG = structlog.stdlib.get_logger("cdcd.session")
_BYTES_OF_A_MARKER = 512
_GAP_HINT = (
    "each reader of the topics reads the marker (op g). Unless a new snapshot follows, run `cdcd snapshot start "
    "--all --recopy` to copy the tables again; a table with `include: false`: `cdcd snapshot start --table "
    "SCHEMA.TABLE --recopy`"
)
_NOT_COPIED_HINT = (
    "snapshot.overrides excludes these tables from the new snapshot, so their topics lack the changes in the gap: "
    "run `cdcd snapshot start --table SCHEMA.TABLE --recopy` to copy them again"
)
_SHOWN = 10


class Markers(NamedTuple):
    """Markers that are durable: their commit LSN, and the number of the last one.

    `ended`: the topics, by relid, of the tables that the new snapshot does not copy.
    """

    lsn: Lsn
    tx_seq: int
    ended: dict[int, str]


def marker_place(stored: Progress, gap: Gap, timelines: Timelines) -> tuple[int, Lsn]:
    """Return timeline and commit LSN of the markers: no transaction has them, and they sort where the gap is.

    A later transaction begins at `to_lsn` or after it (F1), so `to_lsn` - 1 on its timeline is free. That is after
    all records of a timeline that was left before (F58). On the same timeline, records may be written beyond the gap
    (a PREPARE holds the position back, F33).
    """
    lsn = max(gap.from_lsn, stored.commit_lsn + 1)
    if gap.to_lsn is None:
        return timelines.now, lsn
    is_beyond = gap.from_lsn < gap.to_lsn and stored.commit_lsn < gap.to_lsn
    # Earlier versions began the gap of an idle stream at its position on the former timeline, with any reason (F58).
    is_parted = gap.reason == SourceTimeline.code or gap.to_lsn < gap.from_lsn
    if is_beyond or is_parted:
        return timelines.at(gap.to_lsn), gap.to_lsn - 1
    return timelines.at(lsn), lsn


def gap_details(gap: Gap) -> dict[str, bytes]:
    """Return the fields of a marker that describe the gap."""
    decided = datetime.fromtimestamp(gap.decided_us / 1e6, UTC)
    details = {
        "from_lsn": format_lsn(gap.from_lsn),
        "to_lsn": None if gap.to_lsn is None else format_lsn(gap.to_lsn),
        "reason": gap.reason,
        "decided": decided.isoformat(timespec="microseconds"),
    }
    return {name: text.encode() for name, text in details.items() if text is not None}


def gap_of_table(gap: Gap, wal_lsn: Lsn, *, is_copied: bool) -> Gap:
    """Return the gap in a table's topic: if no snapshot copies the table, the changes in the gap never follow.

    `wal_lsn`: the end of the server's WAL. The stream begins later, where the new slot is created, so the end is
    after the start also if nothing was committed: otherwise the last changes before the gap would count as undone
    (F58).
    """
    if gap.to_lsn is not None or is_copied:
        return gap
    return replace(gap, to_lsn=max(wal_lsn, gap.from_lsn + 1))


async def mark_gap(
    stored: Progress,
    gap: Gap,
    tables: Sequence[tuple[Relation, Gap]],
    plans: Plans,
    writer: Writer,
    timelines: Timelines,
    new_context: Callable[[TransactionInfo, int], TransactionContext],
) -> Markers:
    """Write the markers and wait until they are durable.

    `tables`: each with its own gap. `new_context` takes the timeline too. Raises the errors of planning and writing.
    """
    now_us = time.time_ns() // 1000
    timeline, lsn = marker_place(stored, gap, timelines)
    tx = new_context(TransactionInfo(0, lsn, now_us - POSTGRES_EPOCH_US), timeline)
    if stored.copy is not None and stored.copy.point_lsn - 1 == lsn:
        tx.tx_seq = stored.copy.tx_seq
    markers: list[Record] = []
    ended: dict[int, str] = {}
    for relation, own_gap in tables:
        plan = await plans.plan(relation)
        if own_gap != gap:
            ended[relation.relid] = plan.topic
        markers += encode_gap(plan, lsn=lsn, details=gap_details(own_gap), tx=tx)
    after = CommitPosition(
        stored.commit_lsn,
        stored.end_lsn,
        stored.commit_us,
        transactions=0,
        phase=stored.phase,
        snapshot_tables=with_topics(stored.snapshot_tables, ended.values()),
        prepared_before=stored.prepared_before,
        part=stored.part,
        # Before a new snapshot no copy has begun: a state without tables would say that it is complete.
        copy=stored.copy if stored.phase == "snapshot" else after_markers(stored.copy, lsn, tx.tx_seq),
        signals_at=stored.signals_at,
    )
    # One chunk, because the markers have to be in one Kafka transaction, however many tables there are.
    await writer.add(RecordChunk(markers, _BYTES_OF_A_MARKER * len(markers), after))
    await writer.flush()
    _log_marked(gap, tables)
    return Markers(lsn, tx.tx_seq, ended)


def with_topics(begun: Sequence[str], ended: Iterable[str]) -> tuple[str, ...]:
    """Return the topics that get a truncate event if their table is copied: also those of markers with an end.

    A later start may include the table, and only the truncate event tells readers that all of its rows follow.
    """
    return tuple(dict.fromkeys((*begun, *ended)))


def _log_marked(gap: Gap, tables: Sequence[tuple[Relation, Gap]]) -> None:
    """Log the markers of all tables, and the tables that a new snapshot does not copy."""
    _LOG.warning(
        "gap_marked",
        tables=len(tables),
        from_lsn=format_lsn(gap.from_lsn),
        to_lsn=None if gap.to_lsn is None else format_lsn(gap.to_lsn),
        reason=gap.reason,
        hint=_GAP_HINT,
    )
    streamed = [f"{relation.schema}.{relation.name}" for relation, own_gap in tables if own_gap != gap]
    if streamed:
        first = streamed[:_SHOWN]
        _LOG.warning("gap_not_copied", tables=len(streamed), first_tables=first, hint=_NOT_COPIED_HINT)


def after_markers(copy: CopyState | None, lsn: Lsn, tx_seq: int) -> CopyState | None:
    """Return the state after markers with this commit LSN.

    Rows that are copied before the next transaction may have the same, and continue the numbers of the markers.
    """
    before = copy or CopyState()
    if before.pending or before.point_lsn - 1 > lsn:
        return copy  # a snapshot follows, or copied rows that sort behind the markers were written
    return replace(before, point_lsn=lsn + 1, tx_seq=tx_seq)
