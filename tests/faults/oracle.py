"""The oracle compares the topics with PostgreSQL's own history of the changes. Pure.

In: blocks of a run, one after another (`facts`).  Out: findings, each with the letter of the broken assertion:
(a) no loss, (b) nothing invented, (c) each once, (d) order, (e) atomicity, (f) the folded and the compacted topic
are equal to the table, (g) values before and after, (h) schemas, (i) nothing confirmed that is not durable, (j) the
stream continues the snapshot, (k) liveness, and true lag metrics.
Invariant: each assertion is a function on plain data (`assertions`); only `Memory` lasts from block to block.
With `at_least_once` the repetitions after a start are no finding; all assertions hold for the first occurrences.
Must not: know how anything was read, nor share code with cdcd.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from tests.faults.assertions.compacted import Left, compact, compacted
from tests.faults.assertions.durable import cut_at_commits, live, safe, stable
from tests.faults.assertions.folds import Fold, fold_changes, fold_events, folded
from tests.faults.assertions.lags import truthful
from tests.faults.assertions.partitions import in_order, one_partition_per_key, readable, tombstones
from tests.faults.assertions.repeats import covered, first_ones, replayed
from tests.faults.assertions.snapshots import as_of_its_position, copied_once, joined, snapshot_point
from tests.faults.assertions.transactions import as_committed
from tests.faults.facts import Block, Finding, Key, Order, Place, Point, Progress, Table


@dataclass
class Memory:
    """The state after the blocks before."""

    last_sequence: dict[Place, Order] = field(default_factory=dict)
    partition_of: dict[tuple[str, Key], int] = field(default_factory=dict)
    last_end_lsn: int = 0
    truth: dict[str, Fold] = field(default_factory=dict)
    topic: dict[str, Fold] = field(default_factory=dict)
    left: Left = field(default_factory=dict)
    progress: Progress | None = None
    offsets: dict[Place, int] = field(default_factory=dict)
    seen_live: set[tuple[str, int, int]] = field(default_factory=set)
    committed: list[Progress] = field(default_factory=list)
    point: Point | None = None


class Oracle:
    """Judges the blocks of a run, one after another."""

    def __init__(self, tables: Sequence[Table], delivery: str = "exactly_once") -> None:
        self.tables = {table.name: table for table in tables}
        self.delivery = delivery
        self.memory = Memory()
        self.repetitions = 0
        """The number of repeated records, which `at_least_once` allows."""
        for table in tables:
            self.memory.truth[table.name] = Fold(table)
            self.memory.topic[table.name] = Fold(table)

    def judge(self, block: Block) -> list[Finding]:
        """Return all findings in this block, and remember its end."""
        memory, tables = self.memory, self.tables
        findings: list[Finding] = []
        compact(memory.left, block.events)  # including repetitions: the last record of a key is the same
        if self.delivery == "at_least_once":
            events, findings = first_ones(block.events, memory.last_sequence, tables)
            findings += replayed(block.events, block.progress, memory.progress)
            self.repetitions += len(block.events) - len(events)
            block = replace(block, events=tuple(events))
        point = snapshot_point(block.progress, memory.progress, block.names) or memory.point
        streamed = [one for one in block.events if not one.is_snapshot and one.op != "x" and not one.is_odd]
        findings += [
            *readable(block.events),
            *in_order(block.events, memory.last_sequence),
            *one_partition_per_key(block.events, memory.partition_of),
            *as_committed(block, streamed, tables, memory.last_end_lsn, point),
            *tombstones(block.events, tables),
            *joined(block, tables, memory.truth, point, memory.point),
            *copied_once(block),
            *as_of_its_position(block, tables, memory.truth),
            *self._visible(block),
            *safe(block.samples, block.progress, memory.committed),
            *stable(block, memory.seen_live),
            *live(block),
            *truthful(
                block.lags, block.transactions, memory.committed, None if point is None else point.last_lsn
            ),
        ]
        self._remember(block, point)
        return [
            *findings,
            *folded(block.rows, memory.truth, memory.topic),
            *compacted(block.rows, memory.left, tables),
        ]

    def _visible(self, block: Block) -> Iterator[Finding]:
        memory = self.memory
        if self.delivery == "at_least_once":
            return covered(block.progress, block.events, memory.progress, memory.offsets)
        return cut_at_commits(block.progress, block.events, memory.progress, memory.offsets)

    def _remember(self, block: Block, point: Point | None) -> None:
        memory = self.memory
        memory.point = point
        for transaction in block.transactions:
            memory.last_end_lsn = max(memory.last_end_lsn, transaction.end_lsn)
            fold_changes(memory.truth, transaction.changes)
        fold_events(memory.topic, block.events)
        if block.progress:
            memory.progress = block.progress[-1]
