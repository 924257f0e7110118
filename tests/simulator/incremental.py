"""One simulation of an incremental snapshot: a server, the core of the daemon, crashes at any step, and a reader.

In: a seed.  Out: what happened, or an AssertionError.
Chunks are read in snapshots taken at one moment and emitted at another. Transactions become visible in another order
than their commit records, and arrive late. A crash restores the state of the last committed progress record, and the
stream is replayed from there or from an earlier position. Each committed record is judged (incremental_topic.py); at
the end the reader must have exactly the table's rows, with all their values.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import ClassVar

from cdcd.model import KeyValues, Record, TableCopyState
from cdcd.snapshot.changed_keys import ChangedKeys
from cdcd.snapshot.table_copy import (
    Chunk,
    ChunkPosition,
    KeysChunk,
    RangeChunk,
    TableCopy,
    chunk_position,
)
from cdcd.snapshot.visibility import Snapshot
from tests.simulator.incremental_server import BLOCKS, KEYS, Change, Commit, Row, Server
from tests.simulator.incremental_topic import Event, Reader, Table
from tests.simulator.seeds import run_seeds

STEPS = 160
ROUNDS_AT_THE_END = 400


class Crash(Exception):
    """The daemon ends; what is not committed is lost."""


@dataclass(frozen=True)
class Profile:
    """The odds of one simulation. `copy_at`: the step at which the copy begins; `activity`: of the applications."""

    crash: float
    receive: float
    read: float
    commit: float
    is_by_blocks: bool
    is_resumed: bool
    chunk_rows: int
    max_bytes: int
    max_keys: int
    copy_at: int
    toasted: float
    delay: float
    split: float
    activity: float
    is_compared: bool

    @classmethod
    def drawn(cls, random: Random) -> Profile:
        """Return random odds."""
        return cls(
            crash=random.choice((0, 0, 0.01, 0.04)),
            receive=random.choice((0.15, 0.3, 0.5)),
            read=random.choice((0.1, 0.3, 0.6)),
            commit=random.choice((0.05, 0.2, 0.5)),
            is_by_blocks=random.random() < 0.3,
            is_resumed=random.random() < 0.3,
            chunk_rows=random.choice((1, 2, 3, 20)),
            max_bytes=random.choice((1200, 3000, 1 << 20, 1 << 20)),
            max_keys=random.choice((1, 2, 100, 100)),
            copy_at=random.choice((0, 5, 40)),
            toasted=random.choice((0, 0.5, 0.9)),
            delay=random.choice((0, 0.6, 0.95)),
            split=random.choice((0, 0.2, 0.8)),
            activity=random.choice((0.04, 0.3, 0.7, 1)),
            is_compared=random.random() < 0.4,
        )


@dataclass(frozen=True)
class Progress:
    """The progress record: `covered_lsn` is received, `written_lsn` is the last transaction's commit LSN.

    `part`: so many changes of the next transaction are written as well. `copy` None: the copy has not begun.
    """

    covered_lsn: int
    written_lsn: int = 0
    part: int = 0
    copy: TableCopyState | None = None
    chunk: ChunkPosition | None = None


class Simulation:
    """The server, the topic, and one daemon after another. Planted bugs are subclasses of it."""

    tracker: ClassVar[type[ChangedKeys]] = ChangedKeys
    odds: ClassVar[dict[str, float]] = {}
    """The odds that a planted bug needs to be detected soon."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.profile = replace(Profile.drawn(self.random), **self.odds)
        self.server = Server(self.random, toasted=self.profile.toasted, delay=self.profile.delay)
        self.events: list[Event] = []
        self.reader = Reader(self.server.history, self.server)
        self.table = Table(self.server.first_rows)
        self.progress = self.begin_with_an_initial_copy() if self.profile.is_resumed else self.begin_late()
        self.counts: Counter[str] = Counter()
        self.start()

    def begin_late(self) -> Progress:
        """Let the stream begin after some commits, which the reader never receives; it may have earlier rows."""
        if self.profile.is_compared:
            self.reader.begin_with(self.server.rows)
        for _ in range(self.random.choice((0, 30))):
            self.server.step()
        commits = self.server.commits
        first_lsn = commits[-1].end_lsn if commits else self.server.insert_lsn
        return Progress(first_lsn, first_lsn - 1)

    def begin_with_an_initial_copy(self) -> Progress:
        """Let an initial copy end after some ranges of blocks: its snapshot is gone, the stream begins at its LSN."""
        point = self.server.insert_lsn
        end = self.random.randrange(BLOCKS + 1)
        copied = [(key, row) for key, row in self.server.rows.items() if row.block < end]
        self.reader.read(
            [
                Event(Change("r", key, row.version, row.big), point - 1, number)
                for number, (key, row) in enumerate(copied, 1)
            ]
        )
        state = TableCopyState(after=(str(end),), is_by_blocks=True)
        return Progress(point, point - 1, copy=state, chunk=ChunkPosition(point - 1, len(copied)))

    # --- the daemon's session ---

    def start(self) -> None:
        """Begin a session at the stored position, or at an earlier one: written transactions are then dropped."""
        self.pending: list[Event] = []
        self.now = self.progress
        ends = [one.end_lsn for one in self.server.commits if one.end_lsn < self.now.covered_lsn]
        self.covered_lsn = self.now.covered_lsn
        if ends and self.random.random() < 0.5:
            self.covered_lsn = self.random.choice([*ends, self.covered_lsn])
        self.next_commit = sum(one.end_lsn <= self.covered_lsn for one in self.server.commits)
        self.copy: TableCopy | None = None
        self.reading: Generator[None] | None = None
        if self.now.copy is not None:
            self.begin_copy(self.now.copy)

    def order_copy(self) -> None:
        """Order the copy, unless that is recorded already; a crash before the first progress record forgets it."""
        if self.copy is None and self.now.copy is None:
            compared_from = (0,) if self.reader.stale else None
            self.begin_copy(
                TableCopyState(is_by_blocks=self.profile.is_by_blocks, compared_from=compared_from)
            )

    def begin_copy(self, state: TableCopyState) -> None:
        """Begin to track the table at the current position of the stream."""
        if not state.is_complete:
            changed = self.tracker(self.profile.max_bytes)
            self.copy = TableCopy(state, changed, max_keys=self.profile.max_keys, keys_per_chunk=3)
            self.reading = self.read_chunks(self.copy)

    def step(self) -> None:
        """Let the daemon do one thing at random."""
        profile, draw = self.profile, self.random.random()
        try:
            if draw < profile.crash:
                raise Crash
            if self.random.random() < profile.receive:
                self.receive()
            if self.reading is not None and self.random.random() < profile.read:
                next(self.reading, None)
            if self.random.random() < profile.commit:
                self.commit()
        except Crash:
            self.counts["crashes"] += 1
            self.start()

    def receive(self) -> None:
        """Receive the next transaction or a keepalive."""
        commits = self.server.commits
        if self.next_commit == len(commits) or self.random.random() < 0.3:
            end = (
                commits[self.next_commit].commit_lsn
                if self.next_commit < len(commits)
                else self.server.insert_lsn
            )
            self.covered_lsn = max(self.covered_lsn, self.random.choice((end, self.covered_lsn)))
        else:
            commit = commits[self.next_commit]
            self.next_commit += 1
            self.transaction(commit)

    def transaction(self, commit: Commit) -> None:
        """Write a transaction's records, unless they are written already; sometimes in two parts."""
        if commit.commit_lsn > self.now.written_lsn:
            copy = self.copy
            if copy is not None:
                copy.changed.committed(commit.xid)
                self.note(copy, commit)
            events = [
                Event(change, commit.commit_lsn, number) for number, change in enumerate(commit.changes, 1)
            ]
            skipped, self.now = self.now.part, replace(self.now, part=0)
            size = len(events)
            if skipped < size - 1 and self.random.random() < self.profile.split:
                part = self.random.randrange(skipped + 1, size)
                self.pending += events[skipped:part]
                self.now = replace(self.now, part=part)
                self.commit()
                if self.random.random() < 0.5:
                    raise Crash
                skipped, self.now = part, replace(self.now, part=0)
            self.pending += events[skipped:]
            self.now = replace(self.now, written_lsn=commit.commit_lsn)
        self.covered_lsn = max(self.covered_lsn, commit.end_lsn)

    def note(self, copy: TableCopy, commit: Commit) -> None:
        """Note what a transaction has changed."""
        for change in commit.changes:
            if change.kind == "t":
                copy.changed.note_truncate(commit.xid)
                continue
            keys = {name(key) for key in (change.key, change.old_key) if key is not None}
            is_unsent = change.kind in "uk" and change.big is None
            incomplete = {name(change.key): (str(change.key),)} if is_unsent else {}
            moved = {name(change.key): name(change.old_key)} if change.old_key is not None else {}
            copy.note(commit.xid, keys, incomplete, moved)

    def commit(self) -> None:
        """Commit the Kafka transaction: the records, and the progress record with the copy's state."""
        state = self.now.copy if self.copy is None else self.copy.state
        covered_lsn = max(self.covered_lsn, self.now.covered_lsn)
        self.progress = self.now = replace(self.now, covered_lsn=covered_lsn, copy=state)
        self.reader.read(self.pending)
        self.events += self.pending
        self.pending = []
        if self.now.part == 0 and state is not None:
            self.table.advance(self.server.commits, self.now.written_lsn)
            again = [int(values[0]) for values in state.read_again.values()]
            self.reader.check(self.table, self.read_keys(state), again)

    @staticmethod
    def read_keys(state: TableCopyState) -> Iterable[int]:
        """Return the keys that the copy has passed; in the order of the file only at the end."""
        if state.is_scanned:
            return range(KEYS)
        is_begun = state.after is not None and not state.is_by_blocks
        return range(int(state.after[0]) + 1) if is_begun and state.after else ()

    # --- the chunks ---

    def read_chunks(self, copy: TableCopy) -> Generator[None]:
        """Read and emit chunks until the copy is complete; each yield is a moment in which anything may happen."""
        yield
        candidates = self.candidates()
        copy.changed.refuse_until_visible(candidates)
        yield
        keys: list[int] | None = None
        while (chunk := copy.next_chunk()) is not None or copy.state.compared_from is not None:
            if chunk is None and keys is None:
                keys = self.keys_of_the_topic()
                yield
                continue
            if chunk is None and not keys:
                copy.state = replace(copy.state, compared_from=None)
                continue
            snapshot, rows, file = self.snapshot(), dict(self.server.rows), self.server.file
            if not copy.may_read(snapshot):
                self.counts["waits"] += 1
                copy.changed.settle(self.random.sample(idle := self.server.idle_xids, len(idle) // 2))
                yield
                continue
            yield
            while self.server.is_locked:
                yield
            if self.server.file != file:  # F81
                self.counts["files"] += 1
                continue
            end_lsn = self.server.insert_lsn
            if chunk is None:
                assert keys is not None
                yield
                while not self.is_received_to_compare(end_lsn):
                    yield
                if self.compare(copy, snapshot, keys[:3], rows):
                    keys = keys[3:]
                continue
            found, after = self.chunk_rows(chunk, rows)
            yield
            while not self.is_received(end_lsn):
                yield
            yield from self.emit_slices(copy, chunk, snapshot, found, after)
        self.finish(copy)

    # --- rows that only the reader has ---

    def keys_of_the_topic(self) -> list[int]:
        """Return all keys that may be gone, and some others: nothing depends on how well they are chosen."""
        others = [key for key in range(KEYS) if self.random.random() < 0.3]
        return sorted({*self.reader.stale, *others})

    def is_received_to_compare(self, end_lsn: int) -> bool:
        """Return whether everything committed before the end of the rows' snapshot was received."""
        return self.is_received(end_lsn)

    def compare(self, copy: TableCopy, snapshot: Snapshot, keys: list[int], rows: dict[int, Row]) -> bool:
        """Write the deletes of keys without rows; return False if they have to be looked up again."""
        records = [Record("topic", 0, name(key), b"") for key in keys if key in rows]
        found = copy.compare(snapshot, [name(key) for key in keys], records)
        if found is None:
            self.counts["compared again"] += 1
            return False
        self.counts["gone"] += len(found.gone)
        commit_lsn, tx_seq = chunk_position(self.now.chunk, self.covered_lsn)
        for key in found.gone:
            tx_seq += 1
            self.pending.append(Event(Change("x", int(key), 0), commit_lsn, tx_seq))
        self.now = replace(self.now, chunk=ChunkPosition(commit_lsn, tx_seq))
        self.write(found.rows, rows)
        return True

    def emit_slices(
        self, copy: TableCopy, chunk: Chunk, snapshot: Snapshot, rows: dict[int, Row], after: KeyValues | None
    ) -> Generator[None]:
        """Write a chunk's rows in one or more slices; anything may happen between them."""
        current: Chunk | None = chunk
        slices = self.slices(chunk, rows, after)
        for number, (some, end) in enumerate(slices, 1):
            refused = self.counts["refused"]
            if current is not None:
                self.emit(copy, current, snapshot, some, end)
            if current is None or self.counts["refused"] > refused or number == len(slices):
                return
            assert end is not None
            yield
            current = copy.next_in_range(end)
            self.counts["slices"] += current is not None

    def slices(
        self, chunk: Chunk, rows: dict[int, Row], after: KeyValues | None
    ) -> list[tuple[dict[int, Row], KeyValues | None]]:
        """Return parts of a range's rows, each with its end: a range of blocks counts as read with its last rows."""
        assert self.copy is not None
        is_by_blocks = self.copy.state.is_by_blocks
        is_whole = isinstance(chunk, KeysChunk) or (is_by_blocks and chunk.after is None)
        if is_whole or len(rows) < 2 or self.random.random() < 0.5:
            return [(rows, after)]
        keys = list(rows)
        size = self.random.randrange(1, len(keys))
        parts = [keys[at : at + size] for at in range(0, len(keys), size)]
        ends: list[KeyValues | None] = [
            chunk.after if is_by_blocks and isinstance(chunk, RangeChunk) else (str(part[-1]),)
            for part in parts
        ]
        return [
            ({key: rows[key] for key in part}, end)
            for part, end in zip(parts, [*ends[:-1], after], strict=True)
        ]

    def candidates(self) -> Iterable[int]:
        """Return the transactions that may have committed before the tracked part of the stream."""
        return self.server.running_xids

    def snapshot(self) -> Snapshot:
        """Return the visibility of a new snapshot."""
        return Snapshot.parse(self.server.snapshot_text)

    def is_received(self, end_lsn: int) -> bool:
        """Return whether everything committed before the chunk's end was received."""
        return self.covered_lsn >= end_lsn

    def chunk_rows(self, chunk: Chunk, rows: dict[int, Row]) -> tuple[dict[int, Row], KeyValues | None]:
        """Return a chunk's rows, and the end of its range."""
        if isinstance(chunk, KeysChunk):
            return {key: row for key, row in rows.items() if name(key) in chunk.keys}, None
        assert self.copy is not None
        if self.copy.state.is_by_blocks:
            return self.block_rows(chunk, rows)
        after = -1 if chunk.after is None else int(chunk.after[0])
        keys = sorted(key for key in rows if key > after)[: self.profile.chunk_rows]
        is_last = len(keys) < self.profile.chunk_rows
        return {key: rows[key] for key in keys}, None if is_last else (str(keys[-1]),)

    def block_rows(self, chunk: RangeChunk, rows: dict[int, Row]) -> tuple[dict[int, Row], KeyValues | None]:
        """Return the rows of the next blocks, and where they end."""
        begin = 0 if chunk.after is None else int(chunk.after[0])
        end = begin + self.profile.chunk_rows
        found = {key: row for key, row in rows.items() if begin <= row.block < end}
        return found, None if end >= BLOCKS else (str(end),)

    def emit(
        self, copy: TableCopy, chunk: Chunk, snapshot: Snapshot, rows: dict[int, Row], after: KeyValues | None
    ) -> None:
        """Write the chunk's records, without the outdated ones, in the open Kafka transaction."""
        records = [Record("topic", 0, name(key), b"") for key in rows]
        emitted = copy.emit(chunk, snapshot, records, after)
        if emitted is None:
            self.counts["refused"] += 1
            return
        self.counts["chunks"] += 1
        self.counts["dropped"] += len(records) - len(emitted)
        self.counts["read again"] += isinstance(chunk, KeysChunk)
        self.write(emitted, rows)

    def write(self, emitted: Sequence[Record], rows: dict[int, Row]) -> None:
        """Write these records with the sequences of a chunk."""
        commit_lsn, tx_seq = chunk_position(self.now.chunk, self.covered_lsn)
        for record in emitted:
            assert record.key is not None
            row, tx_seq = rows[int(record.key)], tx_seq + 1
            self.pending.append(Event(Change("r", int(record.key), row.version, row.big), commit_lsn, tx_seq))
        self.now = replace(self.now, chunk=ChunkPosition(commit_lsn, tx_seq))

    def finish(self, copy: TableCopy) -> None:
        """End the tracking."""
        self.now = replace(self.now, copy=copy.state)
        self.copy = self.reading = None

    # --- the whole run ---

    def run(self) -> Counter[str]:
        """Run all steps, then let everything end; the reader must have the table's rows."""
        for number in range(STEPS):
            if self.random.random() < self.profile.activity:
                self.server.step()
            if number >= self.profile.copy_at:
                self.order_copy()
            self.step()
        self.end()
        self.judge()
        return self.counts

    def end(self) -> None:
        """Let all transactions end, and the copy."""
        for _ in range(ROUNDS_AT_THE_END):
            if self.server.running and self.random.random() < 0.5:
                one = self.random.choice(self.server.running)
                (self.server.make_visible if one.has_record else self.server.finish)(one)
            self.receive_at_the_end()
            is_received = not self.server.running and self.next_commit == len(self.server.commits)
            if self.reading is None and is_received:
                break
            if self.reading is not None:
                next(self.reading, None)
            self.order_copy()
        assert self.reading is None, "the copy does not end"
        self.commit()

    def receive_at_the_end(self) -> None:
        """Receive without a crash."""
        try:
            self.receive()
        except Crash:
            self.start()

    def judge(self) -> None:
        """Compare the reader's rows with the table."""
        expected = {key: (row.version, row.big) for key, row in self.server.rows.items()}
        assert self.reader.rows == expected, "the reader's rows differ from the table"
        streamed = {event.change.key for event in self.events if event.change.kind != "r"}
        truncated = any(event.change.kind == "t" for event in self.events)
        unchanged = {row.version for key, row in self.server.rows.items() if key not in streamed}
        assert truncated or unchanged <= self.reader.copied, "a row that never changed is not copied"


def name(key: int) -> bytes:
    """Return the key of a row's records."""
    return str(key).encode()


def main() -> int:
    """Run the seeds. Return 1 if any of them failed."""
    return run_seeds(
        "python -m tests.simulator.incremental", __doc__, lambda seed: Simulation(seed).run(), 100_000
    )


if __name__ == "__main__":
    sys.exit(main())
