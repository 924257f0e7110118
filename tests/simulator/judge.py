"""One simulation: work, sessions that end anywhere, the assembler, and the comparison with what was committed.

In: a seed, perhaps the points where the connection breaks.  Out: nothing, or an AssertionError with the seed.
Every session has a new Assembler, starts from a position that was complete before, and drops what it has.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from random import Random

from cdcd.model import Item, Relation, Run
from cdcd.pgoutput import messages as m
from cdcd.pgoutput.decode import decode
from cdcd.source.copyboth import cut_items
from cdcd.source.settings import Streaming, StreamOptions
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
from tests.simulator.walsender import Walsender
from tests.simulator.workload import Committed, Emitted, Generator, Loose, Work

WAYS: tuple[tuple[int, Streaming], ...] = (
    (1, "off"), (2, "off"), (2, "on"), (3, "on"), (4, "off"), (4, "on"), (4, "parallel"), (4, "parallel"),
)  # fmt: skip

Seen = tuple[object, ...]


@dataclass
class _Transaction:
    begun: TransactionBegun
    whats: list[Seen] = field(default_factory=list)


class Reader:
    """What a client makes of events: complete transactions, each once, rows with the columns in force then."""

    def __init__(self) -> None:
        self.complete: list[tuple[Seen, list[Seen]]] = []
        self.ends: list[tuple[int, int]] = []
        self.loose: list[bytes] = []
        self._relations: dict[int, Relation] = {}
        self._open: _Transaction | None = None
        self._visible: set[int] = set()

    def new_session(self) -> None:
        """Forget what the session described and what was incomplete."""
        self._relations = {}
        self._open = None
        self._visible = set()

    def saw(self, item: Item) -> None:
        """Note which transactions may be seen from now on: those of a Begin or a Stream Commit."""
        payload = getattr(item, "payload", b" ")
        if payload[:1] == b"B":
            self._visible.add(int.from_bytes(payload[1:9], "big"))
        elif payload[:1] == b"c":
            self._visible.add(int.from_bytes(payload[6:14], "big"))

    def take(self, event: Event) -> None:
        """Take one event."""
        if isinstance(event, TransactionBegun):
            assert self._open is None, "a transaction inside another"
            assert event.info.commit_lsn in self._visible, "seen before its commit"
            self._open = _Transaction(event)
        elif isinstance(event, TransactionCommitted):
            assert self._open is not None
            assert event.info == self._open.begun.info
            self._commit(event)
        elif isinstance(event, RelationSeen):
            assert self._open is not None
            self._relations[event.relation.relid] = event.relation
        elif isinstance(event, LogicalMessage) and not event.transactional:
            assert self._open is None
            self.loose.append(event.content)
        else:
            assert self._open is not None, "a change outside of a transaction"
            self._open.whats += self._whats(event)

    def _commit(self, event: TransactionCommitted) -> None:
        assert self._open is not None
        info, whats = event.info, self._open.whats
        self._open = None
        if not self.ends or info.commit_lsn > self.ends[-1][0]:
            self.complete.append(((info.xid, info.commit_lsn, event.end_lsn, info.origin), whats))
            self.ends.append((info.commit_lsn, event.end_lsn))

    def _whats(self, event: Event) -> Iterator[Seen]:
        if isinstance(event, Rows):
            for verb, relid, values in _rows(event.run):
                columns = tuple(column.name for column in self._relations[relid].columns)
                yield (verb, relid, columns, values)
        elif isinstance(event, Truncated):
            tables = tuple((one.relid, tuple(c.name for c in one.columns)) for one in event.relations)
            yield ("T", tables, event.cascade, event.restart_identity)
        elif isinstance(event, LogicalMessage):
            yield ("M", event.content)


def _rows(run: Run) -> Iterator[tuple[str, int, tuple[str, ...]]]:
    at = 0
    while at < len(run.frames):
        end = at + 12 + int.from_bytes(run.frames[at : at + 4], "big")
        row = decode(run.frames[at + 12 : end], in_stream=run.xid is not None, protocol_version=4)
        at = end
        assert isinstance(row, m.Insert | m.Update | m.Delete)
        data = row.old.data if isinstance(row, m.Delete) else row.new
        values = tuple((column.value or b"").decode() for column in data.columns)
        yield type(row).__name__[0], row.relid, values


def expected(work: Work) -> list[tuple[Seen, list[Seen]]]:
    """What the model says, in commit order, without transactions that have nothing to show."""
    return [
        ((one.xid, one.commit_lsn, one.end_lsn, one.origin), list(_model(one)))
        for one in work.committed
        if one.whats
    ]


def _model(one: Committed) -> Iterator[Seen]:
    for what in one.whats:
        if isinstance(what, Emitted):
            yield ("M", what.content)
        elif hasattr(what, "verb"):
            yield (what.verb, what.schema.relid, what.schema.columns, what.values)
        else:
            tables = tuple((schema.relid, schema.columns) for schema in what.schemas)
            yield ("T", tables, bool(what.options & 1), bool(what.options & 2))


def simulate(seed: int, *, breaks: Iterable[int] | None = None, steps: int | None = None) -> int:
    """Run one simulation; the number of CopyData messages sent. AssertionError where model and core differ.

    `breaks`: after how many messages each session but the last one ends; random by default.
    """
    random = Random(seed)
    work = Generator(random).work(steps or random.choice([10, 40, 40, 120, 300]))
    if breaks is None:
        breaks = [random.randint(0, 200) for _ in range(random.choice([0, 0, 1, 2, 4]))]
    reader, sent = Reader(), 0
    for limit in (*breaks, None):
        sent += _session(work, reader, limit, Random(random.random()))
    _compare(work, reader)
    return sent


def _session(work: Work, reader: Reader, limit: int | None, random: Random) -> int:
    version, streaming = random.choice(WAYS)
    options = StreamOptions(version, streaming, messages=True)
    start_lsn = random.choice(
        [0, *(end for _, end in reader.ends), *[end for _, end in reader.ends[-1:]] * 3]
    )
    reader.new_session()
    assembler = Assembler(version, streaming_parallel=streaming == "parallel")
    payloads = iter(Walsender(work.wal, options, start_lsn, random).payloads())
    in_stream, sent = False, 0
    while True:
        size = random.choice([1, 1, 3, 20])
        if limit is not None:
            size = min(size, limit - sent)
        batch = list(itertools.islice(payloads, size))
        if not batch:
            break
        sent += len(batch)
        items, in_stream = cut_items(batch, in_stream)
        for item in items:
            reader.saw(item)
            for event in assembler.feed(item):
                reader.take(event)
    assert limit is not None or assembler.open_streams == 0, "streams left open though all have ended"
    return sent


def _compare(work: Work, reader: Reader) -> None:
    doomed = {("M", content) for content in work.doomed}
    got = [(head, [what for what in whats if what not in doomed]) for head, whats in reader.complete]
    got = [(head, whats) for head, whats in got if whats]
    assert got == expected(work)
    assert set(reader.loose) == {record.content for record in work.wal if isinstance(record, Loose)}
