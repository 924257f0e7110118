"""Copy the tables of a blocking snapshot while the stream waits at the snapshot's consistent point.

In: an exported snapshot, the hold of the stream, the tables.  Out: their rows, and each position with what is left.
Invariant: rows are written only at a hold that the stream has reached. A table is left to copy until the position
after its last row. Before the first row of a table without a key, the progress record says that its next attempt
begins with a truncate event: such rows cannot be replaced one by one. The first attempt begins with one if the topic
has records: the stream may have written some of the rows since the command. Neither is so where the condition is
FALSE: without rows there is none to be written twice, and the command accepts those that the topic has.
Must not: end a table's copy for a reason of another table.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import structlog

from cdcd.ack.group import CommitPosition, RecordChunk
from cdcd.avro.plan import RelationPlan
from cdcd.avro.transaction import TransactionContext
from cdcd.errors import CdcdError
from cdcd.lsn import Lsn
from cdcd.model import Record, Relation, RowBatch, TransactionInfo
from cdcd.monitoring.status import Status
from cdcd.pipeline.hold import Hold
from cdcd.pipeline.plans import Plans
from cdcd.pipeline.pump import Pump
from cdcd.pipeline.table_copies import TableCopies
from cdcd.pipeline.writer import Writer
from cdcd.schema.policy import Policies
from cdcd.session.copy_workers import CopyWorkers
from cdcd.session.parts import SessionParts
from cdcd.session.snapshot_copy import Snapshotter
from cdcd.session.snapshot_handover import published_now
from cdcd.session.table_copier import InThread
from cdcd.snapshot.reports import TableReports
from cdcd.snapshot.selection import Selection
from cdcd.snapshot.table import SnapshotReader
from cdcd.snapshot.units import CopiedTable, CopyUnit
from cdcd.source.catalog import Catalog
from cdcd.source.connection import connect_sql, translate
from cdcd.source.identity import ServerIdentity
from cdcd.source.lock_watch import watched
from cdcd.source.settings import SourceSettings
from cdcd.threads import in_thread

_LOG = structlog.stdlib.get_logger("cdcd.snapshot")
_UNPUBLISHED_HINT = "to copy the table, add it to the publication, and repeat the command"


@dataclass(frozen=True, slots=True)
class BlockingParts:
    """What the blocking snapshots of a session use. `has_records`: whether a topic ever had a record."""

    copies: TableCopies
    pump: Pump
    writer: Writer
    reports: TableReports
    source: SourceSettings
    server: ServerIdentity
    catalog: Catalog
    plans: Plans
    status: Status
    new_context: Callable[[TransactionInfo], TransactionContext]
    has_records: Callable[[str], bool]
    workers: int
    has_metadata: bool
    selection: Selection
    policies: Policies


def blocking_parts(parts: SessionParts, pump: Pump, server: ServerIdentity) -> BlockingParts:
    """Return what the blocking snapshots of a session use. `server`: the server of the stream."""
    config, clients = parts.config, parts.clients
    return BlockingParts(
        pump.progress.copies,
        pump,
        parts.writer,
        parts.reports,
        config.source_settings(),
        server,
        clients.catalog,
        parts.plans,
        parts.status,
        parts.new_context,
        clients.topics.has_records,
        config.snapshot.workers,
        config.format.transactions,
        config.snapshot.selection(),
        config.format.policies(),
    )


class PlacedPlans:
    """The plans of the copied rows, which are not those of the stream: it has its own descriptions (F43)."""

    def __init__(self, plans: Plans) -> None:
        self._plans = plans
        self.by_relid: dict[int, RelationPlan] = {}

    async def plan_tables(self, relations: Sequence[Relation]) -> list[RelationPlan]:
        """Make the plans. Raises the errors of the registry and of the sink."""
        for relation in relations:
            self.by_relid[relation.relid] = await in_thread(self._plans.place, relation)
        return [self.by_relid[relation.relid] for relation in relations]

    async def snapshot_metadata(
        self, tx: TransactionContext, table: str, rows: int | None, now_ms: int
    ) -> Record:
        """Return the BEGIN of a table's snapshot, or its END with the number of rows."""
        return await self._plans.snapshot_metadata(tx, table, rows, now_ms)


class BlockingPositions:
    """The positions of one attempt: the stream's position, with what is left."""

    def __init__(
        self,
        copies: TableCopies,
        keyless: Collection[int],
        point_lsn: Lsn,
        position: Callable[[], CommitPosition],
    ) -> None:
        """`point_lsn`: where the stream waits. `position`: returns its position with the state of the copies."""
        self._copies = copies
        self._keyless = keyless
        self._point_lsn = point_lsn
        self._position = position
        self._relids: dict[str, int] = {}
        self._tx_seq = copies.next_position(point_lsn).tx_seq

    @property
    def tx_seq(self) -> int:
        """The number of the last record."""
        return self._tx_seq

    @tx_seq.setter
    def tx_seq(self, tx_seq: int) -> None:
        self._tx_seq = tx_seq
        self._copies.emitted(self._point_lsn, tx_seq)

    def set_topic(self, relid: int, topic: str) -> None:
        """Note the topic of a table."""
        self._relids[topic] = relid
        self._copies.set_blocking(relid, replace(self._copies.blocking[relid], topic=topic))

    def is_begun(self, topic: str) -> bool:
        """Return whether a truncate event has to precede the rows."""
        return self._copies.blocking[self._relids[topic]].empties

    def empty_first(self, relid: int) -> None:
        """Note that a truncate event has to precede the rows; until all are copied, the topic lacks some."""
        self._copies.set_blocking(relid, replace(self._copies.blocking[relid], empties=True))
        self._copies.note_coverage(relid, is_whole=False)

    def announce(self, relid: int, topic: str) -> None:
        """Note that copied rows follow in the topic of a table."""
        self.begin(relid, topic)

    def begin(self, relid: int, topic: str) -> None:
        """Note that the topic of a table may have copied rows from now on, after a truncate event if it has one."""
        if (state := self._copies.blocking.get(relid)) is None:
            return
        self._copies.incomplete.begins(relid, topic, is_needed=state.empties)
        if relid in self._keyless:
            self._copies.set_blocking(relid, replace(state, empties=True))

    def plan(self, units: Iterable[CopyUnit], partitions: Mapping[int, tuple[str, ...]]) -> None:
        """Ignore the units: another attempt copies all of them."""

    def complete_units(self, units: Iterable[CopyUnit], topic: str) -> None:
        """Ignore the units: another attempt copies all of them."""

    def complete(self, relid: int) -> None:
        """Note that all rows of a table precede the next position."""
        if (state := self._copies.blocking.get(relid)) is not None:
            self._copies.incomplete.completes(relid, state.topic)
            if state.where is None:
                self._copies.note_coverage(relid, is_whole=True)
        self._copies.set_blocking(relid, None)

    def so_far(self) -> CommitPosition:
        """Return the position after the rows added so far."""
        return self._position()


class ReportedRows:
    """Counts the rows for the reports of the tables."""

    def __init__(
        self, reports: TableReports, relids: Mapping[str, int], chunks: Callable[[int], None]
    ) -> None:
        """`relids`: by table. `chunks` is called with the number of chunks that are not read yet."""
        self._reports = reports
        self._relids = relids
        self._chunks = chunks

    def snapshot_started(self, estimates: Mapping[str, int | None]) -> None:
        """Note the begin of the copy, with the estimated rows of each table."""
        for title, rows in estimates.items():
            self._reports.begin_attempt(self._relids[title], rows)

    def relation(self, relid: int, table: str) -> None:
        """Note the name of a table."""
        self._reports.named(relid, table)

    def snapshot_rows(self, table: str, batch: RowBatch) -> None:
        """Count rows."""
        self._reports.emitted(self._relids[table], batch.count)

    def snapshot_chunks(self, remaining: int) -> None:
        """Note how many chunks are not read yet."""
        self._chunks(remaining)

    def snapshot_table_done(self, table: str) -> None:
        """Ignore the end of a table: it is complete when its position is durable."""

    def snapshot_ended(self, *, is_complete: bool) -> None:
        """Ignore the end of the copy."""


class BlockingCopy:
    """One attempt to copy these tables."""

    def __init__(
        self,
        parts: BlockingParts,
        relids: Collection[int],
        in_thread: InThread,
        release: Callable[[SnapshotReader], Awaitable[None]],
    ) -> None:
        """`release`: closes a connection when no thread uses it any more."""
        self._parts = parts
        self._relids = relids
        self._in_thread = in_thread
        self._release = release

    async def run(self, snapshot_name: str, hold: Hold) -> Mapping[int, CdcdError]:
        """Copy at a hold that the stream has reached; return the errors of tables that cannot be copied.

        Raises the errors that concern all tables.
        """
        parts, source = self._parts, self._parts.source
        published = await published_now(source, parts.catalog, parts.status, parts.policies)
        wanted = {
            relid: state for relid, state in parts.copies.blocking.items() if relid in self._relids
        }  # no command changes them while the stream waits
        tables = [
            (replace(parts.selection.with_columns(table), where=wanted[table.relid].where), relation)
            for table, relation in published
            if table.relid in wanted
        ]
        self._forget(wanted.keys() - {table.relid for table, _ in tables})
        new_reader = partial(
            SnapshotReader, partial(connect_sql, source), translate, snapshot_name, self._lock_watch
        )
        reader = await self._in_thread(new_reader)
        workers: CopyWorkers | None = None
        try:
            copied = [table for table, _ in tables]
            await self._in_thread(reader.check_publications, source.publications, copied)
            planned = await self._in_thread(reader.units, copied)
            point_lsn = hold.position.covered_lsn
            workers = CopyWorkers(reader, new_reader, planned, point_lsn, parts.workers)
            return await self._copy(tables, workers, point_lsn, hold)
        finally:
            if workers is None:
                await self._release(reader)
            else:
                await workers.close()

    async def _copy(
        self, tables: list[tuple[CopiedTable, Relation]], workers: CopyWorkers, point_lsn: Lsn, hold: Hold
    ) -> Mapping[int, CdcdError]:
        parts, plans = self._parts, PlacedPlans(self._parts.plans)
        without_key = {table.relid for table, _ in tables if not table.has_key}
        keyless = {relid for relid in without_key if not parts.copies.blocking[relid].copies_nothing}
        positions = BlockingPositions(
            parts.copies, keyless, point_lsn, lambda: parts.pump.progress.with_copies(hold.position)
        )
        for plan in await plans.plan_tables([relation for _, relation in tables]):
            positions.set_topic(plan.relation.relid, plan.topic)
            if plan.relation.relid in keyless and await self._has_records(plan.topic):
                positions.empty_first(plan.relation.relid)
        copying = Snapshotter(
            plans,
            parts.writer.add,
            parts.new_context,
            ReportedRows(
                parts.reports,
                {table.title: table.relid for table, _ in tables},
                parts.status.metrics.snapshot_chunks,
            ),
            positions,
            point_lsn=point_lsn,
            mark_first=self._mark,
            has_metadata=parts.has_metadata,
        )
        _LOG.info("blocking_snapshot_started", tables=len(tables), units=len(workers.units))
        await copying.run(tables, workers)
        await self._mark(positions.so_far())
        for table, _ in tables:
            if table.relid not in copying.failures:
                rows = parts.reports.rows_of(table.relid)
                _LOG.info("table_copied", table=table.title, rows=rows)
                parts.reports.complete(table.relid)
        return copying.failures

    async def _has_records(self, topic: str) -> bool:
        """Return whether a topic ever had a record, with all that the stream has passed on before the hold."""
        await self._parts.writer.flush()
        return await in_thread(self._parts.has_records, topic)

    def _forget(self, unpublished: Iterable[int]) -> None:
        """Copy no table that was removed from the publications, or dropped, since the command."""
        for relid in unpublished:
            table = self._parts.reports.name_of(relid)
            _LOG.warning(
                "table_not_copied",
                table=table,
                error="the table is not published any more",
                hint=_UNPUBLISHED_HINT,
            )
            self._parts.copies.set_blocking(relid, None)
            self._parts.reports.end(relid)

    async def _mark(self, position: CommitPosition) -> None:
        """Make a position durable."""
        await self._parts.writer.add(RecordChunk((), 0, position))
        await self._parts.writer.flush()

    @contextlib.contextmanager
    def _lock_watch(self, connection: Any) -> Iterator[None]:
        with (
            self._parts.status.waits.watching("lock") as report,
            watched(self._parts.source, connection, report),
        ):
            yield
