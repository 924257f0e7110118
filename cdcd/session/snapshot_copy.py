"""The initial snapshot: copy each table as the slot's consistent point sees it.

In: the published tables, an exported snapshot.  Out: chunks with commit positions of phase "snapshot", the last one
of phase "streaming" at the consistent point, where the stream begins.
Invariant: rows carry a commit LSN one below the consistent point, so every streamed commit, which may begin
exactly there (F1), sorts after them. An interrupted attempt is repeated from its beginning, with a new slot: the
topics that it had written to get a truncate event first, so that a row deleted in between does not remain (F40).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Any, Protocol

from cdcd.ack.group import Chunk, CommitPosition
from cdcd.avro.encode import encode_batch, encode_truncate
from cdcd.avro.plan import RelationPlan
from cdcd.avro.transaction import TransactionContext
from cdcd.failpoints import hit
from cdcd.lsn import Lsn
from cdcd.model import POSTGRES_EPOCH_US, Relation, RowBatch, TransactionInfo
from cdcd.pipeline.plans import Plans
from cdcd.snapshot.table import CopiedTable, SnapshotReader
from cdcd.source.catalog import Catalog
from cdcd.source.connection import connect_sql
from cdcd.source.lock_watch import Report, fetch_watched, unreported
from cdcd.source.publication_catalog import PublishedTable, published_tables
from cdcd.source.settings import SourceSettings
from cdcd.threads import in_thread, settled, start_in_thread
from cdcd.txn.lookahead import Lookahead

Add = Callable[[Chunk], Any]
Mark = Callable[[CommitPosition], Awaitable[None]]


class Counts(Protocol):
    """Receives the progress of the copy."""

    def snapshot_started(self, tables: int) -> None: ...  # noqa: D102
    def relation(self, relid: int, table: str) -> None: ...  # noqa: D102
    def snapshot_rows(self, table: str, batch: RowBatch) -> None: ...  # noqa: D102
    def snapshot_table_done(self, table: str) -> None: ...  # noqa: D102
    def snapshot_ended(self, *, is_complete: bool) -> None: ...  # noqa: D102


class Snapshotter:
    """Copies the tables of one exported snapshot into the writer."""

    def __init__(
        self,
        reader: SnapshotReader,
        plans: Plans,
        add: Add,
        new_context: Callable[[TransactionInfo], TransactionContext],
        counts: Counts,
        *,
        consistent_point: Lsn,
        begun_topics: tuple[str, ...],
        written_commit_lsn: Lsn,
        since_us: int,
        before_us: int,
        mark_first: Mark | None = None,
    ) -> None:
        """`since_us`: from this time on, commits may not be durable until the copy is complete.

        `before_us`: a time before the slot was created: a change that the copy does not have commits later.
        `mark_first`: with at_least_once, readers see rows before a commit, so a progress record is written first.
        """
        self._reader = reader
        self._plans = plans
        self._add = add
        self._counts = counts
        self._consistent_point = consistent_point
        self._begun = dict.fromkeys(begun_topics)
        self._written_commit_lsn = written_commit_lsn
        self._since_us, self._before_us = since_us, before_us
        self._mark_first = mark_first
        self._now_us = time.time_ns() // 1000
        info = TransactionInfo(
            xid=0,
            commit_lsn=consistent_point - 1,
            commit_pg_us=self._now_us - POSTGRES_EPOCH_US,
            snapshot=True,
        )
        self._tx = new_context(info)

    async def run(self, tables: list[tuple[CopiedTable, Relation]]) -> None:
        """Copy every table, one after another; streaming begins at the last commit position."""
        self._counts.snapshot_started(len(tables))
        described = {relation.relid: relation for _, relation in tables}
        await self._plans.prepare(Lookahead(set(described), described))
        made = await self._plans.plan_all([relation for _, relation in tables])
        plans = list(zip((table for table, _ in tables), made, strict=True))
        cleared = [plan for _, plan in plans if plan.topic in self._begun]
        if self._mark_first is not None:
            self._begun |= dict.fromkeys(plan.topic for _, plan in plans)
            await self._mark_first(self._so_far())
        await self._clear(cleared)
        for table, plan in plans:
            await self._copy(table, plan)
            self._counts.snapshot_table_done(plan.table)
        await self._add(Chunk((), 0, self._done()))
        self._counts.snapshot_ended(is_complete=True)

    async def _clear(self, plans: list[RelationPlan]) -> None:
        for plan in plans:
            records = encode_truncate(
                plan, lsn=self._consistent_point, cascade=False, restart_identity=False, tx=self._tx
            )
            await self._add(Chunk(records, 512 * len(records), self._so_far()))

    async def _copy(self, table: CopiedTable, plan: RelationPlan) -> None:
        self._begun[plan.topic] = None
        self._counts.relation(table.relid, plan.table)
        batches = self._reader.copy(table, self._consistent_point)
        step: asyncio.Future[RowBatch | None] | None = None
        try:
            while True:
                step = start_in_thread(_next_batch, batches)
                if (batch := await asyncio.shield(step)) is None:
                    break
                records = encode_batch(batch, self._plans.by_relid, self._tx)
                self._counts.snapshot_rows(plan.table, batch)
                await self._add(Chunk(records, len(batch.frames) + 128 * len(records), self._so_far()))
                hit("in_snapshot")
        finally:
            if step is not None and not step.done():
                self._reader.abandon()
            await settled(step)
            await in_thread(_close, batches)

    def _so_far(self) -> CommitPosition:
        return CommitPosition(
            commit_lsn=self._written_commit_lsn,
            end_lsn=self._consistent_point,
            commit_us=self._since_us,
            transactions=0,
            phase="snapshot",
            snapshot_tables=tuple(self._begun),
        )

    def _done(self) -> CommitPosition:
        return replace(
            self._so_far(),
            commit_lsn=self._consistent_point - 1,
            commit_us=self._before_us,
            phase="streaming",
            snapshot_tables=(),
        )


def _next_batch(batches: Iterator[RowBatch]) -> RowBatch | None:
    return next(batches, None)


def _close(batches: Any) -> None:
    batches.close()


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
