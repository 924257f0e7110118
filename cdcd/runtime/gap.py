"""Tell the topics of a gap that somebody has accepted, before anything else is written to them.

In: a progress record with a gap.  Out: one Kafka transaction with a marker in every partition of every published
table's topic, and the progress record without the gap.
Invariant: markers and record are one Kafka transaction, so the marker stands once, whatever is killed; its place in
the order is behind all that was written before the gap and before all that follows.
Must not: decide that a gap is accepted.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime

import structlog

from cdcd.ack.group import Boundary, Chunk
from cdcd.avro.encode import encode_gap
from cdcd.avro.transaction import TransactionContext
from cdcd.lsn import Lsn, format_lsn
from cdcd.model import POSTGRES_EPOCH_US, Gap, Progress, Record, Relation, TransactionInfo
from cdcd.runtime.plans import Plans
from cdcd.runtime.writer import Writer
from cdcd.snapshot.table import CopiedTable

_LOG = structlog.stdlib.get_logger("cdcd.session")
_BYTES_OF_A_MARKER = 512


def marker_lsn(stored: Progress, gap: Gap) -> Lsn:
    """Return the commit LSN of the markers: no transaction has it, and it sorts where the gap is.

    A transaction that follows begins at `to_lsn` or later (F1), so one below is free, unless what was written already
    reaches beyond (a PREPARE that holds the position back, F33; a server that parted before, F58).
    """
    if gap.to_lsn is not None and gap.from_lsn < gap.to_lsn and stored.commit_lsn < gap.to_lsn:
        return gap.to_lsn - 1
    return max(gap.from_lsn, stored.commit_lsn + 1)


def told(gap: Gap) -> dict[str, bytes]:
    """Return what a marker says of the gap."""
    decided = datetime.fromtimestamp(gap.decided_us / 1e6, UTC)
    said = {
        "from_lsn": format_lsn(gap.from_lsn),
        "to_lsn": None if gap.to_lsn is None else format_lsn(gap.to_lsn),
        "reason": gap.reason,
        "decided": decided.isoformat(timespec="microseconds"),
    }
    return {name: text.encode() for name, text in said.items() if text is not None}


async def mark_gap(
    stored: Progress,
    gap: Gap,
    tables: list[tuple[CopiedTable, Relation]],
    plans: Plans,
    writer: Writer,
    new_context: Callable[[TransactionInfo], TransactionContext],
) -> None:
    """Write the markers and wait until they are durable. Raises what planning and writing raise."""
    now_us = time.time_ns() // 1000
    info = TransactionInfo(xid=0, commit_lsn=marker_lsn(stored, gap), commit_pg_us=now_us - POSTGRES_EPOCH_US)
    tx = new_context(info)
    markers: list[Record] = []
    for _, relation in tables:
        plan = await plans.plan(relation)
        markers += encode_gap(plan, lsn=info.commit_lsn, said=told(gap), tx=tx)
    after = Boundary(
        stored.commit_lsn,
        stored.end_lsn,
        now_us,
        transactions=0,
        phase=stored.phase,
        snapshot_tables=stored.snapshot_tables,
        prepared_before=stored.prepared_before,
        part=stored.part,
    )
    # One chunk, because it must not be cut, however many tables there are.
    await writer.add(Chunk(markers, _BYTES_OF_A_MARKER * len(markers), after))
    await writer.flush()
    _LOG.warning(
        "gap_marked",
        tables=len(tables),
        from_lsn=format_lsn(gap.from_lsn),
        to_lsn=None if gap.to_lsn is None else format_lsn(gap.to_lsn),
        reason=gap.reason,
    )
