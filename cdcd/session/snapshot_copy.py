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
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import structlog

from cdcd.ack.group import CommitPosition, RecordChunk
from cdcd.avro.encode import encode_batch, encode_truncate
from cdcd.avro.plan import RelationPlan
from cdcd.avro.transaction import TransactionContext
from cdcd.errors import CdcdError
from cdcd.failpoints import hit
from cdcd.lsn import Lsn
from cdcd.model import POSTGRES_EPOCH_US, Record, Relation, RowBatch, SnapshotMarker, TransactionInfo
from cdcd.pipeline.changed_rows import first_without_text
from cdcd.schema.codec import Op
from cdcd.schema.policy import NO_RULES, Policies, Policy
from cdcd.schema.resolve import resolve
from cdcd.session.copy_workers import CopyWorkers
from cdcd.snapshot.markers import Marked, RowMarkers, TableComplete
from cdcd.snapshot.units import CopiedTable, CopyUnit
from cdcd.source.catalog import Catalog
from cdcd.source.key_check import record_key
from cdcd.source.key_index import TableKeys
from cdcd.source.lock_watch import Report, fetch_watched, unreported
from cdcd.source.publication_catalog import PublishedTable, published_tables
from cdcd.source.settings import SourceSettings

_LOG = structlog.stdlib.get_logger("cdcd.snapshot")
Add = Callable[[RecordChunk], Any]
Mark = Callable[[CommitPosition], Awaitable[None]]


class Counts(Protocol):
    """Receives the progress of the copy."""

    def snapshot_started(self, estimates: Mapping[str, int | None]) -> None: ...  # noqa: D102
    def relation(self, relid: int, table: str) -> None: ...  # noqa: D102
    def snapshot_rows(self, table: str, batch: RowBatch) -> None: ...  # noqa: D102
    def snapshot_chunks(self, remaining: int) -> None: ...  # noqa: D102
    def snapshot_table_done(self, table: str) -> None: ...  # noqa: D102
    def snapshot_ended(self, *, is_complete: bool) -> None: ...  # noqa: D102


class CopyPlans(Protocol):
    """The plans of the copied rows."""

    by_relid: dict[int, RelationPlan]

    async def plan_tables(self, relations: Sequence[Relation]) -> list[RelationPlan]: ...  # noqa: D102
    async def snapshot_metadata(  # noqa: D102
        self, tx: TransactionContext, table: str, rows: int | None, now_ms: int
    ) -> Record: ...


class Positions(Protocol):
    """What is copied, and the position after it: see `CopyProgress`."""

    @property
    def tx_seq(self) -> int: ...  # noqa: D102
    @tx_seq.setter
    def tx_seq(self, tx_seq: int) -> None: ...
    def is_begun(self, topic: str) -> bool: ...  # noqa: D102
    def announce(self, relid: int, topic: str) -> None: ...  # noqa: D102
    def begin(self, relid: int, topic: str) -> None: ...  # noqa: D102
    def plan(self, units: Iterable[CopyUnit], partitions: Mapping[int, tuple[str, ...]]) -> None: ...  # noqa: D102
    def complete_units(self, units: Iterable[CopyUnit], topic: str) -> None: ...  # noqa: D102
    def complete(self, relid: int) -> None: ...  # noqa: D102
    def so_far(self) -> CommitPosition: ...  # noqa: D102


class Snapshotter:
    """Copies the tables of one exported snapshot into the writer. `failures`: by relid, those that it cannot copy."""

    def __init__(
        self,
        plans: CopyPlans,
        add: Add,
        new_context: Callable[[TransactionInfo], TransactionContext],
        counts: Counts,
        progress: Positions,
        *,
        point_lsn: Lsn,
        mark_first: Mark | None = None,
        has_metadata: bool = False,
    ) -> None:
        """`point_lsn`: the snapshot's consistent point. `has_metadata`: the topic of transactions has BEGIN and END.

        `mark_first`: with at_least_once, readers see rows before a commit, so a progress record is written first.
        It has no floors: if a truncate event is lost by a crash, the rows before it are older than its floor.
        """
        self._plans = plans
        self._add = add
        self._counts = counts
        self._progress = progress
        self._point_lsn = point_lsn
        self._mark_first = mark_first
        self._has_metadata = has_metadata
        self._rows: dict[int, int] = {}
        """By relid, the rows of each table whose BEGIN is written."""
        self._contexts = self._all_contexts(new_context)
        self._tx_seq = progress.tx_seq
        self.failures: dict[int, CdcdError] = {}

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
                self._progress.announce(relid, plan.topic)
        if self._mark_first is not None:
            await self._mark_first(self._progress.so_far())
        await self._clear(cleared)
        failure = await self._copy(plan_of, workers)
        if failure is None:
            self._counts.snapshot_ended(is_complete=True)
        return failure

    async def _clear(self, plans: Iterable[RelationPlan]) -> None:
        for plan in plans:
            self._progress.begin(plan.relation.relid, plan.topic)
            tx = self._numbered(SnapshotMarker.INNER)
            records = encode_truncate(plan, lsn=self._point_lsn, cascade=False, restart_identity=False, tx=tx)
            self._tx_seq = self._progress.tx_seq = tx.tx_seq
            await self._add(RecordChunk(records, 512 * len(records), self._progress.so_far()))

    async def _copy(self, plan_of: Mapping[int, RelationPlan], workers: CopyWorkers) -> CdcdError | None:
        markers, left = RowMarkers(), Counter(unit.table.relid for unit in workers.units)
        self._progress.plan(workers.units, workers.partitions)
        chunks = len(workers.units)
        self._counts.snapshot_chunks(chunks)
        # A unit's last row leaves with the next rows of its table.
        ended: dict[int, list[CopyUnit]] = {}
        failures = self.failures
        async with contextlib.aclosing(workers.pieces()) as pieces:
            async for unit, rows in pieces:
                relid = unit.table.relid
                if isinstance(rows, CdcdError):
                    failures.setdefault(relid, rows)
                if relid in failures or isinstance(rows, CdcdError):
                    continue
                if rows is not None:
                    await self._write(markers.add(relid, *rows), plan_of)
                    self._progress.complete_units(ended.pop(relid, ()), plan_of[relid].topic)
                    hit("in_snapshot")
                    continue
                left[relid] -= 1
                chunks -= 1
                self._counts.snapshot_chunks(chunks)
                ended.setdefault(relid, []).append(unit)
                if not left[relid]:
                    await self._write(markers.end(relid), plan_of)
        await self._write(markers.finish(), plan_of)
        for failure in list(failures.values())[1:]:
            _LOG.warning("table_not_copied", error=failure.without_hint, hint=failure.advice)
        return next(iter(failures.values()), None)

    async def _write(self, all_marked: list[Marked], plan_of: Mapping[int, RelationPlan]) -> None:
        for marked in all_marked:
            plan = plan_of[marked.relid]
            begin = await self._begun(marked.relid, plan)
            if isinstance(marked, TableComplete):
                await self._complete(marked.relid, plan, begin)
                continue
            self._progress.begin(marked.relid, plan.topic)
            batch, tx = marked.batch, self._numbered(marked.marker)
            records = [*begin, *encode_batch(batch, self._plans.by_relid, tx)]
            self._tx_seq = self._progress.tx_seq = tx.tx_seq
            self._rows[marked.relid] += batch.count
            self._counts.snapshot_rows(plan.table, batch)
            await self._add(
                RecordChunk(records, len(batch.frames) + 128 * len(records), self._progress.so_far())
            )

    async def _begun(self, relid: int, plan: RelationPlan) -> list[Record]:
        """Return the BEGIN of a table's snapshot, if it is wanted and not written yet."""
        if relid in self._rows:
            return []
        self._rows[relid] = 0
        return await self._metadata(plan, None)

    async def _complete(self, relid: int, plan: RelationPlan, begin: list[Record]) -> None:
        self._progress.complete(relid)
        self._counts.snapshot_table_done(plan.table)
        records = [*begin, *await self._metadata(plan, self._rows[relid])]
        if records:
            await self._add(RecordChunk(records, 512 * len(records), self._progress.so_far()))

    async def _metadata(self, plan: RelationPlan, rows: int | None) -> list[Record]:
        if not self._has_metadata:
            return []
        tx = self._contexts[SnapshotMarker.INNER]
        return [await self._plans.snapshot_metadata(tx, plan.table, rows, time.time_ns() // 1_000_000)]

    def _numbered(self, marker: SnapshotMarker) -> TransactionContext:
        """Return the context of a marker, whose changes are numbered after those of all others."""
        tx = self._contexts[marker]
        tx.tx_seq = self._tx_seq
        return tx


def tables_to_copy(
    settings: SourceSettings, catalog: Catalog, policies: Policies = NO_RULES, report: Report = unreported
) -> list[tuple[CopiedTable, Relation]]:
    """Return the published tables, each with the relation of the stream (blocking). Raises Source errors.

    A lock on a table is waited for without a limit; `report` is called with its holders.
    """

    def ask(connection: Any, sql: str, parameters: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        return fetch_watched(settings, connection, sql, parameters, report)

    with contextlib.closing(catalog.connect()) as connection:
        published = published_tables(connection, settings.publications, ask)
    tables = [copied_table(table, policies) for table in published]
    return list(zip(tables, catalog.relations_of(published), strict=True))


def in_best_format(
    tables: Sequence[tuple[CopiedTable, Relation]], catalog: Catalog, policies: Policies
) -> list[tuple[CopiedTable, Relation]]:
    """Return the tables, each with the format in which it is read (blocking). Raises Source errors.

    Binary costs the server less, and gives the same records. The compiled row codec has to decode each column of the
    table itself: other types are converted to text in Python first.
    """
    types = catalog.types({column.type_oid for _, relation in tables for column in relation.columns})

    def is_binary(copied: CopiedTable, relation: Relation) -> bool:
        omitted = copied.omitted
        for number, column in enumerate(relation.columns):
            if number in omitted:
                continue
            pg_type = types.get(column.type_oid)
            if pg_type is None or not pg_type.has_send:
                return False
            policy = policies.column(copied.title, column.name)
            if resolve(column.type_oid, column.typmod, types, policy).codec.binary_op.op is Op.CALL:
                return False
        return True

    return [(replace(table, is_binary=is_binary(table, relation)), relation) for table, relation in tables]


def with_continuation(table: CopiedTable, relation: Relation, *, is_binary_stream: bool) -> CopiedTable:
    """Return the table, with whether an incremental snapshot can continue its copy.

    It reads by key (`copied_table`), and compares the key with those of the stream's changes: as text.
    """
    can_continue = table.can_continue and not (is_binary_stream and first_without_text(relation, table.key))
    return replace(table, can_continue=can_continue)


def may_have_text(relation: Relation, keys: TableKeys, policy: Policy) -> bool:
    """Return whether the values of each column that may be in the records' key have a text in binary format."""
    index = keys.of(relation.identity)
    names = {*policy.key_columns, *(() if index is None else index.columns)}
    return first_without_text(relation, (one.name for one in relation.columns if one.name in names)) is None


def copied_table(table: PublishedTable, policies: Policies = NO_RULES) -> CopiedTable:
    """Return the parts of a published table that are copied."""
    policy = policies.table(f"{table.schema}.{table.name}")
    key = record_key(table, policy)
    return CopiedTable(
        relid=table.relid,
        schema=table.schema,
        name=table.name,
        columns=table.columns,
        row_filter=table.row_filter,
        is_partitioned=table.is_partitioned,
        has_key=table.has_record_key,
        can_continue=table.has_record_key and table.keys.is_order(key),
        key=key,
    )
