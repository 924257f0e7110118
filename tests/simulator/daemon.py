"""The daemon's pure core as one session has it: assembler, pump, groups, safe LSN; Kafka is a list.

In: items of one walsender session.  Out: `Kafka`: complete transactions in the order in which they became durable,
and the position of the last progress record.
Invariant: what is not durable when the session ends is forgotten, as in a crash; the clock is a count of batches.
Must not: decide anything that the core decides; only the encoding is left out, a record is what a row says.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

from cdcd.ack.group import Boundary, Chunk, Group, GroupLimits, SafeLsn
from cdcd.avro.transaction import TransactionContext
from cdcd.model import Item, PreparedBefore, Relation, Run, TransactionInfo
from cdcd.pgoutput import messages as m
from cdcd.pgoutput.decode import decode
from cdcd.runtime.pump import Pump
from cdcd.source.settings import StreamOptions
from cdcd.txn.assembler import Assembler
from cdcd.txn.events import (
    Event,
    LogicalMessage,
    RelationSeen,
    Rows,
    TransactionBegun,
    TransactionCommitted,
    Truncated,
)

Seen = tuple[object, ...]
LOOSE = None
"""In place of a transaction's head."""


@dataclass
class Kafka:
    """What has become durable. `ends`: each position that was stored, any of which a slot may stand at."""

    transactions: list[tuple[Seen, list[Seen]]] = field(default_factory=list)
    loose: list[object] = field(default_factory=list)
    progress: Boundary = field(default_factory=lambda: Boundary(0, 0, 0))
    ends: list[int] = field(default_factory=lambda: [0])
    commit_lsns: set[object] = field(default_factory=set)

    def commit(self, chunks: Iterable[Chunk], progress: Boundary) -> None:
        """Take one Kafka transaction: whole PostgreSQL transactions and a progress record."""
        whats: list[Any] = []
        for chunk in chunks:
            whats += chunk.records
            if chunk.boundary is not None and whats:
                self._take(whats, chunk.boundary)
                whats = []
        assert not whats, "a part of a transaction is committed"
        assert progress.end_lsn >= self.progress.end_lsn, "what may be confirmed moves back (F3)"
        self.progress = progress
        self.ends.append(progress.end_lsn)

    def _take(self, whats: list[tuple[TransactionInfo | None, Seen]], boundary: Boundary) -> None:
        (info,) = {info for info, _ in whats}
        if info is LOOSE:
            self.loose += [what for _, what in whats]
        else:
            assert boundary.commit_lsn == info.commit_lsn
            head = (info.xid, info.commit_lsn, boundary.covered_lsn, info.origin)
            self.commit_lsns.add(info.commit_lsn)
            self.transactions.append((head, [what for _, what in whats]))


class _Watched(Assembler):
    """An assembler whose events are looked at on their way: their order, and none before its commit was sent."""

    _visible: set[int]
    _open: TransactionInfo | None = None

    def feed(self, item: Item) -> Iterator[Event]:
        """Note which transaction may be seen from now on."""
        self._visible = getattr(self, "_visible", set())
        payload = getattr(item, "payload", b" ")
        at = {b"B": 1, b"c": 6, b"K": 2}.get(payload[:1])
        if at is not None:
            self._visible.add(int.from_bytes(payload[at : at + 8], "big"))
        return self._looked_at(super().feed(item))

    def _looked_at(self, events: Iterator[Event]) -> Iterator[Event]:
        for event in events:
            if isinstance(event, TransactionBegun):
                assert self._open is None, "a transaction inside another"
                assert event.info.commit_lsn in self._visible, "seen before its commit"
                self._open = event.info
            elif isinstance(event, LogicalMessage):
                assert event.transactional == (self._open is not None)
            elif not isinstance(event, RelationSeen):  # which also a prepared transaction may tell (F33)
                assert self._open is not None, "a change outside of a transaction"
            if isinstance(event, TransactionCommitted):
                assert event.info == self._open
                self._open = None
            yield event


class _Pump(Pump):
    """The pump, where a record is (the transaction, what a row says with the columns in force then)."""

    relations: dict[int, Relation]

    async def _relation(self, event: RelationSeen) -> None:
        self.relations[event.relation.relid] = event.relation

    async def _row_run(self, event: Rows) -> None:
        if self._tx is not None:
            await self._said(_rows(event.run, self.relations))

    async def _truncated(self, event: Truncated) -> None:
        tables = tuple((one.relid, tuple(c.name for c in one.columns)) for one in event.relations)
        if self._tx is not None:
            await self._said([("T", tables, event.cascade, event.restart_identity)])

    async def _said(self, whats: Iterable[Seen]) -> None:
        assert self._tx is not None
        records: list[Any] = [(self._tx.info, what) for what in whats]
        await self._hand_on(records, len(records))


class _Plans:
    """Logical messages are written by the plans."""

    async def logical_message(self, message: LogicalMessage, tx: TransactionContext | None) -> Any:
        return (LOOSE, message.content) if tx is None else (tx.info, ("M", message.content))


class _Uncounted:
    """Nobody looks at the metrics."""

    def __getattr__(self, _name: str) -> Callable[..., None]:
        return lambda *_args, **_named: None


@dataclass(frozen=True)
class Daemon:
    """What the daemon has beside the stream: what may be lost (F33), and the server's account of subtransactions."""

    prepared_before: PreparedBefore
    rolled_back: frozenset[int]

    async def any_rolled_back(self, xids: Collection[int]) -> bool:
        """Return whether one of them was."""
        return not self.rolled_back.isdisjoint(xids)


class Session:
    """One session of the daemon, from its start to the break of its connection."""

    def __init__(
        self,
        kafka: Kafka,
        options: StreamOptions,
        start_lsn: int,
        random: Random,
        check: Callable[[int], None],
        daemon: Daemon | None = None,
    ) -> None:
        """`check` is told each position that is confirmed. Without `daemon` the core takes what it can take."""
        self._kafka = kafka
        self._check = check
        written_lsn = kafka.progress.commit_lsn
        self.assembler = _Watched(
            options.protocol_version,
            streaming_parallel=options.streaming == "parallel",
            two_phase=options.two_phase,
            written_commit_lsn=written_lsn,
            refuse_doubtful=daemon is not None,
            prepared_before=None if daemon is None else daemon.prepared_before,
        )
        self._pump = _Pump(
            self.assembler,
            _Plans(),  # type: ignore[arg-type]
            self._add,
            lambda boundary, _is_urgent: self._group.add(Chunk((), 0, boundary)),
            lambda info: TransactionContext(info, name="s", database="s", now_us=0, version="s"),
            _Uncounted(),
            start_lsn=start_lsn,
            written_commit_lsn=written_lsn,
            any_rolled_back=None if daemon is None else daemon.any_rolled_back,
        )
        self._pump.relations = {}
        self._group = Group(GroupLimits(random.choice([1, 5, 1000]), 1 << 20, random.choice([0, 3, 30])))
        self._safe = SafeLsn(kafka.progress.end_lsn)
        self._is_lazy = random.random() < 0.3
        self._taken: list[Chunk] = []
        self._batches = 0

    async def _add(self, chunk: Chunk) -> None:
        self._group.add(chunk)

    def feed(self, items: list[Item]) -> None:
        """Take a batch, commit what is due."""
        _completed(self._pump.feed(items))
        self._batches += 1
        self._turn()

    def flush(self) -> None:
        """Commit whatever is complete, as before a stop."""
        self._group.is_hurried, self._is_lazy = True, False
        self._turn()

    def _turn(self) -> None:
        """As the writer does it."""
        group = self._group
        while True:
            while (chunk := group.take(self._batches)) is not None:
                self._taken.append(chunk)
            idle = None if self._is_lazy else group.idle_boundary
            if group.ready(self._batches) or (idle is not None and idle.end_lsn > self._safe.lsn):
                boundary = group.close()
                self._kafka.commit(self._taken, boundary)
                self._taken = []
                self._check(self._safe.durable(boundary.end_lsn))
            else:
                break


def _completed(doing: Coroutine[Any, Any, None]) -> None:
    """Run what waits for nothing, though it may give way."""
    with contextlib.suppress(StopIteration):
        while True:
            assert doing.send(None) is None, "it waits"


def _rows(run: Run, relations: dict[int, Relation]) -> Iterator[Seen]:
    at = 0
    while at < len(run.frames):
        end = at + 12 + int.from_bytes(run.frames[at : at + 4], "big")
        row = decode(run.frames[at + 12 : end], in_stream=run.xid is not None, protocol_version=4)
        at = end
        assert isinstance(row, m.Insert | m.Update | m.Delete)
        data = row.old.data if isinstance(row, m.Delete) else row.new
        values = tuple((column.value or b"").decode() for column in data.columns)
        columns = tuple(column.name for column in relations[row.relid].columns)
        yield (type(row).__name__[0], row.relid, columns, values)
