"""The state of the daemon: health for the probes, counts for the metrics, the page /status.

In: reports of the session's parts, per batch and per group.  Out: `HealthState`, metrics, the /status mapping.
Invariant: nothing here decides anything about the flow; names, numbers and LSNs only, never a row value. An unknown
value is absent or null, never 0.
Must not: query a server, block.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import structlog

from cdcd.ack.group import CommitPosition
from cdcd.avro.encode import EncodedTransactions, take_fallback_counts
from cdcd.errors import CdcdError
from cdcd.lsn import INVALID_LSN, Lsn, format_lsn
from cdcd.model import Item, Keepalive, Progress, RowBatch
from cdcd.monitoring.copy_status import CopyStatus
from cdcd.monitoring.lag import LagTracker, ServerTimeline, WalEnd
from cdcd.monitoring.prepared_status import PreparedStatus
from cdcd.monitoring.source_server import SourceServer
from cdcd.monitoring.waits import WaitEntry, Waits
from cdcd.monitoring.wal_levels import GuardVerdict
from cdcd.ops.durable_waits import DurableWaits
from cdcd.ops.health import HealthState
from cdcd.ops.metrics import Metrics, SlotReading
from cdcd.snapshot.control import TableReport
from cdcd.source.identity import ServerIdentity
from cdcd.source.settings import StreamOptions
from cdcd.spill.pool import Usage
from cdcd.txn.open_transactions import OldestPrepared
from cdcd.version import __version__
from cdcd.waits import WaitKind

_LOG = structlog.get_logger(__name__)
_WAITS_BY_CAUSE: dict[str, WaitKind] = {"producer": "back_pressure", "spill": "disk"}
_WORKING = ("streaming", "snapshot", "halted", "stopping")
_OPERATIONS = {ord("I"): "insert", ord("U"): "update", ord("D"): "delete"}


class Waiting(Protocol):
    """A session's writer, whose waiting bytes are read when they are shown."""

    @property
    def waiting_bytes(self) -> int: ...  # noqa: D102


class Status:
    """The state of the daemon; one for the process, updated by each session in turn."""

    def __init__(self, metrics: Metrics, *, name: str, slot: str, lag: LagTracker | None = None) -> None:
        self.metrics = metrics
        self.lag = LagTracker() if lag is None else lag
        self._oldest_prepared = PreparedStatus(metrics, self.lag.now_us)
        self.health = HealthState()
        self.source = SourceServer()
        self._name = name
        self._slot = slot
        self._started_s = time.monotonic()
        self._tables: dict[int, str] = {}
        self._confirmed_lsn: Lsn = INVALID_LSN
        self._confirmed_on: ServerTimeline | None = None
        self._server_version: int | None = None
        self._protocol_version: int | None = None
        self._streaming: str | None = None
        self._durable: CommitPosition | Progress | None = None
        self.durable_waits = DurableWaits()
        self._rows = 0
        self._transactions = 0
        self._dead_letters = 0
        self._writer: Waiting | None = None
        self._usage: Usage | None = None
        self._sent: Callable[[], int] | None = None
        self._counted_sent = 0
        self._sample: tuple[SlotReading, WalEnd] | None = None
        self._snapshot_left: int | None = None
        self._copy: CopyStatus | None = None
        self._incremental: Callable[[], list[dict[str, Any]]] | None = None
        self._incomplete: Callable[[], list[dict[str, str]]] | None = None
        self._new_snapshot: str | None = None
        self._snapshot_started_s = 0.0
        self._reads_from = "primary"
        self._last_error = ""
        self._guarded: GuardVerdict | None = None
        self._pressure: WaitEntry | None = None
        self.waits = Waits()
        metrics.waits.waits = self.waits.shown
        metrics.estimates.estimates = self._estimates
        self.own_pids: set[int] = set()
        """The backend pids with which this daemon holds the slot or the start lock."""
        self.is_slot_anothers: bool | None = None
        """Whether the last start found that the slot belongs to another daemon; None: not checked yet."""
        self.may_begin = asyncio.Event()
        """Cleared while the WAL guard is about to drop the slot; until then no session begins."""
        self.may_begin.set()
        metrics.state("starting")
        metrics.lag(self.lag_s)
        metrics.buffers(
            buffered_bytes=self._buffered_bytes,
            spilled_bytes=lambda: None if self._usage is None else self._usage.disk_bytes,
            limit_bytes=lambda: None if self._usage is None else self._usage.disk_limit_bytes,
            files=lambda: None if self._usage is None else self._usage.files,
        )

    # --- state ---

    def state(self, name: str, error: CdcdError | None = None) -> None:
        """Set the pipeline's state, with the `error` that caused it, if any."""
        self.health = replace(
            self.health,
            state=name,
            reason=str(error) if error is not None else "",
            backoff_since_s=(self.health.backoff_since_s or time.monotonic()) if name == "backoff" else None,
            was_ready=self.health.was_ready or name in ("streaming", "snapshot"),
        )
        if name in _WORKING:
            self.waits.stop_retrying()
        if error is not None:
            self._last_error = str(error)
        self.metrics.state(name, halted_code=error.code if name == "halted" and error is not None else None)

    def loop_turned(self) -> None:
        """Note that the event loop is alive."""
        self.health = replace(self.health, last_turn_s=time.monotonic())
        self.metrics.turned()

    def failed(self, error: CdcdError) -> None:
        """Count a session that ended by an error."""
        self.metrics.failed(type(error))

    def sink_opened(self) -> None:
        """Note that the producer is open."""
        self.health = replace(self.health, is_sink_open=True)
        self.metrics.sink_connected(True)

    def sink_closed(self) -> None:
        """Note that the producer is closed."""
        self.health = replace(self.health, is_sink_open=False)
        self.metrics.sink_connected(False)

    def progress(self, stored: Progress) -> None:
        """Take the durable position from the progress record."""
        self._durable = stored
        identity = stored.identity
        of = ServerTimeline(identity.system_identifier, identity.timeline)
        self.source.stored(of)
        if stored.phase != "streaming":
            self.lag.copied_before(stored.commit_us)
        if stored.phase != "streaming" or stored.commit_us <= 0:
            return
        self.lag.recorded(of, stored.end_lsn, stored.commit_us)
        # The record of a completed snapshot has the time of the snapshot: no transaction has followed it yet.
        if stored.commit_lsn >= identity.slot_lsn:
            self.metrics.last_commit(stored.commit_us)

    def streaming(
        self,
        server: ServerIdentity,
        options: StreamOptions,
        start_lsn: Lsn,
        durable_us: int,
        sent: Callable[[], int],
    ) -> None:
        """Note that the replication stream is open.

        `durable_us`: commit time of the last durable transaction (Unix epoch), 0: unknown. `sent` returns the number
        of status updates sent over the stream.
        """
        self._server_version = server.version_num
        self._protocol_version = options.protocol_version
        self._streaming = options.streaming
        self._oldest_prepared.is_seen = options.two_phase
        self._sent, self._counted_sent = sent, 0
        self.health = replace(self.health, is_source_streaming=True)
        self.metrics.source_connected(True)
        self.metrics.open_transactions(0)
        self._left_to_copy(0)
        is_copied = self._durable is not None and self._durable.phase == "streaming"
        durable_lsn = start_lsn if is_copied else None
        self.durable_waits.begins_at(durable_lsn, server.system_identifier, server.timeline)
        self.lag.streams(ServerTimeline(server.system_identifier, server.timeline), start_lsn, durable_us)
        self.state("streaming")

    def source_closed(self) -> None:
        """Note that the replication stream is closed."""
        self._count_sent()
        self._sent = None
        self.durable_waits.ends()
        self.health = replace(self.health, is_source_streaming=False)
        self.metrics.source_connected(False)
        self.metrics.open_transactions(None)
        self._oldest_prepared.forget()

    # --- the flow, per batch ---

    def turned(
        self,
        items: list[Item],
        open_transactions: int,
        *,
        oldest_prepared: OldestPrepared | None = None,
        may_be_lost: int = 0,
    ) -> None:
        """Note the end of a batch, with the number of open transactions and the oldest prepared one.

        `may_be_lost`: the number of transactions prepared before cdcd owned the slot, whose rows may never come.
        """
        last = items[-1]
        if isinstance(last, Keepalive):
            self.lag.received(last.wal_end_lsn)
        self.lag.turned()
        self.metrics.open_transactions(open_transactions)
        self.metrics.in_python(*take_fallback_counts())
        self._oldest_prepared.show(oldest_prepared, may_be_lost)
        self.loop_turned()

    def relation(self, relid: int, table: str) -> None:
        """Note a table that will be streamed."""
        self._tables[relid] = table
        self.metrics.table_known(table)

    def received(self, size_bytes: int) -> None:
        """Count bytes received from the stream."""
        self.metrics.received(size_bytes)

    def rows_encoded(self, operations: Mapping[tuple[int, int], int]) -> None:
        """Count the rows of an encoded batch, by (relid, type byte)."""
        counts: Counter[tuple[str, str]] = Counter()
        for (relid, kind), count in operations.items():
            counts[self._tables[relid], _OPERATIONS[kind]] += count
        self.metrics.events(counts)

    def truncated(self, table: str) -> None:
        """Count a truncated table."""
        self.metrics.events({(table, "truncate"): 1})

    def began(self, commit_us: int) -> None:
        """Note a received transaction that is not durable yet."""
        self.lag.began(commit_us)

    def ended(self, end_lsn: Lsn, *, is_empty: bool) -> None:
        """Count a complete transaction."""
        self.lag.ended(end_lsn, is_empty=is_empty)
        self.metrics.transactions(committed=int(not is_empty), empty=int(is_empty))

    def whole(self, encoded: EncodedTransactions) -> None:
        """Count the complete transactions of a batch."""
        self.lag.began(encoded.first_us)
        if encoded.operations:
            self.rows_encoded(encoded.operations)
        self.lag.ended(encoded.end_lsn, encoded.last_us, is_empty=not encoded.with_rows)
        self.metrics.transactions(committed=encoded.with_rows, empty=encoded.empty)

    def aborted(self, count: int) -> None:
        """Count transactions that were rolled back after something of them was received."""
        self.metrics.transactions(aborted=count)

    def duplicates(self, count: int) -> None:
        """Count transactions that were written already and were dropped (F4)."""
        self.metrics.duplicates_suppressed(count)

    # --- the writer, per group ---

    def committed(
        self,
        commit_position: CommitPosition,
        *,
        rows: int,
        transactions: int,
        seconds: float,
        unseen: Mapping[str, Mapping[int, int]],
    ) -> None:
        """Count a durable group."""
        self._durable = commit_position
        self.durable_waits.written(unseen)
        self._rows += rows
        self._transactions += transactions
        commit_us = commit_position.commit_us if transactions else None
        # A position without transactions, or a part, has the commit time of the transaction before it.
        durable_lsn = max(commit_position.end_lsn, commit_position.covered_lsn)
        self.lag.durable(durable_lsn, commit_us)
        self.at_rest(commit_position)
        latency_s = None if commit_us is None or not rows else (self.lag.now_us() - commit_us) / 1e6
        self.metrics.group_committed(duration_s=seconds, commit_us=commit_us, latency_s=latency_s)

    def at_rest(self, commit_position: CommitPosition) -> None:
        """Answer those who wait for a position before which all is durable."""
        if commit_position.phase == "streaming":
            self.durable_waits.advanced(max(commit_position.end_lsn, commit_position.covered_lsn))

    def given_up(self) -> None:
        """Count an aborted group."""
        self.metrics.group_aborted()

    def epoch_renewed(self, renewal_reason: str, seconds: float) -> None:
        """Count a new producer epoch: a request of the last group might still have arrived (F77)."""
        self.metrics.producer_rebuilt("late_request")
        _LOG.warning("producer_epoch_renewed", reason=renewal_reason, seconds=round(seconds, 3))

    def dead_letter(self, table: str) -> None:
        """Count a row that is too large for Kafka and is in the topic of dead letters."""
        self._dead_letters += 1
        self.metrics.dead_letter(table)

    def waiting(self, size_bytes: int, *, is_blocked: bool) -> None:
        """Show whether encoded bytes block reading until the producer accepts them."""
        self._blocked(is_blocked, "producer")

    def writing(self, writer: Waiting | None) -> None:
        """Set the session's writer, whose waiting bytes are shown; None when it is closed."""
        self._writer = writer
        self.durable_waits.forget_written()

    def _buffered_bytes(self) -> int | None:
        if self._usage is None:
            return None
        return self._usage.memory_bytes + (0 if self._writer is None else self._writer.waiting_bytes)

    def _blocked(self, is_blocked: bool, cause: str) -> None:
        self.metrics.backpressure(is_blocked, cause)
        self.waits.end(self._pressure)
        self._pressure = self.waits.begin(_WAITS_BY_CAUSE[cause]) if is_blocked else None
        if self.health.state in ("streaming", "backpressure"):
            self.state("backpressure" if is_blocked else "streaming")

    # --- open transactions ---

    def spill(self, usage: Usage) -> None:
        """Set the memory and disk usage of a session's open transactions; its pool updates the object."""
        self._usage = usage

    def spilled(self, *, transactions: int, size_bytes: int) -> None:
        """Count bytes spilled to disk, and transactions spilled for the first time."""
        self.metrics.spilled(transactions=transactions, size_bytes=size_bytes)

    def waiting_for_disk(self, is_blocked: bool) -> None:
        """Show whether reading is stopped because there is no space for open transactions."""
        self._blocked(is_blocked, "spill")

    def confirmed(self, lsn: Lsn) -> None:
        """Note that `lsn` was confirmed to PostgreSQL."""
        self._confirmed_lsn, self._confirmed_on = lsn, self.source.session

    def _count_sent(self) -> None:
        if self._sent is not None:
            sent = self._sent()
            self.metrics.status_updates(sent - self._counted_sent)
            self._counted_sent = sent

    def registry_request(self, operation: str, code: str) -> None:
        """Count an answer of the registry."""
        self.metrics.registry_request(operation, code)

    def wal_guard(self, verdict: GuardVerdict | None) -> None:
        """Set the verdict of the WAL guard; None while PostgreSQL cannot be queried."""
        self._guarded = verdict
        self.metrics.source.guard_level(None if verdict is None else int(verdict.level))

    @property
    def confirmed_lsn(self) -> Lsn:
        """The LSN last confirmed to PostgreSQL."""
        return self._confirmed_lsn

    def slot(self, reading: SlotReading | None, end: WalEnd | None = None) -> None:
        """Set a sample of the slot and of the server's WAL end; None if they could not be read."""
        if end is not None:
            self.lag.add_sample(end)
        self.metrics.slot(reading)
        self._sample = None if reading is None or end is None else (reading, end)
        if self._copy is not None and reading is not None:
            self._copy.sampled(time.monotonic(), reading.retained_wal_bytes, reading.safe_wal_bytes)
        self._show_positions()

    def _show_positions(self) -> None:
        """Show how many bytes of the last sample's WAL are not confirmed, and not received, by now."""
        if self._sample is None:
            return
        reading, end = self._sample
        if not self.lag.is_of(end.of):  # the LSNs of another server or timeline are no distance
            self.metrics.positions_unknown()
            return
        # A process that has just started has confirmed nothing itself.
        own_lsn = self._confirmed_lsn if self._confirmed_on in (None, end.of) else INVALID_LSN
        confirmed_lsn = max(own_lsn, reading.confirmed_flush_lsn or 0)
        if confirmed_lsn > INVALID_LSN:
            received_lsn = max(self.lag.received_lsn, confirmed_lsn)
            self.metrics.positions(server_lsn=end.lsn, received_lsn=received_lsn, confirmed_lsn=confirmed_lsn)

    # --- the snapshot ---

    def copies(self) -> None:
        """Note that a slot will be created and the tables copied."""
        self.state("snapshot")
        self.lag.copies()
        self._left_to_copy(None)

    def _left_to_copy(self, tables: int | None) -> None:
        self._snapshot_left = tables
        self.metrics.snapshot_remaining(tables)

    def new_snapshot(self, reason: str, why: str) -> None:
        """Note that cdcd takes a new snapshot by itself, for this reason."""
        self._new_snapshot = why
        self.metrics.new_snapshot(reason)

    def snapshot_started(self, estimates: Mapping[str, int | None]) -> None:
        """Note that a snapshot of these tables begins, each with its estimated rows; None: not known."""
        self._snapshot_left = len(estimates)
        self._snapshot_started_s = time.monotonic()
        self._copy = CopyStatus(self._snapshot_started_s, estimates)
        self.metrics.snapshot_started(len(estimates))

    def snapshot_chunks(self, remaining: int) -> None:
        """Note how many chunks of the tables are not read yet."""
        self.metrics.snapshot_chunks(remaining)

    def reads_from(self, server: str) -> None:
        """Note the server whose tables the next snapshot copies: `primary` or `standby`."""
        self._reads_from = server

    def snapshot_rows(self, table: str, batch: RowBatch) -> None:
        """Count the copied rows of a batch."""
        self.metrics.received(len(batch.frames))
        self.metrics.events({(table, "snapshot"): batch.count})
        self.metrics.snapshot_rows(table, batch.count)
        assert self._copy is not None
        self._copy.add_rows(table, batch.count)
        self.loop_turned()

    def copied_rows(self, table: str, rows: int) -> None:
        """Count the rows that an incremental snapshot has written."""
        self.metrics.events({(table, "snapshot"): rows})
        self.metrics.snapshot_rows(table, rows)

    def incremental(
        self,
        states: Sequence[str],
        count: Callable[[str], int],
        page: Callable[[], list[dict[str, Any]]],
    ) -> None:
        """Show the tables of incremental snapshots: how many have each state, and their content for /status.

        Call it when the progress record has been read: before, which tables are being copied is not known.
        """
        self._incremental = page
        self.metrics.incremental_tables(states, count)

    def incomplete(self, page: Callable[[], list[dict[str, str]]]) -> None:
        """Show the topics that lack rows. Call it when a session has the record of the topics, and streams."""
        self._incomplete = page

    def table_copied(self) -> None:
        """Note the end of one table's incremental snapshot."""
        self.metrics.table_copied()

    def snapshot_table_done(self, table: str) -> None:
        """Count a table that is completely copied."""
        assert self._snapshot_left is not None
        assert self._copy is not None
        self._copy.complete(table)
        self._left_to_copy(self._snapshot_left - 1)

    def tables_of_initial_snapshot(self) -> list[TableReport]:
        """Return the tables that an initial snapshot has left; none if no one runs."""
        return [] if self._copy is None else self._copy.tables(time.monotonic())

    def _estimates(self) -> Iterator[tuple[str, int]]:
        """Yield the tables that are being copied, or wait for it, with the server's estimate of their rows."""
        for table in self.tables_of_initial_snapshot():
            if table.estimated_rows is not None:
                yield table.table, table.estimated_rows
        for shown in self._incremental() if self._incremental is not None else ():
            if shown["estimated_rows"] is not None:
                yield shown["table"], shown["estimated_rows"]

    def snapshot_ended(self, *, is_complete: bool) -> None:
        """Note the end of the snapshot."""
        if self._snapshot_started_s:
            duration_s = time.monotonic() - self._snapshot_started_s
            self.metrics.snapshot_ended(duration_s=duration_s, is_complete=is_complete)
            self._snapshot_started_s = 0.0
            self._snapshot_left = 0 if is_complete else None
            self._copy = None

    # --- out ---

    def exposition(self) -> bytes:
        """Return the present text of /metrics."""
        self._count_sent()
        self._show_positions()
        return self.metrics.exposition()

    def lag_s(self) -> float | None:
        """Return the replication lag, None while it is not known."""
        lag_us = self.lag.lag_us()
        return None if lag_us is None else lag_us / 1e6

    def page(self) -> dict[str, Any]:
        """Return the content of /status; unknown values are null."""
        durable = self._durable
        return {
            "name": self._name,
            "version": __version__,
            "state": self.health.state,
            "reason": self.health.reason,
            "last_error": self._last_error,
            "waiting_for": self.waits.page(),
            "uptime_s": round(time.monotonic() - self._started_s, 1),
            "slot": self._slot,
            "server_version_num": self._server_version,
            "protocol_version": self._protocol_version,
            "streaming": self._streaming,
            "received_lsn": _known_lsn(self.lag.received_lsn),
            "confirmed_lsn": _known_lsn(self._confirmed_lsn),
            "durable": None
            if durable is None
            else {
                "phase": durable.phase,
                "commit_lsn": format_lsn(durable.commit_lsn),
                "end_lsn": format_lsn(durable.end_lsn),
            },
            "waiters": len(self.durable_waits),
            "prepared": self._oldest_prepared.page(),
            "wal_guard": None
            if self._guarded is None
            else {
                "level": self._guarded.level.name.lower(),
                "reason": self._guarded.why,
                "held_by": self._guarded.holder,
            },
            "rows_written": self._rows,
            "transactions_written": self._transactions,
            "dead_letters": self._dead_letters,
            "snapshot_tables_remaining": self._snapshot_left,
            "new_snapshot": self._new_snapshot,
            "snapshot": None
            if self._copy is None
            else {"read_from": self._reads_from, **self._copy.page(time.monotonic())},
            "incremental_snapshots": None if self._incremental is None else self._incremental(),
            "incomplete_topics": None if self._incomplete is None else self._incomplete(),
        }


def _known_lsn(lsn: Lsn) -> str | None:
    return None if lsn == INVALID_LSN else format_lsn(lsn)
