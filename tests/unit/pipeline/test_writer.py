"""The writer sends groups to the sink and the safe LSN to the source: order, back-pressure, failures, idle positions.

The sink is in memory, because a real broker cannot be made to hang, fail or disconnect at a chosen moment. The
integration tests show that the real sink has the same contract.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from cdcd.ack import wait_policy as policies
from cdcd.ack.group import CommitPosition, GroupLimits, RecordChunk
from cdcd.ack.wait_policy import WaitPolicy
from cdcd.errors import SchemaIdTaken, SinkUnavailable, SlotActive
from cdcd.model import PartPosition, PreparedBefore, Progress, Record, SourceIdentity
from cdcd.pipeline import writer as writer_module
from cdcd.pipeline.writer import Writer, WriterOptions

IDENTITY = SourceIdentity("1", 1, "shopdb", "slot")
HOUR_US = 3_600_000_000
DEADLINE_S = 20


class MemorySink:
    """Kafka transactions in memory. While `gate` is closed a commit hangs; `room`: the producer's queue."""

    def __init__(self) -> None:
        self.open: list[Record] | None = None
        self.groups: list[tuple[list[Record], Progress]] = []
        self.aborted: list[list[Record]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.committing = threading.Event()
        self.room = 1_000_000
        self.is_backwards = False
        self.polls = 0
        self.sent: list[bytes | None] = []
        self.sends = 0
        self.expected: list[list[bytes | None]] = []
        self.commit_error: Exception | None = None
        self.produce_error: Exception | None = None
        self.commit_threads: set[int] = set()
        self.renewal_reasons: list[str] = []
        """The renewal reasons after the next commits."""
        self.renewal_reason = ""
        self.renewal_error: Exception | None = None

    def begin(self) -> None:
        assert self.open is None, "begin in an open transaction"
        assert not self.renewal_reason, "begin in an epoch whose last commit may still arrive"
        self.open = []

    def by_partition(self, records: Sequence[Record]) -> Sequence[Record]:
        return records[::-1] if self.is_backwards else records

    def produce(self, records: Sequence[Record], start: int) -> int:
        assert self.open is not None, "produce outside a transaction"
        if self.produce_error is not None:
            raise self.produce_error
        taken = records[start : start + self.room]
        self.room -= len(taken)
        self.open += taken
        return start + len(taken)

    def poll(self, timeout_s: float) -> int:
        self.polls += 1
        return 0

    def send_now(self, timeout_s: float) -> None:
        self.polls += 1
        self.sends += 1
        self.sent = [record.key for record in self.open or ()]

    def commit_soon(self) -> None:
        assert self.open, "no rows in the transaction"
        self.expected.append([record.key for record in self.open])

    def commit(self, progress: Progress) -> Progress:
        assert self.open is not None, "commit outside a transaction"
        self.commit_threads.add(threading.get_ident())
        self.committing.set()
        assert self.gate.wait(DEADLINE_S)
        if self.commit_error is not None:
            raise self.commit_error
        self.groups.append((self.open, progress))
        self.open = None
        self.renewal_reason = self.renewal_reasons.pop(0) if self.renewal_reasons else ""
        return replace(progress, offsets={"t": {0: len(self.groups)}})

    def renew_epoch(self) -> None:
        assert self.open is None, "a new producer inside a transaction"
        assert self.renewal_reason, "renewal without a reason"
        if self.renewal_error is not None:
            raise self.renewal_error
        self.renewal_reason = ""

    def abort(self) -> None:
        assert self.open is not None, "abort outside a transaction"
        self.aborted.append(self.open)
        self.open = None

    @property
    def keys(self) -> list[list[bytes | None]]:
        return [[record.key for record in records] for records, _ in self.groups]


class MemorySchemas:
    """Schemas to write before records: `waiting` goes into the open transaction of the sink."""

    def __init__(self, sink: MemorySink) -> None:
        self.sink = sink
        self.waiting: list[Record] = []
        self.announced: list[bytes | None] = []
        self.served: list[bytes | None] = []
        self.gate = threading.Event()
        self.gate.set()
        self.announcing = threading.Event()
        self.error: Exception | None = None

    @property
    def is_waiting(self) -> bool:
        return bool(self.waiting)

    def announce(self) -> None:
        self.announcing.set()
        assert self.gate.wait(DEADLINE_S)
        if self.error is not None:
            raise self.error
        assert self.sink.open is not None, "a schema outside a transaction"
        self.sink.open += self.waiting
        self.announced += [record.key for record in self.waiting]
        self.waiting = []

    def decided(self) -> None:
        durable = [key for group in self.sink.keys for key in group]
        self.served += [key for key in self.announced if key in durable]
        self.announced = []


class World:
    """A running writer and its output."""

    def __init__(
        self,
        *,
        max_wait_us: int = 0,
        max_rows: int = 1000,
        waiting_limit_bytes: int = 1000,
        has_schemas: bool = False,
        durable_lsn: int = 0,
        commit_cooldown_us: int = 0,
        is_at_least_once: bool = False,
    ) -> None:
        self.sink = MemorySink()
        self.schemas = MemorySchemas(self.sink) if has_schemas else None
        self.confirmed: list[int] = []
        self.reports: list[tuple[int, int, int]] = []
        self.unseen: list[Mapping[str, Mapping[int, int]]] = []
        self.blocked: list[bool] = []
        self.given_up_groups = 0
        self.written: list[int] = []
        """The end LSNs of the transactions with rows."""
        self.at_rest_lsns: list[int] = []
        self.renewed: list[tuple[str, int]] = []
        self.taken_over: Exception | None = None
        self.changed = asyncio.Event()
        self.is_record_due = False
        self.writer = Writer(
            self.sink,
            IDENTITY,
            WriterOptions(
                GroupLimits(max_rows, 1_000_000, max_wait_us),
                waiting_limit_bytes,
                commit_cooldown_us=commit_cooldown_us,
                is_at_least_once=is_at_least_once,
            ),
            confirm=self._confirm,
            observer=self,
            durable_lsn=durable_lsn,
            ahead=self.schemas,
            before_renewal=self.look,
            is_record_due=lambda: self.is_record_due,
        )
        self.task = asyncio.ensure_future(self.writer.run())

    def _confirm(self, lsn: int) -> None:
        durable = [progress.end_lsn for _, progress in self.sink.groups]
        assert lsn in durable, "confirmed a position that no committed progress record has"
        self.confirmed.append(lsn)
        self.changed.set()

    def committed(
        self,
        commit_position: CommitPosition,
        *,
        rows: int,
        transactions: int,
        seconds: float,
        unseen: Mapping[str, Mapping[int, int]],
    ) -> None:
        self.reports.append((commit_position.end_lsn, rows, transactions))
        self.unseen.append(unseen)

    def at_rest(self, commit_position: CommitPosition) -> None:
        """Those who wait for an LSN are answered: nothing before it may be left in memory."""
        durable = max((progress.end_lsn for _, progress in self.sink.groups), default=0)
        assert not [lsn for lsn in self.written if durable < lsn <= commit_position.end_lsn]
        self.at_rest_lsns.append(commit_position.end_lsn)

    def given_up(self) -> None:
        self.given_up_groups += 1

    def look(self) -> None:
        if self.taken_over is not None:
            raise self.taken_over

    def epoch_renewed(self, renewal_reason: str, seconds: float) -> None:
        self.renewed.append((renewal_reason, len(self.confirmed)))

    def waiting(self, size_bytes: int, *, is_blocked: bool) -> None:
        self.blocked.append(is_blocked)
        self.changed.set()

    async def transaction(self, commit_lsn: int, *keys: bytes) -> None:
        last = end(commit_lsn)
        assert last.commit_position is not None
        self.written.append(last.commit_position.end_lsn)
        await self.writer.add(rows(*keys))
        await self.writer.add(last)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Run the event loop until the condition holds."""
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                await asyncio.sleep(0.001)

    async def until_confirmed(self, lsn: int) -> None:
        await self.until(lambda: self.confirmed[-1:] == [lsn] or self.task.done())
        assert self.confirmed[-1:] == [lsn]


@contextlib.asynccontextmanager
async def world(**options: Any) -> AsyncIterator[World]:
    one = World(**options)
    try:
        yield one
    finally:
        one.sink.gate.set()
        one.task.cancel()
        await asyncio.gather(one.task, return_exceptions=True)


def rows(*keys: bytes, size_bytes: int = 10) -> RecordChunk:
    return RecordChunk([Record("t", 0, key, b"v") for key in keys], size_bytes)


def commit_position(commit_lsn: int, **more: object) -> CommitPosition:
    return CommitPosition(commit_lsn, commit_lsn + 8, 5, **more)  # type: ignore[arg-type]


def end(commit_lsn: int) -> RecordChunk:
    return RecordChunk((), 0, commit_position(commit_lsn))


async def turns(count: int = 20) -> None:
    """Let every task of the event loop run several times."""
    for _ in range(count):
        await asyncio.sleep(0)


# --- commits ---


async def test_a_group_is_committed_with_its_progress_and_then_confirmed() -> None:
    """F2, F7, F64."""
    async with world() as one:
        await one.transaction(100, b"a", b"b")
        await one.until_confirmed(108)
        ((records, progress),) = one.sink.groups
        assert [record.key for record in records] == [b"a", b"b"]
        assert progress == Progress(IDENTITY, "streaming", 100, 108, 5)
        assert one.reports == [(108, 2, 1)]
        assert one.writer.safe_lsn == 108


@pytest.mark.parametrize("is_at_least_once", [False, True])
async def test_records_in_a_transaction_may_be_unseen_after_its_commit(is_at_least_once: bool) -> None:
    async with world(is_at_least_once=is_at_least_once) as one:
        await one.transaction(100, b"a")
        await one.until_confirmed(108)
        assert one.unseen == [{} if is_at_least_once else {"t": {0: 1}}]


async def test_every_progress_record_says_what_may_be_lost_still() -> None:
    """F33: the next session reads only the last progress record."""
    before = PreparedBefore(0, frozenset({(7, "gid")}))
    async with world() as one:
        await one.writer.add(rows(b"a"))
        await one.writer.add(RecordChunk((), 0, commit_position(100, prepared_before=before)))
        await one.until_confirmed(108)
        one.writer.idle(commit_position(200, transactions=0, prepared_before=before), is_urgent=True)
        await one.until_confirmed(208)
        assert [progress.prepared_before for _, progress in one.sink.groups] == [before, before]


async def test_nothing_is_confirmed_while_a_commit_is_under_way() -> None:
    """F7."""
    async with world() as one:
        one.sink.gate.clear()
        await one.transaction(100, b"a")
        await one.until(one.sink.committing.is_set)
        await turns()
        assert one.confirmed == []
        one.sink.gate.set()
        await one.until_confirmed(108)


async def test_a_commit_runs_in_a_thread_while_add_goes_on() -> None:
    """F14, F15: the event loop is free; chunks that arrive meanwhile form the next group."""
    async with world() as one:
        one.sink.gate.clear()
        await one.transaction(100, b"a")
        await one.until(one.sink.committing.is_set)
        await one.transaction(200, b"b")
        await one.transaction(300, b"c")
        assert one.sink.groups == []
        one.sink.gate.set()
        await one.until_confirmed(308)
        assert one.sink.keys == [[b"a"], [b"b", b"c"]]
        assert threading.get_ident() not in one.sink.commit_threads


async def test_the_pause_for_a_commit_lasts_as_long_as_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "COMMIT_PAUSE_S", 60 * DEADLINE_S)
    async with world() as one:
        await asyncio.wait_for(one.writer.pause_for_commit(), DEADLINE_S)  # no commit is in progress
        one.sink.gate.clear()
        await one.transaction(100, b"a")
        await one.until(one.sink.committing.is_set)
        pause_for_commit = asyncio.create_task(one.writer.pause_for_commit())
        await asyncio.sleep(0)
        assert not pause_for_commit.done()
        one.sink.gate.set()
        await asyncio.wait_for(pause_for_commit, DEADLINE_S)
        await one.until_confirmed(108)
        await asyncio.wait_for(one.writer.pause_for_commit(), DEADLINE_S)  # the commit has ended


async def test_the_pause_for_a_commit_ends_before_a_long_commit() -> None:
    """Status updates to the server do not wait for Kafka (F14), nor does reading a possible backlog."""
    async with world() as one:
        one.sink.gate.clear()
        await one.transaction(100, b"a")
        await one.until(one.sink.committing.is_set)
        await asyncio.wait_for(one.writer.pause_for_commit(), DEADLINE_S)
        assert one.confirmed == []
        one.sink.gate.set()


async def test_rows_that_are_seen_early_are_sent_as_they_come_and_their_position_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """F7: their position is not confirmed meanwhile."""
    monkeypatch.setattr(policies, "LATE_POSITION", WaitPolicy(position_us=HOUR_US))
    async with world(is_at_least_once=True) as one:
        one.writer.note_backlog(False)
        await one.transaction(100, b"a")
        one.writer.note_drained()
        await one.until(lambda: one.sink.sent == [b"a"])
        await one.transaction(200, b"b")
        one.writer.note_drained()
        await one.until(lambda: one.sink.sent == [b"a", b"b"])
        assert one.sink.groups == []
        assert one.confirmed == []
        await one.writer.flush()
        assert one.sink.keys == [[b"a", b"b"]]
        assert one.confirmed == [208]


async def test_rows_are_sent_once_for_each_read_and_only_where_there_are_any() -> None:
    """Sending blocks the event loop briefly; once for each chunk, it would make a backlog look smaller."""
    async with world(is_at_least_once=True, max_wait_us=HOUR_US) as one:
        one.writer.note_backlog(False)
        for lsn in (100, 200, 300):
            await one.transaction(lsn, b"%d" % lsn)
            await one.until(lambda: one.sink.open is not None and len(one.sink.open) == lsn // 100)  # noqa: B023
            assert one.sink.sends == 0
        for _ in range(3):
            one.writer.note_drained()
            await turns()
        assert one.sink.sends == 1


async def test_the_position_at_least_once_waits_for_its_time_only() -> None:
    async with world(is_at_least_once=True) as one:
        one.writer.note_backlog(False)
        await one.transaction(100, b"a")
        await one.until_confirmed(108)


async def two_in_one_go(one: World) -> None:
    """Add two transactions (200, 300) while another one (100) is being committed."""
    one.sink.gate.clear()
    one.sink.committing.clear()
    await one.transaction(100, b"a")
    await one.until(one.sink.committing.is_set)
    await one.transaction(200, b"b")
    await one.transaction(300, b"c")
    one.sink.gate.set()
    await one.until_confirmed(308)
    assert one.sink.keys == [[b"a"], [b"b", b"c"]]


async def test_after_several_commits_at_once_the_next_group_waits_for_more_and_the_sink_is_informed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Transactions that arrive during the wait join the group; nothing is confirmed before its commit (F7)."""
    monkeypatch.setattr(policies, "JOINING", WaitPolicy(join_us=HOUR_US))
    async with world() as one:
        one.writer.note_backlog(False)
        await two_in_one_go(one)
        assert one.sink.expected == []
        one.writer.note_backlog(False)
        await one.transaction(400, b"d")
        await one.until(lambda: one.sink.expected == [[b"d"]])
        await one.transaction(500, b"e")
        await one.until(lambda: one.sink.expected[-1] == [b"d", b"e"])
        assert one.confirmed[-1] == 308
        await one.writer.flush()
        assert one.sink.keys[2:] == [[b"d", b"e"]]
        assert one.confirmed[-1] == 508


async def test_what_joins_is_waited_for_no_longer_than_its_time() -> None:
    async with world() as one:
        await two_in_one_go(one)
        one.writer.note_backlog(False)
        await one.transaction(400, b"d")
        await one.until_confirmed(408)


async def test_the_sink_gets_no_notice_of_a_commit_while_a_transaction_is_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A start that reads the progress topic would wait for the end of that transaction."""
    monkeypatch.setattr(policies, "JOINING", WaitPolicy(join_us=HOUR_US))
    async with world() as one:
        await two_in_one_go(one)
        one.writer.note_backlog(False)
        await one.writer.add(rows(b"d"))
        await one.until(lambda: one.sink.open is not None and len(one.sink.open) == 1)
        await turns()
        assert one.sink.expected == []


async def test_an_announced_commit_precedes_a_part_of_a_backlog(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(policies, "JOINING", WaitPolicy(join_us=HOUR_US))
    monkeypatch.setattr(policies, "BACKLOG", WaitPolicy(linger_us=HOUR_US))
    async with world() as one:
        await two_in_one_go(one)
        one.writer.note_backlog(False)
        await one.transaction(400, b"d")
        await one.until(lambda: one.sink.expected == [[b"d"]])
        one.writer.note_backlog(True)
        await one.writer.add(rows(b"e"))
        await one.until_confirmed(408)


@pytest.mark.parametrize("is_backlog", [None, True])
async def test_single_transactions_do_not_wait_and_a_backlog_announces_no_commit(
    is_backlog: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`is_backlog` None: transactions arrive one at a time."""
    monkeypatch.setattr(policies, "JOINING", WaitPolicy(join_us=HOUR_US))
    async with world() as one:
        if is_backlog:
            await two_in_one_go(one)
        for lsn in (400, 500):
            one.writer.note_backlog(bool(is_backlog))
            await one.transaction(lsn, b"%d" % lsn)
            await one.until_confirmed(lsn + 8)
        assert one.sink.expected == []


@pytest.mark.parametrize(
    ("is_at_least_once", "is_backlog"),
    [(True, None), (True, True), (False, None), (False, True), (False, False)],
)
async def test_rows_of_a_copy_or_a_backlog_or_seen_only_when_committed_are_not_sent_before(
    is_at_least_once: bool, is_backlog: bool | None
) -> None:
    """Such rows wait to fill their batches. `is_backlog` None: nothing was read from a stream yet."""
    async with world(is_at_least_once=is_at_least_once, max_wait_us=HOUR_US) as one:
        if is_backlog is not None:
            one.writer.note_backlog(is_backlog)
        await one.transaction(100, b"a")
        one.writer.note_drained()
        await one.until(lambda: one.sink.open is not None and len(one.sink.open) == 1)
        await turns()
        assert one.sink.sent == []


async def test_after_a_commit_the_broker_is_left_alone_unless_there_is_a_backlog() -> None:
    async with world(commit_cooldown_us=HOUR_US) as one:
        await one.transaction(100, b"a")
        await one.until_confirmed(108)
        one.writer.note_backlog(True)
        await one.transaction(200, b"b")
        await one.until_confirmed(208)
        one.writer.note_backlog(False)
        await one.transaction(300, b"c")
        await turns()
        assert one.sink.open is None
        assert one.sink.keys == [[b"a"], [b"b"]]


async def test_a_cooldown_after_a_commit_ends() -> None:
    async with world(commit_cooldown_us=1_000) as one:
        for lsn in (100, 200, 300):
            await one.transaction(lsn, b"%d" % lsn)
            await one.until_confirmed(lsn + 8)
        assert one.sink.keys == [[b"100"], [b"200"], [b"300"]]


async def test_groups_are_committed_and_confirmed_in_order() -> None:
    async with world(max_rows=1) as one:
        for lsn in range(100, 600, 100):
            await one.transaction(lsn, b"%d" % lsn)
        await one.until_confirmed(508)
        assert one.confirmed == [108, 208, 308, 408, 508]
        assert one.sink.keys == [[b"100"], [b"200"], [b"300"], [b"400"], [b"500"]]


async def test_a_partial_transaction_is_produced_and_not_committed() -> None:
    async with world() as one:
        await one.writer.add(rows(b"a"))
        await one.until(lambda: one.sink.open is not None and len(one.sink.open) == 1)
        await turns()
        assert one.sink.groups == []
        await one.writer.add(end(100))
        await one.until_confirmed(108)


async def test_a_group_that_waits_for_more_is_committed_when_its_time_is_over() -> None:
    async with world(max_wait_us=1000) as one:
        await one.transaction(100, b"a")
        await one.until_confirmed(108)


# --- back-pressure (F15) ---


async def test_add_waits_while_more_bytes_wait_than_the_limit() -> None:
    async with world(waiting_limit_bytes=50) as one:
        one.sink.gate.clear()
        await one.transaction(100, b"a")
        await one.until(one.sink.committing.is_set)
        await one.writer.add(rows(b"b", size_bytes=50))
        adding = asyncio.ensure_future(one.writer.add(rows(b"c", size_bytes=1)))
        await turns()
        assert not adding.done()
        assert one.blocked == [True]
        one.sink.gate.set()
        await asyncio.wait_for(adding, DEADLINE_S)
        assert one.blocked == [True, False]


async def test_a_blocked_add_waits_until_half_of_the_queue_is_with_the_sink() -> None:
    """Otherwise each chunk that the sink takes lets the next one be encoded, and none is while the group commits."""
    async with world(waiting_limit_bytes=50) as one:
        one.sink.gate.clear()
        await one.transaction(100, b"a")
        await one.until(one.sink.committing.is_set)
        await one.writer.add(rows(b"b", size_bytes=20))
        await one.writer.add(rows(b"c", size_bytes=20))
        adding = asyncio.ensure_future(one.writer.add(rows(b"d", size_bytes=20)))
        one.sink.room = 0
        polls = one.sink.polls
        one.sink.gate.set()
        await one.until(lambda: one.sink.polls > polls + 2)
        assert one.writer.waiting_bytes == 40
        assert not adding.done()
        one.sink.room = 10
        await asyncio.wait_for(adding, DEADLINE_S)
        assert one.writer.waiting_bytes <= 20


async def test_a_chunk_larger_than_the_limit_gets_through() -> None:
    async with world(waiting_limit_bytes=50) as one:
        await asyncio.wait_for(one.writer.add(rows(b"a", size_bytes=5000)), DEADLINE_S)
        await one.writer.add(end(100))
        await one.until_confirmed(108)


@pytest.mark.parametrize("is_backwards", [False, True])
async def test_a_full_producer_queue_is_polled_until_every_record_is_in_once(is_backwards: bool) -> None:
    """In the sink's order."""
    async with world() as one:
        one.sink.room = 1
        one.sink.is_backwards = is_backwards
        await one.transaction(100, b"a", b"b", b"c")
        await one.until(lambda: one.sink.polls > 2)
        assert one.sink.groups == []
        one.sink.room = 1
        await one.until(lambda: one.sink.room == 0)
        one.sink.room = 10
        await one.until_confirmed(108)
        assert one.sink.keys == [[b"c", b"b", b"a"] if is_backwards else [b"a", b"b", b"c"]]


# --- failures ---


async def test_what_may_still_arrive_of_a_commit_is_shut_out_before_anything_follows_it() -> None:
    """F77: also before its position is confirmed, because the outcome is then read back (F76)."""
    async with world() as one:
        one.sink.renewal_reasons = ["EndTxn was sent twice", "", "the coordinator is down"]
        for end_lsn in (108, 116, 124):
            await one.transaction(end_lsn - 8, b"k%d" % end_lsn)
            await one.until_confirmed(end_lsn)
        assert one.sink.keys == [[b"k108"], [b"k116"], [b"k124"]]
        assert one.renewed == [("EndTxn was sent twice", 0), ("the coordinator is down", 2)]


async def test_where_the_renewal_fails_nothing_is_confirmed_and_nothing_more_is_written() -> None:
    """F77: the next session reads the durable position from Kafka."""
    async with world() as one:
        one.sink.renewal_reasons, one.sink.renewal_error = (
            ["the coordinator is down"],
            SinkUnavailable("no answer"),
        )
        await one.transaction(100, b"a")
        with pytest.raises(SinkUnavailable):
            await one.task
        await one.writer.close()
        assert one.confirmed == []
        assert one.sink.keys == [[b"a"]]
        assert one.sink.aborted == []


async def test_who_has_been_taken_over_fences_nobody() -> None:
    """F69: the writer checks for a takeover before it starts a new epoch, and confirms nothing."""
    async with world() as one:
        one.sink.renewal_reasons, one.taken_over = (
            ["the process stood still"],
            SlotActive("another holds the slot"),
        )
        await one.transaction(100, b"a")
        with pytest.raises(SlotActive):
            await one.task
        await one.writer.close()
        assert (one.confirmed, one.renewed, one.sink.aborted) == ([], [], [])
        assert one.sink.renewal_reason, "the epoch is not renewed"


async def test_a_mark_too_is_followed_by_nothing_of_its_epoch() -> None:
    """F77: the position of a snapshot is committed like any other position."""
    async with world() as one:
        one.sink.renewal_reasons = ["EndTxn was sent twice"]
        await one.writer.mark(CommitPosition(100, 104, 0))
        assert one.renewed == [("EndTxn was sent twice", 0)]


async def test_a_failed_commit_ends_run_and_confirms_nothing() -> None:
    """F19, F63: no part of the group counts as written."""
    async with world() as one:
        one.sink.commit_error = SinkUnavailable("the broker has gone")
        await one.transaction(100, b"a")
        with pytest.raises(SinkUnavailable):
            await asyncio.wait_for(one.task, DEADLINE_S)
        assert (one.confirmed, one.reports, one.writer.safe_lsn) == ([], [], 0)
        await one.writer.close()
        assert [len(records) for records in one.sink.aborted] == [1]


async def test_a_failed_produce_ends_run_and_close_aborts() -> None:
    async with world() as one:
        one.sink.produce_error = SinkUnavailable("fatal")
        await one.writer.add(rows(b"a"))
        with pytest.raises(SinkUnavailable):
            await asyncio.wait_for(one.task, DEADLINE_S)
        await one.writer.close()
        assert one.sink.aborted == [[]]


# --- close (F9) ---


async def test_close_aborts_an_open_transaction() -> None:
    async with world() as one:
        await one.writer.add(rows(b"a"))
        await one.until(lambda: bool(one.sink.open))
        one.task.cancel()
        await asyncio.wait([one.task])
        await one.writer.close()
        assert (one.sink.open, len(one.sink.aborted), one.sink.groups) == (None, 1, [])
        assert one.given_up_groups == 1


async def test_close_aborts_what_was_opened_after_an_earlier_commit() -> None:
    async with world() as one:
        await one.transaction(100, b"a")
        await one.until_confirmed(108)
        await one.writer.add(rows(b"b"))
        await one.until(lambda: bool(one.sink.open))
        one.task.cancel()
        await asyncio.wait([one.task])
        await one.writer.close()
        assert [[record.key for record in records] for records in one.sink.aborted] == [[b"b"]]


async def test_close_waits_for_a_commit_under_way_and_leaves_it_alone() -> None:
    """F76: the commit was sent; the next session reads its outcome from Kafka."""
    async with world() as one:
        one.sink.gate.clear()
        await one.transaction(100, b"a")
        await one.until(one.sink.committing.is_set)
        one.task.cancel()
        await asyncio.wait([one.task])
        closing = asyncio.ensure_future(one.writer.close())
        await turns()
        assert not closing.done()
        one.sink.gate.set()
        await asyncio.wait_for(closing, DEADLINE_S)
        assert (one.sink.keys, one.sink.aborted, one.confirmed) == ([[b"a"]], [], [])
        assert one.given_up_groups == 0


async def test_close_aborts_when_the_commit_under_way_fails() -> None:
    async with world() as one:
        one.sink.gate.clear()
        one.sink.commit_error = SinkUnavailable("the broker has gone")
        await one.transaction(100, b"a")
        await one.until(one.sink.committing.is_set)
        one.task.cancel()
        await asyncio.wait([one.task])
        one.sink.gate.set()
        await asyncio.wait_for(one.writer.close(), DEADLINE_S)
        assert len(one.sink.aborted) == 1


async def test_close_with_nothing_open_touches_nothing() -> None:
    async with world() as one:
        await one.transaction(100, b"a")
        await one.until_confirmed(108)
        await one.writer.close()
        assert one.sink.aborted == []


# --- idle positions (F11, F13) ---


async def test_an_urgent_idle_position_is_stored_and_confirmed_at_once() -> None:
    """F13: a server that shuts down waits for the position. It is stored in Kafka before it is confirmed."""
    async with world() as one:
        await one.transaction(100, b"a")
        await one.until_confirmed(108)
        one.writer.idle(CommitPosition(100, 900, 5, transactions=0), is_urgent=True)
        await one.until_confirmed(900)
        assert one.sink.keys == [[b"a"], []]
        assert one.sink.groups[-1][1].commit_lsn == 100


async def test_a_position_that_is_urgent_while_another_one_is_committed_does_not_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """F13: a server that shuts down, or a comparison of a table, would wait for ten seconds."""
    monkeypatch.setattr(writer_module, "IDLE_PROGRESS_INTERVAL_US", 3_600_000_000)
    async with world() as one:
        await one.transaction(100, b"a")
        await one.until_confirmed(108)
        one.sink.gate.clear()
        one.sink.committing.clear()
        one.writer.idle(CommitPosition(100, 900, 5, transactions=0), is_urgent=True)
        await one.until(one.sink.committing.is_set)
        await turns()
        one.writer.idle(CommitPosition(100, 1000, 5, transactions=0), is_urgent=True)
        one.sink.gate.set()
        await one.until_confirmed(1000)
        assert one.confirmed == [108, 900, 1000]


async def test_an_idle_position_that_is_not_urgent_waits_its_interval() -> None:
    async with world() as one:
        await one.transaction(100, b"a")
        await one.until_confirmed(108)
        for lsn in (200, 300, 400):
            one.writer.idle(CommitPosition(100, lsn, 5, transactions=0), is_urgent=False)
            await turns()
        assert one.confirmed == [108]
        assert one.at_rest_lsns[-1] == 400, "who waits for it is answered at once"
        one.writer.idle(CommitPosition(100, 400, 5, transactions=0), is_urgent=True)
        await one.until_confirmed(400)
        assert one.confirmed == [108, 400]


async def test_an_idle_position_is_written_when_its_interval_is_over_also_if_nothing_more_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """F11: the server retains WAL until then; the first idle position after rows is written soon."""
    monkeypatch.setattr(writer_module, "FIRST_IDLE_PROGRESS_US", 50_000)
    async with world() as one:
        await one.transaction(100, b"a")
        await one.until_confirmed(108)
        one.writer.idle(CommitPosition(100, 900, 5, transactions=0), is_urgent=False)
        await one.until_confirmed(900)
        one.writer.idle(CommitPosition(100, 1000, 5, transactions=0), is_urgent=False)
        await turns()
        assert one.confirmed == [108, 900]
        monkeypatch.setattr(writer_module, "IDLE_PROGRESS_INTERVAL_US", 100_000)
    async with world() as one:
        await one.transaction(100, b"a")
        await one.until_confirmed(108)
        for lsn in (900, 1000):
            one.writer.idle(CommitPosition(100, lsn, 5, transactions=0), is_urgent=False)
            await one.until_confirmed(lsn)


async def test_an_idle_position_that_is_durable_already_writes_nothing() -> None:
    async with world() as one:
        await one.transaction(100, b"a")
        await one.until_confirmed(108)
        one.writer.idle(CommitPosition(100, 108, 5, transactions=0), is_urgent=True)
        await turns()
        assert len(one.sink.groups) == 1


async def test_an_idle_position_that_is_durable_is_written_again_if_the_sink_has_something_to_write_with_it() -> (
    None
):
    """The topics that lack rows: readers wait for the record on an idle server, too."""
    async with world() as one:
        await one.transaction(100, b"a")
        await one.until_confirmed(108)
        one.is_record_due = True
        one.writer.idle(CommitPosition(100, 108, 5, transactions=0), is_urgent=False)
        commit = one.sink.commit

        def written(progress: Progress) -> None:
            commit(progress)
            one.is_record_due = False

        one.sink.commit = written  # type: ignore[method-assign]
        await one.writer.flush()
        assert [progress.end_lsn for _, progress in one.sink.groups] == [108, 108]


async def test_a_snapshot_is_recorded_as_complete_also_when_all_its_rows_are_durable_already() -> None:
    """F40: the last commit position has no rows and no new LSN; without it the next start would copy all
    again."""
    snapshot = CommitPosition(0, 500, 5, transactions=0, phase="snapshot", snapshot_tables=("a",))
    async with world() as one:
        await one.writer.mark(snapshot)
        await one.writer.add(RecordChunk([Record("t", 0, b"a", b"v")], 10, snapshot))
        await one.until_confirmed(500)
        await one.writer.add(RecordChunk((), 0, CommitPosition(499, 500, 5, transactions=0)))
        await one.writer.flush()
        assert [progress.phase for _, progress in one.sink.groups] == ["snapshot", "snapshot", "streaming"]


async def test_an_idle_position_does_not_hurry_a_group() -> None:
    async with world(max_wait_us=HOUR_US) as one:
        await one.transaction(100, b"a")
        one.writer.idle(CommitPosition(100, 900, 5, transactions=0), is_urgent=False)
        await turns()
        assert one.sink.groups == []


# --- flush ---


@pytest.mark.parametrize(
    ("chunk", "has_advanced"),
    [
        (RecordChunk((), 0, commit_position(100)), True),
        (RecordChunk((Record("t", 0, b"k", b"v"),), 10, commit_position(5, part=PartPosition(100, 3))), True),
        (RecordChunk((Record("t", 0, b"k", b"v"),), 10, commit_position(100, phase="snapshot")), False),
        (RecordChunk((), 0, commit_position(5)), False),
    ],
    ids=["a position", "a part", "rows of a snapshot", "nothing new"],
)
async def test_it_has_advanced_when_something_of_the_stream_is_durable(
    chunk: RecordChunk, has_advanced: bool
) -> None:
    async with world(durable_lsn=commit_position(5).end_lsn) as one:
        assert not one.writer.has_advanced
        await one.writer.add(chunk)
        await one.writer.flush()
        assert one.writer.has_advanced is has_advanced


async def test_flush_does_not_wait_for_a_groups_time() -> None:
    async with world(max_wait_us=HOUR_US) as one:
        await one.transaction(100, b"a")
        await asyncio.wait_for(one.writer.flush(), DEADLINE_S)
        assert one.confirmed == [108]


async def test_flush_waits_for_the_commit_under_way_and_what_came_behind_it() -> None:
    async with world(max_wait_us=0) as one:
        one.sink.gate.clear()
        await one.transaction(100, b"a")
        await one.until(one.sink.committing.is_set)
        await one.transaction(200, b"b")
        flushing = asyncio.ensure_future(one.writer.flush())
        await turns()
        assert not flushing.done()
        one.sink.gate.set()
        await asyncio.wait_for(flushing, DEADLINE_S)
        assert one.confirmed == [108, 208]


async def test_flush_stores_an_idle_position() -> None:
    async with world() as one:
        await one.transaction(100, b"a")
        await one.until_confirmed(108)
        one.writer.idle(CommitPosition(100, 900, 5, transactions=0), is_urgent=False)
        await turns()
        await asyncio.wait_for(one.writer.flush(), DEADLINE_S)
        assert one.confirmed == [108, 900]


async def test_flush_stores_an_idle_position_behind_a_group_too() -> None:
    async with world(max_rows=1) as one:
        one.sink.gate.clear()
        await one.transaction(100, b"a")
        await one.until(one.sink.committing.is_set)
        one.writer.idle(CommitPosition(100, 900, 5, transactions=0), is_urgent=False)
        flushing = asyncio.ensure_future(one.writer.flush())
        one.sink.gate.set()
        await asyncio.wait_for(flushing, DEADLINE_S)
        assert one.confirmed == [108, 900]


async def test_a_flush_ends_while_transactions_are_added_all_the_time() -> None:
    """A command of a snapshot waits for its own position, and not for a pause of the stream."""
    async with world(max_wait_us=HOUR_US) as one:

        async def stream() -> None:
            for number in itertools.count(2):
                await one.transaction(100 * number, b"b")
                await asyncio.sleep(0)

        await one.transaction(100, b"a")
        streaming = asyncio.ensure_future(stream())
        try:
            await turns()
            await asyncio.wait_for(one.writer.flush(), DEADLINE_S)
            assert one.confirmed[-1] >= 108
        finally:
            streaming.cancel()


async def test_each_of_two_flushes_ends() -> None:
    async with world(max_wait_us=HOUR_US) as one:
        one.sink.gate.clear()
        await one.transaction(100, b"a")
        first = asyncio.ensure_future(one.writer.flush())
        await one.until(one.sink.committing.is_set)
        await one.transaction(200, b"b")
        second = asyncio.ensure_future(one.writer.flush())
        await turns()
        one.sink.gate.set()
        await asyncio.wait_for(asyncio.gather(first, second), DEADLINE_S)
        assert one.confirmed == [108, 208]


async def test_a_flush_waits_for_the_transaction_whose_beginning_is_in_the_group() -> None:
    async with world(max_wait_us=HOUR_US) as one:
        await one.transaction(100, b"a")
        await one.writer.add(rows(b"b"))
        await one.until(lambda: len(one.sink.open or ()) == 2)
        flushing = asyncio.ensure_future(one.writer.flush())
        await turns()
        assert not flushing.done()
        await one.transaction(200, b"c")
        await asyncio.wait_for(flushing, DEADLINE_S)
        assert one.confirmed == [208]


async def test_draining_leaves_a_partial_transaction_behind_complete_ones_alone() -> None:
    """F69: at a stop inside a transaction its beginning is discarded, and complete transactions become durable."""
    async with world(max_wait_us=HOUR_US) as one:
        await one.transaction(100, b"a")
        await one.writer.add(rows(b"b"))
        one.writer.drop_partial_tail()
        await asyncio.wait_for(one.writer.drain(), DEADLINE_S)
        assert one.sink.keys == [[b"a"]]
        assert one.confirmed == [108]


async def test_draining_ends_when_only_a_partial_transaction_is_in() -> None:
    async with world() as one:
        await one.writer.add(rows(b"a"))
        await one.until(lambda: bool(one.sink.open))
        await asyncio.wait_for(one.writer.drain(), DEADLINE_S)
        assert one.sink.groups == []


async def test_flush_with_nothing_to_do_returns() -> None:
    async with world() as one:
        await asyncio.wait_for(one.writer.flush(), DEADLINE_S)
        assert one.sink.groups == []


async def test_a_schema_goes_before_the_first_record_that_counts_on_it() -> None:
    """The schema is in the same Kafka transaction, and is served once that transaction is durable."""
    async with world(has_schemas=True) as one:
        assert one.schemas is not None
        await one.transaction(10, b"a")
        await one.until_confirmed(18)
        one.schemas.waiting = list(rows(b"schema").records)
        await one.transaction(20, b"b", b"c")
        await one.until_confirmed(28)
        assert one.sink.keys == [[b"a"], [b"schema", b"b", b"c"]]
        assert one.schemas.served == [b"schema"]


async def test_a_schema_that_another_has_taken_ends_the_epoch_with_nothing_visible() -> None:
    async with world(has_schemas=True) as one:
        assert one.schemas is not None
        one.schemas.waiting = list(rows(b"schema").records)
        one.schemas.error = SchemaIdTaken("taken")
        await one.transaction(10, b"a")
        with pytest.raises(SchemaIdTaken):
            await one.task
        await one.writer.close()
        assert (one.sink.groups, one.confirmed) == ([], [])
        assert one.sink.aborted == [[]]


async def test_closing_waits_for_a_schema_under_way() -> None:
    """The schema's thread uses the transaction that must be aborted."""
    async with world(has_schemas=True) as one:
        assert one.schemas is not None
        one.schemas.gate.clear()
        one.schemas.waiting = list(rows(b"schema").records)
        await one.transaction(10, b"a")
        await one.until(one.schemas.announcing.is_set)
        one.task.cancel()
        closing = asyncio.ensure_future(one.writer.close())
        await asyncio.sleep(0)
        assert one.sink.aborted == []
        one.schemas.gate.set()
        await closing
        assert [[record.key for record in group] for group in one.sink.aborted] == [[b"schema"]]


# --- maintenance tasks, which need exclusive use of the sink ---


async def test_maintenance_is_done_between_two_groups_and_not_inside_one() -> None:
    done: list[int] = []
    async with world() as one:
        await one.writer.add(rows(b"a"))
        await one.until(lambda: one.sink.open is not None)
        maintenance = asyncio.create_task(
            one.writer.between_groups(lambda: done.append(len(one.sink.groups)))
        )
        await turns()
        assert done == []
        await one.writer.add(end(100))
        await maintenance
        assert done == [1]
        await one.transaction(200, b"b")
        await one.until_confirmed(208)
        assert one.sink.keys == [[b"a"], [b"b"]]


async def test_maintenance_is_done_at_once_where_nothing_is_open() -> None:
    done: list[int] = []
    async with world() as one:
        await one.writer.between_groups(lambda: done.append(1))
        assert done == [1]


async def test_maintenance_that_fails_ends_the_writer() -> None:
    def fail() -> None:
        raise SinkUnavailable("no new producer")

    async with world() as one:
        maintenance = asyncio.create_task(one.writer.between_groups(fail))
        await one.until(one.task.done)
        assert isinstance(one.task.exception(), SinkUnavailable)
        maintenance.cancel()


async def test_maintenance_waits_for_a_mark() -> None:
    done: list[int] = []
    async with world() as one:
        one.sink.gate.clear()
        mark = asyncio.create_task(one.writer.mark(commit_position(0)))
        await one.until(one.sink.committing.is_set)
        maintenance = asyncio.create_task(
            one.writer.between_groups(lambda: done.append(len(one.sink.groups)))
        )
        await turns()
        assert done == []
        one.sink.gate.set()
        await asyncio.gather(mark, maintenance)
        assert done == [1]
