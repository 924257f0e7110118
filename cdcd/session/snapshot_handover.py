"""The snapshot of a start: create the slot, copy the tables, hand over to the stream at the consistent point.

In: the decision `Snapshot`.  Out: `Resume`, where the stream begins.
Invariant: the progress record says that a snapshot has begun before the slot is created, so that after a crash the
slot is known to be cdcd's own. It says that the snapshot is complete only after the last row. If an attempt is
interrupted, the next one retains the slot and the complete tables. It copies the others in the snapshot of a
temporary slot, and the stream drops their changes that this snapshot has (the floors). Before the stream begins, a
table whose copy goes on meanwhile, or is given up, is marked as one that lacks rows.
Must not: decide that a snapshot is needed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import structlog

from cdcd.ack.group import CommitPosition, RecordChunk
from cdcd.failpoints import hit
from cdcd.lsn import Lsn, format_lsn
from cdcd.model import CopyState, PreparedBefore, Relation
from cdcd.monitoring.incomplete_tables import IncompleteTables
from cdcd.monitoring.status import Status
from cdcd.recovery.start_decision import CopyLeft, Resume, Snapshot
from cdcd.schema.policy import NO_RULES, Policies
from cdcd.session.abandoned_copies import give_up, leave_out
from cdcd.session.copy_workers import CopyWorkers
from cdcd.session.parts import SessionParts
from cdcd.session.slot_creation import create_slot_in_thread, drop_slot_if_any
from cdcd.session.snapshot_copy import (
    Snapshotter,
    in_best_format,
    may_have_text,
    tables_to_copy,
    with_continuation,
)
from cdcd.session.snapshot_server import ExportedSnapshot, Standby, of_primary
from cdcd.session.stale_tables import StaleTables
from cdcd.session.tables_to_continue import tables_to_continue
from cdcd.snapshot.copy_progress import CopyProgress
from cdcd.snapshot.table import SnapshotReader
from cdcd.snapshot.units import CopiedTable
from cdcd.source.catalog import Catalog
from cdcd.source.connection import connect_sql
from cdcd.source.identity import ServerIdentity
from cdcd.source.key_index import TableKeys
from cdcd.source.lock_watch import watched
from cdcd.source.settings import SourceSettings
from cdcd.source.slot import CreatedSlot, temporary_name
from cdcd.threads import in_thread

_LOG = structlog.stdlib.get_logger("cdcd.session")
_RULE_CHANGED = "the table's rule in snapshot.overrides has changed since its first rows were copied"
_NO_TEXT = "with source.protocol.binary, its key cannot be compared with those of the stream"
_NO_ORDER = "a row may have a null in its key, or its key has no unique index any more"
_UNUSED_HINT = (
    "no published table matches this pattern of snapshot.overrides: the pattern has to match all of "
    "SCHEMA.TABLE"
)


async def published_now(
    source: SourceSettings, catalog: Catalog, status: Status, policies: Policies = NO_RULES
) -> list[tuple[CopiedTable, Relation]]:
    """Return the published tables; the wait for a lock on one of them is shown."""
    with status.waits.watching("lock") as report:
        return await in_thread(tables_to_copy, source, catalog, policies, report)


class SnapshotHandover:
    """Creates the slot and copies. `stale`: tables rewritten during earlier snapshots, copied first (F81).

    `ended_gaps`: tables whose topics say by the end of a gap that this snapshot does not copy them.
    """

    def __init__(
        self,
        parts: SessionParts,
        stale: StaleTables,
        incomplete: IncompleteTables,
        ended_gaps: Collection[int] = (),
    ) -> None:
        config = parts.config
        self._source = config.source_settings()
        standby = config.standby_settings()
        self._standby = None if standby is None else Standby(standby, self._source, parts.status.waits)
        self._has_snapshot = config.snapshot.copies_tables
        self._is_only = config.snapshot.mode == "initial_only"
        self._has_metadata = config.format.transactions
        self._policies = config.format.policies()
        self._workers = config.snapshot.workers
        self._selection = config.snapshot.selection()
        self._is_binary_stream = config.source.protocol.binary
        self._clients = parts.clients
        self._plans = parts.plans
        self._writer = parts.writer
        self._new_context = parts.new_context
        self._status = parts.status
        self._stale = stale
        self._incomplete = incomplete
        self._ended_gaps = ended_gaps
        self._signals_at = -1
        self.copied: set[int] = set()
        """The tables that this attempt copies."""

    async def run(
        self, begin: Snapshot, server: ServerIdentity, before_us: int, signals_at: int = -1
    ) -> Resume | None:
        """Create the slot and copy; return where the stream begins, None if no stream follows.

        `before_us`: a time before the slot existed. `signals_at`: the offset of the first signal that the stream's
        session executes, -1 if it is not known.
        """
        self._status.copies()
        self._signals_at = -1 if self._is_only else signals_at
        if begin.left is None:
            resume = await self._all(begin, server, before_us)
        else:
            resume = await self._left(begin, begin.left, server)
        if not self._is_only:
            return resume
        await in_thread(drop_slot_if_any, self._source, server)
        return None

    async def _all(self, begin: Snapshot, server: ServerIdentity, before_us: int) -> Resume:
        if self._has_snapshot and self._standby is not None:
            await self._standby.ready(server)
        # First the record that a snapshot has begun: after a crash from here on, the slot is known to be ours.
        since_us = self._status.lag.complete_us or before_us
        marker = CommitPosition(begin.commit_lsn, begin.end_lsn, since_us, 0, "snapshot", begin.begun_topics)
        await self._writer.mark(replace(marker, signals_at=self._signals_at))
        hit("snapshot_begun")
        created = await self._create_slot(self._source, server, begin.drop_slot)
        point = created.consistent_point
        copy: CopyState | None = None
        try:
            self._writer.slot_created(point)
            hit("slot_made")
            if not self._has_snapshot:
                if self._signals_at >= 0:
                    copy = CopyState(signals_at=self._signals_at)
                nothing = CommitPosition(point - 1, point, before_us, transactions=0, copy=copy)
                await self._writer.add(RecordChunk((), 0, nothing))
            else:
                exported = await self._exported(created, server, point)
                with contextlib.closing(exported):
                    progress = CopyProgress(
                        point_lsn=exported.point_lsn,
                        stream_lsn=point,
                        written_commit_lsn=begin.commit_lsn,
                        since_us=since_us,
                        before_us=before_us,
                        begun_topics=begin.begun_topics,
                        signals_at=self._signals_at,
                    )
                    await self._copy(exported, server, progress, None)
                copy = progress.done().copy
            await self._end(point)
        finally:
            created.close()
        # PostgreSQL created the slot when no earlier transaction was open or prepared any more (F38).
        return Resume(point, point - 1, PreparedBefore(), copy)

    async def _exported(
        self, created: CreatedSlot | None, server: ServerIdentity, not_before: Lsn
    ) -> ExportedSnapshot:
        """Return the snapshot to copy: of a slot of the primary, or a later one of the standby."""
        if self._standby is not None:
            return await self._standby.export(server, not_before)
        if created is None:
            temporary = replace(
                self._source, slot=temporary_name(self._source.slot), failover=False, two_phase=False
            )
            created = await self._create_slot(temporary, server, drop_first=False, is_temporary=True)
        return of_primary(created, self._source)

    async def _left(self, begin: Snapshot, left: CopyLeft, server: ServerIdentity) -> Resume:
        """Copy what an interrupted snapshot has left.

        Of a table with complete ranges, an incremental snapshot copies the others, while the stream runs. It reads
        the primary, so with a standby the table is copied again completely.
        """
        later = await self._continued(left.state)
        if later:
            _LOG.info("snapshot_continues_while_streaming", tables=len(later))
        for relid in later:  # readers had none of its other rows, whatever ends this copy
            self._incomplete.lacks_rows(relid, left.state.tables[relid].topic)
        again = await self._included_again(left.state)
        anew = left.state.incomplete.union(again).difference(later)
        if anew:
            return await self._rest(begin, left, server, anew, later)
        return await self._nothing(begin, left, later)

    async def _continued(self, state: CopyState) -> tuple[int, ...]:
        """Return the tables that an incremental snapshot continues. Others are copied again, if wanted."""
        if self._is_only or self._standby is not None or not state.tables:
            return ()
        published = await in_thread(tables_to_continue, self._source, tuple(state.tables))
        by_rules = self._selection.continued(state.tables, published)
        obstacles = await in_thread(self._obstacles, by_rules)
        for table in published:
            reason = obstacles.get(table.relid, _RULE_CHANGED)
            if reason and self._selection.choice(table.title).is_included:
                _LOG.warning("table_copied_again", table=table.title, reason=reason)
        return tuple(relid for relid, reason in obstacles.items() if not reason)

    def _obstacles(self, tables: Iterable[CopiedTable]) -> dict[int, str]:
        """Return why each table cannot be read by its key, "" if it can (blocking). Raises Source errors.

        The attempt that has begun the copy may have had another format, and the table another key.
        """
        return {table.relid: self._obstacle(table) for table in tables}

    def _obstacle(self, table: CopiedTable) -> str:
        catalog = self._clients.catalog
        relation, keys = catalog.relation(table.relid), catalog.keys(table.relid) or TableKeys()
        if not keys.is_order(keys.enforced(relation.identity)):
            return _NO_ORDER
        policy = self._policies.table(table.title)
        return "" if not self._is_binary_stream or may_have_text(relation, keys, policy) else _NO_TEXT

    async def _included_again(self, state: CopyState) -> frozenset[int]:
        """Return the tables that earlier attempts have excluded or abandoned, and that are to be copied now."""
        relids = (*state.partial, *state.excluded)
        if not relids:
            return frozenset()
        published = await in_thread(tables_to_continue, self._source, relids)
        return frozenset(table.relid for table in self._selection.choose(published))

    async def _rest(
        self,
        begin: Snapshot,
        left: CopyLeft,
        server: ServerIdentity,
        anew: frozenset[int],
        later: tuple[int, ...],
    ) -> Resume:
        """Copy tables in the snapshot of a temporary slot."""
        exported = await self._exported(None, server, left.stream_lsn)
        with contextlib.closing(exported):
            hit("slot_made")
            progress = _progress_of(begin, left, exported.point_lsn, later, self._signals_at)
            await self._copy(exported, server, progress, anew, left.state)
            await self._end(exported.point_lsn)
        return _resume(left, progress)

    async def _nothing(self, begin: Snapshot, left: CopyLeft, later: tuple[int, ...]) -> Resume:
        """Begin the stream after a snapshot that was interrupted when no table was left to copy before."""
        point = left.state.point_lsn
        progress = _progress_of(begin, left, point, later, self._signals_at)
        progress.to_copy(())
        progress.tx_seq = left.state.tx_seq
        if not self._is_only:
            await self._writer.add(RecordChunk((), 0, progress.done()))
        await self._end(point)
        return _resume(left, progress)

    async def _create_slot(
        self,
        settings: SourceSettings,
        server: ServerIdentity,
        drop_first: bool,
        is_temporary: bool = False,
    ) -> CreatedSlot:
        waiting = self._status.waits.watching("slot_creation", f"slot {settings.slot}", is_waiting=True)
        with waiting as report:
            has_snapshot = self._has_snapshot and self._standby is None
            return await create_slot_in_thread(
                settings, server, drop_first, has_snapshot, report, is_temporary
            )

    def _chosen(self, tables: list[tuple[CopiedTable, Relation]]) -> list[tuple[CopiedTable, Relation]]:
        """Return the tables that the configuration includes, with their conditions and columns."""
        published = [table for table, _ in tables]
        for pattern in self._selection.unused_patterns(published):
            _LOG.warning("snapshot_override_unused", table=pattern, hint=_UNUSED_HINT)
        relations = {relation.relid: relation for _, relation in tables}
        return [(table, relations[table.relid]) for table in self._selection.choose(published)]

    def _rank(self, table: CopiedTable, pages: int) -> tuple[bool, int, int]:
        """Return a table's place in the order of the copy: stale tables first (F81)."""
        return (not self._stale.is_met(table.title), *self._selection.rank(table, pages))

    async def _end(self, point: Lsn) -> None:
        await self._writer.flush()
        hit("snapshot_copied")
        _LOG.info("snapshot_completed", consistent_point=format_lsn(point))

    async def _copy(
        self,
        exported: ExportedSnapshot,
        server: ServerIdentity,
        progress: CopyProgress,
        only: frozenset[int] | None,
        before: CopyState | None = None,
    ) -> None:
        """Copy the published tables, or only those with these relids. `before`: what an earlier attempt has left."""
        published = await published_now(self._source, self._clients.catalog, self._status, self._policies)
        if self._standby is not None:
            await self._standby.knows_tables(exported, server)
        point = exported.point_lsn
        tables = [table for table in self._chosen(published) if only is None or table[0].relid in only]
        tables = await in_thread(in_best_format, tables, self._clients.catalog, self._policies)
        tables = [
            (with_continuation(table, relation, is_binary_stream=self._is_binary_stream), relation)
            for table, relation in tables
        ]
        relids = {table.relid for table, _ in tables}
        excluded = {table.relid for table, _ in published} - relids if only is None else ()
        progress.to_copy(relids, excluded)
        self._incomplete.copied_now(relids)
        given_up = (only or frozenset()) - relids
        identities = self._clients.topics.identities
        with_records = frozenset(() if identities is None else identities.with_records())
        await give_up(self._source, given_up, progress, before or CopyState(), with_records, self._incomplete)
        left_out = [table for table, _ in published if table.relid in excluded]
        not_marked = [table for table in left_out if table.relid not in self._ended_gaps]
        leave_out(not_marked, progress, with_records, self._incomplete)
        self.copied |= relids
        new_reader = partial(
            SnapshotReader,
            exported.connect,
            exported.translate,
            exported.snapshot_name,
            partial(self._lock_watch, exported.settings),
            is_standby=exported.is_standby,
        )
        reader = await in_thread(new_reader)
        workers: CopyWorkers | None = None
        try:
            copied, now = [table for table, _ in tables], partial(connect_sql, self._source)
            await in_thread(reader.check_publications, self._source.publications, copied, now)
            planned = await in_thread(reader.units, copied, self._rank)
            workers = CopyWorkers(reader, new_reader, planned, point, self._workers)
            snapshotter = Snapshotter(
                self._plans,
                self._writer.add,
                self._new_context,
                self._status,
                progress,
                point_lsn=point,
                mark_first=None if self._clients.is_exactly_once else self._writer.mark,
                has_metadata=self._has_metadata,
            )
            counts = {"tables": len(tables), "units": len(planned.units), "workers": workers.count}
            read_from = "standby" if exported.is_standby else "primary"
            _LOG.info("snapshot_started", read_from=read_from, **counts)
            self._status.reads_from(read_from)
            failure = await snapshotter.run(tables, workers)
            if failure is None and not self._is_only:
                await self._writer.add(RecordChunk((), 0, progress.done()))
                return
            await self._writer.flush()
            await self._writer.mark(progress.so_far())  # the last table is complete, too
            if failure is not None:
                raise failure  # the next attempt copies only the others
        finally:
            if workers is None:
                reader.close()
            else:
                await workers.close()

    @contextlib.contextmanager
    def _lock_watch(self, settings: SourceSettings, connection: Any) -> Iterator[None]:
        with (
            self._status.waits.watching("lock") as report,
            watched(settings, connection, report),
        ):
            yield


def _progress_of(
    begin: Snapshot, left: CopyLeft, point: Lsn, later: Iterable[int] = (), signals_at: int = -1
) -> CopyProgress:
    return CopyProgress(
        point_lsn=point,
        stream_lsn=left.stream_lsn,
        written_commit_lsn=begin.commit_lsn,
        since_us=left.since_us,
        before_us=left.since_us,
        begun_topics=begin.begun_topics,
        before=left.state,
        later=later,
        signals_at=signals_at,
    )


def _resume(left: CopyLeft, progress: CopyProgress) -> Resume:
    return Resume(left.stream_lsn, left.stream_lsn - 1, PreparedBefore(), progress.done().copy)
