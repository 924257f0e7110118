"""The initial snapshot against a model of the server: its attempts, crashes at any step, and the stream after it.

In: a seeded `random.Random`; the core: `verdict`, `CopyProgress`, `Snapshotter`, `Pump`, `Floors`.
Out: a topic for each table, whose readers have the table's rows; each row and change is there once.
Other transactions commit between any two steps. A crash discards what Kafka has not committed; with at_least_once
Kafka has records before their progress record, and readers end with the table's rows. The next session begins with
the stored position. Only the glue of `session/snapshot_handover.py`, workers and writer are replaced.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from types import SimpleNamespace
from typing import Any, ClassVar

from cdcd.ack.group import CommitPosition, RecordChunk
from cdcd.ack.position_tracker import PositionTracker
from cdcd.avro.transaction import TransactionContext
from cdcd.errors import CdcdError, SourceSetup
from cdcd.model import (
    CopyState,
    Progress,
    Record,
    SourceIdentity,
    TransactionInfo,
)
from cdcd.pipeline.floors import Floors
from cdcd.pipeline.pump import Pump
from cdcd.pipeline.stream_progress import StreamProgress
from cdcd.pipeline.table_copies import TableCopies
from cdcd.recovery.start_decision import Resume, Snapshot, StartOptions, verdict
from cdcd.session.copy_workers import Piece
from cdcd.session.snapshot_copy import Snapshotter
from cdcd.session.snapshot_handover import _progress_of, _resume
from cdcd.snapshot.copy_progress import CopyProgress
from cdcd.snapshot.table import CopiedRows
from cdcd.snapshot.units import Blocks, CopyUnit
from cdcd.source.copyboth import cut_items
from cdcd.txn.assembler import Assembler
from tests.simulator import clock
from tests.simulator.initial_server import KEYS, Change, Rows, Server, Slot, apply
from tests.simulator.initial_topic import Plans, copied, decoded, payloads, relation_of, table_of
from tests.simulator.seeds import run_seeds
from tests.support.copydata import keepalive

WANTED = StartOptions("slot", create_slot=True, mode="initial")


class Crash(Exception):
    """The process ends."""


@dataclass
class Kafka:
    """The committed records, in order, and the stored position."""

    topic: list[Record] = field(default_factory=list)
    stored: Progress | None = None
    stored_before: list[Progress] = field(default_factory=list)

    def commit(self, records: Iterable[Record], position: CommitPosition, slot_lsn: int) -> None:
        """Commit a Kafka transaction with its progress record."""
        identity = SourceIdentity("1", 1, "shop", "slot", slot_lsn=slot_lsn)
        self.topic += records
        self.stored = Progress(
            identity,
            position.phase,
            position.commit_lsn,
            position.end_lsn,
            position.commit_us,
            snapshot_tables=position.snapshot_tables,
            prepared_before=position.prepared_before,
            part=position.part,
            copy=position.copy,
        )
        self.stored_before.append(self.stored)


class _Uncounted:
    """Metrics that are not recorded."""

    def __getattr__(self, _name: str) -> Any:
        return lambda *_args, **_named: None


class Workers:
    """Reads the units of an attempt, several at the same time, a few rows at a time. At times a table fails."""

    def __init__(self, simulation: Simulation, point: int, relids: Iterable[int]) -> None:
        self.estimates: Mapping[int, int | None] = {}
        self.partitions: Mapping[int, tuple[str, ...]] = {}
        self._simulation = simulation
        self._point = point
        self.units = [unit for relid in relids for unit in simulation.units_of(relid)]
        self._fails = simulation.unit_to_fail(self.units)
        self._failed: dict[int, CdcdError] = {}
        self._begun: set[CopyUnit] = set()

    def skipped(self, unit: CopyUnit) -> Piece:
        """Return what ends a unit of a failed table, which is not read."""
        return Piece(unit, self._failed[unit.table.relid])

    async def pieces(self) -> AsyncIterator[Piece]:
        """Yield the rows of the units, and the end of each."""
        random = self._simulation.random
        waiting, reading = iter(self.units), dict[CopyUnit, Iterator[CopiedRows]]()
        workers = 3 if self._fails is not None else random.randint(1, 3)
        while True:
            while len(reading) < workers and (unit := next(waiting, None)) is not None:
                reading[unit] = self._simulation.rows_of(unit, self._point)
            if not reading:
                return
            unit = random.choice(list(reading))
            piece = self._next(unit, reading[unit])
            if piece is None:
                continue
            if not isinstance(piece.rows, CopiedRows):
                del reading[unit]
            self._simulation.step()
            yield piece

    def _next(self, unit: CopyUnit, rows: Iterator[CopiedRows]) -> Piece | None:
        """Return the next piece of a unit; None: its error is noted, and queued after what other threads do first."""
        relid = unit.table.relid
        if relid in self._failed and unit not in self._begun:
            return self.skipped(unit)
        self._begun.add(unit)
        if unit != self._fails:
            return Piece(unit, next(rows, None))
        self._failed.setdefault(relid, SourceSetup("a row cannot be read", table=unit.table.title))
        return Piece(unit, self._failed[relid]) if self._simulation.random.random() < 0.2 else None


class Simulation:
    """One run: sessions that crash, a last one that does not, and the comparison."""

    floors: ClassVar[type[Floors]] = Floors
    copies: ClassVar[type[TableCopies]] = TableCopies
    progress: ClassVar[type[CopyProgress]] = CopyProgress
    snapshotter: ClassVar[type[Snapshotter]] = Snapshotter
    workers: ClassVar[type[Workers]] = Workers

    def __init__(self, seed: int) -> None:
        self.random = Random(f"{seed} initial")
        self.server = Server(self.random)
        self.kafka = Kafka()
        self.slot: Slot | None = None
        self.counts = Counter[str]()
        self._slot_lsn = 0
        self._crashes = self.random.choice([0, 2, 4, 8])
        self._odds = self.random.choice([0.03, 0.06, 0.15])
        self._unit_keys = self.random.choice([1, 3, KEYS])
        self._has_standby = Random(f"{seed} standby").random() < 0.5
        self._has_ranges = Random(f"{seed} ranges").random() < 0.5
        self._failures = Random(f"{seed} failures")
        self._is_failing = self._failures.random() < 0.25
        if self._is_failing:  # a table fails in most attempts, while three connections copy its ranges
            self._unit_keys, self._has_ranges = 3, True
            self._crashes, self._odds = max(self._crashes, 2), min(self._odds, 0.03)
        self._delivery = Random(f"{seed} delivery")
        self._is_at_least_once = self._delivery.random() < 0.5
        self._modes = Random(f"{seed} modes")
        self._later: tuple[int, ...] = ()
        """The tables that the present attempt leaves to an incremental snapshot."""
        self._giving_up = Random(f"{seed} given up")
        self._given_up = set[int]()
        """Tables that were excluded from the copy after an interruption: their changes are streamed."""
        self._open: list[Record] = []
        self._position: CommitPosition | None = None

    def run(self) -> Counter[str]:
        """Run it. Raises AssertionError."""
        for _ in range(self.random.randint(0, 30)):
            self.server.work()
        while self._crashes:
            try:
                clock.run(self.session(self.random.randint(1, 10)))
            except Crash:
                self._crashes -= 1
                self.counts["crashes"] += 1
                self._open, self._position = [], None
                self.lose_slot()
        self._odds = 0.0
        clock.run(self.session(1_000_000))
        self.judge()
        return self.counts

    def lose_slot(self) -> None:
        """Drop the slot of an incomplete snapshot at times: all tables are copied again then."""
        is_copying = self.kafka.stored is not None and self.kafka.stored.phase == "snapshot"
        if is_copying and self.random.random() < 0.1:
            self.slot = None
            self.counts["lost slots"] += 1

    # --- one session ---

    async def session(self, transactions: int) -> None:
        """Decide, copy, and stream at most this many transactions. Raises Crash."""
        server = SimpleNamespace(
            system_identifier="1", timeline=1, database="shop", wal_lsn=self.server.wal_lsn, in_recovery=False
        )
        begin = verdict(self.kafka.stored, self.slot, server, WANTED)
        resume = await self.snapshot(begin) if isinstance(begin, Snapshot) else begin
        await self.stream(resume, transactions)
        if self._odds:
            raise Crash

    async def snapshot(self, begin: Snapshot) -> Resume:
        """Do what `SnapshotHandover` does."""
        left = begin.left
        if left is None:
            marker = CommitPosition(begin.commit_lsn, begin.end_lsn, 1, 0, "snapshot", begin.begun_topics)
            self._slot_lsn = 0
            self.kafka.commit((), marker, self._slot_lsn)
            self.step()
            point = self._slot_lsn = self.server.point()
            self.slot = Slot(point)
            copied_at = point
            if self._has_standby:  # the snapshot of a standby is a later one
                self.counts["standbys"] += 1
                self.step()
                copied_at = self.server.point()
            progress = self.progress(
                point_lsn=copied_at,
                stream_lsn=point,
                written_commit_lsn=begin.commit_lsn,
                since_us=1,
                before_us=1,
                begun_topics=begin.begun_topics,
            )
            self._later = ()
            self._given_up = set()
            first = sorted(self.give_up(frozenset(self.server.tables)))
            await self.copy(progress, copied_at, first, self._given_up)
            return Resume(point, point - 1, None, progress.done().copy)
        # A start that streams continues tables; a later one, with `initial_only` or a standby, copies all again.
        is_streaming = self._odds > 0 and self._modes.random() < 0.3
        incomplete = self.give_up(self.left_of(left.state) | self.included_again(left.state))
        self._later = tuple(left.state.tables.keys() & incomplete) if is_streaming else ()
        anew = sorted(incomplete.difference(self._later))
        self.counts["continued"] += bool(self._later)
        self.counts["rests"] += bool(anew)
        point = self.server.point() if anew else left.state.point_lsn
        progress = _progress_of(begin, left, point, self._later)
        progress.__class__ = self.progress
        await self.copy(progress, point, anew)
        return _resume(left, progress)

    def left_of(self, state: CopyState) -> frozenset[int]:
        """Return the tables that an interrupted attempt has left."""
        return state.incomplete

    def included_again(self, state: CopyState) -> frozenset[int]:
        """Include tables again at times, before the snapshot is complete; return those that are to be copied now."""
        for relid in sorted(self._given_up):
            if self._giving_up.random() < 0.6:
                self._given_up.remove(relid)
        again = frozenset((*state.partial, *state.excluded)) - self._given_up
        self.counts["included again"] += bool(again)
        return again

    def give_up(self, incomplete: frozenset[int]) -> frozenset[int]:
        """Exclude a table at times, as an operator does whose table cannot be copied; return the others."""
        if incomplete and self._giving_up.random() < (0.6 if self._is_at_least_once else 0.3):
            self._given_up.add(self._giving_up.choice(sorted(incomplete)))
            self.counts["given up"] += 1
        return incomplete - self._given_up

    def unit_to_fail(self, units: list[CopyUnit]) -> CopyUnit | None:
        """Return the unit of this attempt at which its table fails, None if none does. The last attempt succeeds."""
        is_possible = bool(units) and self._odds > 0 and self._is_failing
        return self._failures.choice(units) if is_possible and self._failures.random() < 0.8 else None

    async def copy(
        self, progress: CopyProgress, point: int, relids: list[int], excluded: Iterable[int] = ()
    ) -> None:
        """Copy tables in the snapshot of a point."""
        self.step()
        progress.to_copy(relids, excluded)
        snapshotter = self.snapshotter(
            Plans(self.server.tables),  # type: ignore[arg-type]
            self.add,
            _context,
            _Uncounted(),
            progress,
            point_lsn=point,
            mark_first=self.mark if self._is_at_least_once else None,
        )
        tables = [(table_of(relid), relation_of(relid)) for relid in relids]
        workers: Any = self.workers(self, point, relids)
        if await snapshotter.run(tables, workers) is not None:
            self._position = progress.so_far()
            self.commit()
            self.counts["failures"] += 1
            raise Crash
        if self._later:
            raise Crash  # before the stream, which would continue them
        await self.add(RecordChunk((), 0, progress.done()))
        self.commit()
        self.counts["copies"] += 1

    def units_of(self, relid: int) -> list[CopyUnit]:
        """Divide a table into ranges of keys. The progress record has the ranges left, if a copy can continue."""
        table = replace(table_of(relid), can_continue=self._has_ranges)
        firsts = range(0, KEYS, self._unit_keys)
        ends = [*firsts[1:], None]
        return [
            CopyUnit(table, number, range=Blocks(0, 1, first, end))
            for number, (first, end) in enumerate(zip(firsts, ends, strict=True))
        ]

    def rows_of(self, unit: CopyUnit, point: int) -> Iterator[CopiedRows]:
        """Yield the rows of a unit, as a snapshot sees them."""
        keys = [f"key {key}" for key in range(KEYS) if key // self._unit_keys == unit.number]
        seen = self.server.rows_at(point, unit.table.relid)
        rows = [(key, seen[key]) for key in keys if key in seen]
        while rows:
            size = self.random.randint(1, 3)
            yield copied(unit.table.relid, rows[:size], point)
            del rows[:size]

    async def stream(self, begin: Resume, transactions: int) -> None:
        """Stream from a position, which the slot still has."""
        assert self.slot is not None
        start_lsn = self.random.choice([self.slot.confirmed_flush_lsn, begin.start_lsn])
        assert start_lsn <= begin.start_lsn
        assembler = Assembler(1, written_commit_lsn=begin.written_commit_lsn)
        pump = Pump(
            assembler,
            Plans(self.server.tables),  # type: ignore[arg-type]
            self,
            _context,
            _Uncounted(),
            StreamProgress(
                assembler,
                PositionTracker(begin.start_lsn, begin.written_commit_lsn),
                floors=self.floors(begin.copy),
                copies=self.copies(begin.copy),
            ),
        )
        received, described = start_lsn, set[int]()
        for _ in range(transactions):
            commit = next((one for one in self.server.commits if one.lsn >= received), None)
            if commit is None:
                break
            received = commit.end_lsn
            items, _ = cut_items([*payloads(commit, described), keepalive(commit.end_lsn)], False)
            await pump.feed(items)
            self.step()
            self.counts["streamed"] += 1
        self.commit()

    # --- what the pump and the snapshot write to ---

    async def add(self, chunk: RecordChunk) -> None:
        """Take records; at a position, a commit may follow."""
        self._open += chunk.records
        if self._is_at_least_once and self._delivery.random() < 0.3:
            self.send()
        if chunk.commit_position is not None:
            self._position = chunk.commit_position
            if self.random.random() < 0.3:
                self.commit()

    def idle(self, position: CommitPosition, *, is_urgent: bool) -> None:
        """Take a position without records."""
        self._position = position

    async def mark(self, position: CommitPosition) -> None:
        """Commit a progress record before the first records."""
        self.kafka.commit((), position, self._slot_lsn)
        self.counts["marks"] += 1
        self.step()
        if self._odds and self._delivery.random() < 0.3:
            raise Crash

    def send(self) -> None:
        """Send the records so far, before the progress record: a crash may follow."""
        self.kafka.topic += self._open
        self._open = []
        if self._delivery.random() < self._odds:
            raise Crash

    def commit(self) -> None:
        """Commit the records so far, and perhaps confirm their position."""
        if self._position is None:
            return
        if self._is_at_least_once:
            self.send()
        self.kafka.commit(self._open, self._position, self._slot_lsn)
        self._open = []
        self.judge_ranges()
        is_streaming = self._position.phase == "streaming"
        if is_streaming and self.slot is not None and self.random.random() < 0.5:
            self.slot.confirmed_flush_lsn = max(self.slot.confirmed_flush_lsn, self._position.end_lsn)

    def step(self) -> None:
        """Let others work, or crash."""
        while self.random.random() < 0.3 and len(self.server.commits) < 150:
            self.server.work()
        if self.random.random() < self._odds:
            raise Crash

    # --- the reader ---

    def judge(self) -> None:
        """Compare a strict reader's rows with the tables: each row is created before it is changed, and once."""
        found: dict[str, Rows] = defaultdict(dict)
        last: dict[str, tuple[int, int]] = {}
        for record in self.kafka.topic:
            event = decoded(record)
            rows, key = found[record.topic], event.key
            is_later, last[record.topic] = event.place > last.get(record.topic, (0, 0)), event.place
            assert is_later or self._is_at_least_once, "the numbers of a topic do not increase"
            if int(record.topic) in self._given_up or self._is_at_least_once:
                pass  # readers lack rows of it, and have no wrong ones; or rows and changes are repeated
            elif event.op in "rc":
                assert key not in rows, f"{event.op} of a row that exists"
            elif event.op in "ud":
                assert key in rows, f"{event.op} of a row that does not exist"
            change = Change(0, event.op.replace("r", "c"), key, event.value)
            apply(rows, change)
        for relid, rows in self.server.tables.items():
            if relid in self._given_up & self.of_a_lost_slot():
                continue  # it keeps the rows that were copied, without the changes up to the new slot
            if relid in self._given_up:
                assert found[str(relid)].items() <= rows.items(), (
                    "a reader has a row that the table does not have"
                )
            else:
                assert found[str(relid)] == rows, "the reader's rows differ from the table"
        self.judge_progress()

    def of_a_lost_slot(self) -> set[int]:
        """Return the tables whose topics have copied rows of an earlier slot, and no truncate event after them."""
        found = set[int]()
        for record in self.kafka.topic:
            event, relid = decoded(record), int(record.topic)
            if event.op == "t":
                found.discard(relid)
            elif event.op == "r" and event.place[0] + 1 < self._slot_lsn:
                found.add(relid)
        return found

    def judge_progress(self) -> None:
        """A table that is complete is not copied again, and what is done leaves no trace in the position."""
        complete: dict[int, int] = {}
        listed: set[int] = set()
        for stored in self.kafka.stored_before:
            if stored.phase == "snapshot" and stored.copy is None:
                complete, listed = {}, set()
            elif stored.phase == "snapshot" and stored.copy is not None:
                listed |= set(stored.copy.pending)
                for relid in listed.difference(stored.copy.pending, stored.copy.partial):
                    complete.setdefault(relid, stored.copy.point_lsn)
        again = [relid for relid, point in complete.items() if relid in self.copied_after(point)]
        assert not again, "a complete table is copied again"
        self.counts["kept"] += sum(self.copied_after(point) != set() for point in complete.values())
        stored = self.kafka.stored
        assert stored is not None
        assert stored.phase == "streaming"
        if self.server.commits and self.server.commits[-1].lsn >= (stored.copy or CopyState()).point_lsn:
            assert stored.copy is None or not stored.copy.floors, "floors are kept behind their points"

    def judge_ranges(self) -> None:
        """Each row of a range that the progress record does not have as left is committed."""
        stored = self.kafka.stored
        if stored is None or stored.phase != "snapshot" or stored.copy is None:
            return
        for relid, state in stored.copy.tables.items():
            if relid in self._later:
                continue  # its ranges are of an earlier point
            left = [Blocks.parse(text) for text in state.after or ()]
            complete = {key for key in range(KEYS) if not any(_has(one, key) for one in left)}
            keys = {f"key {key}" for key in complete} & self.server.rows_at(
                stored.copy.point_lsn, relid
            ).keys()
            assert keys <= self.copied_keys(relid), "a range is complete whose rows are not committed"
            self.counts["ranges"] += bool(complete)

    def copied_keys(self, relid: int) -> set[str]:
        """Return the keys of the copied rows of the last attempt."""
        keys = set[str]()
        for event in (decoded(record) for record in self.kafka.topic if record.topic == str(relid)):
            if event.op == "t":
                keys = set()
            elif event.op == "r":
                keys.add(event.key)
        return keys

    def copied_after(self, point: int) -> set[int]:
        """Return the tables with rows of a later snapshot."""
        events = ((int(record.topic), decoded(record)) for record in self.kafka.topic)
        return {relid for relid, event in events if event.op == "r" and event.place[0] + 1 > point}


def _has(blocks: Blocks, key: int) -> bool:
    return blocks.first <= key and (blocks.end is None or key < blocks.end)


def _context(info: TransactionInfo) -> TransactionContext:
    return TransactionContext(info, timeline=1, name="shop", database="shop", now_us=1, version="1")


def main() -> int:
    """Run the seeds. Return 1 if any of them failed."""
    return run_seeds(
        "python -m tests.simulator.initial", __doc__, lambda seed: Simulation(seed).run(), 10_000
    )


if __name__ == "__main__":
    sys.exit(main())
