"""Copy one table chunk by chunk while the stream runs.

In: a watched table, a reader's connection, the emitter.  Out: rows between the stream's transactions; returns when
the table is complete, paused, or not copied any more.
Invariant: each chunk is read in a snapshot that `TableCopy` allows, and is read again if it was refused. A chunk of
many rows is written in slices, so that the stream waits for one slice at most.
Must not: confirm, or remember anything that the progress record does not have.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

import structlog

from cdcd.avro.plan import RelationPlan
from cdcd.errors import CdcdError, SnapshotStale
from cdcd.failpoints import hit
from cdcd.model import KeyValues, RowBatch, TableCopyState
from cdcd.pipeline.chunk_emitter import ChunkEmitter, Slice
from cdcd.pipeline.table_copies import KEYS_PER_CHUNK, TableCopies, WatchedTable
from cdcd.session.comparison import Comparison, TopicKeys, check_comparable
from cdcd.snapshot.chunk_pace import ChunkPace
from cdcd.snapshot.chunk_reader import MAX_CHUNK_BYTES, NO_PRIVILEGE, ChunkReader
from cdcd.snapshot.chunk_values import NO_ROWS, ChunkSnapshot, Description, ReadRows
from cdcd.snapshot.running_xids import RunningTransactions
from cdcd.snapshot.selection import has_columns
from cdcd.snapshot.table_copy import Chunk, KeysChunk, RangeChunk
from cdcd.snapshot.units import Blocks
from cdcd.threads import in_thread

_LOG = structlog.stdlib.get_logger("cdcd.snapshot")
RETRY_S = 0.1
_CHANGED = ("42", "XX000")
"""SQLSTATEs of an unknown table, column or type, and of one that was dropped by another session."""
_IS_BEHIND = "the stream has not yet received the changes committed before the table's definition was read"
FIRST_PAGES, MOST_PAGES = 64, 1024
"""Blocks of one chunk."""
STALE_TRIES = 20
"""Only a job that runs all the time rewrites a table this often."""
T = TypeVar("T")


class InThread(Protocol):
    """Runs a call in a thread; if the session ends, the connection is shut down and the thread awaited."""

    def __call__(self, function: Callable[..., T], *args: Any) -> Awaitable[T]: ...  # noqa: D102


class Report(Protocol):
    """Receives what /status shows of the table."""

    def described(self, relid: int, description: Description) -> None: ...  # noqa: D102
    def begin_attempt(self, relid: int, estimated_rows: int | None) -> None: ...  # noqa: D102
    def emitted(self, relid: int, rows: int) -> None: ...  # noqa: D102
    def waits(self, relid: int, reason: str | None) -> None: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class Parts:
    """What every table's copy of a session uses. `plan_of`: the plan for rows as they are described."""

    copies: TableCopies
    emitter: ChunkEmitter
    plan_of: Callable[[int], RelationPlan]
    in_thread: InThread
    report: Report
    before_chunk: Callable[[int, WatchedTable, ChunkReader], Awaitable[None]]
    topic_keys: TopicKeys


class ReadSlices(NamedTuple):
    """Rows, where the range of each slice ends, and where that of the last one does if all rows were read."""

    rows: ReadRows
    ends: list[KeyValues]
    end: KeyValues | None


async def describe_as_received(
    reader: ChunkReader, parts: Parts, relid: int, where: str | None, *, is_by_key: bool = True
) -> Description:
    """Return a table's description when the stream has received all earlier ones. Raises as `describe`."""
    described: Description | None = None
    while described is None:
        seen = await parts.in_thread(reader.look, relid)
        await parts.emitter.received(seen.end_lsn, lambda: parts.in_thread(reader.flush_wal))
        described = await parts.in_thread(reader.describe, relid, where, seen, is_by_key)
    return described


class TableCopier:
    """Copies one table in one session."""

    def __init__(
        self,
        relid: int,
        table: WatchedTable,
        reader: ChunkReader,
        parts: Parts,
        pace: ChunkPace,
        described: Description | None = None,
    ) -> None:
        """`described`: a description that is still right if the table has not changed since."""
        self._relid = relid
        self._table = table
        self._reader = reader
        self._parts = parts
        self._pace = pace
        self._described = described
        self._running: RunningTransactions | None = None
        self._stale = 0
        self._refusal: tuple[object, CdcdError] | None = None
        """The last error that a change of the table may explain, and the description that was used."""
        self._pages = FIRST_PAGES
        self._comparison: Comparison | None = None

    async def run(self) -> bool:
        """Copy; return whether the table is complete. Raises Source errors, Sink errors."""
        try:
            while self._is_wanted:
                if self._table.copy.next_chunk() is None and self._table.copy.state.compared_from is None:
                    return True
                try:
                    await self._step()
                except CdcdError as error:
                    self._describe_again(error)
            return False
        finally:
            self._end_comparison()

    async def _step(self) -> None:
        if self._described is None:
            await self._describe()
        if self._table.copy.state.compared_from == ():
            await self._note_ends()
        elif self._table.copy.next_chunk() is not None:
            await self._parts.before_chunk(self._relid, self._table, self._reader)
            await self._chunk()
        else:
            await self._compare()

    @property
    def described(self) -> Description | None:
        """The description that is used at the moment."""
        return self._described

    @property
    def _is_wanted(self) -> bool:
        is_watched = self._parts.copies.tables.get(self._relid) is self._table
        return is_watched and not self._table.copy.state.is_paused

    async def _describe(self) -> None:
        """Describe the table. Its copy begins again where the rows read so far are not the first ones any more."""
        state = self._table.copy.state
        self._parts.report.waits(self._relid, _IS_BEHIND)
        described = await describe_as_received(self._reader, self._parts, self._relid, state.where)
        self._parts.report.waits(self._relid, None)
        self._parts.report.described(self._relid, described)
        if self._refusal is not None and self._refusal[0] == described.versions:
            raise self._refusal[1]
        topic = self._parts.plan_of(self._relid).topic
        if (reason := _reason_to_restart(self._table.copy.state, described, topic)) is not None:
            self._restart(described, reason)
        state = self._table.copy.state
        if topic != state.topic:
            self._parts.copies.incomplete.moves(self._relid, topic)
        compared_from = (
            () if state.compared_from is not None and topic != state.topic else state.compared_from
        )
        self._table.copy.state = replace(
            state,
            topic=topic,
            partitions=described.partitions,
            key=described.order,
            compared_from=compared_from,
            columns=described.table.wanted,
            row_filter=described.table.filter_digest,
        )
        self._parts.copies.note_state()
        self._described = described

    def _restart(self, described: Description, reason: str) -> None:
        """Begin the copy again with the first row."""
        _LOG.warning("table_copied_again", table=described.table.title, reason=reason)
        self._table.copy.restart()
        self._parts.report.begin_attempt(self._relid, described.estimated_rows)

    async def _note_ends(self) -> None:
        """Note where the topic ends: each row of the table gets a later record, of the copy or of the stream."""
        self._end_comparison()  # of an earlier attempt
        plan, copy = self._parts.plan_of(self._relid), self._table.copy
        state = copy.state
        assert self._described is not None
        check_comparable(self._described.table, plan)
        await self._parts.emitter.flush()  # rows of an earlier attempt
        ends = await in_thread(self._parts.topic_keys.ends_of, plan)
        if copy.state.compared_from == () and copy.state.topic == state.topic == plan.topic:
            copy.state = replace(copy.state, compared_from=ends)
            self._parts.copies.note_state()
        else:
            self._described = None

    def _describe_again(self, error: CdcdError) -> None:
        """Describe the table again after an error that a change of the table explains. Raises other errors."""
        sqlstate = str(error.context.get("sqlstate") or "")
        if self._described is None or not sqlstate.startswith(_CHANGED) or sqlstate == NO_PRIVILEGE:
            raise error
        self._refusal = self._described.versions, error
        self._described = None

    async def _chunk(self) -> None:
        assert self._described is not None
        begun = await self._begin(self._described)
        if begun is None:
            return
        chunk = self._table.copy.next_chunk()
        if chunk is None:
            await self._parts.in_thread(self._reader.end)
            return
        hit("chunk_begun")
        self._parts.report.waits(self._relid, None)
        began_s = time.monotonic()
        is_by_blocks = isinstance(chunk, RangeChunk) and self._table.copy.state.is_by_blocks
        read = await (self._read_blocks if is_by_blocks else self._read)(chunk, begun, self._described)
        if read is None:
            return
        rows = sum(batch.count for batch, _ in read.rows.slices)
        self._pace.was_read(rows, time.monotonic() - began_s)
        await self._received(begun)
        if not await self._emit(chunk, begun, read):
            self._pace.was_refused()

    async def _received(self, begun: ChunkSnapshot) -> None:
        """Wait until the stream has received everything that was committed before a chunk's end."""
        await self._parts.emitter.received(
            begun.end_lsn, lambda: self._parts.in_thread(self._reader.flush_wal)
        )

    async def _read(self, chunk: Chunk, begun: ChunkSnapshot, described: Description) -> ReadSlices | None:
        """Read rows by key; None if they are too many, and have to be read in smaller chunks."""
        copy, is_by_keys = self._table.copy, isinstance(chunk, KeysChunk)
        is_smallest = is_by_keys and copy.keys_per_chunk == 1
        max_bytes = sys.maxsize if is_smallest else MAX_CHUNK_BYTES
        reading = partial(self._reader.read, max_bytes=max_bytes, pause_s=self._parts.emitter.pause_s)
        rows = await self._parts.in_thread(reading, described, chunk, self._pace.rows, begun.end_lsn)
        if not is_by_keys:
            return ReadSlices(rows, [key for _, key in rows.slices], None)
        if rows.is_cut:
            copy.keys_per_chunk = max(1, copy.keys_per_chunk // 2)
            return None
        if rows.size_bytes < MAX_CHUNK_BYTES // 4:
            copy.keys_per_chunk = min(KEYS_PER_CHUNK, copy.keys_per_chunk * 2)
        return ReadSlices(_joined(rows), [()], None)

    async def _read_blocks(
        self, _chunk: Chunk, begun: ChunkSnapshot, described: Description
    ) -> ReadSlices | None:
        """Read rows by blocks; None if they are too many, or if the file was replaced.

        A partition that was detached since has no rows of the table; other ones may have their keys by now.
        """
        before = self._table.copy.state.after or ()
        blocks, *others = (Blocks.parse(text) for text in before)
        if blocks.leaf and not described.has_partition(blocks.leaf):
            await self._parts.in_thread(self._reader.end)
            left = tuple(one.text for one in others if one.leaf != blocks.leaf)
            return ReadSlices(NO_ROWS, [], left or None)
        piece = await self._parts.in_thread(self._reader.piece_of, described, blocks, self._pages)
        if piece is None:
            await self._parts.in_thread(self._reader.end)
            self._restart(described, "the table's file was replaced")
            self._parts.copies.note_state()
            return None
        max_bytes = sys.maxsize if self._pages == 1 else MAX_CHUNK_BYTES
        reading = partial(self._reader.read_blocks, max_bytes=max_bytes, pause_s=self._parts.emitter.pause_s)
        began_s = time.monotonic()
        rows = await self._parts.in_thread(reading, described, piece, begun.end_lsn)
        is_long = self._pace.is_over(time.monotonic() - began_s)
        if rows.is_cut or is_long:
            self._pages = max(1, self._pages // 2)
        elif rows.size_bytes < MAX_CHUNK_BYTES // 4:
            self._pages = min(MOST_PAGES, self._pages * 2)
        if rows.is_cut:
            return None
        left = tuple(one.text for one in (piece.rest, *others) if one is not None)
        # The range counts as read with its last slice.
        return ReadSlices(rows, [before] * len(rows.slices), left or None)

    async def _begin(self, described: Description) -> ChunkSnapshot | None:
        """Begin a chunk's transaction; None if its snapshot cannot be used, and after a short wait another may."""
        if self._running is None:
            # The table is watched already; these transactions may have committed before (F36).
            self._running = RunningTransactions(await self._parts.in_thread(self._reader.running))
            self._table.copy.changed.refuse_until_visible(self._running.xids)
        self._table.described = None
        try:
            begun = await self._parts.in_thread(self._reader.begin, described)
        except SnapshotStale as error:
            self._stale += 1
            if self._stale >= STALE_TRIES:
                raise
            self._parts.report.waits(self._relid, error.message)
            self._described = None
            await asyncio.sleep(RETRY_S)
            return None
        if begun is None:
            self._described = None
            return None
        self._stale = 0
        if not self._table.copy.may_read(begun.snapshot):
            await self._not_yet(self._running)
            return None
        return begun

    async def _not_yet(self, running: RunningTransactions) -> None:
        await self._parts.in_thread(self._reader.end)
        rows = await self._parts.in_thread(self._reader.running)
        self._table.copy.changed.settle(running.settled(rows))
        self._parts.report.waits(self._relid, running.reason)
        await asyncio.sleep(RETRY_S)

    async def _emit(self, chunk: Chunk, begun: ChunkSnapshot, read: ReadSlices) -> bool:
        """Write the rows that were read; return False if some of them have to be read again."""
        plan = self._parts.plan_of(self._relid)
        if self._described is None or plan.relation.columns != self._described.relation.columns:
            return False  # a command has described the table since, with other columns
        slices: list[RowBatch | None] = [batch for batch, _ in read.rows.slices]
        ends: list[KeyValues | None] = list(read.ends)
        if read.rows.is_last or read.end is not None:
            slices, ends = slices or [None], ends or [None]
            ends[-1] = read.end
        current: Chunk | None = chunk
        for batch, after in zip(slices, ends, strict=True):
            if current is None or not self._is_wanted:
                return False
            one = Slice(current, begun.snapshot, begun.end_lsn, batch, after)
            rows = await self._parts.emitter.emit(self._table, plan, one)
            if rows is None:
                return False
            self._parts.report.emitted(self._relid, rows)
            hit("chunk_emitted")
            current = self._table.copy.next_in_range(after) if after is not None else None
        return True

    # --- after the last row ---

    def _end_comparison(self) -> None:
        if self._comparison is not None:
            self._comparison.end()
            self._comparison = None

    async def _compare(self) -> None:
        """Look up some of the keys that only the topic may have, and delete those that the table does not have."""
        state, plan = self._table.copy.state, self._parts.plan_of(self._relid)
        assert self._described is not None
        assert state.compared_from is not None
        if plan.topic != state.topic:
            self._described = None  # a command has described the table since
            return
        if self._comparison is not None and not self._comparison.is_of(plan, state.compared_from):
            self._end_comparison()
        if self._comparison is None:
            self._parts.report.waits(self._relid, "the keys in the topic are read")
            self._comparison = Comparison(self._parts.topic_keys, plan, state.compared_from)
        comparison = self._comparison
        if not await comparison.read(self._parts.emitter.give_way):
            return
        keys = await comparison.next_keys(self._table.copy.keys_per_chunk)
        copy = self._table.copy
        if copy.next_chunk() is not None or copy.state.compared_from != state.compared_from:
            return  # the stream has begun the copy again
        if not keys:
            copy.state = replace(copy.state, compared_from=None)
            self._parts.copies.note_state()
            _LOG.info("stale_rows_deleted", table=plan.table, rows=comparison.deleted)
            return
        await self._parts.before_chunk(self._relid, self._table, self._reader)
        self._parts.report.waits(self._relid, "keys of the topic are looked up in the table")
        if (begun := await self._begin(self._described)) is None:
            return
        read = await self._read(KeysChunk(keys), begun, self._described)
        if read is None:
            return
        await self._received(begun)
        plan = self._parts.plan_of(self._relid)
        is_same = comparison.is_of(plan, state.compared_from)
        if plan.relation.columns != self._described.relation.columns or not is_same:
            self._described = None  # a command has described the table since
            return
        batch = read.rows.slices[0][0] if read.rows.slices else None
        one = Slice(KeysChunk(keys), begun.snapshot, begun.end_lsn, batch, None)
        deleted = await self._parts.emitter.compare(self._table, plan, keys, one)
        if deleted is not None:
            comparison.done(deleted)
            hit("stale_rows_deleted")


def _reason_to_restart(state: TableCopyState, described: Description, topic: str) -> str | None:
    """Return why the rows up to the copy's position are not all rows that readers need, None if they are."""
    if state.after is None and not state.is_scanned and not state.read_again:
        return None
    if topic != state.topic:
        return "the table's topic has changed"
    if state.key not in ((), described.order):
        return "the table's key was changed"
    if not has_columns(described.table, state.columns):
        return "the columns of the table's rule in snapshot.overrides were changed"
    if state.row_filter != described.table.filter_digest:
        return "the publication's row filter was changed"
    # Rows of an attached partition are in no change of the stream, and may be in the part that is read.
    attached = set(described.partitions) - set(state.partitions) - described.empty_partitions
    return "a partition was attached" if attached else None


def _joined(read: ReadRows) -> ReadRows:
    """Return the rows as one slice: they are written at once."""
    batches = [batch for batch, _ in read.slices]
    if not batches:
        return read
    batch = RowBatch(b"".join(one.frames for one in batches), sum(one.count for one in batches))
    return read._replace(slices=[(batch, ())])
