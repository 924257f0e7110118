"""What the daemon knows of itself: health for the probes, counts for the metrics, a page for people.

In: reports of the session's parts, per batch and per group.  Out: `HealthState`, metrics, the /status mapping.
Invariant: nothing here decides anything about the flow; names, numbers and LSNs only, never a row value.
Must not: ask a server, block.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cdcd.ack.group import Boundary
from cdcd.avro.encode import Encoded, taken_tally
from cdcd.errors import CdcdError, Retry
from cdcd.lsn import INVALID_LSN, Lsn, format_lsn
from cdcd.model import POSTGRES_EPOCH_US, Item, Keepalive, Run
from cdcd.ops.health import HealthState
from cdcd.ops.metrics import Metrics, SlotReading
from cdcd.runtime.wal_levels import Judged
from cdcd.spill.pool import Usage
from cdcd.txn.waiting import Held
from cdcd.version import __version__

_OPERATIONS = {ord("I"): "insert", ord("U"): "update", ord("D"): "delete"}


class Status:
    """The daemon's knowledge of itself; one for the process, fed by each session in turn."""

    def __init__(self, metrics: Metrics, *, name: str, slot: str) -> None:
        self.metrics = metrics
        self.health = HealthState()
        self._name = name
        self._slot = slot
        self._started_s = time.time()
        self._tables: dict[int, str] = {}
        self._received_lsn: Lsn = 0
        self._confirmed_lsn: Lsn = 0
        self._server_version: int | None = None
        self._protocol_version: int | None = None
        self._streaming: str | None = None
        self._oldest_us: int | None = None
        self._open_us: int | None = None
        self._ended_lsn: Lsn = 0
        self._left_lsn: Lsn = 0
        self._durable_lsn: Lsn = 0
        self._is_of_before = False
        self._boundary: Boundary | None = None
        self._held: Held | None = None
        self._may_be_lost = 0
        self._rows = 0
        self._transactions = 0
        self._dead_letters = 0
        self._waiting_bytes = 0
        self._stored_bytes = 0
        self._snapshot_left = 0
        self._snapshot_started_s = 0.0
        self._last_error = ""
        self._guarded: Judged | None = None
        self.own_pids: set[int] = set()
        """Under which of the server's processes this daemon holds the slot, or the lock of its start."""
        metrics.state("starting")

    # --- state ---

    def state(self, name: str, error: CdcdError | None = None) -> None:
        """The pipeline is in this state now, because of `error` if there is one."""
        self.health = replace(
            self.health,
            state=name,
            reason=str(error) if error is not None else "",
            backoff_since_s=(self.health.backoff_since_s or time.monotonic()) if name == "backoff" else None,
            was_ready=self.health.was_ready or name in ("streaming", "snapshot"),
        )
        if error is not None:
            self._last_error = str(error)
        self.metrics.state(name, halted_code=error.code if name == "halted" and error is not None else None)

    def loop_turned(self) -> None:
        """The event loop is alive."""
        self.health = replace(self.health, last_turn_s=time.monotonic())
        self.metrics.turned()

    def failed(self, error: CdcdError) -> None:
        """A session ended by an error."""
        component = error.code.split("-")[1].lower() if "-" in error.code else "other"
        component = {"slot": "source", "topic": "sink"}.get(component, component)
        self.metrics.failed(component, is_fatal=error.retry in (Retry.OPERATOR, Retry.NEVER))

    def sink_opened(self) -> None:
        """The producer is open."""
        self.health = replace(self.health, is_sink_open=True)
        self.metrics.sink_connected(True)

    def sink_closed(self) -> None:
        """The producer is closed."""
        self.health = replace(self.health, is_sink_open=False)
        self.metrics.sink_connected(False)

    def streaming(
        self, server_version_num: int, protocol_version: int, streaming: str, durable_us: int = 0
    ) -> None:
        """The replication stream is open; `streaming` as it was asked of the server: off, on or parallel.

        `durable_us`: when the last transaction committed that is durable (Unix epoch).
        """
        self._server_version = server_version_num
        self._protocol_version = protocol_version
        self._streaming = streaming
        self.health = replace(self.health, is_source_streaming=True)
        self.metrics.source_connected(True)
        self._forget_what_was_open(durable_us)
        self.state("streaming")

    def _forget_what_was_open(self, durable_us: int) -> None:
        """What is not durable comes again (F9, F27); what is, does not, also where its commit was never answered."""
        self._left_lsn = max(self._left_lsn, self._ended_lsn)
        if self._confirmed_lsn >= self._left_lsn:
            self._all_durable(None)
        elif self._oldest_us is not None:
            # A commit that was never answered has made some of it durable.
            self._outstanding(max(self._oldest_us, durable_us))
        self._open_us, self._ended_lsn, self._durable_lsn, self._is_of_before = None, 0, 0, True

    def source_closed(self) -> None:
        """The replication stream is closed."""
        self.health = replace(self.health, is_source_streaming=False)
        self.metrics.source_connected(False)
        self._holds(None)

    # --- the flow, per batch ---

    def turned(
        self, items: list[Item], open_transactions: int, *, held: Held | None = None, may_be_lost: int = 0
    ) -> None:
        """A batch went through; so many transactions have begun and not ended, and `held` is what is prepared.

        `may_be_lost`: so many were prepared before the slot became cdcd's, and their rows may never come.
        """
        last = items[-1]
        if isinstance(last, Keepalive):
            self._received_lsn = max(self._received_lsn, last.wal_end_lsn)
        self.metrics.open_transactions(open_transactions)
        self.metrics.in_python(*taken_tally())
        self._holds(held, may_be_lost)
        self.loop_turned()

    def _holds(self, held: Held | None, may_be_lost: int = 0) -> None:
        self._held = held
        self._may_be_lost = may_be_lost
        if held is None:
            self.metrics.prepared_transactions(0, None)
        else:
            self.metrics.prepared_transactions(held.count, held.oldest_pg_us + POSTGRES_EPOCH_US)

    def relation(self, relid: int, table: str) -> None:
        """A table will be streamed."""
        self._tables[relid] = table
        self.metrics.table_known(table)

    def received(self, size_bytes: int) -> None:
        """The stream gave so many bytes, whatever becomes of them and when."""
        self.metrics.received(size_bytes)

    def run(self, operations: Mapping[tuple[int, int], int]) -> None:
        """A run of rows was encoded: its rows by (relid, type byte)."""
        counts: Counter[tuple[str, str]] = Counter()
        for (relid, kind), count in operations.items():
            counts[self._tables[relid], _OPERATIONS[kind]] += count
        self.metrics.events(counts)

    def truncated(self, table: str) -> None:
        """A table was truncated."""
        self.metrics.events({(table, "truncate"): 1})

    def began(self, commit_us: int) -> None:
        """A transaction that is not durable yet came in."""
        self._open_us = commit_us
        if self._oldest_us is None or self._is_of_before:
            self._is_of_before = False
            self._outstanding(commit_us)

    def ended(self, end_lsn: Lsn, *, is_empty: bool) -> None:
        """A transaction is complete."""
        self._complete(end_lsn, with_rows=int(not is_empty), empty=int(is_empty))

    def _complete(self, end_lsn: Lsn, *, with_rows: int, empty: int) -> None:
        self._received_lsn = max(self._received_lsn, end_lsn)
        self._open_us = None
        if with_rows:
            self._ended_lsn = end_lsn
        elif self._durable_lsn >= self._ended_lsn:
            self._outstanding(None)  # F7: empty, it is done when those before it are
        self.metrics.transactions(committed=with_rows, empty=empty)

    def whole(self, encoded: Encoded) -> None:
        """Whole transactions came in and are complete."""
        self.began(encoded.first_us)
        if encoded.operations:
            self.run(encoded.operations)
        self._complete(encoded.end_lsn, with_rows=encoded.with_rows, empty=encoded.empty)

    def _all_durable(self, open_us: int | None) -> None:
        """All that has ended is durable, in the sessions before too; `open_us`: of what has begun."""
        self._left_lsn = 0
        self._outstanding(open_us)

    def _outstanding(self, oldest_us: int | None) -> None:
        self._oldest_us = oldest_us
        self.metrics.outstanding(oldest_us)

    def aborted(self, count: int) -> None:
        """So many transactions, of which something was received, were rolled back."""
        self.metrics.transactions(aborted=count)

    def duplicates(self, count: int) -> None:
        """So many transactions were there already and were dropped (F4)."""
        self.metrics.duplicates_suppressed(count)

    # --- the writer, per group ---

    def committed(self, boundary: Boundary, *, rows: int, transactions: int, seconds: float) -> None:
        """A group is durable."""
        self._boundary = boundary
        self._rows += rows
        self._transactions += transactions
        self._durable_lsn = max(boundary.end_lsn, boundary.covered_lsn)
        # Not the received LSN: keepalives raise that beyond the last transaction, and nothing waits for them.
        if self._durable_lsn >= self._ended_lsn:
            self._all_durable(self._open_us)
        elif self._oldest_us is not None and (rows or transactions):
            # A position alone tells nothing of when what is behind it was committed.
            self._outstanding(max(self._oldest_us, boundary.commit_us))
        self.metrics.group_committed(commit_us=boundary.commit_us if rows else 0, duration_s=seconds)

    def given_up(self) -> None:
        """A group was aborted."""
        self.metrics.group_aborted()

    def dead_letter(self, table: str) -> None:
        """A row that is too large for Kafka is in the topic of dead letters."""
        self._dead_letters += 1
        self.metrics.dead_letter(table)

    def waiting(self, size_bytes: int, *, is_blocked: bool) -> None:
        """Encoded bytes wait for the producer; blocked: reading has stopped for them."""
        self._waiting_bytes = size_bytes
        self.metrics.buffered(size_bytes + self._stored_bytes)
        self._blocked(is_blocked, "producer")

    def _blocked(self, is_blocked: bool, cause: str) -> None:
        self.metrics.backpressure(is_blocked, cause)
        if self.health.state in ("streaming", "backpressure"):
            self.state("backpressure" if is_blocked else "streaming")

    # --- open transactions, per batch and per segment ---

    def spill(self, usage: Usage) -> None:
        """What open transactions hold in memory and on disk now."""
        self._stored_bytes = usage.memory_bytes
        self.metrics.buffered(usage.memory_bytes + self._waiting_bytes)
        self.metrics.spill(size_bytes=usage.disk_bytes, limit_bytes=usage.disk_limit_bytes, files=usage.files)

    def spilled(self, *, transactions: int, size_bytes: int) -> None:
        """So much was written to disk, and so many transactions went there for the first time."""
        self.metrics.spilled(transactions=transactions, size_bytes=size_bytes)

    def waiting_for_disk(self, is_blocked: bool) -> None:
        """Reading has stopped because there is no room for open transactions, or goes on."""
        self._blocked(is_blocked, "spill")

    def confirmed(self, lsn: Lsn) -> None:
        """PostgreSQL was told that everything up to `lsn` is durable."""
        self._confirmed_lsn = lsn
        self.metrics.status_updates(1)

    def registry_request(self, operation: str, code: str) -> None:
        """The registry answered."""
        self.metrics.registry_request(operation, code)

    def wal_guard(self, verdict: Judged | None) -> None:
        """What the WAL guard has made of its last look; None while PostgreSQL cannot be asked."""
        self._guarded = verdict
        self.metrics.source.guard_level(0 if verdict is None else int(verdict.level))

    @property
    def confirmed_lsn(self) -> Lsn:
        """What PostgreSQL was last told to be durable."""
        return self._confirmed_lsn

    def slot(self, reading: SlotReading | None, server_lsn: Lsn = 0) -> None:
        """What a look at the slot has seen, and where the server's WAL ended; None when there was nothing to see."""
        self.metrics.slot(reading)
        if reading is None:
            return
        # A process that has just begun has confirmed nothing itself.
        confirmed_lsn = max(self._confirmed_lsn, reading.confirmed_flush_lsn or 0)
        if confirmed_lsn > INVALID_LSN:
            received_lsn = max(self._received_lsn, confirmed_lsn)
            self.metrics.positions(
                server_lsn=server_lsn, received_lsn=received_lsn, confirmed_lsn=confirmed_lsn
            )

    # --- the snapshot ---

    def snapshot_started(self, tables: int) -> None:
        """A snapshot of so many tables begins."""
        self._snapshot_left = tables
        self._snapshot_started_s = time.monotonic()
        self.metrics.snapshot_started(tables)

    def snapshot_rows(self, table: str, run: Run) -> None:
        """A run of a table was copied."""
        self.metrics.received(len(run.frames))
        self.metrics.events({(table, "snapshot"): run.count})
        self.metrics.snapshot_rows(table, run.count)
        self.loop_turned()

    def snapshot_table_done(self, table: str) -> None:
        """A table is complete."""
        self._snapshot_left -= 1
        self.metrics.snapshot_table_done(self._snapshot_left)

    def snapshot_ended(self, *, is_complete: bool) -> None:
        """The snapshot is over."""
        if self._snapshot_started_s:
            duration_s = time.monotonic() - self._snapshot_started_s
            self.metrics.snapshot_ended(duration_s=duration_s, is_complete=is_complete)
            self._snapshot_started_s = 0.0

    # --- the page ---

    def page(self) -> dict[str, Any]:
        """Return what /status shows."""
        boundary = self._boundary
        return {
            "name": self._name,
            "version": __version__,
            "state": self.health.state,
            "reason": self.health.reason,
            "last_error": self._last_error,
            "uptime_s": round(time.time() - self._started_s, 1),
            "slot": self._slot,
            "server_version_num": self._server_version,
            "protocol_version": self._protocol_version,
            "streaming": self._streaming,
            "received_lsn": format_lsn(self._received_lsn),
            "confirmed_lsn": format_lsn(self._confirmed_lsn),
            "durable": None
            if boundary is None
            else {
                "phase": boundary.phase,
                "commit_lsn": format_lsn(boundary.commit_lsn),
                "end_lsn": format_lsn(boundary.end_lsn),
            },
            "prepared": self._held_page(),
            "wal_guard": None
            if self._guarded is None
            else {
                "level": self._guarded.level.name.lower(),
                "why": self._guarded.why,
                "held_by": self._guarded.holder,
            },
            "rows_written": self._rows,
            "transactions_written": self._transactions,
            "dead_letters": self._dead_letters,
            "snapshot_tables_remaining": self._snapshot_left,
        }

    def _held_page(self) -> dict[str, Any]:
        """What is prepared and undecided, and since when it holds back what is confirmed (F33)."""
        if self._held is None:
            return {"transactions": 0, "may_be_lost": self._may_be_lost}
        since_us = self._held.oldest_pg_us + POSTGRES_EPOCH_US
        return {
            "transactions": self._held.count,
            "oldest_lsn": format_lsn(self._held.oldest_lsn),
            "oldest_age_s": round(max(0.0, time.time() - since_us / 1e6), 1),
            "may_be_lost": self._may_be_lost,
        }
