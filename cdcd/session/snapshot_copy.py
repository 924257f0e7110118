"""The initial snapshot: copy each table as the slot's consistent point sees it.

In: the published tables, their rows as the workers read them.  Out: chunks with commit positions of phase "snapshot".
Invariant: rows carry a commit LSN one below the consistent point, so every streamed commit, which may begin
exactly there (F1), sorts after them. After an interruption the incomplete tables are copied again, in a later
snapshot: the topics that have rows of them get a truncate event first, so that a row deleted in between does not
remain (F40).
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Protocol

import structlog

from cdcd.ack.group import Chunk, CommitPosition
from cdcd.avro.encode import encode_batch, encode_truncate
from cdcd.avro.plan import RelationPlan
from cdcd.avro.transaction import TransactionContext
from cdcd.errors import CdcdError
from cdcd.failpoints import hit
from cdcd.lsn import Lsn
from cdcd.model import POSTGRES_EPOCH_US, Relation, RowBatch, SnapshotMarker, TransactionInfo
from cdcd.pipeline.plans import Plans
from cdcd.session.copy_workers import CopyWorkers
from cdcd.snapshot.copy_progress import CopyProgress
from cdcd.snapshot.markers import Marked, RowMarkers, TableComplete
from cdcd.snapshot.units import CopiedTable
from cdcd.source.catalog import Catalog
from cdcd.source.connection import connect_sql
from cdcd.source.lock_watch import Report, fetch_watched, unreported
from cdcd.source.publication_catalog import PublishedTable, published_tables
from cdcd.source.settings import SourceSettings

_LOG = structlog.stdlib.get_logger("cdcd.snapshot")
Add = Callable[[Chunk], Any]
Mark = Callable[[CommitPosition], Awaitable[None]]


class Counts(Protocol):
    """Receives the progress of the copy."""

    def snapshot_started(self, estimates: Mapping[str, int | None]) -> None: ...  # noqa: D102
    def relation(self, relid: int, table: str) -> None: ...  # noqa: D102
    def snapshot_rows(self, table: str, batch: RowBatch) -> None: ...  # noqa: D102
    def snapshot_table_done(self, table: str) -> None: ...  # noqa: D102
    def snapshot_ended(self, *, is_complete: bool) -> None: ...  # noqa: D102


class Snapshotter:
    """Copies the tables of one exported snapshot into the writer."""

    def __init__(
        self,
        plans: Plans,
        add: Add,
        new_context: Callable[[TransactionInfo], TransactionContext],
        counts: Counts,
        progress: CopyProgress,
        *,
        point_lsn: Lsn,
        mark_first: Mark | None = None,
    ) -> None:
        """`point_lsn`: the snapshot's consistent point.

        `mark_first`: with at_least_once, readers see rows before a commit, so a progress record is written first.
        """
        self._plans = plans
        self._add = add
        self._counts = counts
        self._progress = progress
        self._point_lsn = point_lsn
        self._mark_first = mark_first
        self._contexts = self._all_contexts(new_context)
        self._tx_seq = 0

    def _all_contexts(
        self, new_context: Callable[[TransactionInfo], TransactionContext]
    ) -> dict[SnapshotMarker, TransactionContext]:
        commit_lsn, commit_pg_us = self._point_lsn - 1, time.time_ns() // 1000 - POSTGRES_EPOCH_US
        infos = (TransactionInfo(0, commit_lsn, commit_pg_us, snapshot=marker) for marker in SnapshotMarker)
        return {SnapshotMarker(info.snapshot): new_context(info) for info in infos}

    async def run(self, tables: list[tuple[CopiedTable, Relation]], workers: CopyWorkers) -> CdcdError | None:
        """Copy every table by the workers.

        Return the first error of a table that cannot be copied: the other tables are complete then, and the stream
        may not begin.
        """
        self._counts.snapshot_started(
            {table.title: workers.estimates.get(table.relid) for table, _ in tables}
        )
        plans = await self._plans.plan_tables([relation for _, relation in tables])
        plan_of = {table.relid: plan for (table, _), plan in zip(tables, plans, strict=True)}
        cleared = [plan for plan in plans if self._progress.is_begun(plan.topic)]
        for relid, plan in plan_of.items():
            self._counts.relation(relid, plan.table)
            if self._mark_first is not None:
                self._progress.begin(plan.topic)
        if self._mark_first is not None:
            await self._mark_first(self._progress.so_far())
        await self._clear(cleared)
        failure = await self._copy(plan_of, workers)
        if failure is None:
            self._counts.snapshot_ended(is_complete=True)
        return failure

    async def _clear(self, plans: Iterable[RelationPlan]) -> None:
        for plan in plans:
            tx = self._numbered(SnapshotMarker.INNER)
            records = encode_truncate(plan, lsn=self._point_lsn, cascade=False, restart_identity=False, tx=tx)
            self._tx_seq = tx.tx_seq
            await self._add(Chunk(records, 512 * len(records), self._progress.so_far()))

    async def _copy(self, plan_of: Mapping[int, RelationPlan], workers: CopyWorkers) -> CdcdError | None:
        markers, left = RowMarkers(), Counter(unit.table.relid for unit in workers.units)
        failures: dict[int, CdcdError] = {}
        async with contextlib.aclosing(workers.pieces()) as pieces:
            async for unit, rows in pieces:
                relid = unit.table.relid
                if isinstance(rows, CdcdError):
                    failures.setdefault(relid, rows)
                if relid in failures or isinstance(rows, CdcdError):
                    continue
                if rows is not None:
                    await self._write(markers.add(relid, *rows), plan_of)
                    hit("in_snapshot")
                    continue
                left[relid] -= 1
                if not left[relid]:
                    await self._write(markers.end(relid), plan_of)
        await self._write(markers.finish(), plan_of)
        for failure in list(failures.values())[1:]:
            _LOG.warning("table_not_copied", error=str(failure))
        return next(iter(failures.values()), None)

    async def _write(self, all_marked: list[Marked], plan_of: Mapping[int, RelationPlan]) -> None:
        for marked in all_marked:
            plan = plan_of[marked.relid]
            if isinstance(marked, TableComplete):
                self._progress.complete(marked.relid)
                self._counts.snapshot_table_done(plan.table)
                continue
            self._progress.begin(plan.topic)
            batch, tx = marked.batch, self._numbered(marked.marker)
            records = encode_batch(batch, self._plans.by_relid, tx)
            self._tx_seq = tx.tx_seq
            self._counts.snapshot_rows(plan.table, batch)
            await self._add(Chunk(records, len(batch.frames) + 128 * len(records), self._progress.so_far()))

    def _numbered(self, marker: SnapshotMarker) -> TransactionContext:
        """Return the context of a marker, whose changes are numbered after those of all others."""
        tx = self._contexts[marker]
        tx.tx_seq = self._tx_seq
        return tx


def tables_to_copy(
    settings: SourceSettings, catalog: Catalog, report: Report = unreported
) -> list[tuple[CopiedTable, Relation]]:
    """Return the published tables, each with the relation of the stream (blocking). Raises Source errors.

    A lock on a table is waited for without a limit; `report` is called with its holders.
    """

    def ask(connection: Any, sql: str, parameters: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        return fetch_watched(settings, connection, sql, parameters, report)

    with contextlib.closing(connect_sql(settings)) as connection:
        published = published_tables(connection, settings.publications, ask)
    return [(_copied(table), catalog.relation(table.relid, table.columns)) for table in published]


def _copied(table: PublishedTable) -> CopiedTable:
    return CopiedTable(
        relid=table.relid,
        schema=table.schema,
        name=table.name,
        columns=table.columns,
        row_filter=table.row_filter,
        is_partitioned=table.is_partitioned,
    )
